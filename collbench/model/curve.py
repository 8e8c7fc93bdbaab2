"""One measured curve of time over size, and how it is read: between its points, before them and beyond them.

Between two measured sizes time is linear. Beyond the last the last points carry on, each earlier one with half the
weight; before the first the first four do. numpy alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from collbench.model.estimate import Flags, Floats

START_POINTS = 4
TAIL_POINTS = 6  # the first of them weighs 1/1024 of the last
LEAST_TIME_US = 1.0  # no collective is faster than a launch, wherever an α–β line leads to

# Half of a 90 % interval, in log units, for a curve whose data do not say: linear interpolation of public sweeps is off
# by less than 19 % at 9 held-out sizes of 10.
UNKNOWN_LOG = 0.2

# Beyond the largest size, log(measured / carried on) per doubling, 5 % and 95 % quantile over 4 to 16 doublings of 122
# public sweeps. A curve has settled once it ends at 256 MiB or more in its bandwidth regime; before that a protocol may
# still change, which makes a rising curve faster than it looks and a flat one slower.
SETTLED_BYTES = 2**28
SETTLED_RISE = 0.8  # d log time / d log size at the end; above it at most a fifth of the time is latency
WIDEN_SETTLED = (0.03, 0.02)
WIDEN_FLAT = (0.15, 0.35)
WIDEN_RISING = (0.55, 0.20)
RISING = 0.2  # the rise above which a curve is not flat
WIDEN_BEFORE = 0.05  # before the first size time is nearly flat

NEAR = 4.0  # beside a prior, measured sizes no further apart than this factor speak for what lies between them


def is_unmeasured(sizes_bytes: Floats, measured_bytes: Floats) -> Flags:
    """Where sizes lie outside the measured ones, or in gaps of more than NEAR between two of them."""
    place = np.searchsorted(measured_bytes, sizes_bytes, side="left")
    below = measured_bytes[np.clip(place - 1, 0, None)]
    above = measured_bytes[np.clip(place, None, len(measured_bytes) - 1)]
    outside = (sizes_bytes < measured_bytes[0]) | (sizes_bytes > measured_bytes[-1])
    return np.asarray(outside | ((above > NEAR * below) & (sizes_bytes != above)))


def relative_line(sizes_bytes: Floats, times_us: Floats, weights_us: Floats | None = None) -> tuple[float, float]:
    """(alpha_us, slope in us/byte), both ≥ 0, of the line through n ≥ 1 points by least squares of residual / weight.

    `weights_us` is what residuals are divided by: the times themselves unless given. With two unknowns non-negative
    least squares is the better of the unconstrained solution, if it is feasible, and the two edges.
    """
    weights = times_us if weights_us is None else weights_us
    scale = sizes_bytes[-1]  # sizes of order one keep the 2×2 system well conditioned
    ones, slopes, target = 1 / weights, sizes_bytes / scale / weights, times_us / weights
    a, b, c = ones @ ones, ones @ slopes, slopes @ slopes
    p, q = ones @ target, slopes @ target
    determinant = a * c - b * b
    if determinant > 1e-12 * a * c:
        alpha, slope = (c * p - b * q) / determinant, (a * q - b * p) / determinant
        if alpha >= 0 and slope >= 0:
            return float(alpha), float(slope / scale)
    # An edge: α alone explains p²/a of the target, the slope alone q²/c.
    return (float(p / a), 0.0) if p * p / a >= q * q / c else (0.0, float(q / c / scale))


def sizes_of_both(first: Curve, other: Curve) -> Floats:
    """The sizes of two curves, increasing, each once. (np.union1d would import numpy.ma, which takes long.)"""
    return np.array(sorted({*first.sizes_bytes.tolist(), *other.sizes_bytes.tolist()}))


@dataclass(frozen=True)
class Curve:
    """Medians: `sizes_bytes` strictly increasing and `times_us` above zero, both of shape [n], n ≥ 1.

    spread_log: half of a 90 % interval around each point, in log units, of shape [n].
    measured_bytes: the sizes that were measured, where the other points are a prior's; None where all were.
    """

    sizes_bytes: Floats
    times_us: Floats
    spread_log: Floats | None = None
    measured_bytes: Floats | None = None

    def time_us(self, sizes_bytes: Floats) -> Floats:
        """Time at each size, same shape: above zero everywhere, the median itself at every size that has one.

        An end carries on by the ratio of its α–β line, so that it joins its last point.
        """
        sizes, times = self.sizes_bytes, self.times_us
        inside = np.interp(sizes_bytes, sizes, times)
        alpha, slope = relative_line(sizes[:START_POINTS], times[:START_POINTS])
        alpha = max(alpha, min(LEAST_TIME_US, times[0]))
        before = (alpha + slope * np.minimum(sizes_bytes, sizes[0])) / (alpha + slope * sizes[0])
        alpha, slope = self._tail()
        beyond = (alpha + slope * np.maximum(sizes_bytes, sizes[-1])) / (alpha + slope * sizes[-1])
        return np.asarray(inside * before * beyond)  # both ratios are 1 inside the range

    def is_outside(self, sizes_bytes: Floats) -> Flags:
        """Where a size is smaller or larger than every measured one, or a prior speaks for it."""
        if self.measured_bytes is not None:
            return is_unmeasured(sizes_bytes, self.measured_bytes)
        return np.asarray((sizes_bytes < self.sizes_bytes[0]) | (sizes_bytes > self.sizes_bytes[-1]))

    def half_widths_log(self, sizes_bytes: Floats) -> tuple[Floats, Floats]:
        """(below, above): the halves of a 90 % interval in log units, both ≥ 0 and of the shape of the sizes.

        In range the spread of the two neighbours; an end adds, in quadrature, what each doubling away from it costs.
        """
        logs = np.log2(np.maximum(sizes_bytes, 1.0))
        first, last = math.log2(self.sizes_bytes[0]), math.log2(self.sizes_bytes[-1])
        if self.spread_log is None:
            spread = np.full_like(logs, UNKNOWN_LOG)
        else:
            spread = np.interp(logs, np.log2(self.sizes_bytes), self.spread_log)
        beyond, before = np.maximum(logs - last, 0.0), np.maximum(first - logs, 0.0)
        low, high = self._widening()
        below = np.sqrt(spread**2 + (low * beyond + WIDEN_BEFORE * before) ** 2)
        above = np.sqrt(spread**2 + (high * beyond + WIDEN_BEFORE * before) ** 2)
        return np.asarray(below), np.asarray(above)

    def _tail(self) -> tuple[float, float]:
        """(alpha_us, slope) of the line that goes on beyond the last point."""
        sizes, times = self.sizes_bytes[-TAIL_POINTS:], self.times_us[-TAIL_POINTS:]
        return relative_line(sizes, times, times * 2.0 ** np.arange(len(times))[::-1])

    def _widening(self) -> tuple[float, float]:
        """(below, above) per doubling beyond the last size."""
        alpha, slope = self._tail()
        rise = slope * self.sizes_bytes[-1] / (alpha + slope * self.sizes_bytes[-1])
        if rise >= SETTLED_RISE and self.sizes_bytes[-1] >= SETTLED_BYTES:
            return WIDEN_SETTLED
        share = min(rise / RISING, 1.0)
        below, above = (flat + share * (up - flat) for flat, up in zip(WIDEN_FLAT, WIDEN_RISING, strict=True))
        return below, above
