"""DeepSpeed's comms logger: a line a call (`verbose`), and the summary (`log_summary`).

    ... | comm op: all_reduce | time (ms): 9.46 | msg size: 678.86 MB | algbw (Gbps): 1204.52  | busbw (Gbps): 1129.23
    Comm. Op    Message Size    Count    Total Latency(ms)   Avg Latency(ms)   tput_avg (Gbps)   busbw_avg (Gbps)
    broadcast
                2.0 KB          146      11.12               0.08              0.43              0.41

Definitions (deepspeed/utils/comms_logging.py): calls of a training program, timed on rank 0, the wait for the others
included; the summary's averages are means without the outermost 10 %. `KB` is 1024 bytes. Three generations of algbw:
the first (2022) gives every operation all_reduce's formulas, 2 x size / time, and (n-1)/n of it as busbw, its size
being the whole message; then all_reduce alone is doubled, and all_gather's and reduce_scatter's sizes are multiplied by
n; then all_gather's alone. In these two the size is that of the argument `tensor`: one rank's share for all_gather,
gather and scatter, and the whole for reduce_scatter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from collbench.collectives import COLLECTIVES
from collbench.importers.derived import GBPS_PER_GBITPS, agree, quotient, ranks_of_share, whole
from collbench.importers.ds_bench import printed_size
from collbench.importers.source import Log
from collbench.importers.table import Format, Printed, Refusal, Row, Table
from collbench.importers.words import collective_named

_LONGEST_LINE = 600
_CALL = re.compile(
    r"comm op: (\w{2,48})(?: ?[^|]{0,120})?\| time \(ms\): ([0-9.]{1,24}) ?"
    r"\| msg size: ([0-9.]{1,16}) ?([KMGTPEZY]?B) ?"
    r"\| algbw \(Gbps\): ([0-9.]{1,24}) {0,2}\| busbw \(Gbps\): ([0-9.]{1,24})"
)
_RANK = re.compile(r"rank=([0-9]{1,7})\b")
_HEADER = re.compile(r"\s*Comm\. Op\s{1,40}Message Size\s{1,40}Count\s{1,40}(Total Latency|Total comm lat)\(ms\)")
_OPERATION = re.compile(r"\s{0,4}([a-z]\w{2,48})(?: ?\| ?.{0,80})?\s*\Z")


@dataclass(frozen=True, slots=True)
class _Line:
    """What one line says of one operation and size."""

    line: int
    operation: str
    size: Printed
    time_us: Printed
    algbw_GBps: Printed
    busbw_GBps: Printed
    count: int | None = None
    rank: int | None = None


def _recognises(log: Log) -> bool:
    return log.holds("| comm op: ", "Comm. Op", "comm op: ")


def _read(log: Log) -> Iterator[Table | Refusal]:
    calls: list[_Line] = []
    summary: list[_Line] = []
    refusals: list[Refusal] = []
    operation: str | None = None
    is_summary = False
    for number, _, line in log.pieces(without_nccl=True):
        if len(line) > _LONGEST_LINE:
            continue
        outcome: _Line | Refusal | None
        if "comm op: " in line:
            outcome = _call(number, line)
        elif (header := _HEADER.match(line)) is not None:
            is_summary, operation = header[1] == "Total Latency", None
            if not is_summary:  # the same calls again, divided into communication and waiting
                refusals.append(Refusal(number, "the breakdown by stragglers says again what the summary says"))
            continue
        elif is_summary and (name := _OPERATION.match(line)) is not None:
            operation = name[1]
            continue
        elif is_summary and operation is not None:
            outcome = _summed(number, line.split(), operation)
        else:
            continue
        if isinstance(outcome, Refusal):
            refusals.append(outcome)
        elif outcome is not None:
            (calls if outcome.count is None else summary).append(outcome)
    for lines, what in ((calls, "single calls"), (summary, "means without the outermost 10 % of the calls")):
        if lines:
            yield from _tables(lines, what)
    yield from refusals


def _call(number: int, line: str) -> _Line | Refusal:
    match = _CALL.search(line)
    if match is None:
        return Refusal(number, "a comms logger's line that is cut or of another layout")
    operation, *values = match.groups()
    rank = _RANK.search(line)
    return _line(number, operation, values, rank=int(rank[1]) if rank else None)


def _summed(number: int, cells: list[str], operation: str) -> _Line | Refusal | None:
    if not cells or Printed.read(cells[0].removesuffix("B")) is None:
        return None
    if cells[0] == "0B":
        cells = ["0", "B", *cells[1:]]
    if len(cells) != 7 or (calls := whole(cells[2])) is None:
        return Refusal(number, f"{len(cells)} cells: expected size, count, two latencies and two bandwidths")
    size, unit, _, _, *values = cells
    return _line(number, operation, [values[0], size, unit, *values[1:]], count=calls)


def _line(
    number: int, operation: str, values: list[str], count: int | None = None, rank: int | None = None
) -> _Line | Refusal:
    time, size_text, unit, algbw, busbw = values
    numbers = [Printed.read(text) for text in (time, algbw, busbw)]
    size = printed_size(size_text, unit)
    if size is None or any(value is None for value in numbers):
        return Refusal(number, "a time, size or bandwidth that is no number")
    time_ms, algbw_Gbps, busbw_Gbps = (value for value in numbers if value is not None)
    if time_ms.value <= 0:
        return Refusal(number, "a time of 0")
    return _Line(
        number,
        operation,
        size,
        time_ms.times(1e3),
        algbw_Gbps.times(GBPS_PER_GBITPS),
        busbw_Gbps.times(GBPS_PER_GBITPS),
        count,
        rank,
    )


# By what the printed algbw is more than size / time, in each generation; "n" stands for the ranks.
_FIRST = "algbw is twice size / time, for every operation"
_GENERATIONS: dict[str, dict[str, float | str]] = {
    _FIRST: dict.fromkeys(COLLECTIVES, 2.0),
    "all_reduce's algbw is twice size / time; all_gather's and reduce_scatter's sizes are multiplied by the ranks": {
        "all_reduce": 2.0,
        "all_gather_into_tensor": "n",
        "reduce_scatter_tensor": "n",
    },
    "all_reduce's algbw is twice size / time; all_gather's size is multiplied by the ranks": {
        "all_reduce": 2.0,
        "all_gather_into_tensor": "n",
    },
}


_PER_RANK = {
    "all_gather_into_tensor": "deepspeed_all_gather",
    "gather": "deepspeed_gather",
    "scatter": "deepspeed_scatter",
}


def _tables(lines: list[_Line], what: str) -> Iterator[Table | Refusal]:
    """A table an operation, in the order of the log."""
    by_operation: dict[str, list[_Line]] = {}
    for line in lines:
        by_operation.setdefault(line.operation, []).append(line)
    shares = [ratio for line in lines if (ratio := _share(line)) is not None]
    nranks = ranks_of_share(shares) if shares else None
    generation = _generation(lines, nranks)
    for operation, of_operation in by_operation.items():
        collective = collective_named(operation)
        if operation == "inference_all_reduce":
            collective = "all_reduce"
        if collective is None:
            numbers = ", ".join(str(line.line) for line in of_operation[:5])
            yield Refusal(
                of_operation[0].line, f"{operation} is no collective that is known here (lines {numbers} ...)"
            )
            continue
        table = Table(
            format=FORMAT.name,
            line=of_operation[0].line,
            timing="isolated",
            collective=collective,
            nranks=nranks,
            per_rank_name=None if generation == _FIRST else _PER_RANK.get(collective),
            notes=[
                f"{what} of a training program on one rank, its wait for the others included",
                "sizes are rounded to the two decimals printed",
            ],
            more={"operation": operation},
        )
        if nranks is not None:
            table.inferred["nranks"] = "busbw / algbw"
        if generation is not None:
            table.notes.append(generation)
        for line in of_operation:
            outcome = _row(line, collective, nranks, generation)
            if isinstance(outcome, Row):
                table.rows.append(outcome)
            else:
                yield outcome
        if table.rows:
            yield table


def _share(line: _Line) -> Printed | None:
    """busbw / algbw as printed, where it tells the ranks: (n-1)/n in every generation, where it is not 1."""
    ratio = quotient(line.busbw_GBps, line.algbw_GBps)
    return ratio if ratio is not None and ratio.value + ratio.half_step < 1 else None


def _factor(collective: str | None, generation: str, nranks: int | None) -> float | None:
    """algbw as printed over size / time; None where it takes ranks that are unknown."""
    factor = _GENERATIONS[generation].get(collective or "", 1.0)
    if isinstance(factor, float):
        return factor
    return None if nranks is None else float(nranks)


def _fits(line: _Line, generation: str, nranks: int | None) -> bool | None:
    """Whether a line is of this generation; None where that cannot be told.

    A summary's algbw is the mean of its calls' rates, never below the rate of their mean time.
    """
    factor = _factor(collective_named(line.operation), generation, nranks)
    rate = quotient(line.size.times(1e-3), line.time_us)
    if factor is None or rate is None:
        return None
    expected = rate.times(factor)
    if agree(expected, line.algbw_GBps):
        return True
    return None if (line.count or 1) > 1 and line.algbw_GBps.value > expected.value else False


def _generation(lines: list[_Line], nranks: int | None) -> str | None:
    """The one that most lines are of; None where no line tells."""
    votes = {generation: [_fits(line, generation, nranks) for line in lines] for generation in _GENERATIONS}
    best = max(votes, key=lambda generation: (votes[generation].count(True), -votes[generation].count(False)))
    return best if any(votes[best]) else None


def _row(line: _Line, collective: str, nranks: int | None, generation: str | None) -> Row | Refusal:
    """Its bandwidths are checked here, by DeepSpeed's formulas, and not handed on: the size is a rounded one."""
    possible = [generation] if generation is not None else list(_GENERATIONS)
    if all(_fits(line, each, nranks) is False for each in possible):
        rate = quotient(line.size.times(1e-3), line.time_us)
        said = "no rate" if rate is None else f"{rate.value / GBPS_PER_GBITPS:.2f} Gbps or twice that"
        return Refusal(
            line.line,
            f"algbw {line.algbw_GBps.value / GBPS_PER_GBITPS:g} Gbps is not DeepSpeed's of this size and time: {said}",
        )
    more: dict[str, object] = {}
    if line.count is not None:
        more["iterations"] = line.count
    if line.rank is not None:
        more["rank"] = line.rank
    return Row(
        line=line.line,
        size_bytes=round(line.size.value),
        time_us=line.time_us,
        redop="sum" if COLLECTIVES[collective].reduces else None,
        more=more,
    )


FORMAT = Format(
    name="deepspeed",
    title="DeepSpeed's comms logger: calls and summary",
    recognises=_recognises,
    read=_read,
)
