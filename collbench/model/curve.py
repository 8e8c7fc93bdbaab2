"""One measured curve of time over size, and how it is read: between its points, before them and beyond them.

Between two measured sizes time is linear. Beyond the last the last four points carry on, before the first the first
four do. numpy alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collbench.model.estimate import Flags, Floats

END_POINTS = 4  # of 42 public sweeps, the last four points carry on best
LEAST_TIME_US = 1.0  # no collective is faster than a launch, wherever an α–β line leads to

# How much wider the interval grows per doubling away from the measured sizes, in log units. Public sweeps up to
# 256 MiB, p90 of the error of the four-point tail: 12 % at ×2, 19 % at ×4, 36 % at ×2 for shorter sweeps. Before the
# first size time is nearly flat.
WIDEN_NEAR = 0.10
WIDEN_FAR = 0.20  # past ×4
WIDEN_BEFORE = 0.05


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


@dataclass(frozen=True)
class Curve:
    """Measured medians: `sizes_bytes` strictly increasing and `times_us` above zero, both of shape [n], n ≥ 1."""

    sizes_bytes: Floats
    times_us: Floats

    def time_us(self, sizes_bytes: Floats) -> Floats:
        """Time at each size, same shape: above zero everywhere, the measured median at every measured size.

        An end carries on by the ratio of its α–β line, so that it joins its last point.
        """
        sizes, times = self.sizes_bytes, self.times_us
        inside = np.interp(sizes_bytes, sizes, times)
        alpha, slope = relative_line(sizes[:END_POINTS], times[:END_POINTS])
        alpha = max(alpha, min(LEAST_TIME_US, times[0]))
        before = (alpha + slope * np.minimum(sizes_bytes, sizes[0])) / (alpha + slope * sizes[0])
        alpha, slope = relative_line(sizes[-END_POINTS:], times[-END_POINTS:])
        beyond = (alpha + slope * np.maximum(sizes_bytes, sizes[-1])) / (alpha + slope * sizes[-1])
        return np.asarray(inside * before * beyond)  # both ratios are 1 inside the range

    def is_outside(self, sizes_bytes: Floats) -> Flags:
        """Where a size is smaller or larger than every measured one."""
        return np.asarray((sizes_bytes < self.sizes_bytes[0]) | (sizes_bytes > self.sizes_bytes[-1]))

    def widening(self, sizes_bytes: Floats) -> Floats:
        """By how much, in log units, an interval grows on either side: 0 inside the range."""
        beyond = np.log2(np.maximum(sizes_bytes / self.sizes_bytes[-1], 1.0))
        before = np.log2(np.maximum(self.sizes_bytes[0] / np.maximum(sizes_bytes, 1.0), 1.0))
        after = WIDEN_NEAR * np.minimum(beyond, 2.0) + WIDEN_FAR * np.maximum(beyond - 2.0, 0.0)
        return np.asarray(after + WIDEN_BEFORE * before)
