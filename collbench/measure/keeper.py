"""Rank 0's side of a sweep: the results file, the live table, the verdict."""

from __future__ import annotations

import os
import sys
import uuid
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import torch

from collbench.collectives import COLLECTIVES
from collbench.errors import EXIT_DONE, EXIT_NO
from collbench.measure.cell import Found
from collbench.measure.environment import allowed_environment, versions
from collbench.measure.job import Job
from collbench.measure.process import VERDICT_DIR, Verdict
from collbench.nccl_table import Printer, Row
from collbench.results import SCHEMA, Record, ResultsWriter, cell_key
from collbench.resume import done_cells
from collbench.sweep import Cell, Sweep
from collbench.topology import Groups


class Keeper:
    """Writes each record as it comes, and the row of the table that it completes."""

    def __init__(
        self,
        job: Job,
        sweep: Sweep,
        output: Path,
        append: bool,
        groups: dict[str, Groups],
        unformed: dict[str, str],
        table: TextIO,
    ) -> None:
        self._job, self._sweep, self._output, self._append = job, sweep, output, append
        self._groups, self._unformed = groups, unformed
        self._shown = "pipelined" if "pipelined" in sweep.timing else "isolated"
        self._known: dict[tuple[Any, ...], Record] = {}
        self._printed: set[Any] = set()
        self._counts = {"measurements": 0, "skips": 0}
        self._writer: ResultsWriter | None = None
        self._begun = False
        self._last_reason: str | None = None
        self.run: Record = self._run_record()
        self._table = table
        self._printer = Printer(self.run, self._print)

    def open(self) -> None:
        """Lock the file and learn what it holds. Raises InputError where it cannot go on with this sweep."""
        self._writer = ResultsWriter(self._output)
        sweep, world_size, backend = self._sweep, self._job.world_size, self._job.device.backend
        with warnings.catch_warnings():
            if VERDICT_DIR in os.environ:  # whoever started this job has read the file, and warned
                warnings.simplefilter("ignore", UserWarning)
            done = done_cells(self._output, sweep, world_size, backend, self._append)
        self._known = {cell_key(record): record for record in done}

    def has(self, cell: Cell) -> bool:
        """Whether the file holds this cell for every group of its kind."""
        return all(cell_key(cell.record(ranks)) in self._known for ranks in self._groups[cell.group])

    def begin(self, missing: int) -> None:
        """Write the run record and the groups that cannot be formed; nothing where nothing is missing."""
        say = self._printer.comment
        if self._known:
            say(
                f"collbench: {len(self._known)} measurements are in {self._output} already; {missing} cells are missing"
            )
        self._begun = bool(missing) or not self._known
        if not self._begun:
            return
        self._write(self.run)
        for kind, reason in self._unformed.items():
            say(f"collbench: group {kind} is skipped: {reason}")
            for collective in self._sweep.collective:
                self._skip(collective, kind, None, reason)
        if self._job.world_size == 1:
            say("collbench: warning: one rank: nothing is communicated, busbw is 0, and no fit uses it")

    def keep(self, cell: Cell, found: Found) -> None:
        """Write what was measured, and print the row it completes."""
        if found.skipped is not None:
            size = cell.message(len(self._groups[cell.group][0])).size_bytes
            text = f"{cell.collective} {cell.group} {cell.dtype} {size} bytes skipped: {found.skipped}"
            if text not in self._printed:  # once for both regimes and halves
                self._printed.add(text)
                self._printer.comment(f"collbench: {text}")
            self._skip(cell.collective, cell.group, size, found.skipped)
            return
        for record in found.records:
            key = cell_key(record)
            if key in self._known:
                continue
            self._known[key] = record
            self._write({"kind": "measurement", "run_id": self.run["run_id"], **record})
            self._counts["measurements"] += 1
            if record["wrong"]:
                self._printer.comment(
                    f"collbench: WRONG DATA: {record['wrong']} elements of {cell.collective} in group "
                    f"{cell.group} {record['group_ranks']}, {record['size_bytes']} bytes"
                )
        self._print_row(cell)

    def finish(self) -> Verdict:
        """Close the table, write the end record."""
        self._printer.close()
        if self._last_reason is not None:
            measured, skips = self._counts["measurements"], self._counts["skips"]
            print(f"collbench: {measured} measured, {skips} skipped: {self._last_reason}", file=sys.stderr)
        wrong = sum(bool(record["wrong"]) for record in self._known.values())
        verdict = Verdict(EXIT_DONE)
        if wrong:
            verdict = Verdict(EXIT_NO, f"wrong data in {wrong} measurements: see 'collbench show {self._output}'")
        self.end(verdict)
        return verdict

    def end(self, verdict: Verdict) -> None:
        """The verdict is the last record of the file."""
        if not self._begun:
            return
        end = {"kind": "end", "run_id": self.run["run_id"], "finished": _now(), **self._counts}
        self._write({**end, "exit_code": verdict.exit_code, "reason": verdict.reason})
        self._begun = False

    def _print_row(self, cell: Cell) -> None:
        if cell.timing != self._shown:
            return
        halves: Row = ([], [])
        for half, (in_place, repeat) in zip(halves, COLLECTIVES[cell.collective].halves, strict=True):
            for ranks in self._groups[cell.group]:
                key = cell_key({**cell.record(ranks), "in_place": in_place, "pass": repeat})
                if key not in self._known:
                    return
                half.append(self._known[key])
        name = (cell.collective, cell.group, cell.dtype, cell.redop, halves[0][0]["size_bytes"])
        if name not in self._printed:
            self._printed.add(name)
            self._printer.add(halves)

    def _print(self, text: str) -> None:
        """To the table, while somebody reads it: `collbench run | head` measures on."""
        try:
            self._table.write(text)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._table.fileno())

    def _skip(self, collective: str, group: str, size_bytes: int | None, reason: str) -> None:
        names = {"collective": collective, "group": group, "size_bytes": size_bytes, "reason": reason}
        self._write({"kind": "skip", "run_id": self.run["run_id"], **names})
        self._counts["skips"] += 1
        self._last_reason = reason

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
            "launcher": os.environ.get("TORCHELASTIC_RUN_ID"),
        }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
