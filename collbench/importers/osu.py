"""OSU micro-benchmarks (osu_allreduce, osu_bw ...): titles, headers, columns of numbers.

Definitions (OSU 3 to 7, c/mpi): a collective is timed call by call with a barrier after each; a rank's figure is the
mean of its calls, and `Avg Latency` the mean over the ranks. Sizes are one rank's: its contribution (allgather,
gather), what it sends to each other rank (alltoall, scatter), its whole vector (allreduce, reduce, bcast, and
reduce_scatter). `osu_latency` is half a ping-pong. `osu_bw`, `osu_bibw` and `osu_mbw_mr` keep a window of messages (64)
in flight; MB is 10^6 bytes, and bibw and mbw_mr sum up both directions and all pairs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from collbench.dtypes import DTYPES
from collbench.importers.derived import MOST_BYTES, time_us, whole
from collbench.importers.osu_ranks import Ranks
from collbench.importers.source import Log
from collbench.importers.table import Format, Printed, Refusal, Row, Table
from collbench.importers.words import dtype_named

_LONGEST_LINE = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class _Test:
    """One program of the suite. collective: what it is here; its own name where nothing here is the same.

    messages: how many messages of `size` pass in the time of one at the printed bandwidth, of one pair.
    """

    program: str
    collective: str
    per_rank: bool = False
    reduces: bool = False
    pairs: bool = False
    messages: int = 1
    mode: str | None = None
    note: str | None = None


_WINDOW = "a window of messages in flight at once: small sizes show the rate of messages, not the time of one"
# By what stands between the library and `Test` in the title, in lower case.
_TESTS = {
    "allreduce latency": _Test(program="osu_allreduce", collective="all_reduce", reduces=True),
    "allgather latency": _Test(program="osu_allgather", collective="all_gather_into_tensor", per_rank=True),
    "all-to-all personalized exchange latency": _Test(
        program="osu_alltoall", collective="all_to_all_single", per_rank=True
    ),
    "broadcast latency": _Test(program="osu_bcast", collective="broadcast"),
    "reduce_scatter latency": _Test(program="osu_reduce_scatter", collective="reduce_scatter_tensor", reduces=True),
    "reduce latency": _Test(program="osu_reduce", collective="reduce", reduces=True),
    "gather latency": _Test(program="osu_gather", collective="gather", per_rank=True),
    "scatter latency": _Test(program="osu_scatter", collective="scatter", per_rank=True),
    "latency": _Test(
        program="osu_latency", collective="osu_latency", pairs=True, note="half a ping-pong: one message, one way"
    ),
    "bandwidth": _Test(program="osu_bw", collective="osu_bw", pairs=True, mode="window", note=f"one way, {_WINDOW}"),
    "bi-directional bandwidth": _Test(
        program="osu_bibw",
        collective="send_recv",
        pairs=True,
        messages=2,
        mode="window",
        note=f"MB/s is the sum of both directions, halved here as nccl-tests counts; {_WINDOW}",
    ),
    "multiple bandwidth / message rate": _Test(
        program="osu_mbw_mr",
        collective="osu_mbw_mr",
        pairs=True,
        mode="window",
        note=f"one way, MB/s is the sum over the pairs, here one pair's; {_WINDOW}",
    ),
}
_TESTS["all-to-all latency"] = _TESTS["all-to-all personalized exchange latency"]
_BY_PROGRAM = {test.program: test for test in _TESTS.values()}

_TITLE = re.compile(
    r"\s*#?\s*OSU (?:(MPI|NCCL|RCCL|XCCL)(?:-\w{2,12})? )?(.{3,80}?) (?:Test|Benchmark)(?: v([0-9][\w.]{0,12}))?\s*\Z"
)
_PROGRAM = re.compile(r"\bosu_[a-z_]{2,24}\b")
_PAIRS = re.compile(r"\[ ?pairs: ?([0-9]{1,6}) ?\]")
_DATATYPE = re.compile(r"\s*#?\s*Datatype: MPI_(\w{2,16})\.?\s*\Z")
_HEADER = re.compile(r"\s*#?\s*Size\s")
_COLUMN = re.compile(
    r"(?:avg |min |max )?(?:latency|lat) ?\(us\)|bandwidth ?\(mb/s\)"
    r"|(?:p[0-9]{1,2}|p[0-9][0-9]\.[0-9]) tail (?:lat|bw) ?\((?:us|mb/s)\)"
    r"|mb/s|messages/s|size|iterations|validation"
)


@dataclass(slots=True)
class _Head:
    """What stood above a header since the last table."""

    line: int = 0
    test: _Test | None = None
    refused: str | None = None
    library: str | None = None
    version: str | None = None
    title: str = ""
    dtype: str | None = None
    pairs: int | None = None
    columns: list[str] = field(default_factory=list)


def _recognises(log: Log) -> bool:
    return log.holds("OSU MPI", "OSU NCCL", "OSU RCCL", "# OSU ", "Avg Latency(us)", "osu_")


def _read(log: Log) -> Iterator[Table | Refusal]:
    tables: list[Table] = []
    found: list[Table | Refusal] = []
    ranks = Ranks()
    head = _Head()
    table: Table | None = None
    program: str | None = None
    for number, _, line in log.pieces(without_nccl=True):
        if len(line) > _LONGEST_LINE:
            ranks.read_long(line)
            continue
        ranks.read(number, line)
        if "OSU " in line and (title := _TITLE.match(line)):
            head, table = _titled(number, title), None
        elif _HEADER.match(line):
            if head.columns:  # a table without its title
                head = _Head(line=number)
            if head.test is None and head.refused is None:
                head.line, head.test = head.line or number, _BY_PROGRAM.get(program or "")
            head.columns = _columns(line)
            table = None
            problem = _problem(head)
            if problem is not None:
                found.append(Refusal(number, problem))
            elif head.columns:
                table = _table(head)
                ranks.tell(table, (head.pairs or 1) if head.test is not None and head.test.pairs else None)
                tables.append(table)
                found.append(table)
        elif table is not None and (cells := line.split()) and whole(cells[0]) is not None:
            outcome = _row(number, cells, head, table)
            if isinstance(outcome, Row):
                table.rows.append(outcome)
            elif outcome is not None:
                found.append(outcome)
        elif "osu_" in line and (named := _PROGRAM.search(line)):
            program = named[0]
        elif not head.columns:
            _read_preamble(line, head)
    for each in tables:
        ranks.tell_late(each)
    yield from (each for each in found if isinstance(each, Refusal) or each.rows)


def _titled(number: int, title: re.Match[str]) -> _Head:
    library, name, version = title.groups()
    test = _TESTS.get(name.lower())
    words = " ".join(title[0].strip().removeprefix("#").split())
    refused = None if test is not None else f"'{words}' is none of the tests that are read ({', '.join(_BY_PROGRAM)})"
    return _Head(line=number, test=test, refused=refused, library=library, version=version, title=words)


def _columns(header: str) -> list[str]:
    """The columns of a header line, without their units; empty where it is none of this suite's."""
    text = " ".join(header.lower().replace("#", " ", 1).split())
    if _COLUMN.sub("", text).strip():
        return []
    return [match[0].split("(")[0].strip() for match in _COLUMN.finditer(text)]


_TIMES = ("avg latency", "latency")
_RATES = ("bandwidth", "mb/s")


def _problem(head: _Head) -> str | None:
    """Why the rows below this header are not read."""
    if head.refused is not None:
        return head.refused
    if not head.columns:
        return None
    if not any(name in head.columns for name in (*_TIMES, *_RATES)):
        return f"no column of times or bandwidths among {', '.join(head.columns)}"
    is_rate = any(name in head.columns for name in _RATES)
    if is_rate and (head.test is None or not head.test.mode):
        return "bandwidths under no title that says of what: osu_bw and osu_bibw look the same"
    if head.test is not None and head.test.mode and not is_rate:
        return f"{head.test.program} prints bandwidths, and this is a table of times"
    return None


def _read_preamble(line: str, head: _Head) -> None:
    if match := _DATATYPE.match(line):
        head.dtype = dtype_named(match[1])
    if match := _PAIRS.search(line):
        head.pairs = int(match[1]) or None


def _table(head: _Head) -> Table:
    test = head.test
    table = Table(
        format=FORMAT.name,
        line=head.line,
        timing="pipelined" if test is not None and test.mode else "isolated",
        backend=(head.library or "mpi").lower(),
        versions={"osu": head.version} if head.version else {},
        more={"title": head.title} if head.title else {},
    )
    if test is None:
        table.notes.append("no title says which collective this is")
        return table
    table.collective = test.collective
    table.is_point_to_point = test.pairs
    if test.per_rank:
        table.per_rank_name = test.program
    if test.note:
        table.notes.append(f"{test.program}: {test.note}")
    elif "avg latency" in head.columns:
        table.notes.append("time is the mean over the ranks, a barrier after each call")
    if test.reduces and head.dtype is None:
        table.inferred["dtype"] = "what this test reduces unless it says otherwise"
    return table


def _row(number: int, cells: list[str], head: _Head, table: Table) -> Row | Refusal | None:
    """One row; None for a line of something else that begins with a number."""
    columns = head.columns
    if len(cells) < 2 or Printed.read(cells[1]) is None:
        return None
    if len(cells) != len(columns):
        return Refusal(number, f"{len(cells)} cells under {len(columns)} columns ({', '.join(columns)})")
    size_bytes = int(cells[0])
    if size_bytes > MOST_BYTES:
        return Refusal(number, f"{size_bytes} bytes are more than any message")
    if table.rows and size_bytes <= table.rows[-1].size_bytes:
        return Refusal(number, f"size {size_bytes} is not above the row before it, as this suite's sizes are")
    values: dict[str, Printed] = {}
    for name, cell in zip(columns, cells, strict=True):
        value = Printed.read(cell)
        if value is None and name != "validation":
            return Refusal(number, f"{name} is {cell!r}: expected a number")
        if value is not None:
            values[name] = value
    test = head.test
    more: dict[str, object] = {} if test is None or test.mode is None else {"mode": test.mode}
    if any(name in values for name in _TIMES):
        time = next(values[name] for name in _TIMES if name in values)
        low, high = values.get("min latency"), values.get("max latency")
        if (low and low.value > time.value + time.half_step) or (high and high.value < time.value - time.half_step):
            return Refusal(number, f"the mean {time.value:g} us is not between its least and its largest")
    else:
        rate = next(values[name] for name in _RATES if name in values)
        if "messages/s" in values and not _is_rate_of(rate, values["messages/s"], size_bytes):
            return Refusal(
                number, f"{rate.value:g} MB/s are not {values['messages/s'].value:g} messages/s of this size"
            )
        pairs = head.pairs or 1
        messages = 1 if test is None else test.messages
        derived = time_us(size_bytes * messages * pairs, rate.times(1e-3))
        if derived is None or size_bytes == 0:
            return Refusal(number, f"a bandwidth of {rate.value:g} MB/s for {size_bytes} bytes tells no time")
        time = derived
    if time.value <= 0:
        return Refusal(number, "a time of 0")
    for column, name in (("min latency", "time_rank_min_us"), ("max latency", "time_rank_max_us")):
        if column in values:
            more[name] = values[column].value
    if "iterations" in values:
        more["iterations"] = int(values["iterations"].value)
    wrong = None
    if "validation" in columns:
        verdict = cells[columns.index("validation")].lower()
        wrong = {"pass": 0, "fail": 1}.get(verdict)
        more["validation"] = verdict
    dtype = head.dtype or ("float32" if test is not None and test.reduces else None)
    is_whole = test is not None and not test.per_rank and test.collective in ("all_reduce", "broadcast", "reduce")
    itemsize = DTYPES[dtype].itemsize if dtype is not None else 0
    return Row(
        line=number,
        size_bytes=size_bytes,
        time_us=time,
        count=size_bytes // itemsize if is_whole and itemsize and size_bytes % itemsize == 0 else None,
        dtype=dtype,
        redop="sum" if test is not None and test.reduces else None,
        root=0 if test is not None and test.collective in ("broadcast", "reduce", "gather", "scatter") else None,
        wrong=wrong,
        more=more,
    )


def _is_rate_of(rate: Printed, messages: Printed, size_bytes: int) -> bool:
    """Whether MB/s is messages/s times size, within the digits of both."""
    expected = messages.times(size_bytes / 1e6)
    return abs(rate.value - expected.value) <= rate.half_step + expected.half_step + 1e-4 * expected.value


FORMAT = Format(
    name="osu",
    title="OSU micro-benchmarks: collectives, latency, bandwidth",
    recognises=_recognises,
    read=_read,
)
