"""What a model file holds: fits, their segments, and the laws over rank counts. Field names are the file's keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from collbench.collectives import find_collective
from collbench.model.curve import Curve

# Half of a 90 % interval, in log units, for a fit whose data do not say: linear interpolation of 42 public sweeps is
# off by less than 19 % at 9 held-out sizes of 10.
UNKNOWN_LOG = 0.2

Interval = tuple[float, float]


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


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One collective on one kind and count of ranks, one backend, dtype and regime: its curve and what sums it up.

    curve: (size_bytes, time_us) of the cleaned medians, sizes increasing.
    alpha_us is the first segment's, busbw_GBps the last segment's bandwidth times the bus factor.
    n_half_bytes: where algbw reaches half of the last segment's bandwidth.
    points: how many measurements the curve was made of.
    interval_log: 5 % and 95 % quantile of log(measured / predicted) at sizes the fit did not see.
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
    notes: tuple[str, ...] = ()

    @cached_property
    def measured(self) -> Curve:
        """The curve as arrays, ready to be read."""
        sizes, times = np.array(self.curve, dtype=np.float64).T
        return Curve(sizes, times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How one collective behaves at rank counts nobody measured. One algorithm so far: `ring`.

    Ring (modelling a pipeline of equal chunks): a step moves `size · sent_fraction(n) / steps(n)` bytes and takes as
    long at any count, so time(S, n) = steps(n) · g(S/n) for gathers and reductions, and is constant for broadcast.
    alpha_us_per_step and link_GBps sum up the fit of the largest count; nranks lists the measured counts. A backend,
    dtype or timing of None holds for all.
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

    def covers(self, fit: Fit) -> bool:
        """Whether this law is that of a fit."""
        mine = (self.backend, self.dtype, self.timing)
        theirs = (fit.backend, fit.dtype, fit.timing)
        same = all(own in (None, other) for own, other in zip(mine, theirs, strict=True))
        return same and (self.collective, self.group) == (fit.collective, fit.group)


# Per doubling of the rank count an answer of the ring law is ×/÷ 1.3 less sure, for all_reduce ×/÷ 1.6: libraries
# leave the ring for trees as ranks grow (public sweeps: 90 % within 65 % after one doubling). Between one node and
# several the network is another one, and that is ×/÷ 3.
WIDEN_RANKS = math.log(1.3)
WIDEN_RANKS_ALL_REDUCE = math.log(1.6)
WIDEN_NETWORK = math.log(3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """How a fit's curve becomes that of another rank count: time(S) = time_factor · curve(size_factor · S).

    widening: what the interval gains on either side, in log units.
    """

    size_factor: float = 1.0
    time_factor: float = 1.0
    widening: float = 0.0


def ring_stretch(fit: Fit, nranks: int, *, other_network: bool) -> Stretch:
    """From the fit's rank count to `nranks`, both above 1, by the ring law."""
    collective = find_collective(fit.collective)

    def chunk_fraction(count: int) -> float:
        return collective.sent_fraction(count) / collective.ring_steps(count)

    doublings = abs(math.log2(nranks / fit.nranks))
    per_doubling = WIDEN_RANKS_ALL_REDUCE if collective.name == "all_reduce" else WIDEN_RANKS
    return Stretch(
        size_factor=chunk_fraction(nranks) / chunk_fraction(fit.nranks),
        time_factor=collective.ring_steps(nranks) / collective.ring_steps(fit.nranks),
        widening=per_doubling * doublings + (WIDEN_NETWORK if other_network else 0.0),
    )


def network_of(nranks: int, nnodes: int) -> str:
    """Which links such a group uses: the kinds of group that share an answer share this."""
    if nnodes == 1:
        return "one node"
    return "one rank per node" if nranks == nnodes else "several ranks on several nodes"


def counts(nranks: int, nnodes: int) -> str:
    """`8 ranks on 2 nodes`."""
    return f"{nranks} rank{'s' * (nranks != 1)} on {nnodes} node{'s' * (nnodes != 1)}"
