"""Rank 0's side of a sweep: the results file, the live table, the verdict."""

from __future__ import annotations

import os
import sys
import uuid
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TextIO

import torch

from collbench.aggregates import aggregate_lines
from collbench.contention import contention_lines
from collbench.errors import EXIT_DONE, EXIT_NO
from collbench.measure.cell import Found
from collbench.measure.environment import allowed_environment, versions
from collbench.measure.job import Job
from collbench.measure.keeping import Keeping
from collbench.measure.names import spans
from collbench.measure.preflight import head_lines, run_fields
from collbench.measure.process import VERDICT_DIR, Verdict
from collbench.measure.repeats import repeat_lines
from collbench.nccl_json import write_json
from collbench.nccl_table import Printer, Row, places
from collbench.overlaps import overlap_lines
from collbench.results import SCHEMA, Record, ResultsWriter, cell_key
from collbench.resume import held
from collbench.sweep import Cell, Sweep
from collbench.topology import Groups


class Keeper:
    """Writes each record as it comes, and the row of the table that it completes."""

    def __init__(
        self,
        job: Job,
        sweep: Sweep,
        keeping: Keeping,
        groups: dict[str, Groups],
        unformed: dict[str, str],
        table: TextIO,
    ) -> None:
        self._job, self._sweep, self._keeping, self._output = job, sweep, keeping, keeping.output
        self._groups, self._unformed = groups, unformed
        self._shown = "pipelined" if "pipelined" in sweep.timing else "isolated"
        self._known: dict[tuple[Any, ...], Record] = {}
        self._aggregates: list[Record] = []
        self._overlaps: list[Record] = []
        self._due: deque[list[Cell]] = deque()  # rows of the table that are not printed yet, in its order
        self._gone: set[Any] = set()  # rows of which a cell was skipped
        self._skipped: set[Any] = set()  # skips that have been told of
        self._counts = {"measurements": 0, "skips": 0}
        self._writer: ResultsWriter | None = None
        self._begun = False
        self._reasons: dict[str, None] = {}  # of skips, each once
        self._cells_skipped = 0
        self.run: Record = self._run_record()
        self._table = table
        self._printer = Printer(self.run, self._print, keeping.style, aside=self._aside)

    def open(self) -> None:
        """Lock the file and learn what it holds. Raises InputError where it cannot go on with this sweep."""
        self._writer = ResultsWriter(self._output)
        sweep, world_size, backend = self._sweep, self._job.world_size, self._job.device.backend
        with warnings.catch_warnings():
            if VERDICT_DIR in os.environ:  # whoever started this job has read the file, and warned
                warnings.simplefilter("ignore", UserWarning)
            done = held(self._output, sweep, world_size, backend, self._keeping.append)
        self._known = {cell_key(record): record for record in done.measurements}
        self._aggregates, self._overlaps = list(done.aggregates), list(done.overlaps)
        if self._known:
            self._writer.mend()
            # The table of what is there is of the run that measured it.
            self._printer = Printer(done.runs[0], self._print, self._keeping.style, aside=self._aside)

    def has(self, cell: Cell, groups: Groups | None = None) -> bool:
        """Whether the file holds this cell for these groups, or for every group of its kind."""
        groups = self._groups[cell.group] if groups is None else groups
        return all(cell_key(cell.record(ranks)) in self._known for ranks in groups)

    def begin(self, sweep_pass: int, planned: list[Cell], missing: int) -> None:
        """A pass begins, of which so many cells are missing. Before the first one that is not complete, write the run
        record and the groups that cannot be formed."""
        self._print_rows(to_the_end=True)
        self._due, self._gone = _rows(planned, self._shown), set()
        if self._begun:
            return
        if not missing and self._known:
            if sweep_pass + 1 == self._sweep.passes:
                when = max(str(record.get("measured") or "") for record in self._known.values())
                print(
                    f"collbench: nothing to measure: all {len(self._known)} measurements are in {self._output} already "
                    f"(the last of {when or 'an older run'}): name another file with -o to measure again",
                    file=sys.stderr,
                )
            return
        say = self._printer.comment
        if self._known:
            say(
                f"collbench: {len(self._known)} measurements are in {self._output} already; {missing} cells are missing"
            )
        for line in head_lines(self._job):
            say(line)
        self._begun = True
        self._write(self.run)
        for kind, reason in self._unformed.items():
            say(f"collbench: group {kind} is skipped: {reason}")
            for collective in self._sweep.collective:
                self._skip({"collective": collective, "group": kind, "size_bytes": None}, reason)
        if self._job.world_size == 1:
            say("collbench: warning: one rank: nothing is communicated, busbw is 0, and no fit uses it")

    def formed(self, kind: str, groups: int, create_us: float) -> None:
        """The groups of a kind have been created; it took so long, on the slowest rank."""
        init = {"kind": "init", "run_id": self.run["run_id"], "group": kind, "groups": groups}
        self._write({**init, "create_us": create_us})

    def capped(self, free_bytes: int, where: str) -> None:
        """Not all sizes fit into memory."""
        self._printer.comment(
            f"collbench: sizes are skipped whose buffers need more than the {free_bytes} bytes {where}"
        )

    def keep(self, cell: Cell, found: Found) -> None:
        """Write what was measured, and print the rows that are complete."""
        if found.skipped is not None:
            self._cells_skipped += 1
            self._reasons[found.skipped] = None
            self._keep_skip(cell, found.skipped, found.refused)
            self._gone.add(_row_key(cell))
        new = [record for record in found.records if cell_key(record) not in self._known]
        # Before the measurements, without which all of it is measured again.
        if new:
            self._aggregates += found.aggregates
            self._overlaps += found.overlaps
            for record in (*found.overlaps, *found.aggregates):
                self._write({**record, "run_id": self.run["run_id"]})
        for record in new:
            self._known[cell_key(record)] = record
            self._write({"kind": "measurement", "run_id": self.run["run_id"], **record})
            self._counts["measurements"] += 1
            if record["wrong"]:
                self._printer.comment(
                    f"collbench: WRONG DATA: {record['wrong']} elements of {cell.collective} in group "
                    f"{cell.group} {record['group_ranks']}, {record['size_bytes']} bytes"
                )
        self._print_rows(to_the_end=False)

    def finish(self, memory_bytes: dict[str, int]) -> Verdict:
        """Close the table, write the end record."""
        self._print_rows(to_the_end=True)
        self._printer.close(memory_bytes)
        known = list(self._known.values())
        known.sort(key=places(known, self.run))
        for records in (self._aggregates, self._overlaps):
            records.sort(key=places(records, self.run))
        contention = contention_lines(known)
        if self._sweep.contention and not contention:
            contention = ["contention: no kind of group has two groups here: nothing to compare"]
        together = (*aggregate_lines(self._aggregates), *contention, *overlap_lines(self._overlaps))
        for line in (*together, *repeat_lines(known), *self._imprecise(known)):
            self._printer.comment(f"collbench: {line}")
        if self._reasons:
            reason, *others = self._reasons
            skipped = _counted(self._cells_skipped, "cell") or _counted(len(self._unformed), "group")
            more = f" (and {len(others)} other reasons, in the file)" if others else ""
            measured = self._counts["measurements"]
            print(f"collbench: {measured} measured, {skipped} skipped: {reason}{more}", file=sys.stderr)
        wrong = sum(bool(record["wrong"]) for record in self._known.values())
        verdict = Verdict(EXIT_DONE)
        if wrong:
            verdict = Verdict(EXIT_NO, f"wrong data in {wrong} measurements: see 'collbench show {self._output}'")
        end = self.end(verdict, memory_bytes)
        if self._keeping.nccl_json is not None:
            ends = [] if end is None else [end]
            shown = [record for record in known if record["timing"] == self._shown]
            path = write_json(self._keeping.nccl_json, [self.run], shown, ends, self._keeping.style)
            print(f"collbench: nccl-tests' JSON is in {path}", file=sys.stderr)
        return verdict

    def end(self, verdict: Verdict, memory_bytes: dict[str, int] | None = None) -> Record | None:
        """The verdict is the last record of the file; None where nothing was begun."""
        if not self._begun:
            return None
        end: Record = {"kind": "end", "run_id": self.run["run_id"], "finished": _now(), **self._counts}
        if memory_bytes is not None:
            end["memory_bytes"] = memory_bytes
        end |= {"exit_code": verdict.exit_code, "reason": verdict.reason}
        self._write(end)
        self._begun = False
        return end

    def _keep_skip(self, cell: Cell, reason: str, refused: bool) -> None:
        """One record for all sizes where the backend refuses the call, else one for this size; a comment for each."""
        size = None if refused else cell.message(len(self._groups[cell.group][0])).size_bytes
        skip: Record = {"collective": cell.collective, "group": cell.group, "dtype": cell.dtype, "redop": cell.redop}
        skip |= {"in_place": cell.in_place, "size_bytes": size}
        if (*skip.values(), reason) in self._skipped:
            return
        self._skipped.add((*skip.values(), reason))
        operator = f" {cell.redop}" if cell.redop else ""
        sizes = "" if size is None else f" {size} bytes"
        text = f"{cell.collective}{operator} {cell.group} {cell.dtype}{sizes} skipped: {reason}"
        if text not in self._skipped:  # one for both halves
            self._skipped.add(text)
            self._printer.comment(f"collbench: {text}")
        self._skip(skip, reason)

    def _print_rows(self, to_the_end: bool) -> None:
        """Print the rows of the table, in its order, up to the first that is still to be measured; `to_the_end`: all
        that are complete."""
        while self._due and (to_the_end or self._is_decided(self._due[0])):
            halves = self._halves(self._due.popleft())
            if halves is not None:
                self._printer.add(halves)

    def _is_decided(self, row: list[Cell]) -> bool:
        return _row_key(row[0]) in self._gone or all(self.has(cell) for cell in row)

    def _halves(self, row: list[Cell]) -> Row | None:
        if not all(self.has(cell) for cell in row):
            return None
        left, right = (
            [self._known[cell_key(cell.record(ranks))] for ranks in self._groups[cell.group]] for cell in row
        )
        return left, right

    def _imprecise(self, measured: list[Record]) -> Iterator[str]:
        """What the reader must know of how well the times are known."""
        budget = sum(record.get("precise") is False for record in measured)
        if budget:
            yield (
                f"{budget} of {len(measured)} medians are known less well than to {self._sweep.precision:.0%} after "
                f"{self._sweep.budget_s:g} s each (time_us_interval says how well): --budget gives more time"
            )
        if unstable := sum(record.get("unstable") is True for record in measured):
            yield (
                f"{unstable} of {len(measured)} measurements unstable: half-way their times went over to another "
                "level, as when a link's rate changes: measure those again"
            )
        kept = sorted({rank for record in measured if record.get("late_kept") for rank in record["late_ranks"]})
        if kept:
            late = sum(bool(record.get("late_kept")) for record in measured)
            yield (
                f"{late} of {len(measured)} measurements hold samples for which a rank came late, again and again "
                f"(ranks {spans(kept)}): is the machine busy?"
            )

    def _aside(self, text: str) -> None:
        print(text, end="", file=sys.stderr)

    def _print(self, text: str) -> None:
        """To the table, while somebody reads it: `collbench run | head` measures on."""
        try:
            self._table.write(text)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._table.fileno())

    def _skip(self, skip: Record, reason: str) -> None:
        self._write({"kind": "skip", "run_id": self.run["run_id"], **skip, "reason": reason})
        self._counts["skips"] += 1
        self._reasons[reason] = None

    def _write(self, record: Record) -> None:
        assert self._writer is not None
        self._writer.append(record)

    def _run_record(self) -> Record:
        return {
            "kind": "run",
            "schema": SCHEMA,
            "run_id": uuid.uuid4().hex[:12],
            "started": _now(),
            "backend": self._job.device.backend,
            "world_size": self._job.world_size,
            "nodes": self._job.nodes(),
            "groups": {kind: [list(ranks) for ranks in of_kind] for kind, of_kind in self._groups.items()},
            "versions": versions(torch),
            "environment": allowed_environment(),
            "sweep": self._sweep.as_record(),
            **run_fields(self._job),
            "launcher": os.environ.get("TORCHELASTIC_RUN_ID"),
        }


def _row_key(cell: Cell) -> Cell:
    """Equal for the two halves of a row."""
    return replace(cell, in_place=False, repeat=0)


def _rows(planned: list[Cell], timing: str) -> deque[list[Cell]]:
    """The two cells of every row of a regime's table, in the order of the table."""
    rows: dict[Cell, list[Cell]] = {}
    for cell in planned:
        if cell.timing == timing:
            rows.setdefault(_row_key(cell), []).append(cell)
    return deque(rows.values())


def _counted(count: int, what: str) -> str:
    """`1 cell`, `3 cells`; nothing for none."""
    return f"{count} {what}{'s' * (count > 1)}" if count else ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
