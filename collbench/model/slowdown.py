"""How much a collective and computation slow one another while both run, as `run --with-compute` measured it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from collbench.errors import InputError
from collbench.model.laws import network_of

if TYPE_CHECKING:
    from collbench.results import Record

_KEY = ("collective", "group", "nranks", "nnodes", "size_bytes")
_FACTORS = ("comm_slowdown", "compute_slowdown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """How many times as long each takes beside the other as alone; 1 or more."""

    comm: float
    compute: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """One size of one collective beside a matrix product. Field names are the model file's keys.

    comm_slowdown, compute_slowdown: time beside the other over time alone; under 1 only by noise.
    """

    collective: str
    group: str
    nranks: int
    nnodes: int
    backend: str | None
    size_bytes: int
    comm_slowdown: float
    compute_slowdown: float


def pool_overlaps(overlaps: Iterable[Record]) -> tuple[Overlap, ...]:
    """`overlap` records, with their run's `backend`, as a model keeps them. InputError for a damaged record.

    Passes and halves by their median, groups of a kind by the one that is slowed most, as a step goes at the pace of
    the slowest. A record of a collective that had ended before any product began tells nothing and is left out.
    """
    cells: dict[tuple[Any, ...], dict[tuple[int, ...], list[tuple[float, float]]]] = {}
    for record in overlaps:
        comm, compute = (_factor(record, name) for name in _FACTORS)
        missing = [name for name in (*_KEY, "group_ranks") if name not in record]
        if missing:
            raise InputError(f"an overlap of run {record['run_id']} is without {missing[0]}: restore the file")
        if comm is None or compute is None or record["nranks"] < 2 or record["size_bytes"] < 1:
            continue
        key = (*(record[name] for name in _KEY), record["backend"])
        cells.setdefault(key, {}).setdefault(tuple(record["group_ranks"]), []).append((comm, compute))
    pooled = []
    for (collective, group, nranks, nnodes, size_bytes, backend), groups in cells.items():
        comm, compute = (
            max(float(np.median([factors[which] for factors in of_group])) for of_group in groups.values())
            for which in (0, 1)
        )
        pooled.append(
            Overlap(
                collective=collective,
                group=group,
                nranks=nranks,
                nnodes=nnodes,
                backend=backend,
                size_bytes=size_bytes,
                comm_slowdown=comm,
                compute_slowdown=compute,
            )
        )
    return tuple(sorted(pooled, key=lambda each: (each.collective, each.group, each.nranks, each.size_bytes)))


def _factor(record: Record, name: str) -> float | None:
    value = record.get(name)
    if value is not None and not (isinstance(value, (int, float)) and value > 0):
        raise InputError(f"an overlap of run {record['run_id']} has {name} {value!r}: expected a factor above zero")
    return value


def find_slowdown(
    overlaps: Sequence[Overlap],
    collective: str,
    size_bytes: float,
    group: str,
    nranks: int,
    nnodes: int,
    backend: str | None,
) -> Slowdown | None:
    """The factors of a collective, read off the sizes that were measured; None where it was not measured.

    Groups over other kinds of links say nothing of it. Among the rest the same group before others, then the nearest
    count. Between two sizes the factors are linear in the logarithm of the size, beyond the ends those of the end.
    """
    network = network_of(nranks, nnodes)
    found = [
        each
        for each in overlaps
        if (each.collective, network_of(each.nranks, each.nnodes)) == (collective, network)
        and backend in (None, each.backend)
    ]
    if not found:
        return None

    def distance(each: Overlap) -> tuple[bool, float, int]:
        return each.group != group, abs(math.log2(each.nranks / nranks)), -each.nranks

    nearest = min(map(distance, found))
    by_size = {each.size_bytes: each for each in found if distance(each) == nearest}
    points = [by_size[size] for size in sorted(by_size)]
    sizes, at = np.log([point.size_bytes for point in points]), math.log(max(size_bytes, 1))
    comm = float(np.interp(at, sizes, [point.comm_slowdown for point in points]))
    compute = float(np.interp(at, sizes, [point.compute_slowdown for point in points]))
    return Slowdown(comm=max(1.0, comm), compute=max(1.0, compute))
