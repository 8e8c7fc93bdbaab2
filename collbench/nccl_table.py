"""The table nccl-tests prints, made from records: the same widths, digits and comment lines (v2.19.6, `src/util.cu`).

Existing parsers read either half of a row, so neither is left empty: where torch has no out-of-place form of a
collective, both halves are in-place passes, which a comment line before the header says. With several groups of one
kind a row is that of the slowest group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from collbench.collectives import COLLECTIVES
from collbench.dtypes import DTYPES
from collbench.results import Record

TIME_WIDTH, BANDWIDTH_WIDTH = 7, 6

_HALF = "    time   algbw   busbw  #wrong"
_UNITS = "    (us)  (GB/s)  (GB/s)        "
_COLUMNS = [
    f"#{'out-of-place':>74}{'in-place':>31}          ",
    "#       size         count      type   redop    root " + _HALF + " " + _HALF + " ",
    "#        (B)    (elements)                           " + _UNITS + " " + _UNITS + " ",
]

Row = tuple[list[Record], list[Record]]  # the records of the left and the right half, one a group


def number(value: float, width: int) -> str:
    """A figure as nccl-tests >= 2.19.6 writes it: the most decimals, of two, that fit the width; else an exponent."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:.1e}" if width >= TIME_WIDTH else f"{value:.0e}"


def row(halves: Row) -> str:
    """One line of the table; 13 tokens."""
    left, right = (slowest(half) for half in halves)
    root = -1 if left.get("root") is None else left["root"]
    columns = (
        left["size_bytes"],
        left["count"],
        DTYPES[left["dtype"]].nccl_name,
        left.get("redop") or "none",
        f"{root:6d}",
    )
    return "{:12d}  {:12d}  {:>8s}  {:>6s}  {:>6s}".format(*columns) + _half(left) + _half(right)


def slowest(half: list[Record]) -> Record:
    """The record of the group that took longest."""
    return max(half, key=lambda record: record["time_us"])


def _half(record: Record) -> str:
    figures = (
        number(record["time_us"], TIME_WIDTH),
        number(record["algbw_GBps"], BANDWIDTH_WIDTH),
        number(record["busbw_GBps"], BANDWIDTH_WIDTH),
    )
    wrong = "  N/A" if record.get("wrong") is None else f"{record['wrong']:6g}"
    return "  {:>7s}  {:>6s}  {:>6s}  ".format(*figures) + wrong


def head(run: Record, record: Record) -> list[str]:
    """The lines above the rows of the table that `record` belongs to."""
    collective, sweep = COLLECTIVES[record["collective"]], run.get("sweep") or {}
    step = sweep.get("stepfactor", 2)
    kind = "factor" if step > 1 else "bytes"
    lines = [
        f"# Collective test starting: {collective.program}",
        f"# nThread 1 nGpus 1 minBytes {sweep.get('minbytes', 0)} maxBytes {sweep.get('maxbytes', 0)} "
        f"step: {step if step > 1 else sweep.get('stepbytes', 0)}({kind}) "
        f"warmup iters: {sweep.get('warmup_iters', 0)} iters: {sweep.get('iters', 0)} agg iters: 1 "
        f"validation: {sweep.get('check', 0)} graph: 0 unalign: 0",
        f"# collbench {collective.name}, group {record.get('group') or '?'}, {record.get('nranks') or '?'} ranks, "
        f"{record['timing']}",
    ]
    if not collective.out_of_place:
        lines.append("# collbench: torch runs this collective in place only, so both halves are passes in place")
    return [*lines, "#", "# Using devices", *_devices(run, record.get("group")), "#", *_COLUMNS]


def _devices(run: Record, group: str | None) -> Iterator[str]:
    groups = (run.get("groups") or {}).get(group, [])
    group_of = {rank: index for index, ranks in enumerate(groups) for rank in ranks}
    for node in run.get("nodes", []):
        pids = node.get("pids") or [0] * len(node["ranks"])
        for local, (rank, device, pid) in enumerate(zip(node["ranks"], node["devices"], pids, strict=False)):
            if rank in group_of:
                yield (
                    f"#  Rank {rank:2d} Group {group_of[rank]:2d} Pid {pid:6d} on {node['host']:>10s} "
                    f"device {local:2d} [0000:00:00] {device}"
                )


def foot(rows: list[Row]) -> list[str]:
    """The lines below the rows. The mean over all half-rows is nccl-tests' own; it is no measure of anything."""
    halves = [slowest(half) for row_ in rows for half in row_]
    failed = sum(bool(record.get("wrong")) for row_ in rows for half in row_ for record in half)
    average = sum(record["busbw_GBps"] for record in halves) / len(halves) if halves else 0.0
    program = COLLECTIVES[halves[0]["collective"]].program if halves else ""
    return [
        f"# Out of bounds values : {failed} {'FAILED' if failed else 'OK'}",
        f"# Avg bus bandwidth    : {average:g} ",
        "#",
        f"# Collective test concluded: {program}",
    ]


def table_key(record: Record) -> tuple[Any, ...]:
    """Records of one table: equal in all that its header says. A row begun by a killed run is ended by the next."""
    names = ("collective", "group", "dtype", "redop", "root", "timing", "concurrent")
    return tuple(record.get(name) for name in names)


def has_columns(record: Record) -> bool:
    """Whether a record knows all that a row says; one made from another tool's log may not."""
    known = record["collective"] in COLLECTIVES and record.get("dtype") in DTYPES
    return known and all(record.get(name) is not None for name in ("in_place", "count", "algbw_GBps", "busbw_GBps"))


def is_left(record: Record) -> bool:
    """Whether a record fills the left half: out of place, or the first of two passes in place."""
    return not record["in_place"] if COLLECTIVES[record["collective"]].out_of_place else record.get("pass", 0) % 2 == 0


class Printer:
    """Writes tables row by row: the head when a table begins, the foot when it ends."""

    def __init__(self, run: Record, write: Callable[[str], object]) -> None:
        self._run = run
        self._write = write
        self._key: tuple[Any, ...] | None = None
        self._rows: list[Row] = []

    def add(self, row_: Row) -> None:
        key = table_key(row_[0][0])
        if key != self._key:
            self.close()
            self._key = key
            self._lines(head(self._run, row_[0][0]))
        times = row_[0][0].get("requests", 1)  # nccl-tests' rows: one for each size that was asked for
        self._rows += [row_] * times
        self._lines([row(row_)] * times)

    def comment(self, text: str) -> None:
        self._lines([f"# {text}"])

    def close(self) -> None:
        """End the table that is open, if one is."""
        if self._key is not None:
            self._lines(foot(self._rows))
        self._key, self._rows = None, []

    def _lines(self, lines: Iterable[str]) -> None:
        self._write("".join(f"{line}\n" for line in lines))


def rows_of(records: list[Record]) -> Iterator[Row]:
    """The complete rows that records with all columns make, in file order; the last of repeated measurements counts."""
    rows: dict[tuple[Any, ...], tuple[dict[Any, Record], dict[Any, Record]]] = {}
    for record in records:
        halves = rows.setdefault((*table_key(record), record["size_bytes"]), ({}, {}))
        halves[0 if is_left(record) else 1][tuple(record.get("group_ranks") or ())] = record
    for left, right in rows.values():
        if left and right:
            yield list(left.values()), list(right.values())
