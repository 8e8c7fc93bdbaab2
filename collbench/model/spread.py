"""How far off a curve is at sizes it was not shown, and the interval that follows for each of its points.

numpy alone.
"""

from __future__ import annotations

import numpy as np

from collbench.model.curve import UNKNOWN_LOG, Curve
from collbench.model.estimate import Floats

LEAST_HELD_OUT = 3  # with fewer sizes to hold out there is no error to speak of
UNKNOWN_PER_DOUBLING = 0.075  # log units, of the step between two sizes
NOISE_FLOOR = 0.01  # relative; below it a difference is no evidence
SIGMA_90 = 1.645  # half of a normal 90 % interval
SIGMA_OF_MEDIAN = 1.4826  # standard deviation over median absolute deviation, of a normal distribution


def held_out_residuals(sizes_bytes: Floats, times_us: Floats) -> Floats:
    """log(measured / predicted) at every inner size, each predicted from a curve without it.

    Every other inner size is held out at once, then the others: what a sweep at twice the step would have missed.
    Shape [n − 2]; empty below 3 sizes to hold out.
    """
    n = len(sizes_bytes)
    if n - 2 < LEAST_HELD_OUT:
        return np.empty(0)
    residuals = np.empty(n)
    for parity in (1, 2):
        held = np.arange(parity, n - 1, 2)
        kept = np.setdiff1d(np.arange(n), held)
        predicted = Curve(sizes_bytes[kept], times_us[kept]).time_us(sizes_bytes[held])
        residuals[held] = np.log(times_us[held] / predicted)
    return residuals[1:-1]


def spread_log(steps_log2: Floats, residuals_log: Floats, repeats_log: tuple[Floats, ...]) -> Floats:
    """Half of a 90 % interval around each of n points, in log units, shape [n].

    `steps_log2` are the doublings between neighbouring points [n − 1], `residuals_log` those of `held_out_residuals`
    [n − 2], `repeats_log` each point's log(repeat / median). Three parts in quadrature: the mean residual of a point
    and its two neighbours (where curves bend, they are wrong), the noise of the whole curve by its median residual, and
    the noise of the point's own repeats. Their weights make 90 % of the held-out points of public sweeps, and of lines
    with normal noise, fall within. With too few points to hold any out it is what public sweeps of 3 and 4 points miss
    between them, the more the further apart they are.
    """
    n = len(repeats_log)
    own = np.array([SIGMA_90 * SIGMA_OF_MEDIAN * float(np.median(np.abs(logs))) for logs in repeats_log])
    if not len(residuals_log):
        widest = np.maximum(np.append(steps_log2, 0.0), np.insert(steps_log2, 0, 0.0))  # [n], of the two beside a point
        return np.asarray(np.hypot(np.maximum(UNKNOWN_LOG, UNKNOWN_PER_DOUBLING * widest), own))
    absolute = np.abs(residuals_log)
    near = np.array([absolute[max(i - 2, 0) : i + 1].mean() for i in range(n)])
    noise = SIGMA_OF_MEDIAN * float(np.median(absolute)) * (1 + 1 / len(absolute))
    return np.asarray(np.sqrt(near**2 + 2 * noise**2 + own**2 + NOISE_FLOOR**2))
