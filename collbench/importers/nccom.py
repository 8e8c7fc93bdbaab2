"""nccom-test (AWS Neuron): nccl-tests' columns by other names, one time, no in-place half.

    nccom-test -r 32 --minbytes 1kb --maxbytes 1mb --stepfactor 8 --datatype fp32 --check allg
    size(B)    count(elems)    type    time:avg(us)    algbw(GB/s)    busbw(GB/s)

Sizes and formulas are nccl-tests', sizes of all shares. `GB/s` is 2^30 bytes in older versions and 10^9 in newer ones,
which only size and time tell. The time is the mean of the iterations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from collbench.collectives import COLLECTIVES
from collbench.importers.derived import GIB_PER_GB, MOST_BYTES, agree, ranks_in, rate_GBps, whole
from collbench.importers.launch_line import words_of_command
from collbench.importers.source import Log
from collbench.importers.table import Format, Printed, Refusal, Row, Table
from collbench.importers.words import dtype_named

_LONGEST_LINE = 1000
_HEADER = re.compile(r"\s*size\(B\)\s{1,20}count\(elems\)\s")
_TIME = re.compile(r"time(?::(avg|p[0-9]{1,2}|min|max))?\((us|ms)\)\Z")
_PLAIN = {
    "size(B)": "size",
    "count(elems)": "count",
    "type": "type",
    "algbw(GB/s)": "algbw",
    "busbw(GB/s)": "busbw",
    "algorithm": "algorithm",
    "total_input_size(B)": "input",
    "total_output_size(B)": "output",
}
_OPERATIONS = {
    "allr": "all_reduce",
    "allreduce": "all_reduce",
    "allg": "all_gather_into_tensor",
    "allgather": "all_gather_into_tensor",
    "redsct": "reduce_scatter_tensor",
    "reducescatter": "reduce_scatter_tensor",
    "alltoall": "all_to_all_single",
    "sendrecv": "send_recv",
    "permute": "nccom_permute",  # among pairs of the user's choice
    "alltoallv": "nccom_alltoallv",
}
_RANKS = ("-r", "--nworkers", "--nranks")
_NODES = ("-N", "--nnodes")
_STATISTICS = {"min": "time_min_us", "p50": "time_p50_us", "p95": "time_p95_us", "p99": "time_p99_us",
               "max": "time_max_us"}  # fmt: skip


def _recognises(log: Log) -> bool:
    return log.holds("count(elems)")


def _read(log: Log) -> Iterator[Table | Refusal]:
    table: Table | None = None
    columns: list[str] = []
    command: tuple[int, list[str]] | None = None
    found: list[Table | Refusal] = []
    for number, _, line in log.pieces(without_nccl=True):
        if len(line) > _LONGEST_LINE:
            continue
        if "nccom-test" in line:
            command, table = (number, words_of_command(line[line.index("nccom-test") :])), None
        elif _HEADER.match(line):
            columns = _columns(line.split())
            table = _table(number, command)
            command = None
            if columns:
                found.append(table)
            else:
                found.append(Refusal(number, "a header with columns that nccom-test does not have"))
                table = None
        elif table is not None and len(cells := line.split()) > 1 and whole(cells[0]) is not None:
            outcome = _row(number, cells, columns, table)
            if isinstance(outcome, Row):
                table.rows.append(outcome)
            else:
                found.append(outcome)
    for each in found:
        if isinstance(each, Refusal):
            yield each
        elif each.rows:
            yield _in_decimal(each)


def _value(words: list[str], flags: tuple[str, ...]) -> int | None:
    for word, following in pairwise(words):
        if word in flags and (value := ranks_in(following)) is not None:
            return value
    return None


def _table(number: int, command: tuple[int, list[str]] | None) -> Table:
    table = Table(
        format=FORMAT.name,
        line=number,
        timing="pipelined",
        backend="nccom",
        notes=["time is the mean of the iterations"],
    )
    if command is not None:
        line, words = command
        named = [_OPERATIONS[word] for word in words if word in _OPERATIONS]
        table.nranks, table.nnodes = _value(words, _RANKS), _value(words, _NODES)
        table.collective = named[0] if len(named) == 1 else None
        for name, value in (("nranks", table.nranks), ("nnodes", table.nnodes), ("collective", table.collective)):
            if value is not None:
                table.inferred[name] = f"the command in line {line}"
    return table


def _columns(words: list[str]) -> list[str]:
    """The header's columns; empty where it has others than are known."""
    names = []
    for word in words:
        time = _TIME.match(word)
        name = _PLAIN.get(word) if time is None else f"time:{time[1] or 'avg'}:{time[2]}"
        if name is None:
            return []
        names.append(name)
    return names if any(name.startswith("time:") for name in names) and "type" in names else []


def _row(number: int, cells: list[str], columns: list[str], table: Table) -> Row | Refusal:
    if len(cells) != len(columns):
        return Refusal(number, f"{len(cells)} cells under {len(columns)} columns ({', '.join(columns)})")
    words = dict(zip(columns, cells, strict=True))
    values = {
        name: value
        for name, cell in words.items()
        if name not in ("type", "algorithm") and (value := Printed.read(cell)) is not None
    }
    if len(values) < len(words) - 1 - ("algorithm" in words):
        return Refusal(number, "a cell that is no number")
    count = whole(words["count"])
    if count is None or values["size"].value > MOST_BYTES:
        return Refusal(number, f"a size of {words['size'][:20]} bytes and {words['count'][:20]} elements")
    times = {
        name.split(":")[1]: value.times(1e3 if name.endswith(":ms") else 1.0)
        for name, value in values.items()
        if name.startswith("time:")
    }
    time = times.get("avg") or times.get("p50") or next(iter(times.values()))
    if time.value <= 0:
        return Refusal(number, "a time of 0")
    more: dict[str, object] = {_STATISTICS[name]: times[name].value for name in times if name in _STATISTICS}
    if "algorithm" in words:
        more["algorithm"] = words["algorithm"][:40]
    collective = COLLECTIVES.get(table.collective or "")
    return Row(
        line=number,
        size_bytes=int(words["size"]),
        time_us=time,
        count=count if collective is not None and not collective.divided else None,
        dtype=dtype_named(words["type"]),
        redop="sum" if collective is not None and collective.reduces else None,
        algbw_GBps=values.get("algbw"),
        busbw_GBps=values.get("busbw"),
        more=more,
    )


def _in_decimal(table: Table) -> Table:
    """The table with bandwidths in 10^9 bytes, by the unit that most of its rows are in."""
    votes = {
        factor: sum(_is_in(row, factor) and not _is_in(row, other) for row in table.rows)
        for factor, other in ((1.0, GIB_PER_GB), (GIB_PER_GB, 1.0))
    }
    factor = GIB_PER_GB if votes[GIB_PER_GB] > votes[1.0] else 1.0
    if factor != 1.0:
        table.notes.append("GB/s is 2^30 bytes here, as size and time show: converted")
        for place, row in enumerate(table.rows):
            table.rows[place] = _times(row, factor)
    return table


def _is_in(row: Row, factor: float) -> bool:
    rate = rate_GBps(row.size_bytes, row.time_us)
    return rate is not None and row.algbw_GBps is not None and agree(rate, row.algbw_GBps.times(factor))


def _times(row: Row, factor: float) -> Row:
    algbw, busbw = (rate and rate.times(factor) for rate in (row.algbw_GBps, row.busbw_GBps))
    return replace(row, algbw_GBps=algbw, busbw_GBps=busbw)


FORMAT = Format(
    name="nccom-test",
    title="nccom-test of AWS Neuron",
    recognises=_recognises,
    read=_read,
)
