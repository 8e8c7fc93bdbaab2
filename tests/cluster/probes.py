"""What the links of a cluster do, found without torch: the round trip of a small message, the rate of a long one."""

from __future__ import annotations

import os
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .system import socket_in

if TYPE_CHECKING:
    from .network import Cluster

_PATIENCE_S = 30.0


def ping_s(cluster: Cluster, here: int, there: int, count: int = 21, timeout_s: float = _PATIENCE_S) -> float:
    """Median round trip in seconds of 32 bytes (UDP) between two hosts. Raises TimeoutError where none arrives."""
    with (
        socket_in(cluster.namespace(here), socket.SOCK_DGRAM) as near,
        socket_in(cluster.namespace(there), socket.SOCK_DGRAM) as far,
        realtime(),
    ):
        near.settimeout(timeout_s)
        far.settimeout(timeout_s)
        far.bind((cluster.address(there), 0))
        near.connect(far.getsockname())
        trips = []
        for _ in range(count + 1):
            started = time.perf_counter()
            near.send(bytes(32))
            message, sender = far.recvfrom(64)
            far.sendto(message, sender)
            near.recv(64)
            trips.append(time.perf_counter() - started)
    return statistics.median(trips[1:])  # the first one asked for the address


def stream_bytes_per_s(cluster: Cluster, here: int, there: int, size_bytes: int) -> float:
    """Payload rate of one TCP stream of this size, from the first byte that arrives to the last. `here` and `there` may
    be one host. Raises TimeoutError where it comes to a halt."""
    with socket_in(cluster.namespace(there), socket.SOCK_STREAM) as listener:
        listener.settimeout(_PATIENCE_S)
        listener.bind((cluster.address(there), 0))
        listener.listen()
        with socket_in(cluster.namespace(here), socket.SOCK_STREAM) as sender:
            sender.settimeout(_PATIENCE_S)
            sender.connect(listener.getsockname())
            receiver, _ = listener.accept()
            with receiver, realtime():
                sending = threading.Thread(target=sender.sendall, args=(bytes(size_bytes),))
                sending.start()
                receiver.settimeout(_PATIENCE_S)
                buffer = bytearray(1 << 20)
                first = left = receiver.recv_into(buffer)
                started = time.perf_counter()
                left = size_bytes - first
                while left:
                    left -= receiver.recv_into(buffer)
                took_s = time.perf_counter() - started
                sending.join()
    return (size_bytes - first) / took_s


@contextmanager
def realtime() -> Iterator[None]:
    """Real-time priority for this thread and those it starts, so that other load stays out of the times."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
