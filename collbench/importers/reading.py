"""One log through all formats that recognise it: its tables, checked, and what was refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from collbench.importers.check import Asked, judge
from collbench.importers.records import records_of
from collbench.importers.source import Log
from collbench.importers.table import Format, Refusal, Table
from collbench.results import Record


@dataclass(slots=True)
class Imported:
    """What one log gave. formats: those that recognised it.  refused: in the order of the lines.

    parts: by format, what of this log is read together with others (`read_together`).  told_by: the log that the tables
    this one had a part in are told of.
    """

    log: Log
    formats: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    asked: Asked = field(default_factory=Asked)
    parts: dict[str, Any] = field(default_factory=dict)
    told_by: str | None = None

    @property
    def rows(self) -> int:
        """Lines that were taken."""
        return rows_in(*self.tables)

    @property
    def told(self) -> tuple[int, ...]:
        """How much was read, to compare two readings of a log: times, refusals, tables of known ranks, tables."""
        times = sum(len(table.rows) for table in self.tables)
        known = sum(table.nranks is not None for table in self.tables)
        return times, -len(self.refused), known, len(self.tables)

    def records(self) -> list[list[Record]]:
        """The records of each table."""
        return [records_of(table, self.log, number, repr(self.asked)) for number, table in enumerate(self.tables)]


def rows_in(*tables: Table) -> int:
    """Rows of a log that these tables have: the two halves of one line, and its columns of several sizes or calls, are
    one; those that repeat one another word for word count each.

    A document may have many on one line: as many as it has halves of one side.
    """
    of_lines: dict[int, int] = {}
    of_documents = 0
    for table in tables:
        halves: Counter[tuple[int, bool]] = Counter()
        for row in table.rows:
            repeats = row.more.get("requests", 1)
            if table.is_document:
                halves[row.line, row.in_place is True] += repeats
            else:
                of_lines[row.line] = max(repeats, of_lines.get(row.line, 0))
        of_documents += sum(max(halves[line, False], halves[line, True]) for line in {line for line, _ in halves})
    return of_documents + sum(of_lines.values())


def read_log(log: Log, formats: Collection[Format], asked: Asked, *, force: bool = False) -> Imported:
    """Read a log by each of these formats that recognises it (by all of them where `force`). A line that one format
    took is not read by the next.

    A log whose lines seem to be wrapped is read as it stands and put together; one in which nothing is found, without
    what nearly all of its lines begin with: the reading that tells most counts.
    """
    imported = _read_as_it_is(log, formats, asked, force)
    if log.width is not None:
        log.unwrap(True)
        whole = _read_as_it_is(log, formats, asked, force)
        log.unwrap(whole.told >= imported.told)
        imported = max(whole, imported, key=lambda each: each.told)
    if imported.tables or imported.parts:
        return imported
    for prefix in log.prefixes():
        log.take_off(prefix)
        again = _read_as_it_is(log, formats, asked, force)
        if again.rows > imported.rows:
            imported = again
    return imported


def _read_as_it_is(log: Log, formats: Collection[Format], asked: Asked, force: bool) -> Imported:
    imported = Imported(log, asked=asked)
    taken: set[int] = set()
    for format in formats:
        if not force and not format.recognises(log):
            continue
        imported.formats.append(format.name)
        if format.joint is not None:
            imported.parts[format.name] = format.joint.part(log)
            continue
        lines: set[int] = set()
        for found in format.read(log):
            if isinstance(found, Refusal):
                if found.line not in taken:
                    imported.refused.append(found)
                continue
            found.rows = [row for row in found.rows if row.line not in taken]
            lines |= {row.line for row in found.rows}  # those that are refused now are not for another format either
            _add(imported, found)
        taken |= lines
    _sort(imported)
    return imported


def read_together(logs: Sequence[Imported], formats: Iterable[Format]) -> None:
    """Add to these logs what only several of them say: the traces of a job's ranks."""
    for format in formats:
        members = [imported for imported in logs if format.name in imported.parts]
        if format.joint is None or not members:
            continue
        parts = [imported.parts.pop(format.name) for imported in members]
        for indices, found in format.joint.join(parts):
            first = members[indices[0]]
            if isinstance(found, Refusal):
                first.refused.append(found)
                continue
            _add(first, found)
            for index in indices:
                members[index].told_by = first.log.name
        for imported in members:
            _sort(imported)


def _add(imported: Imported, table: Table) -> None:
    """A table, if its rows agree with themselves."""
    if table.rows:
        imported.refused += judge(table, imported.asked, imported.log.name)
    if table.rows or table.estimates:
        imported.tables.append(table)


def _sort(imported: Imported) -> None:
    imported.tables.sort(key=lambda table: table.line)
    imported.refused = sorted(dict.fromkeys(imported.refused), key=lambda each: each.line)  # the halves of a row alike


# --- nothing to read ----------------------------------------------------------------------------------------------

_FAILURES = (
    *("Test failure", "Test NCCL failure", "NCCL failure", "unhandled cuda error", "unhandled system error"),
    *("ncclSystemError", "ncclUnhandledCudaError", "Segmentation fault", "out of memory", "No such file or directory"),
    *("command not found", "Permission denied", "CANCELLED", "DUE TO TIME LIMIT"),
)


def why_nothing(imported: Imported, known: Iterable[str]) -> list[str]:
    """The two likeliest reasons why a log gave no row."""
    log, reasons = imported.log, []
    if imported.refused:
        first = imported.refused[0]
        reasons.append(f"line {first.line}: {first.reason}")
    if log.holds('"schema":"collbench.results/'):
        reasons.append("it is a results file already: give it to 'collbench fit' or 'show' as it is")
    if log.is_empty:
        reasons.append("it is empty: was the job's standard output kept?")
    elif not log.is_text:
        reasons.append("it is not text")
    failure = next((mark for mark in _FAILURES if log.holds(mark)), None)
    if failure is not None:
        line = next((number for number, text in log.raw_lines() if failure in text), 1)
        reasons.append(f"the job itself seems to have failed (line {line}: {failure!r})")
    if not imported.refused and log.holds("NCCL INFO") and len(reasons) < 2:
        reasons.append("it holds NCCL's debug lines and no table: was the benchmark's own standard output kept?")
    if not imported.formats:
        reasons.append(f"no format was recognised ({', '.join(known)}): --format forces one")
        reasons.append("its table's header or rows are not in it: the lines from '#  size' to '# Avg bus bandwidth'")
    else:
        reasons.append(f"it was read as {', '.join(imported.formats)}: --format forces another")
        reasons.append("no line in it is a whole row of a table")
    return reasons[:2]
