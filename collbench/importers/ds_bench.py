"""DeepSpeed's `ds_bench` (DeepSpeedExamples benchmarks/communication), and tables of its rows with `--raw`.

    ---- Performance of all_reduce on 8 devices ----------
    Size (Bytes)   Description   Duration (us)   Throughput (Gbps)   BusBW (Gbps)
    1.0 GB         268435456x4   5.123 ms        3353.2              2934.1

Definitions (utils.py): trials back to back between two device events, rank 0's mean. `KB` is 1024 bytes; the
description is elements x bytes, so the exact size: one rank's input, for all_gather too. Throughput is size / time, of
all_gather with the sum of all inputs as its size, and of all_reduce twice that. BusBW is nccl-tests'.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from collbench.importers.derived import GBPS_PER_GBITPS, MOST_BYTES, ranks_in
from collbench.importers.source import Log
from collbench.importers.table import Format, Printed, Refusal, Row, Table

_LONGEST_LINE = 400
_TITLE = re.compile(r"-{2,80} ?Performance of (\w{2,32}) on ([0-9]{1,7}) devices\b")
_HEADER = re.compile(r"\s*Size \(Bytes\)\s{1,40}Description\s{1,40}Duration( \(us\))?\s")
_UNIT = re.compile(r"Throughput \((Gbps|GBps)\)\s{1,40}BusBW \((Gbps|GBps)\)")
_DESCRIPTION = re.compile(r"([0-9]{1,15})x([0-9]{1,2})\Z")

_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather_into_tensor",
    "alltoall": "all_to_all_single",
    "broadcast": "broadcast",
    "pt2pt": "ds_bench_pt2pt",  # rank 0 sends, rank 1 receives: no collective of nccl-tests
}
_THROUGHPUTS = {"all_reduce": 2.0}  # by what Throughput is more than algbw
_NOTES = {
    "all_reduce": "Throughput is 2 x size / time: halved here",
    "all_gather_into_tensor": "sizes are one rank's: multiplied by the ranks",
    "ds_bench_pt2pt": "one way, from rank 0 to rank 1",
}


def _recognises(log: Log) -> bool:
    return log.holds("Performance of ") and log.holds(" devices")


def _read(log: Log) -> Iterator[Table | Refusal]:
    table: Table | None = None
    found: list[Table | Refusal] = []
    factor, is_raw = GBPS_PER_GBITPS, False
    for number, _, line in log.pieces(without_nccl=True):
        if len(line) > _LONGEST_LINE:
            continue
        if "Performance of" in line and (title := _TITLE.search(line)):
            table = _table(number, title[1], ranks_in(title[2]))
            if table is None:
                found.append(Refusal(number, f"{title[1]!r} on {title[2]} devices is none of this benchmark's"))
            else:
                found.append(table)
            factor, is_raw = GBPS_PER_GBITPS, False
        elif (header := _HEADER.match(line)) is not None:
            is_raw = header[1] is not None
            unit = _UNIT.search(line)
            if unit is None or unit[1] != unit[2]:
                found.append(Refusal(number, "a header without the bandwidths' units (Gbps, GBps)"))
                table = None
            else:
                factor = 1.0 if unit[1] == "GBps" else GBPS_PER_GBITPS
        elif table is not None and "x" in line:
            outcome = _row(number, line.split(), table, factor, is_raw)
            if isinstance(outcome, Row):
                table.rows.append(outcome)
            elif outcome is not None:
                found.append(outcome)
    yield from (each for each in found if isinstance(each, Refusal) or each.rows)


def _table(number: int, operation: str, nranks: int | None) -> Table | None:
    collective = _COLLECTIVES.get(operation.replace("_", "").lower())
    if collective is None or nranks is None:
        return None
    table = Table(format=FORMAT.name, line=number, timing="pipelined", collective=collective, nranks=nranks)
    table.is_point_to_point = collective == "ds_bench_pt2pt"
    table.notes.append("times are rank 0's mean")
    if collective in _NOTES:
        table.notes.append(_NOTES[collective])
    return table


def _row(number: int, cells: list[str], table: Table, factor: float, is_raw: bool) -> Row | Refusal | None:
    """One row; None for a line of something else.

    A row is size (with its unit or without), description, duration (likewise), throughput, busbw.
    """
    where = next((place for place in (1, 2) if place < len(cells) and _DESCRIPTION.match(cells[place])), None)
    if where is None or Printed.read(cells[0].removesuffix("B")) is None:
        return None
    description = _DESCRIPTION.match(cells[where])
    assert description is not None
    elements, itemsize = map(int, description.groups())
    size_bytes = elements * itemsize
    rest = cells[where + 1 :]
    has_unit = len(rest) == 4
    if len(rest) not in (3, 4) or has_unit == is_raw:
        return Refusal(number, f"{len(cells)} cells: expected size, description, duration, throughput, busbw")
    if size_bytes > MOST_BYTES:
        return Refusal(number, f"{size_bytes} bytes are more than any message")
    if not _is_size(cells[:where], size_bytes):
        return Refusal(number, f"size {' '.join(cells[:where])} is not {cells[where]} = {size_bytes} bytes")
    scale = {"us": 1.0, "ms": 1e3}.get(rest[1]) if has_unit else 1.0
    duration, throughput, busbw = Printed.read(rest[0]), Printed.read(rest[-2]), Printed.read(rest[-1])
    if scale is None or duration is None or throughput is None or busbw is None:
        return Refusal(number, f"{' '.join(rest)!r}: expected a duration in us or ms and two bandwidths")
    if duration.value <= 0:
        return Refusal(number, "a duration of 0")
    is_collective = table.collective != "ds_bench_pt2pt"
    is_divided = table.collective in ("all_gather_into_tensor", "all_to_all_single")
    algbw_GBps = throughput.times(factor / _THROUGHPUTS.get(table.collective or "", 1.0))
    return Row(
        line=number,
        size_bytes=size_bytes * (table.nranks or 1) if table.collective == "all_gather_into_tensor" else size_bytes,
        time_us=duration.times(scale),
        count=None if is_divided else elements,
        redop="sum" if table.collective == "all_reduce" else None,
        root=0 if table.collective == "broadcast" else None,
        algbw_GBps=algbw_GBps if is_collective else None,
        busbw_GBps=busbw.times(factor) if is_collective else None,
    )


_POWERS = {"B": 0, "KB": 1, "MB": 2, "GB": 3, "TB": 4}


def printed_size(number: str, unit: str) -> Printed | None:
    """Bytes of `98.25`, `MB` as DeepSpeed writes them: powers of 1024, two decimals; None for anything else."""
    value, power = Printed.read(number), _POWERS.get(unit)
    if value is None or power is None or value.value < 0:
        return None
    size = Printed(value.value, 0.0 if power == 0 else 0.005).times(1024.0**power)
    return size if size.value <= MOST_BYTES else None


def _is_size(cells: list[str], size_bytes: int) -> bool:
    if len(cells) == 1:
        return cells[0] == str(size_bytes) or (cells[0] == "0B" and size_bytes == 0)
    size = printed_size(*cells)
    return size is not None and abs(size.value - size_bytes) <= size.half_step + 0.5


FORMAT = Format(
    name="ds-bench",
    title="DeepSpeed's communication benchmark (ds_bench)",
    recognises=_recognises,
    read=_read,
)
