"""The switch where there is a delay: a process of its own, between TAP devices that are the hosts' NICs.

The kernel's own means (netem) are missing on many machines. Packets pass whole, up to 64 KiB with the header that says
how to cut them; each waits for its turn at the receiving NIC's rate, then for the delay.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import json
import os
import select
import socket
import struct
import sys
import time
from dataclasses import dataclass

from .shaping import bucket
from .system import inside

_TUNSETIFF, _TUNSETOFFLOAD, _TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
_TAP_NO_INFO_VNET_HEADER = 0x0002 | 0x1000 | 0x4000
_CHECKSUM_TSO4 = 0x01 | 0x02
_VNET_HEADER, _ETHERNET = 10, 14


@dataclass
class Port:
    """A host's NIC at the relay, shaped as tbf would: `busy_until` is when all that was sent through it is out, at no
    more than a bucket of credit after a pause."""

    device: int
    bytes_per_s: float
    burst_bytes: float
    up: bool = True
    busy_until: float = 0.0

    def departure(self, now: float, size_bytes: int) -> float:
        """When a packet that arrives now has its turn."""
        since = max(self.busy_until, now - self.burst_bytes / self.bytes_per_s)
        self.busy_until = since + size_bytes / self.bytes_per_s
        return max(now, self.busy_until)


def open_nic() -> int:
    """A TAP device named eth0, where this thread is; its file descriptor, with which it goes."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _TAP_NO_INFO_VNET_HEADER))
    fcntl.ioctl(device, _TUNSETVNETHDRSZ, struct.pack("i", _VNET_HEADER))
    fcntl.ioctl(device, _TUNSETOFFLOAD, _CHECKSUM_TSO4)
    return device


def size_on_wire(packet: bytes) -> int:
    """Bytes of a packet with the headers of all the frames it will be cut into, which the shaper counts."""
    size = len(packet) - _VNET_HEADER
    cut = int.from_bytes(packet[4:6], sys.byteorder)
    if not packet[1] or not cut:
        return size
    network = _VNET_HEADER + _ETHERNET
    transport = (packet[network] & 15) * 4
    headers = _ETHERNET + transport + (packet[network + transport + 12] >> 4) * 4
    return size + (-(-(size - headers) // cut) - 1) * headers


class Relay:
    def __init__(self, ports: list[Port], delay_s: float, control: socket.socket) -> None:
        self._ports, self._delay_s, self._control = ports, delay_s, control
        self._waiting: list[tuple[float, int, Port, bytes]] = []
        self._order = itertools.count()

    def go(self) -> None:
        by_device = {port.device: port for port in self._ports}
        control = self._control.fileno()
        sources = [*by_device, control]
        while True:
            rest = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None
            for source in select.select(sources, [], [], rest)[0]:
                if source == control:
                    self._obey()
                else:
                    self._take(by_device[source])
            self._deliver()

    def _take(self, port: Port) -> None:
        try:
            packet = os.read(port.device, 1 << 17)
        except OSError:  # nothing there, or the device is down
            return
        now = time.monotonic()
        address = packet[_VNET_HEADER : _VNET_HEADER + 6]
        for to in self._ports if address == b"\xff" * 6 else self._ports[address[5] : address[5] + 1]:
            if to is not port and to.up and port.up and (address[0] == 0xFF or not address[0] & 1):
                due = to.departure(now, size_on_wire(packet)) + self._delay_s
                heapq.heappush(self._waiting, (due, next(self._order), to, packet))

    def _deliver(self) -> None:
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, _, port, packet = heapq.heappop(self._waiting)
            if port.up:
                try:
                    os.write(port.device, packet)
                except OSError:  # the host's end is down: lost, as on a cable
                    continue

    def _obey(self) -> None:
        line, _ = self._control.accept()
        with line:
            what = json.loads(line.recv(4096))
            if "rate" in what:
                host, rate_mbit, burst_bytes = what["rate"]
                self._ports[host].bytes_per_s = rate_mbit * 1e6 / 8
                self._ports[host].burst_bytes = burst_bytes
            if "link" in what:
                host, up = what["link"]
                self._ports[host].up = up
            line.send(b"done")


def main(path: str, namespaces: list[str], rates_mbit: list[float], delay_ms: float) -> None:
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.bind(path)
    control.listen()
    ports = [
        Port(inside(namespace, open_nic), rate * 1e6 / 8, bucket(rate))
        for namespace, rate in zip(namespaces, rates_mbit, strict=True)
    ]
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))  # above the ranks, which would hold it up
    print("ready", flush=True)
    Relay(ports, delay_ms / 1e3, control).go()


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
