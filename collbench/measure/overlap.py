"""A collective and a matrix product at the same time: how much each slows the other.

A round is three samples, each from the common deadline: the collective alone, a loop of products alone, both together;
the next round takes them in reverse, so that drift cancels. Together, the collective is issued first and the loop runs
in the issuing thread (or on its stream), as in a training step. The loop is to outlast the collective on every rank.

The collective's slowdown is its time beside the loop over its time alone: last exit over the ranks minus the deadline,
medians. The loop's is the time it was under the collective over the time that the same products take alone; what comes
after the collective has no part in it. It is told of the rank whose loop lost most time, since a step goes at the pace
of the slowest.
"""

from __future__ import annotations

import gc
import math
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from collbench.measure.clock import now_ns
from collbench.measure.job import Job
from collbench.measure.samples import interval_of_median, median
from collbench.measure.timing import Issue
from collbench.results import Record

# The square products of a kind of device, the smallest first: (device, side, type). The largest that fits a few times
# into a collective is taken: it is by the products that end during the collective that the loop's pace is told.
PRODUCTS = (
    *(("cpu", side, "float32") for side in (64, 128, 256, 512)),
    *(("cuda", side, "float16") for side in (2048, 4096)),
)
_PRODUCTS_A_COLLECTIVE = 4
_LOOP_TO_COLLECTIVE = 2  # how much longer the loop is, each alone
_MARGIN = 1.25  # by which it must outlast the collective, slowed as it is,
_LENGTHENINGS = 4  # else it is doubled, so often at most
_TRIALS = 3
_COPIED = (
    *("run_id", "collective", "group", "group_ranks", "nranks", "nnodes", "dtype", "redop", "root", "in_place"),
    *("pass", "size_bytes", "count", "concurrent"),
)


@dataclass(frozen=True, slots=True)
class OverlapTimes:
    """One rank's readings. product: its place in PRODUCTS; loop: how many.

    rounds: in ns, (collective alone, together) from the deadline to its end, (how long it ran beside the loop, what of
    the loop was done in that time: the ns it takes alone), and 1 where the loop outlasted it, else 0. Zeros on a rank
    that only kept time.
    """

    product: int
    loop: int
    rounds: list[tuple[int, ...]]

    def readings(self) -> list[int]:
        """As `Control.to_rank0` takes them (equally many on all ranks) and `overlap_record` reads them."""
        return [self.product, self.loop, *(value for values in self.rounds for value in values)]


def measure_overlap(issue: Issue | None, job: Job, iterations: int, budget_s: float) -> OverlapTimes:
    """Up to `iterations` rounds of a collective that is warm; none begins after `budget_s`, but for the first.

    `issue` is None on a rank that only keeps time with the others. All ranks of the job call this together.
    """
    threads, collected = torch.get_num_threads(), gc.isenabled()
    torch.set_num_threads(1)
    gc.disable()
    try:
        return _Rounds(issue, job, time.monotonic() + budget_s).measure(iterations)
    finally:
        torch.set_num_threads(threads)
        if collected:
            gc.enable()


# --- on rank 0 --------------------------------------------------------------------------------------------------------


def work_done(ends: list[int], window: int, product_ns: float) -> float:
    """What of a loop was done when `window` had passed since its beginning: the time it takes alone.

    `ends` are those of its products, after its beginning. The product under way then ran on at the pace of one alone:
    what it took from then on was still to do, and all of it where that is more, as something else stopped it. The first
    product alone tells no pace: it is taken to have been as far as its time.
    """
    done = bisect_right(ends, window)
    if done == len(ends):
        return done * product_ns
    begun = ends[done - 1] if done else 0
    at_one_pace = (window - begun) / (ends[done] - begun) * product_ns
    if done == 0:
        return at_one_pace
    return done * product_ns + min(at_one_pace, max(0.0, product_ns - (ends[done] - window)))


def overlap_record(cell_record: Record, ranks: tuple[int, ...], readings: list[list[int]]) -> Record:
    """The record of one group, from its measurement record and every rank's readings as `Control.to_rank0` gives them.

    compute_with_comm_us: how long the loop ran under the collective; compute_alone_us: what that takes alone. Their
    ratio is the median over rounds; null, with what follows of it, where the collective had ended before any loop
    began. The intervals hold a factor with 95 % or more, comm_slowdown's being made of two medians' intervals.
    covered: the share of rounds in which the loop outlasted the collective on every rank.
    """
    # of_ranks[i]: the series of ranks[i], in the order of OverlapTimes.
    of_ranks = [[[float(value) for value in readings[rank][2 + place :: 5]] for place in range(5)] for rank in ranks]
    comm_alone, comm_together = (
        [max(exits) for exits in zip(*(series[place] for series in of_ranks), strict=True)] for place in (0, 1)
    )
    lost = [median([window - work for window, work in zip(*series[2:4], strict=True)]) for series in of_ranks]
    slowest = max(range(len(ranks)), key=lost.__getitem__)
    beside = [(window, work) for window, work in zip(*of_ranks[slowest][2:4], strict=True) if min(window, work) > 0]
    slowdowns = [window / work for window, work in beside]
    slowdown = median(slowdowns) if slowdowns else None
    window_us = median([window for window, _ in beside]) / 1e3 if beside else None
    interval = interval_of_median(slowdowns)
    product, loop = readings[ranks[0]][:2]
    _, side, dtype = PRODUCTS[product]
    return {
        "kind": "overlap",
        **{name: cell_record[name] for name in _COPIED if name in cell_record},
        "iterations": len(comm_alone),
        "comm_alone_us": median(comm_alone) / 1e3,
        "comm_with_compute_us": median(comm_together) / 1e3,
        "comm_slowdown": median(comm_together) / median(comm_alone),
        "comm_slowdown_interval": _interval_of_ratio(comm_together, comm_alone),
        "compute_alone_us": window_us / slowdown if window_us and slowdown else None,
        "compute_with_comm_us": window_us,
        "compute_slowdown": slowdown,
        "compute_slowdown_interval": list(interval) if interval else None,
        "compute_rank": ranks[slowest],
        "covered": sum(map(min, *(series[4] for series in of_ranks), [1.0] * len(comm_alone))) / len(comm_alone),
        "product": f"{side}x{side}x{side} {dtype}",
        "products": loop,
    }


def _interval_of_ratio(above: list[float], below: list[float]) -> list[float] | None:
    above_ends, below_ends = interval_of_median(above), interval_of_median(below)
    if above_ends is None or below_ends is None:
        return None
    return [above_ends[0] / below_ends[1], above_ends[1] / below_ends[0]]


# --- on every rank ----------------------------------------------------------------------------------------------------


class _Sample(NamedTuple):
    """ns: the collective's end after the deadline, and after the loop's beginning; the products' ends after that."""

    comm: int
    window: int
    ends: list[int]


class _Rounds:
    def __init__(self, issue: Issue | None, job: Job, give_up: float) -> None:
        self._issue, self._give_up = issue, give_up
        self._control, self._deadline, self._device = job.control, job.deadline, job.device
        self._product, self._loop = 0, 1
        self._factors: list[torch.Tensor] = []

    def measure(self, iterations: int) -> OverlapTimes:
        self._choose_loop()
        rounds: list[tuple[int, ...]] = []
        redone, over = 0, 0
        while len(rounds) < iterations and not over:
            found, void = {}, []
            for parts in ("CP", "P", "C") if len(rounds) % 2 else ("C", "P", "CP"):
                found[parts] = self._sample(parts)
                void.append(self._deadline.previous_void)
            self._deadline.wait()
            void.append(self._deadline.previous_void)  # each tells of the sample before: the first of another round's
            over = self._agree(time.monotonic() > self._give_up)
            if any(void[1:]) and redone < iterations and not over:
                redone += 1
                continue
            rounds.append(self._reading(found))
        return OverlapTimes(self._product, self._loop, rounds)

    def _reading(self, found: dict[str, _Sample]) -> tuple[int, ...]:
        if self._issue is None:
            return (0,) * 5
        ends, window = found["CP"].ends, found["CP"].window
        work = work_done(ends, window, found["P"].ends[-1] / self._loop)
        return found["C"].comm, found["CP"].comm, min(window, ends[-1]), round(work), int(window <= ends[-1])

    def _sample(self, parts: str) -> _Sample:
        """Of C, the collective, and P, the products, one or both."""
        start = self._deadline.wait()
        if self._issue is None:
            return _Sample(0, 0, [0])
        zero, until_zero = self._device.mark(), now_ns() - start
        ended = self._device.start(self._issue) if "C" in parts else lambda: zero
        marks = self._multiply(self._loop if "P" in parts else 0)
        end = ended()
        self._device.synchronize()
        left, begun = (self._device.between_marks_ns([zero, mark])[0] for mark in (end, marks[0]))
        ends = list(accumulate(self._device.between_marks_ns(marks))) or [0]
        self._deadline.measured(until_zero + (left if "C" in parts else begun + ends[-1]))
        return _Sample(until_zero + left, left - begun, ends)

    def _multiply(self, times: int) -> list[Any]:
        """The marks before the first product and after each."""
        left, right, product = self._factors
        marks = [self._device.mark()]
        for _ in range(times):
            torch.mm(left, right, out=product)
            marks.append(self._device.mark())
        return marks

    def _choose_loop(self) -> None:
        """One loop for all ranks, those that only keep time included: its product, then how many."""
        kind = self._device.torch_device.type
        products = [place for place, (device, _, _) in enumerate(PRODUCTS) if device == kind]
        self._prepare(products[0])
        comm_ns = self._agree(_median_of(_TRIALS, lambda: self._sample("C").comm))
        for self._product in reversed(products):
            self._prepare(self._product)
            mine_ns = max(1, _median_of(_TRIALS, self._time_product))
            if self._agree(mine_ns) * _PRODUCTS_A_COLLECTIVE <= comm_ns:
                break
        self._loop = self._agree(math.ceil(_LOOP_TO_COLLECTIVE * comm_ns / mine_ns))
        for _ in range(_LENGTHENINGS):
            short_ns = _median_of(_TRIALS, self._too_short)
            if self._agree(short_ns) <= 0 or self._agree(time.monotonic() > self._give_up):
                break
            self._loop *= 2

    def _prepare(self, product: int) -> None:
        _, side, dtype = PRODUCTS[product]
        device = self._device.torch_device
        self._factors = [torch.rand(side, side, device=device).to(getattr(torch, dtype)) for _ in range(3)]
        self._multiply(1)  # the first is slower
        self._device.synchronize()

    def _time_product(self) -> int:
        marks = self._multiply(1)
        self._device.synchronize()
        return self._device.between_marks_ns(marks)[0]

    def _too_short(self) -> int:
        """How much longer the loop should be that runs while the collective does."""
        found = self._sample("CP")
        return int(_MARGIN * found.window) - found.ends[-1]

    def _agree(self, value: int) -> int:
        """The largest of all ranks'."""
        return self._control.maximum([int(value)])[0]


def _median_of(times: int, take: Callable[[], int]) -> int:
    return int(median([float(take()) for _ in range(times)]))
