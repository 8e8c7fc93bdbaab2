"""One clock for all ranks, and a deadline they all start at.

Ranks under one kernel share its monotonic clock exactly; between kernels the offset is measured by ping-pong with rank
0 over the control group (the exchange with the shortest round trip, as NTP does). Starting at an agreed moment leaves
no skew of a barrier in the measurement (Hunold & Carpen-Amarie, EuroMPI'15).
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from collbench.measure.control import Control

now_ns = time.perf_counter_ns

_PINGS = 20
_LEAST_SLACK_NS = 100_000  # from the last rank's arrival to the deadline
_MOST_SLACK_NS = 1_000_000  # for each doubling of the ranks; on a busy machine more time stops helping,
_SLACK_TO_SHORTEST = 3  # but a far network needs this many times as long as ranks learned of a deadline at best
_AWAKE_NS = 150_000  # before the deadline a rank is awake; longer waits are slept, which a busy machine repays
_LATE_NS = 20_000  # a rank may be this much later than the deadline,
_LATE_PART = 100  # or this part of what is measured, before the sample is void


def clock_identity() -> str:
    """Equal for processes that share one monotonic clock: the kernel's boot, and the time namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    namespace = Path("/proc/self/ns/time")
    parts = [boot.read_text().strip() if boot.exists() else os.uname().nodename]
    parts.append(str(namespace.readlink()) if namespace.is_symlink() else "")
    return ":".join(parts)


def offset_to_rank0_ns(control: Control) -> int:
    """What to add to this rank's clock to read rank 0's. Called by all ranks together."""
    identities = control.everyones(clock_identity())
    offsets = {identities[0]: 0}
    for peer, identity in enumerate(identities):
        if identity not in offsets:
            offset = _ping_pong(control, peer) if control.rank in (0, peer) else 0
            offsets[identity] = control.from_rank(peer, offset)
    return offsets[identities[control.rank]]


def _ping_pong(control: Control, peer: int) -> int:
    """The peer's offset to rank 0, as the peer sees it; rank 0 only answers."""
    best_round_trip, best_offset = 2**62, 0
    for _ in range(_PINGS):
        if control.rank == 0:
            control.receive(peer)
            control.send(now_ns(), peer)
            continue
        sent = now_ns()
        control.send(sent, 0)
        theirs = control.receive(0)
        received = now_ns()
        if received - sent < best_round_trip:
            best_round_trip = received - sent
            best_offset = theirs - (sent + received) // 2
    return best_offset


class Stops:
    """How often this process was stopped (SIGSTOP, or a debugger) and went on: what it measured then is void."""

    def __init__(self) -> None:
        self.count = 0

    def watch(self) -> None:
        """Count from now on; for the main thread of a rank."""
        signal.signal(signal.SIGCONT, self._went_on)

    def _went_on(self, *_: object) -> None:
        self.count += 1


STOPS = Stops()  # of this process


class Deadline:
    """Brings all ranks of the job to one common moment, again and again.

    The deadline is as far off as it took, the last time, until every rank had learned of it, twice over. A rank that
    learns of it too late all the same, or was stopped since, says so at the next one: the sample between the two is
    void, on all ranks.
    """

    def __init__(self, control: Control, offset_ns: int) -> None:
        self._control = control
        self._offset_ns = offset_ns
        self._late_ns = 0
        self._late = False
        self._stops = STOPS.count
        self._learned_ns = _LEAST_SLACK_NS
        self._most_slack_ns = _MOST_SLACK_NS * max(2, (control.world_size - 1).bit_length())
        self._shortest_ns: int | None = None  # in which all ranks have learned of a deadline
        self._waited = False
        self.previous_void = False
        self.times_late = 0  # of this rank, since the start of the job

    def wait(self) -> int:
        """Return at the deadline, which is given in this rank's own clock (ns). `previous_void` then says whether any
        rank was late for the one before."""
        mine = [now_ns() + self._offset_ns, int(self._late), self._learned_ns]
        last_arrival, late, learned_ns = self._control.maximum(mine)
        self.previous_void = bool(late)
        self._learned_ns = now_ns() - (last_arrival - self._offset_ns)
        if self._waited:  # before, nobody has learned of any
            self._shortest_ns = min(self._shortest_ns or learned_ns, learned_ns)
        self._waited = True
        most_ns = max(self._most_slack_ns, _SLACK_TO_SHORTEST * (self._shortest_ns or 0))
        slack_ns = min(max(2 * learned_ns, _LEAST_SLACK_NS), most_ns)
        deadline = last_arrival - self._offset_ns + slack_ns
        remaining = deadline - now_ns()
        if remaining > 2 * _AWAKE_NS:
            time.sleep((remaining - _AWAKE_NS) / 1e9)
        while now_ns() < deadline:
            os.sched_yield()
        self._late_ns = now_ns() - deadline
        self._late = False
        return deadline

    def measured(self, elapsed_ns: int) -> None:
        """What was measured since the deadline took this long: void if this rank came late by more than a small part
        of it, or was stopped meanwhile. Told to the others at the next deadline."""
        allowed_ns = max(_LATE_NS, elapsed_ns // _LATE_PART)
        self._late = self._late_ns > allowed_ns or STOPS.count != self._stops
        self._stops = STOPS.count
        self.times_late += self._late
