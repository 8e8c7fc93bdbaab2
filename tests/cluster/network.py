"""The cluster: hosts, a switch between them, the rate of every NIC. A context, after which nothing of it is left."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from . import delay
from .names import clean, find, folder_of, new_name, remove
from .ranks import Job, Outcome
from .shaping import MTU, bucket, largest_packet, tbf, tbf_on_lo
from .system import ClusterError, call, ip, on_host, set_sysctl, tc

_HOSTS = 250


@dataclass(frozen=True)
class Shape:
    """hosts and their NICs. slow: {host: its rate} for those unlike the others, in both directions.
    intra_mbit: for what ranks of one host send each other (None: as fast as it goes). delay_ms: one way."""

    hosts: int
    rate_mbit: float
    slow: dict[int, float] = field(default_factory=dict)
    intra_mbit: float | None = None
    delay_ms: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.hosts <= _HOSTS:
            raise ClusterError(f"{self.hosts} hosts: expected 1 to {_HOSTS}")
        if min([self.rate_mbit, *self.slow.values(), self.intra_mbit or 1.0]) <= 0:
            raise ClusterError("a rate is not above 0")
        if strangers := [host for host in self.slow if not 0 <= host < self.hosts]:
            raise ClusterError(f"slow host {strangers[0]}: expected one of 0 to {self.hosts - 1}")
        if self.delay_ms < 0:
            raise ClusterError(f"a delay of {self.delay_ms} ms: expected 0 or more")

    def rate_of(self, host: int) -> float:
        return self.slow.get(host, self.rate_mbit)


@dataclass(frozen=True)
class NicBytes:
    """What a host's NIC has sent and received since it was made. Packets count as TCP gave them to the NIC, so most
    headers do not: up to 64 KiB go under one."""

    sent: int
    received: int


class Cluster:
    """Hosts 0 to `hosts`-1, `host0` at 10.88.0.1 and so on. Raises ClusterError where it cannot be made.

    Making one first removes what killed runs left. Other clusters, of this process too, are left alone.
    """

    def __init__(
        self,
        hosts: int,
        rate_mbit: float,
        *,
        slow: Mapping[int, float] | None = None,
        intra_mbit: float | None = None,
        delay_ms: float = 0.0,
    ) -> None:
        self.shape = Shape(hosts, rate_mbit, dict(slow or {}), intra_mbit, delay_ms)
        self.name = ""
        self._relay: subprocess.Popen[str] | None = None

    @classmethod
    def attach(cls, name: str) -> Cluster:
        """A cluster that another process holds, for use but not as a context. Raises ClusterError where it is not."""
        if not any(each.name == name and each.alive for each in find()):
            raise ClusterError(f"{name}: no such cluster: see `list`")
        saved: dict[str, Any] = json.loads(_description(name).read_text())
        slow = {int(host): rate for host, rate in saved.pop("slow").items()}
        cluster = cls(**saved, slow=slow)
        cluster.name = name
        return cluster

    # --- up and down -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Cluster:
        clean()
        self.name = new_name()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._remove()

    def _make(self) -> None:
        self.folder.mkdir()
        hosts = [
            f"{before}{self.address(host)} {self.host_name(host)}\n"
            for before in ("", "::ffff:")
            for host in self.hosts
        ]
        self._hosts_file.write_text("127.0.0.1 localhost\n" + "".join(hosts))
        for namespace in self._namespaces():
            call("ip", "netns", "add", namespace)
            set_sysctl(namespace, "net/ipv6/conf/default/addr_gen_mode", "1")  # no chatter about addresses
        if self.shape.delay_ms:
            rates = [self.shape.rate_of(host) for host in self.hosts]
            namespaces = [self.namespace(host) for host in self.hosts]
            self._relay = delay.start(self._relay_socket, namespaces, rates, self.shape.delay_ms)
        else:
            self._make_switch()
        for host in self.hosts:
            self._make_host(host)
        _description(self.name).write_text(json.dumps(asdict(self.shape)))

    def _make_switch(self) -> None:
        bridge = f"link add name bridge mtu {MTU} type bridge mcast_snooping 0"
        ip(self._switch, bridge, "link set bridge up")
        for host in self.hosts:
            port, rate = _port(host), self.shape.rate_of(host)
            ip(
                self.namespace(host),
                f"link add name eth0 mtu {MTU} type veth peer name {port} mtu {MTU} netns {self._switch}",
            )
            ip(self._switch, f"link set {port} master bridge up")
            tc(self._switch, tbf("add", port, rate, bucket(rate)))

    def _make_host(self, host: int) -> None:
        """All but the NIC itself, which a bridge or a relay has made."""
        namespace, rate = self.namespace(host), self.shape.rate_of(host)
        set_sysctl(namespace, "net/ipv4/tcp_slow_start_after_idle", "0")
        nic = f"address {delay.mac(host)} mtu {MTU} gso_max_size {largest_packet(rate)}"
        ip(
            namespace,
            "link set lo up",
            f"link set eth0 {nic}",
            f"addr add {self.address(host)}/24 dev eth0",
            "link set eth0 up",
            f"route replace 10.88.0.0/24 dev eth0 proto kernel scope link src {self.address(host)} congctl reno",
        )
        tc(namespace, tbf("add", "eth0", rate, bucket(rate)))
        if self.shape.intra_mbit:
            tc(namespace, tbf_on_lo("add", self.shape.intra_mbit))

    def _remove(self) -> None:
        # Not to be interrupted: a second Ctrl-C would leave half of it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        try:
            if self._relay is not None:
                delay.stop(self._relay)
            remove(self.name, self._namespaces())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    # --- names -------------------------------------------------------------------------------------------------------

    @property
    def hosts(self) -> range:
        return range(self.shape.hosts)

    @property
    def folder(self) -> Path:
        return folder_of(self.name)

    def namespace(self, host: int) -> str:
        return f"{self.name}-host{host}"

    def host_name(self, host: int) -> str:
        """What programs on it see."""
        return f"host{host}"

    def address(self, host: int) -> str:
        return f"10.88.0.{host + 1}"

    @property
    def _switch(self) -> str:
        return f"{self.name}-switch"

    @property
    def _hosts_file(self) -> Path:
        return self.folder / "hosts"

    @property
    def _relay_socket(self) -> Path:
        return self.folder / "relay"

    def _namespaces(self) -> tuple[str, ...]:
        switch = () if self.shape.delay_ms else (self._switch,)
        return (*(self.namespace(host) for host in self.hosts), *switch)

    # --- while it runs -----------------------------------------------------------------------------------------------

    def set_rate(self, host: int, rate_mbit: float) -> None:
        """Change a NIC's rate, both ways, in mid-run. Packets keep the size of the rate it was made with."""
        burst = bucket(rate_mbit, self.shape.rate_of(host))
        tc(self.namespace(host), tbf("change", "eth0", rate_mbit, burst))
        if self.shape.delay_ms:
            delay.tell(self._relay_socket, rate=[host, rate_mbit, burst])
        else:
            tc(self._switch, tbf("change", _port(host), rate_mbit, burst))

    def set_intra_rate(self, rate_mbit: float) -> None:
        """Change the rate inside all hosts, where there is one."""
        for host in self.hosts:
            tc(self.namespace(host), tbf_on_lo("change", rate_mbit))

    def set_link(self, host: int, up: bool) -> None:
        """Pull a host's cable at the switch, or put it back."""
        if self.shape.delay_ms:
            delay.tell(self._relay_socket, link=[host, up])
        else:
            ip(self._switch, f"link set {_port(host)} {'up' if up else 'down'}")

    def nic_bytes(self, host: int) -> NicBytes:
        [link] = json.loads(call("ip", "-n", self.namespace(host), "-s", "-j", "link", "show", "eth0"))
        return NicBytes(link["stats64"]["tx"]["bytes"], link["stats64"]["rx"]["bytes"])

    def command_on(self, host: int, command: Sequence[str]) -> list[str]:
        """The command that, started here, runs `command` on a host."""
        return on_host(self.namespace(host), self.host_name(host), self._hosts_file, list(command))

    def start(self, command: Sequence[str], **how: Any) -> Job:
        """`command` as every rank of a job: see `Job`, whose options these are. A context."""
        return Job(self, command, **how)

    def run(self, command: Sequence[str], *, timeout_s: float = 120.0, **how: Any) -> Outcome:
        """The same to its end, or to the time-out, after which no process of it is left."""
        with self.start(command, **how) as job:
            return job.wait(timeout_s)


def _description(name: str) -> Path:
    """A file that is there once the cluster is whole."""
    return folder_of(name) / "shape.json"


def _port(host: int) -> str:
    return f"port{host}"
