"""One clock for all ranks, and a deadline they all start at.

Ranks under one kernel share its monotonic clock exactly; between kernels the offset is measured by ping-pong with rank
0 over the control group (the exchange with the shortest round trip, as NTP does). Starting at an agreed moment leaves
no skew of a barrier in the measurement (Hunold & Carpen-Amarie, EuroMPI'15).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

now_ns = time.perf_counter_ns

_PINGS = 20
_LEAST_SLACK_NS = 100_000  # from the last rank's arrival to the deadline
_MOST_SLACK_NS = 2_000_000  # on a busy machine more time stops helping
_AWAKE_NS = 150_000  # before the deadline a rank is awake; longer waits are slept, which a busy machine repays
LATE_NS = 20_000  # a rank that reaches its deadline later than this has missed it


def clock_identity() -> str:
    """Equal for processes that share one monotonic clock: the kernel's boot, and the time namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    namespace = Path("/proc/self/ns/time")
    parts = [boot.read_text().strip() if boot.exists() else os.uname().nodename]
    parts.append(str(namespace.readlink()) if namespace.is_symlink() else "")
    return ":".join(parts)


def offset_to_rank0_ns(control: Any) -> int:
    """What to add to this rank's clock to read rank 0's. Called by all ranks together."""
    identities: list[str] = [""] * dist.get_world_size(control)
    dist.all_gather_object(identities, clock_identity(), group=control)
    rank, offsets = dist.get_rank(control), {identities[0]: 0}
    for peer, identity in enumerate(identities):
        if identity in offsets:
            continue
        offset = torch.zeros(1, dtype=torch.int64)
        if rank in (0, peer):
            offset[0] = _ping_pong(peer if rank == 0 else 0, asks=rank == peer, control=control)
        dist.broadcast(offset, src=peer, group=control)
        offsets[identity] = int(offset)
    return offsets[identities[rank]]


def _ping_pong(other: int, asks: bool, control: Any) -> int:
    best_round_trip, best_offset = 2**62, 0
    message = torch.zeros(1, dtype=torch.int64)
    for _ in range(_PINGS):
        if asks:
            sent = now_ns()
            dist.send(message, dst=other, group=control)
            dist.recv(message, src=other, group=control)
            received = now_ns()
            if received - sent < best_round_trip:
                best_round_trip = received - sent
                best_offset = int(message) - (sent + received) // 2
        else:
            dist.recv(message, src=other, group=control)
            message[0] = now_ns()
            dist.send(message, dst=other, group=control)
    return best_offset


class Deadline:
    """Brings all ranks of the job to one common moment, again and again.

    The deadline is as far off as it took, the last time, until every rank had learned of it, twice over. A rank that
    learns of it too late all the same says so at the next one: the sample between the two is void, on all ranks.
    """

    def __init__(self, control: Any, offset_ns: int) -> None:
        self._control = control
        self._offset_ns = offset_ns
        self._missed = False
        self._learned_ns = _LEAST_SLACK_NS
        self.previous_void = False

    def wait(self) -> int:
        """Return at the deadline, which is given in this rank's own clock (ns)."""
        mine = [now_ns() + self._offset_ns, int(self._missed), self._learned_ns]
        agreed = torch.tensor(mine, dtype=torch.int64)
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX, group=self._control)
        last_arrival, missed, learned_ns = agreed.tolist()
        self.previous_void = bool(missed)
        self._learned_ns = now_ns() - (last_arrival - self._offset_ns)
        slack_ns = min(max(2 * learned_ns, _LEAST_SLACK_NS), _MOST_SLACK_NS)
        deadline: int = last_arrival - self._offset_ns + slack_ns
        remaining = deadline - now_ns()
        if remaining > 2 * _AWAKE_NS:
            time.sleep((remaining - _AWAKE_NS) / 1e9)
        while now_ns() < deadline:
            os.sched_yield()
        self._missed = now_ns() - deadline > LATE_NS
        return deadline
