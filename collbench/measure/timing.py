"""The two regimes, and what is said of their samples.

isolated: all ranks start at a common deadline, do one operation; one sample is the last exit over all ranks minus the
deadline, and the figure is the median over iterations.
pipelined: nccl-tests' own (common.cu, BenchTime): operations back to back, elapsed time over their number, mean over
ranks.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from collbench.measure.clock import Deadline, now_ns
from collbench.measure.device import Device

Issue = Callable[[bool], Any]


@dataclass(slots=True)
class RankTimes:
    """One rank's clock readings of one cell, in ns after the deadline: entered[i] and left[i] of iteration i.

    In the pipelined regime there is one pair: the start of the first operation and the end of the last.
    """

    entered_ns: list[int]
    left_ns: list[int]


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
    """`iterations` samples; those whose deadline some rank missed are void and done again, at most as many again.

    `issue` is None on a rank that only keeps time with the others. All ranks of the job call this together.
    """
    times = RankTimes([], [])
    pending: tuple[int, int] | None = None
    void = 0
    with _undisturbed():
        while True:
            start = deadline.wait()
            if pending is not None:
                if deadline.previous_void and void < iterations:
                    void += 1
                else:
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
            pending = (entered - start, now_ns() - start)


def time_pipelined(issue: Issue | None, device: Device, deadline: Deadline, iterations: int) -> RankTimes:
    """One sample of `iterations` operations back to back, on this rank's own clock."""
    with _undisturbed():
        start = deadline.wait()
        if issue is None:
            return RankTimes([0], [0])
        begun = now_ns()
        for _ in range(iterations):
            work = issue(device.issues_async)
            if work is not None:
                work.wait()
        device.synchronize()
        return RankTimes([begun - start], [now_ns() - start])


# --- statistics, on rank 0 -------------------------------------------------------------------------------------------


def quantile(values: list[float], q: float) -> float:
    """Linear interpolation between the order statistics, as numpy's default."""
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(values: list[float]) -> float:
    return quantile(values, 0.5)


def summarize_isolated(ranks: tuple[int, ...], times: list[RankTimes]) -> dict[str, Any]:
    """The record's fields from every rank's readings: times[i] are those of global rank ranks[i]."""
    samples_us = [max(left) / 1e3 for left in zip(*(t.left_ns for t in times), strict=True)]
    return {
        "iterations": len(samples_us),
        "time_us": median(samples_us),
        "time_min_us": min(samples_us),
        "time_p50_us": median(samples_us),
        "time_p95_us": quantile(samples_us, 0.95),
        "time_max_us": max(samples_us),
        "time_rank_max_us": max(median([float(x) for x in t.left_ns]) for t in times) / 1e3,
        "slowest_rank": ranks[_slowest(times)],
        "samples_us": samples_us,
    }


def summarize_pipelined(ranks: tuple[int, ...], times: list[RankTimes], iterations: int) -> dict[str, Any]:
    """As nccl-tests' -a 1: the mean over ranks of each rank's own elapsed time over the number of operations."""
    per_rank_us = [(t.left_ns[0] - t.entered_ns[0]) / iterations / 1e3 for t in times]
    mean_us = sum(per_rank_us) / len(per_rank_us)
    return {
        "iterations": iterations,
        "time_us": mean_us,
        "time_min_us": None,
        "time_p50_us": None,
        "time_p95_us": None,
        "time_max_us": None,
        "time_rank_max_us": max(per_rank_us),
        # One repeat has no spread to be late by: the rank that leaves latest.
        "slowest_rank": ranks[max(range(len(times)), key=lambda index: times[index].left_ns[0])],
        "samples_us": [mean_us],
    }


def _slowest(times: list[RankTimes]) -> int:
    """The rank that enters latest by more than the spread, else the one that leaves latest.

    The spread is the widest interquartile range of any rank's entries: a rank is late only if it stands out of that.
    """
    entries = [[float(x) for x in t.entered_ns] for t in times]
    entered = [median(values) for values in entries]
    latest = max(range(len(times)), key=entered.__getitem__)
    others = [value for index, value in enumerate(entered) if index != latest]
    spread = max(quantile(values, 0.75) - quantile(values, 0.25) for values in entries)
    if others and entered[latest] - median(others) > spread:
        return latest
    left = [median([float(x) for x in t.left_ns]) for t in times]
    return max(range(len(times)), key=left.__getitem__)


def interval_of_median(values: list[float]) -> tuple[float, float]:
    """A 95 % interval of the median from order statistics (binomial, normal approximation; needs 6 values or more)."""
    ordered, n = sorted(values), len(values)
    half = 1.96 * math.sqrt(n) / 2
    return ordered[max(0, math.floor(n / 2 - half))], ordered[min(n - 1, math.ceil(n / 2 + half) - 1)]
