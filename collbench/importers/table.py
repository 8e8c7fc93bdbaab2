"""What every importer makes of a log: tables of rows, and refusals that name the line and the reason.

A format's file yields `Table` and `Refusal`; `check.py` then judges the rows, and `records.py` turns what is left into
the records of a results file. Nothing here is guessed: what a log does not say is None.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collbench.importers.source import Log

_NUMBER = re.compile(r"[-+]?(\d{1,40})(?:\.(\d{0,40}))?(?:[eE]([-+]?\d{1,2}))?\Z", re.ASCII)


class Printed(NamedTuple):
    """A number as a log prints it. The true value lies within `half_step` of `value`: half a unit of its last digit."""

    value: float
    half_step: float

    @staticmethod
    @lru_cache(maxsize=2**14)
    def read(text: str) -> Printed | None:
        """None for what is no finite number (`N/A`, `nan`, text)."""
        match = _NUMBER.match(text)
        if match is None:
            return None
        value = float(text)
        exponent = int(match[3] or 0) - len(match[2] or "")
        return Printed(value, 0.5 * 10.0**exponent) if math.isfinite(value) else None

    def times(self, factor: float) -> Printed:
        """In another unit."""
        return Printed(self.value * factor, self.half_step * abs(factor))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured time of a log, in the contract's units.

    line: where it stands in its log, from 1.  size_bytes: nccl-tests' size (the format's file converts its own).
    in_place: None where the tool has no such distinction.  wrong: number of wrong elements, None where unchecked.
    algbw_GBps, busbw_GBps: as printed, for the check; None where the tool prints none.
    more: further fields of the measurement record (`time_p50_us`, `iterations`, `group_ranks` ...).
    """

    line: int
    size_bytes: int
    time_us: Printed
    count: int | None = None
    dtype: str | None = None  # torch's name
    redop: str | None = None
    root: int | None = None
    in_place: bool | None = None
    wrong: int | None = None
    algbw_GBps: Printed | None = None
    busbw_GBps: Printed | None = None
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Table:
    """Rows that one run of a tool printed, and what the log says about that run.

    line: where the table begins.  collective: this program's name.  timing: the contract's regime that the tool's way
    of timing is.  nodes: as the run record has them ({"host", "ranks", "devices"}).  is_bus_rate_known: False where the
    tool's bandwidth is not of nccl-tests' definition and was not read.
    per_rank_name: set where the rows' sizes are one rank's share of what `collective` counts. They are multiplied by
    the ranks (`per_rank.settle_sizes`); while those are unknown the table goes by this name, which no fit knows.
    is_point_to_point: its two ranks a pair are in the nature of the test: what the user says of the log's collective
    and ranks is not of this table.
    is_document: many of its rows may stand on one line, as in JSON.
    inferred: field -> how it was found, for what the log implies but does not say.
    notes: what the user should know about this table (unit conversions, oddities).
    hints: what the log may mean by "collective", "nranks", "nnodes": (value, where it stands), the weaker first; used
    where nothing states it and the rows allow it.
    possible: the collectives that the table's columns allow; empty where they do not tell.
    estimates: what the tool's own model believes (NCCL's tuning): kept in the run record, never measurements. A table
    of estimates has no rows.
    more: further fields of the run record (`started`, `arguments` ...).
    """

    format: str
    line: int
    timing: str
    collective: str | None = None
    nranks: int | None = None
    nnodes: int | None = None
    per_rank_name: str | None = None
    is_point_to_point: bool = False
    is_document: bool = False
    backend: str | None = None  # nccl, rccl, gloo, mpi ...
    nodes: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    inferred: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    hints: dict[str, list[tuple[Any, str]]] = field(default_factory=dict)
    possible: tuple[str, ...] = ()
    estimates: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row, or a whole table, that was not taken: `log.txt:12: reason`."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """How several logs make one answer (the traces of a job's ranks).

    part: what is kept of a log.  join: parts in the order of the logs -> (indices of the logs it is made of, first the
    one it is told of; table).
    """

    part: Callable[[Log], Any]
    join: Callable[[Sequence[Any]], Iterator[tuple[Sequence[int], Table | Refusal]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One foreign format.

    name: for --format and the summary.  title: for the help.  recognises: whether this log may hold it; cheap, by a
    mark that its tool prints.  read: its tables and refusals, in the order of the log.  joint: in place of `read` where
    several logs of the format are given.
    """

    name: str
    title: str
    recognises: Callable[[Log], bool]
    read: Callable[[Log], Iterator[Table | Refusal]]
    joint: Joint | None = None
