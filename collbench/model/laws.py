"""What a model file holds: fits, their segments, and the laws over rank counts. Field names are the file's keys."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from collbench.model.curve import UNKNOWN_LOG, Curve
from collbench.model.prior import Prior

Interval = tuple[float, float]

# What one fit is of: the fields of measurements that no fit is pooled over.
KEY = ("collective", "group", "nranks", "nnodes", "backend", "dtype", "in_place", "timing", "concurrent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """time_us = alpha_us + size_bytes / bandwidth, for measured sizes from `from_bytes` to `to_bytes`, both included.

    The bandwidth is algbw's kind: bytes of size_bytes per second.
    """

    from_bytes: int
    to_bytes: int
    alpha_us: float
    alpha_us_interval: Interval
    bandwidth_GBps: float
    bandwidth_GBps_interval: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutError:
    """Error at sizes the fit did not see, in percent; None where there were too few sizes to hold any out."""

    median: float | None
    p90: float | None
    held_out: bool


UNKNOWN_ERROR = HeldOutError(median=None, p90=None, held_out=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakpoint:
    """Where one segment ends and the next begins: between two measured sizes, with a 90 % interval of the place."""

    size_bytes: float
    interval: Interval


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One collective on one kind and count of ranks, one backend, dtype and regime: its curve and what sums it up.

    curve: (size_bytes, time_us) of the cleaned medians, sizes increasing.
    alpha_us is the first segment's, busbw_GBps the last segment's bandwidth times the bus factor.
    n_half_bytes: where algbw reaches half of the last segment's bandwidth; size_90_bytes: where 90 % of it.
    breakpoints: one between each two segments.
    points: how many measurements the curve was made of.
    interval_log: 5 % and 95 % quantile of log(measured / predicted) at sizes the fit did not see, over all of them.
    spread_log: half of a 90 % interval around each point of the curve, in log units; empty where it is not known.
    link_GBps: one rank's one-way link rate as stated by the user: no answer's busbw is above it.
    prior: what answers where this fit's few sizes do not; None where they are enough.
    notes: what was cleaned away, and what the sweep cannot tell.
    """

    collective: str
    group: str
    nranks: int
    nnodes: int
    backend: str | None
    dtype: str | None
    in_place: bool | None
    timing: str
    concurrent: bool | None
    curve: tuple[tuple[int, float], ...]
    segments: tuple[Segment, ...]
    alpha_us: float
    alpha_us_interval: Interval
    busbw_GBps: float
    busbw_GBps_interval: Interval
    n_half_bytes: float
    error_pct: HeldOutError
    points: int
    interval_log: Interval = (-UNKNOWN_LOG, UNKNOWN_LOG)
    spread_log: tuple[float, ...] = ()
    n_half_bytes_interval: Interval | None = None
    size_90_bytes: float | None = None
    size_90_bytes_interval: Interval | None = None
    breakpoints: tuple[Breakpoint, ...] = ()
    link_GBps: float | None = None
    prior: Prior | None = None
    notes: tuple[str, ...] = ()

    @property
    def shows_bandwidth(self) -> bool:
        """Whether a size is large enough to tell the bandwidth: 4 n½ (modelling practice; a line's own limit)."""
        return 4 * self.n_half_bytes <= self.curve[-1][0]

    @cached_property
    def measured(self) -> Curve:
        """The curve as arrays, ready to be read; a prior fills it up where it has one."""
        sizes, times = np.array(self.curve, dtype=np.float64).T
        low, high = self.interval_log
        spread = np.array(self.spread_log) if self.spread_log else np.full(len(sizes), max(-low, high))
        curve = Curve(sizes, times, spread)
        return curve if self.prior is None else self.prior.fill(curve)


# How a collective's time goes with the rank count: what `model.scaling` can compute.
ALGORITHMS = ("ring", "tree", "busbw", "constant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How one collective behaves at rank counts nobody measured, over one kind of links.

    algorithm: the law, one of ALGORITHMS, as `model.scaling` defines them.
    offset, exponent: of a tree, u in u + log2 N and k in r^k; None for the others.  call_us: of a ring, what a call
    costs beside its steps; None is 0.
    network: the kind of links it was found on, as `network_of` names them.  nranks: the measured counts.
    A backend, dtype, timing or network of None holds for all.
    alpha_us_per_step, link_GBps: the fit of the largest count as a ring would have it.
    spread_log: half of a 90 % interval, in log units, that one doubling of the ranks costs.
    error_pct: error at the largest measured count, predicted from the smaller ones; none held out: a usual value.
    """

    collective: str
    group: str
    backend: str | None
    dtype: str | None
    timing: str | None
    algorithm: str
    nranks: tuple[int, ...]
    alpha_us_per_step: float
    link_GBps: float
    network: str | None = None
    offset: float | None = None
    exponent: float | None = None
    call_us: float | None = None
    spread_log: float | None = None
    error_pct: HeldOutError = UNKNOWN_ERROR

    def covers(self, fit: Fit) -> bool:
        """Whether this law is that of a fit."""
        mine = (self.backend, self.dtype, self.timing, self.network)
        theirs = (fit.backend, fit.dtype, fit.timing, network_of(fit.nranks, fit.nnodes))
        same = all(own in (None, other) for own, other in zip(mine, theirs, strict=True))
        return same and (self.collective, self.group) == (fit.collective, fit.group)


def network_of(nranks: int, nnodes: int) -> str:
    """Which links such a group uses: the kinds of group that share an answer share this."""
    if nnodes == 1:
        return "one node"
    return "one rank per node" if nranks == nnodes else "several ranks on several nodes"
