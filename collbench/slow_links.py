"""Which links of a matrix are slower than the others by more than the noise.

Links are compared by the logarithm of their time, so that a ratio counts the same everywhere. The noise of a link is
the larger of two figures: the spread over the links (1.4826 x the median distance from their median, which is sigma for
normal noise and which outliers hardly move), and the link's own uncertainty (the interval of its median, its p5 to p95,
or the differences of its passes). A link is slow when its time is above the median by more than `sensitivity(links)` x
its noise and by more than 5 %. Where links differ by normal noise alone, at most one matrix in 20 shows a slow link,
however many links it has.

A slow node makes all its links slow. So nodes come first: each is compared with the links that do not touch it, and
the links of a slow one are left out of the search for slow links. Fewer than four links have no spread worth the name:
there a link must stand out from its own uncertainty, and without one nothing is called slow. What is compared with a
median is found while more than half of the links in it are good ones.

Links within a node and links between nodes are never compared with each other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collbench.links import BANDWIDTH, Link, Matrix, PairTable

Floats = npt.NDArray[np.float64]

MIN_SLOWDOWN = 1.05
_FALSE_ALARMS = 0.05  # of one matrix, over all its links
_FEW_LINKS = 4  # fewer have no spread
_FEW_LINKS_SENSITIVITY = 4.5  # to uncertainties that may come from two passes alone
_MOST_OF_A_NODE = 0.75  # of its links: one of them may look fast by chance
_SIGMA_OF_MAD = 1.4826


@dataclass(frozen=True, kw_only=True)
class Slow:
    """A link, or a node or rank of which (nearly) all links are slow.

    places: the ends of the link, or the places of the node.  links: all its links.  slow_links: how many are slow.
    value: the median of its links; usual: that of the others.  slowdown: how many times longer it takes, above 1.
    """

    kind: str  # link, node or rank
    name: str
    places: tuple[int, ...]
    links: tuple[Link, ...]
    slow_links: int
    value: float
    usual: float
    slowdown: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The links of one matrix that are like each other, compared.

    among: "", or "between nodes" and "within nodes" where a matrix has both.  slow: the worst first.
    usual: the median of what is not slow.  noise: of one of those links, relative; None where it is not known.
    visible: the slowdown from which on a link would have been called slow; None where none could be.
    """

    among: str
    links: int
    slow: tuple[Slow, ...]
    usual: float
    noise: float | None
    visible: float | None


def sensitivity(links: int) -> float:
    """How many times the noise a link must be off to be called slow, among so many links.

    Bonferroni's quantile for known noise, plus what it takes that the noise is itself estimated from so many links: a
    bound above simulations of 4 to 8,000 links.
    """
    return statistics.NormalDist().inv_cdf(1 - _FALSE_ALARMS / links) + 18 * math.pow(links, -0.9)


def compare_links(table: PairTable, matrix: Matrix) -> list[Comparison]:
    """The slow nodes, ranks and links of a matrix of this table, for each kind of link that it has."""
    links = _Links.of(matrix)
    node_of = np.array(table.node_of)
    within = node_of[links.ends[:, 0]] == node_of[links.ends[:, 1]]
    kinds = [(~within, "between nodes"), (within, "within nodes")]
    both = len(np.unique(within)) == 2
    return [_compare(table, links.where(kind), among if both else "") for kind, among in kinds if kind.any()]


@dataclass(frozen=True, kw_only=True)
class _Links:
    """Some links of a matrix, as arrays over them.

    ends: [n, 2] places.  values: as the matrix has them.  log_times: logarithms of their times, but for a constant.
    sigmas: of those, nan where not known.
    """

    quantity: str
    ends: npt.NDArray[np.int_]
    values: Floats
    log_times: Floats
    sigmas: Floats

    @classmethod
    def of(cls, matrix: Matrix) -> _Links:
        values = np.array(list(matrix.values.values()), dtype=np.float64)
        sigmas = [matrix.sigma[link] for link in matrix.values]
        return cls(
            quantity=matrix.quantity,
            ends=np.array(list(matrix.values), dtype=np.int_).reshape(-1, 2),
            values=values,
            log_times=-np.log(values) if matrix.quantity == BANDWIDTH else np.log(values),
            sigmas=np.array(sigmas, dtype=np.float64),
        )

    def __len__(self) -> int:
        return len(self.values)

    def where(self, chosen: npt.NDArray[np.bool_]) -> _Links:
        return _Links(
            quantity=self.quantity,
            ends=self.ends[chosen],
            values=self.values[chosen],
            log_times=self.log_times[chosen],
            sigmas=self.sigmas[chosen],
        )

    def touching(self, places: tuple[int, ...]) -> npt.NDArray[np.bool_]:
        return np.isin(self.ends[:, 0], places) | np.isin(self.ends[:, 1], places)

    @property
    def known_sigmas(self) -> Floats:
        return self.sigmas[~np.isnan(self.sigmas)]


class _Others:
    """What links are compared with: the other links' median, their spread and their uncertainty."""

    def __init__(self, links: _Links) -> None:
        self.count = len(links)
        self.usual = float(np.median(links.values))
        self.log_time = float(np.median(links.log_times))
        self._spread = _SIGMA_OF_MAD * float(np.median(np.abs(links.log_times - self.log_time)))
        self._sigmas = links.known_sigmas

    def judge(self, sigmas: Floats) -> tuple[float, float]:
        """(relative noise of links with these known uncertainties; log of the slowdown from which on they are slow).

        The second is inf where nothing tells how slow is too slow.
        """
        if self.count >= _FEW_LINKS:
            noise = max(self._spread, float(np.median(sigmas)) if len(sigmas) else 0.0)
            return noise, max(sensitivity(self.count) * noise, math.log(MIN_SLOWDOWN))
        if not len(sigmas) or not len(self._sigmas):
            return self._spread, math.inf
        noise = max(self._spread, math.hypot(np.max(sigmas), np.max(self._sigmas)))
        return noise, max(_FEW_LINKS_SENSITIVITY * noise, math.log(MIN_SLOWDOWN))


def _compare(table: PairTable, links: _Links, among: str) -> Comparison:
    slow: list[Slow] = []
    left = links
    for holders in _holders(table):
        found = [each for kind, places in holders if (each := _slow_holder(table, left, kind, places))]
        for each in found:
            left = left.where(~left.touching(each.places))
        slow += found
    is_slow, found = _slow_links(table, left)
    slow += found
    good = left.where(~is_slow)
    good = good if len(good) else links
    noise, threshold = _Others(good).judge(good.known_sigmas)
    known = math.isfinite(threshold)
    return Comparison(
        among=among,
        links=len(links),
        slow=tuple(sorted(slow, key=lambda each: -each.slowdown)),
        usual=float(np.median(good.values)),
        noise=noise if known else None,
        visible=math.exp(threshold) if known else None,
    )


def _holders(table: PairTable) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    """What may be slow as a whole, the larger first: (kind, its places) of all nodes, then of all ranks."""
    of_node: dict[int, list[int]] = {}
    for place, node in enumerate(table.node_of):
        of_node.setdefault(node, []).append(place)
    yield [("node", tuple(places)) for places in of_node.values()]
    if table.group == "pairs:rank":
        yield [("rank", (place,)) for place in range(len(table.places))]


def _slow_holder(table: PairTable, links: _Links, kind: str, places: tuple[int, ...]) -> Slow | None:
    """A node (or rank) whose links are, by their median, as slow as a slow link must be, and slow alike.

    Alike: one very slow link of a node with two would lift the median, but is no slow node.
    """
    touching = links.touching(places)
    own, rest = links.where(touching), links.where(~touching)
    if len(own) < 2 or not len(rest):
        return None
    others = _Others(rest)
    off = own.log_times - others.log_time
    typical = float(np.median(off))
    slow_links = int(np.sum(off > max(typical / 2, math.log(MIN_SLOWDOWN))))
    if slow_links < _MOST_OF_A_NODE * len(own) or typical <= others.judge(own.known_sigmas)[1]:
        return None
    name = table.nodes[table.node_of[places[0]]] if kind == "node" else table.places[places[0]]
    return _slow(own, others, kind=kind, name=name, places=places, slow_links=slow_links)


def _slow_links(table: PairTable, links: _Links) -> tuple[npt.NDArray[np.bool_], list[Slow]]:
    """(which of the links are slow; what is said of each)."""
    is_slow = np.zeros(len(links), dtype=bool)
    found: list[Slow] = []
    if len(links) < 2:
        return is_slow, found
    all_of_them = _Others(links)
    few = len(links) < _FEW_LINKS  # each would be half of its own median
    slower = np.flatnonzero(few | (links.log_times - all_of_them.log_time > math.log(MIN_SLOWDOWN)))
    for index in slower:
        one = np.arange(len(links)) == index
        link = links.where(one)
        others = _Others(links.where(~one)) if few else all_of_them
        if link.log_times[0] - others.log_time > others.judge(link.known_sigmas)[1]:
            low, high = (int(place) for place in link.ends[0])
            name = f"{table.places[low]} – {table.places[high]}"
            is_slow[index] = True
            found.append(_slow(link, others, kind="link", name=name, places=(low, high), slow_links=1))
    return is_slow, found


def _slow(links: _Links, others: _Others, *, kind: str, name: str, places: tuple[int, ...], slow_links: int) -> Slow:
    value = float(np.median(links.values))
    return Slow(
        kind=kind,
        name=name,
        places=places,
        links=tuple((int(low), int(high)) for low, high in links.ends),
        slow_links=slow_links,
        value=value,
        usual=others.usual,
        slowdown=others.usual / value if links.quantity == BANDWIDTH else value / others.usual,
    )
