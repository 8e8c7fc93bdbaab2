"""Benchmarks people write themselves: a column of sizes, and one of nccl-tests' busbw for each way to call it.

    [init] world=8 dtype=bf16 sizes=10 ...
      total_bytes per_rank_MiB   symm_ag_busbw   regular_ag_busbw
        134217728      16.0000           259.4              265.7

No times: they are what busbw, in GB/s as nccl-tests has it, makes of size and ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from collbench.collectives import COLLECTIVES
from collbench.importers.derived import MOST_BYTES, MOST_RANKS, quotient, time_us, whole
from collbench.importers.source import Log
from collbench.importers.table import Format, Printed, Refusal, Row, Table
from collbench.importers.words import collective_named, dtype_named

_LONGEST_LINE = 1000
_SIZES = ("total_bytes", "size_bytes", "bytes")
_SHARES = ("per_rank_mib",)
_COLUMN = re.compile(r"(?:([a-z0-9]{1,20})_)?([a-z0-9]{2,20}|[a-z0-9]{1,10}_[a-z0-9]{1,10})_busbw\Z")
_SHORT = {"ar": "all_reduce", "ag": "all_gather_into_tensor", "rs": "reduce_scatter_tensor", "a2a": "all_to_all_single"}
_ORDINARY = (None, "regular", "default", "plain")
_WORLD = re.compile(r"\bworld(?:_size)?=([0-9]{1,7})\b")
_DTYPE = re.compile(r"\bdtype=([\w.]{2,24})")


class _Column(NamedTuple):
    place: int
    collective: str
    variant: str | None


def _recognises(log: Log) -> bool:
    return log.holds("_busbw") and log.holds(*_SIZES)


def _read(log: Log) -> Iterator[Table | Refusal]:
    nranks: int | None = None
    dtype: str | None = None
    names: list[str] = []
    tables: dict[_Column, Table] = {}
    for number, _, line in log.pieces(without_nccl=True):
        if len(line) > _LONGEST_LINE:
            continue
        words = line.split()
        if "_busbw" in line and (columns := _columns(words)):
            yield from (table for table in tables.values() if table.rows)
            names = [word.lower() for word in words]
            tables = {column: _table(number, column, nranks) for column in columns}
        elif tables and words and whole(words[0]) is not None:
            if len(words) != len(names):
                yield Refusal(number, f"{len(words)} cells under {len(names)} columns ({', '.join(names)})")
                continue
            reason = _size_problem(words, names, nranks)
            if reason is not None:
                yield Refusal(number, reason)
                continue
            for column, table in tables.items():
                row = _row(number, words, column, nranks, dtype)
                if isinstance(row, Row):
                    table.rows.append(row)
                else:
                    yield row
        else:
            if "world" in line and (world := _WORLD.search(line)) is not None:
                nranks = int(world[1]) if 1 < int(world[1]) <= MOST_RANKS else None
            if "dtype=" in line and (named := _DTYPE.search(line)) is not None:
                dtype = dtype_named(named[1])
    yield from (table for table in tables.values() if table.rows)


def _columns(words: list[str]) -> list[_Column]:
    """The busbw columns of a header; empty for any other line."""
    if words[0].lower() not in _SIZES:
        return []
    columns = []
    for place, word in enumerate(words):
        match = _COLUMN.match(word.lower())
        if match is not None and (collective := _SHORT.get(match[2]) or collective_named(match[2])) is not None:
            columns.append(_Column(place, collective, match[1]))
    return columns


def _table(number: int, column: _Column, nranks: int | None) -> Table:
    return Table(
        format=FORMAT.name,
        line=number,
        timing="pipelined",
        collective=column.collective,
        nranks=nranks,
        inferred={"time_us": "busbw, in GB/s as nccl-tests has it: the log gives neither times nor a unit"},
        more={} if column.variant is None else {"label": column.variant},
    )


def _size_problem(words: list[str], names: list[str], nranks: int | None) -> str | None:
    if not 0 < int(words[0]) <= MOST_BYTES:
        return f"a size of {words[0][:20]} bytes"
    for name, word in zip(names, words, strict=True):
        share = Printed.read(word) if name in _SHARES else None
        if share is not None and nranks is not None:
            expected = int(words[0]) / nranks / 2**20
            if abs(share.value - expected) > share.half_step * (1 + 1e-9):
                return f"{word} MiB a rank is not {words[0]} bytes over {nranks} ranks"
    return None


def _row(number: int, words: list[str], column: _Column, nranks: int | None, dtype: str | None) -> Row | Refusal:
    size_bytes, busbw = int(words[0]), Printed.read(words[column.place])
    if busbw is None or nranks is None:
        what = "no number" if busbw is None else "no time without the ranks ('world=8')"
        return Refusal(number, f"busbw {words[column.place][:20]!r} is {what}")
    algbw = quotient(busbw, Printed(COLLECTIVES[column.collective].bus_factor(nranks), 0.0))
    time = None if algbw is None else time_us(size_bytes, algbw)
    if time is None:
        return Refusal(number, f"a busbw of {busbw.value:g} tells no time")
    return Row(
        line=number,
        size_bytes=size_bytes,
        time_us=time,
        dtype=dtype,
        redop="sum" if COLLECTIVES[column.collective].reduces else None,
        busbw_GBps=busbw,
        more={} if column.variant in _ORDINARY else {"mode": column.variant},
    )


FORMAT = Format(
    name="busbw-columns",
    title="own benchmarks: sizes, and a column of busbw for each call",
    recognises=_recognises,
    read=_read,
)
