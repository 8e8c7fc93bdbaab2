"""What is thought of a collective before it is measured, and how measurements change that.

For clusters with few points: a law from link figures, or from NCCL's own constants, times a correction that the
measured points give. The correction's logarithm is a random walk over the doublings of the size, held around 0 (a
Gaussian process of covariance W²·exp(−|x−x'|/R) in x = log2 size): at its points it is what was measured, to the noise;
between two it goes straight from one to the other; away from all it fades from the nearest one's to none, and the
interval grows to the law's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from collbench.collectives import find_collective
from collbench.errors import InputError, one_of
from collbench.model.curve import LEAST_TIME_US
from collbench.model.estimate import Floats
from collbench.model.link import LinkModel
from collbench.model.nccl_law import nccl_time_us
from collbench.model.prior import KINDS, Prior
from collbench.model.spread import SIGMA_90
from collbench.numbers import digits

Measured = tuple[str, int, int, Floats, Floats]  # collective, nranks, nnodes, sizes in bytes, times in us
Law = Callable[[Floats], Floats]  # sizes in bytes -> times in us, of the same shape

# W, the standard deviation of log(measured / law), and R in doublings: on one node, and on several. For NCCL's
# constants by maximum likelihood over 24 public sweeps with a link rate 15 % above what their largest messages reach;
# the plain ring of a datasheet is further off across nodes. Of their points that were not shown (all but one, two, four
# or a quarter) 84 to 98 % lie in the 90 % interval.
_ONE_NODE = (0.75, 65.0)
_SEVERAL_NODES = {"nccl": (1.0, 40.0), "datasheet": (1.6, 40.0)}

_LEAST_NOISE = 0.02
_GRID = 2.0 ** np.arange(3, 37)  # 8 B to 64 GiB, a point each doubling
FEW_SIZES = 8  # with as many a sweep speaks for itself


def prior_of(kind: str, law: Law, measured_bytes: Floats, measured_us: Floats, noise: float, nnodes: int) -> Prior:
    """The law of some kind on so many nodes, corrected by n ≥ 1 measured points of this relative noise.

    The correction's mean and variance at size s, given residuals r = log(measured / law) at the points: k'·K⁻¹·r and
    W² − k'·K⁻¹·k with the covariance K of the points, their noise on its diagonal, and k that of s with them.
    """
    width, reach = _ONE_NODE if nnodes == 1 else _SEVERAL_NODES[kind]

    def covariance(one: Floats, other: Floats) -> Floats:
        return np.asarray(width**2 * np.exp(-np.abs(one[:, None] - other[None, :]) / reach))

    own_variance = max(noise, _LEAST_NOISE) ** 2
    grid = np.union1d(_GRID, measured_bytes)
    points, places = np.log2(measured_bytes), np.log2(grid)
    own = covariance(points, points) + own_variance * np.eye(len(points))
    cross = covariance(places, points)
    correction = cross @ np.linalg.solve(own, np.log(measured_us / law(measured_bytes)))
    variance = width**2 - np.sum(cross * np.linalg.solve(own, cross.T).T, axis=1) + own_variance
    times_us, halves = law(grid) * np.exp(correction), SIGMA_90 * np.sqrt(variance)
    rows = zip(grid.tolist(), times_us.tolist(), halves.tolist(), strict=True)
    return Prior(kind=kind, points=tuple((int(size), time_us, half) for size, time_us, half in rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Priors:
    """What a kind of prior says of any collective on these links. rates: where the links' figures are from."""

    kind: str
    link: LinkModel
    rates: str

    @classmethod
    def of(cls, kind: str, link: LinkModel | None, curves: Iterable[Measured]) -> Priors:
        """With stated links, or for nccl those that the measured curves show; InputError for a datasheet without."""
        if link is not None:
            return cls(kind=kind, link=link, rates="the stated link's rate")
        if kind == "datasheet":
            raise InputError("the datasheet prior needs the link's figures: its rate, such as 25 GB/s")
        found = link_of(curves)
        rate_GBps = max(found.bandwidth_GBps, found.inter_bandwidth_GBps or 0.0)
        rates = f"the highest measured rate, {digits(rate_GBps)} GB/s (faster links: --bandwidth)"
        return cls(kind=kind, link=found, rates=rates)

    def of_curve(
        self, collective: str, nranks: int, nnodes: int, sizes_bytes: Floats, times_us: Floats, noise: float
    ) -> tuple[Prior | None, list[str]]:
        """(the prior of a curve of few sizes, a note of it); none where it has many."""
        few = len(sizes_bytes)
        law = law_of(self.kind, self.link, collective, nranks, nnodes)
        if few >= FEW_SIZES:
            return None, []
        note = (
            f"{self.kind} prior: {few} size{'s' * (few != 1)} measured; all between and beyond, the segments too, is "
            f"the prior's at {self.rates}, corrected by these"
        )
        return prior_of(self.kind, law, sizes_bytes, times_us, noise, nnodes), [note]


def law_of(kind: str, link: LinkModel, collective: str, nranks: int, nnodes: int) -> Law:
    """Times in us of sizes in bytes, as this kind of prior has them; InputError for an unknown kind."""
    if kind == "nccl":
        return partial(nccl_time_us, link, collective, nranks, nnodes)
    if kind == "datasheet":
        return partial(_datasheet, link, collective, nranks, nnodes)
    raise one_of("prior", kind, list(KINDS))


def _datasheet(link: LinkModel, collective: str, nranks: int, nnodes: int, sizes_bytes: Floats) -> Floats:
    answer = link.time(collective, sizes_bytes, nranks=nranks, nnodes=nnodes)
    return np.maximum(np.asarray(answer.time_us, dtype=np.float64), LEAST_TIME_US)  # no latency given: not in no time


def link_of(curves: Iterable[Measured]) -> LinkModel:
    """Rates where none are given: the highest bus bandwidth measured on one node, and on several.

    Where the messages were small the true rates are higher, so that a user who knows them should say so.
    """
    rates: dict[bool, float] = {}
    for collective, nranks, nnodes, sizes_bytes, times_us in curves:
        fraction = find_collective(collective).sent_fraction(nranks)
        rate_GBps = float(np.max(fraction * sizes_bytes / times_us)) / 1e3  # 1 GB/s is 1e3 B/us
        rates[nnodes > 1] = max(rates.get(nnodes > 1, 0.0), rate_GBps)
    return LinkModel(bandwidth_GBps=rates.get(False, rates.get(True, 1.0)), inter_bandwidth_GBps=rates.get(True))
