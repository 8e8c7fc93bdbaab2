"""One rank's walk through the cells of a sweep; all ranks walk the same cells in the same order.

Before a cell they agree that every rank can run it; a refusal (no memory, a type the backend does not take) skips the
cell on all ranks together. Anything worse ends the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from typing import Any

from collbench.errors import InputError
from collbench.measure.aggregate import aggregate
from collbench.measure.buffers import Arena, slot_of
from collbench.measure.cell import CellMeasurement, Found
from collbench.measure.failure import first_line
from collbench.measure.groups import Formed, form_kind
from collbench.measure.job import Job
from collbench.measure.keeper import Keeper
from collbench.measure.process import here
from collbench.progress import Progress
from collbench.results import Record
from collbench.sweep import ENDLESS, Cell, Sweep, in_order, plan_cells, refused_cell
from collbench.topology import Groups, rounds

_OF_FREE = 0.9  # of the free memory, for buffers; the data check and the backend take some as well
_CACHES = 2  # last-level caches that buffers rotate through


class Walk:
    """Through all passes of a sweep. `keeper` is rank 0's, None on the others."""

    def __init__(self, job: Job, sweep: Sweep, groups: dict[str, Groups], keeper: Keeper | None) -> None:
        self._job, self._sweep, self._groups, self._keeper = job, sweep, groups, keeper
        self._rounds = {kind: rounds(of_kind) for kind, of_kind in groups.items()}
        self._formed: dict[str, Formed] = {}
        self._arena: Arena | None = None
        self._largest_bytes = 0  # of a slot that fits into memory
        self._refused: dict[tuple[Any, ...], str] = {}
        self._used_bytes = [job.device.used_bytes()]

    def go(self) -> dict[str, int]:
        """Measure all that is missing. Returns the memory it took, in bytes (nccl-tests -M), the most of any rank."""
        if self._keeper is not None:
            self._open(self._keeper)
        else:
            self._hear()
        for sweep_pass in range(self._sweep.passes) if self._sweep.passes != ENDLESS else count():
            self._one_pass(sweep_pass)
        return self._memory_bytes()

    def _open(self, keeper: Keeper) -> None:
        """Rank 0 opens the file; the others hear of its refusal."""
        try:
            keeper.open()
        except InputError as error:
            self._job.control.from_rank(0, str(error))
            raise
        self._job.control.from_rank(0, None)

    def _hear(self) -> None:
        refusal = self._job.control.from_rank(0, None)
        if refusal is not None:
            raise InputError(refusal)

    def _one_pass(self, sweep_pass: int) -> None:
        planned = plan_cells(self._sweep, self._groups, sweep_pass)
        ordered = in_order(self._sweep, planned, sweep_pass)
        missing: list[int] = []
        if self._keeper is not None:
            missing = [index for index, cell in enumerate(ordered) if not self._keeper.has(cell)]
            self._keeper.begin(planned, len(missing))
        todo = [ordered[index] for index in self._job.control.from_rank(0, missing)]
        if not todo:
            return
        self._form({cell.group for cell in todo})
        if self._arena is None:
            self._arena = self._allocate(planned)
        progress = Progress(len(todo), _title(self._sweep, sweep_pass)) if self._keeper is not None else None
        for cell in todo:
            found = self._measure(cell)
            if self._keeper is not None and progress is not None:
                progress.clear()
                self._keeper.keep(cell, found)
                progress.advance(f"{cell.collective} {cell.group}")
        if progress is not None:
            progress.clear()

    def _form(self, kinds: Iterable[str]) -> None:
        for kind in self._groups:
            if kind in kinds and kind not in self._formed:
                timeout_s = self._sweep.timeout_s
                formed = form_kind(self._job.rank, self._groups[kind], self._job.device.backend, timeout_s)
                self._formed[kind] = formed
                create_ns = self._job.control.maximum([round(formed.create_s * 1e9)])[0]
                if self._keeper is not None:
                    self._keeper.formed(kind, len(self._groups[kind]), create_ns / 1e3)
        if len(self._used_bytes) == 1:
            self._used_bytes.append(self._job.device.used_bytes())

    def _slot_bytes(self, cell: Cell) -> int:
        """The most that any group of its kind needs; a share out of place is largest in the smallest group."""
        counts = {len(ranks) for ranks in self._groups[cell.group]}
        return max(slot_of(cell, nranks, 0, self._sweep.unalign).stride_bytes for nranks in counts)

    def _allocate(self, cells: list[Cell]) -> Arena:
        """The arena for all cells that fit into the memory of every rank; the others are skipped, each in its turn."""
        everyones_free = self._job.control.everyones(int(self._job.device.free_bytes() * _OF_FREE))
        free_bytes = min(everyones_free)
        needs = sorted({self._slot_bytes(cell) for cell in cells}, reverse=True)
        caches = 0 if self._sweep.hot else _CACHES * self._job.control.maximum([self._job.device.cache_bytes])[0]
        working_set_bytes = min(caches, free_bytes // 4)
        for self._largest_bytes in [need for need in needs if need <= free_bytes] or [0]:
            arena, refusal = None, ""
            try:
                arena = Arena(self._job.device.torch_device, working_set_bytes, self._largest_bytes)
            except (RuntimeError, MemoryError) as error:
                refusal = f"{here(self._job.rank)}: {first_line(error)}"
            failed = self._job.control.maximum([int(arena is None)])[0]
            if arena is not None and not failed:
                break
        else:
            raise InputError(f"the smallest size does not fit into memory: {refusal or 'see the other ranks'}")
        if self._largest_bytes < needs[0] and self._keeper is not None:
            rank = everyones_free.index(free_bytes)
            self._keeper.capped(
                f"out of memory on rank {rank} (host {self._job.facts[rank].host})", self._largest_bytes
            )
        self._used_bytes.append(self._job.device.used_bytes())
        return arena

    def _measure(self, cell: Cell) -> Found:
        """One cell, in all groups of its kind; of those that share ranks, one round after the other."""
        of_kind = self._groups[cell.group]
        needed = self._slot_bytes(cell)
        if needed > self._largest_bytes:
            return Found(skipped=f"out of memory: it needs {needed} bytes on every rank, {self._largest_bytes} fit")
        key = (cell.collective, cell.group, cell.dtype, cell.redop, cell.in_place, cell.mode)
        if (reason := self._refused.get(key)) is not None:
            return Found(skipped=reason, refused=True)
        if (reason := refused_cell(cell, of_kind)) is not None:
            self._refused[key] = reason
            return Found(skipped=reason, refused=True)
        records: list[Record] = []
        overlaps: list[Record] = []
        for together in self._rounds[cell.group] if cell.concurrent else [[index] for index in range(len(of_kind))]:
            found = self._measure_together(cell, together)
            if found.skipped is not None:
                if found.refused:
                    self._refused[key] = found.skipped
                return replace(found, records=records)
            records += found.records
            overlaps += found.overlaps
        one_round = cell.concurrent and len(self._rounds[cell.group]) == 1 and len(records) > 1
        return Found(records, [aggregate(cell, records)] if one_round else [], overlaps)

    def _measure_together(self, cell: Cell, together: list[int]) -> Found:
        assert self._arena is not None
        mine = self._formed[cell.group].mine(together)
        ranks = [self._groups[cell.group][index] for index in together]
        return CellMeasurement(self._job, self._sweep, cell, mine, ranks, self._arena).run()

    def _memory_bytes(self) -> dict[str, int]:
        """What groups, buffers and the collectives themselves took, as nccl-tests -M tells them apart."""
        stages = [*self._used_bytes, *[self._job.device.used_bytes()] * (4 - len(self._used_bytes))]
        start, formed, allocated, end = stages
        parts = [formed - start, allocated - formed, end - allocated, end - start]
        names = ("initialization", "user_allocated", "collective", "total")
        return dict(zip(names, (max(0, part) for part in self._job.control.maximum(parts)), strict=True))


def _title(sweep: Sweep, sweep_pass: int) -> str:
    if sweep.passes == 1:
        return "measuring"
    return f"pass {sweep_pass + 1}" + (f" of {sweep.passes}" if sweep.passes != ENDLESS else "")
