"""The two regimes, as one rank runs them. What is said of their samples is in `samples.py`.

isolated: all ranks start at a common deadline, do one operation; one sample is the last exit over all ranks minus the
deadline.
pipelined: nccl-tests' own (common.cu, BenchTime): operations back to back, elapsed time over their number; one sample
is one such batch.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from collbench.measure.clock import Deadline, now_ns
from collbench.measure.control import Control
from collbench.measure.device import Device

Issue = Callable[[bool], Any]
_SECOND_TRIES = 2  # of a pipelined batch for which a rank came late


@dataclass(slots=True)
class RankTimes:
    """One rank's clock readings of one cell, in ns after the deadline; sample i in place i of each list.

    entered: the start of a pipelined batch, or when the call of an isolated operation had returned.  left: the end.
    issued: when the last call of a pipelined batch had returned.  iterations: ns of every operation, where asked for.
    late: how many samples were void, because some rank came late, and were done again; late_kept: how many void ones
    are among the samples all the same, because enough had been done again.
    """

    entered_ns: list[int] = field(default_factory=list)
    left_ns: list[int] = field(default_factory=list)
    issued_ns: list[int] = field(default_factory=list)
    iterations_ns: list[int] = field(default_factory=list)
    late: int = 0
    late_kept: int = 0

    def extend(self, more: RankTimes) -> None:
        """Add the samples of another batch."""
        self.entered_ns += more.entered_ns
        self.left_ns += more.left_ns
        self.issued_ns += more.issued_ns
        self.iterations_ns += more.iterations_ns
        self.late += more.late
        self.late_kept += more.late_kept


@contextmanager
def _undisturbed() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def run_once(issue: Issue, device: Device) -> None:
    """One operation, waited for."""
    work = issue(device.issues_async)
    if work is not None:
        work.wait()
    device.synchronize()


def time_isolated(issue: Issue | None, device: Device, deadline: Deadline, iterations: int) -> RankTimes:
    """`iterations` samples; those for whose deadline some rank came late are done again, at most as many again.

    `issue` is None on a rank that only keeps time with the others. All ranks of the job call this together.
    """
    times = RankTimes()
    pending: tuple[int, int] | None = None
    with _undisturbed():
        while True:
            start = deadline.wait()
            if pending is not None:
                if deadline.previous_void and times.late < iterations:
                    times.late += 1
                else:
                    times.late_kept += deadline.previous_void
                    times.entered_ns.append(pending[0])
                    times.left_ns.append(pending[1])
            if len(times.left_ns) == iterations:
                return times
            if issue is None:
                pending = (0, 0)
                continue
            # The call returns when this rank has entered the collective; waiting for it is leaving.
            work = issue(device.issues_async)
            entered = now_ns()
            if work is not None:
                work.wait()
            device.synchronize()
            left = now_ns() - start
            pending = (entered - start, left)
            deadline.measured(left)


@dataclass(frozen=True, slots=True)
class Between:
    """What comes between the operations of a pipelined batch (nccl-tests -z): nothing (0); a wait for each and then a
    barrier, which counts (1) or does not (3); a wait alone (2)."""

    blocking: int
    control: Control

    def after(self, device: Device) -> int:
        """Do it, after one operation; the ns that do not count."""
        if self.blocking:
            device.synchronize()
        begun = now_ns()
        if self.blocking in (1, 3):
            self.control.maximum([0])
        return now_ns() - begun if self.blocking == 3 else 0


def time_pipelined(
    issue: Issue | None,
    device: Device,
    deadline: Deadline,
    iterations: int,
    between: Between | None = None,
    each: bool = False,
) -> RankTimes:
    """One sample of `iterations` operations back to back, on this rank's own clock; `each`: and of every operation.

    Where a rank comes late the batch is void and done again, two more times at most.
    """
    with _undisturbed():
        for late in range(_SECOND_TRIES + 1):
            start = deadline.wait()
            times = _batch(issue, device, start, iterations, between, each)
            if issue is not None:
                deadline.measured(times.left_ns[0])
            deadline.wait()
            times.late, times.late_kept = late, int(deadline.previous_void)
            if not deadline.previous_void:
                break
        return times


def _batch(
    issue: Issue | None, device: Device, start: int, iterations: int, between: Between | None, each: bool
) -> RankTimes:
    if issue is None:
        return _keep_time(iterations, between, each)
    if between is not None or each:
        return _interrupted_batch(issue, device, start, iterations, between, each)
    begun = now_ns()
    for _ in range(iterations):
        work = issue(device.issues_async)
        if work is not None:
            work.wait()
    issued = now_ns()
    device.synchronize()
    return RankTimes([begun - start], [now_ns() - start], [issued - start])


def _interrupted_batch(
    issue: Issue, device: Device, start: int, iterations: int, between: Between | None, each: bool
) -> RankTimes:
    uncounted = 0
    begun = now_ns()
    marks = [device.mark()] if each else []
    for _ in range(iterations):
        work = issue(device.issues_async)
        if work is not None:
            work.wait()
        if each:
            marks.append(device.mark())
        if between is not None:
            uncounted += between.after(device)
            if each:
                marks.append(device.mark())
    issued = now_ns()
    device.synchronize()
    left = now_ns() - start - uncounted
    durations = device.between_marks_ns(marks)[:: 1 if between is None else 2] if each else []
    return RankTimes([begun - start], [left], [issued - start - uncounted], durations)


def _keep_time(iterations: int, between: Between | None, each: bool) -> RankTimes:
    """What a rank without a group does while the others measure: it takes part in their barriers."""
    if between is not None and between.blocking in (1, 3):
        for _ in range(iterations):
            between.control.maximum([0])
    return RankTimes([0], [0], [0], [0] * iterations if each else [])
