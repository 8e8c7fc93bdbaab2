"""The table nccl-tests prints, made from records: the same widths, digits and comment lines as a stated generation.

Existing parsers read either half of a row, so neither is left empty: where torch has one form of a collective, both
halves are passes of that form, which a comment line before the header says. With several groups of one kind a row is
that of the slowest group, but for #wrong, which is that of all. Parsers also forbid some words below the header: no
line there may contain the name of the left half, nor both `time` and `busbw`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from collbench.collectives import COLLECTIVES, bandwidths_GBps
from collbench.dtypes import DTYPES
from collbench.nccl_style import BANDWIDTH_WIDTH, TIME_WIDTH, Generation, TableStyle
from collbench.results import Record

Row = tuple[list[Record], list[Record]]  # the records of the left and the right half, one a group

DEFAULT = TableStyle()

_TABLE = ("collective", "group", "timing", "concurrent", "mode")
_ROWS = ("dtype", "redop", "root")  # nccl-tests has these in one table; collbench's own begins another
_AVERAGES = {0: "of the group's first rank", 2: "of the fastest rank", 3: "of the slowest rank"}


@dataclass(frozen=True, slots=True)
class Figures:
    """What one half of a row says; None where the records do not know it.

    wrong: wrong elements in all groups.  per_iter: the record's own, of the iterations one by one.
    """

    time_us: float | None
    algbw_GBps: float | None
    busbw_GBps: float | None
    wrong: int | None
    per_iter: Mapping[str, Any] | None


def figures(half: list[Record], style: TableStyle = DEFAULT) -> Figures:
    """The figures of a half: those of its slowest group, by the average that was asked for (-a)."""
    record = slowest(half)
    time_us, bandwidths = record["time_us"], (record["algbw_GBps"], record["busbw_GBps"])
    if style.average != 1 and record["timing"] == "pipelined":
        time_us, bandwidths = record.get(style.time_field), (None, None)
        if time_us and record.get("nranks"):
            collective = COLLECTIVES[record["collective"]]
            bandwidths = bandwidths_GBps(collective, record["size_bytes"], time_us, record["nranks"])
    wrong = [each["wrong"] for each in half if each.get("wrong") is not None]
    return Figures(
        record.get("cpu_time_us") if style.cpu_time else time_us,
        *bandwidths,
        sum(wrong) if len(wrong) == len(half) else None,
        record.get("per_iter") if style.per_iter else None,
    )


def row(halves: Row, style: TableStyle = DEFAULT) -> str:
    """One line of the table; 13 tokens, but for what the style adds (hypercube: 12, its operator is empty)."""
    left, right = (slowest(half) for half in halves)
    size, count, dtype, redop, root = first_columns(left)
    line = f"{size:12d}  {count:12d}  {dtype:>8s}  {redop:>6s}  {root:>6s}"
    shown = [figures(half, style) for half in halves]
    if style.plain and not COLLECTIVES[left["collective"]].in_place and not shown[1].wrong:
        shown[1] = replace(shown[1], wrong=None)  # nccl-tests checks no data of a form that does not exist
    line += "".join(_half(each, style) for each in shown)
    return f"{line}{local_time(right.get('measured')) or 'N/A':>21s}" if style.timestamps else line


def first_columns(record: Record) -> tuple[int, int, str, str, str]:
    """(size, count, type, redop, root) of a row, as nccl-tests writes them."""
    redop = record.get("redop") or COLLECTIVES[record["collective"]].table_redop
    root = -1 if record.get("root") is None else record["root"]
    return record["size_bytes"], record["count"], DTYPES[record["dtype"]].nccl_name, redop, f"{root:6d}"


def slowest(half: list[Record]) -> Record:
    """The record of the group that took longest."""
    return max(half, key=lambda record: record["time_us"])


def local_time(moment: object) -> str | None:
    """An ISO moment as nccl-tests writes one: local time, no zone; None for what is none."""
    try:
        return datetime.fromisoformat(str(moment)).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return None


def _half(values: Figures, style: TableStyle) -> str:
    number = style.generation.number
    widths = (TIME_WIDTH, BANDWIDTH_WIDTH, BANDWIDTH_WIDTH)
    known = (values.time_us, values.algbw_GBps, values.busbw_GBps)
    texts = [f"{_number(number, value, width):>{width}s}" for value, width in zip(known, widths, strict=True)]
    # An unchecked half is 5 wide in every generation.
    texts.append("  N/A" if values.wrong is None else f"{values.wrong:{style.generation.wrong_width}g}")
    if style.per_iter:
        shown = ("min_us", "max_us", "p99_us", "cv_pct")
        iterations = values.per_iter or {}
        texts += [f"{_number(number, iterations.get(name), TIME_WIDTH):>{TIME_WIDTH}s}" for name in shown]
    return "".join(f"  {text}" for text in texts)


def _number(number: Callable[[float, int], str], value: float | None, width: int) -> str:
    return "N/A" if value is None else number(value, width)


# --- above and below the rows ---------------------------------------------------------------------------------------


def head(run: Record, record: Record, style: TableStyle = DEFAULT) -> list[str]:
    """The lines above the rows of the table that `record` belongs to."""
    collective, generation, sweep = COLLECTIVES[record["collective"]], style.generation, run.get("sweep") or {}
    step, unit = step_of(sweep)
    graph = f"graph: {sweep.get('cudagraph') or 0}"
    lines = [f"# Collective test starting: {collective.program}"] if generation.names_program else []
    lines.append(
        f"# nThread 1 nGpus 1 minBytes {sweep.get('minbytes') or 0} maxBytes {sweep.get('maxbytes') or 0} "
        f"step: {step}({unit}) warmup iters: {sweep.get('warmup_iters') or 0} iters: {sweep.get('iters') or 0} "
        f"agg iters: {sweep.get('agg_iters') or 1} validation: {sweep.get('check') or 0} {graph}"
        + (f" unalign: {sweep.get('unalign') or 0}" if generation.says_unalign else "")
    )
    lines += _modes(run, sweep, style)
    if not style.plain:
        groups = (run.get("groups") or {}).get(record.get("group")) or ()
        lines += _remarks(record, sweep, len(groups), style)
    return [*lines, "#", "# Using devices", *_devices(run, record.get("group"), generation), "#", *_columns(style)]


def step_of(sweep: Mapping[str, Any]) -> tuple[int, str]:
    """(step, its unit "factor" or "bytes")."""
    factor = sweep.get("stepfactor") or 2
    return (factor, "factor") if factor > 1 else (sweep.get("stepbytes") or 0, "bytes")


def _modes(run: Record, sweep: Mapping[str, Any], style: TableStyle) -> Iterator[str]:
    blocking = sweep.get("blocking") or 0
    if blocking:
        yield f"# Blocking Enabled: {style.generation.blocking[blocking - 1]} "
    if style.per_iter:
        clock = "CUDA event" if run.get("backend") == "nccl" else "host clock"
        skip = sweep.get("per_iter_skip") or 0
        skipped = f"; summary skips first {skip} iterations" if skip else ""
        yield f"# Per-Iteration Report: {clock} timing; i_* uses max over process rows{skipped} "


def _remarks(record: Record, sweep: Mapping[str, Any], groups: int, style: TableStyle) -> Iterator[str]:
    collective = COLLECTIVES[record["collective"]]
    sweep_pass = pass_of(record)
    what = [collective.name, f"group {record.get('group') or '?'}", f"{record.get('nranks') or '?'} ranks"]
    what.append(record["timing"])
    if sweep_pass or (sweep.get("passes") or 1) > 1:
        what.append(f"pass {sweep_pass + 1}")
    if record.get("concurrent") is False:
        what.append("one group at a time")
    if record.get("mode"):
        what.append(record["mode"])
    yield f"# collbench {', '.join(what)}"
    if groups > 1:
        yield f"# collbench: {groups} groups: each row is the slowest one's; 'collbench show' has a row for each"
    if sweep.get("precision"):
        yield f"# collbench: iterations until the median is known to {100 * sweep['precision']:g} %"
    if record["timing"] == "pipelined" and style.average in _AVERAGES:
        yield f"# collbench: times and bandwidths are those {_AVERAGES[style.average]}"
    if not collective.out_of_place:
        yield "# collbench: torch runs this collective in place only, so both halves are passes in place"
    elif not collective.in_place:
        yield "# collbench: torch runs this collective between two buffers only, so both halves are passes of that form"


def _devices(run: Record, group: str | None, generation: Generation) -> Iterator[str]:
    for device in devices(run, group):
        yield generation.device.format(**device)


def devices(run: Record, group: str | None) -> Iterator[dict[str, Any]]:
    """rank, group, pid, host, device and name of every rank that is in a group of this kind."""
    group_of: dict[int, int] = {}
    for index, ranks in enumerate((run.get("groups") or {}).get(group, [])):
        for rank in ranks:
            group_of.setdefault(rank, index)
    for node in run.get("nodes") or []:
        pids = node.get("pids") or [0] * len(node["ranks"])
        for local, (rank, name, pid) in enumerate(zip(node["ranks"], node["devices"], pids, strict=False)):
            if rank in group_of:
                of_rank = {"rank": rank, "group": group_of[rank], "pid": pid, "host": node["host"]}
                yield {**of_rank, "device": local, "name": name}


def _columns(style: TableStyle) -> list[str]:
    """The three header lines."""
    generation = style.generation
    more = style.per_iter
    names = f"  {'cputime' if style.cpu_time else 'time':>7}   algbw   busbw{generation.wrong_gap}#wrong"
    units = f"     (us)  (GB/s)  (GB/s)  {'':{generation.wrong_unit_width}}"
    if more:
        names += "    i_min    i_max    i_p99    i_cv%"
        units += "     (us)     (us)     (us)      (%)"
    name, unit = ("timestamp", "%Y-%m-%d %H:%M:%S") if style.timestamps else ("", "")
    if generation.tail_widths is not None:
        width = generation.tail_widths[style.timestamps]
        name, unit = f" {name:>{width}}", f" {unit:>{width}}"
    above = f"#{'out-of-place':>74}{'in-place':>31}          "
    if more:
        above = f"#{'out-of-place (+ per-iteration)':>95}{'in-place (+ per-iteration)':>58}"
    return [
        above,
        f"#       size         count      type   redop    root{names}{names}{name}",
        f"#        (B)    (elements)                          {units}{units}{unit}",
    ]


def foot(rows: list[Row], style: TableStyle = DEFAULT, memory: Mapping[str, Any] | None = None) -> list[str]:
    """The lines below the rows. The mean over all half-rows is nccl-tests' own; it is no measure of anything.

    memory: the end record's `memory_bytes`, for -M.
    """
    generation = style.generation
    program = COLLECTIVES[rows[0][0][0]["collective"]].program if rows else ""
    failed = failed_checks(rows)
    lines = [
        f"# Out of bounds values : {failed} {'FAILED' if failed else 'OK'}",
        f"# Avg bus bandwidth    : {mean_busbw_GBps(rows, style):g} ",
        "#",
    ]
    if generation.names_program:
        lines.append(f"# Collective test concluded: {program}")
    if style.memory and memory is not None:
        lines.append(_memory(memory))
    if style.plain:
        lines += ["#"] * generation.has_last_comment + [""] * generation.has_error_line
    return lines


def failed_checks(rows: list[Row]) -> int:
    """How many checks found wrong data."""
    return sum(bool(record.get("wrong")) for row_ in rows for half in row_ for record in half)


def mean_busbw_GBps(rows: list[Row], style: TableStyle = DEFAULT) -> float:
    """nccl-tests' average over all half-rows; 0 where there is none."""
    known = [value for row_ in rows for half in row_ if (value := figures(half, style).busbw_GBps) is not None]
    return sum(known) / len(known) if known else 0.0


def _memory(memory: Mapping[str, Any]) -> str:
    parts = {"Initialization": "initialization", "User-Allocated": "user_allocated", "Collective": "collective"}
    texts = [f"{title} {_amount(memory.get(name))} " for title, name in parts.items()]
    return f"# GPU memory usage     : {'| '.join(texts)}| Total  {_amount(memory.get('total'))}"


def _amount(size_bytes: float | None) -> str:
    """In powers of 1024, under the names nccl-tests gives them, with about three digits."""
    if size_bytes is None:
        return "N/A"
    powers = ((3, "GB"), (2, "MB"), (1, "KB"), (0, "B"))
    power, unit = next(each for each in powers if abs(size_bytes) >= 1024 ** each[0] or not each[0])
    amount = size_bytes / 1024**power
    decimals = 2 if abs(amount) < 10 else 1 if abs(amount) < 100 else 0
    return f"{amount:.{decimals}f} {unit}"


# --- whole tables ---------------------------------------------------------------------------------------------------


def pass_of(record: Record) -> int:
    """Which pass over the sweep a record is of."""
    return _pass_and_half(record)[0]


def is_left(record: Record) -> bool:
    """Whether a record fills the left half: out of place, or the first of two passes of the one form."""
    return _pass_and_half(record)[1] == 0


def _pass_and_half(record: Record) -> tuple[int, int]:
    number, collective = record.get("pass") or 0, COLLECTIVES.get(record["collective"])
    return (number, 0) if collective is None else collective.half_of(bool(record.get("in_place")), number)


def table_key(record: Record, style: TableStyle = DEFAULT) -> tuple[Any, ...]:
    """Records of one table: equal in all that its header says. A row begun by a killed run is ended by the next."""
    names = _TABLE if style.plain else (*_TABLE, *_ROWS)
    return (pass_of(record), *(record.get(name) for name in names))


def has_columns(record: Record) -> bool:
    """Whether a record knows all that a row says; one made from another tool's log may not."""
    known = record["collective"] in COLLECTIVES and record.get("dtype") in DTYPES
    return known and all(record.get(name) is not None for name in ("in_place", "count", "algbw_GBps", "busbw_GBps"))


def shown_timing(records: Iterable[Record]) -> str:
    """The regime a table of these records shows: pipelined, which is nccl-tests', where there is any."""
    return "pipelined" if any(record["timing"] == "pipelined" for record in records) else "isolated"


class Printer:
    """Writes tables row by row: the head when a table begins, the foot when it ends.

    aside: where comments go that a plain table must not hold; they are dropped without it.
    """

    def __init__(
        self,
        run: Record,
        write: Callable[[str], object],
        style: TableStyle = DEFAULT,
        aside: Callable[[str], object] | None = None,
    ) -> None:
        self._run, self._write, self._style, self._aside = run, write, style, aside
        self._key: tuple[Any, ...] | None = None
        self._rows: list[Row] = []

    def add(self, row_: Row) -> None:
        key = table_key(row_[0][0], self._style)
        if key != self._key:
            self.close()
            self._key = key
            self._lines(head(self._run, row_[0][0], self._style))
        times = row_[0][0].get("requests", 1)  # nccl-tests' rows: one for each size that was asked for
        self._rows += [row_] * times
        self._lines([row(row_, self._style)] * times)

    def comment(self, text: str) -> None:
        if not self._style.plain:
            self._lines([f"# {text}"])
        elif self._aside is not None:
            self._aside(f"{text}\n")

    def close(self, memory: Mapping[str, Any] | None = None) -> None:
        """End the table that is open, if one is. memory: as for `foot`."""
        if self._key is not None:
            self._lines(foot(self._rows, self._style, memory))
        self._key, self._rows = None, []

    def _lines(self, lines: Iterable[str]) -> None:
        self._write("".join(f"{line}\n" for line in lines))


def rows_of(records: list[Record], run: Record | None = None) -> Iterator[Row]:
    """The complete rows that records with all columns make; the last of repeated measurements counts.

    In nccl-tests' order: table by table, in each by size; the tables in the order of the run's sweep, or as they came.
    """
    rows: dict[tuple[Any, ...], tuple[dict[Any, Record], dict[Any, Record]]] = {}
    for record in records:
        halves = rows.setdefault((*table_key(record), record["size_bytes"]), ({}, {}))
        halves[0 if is_left(record) else 1][tuple(record.get("group_ranks") or ())] = record
    whole = [(list(left.values()), list(right.values())) for left, right in rows.values() if left and right]
    place = places([left[0] for left, _ in whole], run)
    yield from sorted(whole, key=lambda row_: place(row_[0][0]))


def places(records: list[Record], run: Record | None = None) -> Callable[[Record], tuple[int, ...]]:
    """Where each of these records stands: by pass, in the order of the run's sweep, and of what that does not name as
    it came, by size. They may have been measured in any order."""
    run = run or {}
    sweep = run.get("sweep") or {}
    known = {
        "collective": sweep.get("collective"),
        "group": run.get("groups"),
        "timing": sweep.get("timing"),
        "concurrent": (True, False),
        "mode": None,
        "dtype": sweep.get("datatype"),
        "redop": sweep.get("redop"),
        "root": sorted(record["root"] for record in records if record.get("root") is not None),
    }
    numbers = {
        name: _numbered([*(words or ()), *(record.get(name) for record in records)]) for name, words in known.items()
    }

    def place(record: Record) -> tuple[int, ...]:
        in_table = (number[record.get(name)] for name, number in numbers.items())
        return (pass_of(record), *in_table, record["size_bytes"])

    return place


def _numbered(words: list[Any]) -> dict[Any, int]:
    return {word: number for number, word in enumerate(dict.fromkeys(words))}
