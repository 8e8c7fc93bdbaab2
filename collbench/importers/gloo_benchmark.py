"""Gloo's own benchmark (gloo/benchmark/runner.cc), all its generations and forks of them.

    Algorithm:   allreduce_ring
    Options:     processes=4, inputs=1, threads=1
       elements   min (us)   p50 (us)   p99 (us)   max (us)   avg (GB/s)    samples

Definitions: rank 0's calls, each timed by itself, one straight after the other, a barrier before the first and after
the last. A row's size is elements x the bytes of one (`size (B)` in later generations, else a float's 4). `GB/s` is
2^30 bytes: the bytes of all calls over the time of all calls, so of the mean and not of p50.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from collbench.importers.derived import GIB_PER_GB, MOST_BYTES, agree, exact, quotient, whole
from collbench.importers.source import Log
from collbench.importers.table import Format, Printed, Refusal, Row, Table

_LONGEST_LINE = 400
_HEADER = re.compile(r"\s*(?:size \(B\)\s{1,20})?elements\s{1,20}min \((us|ns)\)\s")
_COLUMN = re.compile(
    r"(size) \(B\)|(elements|samples|iterations)|(min|p50|p90|p95|p99|p995|p999|max|avg) \((?:us|ns)\)"
    r"|((?:avg|bandwidth) )\(GB/s\)"
)
_ALGORITHM = re.compile(r"\s{0,60}(?:Algorithm: {1,20})?((?:new_|bew_|cuda_)?[A-Za-z]\w{2,60})\s*\Z")
_OPTIONS = re.compile(
    r"\s*Options: {1,20}processes=([0-9]{1,7})\b(?:, inputs=([0-9]{1,5}))?(?:, threads=([0-9]{1,5}))?"
)

# By a word of the algorithm's name, the more particular first; whether the elements are one rank's share.
_OPERATIONS = (
    ("allreduce", "all_reduce", False),
    ("all_reduce", "all_reduce", False),
    ("reduce_scatter", "reduce_scatter_tensor", False),
    ("allgather", "all_gather_into_tensor", True),
    ("all_gather", "all_gather_into_tensor", True),
    ("broadcast", "broadcast", False),
)
_SIZE_OF_FLOAT = 4
_TIMES = ("min", "p50", "p99", "max", "avg")


@dataclass(slots=True)
class _Setting:
    algorithm: str | None = None
    processes: int | None = None
    inputs: int = 1
    threads: int = 1
    columns: list[str] = field(default_factory=list)
    time_factor: float = 1.0


def _recognises(log: Log) -> bool:
    return log.holds("elements") and log.holds("p50 (us)", "p50 (ns)")


def _read(log: Log) -> Iterator[Table | Refusal]:
    setting = _Setting()
    table: Table | None = None
    found: list[Table | Refusal] = []
    for number, _, line in log.pieces(without_nccl=True):
        if len(line) > _LONGEST_LINE:
            continue
        if (header := _HEADER.match(line)) is not None:
            columns = _columns(line)
            if not columns:
                found.append(Refusal(number, "a header with columns that gloo's benchmark does not have"))
                table, setting = None, _Setting()
                continue
            setting.columns, setting.time_factor = columns, 1.0 if header[1] == "us" else 1e-3
            table = _table(number, setting)
            found.append(table)
            setting = _Setting(columns=setting.columns, time_factor=setting.time_factor)
        elif (options := _OPTIONS.match(line)) is not None:
            setting.processes = int(options[1]) or None
            setting.inputs, setting.threads = int(options[2] or 1), int(options[3] or 1)
            table = None
        elif table is not None and (cells := line.split()) and whole(cells[0]) is not None:
            outcome = _row(number, cells, setting, table)
            if isinstance(outcome, Row):
                table.rows.append(outcome)
            elif outcome is not None:
                found.append(outcome)
        elif (name := _ALGORITHM.match(line)) is not None and _operation(name[1]) is not None:
            setting.algorithm = name[1].lower()
    yield from (each for each in found if isinstance(each, Refusal) or each.rows)


def _columns(header: str) -> list[str]:
    """The header's columns; empty where it has others than are known."""
    text = " ".join(header.split())
    if _COLUMN.sub("", text).strip():
        return []
    names = []
    for size, count, time, rate in _COLUMN.findall(text):
        names.append("rate" if rate else size or count or time)
    return names if "elements" in names and "p50" in names else []


def _operation(algorithm: str) -> tuple[str, bool] | None:
    name = algorithm.lower()
    return next(((collective, per_rank) for word, collective, per_rank in _OPERATIONS if word in name), None)


def _table(number: int, setting: _Setting) -> Table:
    operation = None if setting.algorithm is None else _operation(setting.algorithm)
    table = Table(
        format=FORMAT.name,
        line=number,
        timing="pipelined",
        collective=None if operation is None else operation[0],
        nranks=setting.processes,
        per_rank_name="gloo_allgather" if operation is not None and operation[1] else None,
        backend="gloo",
        notes=["time is the median of rank 0's calls, one straight after the other"],
        more={} if setting.algorithm is None else {"algorithm": setting.algorithm},
    )
    if "size" not in setting.columns:
        table.inferred["size_bytes"] = "4 bytes an element: this benchmark's floats"
    if "rate" in setting.columns:
        table.notes.append("GB/s is of the mean and of 2^30 bytes: compared, and not read")
    if setting.inputs > 1 or setting.threads > 1:
        table.notes.append(f"{setting.inputs} inputs a rank, {setting.threads} calls at a time")
    return table


def _row(number: int, cells: list[str], setting: _Setting, table: Table) -> Row | Refusal | None:
    """One row; None for a line of something else that begins with a number."""
    columns = setting.columns
    if len(cells) != len(columns):
        return None if len(cells) < 3 else Refusal(number, f"{len(cells)} cells under {len(columns)} columns")
    values: dict[str, Printed] = {}
    for name, cell in zip(columns, cells, strict=True):
        value = Printed.read(cell)
        if value is None or len(cell) > 15:
            return Refusal(number, f"{name} is {cell[:20]!r}: expected a number")
        values[name] = value
    times = {name: values[name].times(setting.time_factor) for name in _TIMES if name in values}
    ordered = [times[name].value for name in ("min", "p50", "p99", "max") if name in times]
    if ordered != sorted(ordered):
        return Refusal(number, "percentiles that fall")
    if times["p50"].value <= 0:
        return Refusal(number, "a time of 0")
    elements = int(values["elements"].value)
    size_bytes = int(values["size"].value) if "size" in values else elements * _SIZE_OF_FLOAT
    if "size" in values and (elements == 0 or size_bytes % elements or size_bytes // elements not in (1, 2, 4, 8)):
        return Refusal(number, f"{size_bytes} bytes are not {elements} elements of 1, 2, 4 or 8")
    if "rate" in values and not _is_of_a_mean(values["rate"], size_bytes, times):
        return Refusal(number, f"{values['rate'].value:g} GB/s is no mean of these times for {size_bytes} bytes")
    if size_bytes > MOST_BYTES:
        return Refusal(number, f"{size_bytes} bytes are more than any message")
    is_float = "size" not in values or size_bytes == elements * _SIZE_OF_FLOAT
    counts = values.get("samples") or values.get("iterations")
    more: dict[str, object] = {} if counts is None else {"iterations": int(counts.value)}
    for name, record_name in (
        ("min", "time_min_us"),
        ("p50", "time_p50_us"),
        ("p99", "time_p99_us"),
        ("max", "time_max_us"),
        ("avg", "time_mean_us"),
    ):
        if name in times:
            more[record_name] = times[name].value
    return Row(
        line=number,
        size_bytes=size_bytes,
        time_us=times["p50"],
        count=elements if table.collective in ("all_reduce", "broadcast") else None,
        dtype="float32" if is_float else None,
        redop="sum" if table.collective in ("all_reduce", "reduce_scatter_tensor") else None,
        more=more,
    )


def _is_of_a_mean(rate: Printed, size_bytes: int, times: dict[str, Printed]) -> bool:
    """Whether the bandwidth is that of the mean time, or, where that is not printed, of one between min and max."""
    size_over_us = exact(size_bytes / 1e3 / GIB_PER_GB)
    if "avg" in times:
        of_mean = quotient(size_over_us, _cut(times["avg"]))
        return of_mean is None or agree(of_mean, rate)
    slowest = quotient(size_over_us, _cut(times["max"])) if "max" in times else exact(0.0)
    fastest = quotient(size_over_us, _cut(times["min"])) if "min" in times else None
    is_below = fastest is None or rate.value - rate.half_step <= fastest.value + fastest.half_step
    return is_below and (slowest is None or rate.value + rate.half_step >= slowest.value - slowest.half_step)


def _cut(time: Printed) -> Printed:
    """Times are cut to whole units, not rounded: the true one is up to a unit above."""
    return Printed(time.value + time.half_step, 2 * time.half_step)


FORMAT = Format(
    name="gloo",
    title="gloo's own benchmark",
    recognises=_recognises,
    read=_read,
)
