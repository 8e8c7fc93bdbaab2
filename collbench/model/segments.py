"""α–β segments: the fewest straight pieces that explain a curve, found exactly, each with its intervals.

A segment's time is alpha + slope · size, fitted by non-negative least squares of residual / time. A dynamic programme
finds the best cut into 1, 2, 3 and 4 segments; a Bayesian information criterion chooses among them, with a noise floor
so that clean data buy no segments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.special import stdtrit

from collbench.model.curve import relative_line
from collbench.model.estimate import Floats
from collbench.model.spread import NOISE_FLOOR

MOST_SEGMENTS = 4
LEAST_POINTS = 4  # a segment has two unknowns; with fewer points than four noise makes one
CONFIDENCE = 0.90

# What a further segment costs, in units of log(points): two parameters, its place, and the search over all places.
# Set by simulation: of straight lines with 5 % noise 1 in 150 of 28 points comes out as several segments and 1 in 20
# of 8 to 12 points, while two segments a factor of 6 apart in α are found 98 times of 100.
SEGMENT_COST = 5.0

# A slope no data can tell from zero is written as the one that adds this much to the segment's last time, so that
# every segment has a finite bandwidth and the same formula.
LEAST_RISE = 1e-3


# Another place of a cut is as likely where it costs less than this in n·log(squares): 90 % of χ² with one freedom.
CUT_COST = 2.71


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedSegment:
    """Points [first, last] of the curve and their line; intervals are 90 % ones, slopes in us per byte.

    start: [earliest, latest] first point that the data allow, other segments staying where they are.
    """

    first: int
    last: int
    alpha_us: float
    alpha_us_interval: tuple[float, float]
    slope_us_per_byte: float
    slope_interval: tuple[float, float]
    start: tuple[int, int]


def fit_segments(sizes_bytes: Floats, times_us: Floats, noise: float = 0.0) -> list[FittedSegment]:
    """1 to 4 segments over n ≥ 3 points of increasing size, in order, covering all of them.

    `noise` is the relative noise of one point where repeats have measured it. Lines may jump where segments meet, as
    protocols do.
    """
    floor = max(NOISE_FLOOR, noise)
    costs = _segment_costs(sizes_bytes, times_us)
    cuts = _best_cuts(costs, floor)
    starts = _starts(costs, cuts, floor)
    return _lines(sizes_bytes, times_us, cuts, starts)


def fit_line(sizes_bytes: Floats, times_us: Floats) -> FittedSegment:
    """One segment over n ≥ 3 points, not all of one size."""
    [line] = _lines(sizes_bytes, times_us, [(0, len(sizes_bytes))], [(0, 0)])
    return line


def _lines(
    sizes_bytes: Floats, times_us: Floats, cuts: list[tuple[int, int]], starts: list[tuple[int, int]]
) -> list[FittedSegment]:
    """The lines between these cuts, as far off as all of them together are."""
    lines = [_refined_line(sizes_bytes[a:b], times_us[a:b]) for a, b in cuts]
    scatter = relative_scatter(sizes_bytes, times_us, cuts, lines)
    spread = scatter * float(stdtrit(_freedom(sizes_bytes, cuts), (1 + CONFIDENCE) / 2))
    return [
        _with_intervals(cut, line, sizes_bytes[cut[0] : cut[1]], spread, start)
        for cut, line, start in zip(cuts, lines, starts, strict=True)
    ]


def relative_scatter(
    sizes_bytes: Floats, times_us: Floats, cuts: list[tuple[int, int]], lines: list[tuple[float, float]]
) -> float:
    """Standard deviation of the points about their lines, (alpha_us, slope) of points [a, b) each, relative to these;
    no less than the noise floor."""
    squares = sum(
        float(np.sum((times_us[a:b] / (alpha + slope * sizes_bytes[a:b]) - 1) ** 2))
        for (a, b), (alpha, slope) in zip(cuts, lines, strict=True)
    )
    return max(math.sqrt(squares / _freedom(sizes_bytes, cuts)), NOISE_FLOOR)


def _freedom(sizes_bytes: Floats, cuts: list[tuple[int, int]]) -> int:
    return max(len(sizes_bytes) - 2 * len(cuts), 1)


def _segment_costs(sizes: Floats, times: Floats) -> Floats:
    """[n, n+1] sums of squared relative residuals of the best line through points [i, j); inf where too few."""
    n = len(sizes)
    least = min(LEAST_POINTS, n)
    costs = np.full((n, n + 1), np.inf)
    for i in range(n - least + 1):
        ones, slopes = 1 / times[i:], sizes[i:] / sizes[-1] / times[i:]
        a, b, c = np.cumsum(ones * ones), np.cumsum(ones * slopes), np.cumsum(slopes * slopes)
        p, q, count = np.cumsum(ones), np.cumsum(slopes), np.arange(1, n - i + 1)
        determinant = a * c - b * b
        with np.errstate(divide="ignore", invalid="ignore"):
            alpha, slope = (c * p - b * q) / determinant, (a * q - b * p) / determinant
            explained = alpha * p + slope * q
        feasible = (determinant > 1e-12 * a * c) & (alpha >= 0) & (slope >= 0)
        explained = np.where(feasible, explained, np.maximum(p * p / a, q * q / c))
        costs[i, i + least :] = np.maximum(count - explained, 0.0)[least - 1 :]
    return costs


def _best_cuts(costs: Floats, floor: float) -> list[tuple[int, int]]:
    """The cut into half-open ranges of points that the information criterion prefers."""
    n = len(costs)
    best = costs[0]  # best[j]: points [0, j) in k segments
    starts: list[np.ndarray[tuple[int, ...], np.dtype[np.intp]]] = []
    choice, chosen = math.inf, 1
    for k in range(1, MOST_SEGMENTS + 1):
        if k > 1:
            totals = best[:n, None] + costs  # [start of the last segment, end]
            starts.append(np.argmin(totals, axis=0))
            best = np.min(totals, axis=0)
        if not math.isfinite(best[n]):
            break
        criterion = n * math.log(max(best[n] / n, floor**2)) + SEGMENT_COST * (k - 1) * math.log(n)
        if criterion < choice:
            choice, chosen = criterion, k
    cuts = [(0, n)]
    for row in reversed(starts[: chosen - 1]):
        end = cuts[0][1]
        middle = int(row[end])
        cuts[0:1] = [(0, middle), (middle, end)]
    return cuts


def _starts(costs: Floats, cuts: list[tuple[int, int]], floor: float) -> list[tuple[int, int]]:
    """(earliest, latest) first point of each segment, the other cuts staying: where the data are nearly as likely."""
    n = len(costs)
    total = sum(costs[cut] for cut in cuts)
    found = [(0, 0)]
    for (left, cut), (_, right) in pairwise(cuts):
        places = np.arange(left + 1, right)
        squares = total - costs[left, cut] - costs[cut, right] + costs[left, places] + costs[places, right]
        likely = places[n * np.log(np.maximum(squares, n * floor**2) / max(total, n * floor**2)) <= CUT_COST]
        found.append((int(likely.min()), int(likely.max())))
    return found


def _refined_line(sizes: Floats, times: Floats) -> tuple[float, float]:
    """The line, weighted by its own values: dividing by noisy times would favour the low ones (−2σ²)."""
    alpha, slope = relative_line(sizes, times)
    for _ in range(2):
        alpha, slope = relative_line(sizes, times, alpha + slope * sizes)
    return alpha, max(slope, float(LEAST_RISE * (alpha + slope * sizes[-1]) / sizes[-1]))


def _with_intervals(
    cut: tuple[int, int], line: tuple[float, float], sizes: Floats, spread: float, start: tuple[int, int]
) -> FittedSegment:
    """Intervals from the covariance of the relative least squares; `spread` is σ times the t quantile."""
    alpha, slope = line
    modelled = alpha + slope * sizes
    scale = sizes[-1]
    design = np.stack([1 / modelled, sizes / scale / modelled], axis=1)
    alpha_error, slope_error = spread * np.sqrt(np.diag(np.linalg.pinv(design.T @ design)))
    slope_error /= scale
    least_slope = float(LEAST_RISE * modelled[-1] / scale)
    return FittedSegment(
        first=cut[0],
        last=cut[1] - 1,
        alpha_us=alpha,
        alpha_us_interval=(max(alpha - float(alpha_error), 0.0), alpha + float(alpha_error)),
        slope_us_per_byte=slope,
        slope_interval=(min(max(slope - float(slope_error), least_slope), slope), slope + float(slope_error)),
        start=start,
    )
