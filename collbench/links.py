"""Measurements of pairs -> one matrix of bandwidth and one of latency: of nodes, or of ranks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collbench.collectives import ALIGNMENT_BYTES, known_collective
from collbench.errors import InputError
from collbench.results import Record, ResultsFile

Link = tuple[int, int]  # two places of a table, the lower first

GROUPS = ("pairs", "pairs:rank")
BANDWIDTH, LATENCY = "bandwidth", "latency"

_MEDIAN_OVER_MEAN = 1.2533  # sigma of a median over sigma of a mean
_Z95, _Z5_TO_95 = 2 * 1.960, 2 * 1.645  # widths of an interval, in sigma

# What one table is made of; nothing is pooled over these.
_KEY = ("group", "collective", "dtype", "redop", "concurrent", "backend", "world_size", "mode")
_FIRST = ("all_reduce", "send_recv")
_PREFERRED = {BANDWIDTH: "pipelined", LATENCY: "isolated"}


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """One figure of every measured link: busbw in GB/s at the largest size, or time in us at the smallest.

    sigma: the uncertainty of a value, relative (0.01 is 1 %); None where nothing was repeated.
    """

    quantity: str
    size_bytes: int
    timing: str
    values: Mapping[Link, float]
    sigma: Mapping[Link, float | None]

    @property
    def fell_back(self) -> bool:
        """The regime this quantity is read in was not measured."""
        return self.timing != _PREFERRED[self.quantity]


@dataclass(frozen=True, kw_only=True)
class PairTable:
    """What one collective gave on every pair: of nodes, or of ranks.

    places: the name of each node (or rank).  node_of: the number of its node, equal for ranks of one node.
    nodes: the names of those nodes.  details: what tells this table from others of the same collective.
    """

    collective: str
    group: str
    details: str
    places: tuple[str, ...]
    node_of: tuple[int, ...]
    nodes: tuple[str, ...]
    matrices: tuple[Matrix, ...]
    notes: tuple[str, ...]

    @property
    def links(self) -> int:
        return len(self.places) * (len(self.places) - 1) // 2


def pair_tables(results: ResultsFile) -> list[PairTable]:
    """One table a collective (and datatype, operator ... where a file has several), nodes before ranks.

    Passes, roots, both places of the result and runs that were continued are pooled by the median. Raises InputError
    where the file holds no pairs, or none that say how fast a link is.
    """
    of_pairs = [record for record in results.measurements if record.get("group") in GROUPS]
    if not of_pairs:
        raise InputError(f"{results.path}: holds no pairs: measure them with 'collbench run --group pairs'")
    names = _Names(results)
    runs = {run["run_id"]: run for run in results.runs}
    by_key: dict[tuple[Any, ...], list[Record]] = {}
    for record in of_pairs:
        by_key.setdefault(_key(record, runs[record["run_id"]]), []).append(record)
    tables = [_table(key, records, list(by_key), names) for key, records in sorted(by_key.items(), key=_order)]
    tables = [table for table in tables if table.matrices]
    if not tables:
        raise InputError(
            f"{results.path}: none of its pairs says how fast a link is (size 0, wrong data or one node only): "
            "measure them with 'collbench run --group pairs -b 8 -e 64M'"
        )
    return tables


def _key(record: Record, run: Record) -> tuple[Any, ...]:
    return tuple(run.get(name) if name in ("backend", "world_size") else record.get(name) for name in _KEY)


def _order(item: tuple[tuple[Any, ...], Any]) -> tuple[int, int]:
    """Nodes before ranks, then what most ask for; else as measured (sorting is stable)."""
    group, collective = item[0][:2]
    return GROUPS.index(group), _FIRST.index(collective) if collective in _FIRST else len(_FIRST)


class _Names:
    """Which node a rank of a run is on, and what both are called: hosts, with the node's number where hosts repeat.

    Names and not numbers tell nodes apart, so that a run continued on the same hosts in another order is one table.
    """

    def __init__(self, results: ResultsFile) -> None:
        self._path = results.path
        hosts = {run["run_id"]: [str(node.get("host")) for node in run.get("nodes") or []] for run in results.runs}
        repeat = any(len(set(names)) < len(names) for names in hosts.values())
        short = _without_domain({host for names in hosts.values() for host in names})
        self._node: dict[tuple[str, int], str] = {}
        for run in results.runs:
            for index, node in enumerate(run.get("nodes") or []):
                host = short[str(node.get("host"))]
                name = f"{host}/{index}" if repeat else host
                self._node.update({(run["run_id"], rank): name for rank in node.get("ranks") or []})

    def places(self, run_id: str, group: str) -> list[tuple[str, str]]:
        """(place, node it is on) of everything a run could pair."""
        ranks = [(rank, name) for (of_run, rank), name in self._node.items() if of_run == run_id]
        return list(dict.fromkeys((_place(rank, name, group), name) for rank, name in ranks))

    def pair(self, record: Record) -> tuple[str, ...]:
        """The places a group spreads over; two for a pair."""
        names = [(rank, self._node.get((record["run_id"], rank))) for rank in record.get("group_ranks") or []]
        lost = [rank for rank, name in names if name is None]
        if lost or not names:
            what = f"rank {lost[0]}" if lost else "the ranks of a pair"
            raise InputError(
                f"{self._path}: run {record['run_id']} does not say which node {what} is on: "
                "measure again with 'collbench run --group pairs'"
            )
        return tuple(dict.fromkeys(_place(rank, str(name), record["group"]) for rank, name in names))


def _place(rank: int, node: str, group: str) -> str:
    return node if group == "pairs" else f"{node} r{rank}"


def _without_domain(hosts: set[str]) -> dict[str, str]:
    """Names without the domain that all share; addresses are left alone."""
    split = {host: host.partition(".") for host in hosts}
    shared = len({domain for _, _, domain in split.values()}) == 1 and not any(s[0].isdigit() for s in split.values())
    return {host: parts[0] if shared else host for host, parts in split.items()}


def _table(key: tuple[Any, ...], records: list[Record], keys: list[tuple[Any, ...]], names: _Names) -> PairTable:
    group, collective = key[:2]
    run_ids = dict.fromkeys(record["run_id"] for record in records)
    places = list(dict.fromkeys(place for run_id in run_ids for place in names.places(run_id, group)))
    number = {place: index for index, (place, _) in enumerate(places)}
    nodes = list(dict.fromkeys(node for _, node in places))
    of_link: dict[Link, list[Record]] = {}
    wrong: dict[str, None] = {}
    for record in records:
        pair = names.pair(record)
        if len(pair) != 2:
            continue
        low, high = sorted(number[place] for place in pair)
        if record.get("wrong"):
            wrong[f"{places[low][0]} – {places[high][0]}"] = None
        elif record["size_bytes"] > 0 and record.get("count") != 0:
            of_link.setdefault((low, high), []).append(record)
    matrices = [_matrix(quantity, collective, of_link) for quantity in (BANDWIDTH, LATENCY)]
    return PairTable(
        collective=collective,
        group=group,
        details=_details(key, keys),
        places=tuple(place for place, _ in places),
        node_of=tuple(nodes.index(node) for _, node in places),
        nodes=tuple(nodes),
        matrices=tuple(matrix for matrix in matrices if matrix is not None),
        notes=tuple(f"wrong data on {link}: these measurements are left out" for link in wrong),
    )


def _details(key: tuple[Any, ...], keys: list[tuple[Any, ...]]) -> str:
    """What tells a table from the others of its collective and group."""
    alike = [other for other in keys if other[:2] == key[:2]]
    said = {
        "concurrent": "several pairs at a time" if key[_KEY.index("concurrent")] else "one pair at a time",
        "world_size": f"{key[_KEY.index('world_size')]} ranks in all",
    }
    differing = [i for i in range(2, len(_KEY)) if len({other[i] for other in alike}) > 1]
    return ", ".join(said.get(_KEY[i], str(key[i])) for i in differing)


def _matrix(quantity: str, collective: str, of_link: Mapping[Link, list[Record]]) -> Matrix | None:
    """One matrix; None where no record has the figure. Each link is read at the same size."""
    field = "busbw_GBps" if quantity == BANDWIDTH else "time_us"
    usable = {link: [r for r in records if (r.get(field) or 0) > 0] for link, records in of_link.items()}
    timings = {record["timing"] for records in usable.values() for record in records}
    if not timings:
        return None
    timing = _PREFERRED[quantity] if _PREFERRED[quantity] in timings else timings.pop()
    usable = {link: [r for r in records if r["timing"] == timing] for link, records in usable.items()}
    sizes = {record["size_bytes"] for records in usable.values() for record in records}
    size_bytes = max(sizes) if quantity == BANDWIDTH else min(sizes)
    read = {link: _at_size(records, size_bytes, collective) for link, records in usable.items()}
    read = {link: records for link, records in sorted(read.items()) if records}
    return Matrix(
        quantity=quantity,
        size_bytes=size_bytes,
        timing=timing,
        values={link: float(statistics.median(r[field] for r in records)) for link, records in read.items()},
        sigma={link: _sigma(records) for link, records in read.items()},
    )


def _at_size(records: list[Record], size_bytes: int, collective: str) -> list[Record]:
    """A link's records at a size; where sizes are rounded to a multiple of its ranks, at what became of that size."""
    known = known_collective(collective)
    nearest = min((r["size_bytes"] for r in records), key=lambda size: abs(size - size_bytes), default=size_bytes)
    rounding = ALIGNMENT_BYTES * len(records[0]["group_ranks"]) if records and known and known.divided else 1
    return [r for r in records if r["size_bytes"] == nearest] if abs(nearest - size_bytes) < rounding else []


def _sigma(records: list[Record]) -> float | None:
    """Relative uncertainty of the median of a link's records: from each one's repeats, or from one to the next."""
    root = math.sqrt(len(records))
    within = [sigma for record in records if (sigma := _sigma_within(record)) is not None]
    found = [statistics.fmean(within) / root] if within else []
    repeats: dict[tuple[Any, ...], list[float]] = {}  # a result in place and one that is not differ by more than noise
    for record in records:
        repeats.setdefault((record.get("in_place"), record.get("root")), []).append(math.log(record["time_us"]))
    degrees = sum(len(logs) - 1 for logs in repeats.values())
    if degrees:
        squares = sum((log - statistics.fmean(logs)) ** 2 for logs in repeats.values() for log in logs)
        found.append(math.sqrt(squares / degrees) / root)
    return max(found, default=None)


def _sigma_within(record: Record) -> float | None:
    """Relative uncertainty of one record's time, from its interval or its p5 to p95; None where it has neither."""
    low, high = record.get("time_us_interval") or (None, None)
    if low and high:
        return float(math.log(high / low) / _Z95)
    low, high = record.get("time_p5_us"), record.get("time_p95_us")
    if not low or not high:
        return None
    samples = record.get("iterations" if record["timing"] == "isolated" else "batches") or 1
    return _MEDIAN_OVER_MEAN * math.log(high / low) / _Z5_TO_95 / math.sqrt(samples)
