"""What is said of a cell's samples: pure arithmetic on the readings of all ranks of one group."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what reads a file uses these figures too, without torch
    from collbench.measure.timing import RankTimes

FEWEST_WITH_INTERVAL = 6
_EXACT_UP_TO = 500  # samples; beyond, the normal approximation of the binomial is as good
_LEAST_OF_A_LEVEL = 3  # samples; fewer are outliers
_LEAST_SHIFT = 0.1  # of the lower level
_SHIFT_TO_SPREAD = 2.5


def quantile(values: list[float], q: float) -> float:
    """Linear interpolation between the order statistics, as numpy's default."""
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(values: list[float]) -> float:
    return quantile(values, 0.5)


def interval_of_median(values: list[float]) -> tuple[float, float] | None:
    """An interval that holds the median of the distribution with at least 95 % probability, whatever its shape: two
    order statistics (their ranks from the binomial distribution). None for fewer than 6 values, which have none."""
    rank = _rank_of_bound(len(values))
    if rank is None:
        return None
    ordered = sorted(values)
    return ordered[rank], ordered[len(ordered) - 1 - rank]


@lru_cache(maxsize=1024)
def _rank_of_bound(n: int) -> int | None:
    """The largest k, from 0, with P(fewer than k+1 of n values lie below the median) <= 2.5 %."""
    if n > _EXACT_UP_TO:
        return math.floor((n - 1.96 * math.sqrt(n)) / 2) - 1
    below, total, k = 0, 2**n, -1
    for j in range(n // 2 + 1):
        below += math.comb(n, j)
        if below * 1000 > total * 25:
            break
        k = j
    return k if k >= 0 else None


def relative_interval(samples: list[float]) -> float:
    """How far the 95 % interval of the median reaches from it, as a part of it; infinite where there is none."""
    interval, middle = interval_of_median(samples), median(samples)
    if interval is None or middle <= 0:
        return math.inf
    return reach(middle, *interval)


def reach(value: float, low: float, high: float) -> float:
    """How far an interval reaches from a value in it, as a part of that."""
    return max(high - value, value - low) / value


def is_precise(samples: list[float], precision: float) -> bool:
    """Whether the 95 % interval of the median reaches no further from it than `precision` times the median."""
    return relative_interval(samples) <= precision


def is_unstable(samples: list[float]) -> bool | None:
    """Whether samples, in the order of their time, lie on two levels, one after the other, as those of a link whose
    rate changed meanwhile do: their median is then of neither. None for fewer than 6, which show no level.

    The levels (four fifths of the samples of each) are apart by a tenth, and by 2.5 times the wider of them. One sample
    in between belongs to neither. Independent noise looks so in less than 1 % of cells; noise of two values alone in
    4 % of those with 6 samples, in less where there are more.
    """
    if len(samples) < 2 * _LEAST_OF_A_LEVEL:
        return None
    change = _likeliest_change(samples)
    return any(
        _are_levels(samples[:end], samples[begin:])
        for end, begin in ((change, change), (change - 1, change), (change, change + 1))
    )


def _likeliest_change(samples: list[float]) -> int:
    """Where two levels fit the samples best (least squares, outliers clipped): the later one begins there."""
    n, low, high = len(samples), quantile(samples, 0.1), quantile(samples, 0.9)
    clipped = [min(max(sample, low), high) for sample in samples]
    mean = sum(clipped) / n
    sums = list(accumulate(sample - mean for sample in clipped))
    candidates = range(_LEAST_OF_A_LEVEL, n - _LEAST_OF_A_LEVEL + 1)
    return max(candidates, key=lambda before: sums[before - 1] ** 2 / (before * (n - before)))


def _are_levels(before: list[float], after: list[float]) -> bool:
    if min(len(before), len(after)) < _LEAST_OF_A_LEVEL:
        return False
    lower, upper = sorted([quantile(part, 0.1), quantile(part, 0.9)] for part in (before, after))
    gap = upper[0] - lower[1]
    spread = max(lower[1] - lower[0], upper[1] - upper[0])
    return gap >= _LEAST_SHIFT * lower[1] and gap >= _SHIFT_TO_SPREAD * spread


def isolated_samples_us(times: list[RankTimes]) -> list[float]:
    """The last exit over all ranks, of every sample."""
    return [max(left) / 1e3 for left in zip(*(t.left_ns for t in times), strict=True)]


def pipelined_samples_us(times: list[RankTimes], iterations: int) -> list[float]:
    """As nccl-tests' -a 1: the mean over ranks of each rank's own elapsed time over the number of operations."""
    return [sum(of_rank) / len(of_rank) for of_rank in zip(*_per_operation_us(times, iterations), strict=True)]


def _per_operation_us(times: list[RankTimes], iterations: int) -> list[list[float]]:
    """[rank][batch]"""
    return [
        [(left - entered) / iterations / 1e3 for entered, left in zip(t.entered_ns, t.left_ns, strict=True)]
        for t in times
    ]


def summarize_isolated(ranks: tuple[int, ...], times: list[RankTimes]) -> dict[str, Any]:
    """The record's fields from every rank's readings: times[i] are those of global rank ranks[i]."""
    samples_us = isolated_samples_us(times)
    return {
        "iterations": len(samples_us),
        "time_us": median(samples_us),
        **_spread(samples_us),
        "time_rank_max_us": max(median([float(x) for x in t.left_ns]) for t in times) / 1e3,
        "slowest_rank": ranks[_slowest(times)],
        "samples_us": samples_us,
        "rank_samples_us": [[left / 1e3 for left in t.left_ns] for t in times],
    }


def summarize_pipelined(ranks: tuple[int, ...], times: list[RankTimes], iterations: int) -> dict[str, Any]:
    """The record's fields: medians over the batches, of the mean, the fastest and the slowest rank. `iterations`: of
    one batch."""
    samples_us = pipelined_samples_us(times, iterations)
    per_rank_us = _per_operation_us(times, iterations)
    of_rank = [median(batches) for batches in per_rank_us]
    issued_us = [
        sum(t.issued_ns[batch] - t.entered_ns[batch] for t in times) / len(times) / iterations / 1e3
        for batch in range(len(samples_us))
    ]
    return {
        "iterations": iterations * len(samples_us),
        "batches": len(samples_us),
        "time_us": median(samples_us),
        **_spread(samples_us),
        "time_rank0_us": of_rank[0],
        "time_rank_min_us": min(of_rank),
        "time_rank_max_us": max(of_rank),
        "cpu_time_us": median(issued_us),
        "slowest_rank": ranks[
            max(range(len(times)), key=lambda index: median([float(x) for x in times[index].left_ns]))
        ],
        "samples_us": samples_us,
        "rank_samples_us": per_rank_us,
    }


_SPREAD = ("time_min_us", "time_p5_us", "time_p50_us", "time_p95_us", "time_p99_us", "time_max_us", "time_us_interval")


def _spread(samples_us: list[float]) -> dict[str, Any]:
    """What there is to say of repeats; null where there is one.

    time_us_interval: of the median while this cell was measured, at this one time: what changes between times is known
    to passes alone (`repeats.py`).
    """
    if len(samples_us) == 1:
        return dict.fromkeys(_SPREAD)
    interval = interval_of_median(samples_us)
    quantiles = [quantile(samples_us, q) for q in (0.0, 0.05, 0.5, 0.95, 0.99, 1.0)]
    return dict(zip(_SPREAD, [*quantiles, None if interval is None else list(interval)], strict=True))


def per_iteration(times: list[RankTimes], batch: int, skipped: int, per_call: int = 1) -> dict[str, Any]:
    """nccl-tests' -I (util.cu): of each operation's time (each of the `per_call` of a coalesced call has an equal part)
    the maximum over ranks, without the first `skipped` of every batch; those are kept where there are no others.

    p95 and p99 are nearest-rank, p50 is the upper median, the deviation is the population's, as there.
    """
    each_us = [max(of_ranks) / per_call / 1e3 for of_ranks in zip(*(t.iterations_ns for t in times), strict=True)]
    skipped = skipped if skipped < batch else 0
    each_us = [value for number, value in enumerate(each_us) if number % batch >= skipped]
    ordered, mean = sorted(each_us), sum(each_us) / len(each_us)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in each_us) / len(each_us))
    return {
        "skipped_iterations": skipped,
        "min_us": ordered[0],
        "max_us": ordered[-1],
        "avg_us": mean,
        "p50_us": ordered[len(ordered) // 2],
        "p95_us": ordered[math.ceil(len(ordered) * 95 / 100) - 1],
        "p99_us": ordered[math.ceil(len(ordered) * 99 / 100) - 1],
        "stdev_us": deviation,
        "cv_pct": deviation / mean * 100 if mean else None,
        "times_us": each_us,
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
