"""What the groups of a kind cost one another, from fits of the same cells measured together and one at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from collbench.model.choose import plainness
from collbench.model.contention import Contention, latency_share
from collbench.model.estimate import Floats
from collbench.model.laws import Fit, Interval
from collbench.model.segments import fit_line
from collbench.model.spread import NOISE_FLOOR, SIGMA_90
from collbench.topology import contends

LEAST_SIZES = 3  # for two factors, and to see how far off they are
HALF = 0.5  # of a time: below n½ latency is more than that, above it transfer is


def fit_contention(fits: Iterable[Fit]) -> tuple[tuple[Contention, ...], list[str]]:
    """(one for each collective, kind of group, counts, backend, dtype and regime measured both ways, notes).

    `fits`: of kinds of which the job had several groups: a single one has nobody to contend with. Of fits in place and
    out of place those out of place count.
    """
    pairs: dict[tuple[object, ...], dict[object, dict[object, Fit]]] = {}
    for fit in sorted(fits, key=plainness):
        key = (fit.collective, fit.group, fit.nranks, fit.nnodes, fit.backend, fit.dtype, fit.timing)
        pairs.setdefault(key, {}).setdefault(fit.in_place, {})[fit.concurrent] = fit
    found, notes = [], []
    for places in pairs.values():
        both = next((fits for fits in places.values() if True in fits and False in fits), None)
        if both is None or not contends(both[True].group):
            continue
        contention = _contention(both[True], both[False])
        if isinstance(contention, Contention):
            found.append(contention)
        else:
            notes.append(
                f"contention: {both[True].collective} {both[True].group} was measured together and one at a time, "
                f"but {contention}"
            )
    return tuple(found), notes


def _contention(together: Fit, alone: Fit) -> Contention | str:
    """The factors, or why these sizes do not tell them."""
    times_us = dict(together.curve)
    both = [(size, time_us, times_us[size]) for size, time_us in alone.curve if size in times_us]
    if len(both) < LEAST_SIZES:
        return f"at {len(both)} of the {LEAST_SIZES} sizes that takes: measure the same sizes"
    sizes, alone_us, together_us = np.array(both, dtype=np.float64).T
    share, ratios = latency_share(alone_us, alone.alpha_us), together_us / alone_us
    if share.min() > HALF:
        return "at no size above n½, so what transfers cost one another is not known: measure larger sizes"
    factors = _two_factors(share, ratios) if share.max() >= HALF else _one_factor(ratios)
    (latency, latency_interval), (transfer, transfer_interval) = factors
    off_log = np.log(ratios / np.maximum(latency * share + transfer * (1 - share), NOISE_FLOOR))
    return Contention(
        collective=alone.collective,
        group=alone.group,
        nranks=alone.nranks,
        nnodes=alone.nnodes,
        backend=alone.backend,
        dtype=alone.dtype,
        timing=alone.timing,
        latency_factor=latency,
        latency_factor_interval=latency_interval,
        transfer_factor=transfer,
        transfer_factor_interval=transfer_interval,
        spread_log=max(SIGMA_90 * float(np.sqrt(np.mean(off_log**2))), NOISE_FLOOR),
        from_bytes=int(sizes[0]),
        to_bytes=int(sizes[-1]),
        points=len(both),
    )


_Factors = tuple[tuple[float, Interval], tuple[float, Interval]]  # of the latency, of the transfer


def _two_factors(share: Floats, ratios: Floats) -> _Factors:
    """ratio = latency · share + transfer · (1 − share), divided by the share, is a line: its start and its slope."""
    order = np.argsort(-share, kind="stable")
    line = fit_line((1 / share - 1)[order], (ratios / share)[order])
    return (line.alpha_us, line.alpha_us_interval), (line.slope_us_per_byte, line.slope_interval)


def _one_factor(ratios: Floats) -> _Factors:
    """Large messages only: the factor of their transfers. That of the latency is between none and this one."""
    logs = np.log(ratios)
    half = max(SIGMA_90 * float(np.std(logs, ddof=1)) / math.sqrt(len(logs)), NOISE_FLOOR)
    factor = math.exp(float(np.mean(logs)))
    low, high = factor * math.exp(-half), factor * math.exp(half)
    return (factor, (min(low, 1.0), high)), (factor, (low, high))
