"""One rank's walk through the cells of a sweep; all ranks walk the same cells in the same order.

Before a cell they agree that every rank can run it; a refusal (no memory, a type the backend does not take) skips the
cell on all ranks together. Anything worse ends the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from collbench.errors import InputError
from collbench.measure.aggregate import aggregate
from collbench.measure.buffers import Arena
from collbench.measure.cell import CellMeasurement, Found
from collbench.measure.failure import first_line
from collbench.measure.groups import Formed, form_kind
from collbench.measure.job import Job
from collbench.measure.keeper import Keeper
from collbench.measure.process import here
from collbench.measure.slots import largest_slot_bytes
from collbench.progress import Progress
from collbench.sweep import Cell, Sweep, in_order, plan_cells, refused_cell
from collbench.sweep_words import ENDLESS
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
        self._free = ""  # where there is least of it
        self._refused: dict[tuple[Any, ...], str] = {}
        self._used_bytes = [job.device.used_bytes()]

    def go(self) -> dict[str, int]:
        """Measure all that is missing. Returns the memory it took, in bytes (nccl-tests -M), the most of any rank."""
        if self._keeper is not None:
            self._open(self._keeper)
        else:
            self._hear()
        for sweep_pass in range(self._sweep.passes) if self._sweep.passes != ENDLESS else count():
            if not self._one_pass(sweep_pass):
                break
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

    def _one_pass(self, sweep_pass: int) -> bool:
        """Measure what is missing of one pass; whether there is anything in it that can be measured."""
        planned = plan_cells(self._sweep, self._groups, sweep_pass)
        ordered = in_order(self._sweep, planned, sweep_pass)
        missing: list[tuple[int, list[int]]] = []
        if self._keeper is not None:
            missing = [(n, rounds) for n, cell in enumerate(ordered) if (rounds := self._missing(cell, self._keeper))]
            self._keeper.begin(sweep_pass, planned, len(missing))
        todo = [(ordered[index], numbers) for index, numbers in self._job.control.from_rank(0, missing)]
        if not todo:
            return bool(planned)
        self._form({cell.group for cell, _ in todo})
        if self._arena is None:
            self._arena = self._allocate([cell for cell, _ in todo] if self._sweep.passes == 1 else planned)
        progress = Progress(len(todo), _title(self._sweep, sweep_pass)) if self._keeper is not None else None
        measured = False
        for cell, numbers in todo:
            measured |= self._measure(cell, numbers, progress)
            if progress is not None:
                progress.advance(f"{cell.collective} {cell.group}")
        if progress is not None:
            progress.clear()
        return measured

    def _rounds_of(self, cell: Cell) -> list[list[int]]:
        """The groups of a cell, by index, that are measured at the same time, one round after the other."""
        return self._rounds[cell.group] if cell.concurrent else [[n] for n in range(len(self._groups[cell.group]))]

    def _ranks(self, cell: Cell, together: list[int]) -> Groups:
        return [self._groups[cell.group][index] for index in together]

    def _missing(self, cell: Cell, keeper: Keeper) -> list[int]:
        """The rounds of a cell that the file does not hold whole."""
        return [
            number
            for number, together in enumerate(self._rounds_of(cell))
            if not keeper.has(cell, self._ranks(cell, together))
        ]

    def _form(self, kinds: Iterable[str]) -> None:
        for kind in self._groups:
            if kind in kinds and kind not in self._formed:
                timeout_s = self._sweep.timeout_s
                formed = form_kind(self._job.rank, self._groups[kind], self._job.device, timeout_s)
                self._formed[kind] = formed
                create_ns = self._job.control.maximum([round(formed.create_s * 1e9)])[0]
                if self._keeper is not None:
                    self._keeper.formed(kind, len(self._groups[kind]), create_ns / 1e3)
        if len(self._used_bytes) == 1:
            self._used_bytes.append(self._job.device.used_bytes())

    def _slot_bytes(self, cell: Cell) -> int:
        return largest_slot_bytes(cell, self._groups[cell.group], self._sweep.unalign)

    def _allocate(self, cells: list[Cell]) -> Arena:
        """The arena for all cells that fit into the memory of every rank; the others are skipped, each in its turn."""
        everyones_free = self._job.control.everyones(int(self._job.device.free_bytes() * _OF_FREE))
        free_bytes = min(everyones_free)
        rank = everyones_free.index(free_bytes)
        self._free = f"free on rank {rank} (host {self._job.facts[rank].host})"
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
            self._keeper.capped(free_bytes, self._free)
        self._used_bytes.append(self._job.device.used_bytes())
        return arena

    def _measure(self, cell: Cell, numbers: list[int], progress: Progress | None) -> bool:
        """The rounds of a cell, each kept as soon as it is measured; whether any was."""
        reason = self._cannot(cell)
        if reason is not None:
            self._keep(cell, reason, progress)
            return False
        for number in numbers:
            together = self._rounds_of(cell)[number]
            found = self._measure_together(cell, together)
            if found.skipped is not None and found.refused:
                self._refused[_call(cell)] = found.skipped
            if found.records and len(together) > 1 and len(together) == len(self._groups[cell.group]):
                found.aggregates = [aggregate(cell, found.records)]
            self._keep(cell, found, progress)
            if found.skipped is not None:
                return number != numbers[0]
        return True

    def _cannot(self, cell: Cell) -> Found | None:
        """Why a cell is not even tried, if so: known to all ranks alike."""
        needed = self._slot_bytes(cell)
        if needed > self._largest_bytes:
            return Found(skipped=f"out of memory: buffers of {needed} bytes are more than what is {self._free}")
        reason = self._refused.get(_call(cell)) or refused_cell(cell, self._groups[cell.group])
        return None if reason is None else Found(skipped=reason, refused=True)

    def _keep(self, cell: Cell, found: Found, progress: Progress | None) -> None:
        if self._keeper is not None and progress is not None:
            progress.clear()
            self._keeper.keep(cell, found)

    def _measure_together(self, cell: Cell, together: list[int]) -> Found:
        assert self._arena is not None
        mine = self._formed[cell.group].mine(together)
        return CellMeasurement(self._job, self._sweep, cell, mine, self._ranks(cell, together), self._arena).run()

    def _memory_bytes(self) -> dict[str, int]:
        """What groups, buffers and the collectives themselves took, as nccl-tests -M tells them apart."""
        stages = [*self._used_bytes, *[self._job.device.used_bytes()] * (4 - len(self._used_bytes))]
        start, formed, allocated, end = stages
        parts = [formed - start, allocated - formed, end - allocated, end - start]
        names = ("initialization", "user_allocated", "collective", "total")
        return dict(zip(names, (max(0, part) for part in self._job.control.maximum(parts)), strict=True))


def _call(cell: Cell) -> tuple[Any, ...]:
    """What a backend takes or refuses, whatever the size and the regime."""
    return cell.collective, cell.group, cell.dtype, cell.redop, cell.in_place, cell.mode


def _title(sweep: Sweep, sweep_pass: int) -> str:
    if sweep.passes == 1:
        return "measuring"
    return f"pass {sweep_pass + 1}" + (f" of {sweep.passes}" if sweep.passes != ENDLESS else "")
