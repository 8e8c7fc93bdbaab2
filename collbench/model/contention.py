"""What the groups of a kind cost one another: from times of one group at a time to those of all at once. numpy alone.

A step runs all groups of a kind at once. Where they were measured one at a time, two factors make up for it, one for
each part of a time: how many times as long the latency takes, which rules small messages, and the transfer, which
rules large ones:

    together(S) = latency_factor · α + transfer_factor · (alone(S) − α)

They are of links rather than of a collective, so that another collective of the same kind of group may lend its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collbench.model.curve import UNKNOWN_LOG, Curve
from collbench.model.estimate import Floats
from collbench.model.laws import Fit, Interval, network_of
from collbench.topology import counts

# Half of a 90 % interval: how unlike two collectives' factors are. Of all_reduce, all_gather and reduce_scatter over a
# shaped link that two groups share the factors of the transfer are 1.9 to 2.1, those of the latency 1.3 to 2.3.
OTHER_COLLECTIVE_LOG = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """All groups of a kind at once against one at a time, measured. Field names are the model file's keys.

    latency_factor, transfer_factor: as above, with 90 % intervals; under 1 only by noise.
    from_bytes, to_bytes, points: of the sizes that were measured both ways.
    spread_log: half of a 90 % interval around a time made with them, in log units.
    """

    collective: str
    group: str
    nranks: int
    nnodes: int
    backend: str | None
    dtype: str | None
    timing: str
    latency_factor: float
    latency_factor_interval: Interval
    transfer_factor: float
    transfer_factor_interval: Interval
    spread_log: float
    from_bytes: int
    to_bytes: int
    points: int


def find_contention(contention: Sequence[Contention], fit: Fit, group: str, nranks: int) -> list[Contention]:
    """What speaks for groups of the kind `group` on `nranks` ranks, of which `fit` was measured one at a time.

    Its own collective before others, the nearest count, its dtype; of other collectives all that are as near. Groups
    over other kinds of links, other backends and regimes say nothing of it.
    """
    mine = (fit.backend, fit.timing, network_of(fit.nranks, fit.nnodes))
    found = [
        each
        for each in contention
        if (each.backend, each.timing, network_of(each.nranks, each.nnodes)) == mine
        and each.group in (fit.group, group)
    ]

    def distance(each: Contention) -> tuple[bool, float, int, bool]:
        far = abs(math.log2(each.nranks / nranks))
        return each.collective != fit.collective, far, -each.nranks, each.dtype != fit.dtype

    nearest = min(map(distance, found), default=None)
    return [each for each in found if distance(each) == nearest]


def together(alone: Curve, latency_us: float, collective: str, contention: Sequence[Contention]) -> tuple[Curve, float]:
    """(curve, latency_us) of all groups at once, from those of one at a time; the latency loads no link.

    Several `contention` count by their geometric mean, and by what they differ in. Nothing becomes faster.
    """
    latency = _pooled([(each.latency_factor, each.latency_factor_interval) for each in contention])
    transfer = _pooled([(each.transfer_factor, each.transfer_factor_interval) for each in contention])
    share = latency_share(alone.times_us, latency_us)
    parts = latency.factor * share, transfer.factor * (1 - share)
    factor = sum(parts)
    own = UNKNOWN_LOG if alone.spread_log is None else alone.spread_log
    factors = (parts[0] * latency.half_log + parts[1] * transfer.half_log) / factor
    others = 0.0 if _is_of(collective, contention) else OTHER_COLLECTIVE_LOG
    made = max(each.spread_log for each in contention)
    spread_log = np.sqrt(own**2 + factors**2 + made**2 + others**2)
    curve = Curve(alone.sizes_bytes, alone.times_us * factor, spread_log, alone.measured_bytes)
    return curve, latency_us * latency.factor


def latency_share(times_us: Floats, latency_us: float) -> Floats:
    """The latency's part of each time of a curve, 0 to 1. Small messages that noise makes slower than larger ones
    transfer no more for it."""
    least_us = np.minimum.accumulate(times_us[::-1])[::-1]
    return np.asarray(np.minimum(1.0, latency_us / least_us))


def together_note(group: str, collective: str, contention: Sequence[Contention]) -> str:
    """What a time that `together` made says of itself."""
    measured = "; ".join(
        f"{each.collective}, {counts(each.nranks, each.nnodes)}: latency x{max(each.latency_factor, 1.0):.2f}, "
        f"transfer x{max(each.transfer_factor, 1.0):.2f}"
        for each in contention
    )
    whose = "it was" if _is_of(collective, contention) else "another collective was"
    return (
        f"this is one group of kind {group}, measured alone, slowed as {whose} measured to be where all of them run at "
        f"once, as in a step ({measured})"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Factor:
    """half_log: half of a 90 % interval, in log units."""

    factor: float
    half_log: float


def _pooled(factors: Sequence[tuple[float, Interval]]) -> _Factor:
    logs = np.log(np.maximum([(factor, *ends) for factor, ends in factors], 1.0))  # [n, 3]
    mean = float(np.mean(logs[:, 0]))
    return _Factor(factor=math.exp(mean), half_log=float(np.max(np.abs(logs - mean))))


def _is_of(collective: str, contention: Sequence[Contention]) -> bool:
    return all(each.collective == collective for each in contention)
