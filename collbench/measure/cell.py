"""One cell on every rank: agree that it can run, warm up, time it, check the data, bring the readings to rank 0."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from collbench.collectives import COLLECTIVES, bandwidths_GBps
from collbench.measure import operations, timing
from collbench.measure.clock import now_ns
from collbench.measure.failure import first_line, is_broken_peer
from collbench.measure.job import Job
from collbench.measure.operations import Buffers, Group
from collbench.measure.process import here
from collbench.results import Record
from collbench.sweep import Cell, Sweep


@dataclass
class Found:
    """One cell of some groups of a kind, as rank 0 holds it: records, or why it was skipped."""

    records: list[Record] = field(default_factory=list)
    skipped: str | None = None


class CellMeasurement:
    """A cell in groups that run at the same time. `group` is this rank's own, None where it only keeps time."""

    def __init__(
        self, job: Job, sweep: Sweep, cell: Cell, group: Group | None, together: list[tuple[int, ...]]
    ) -> None:
        self._job, self._sweep, self._cell, self._group, self._together = job, sweep, cell, group, together
        self._call = operations.OPERATIONS[cell.collective].call
        self._buffers: Buffers | None = None
        self._probe_ns = 0

    def run(self) -> Found:
        started = time.monotonic()
        refused = self._agree(self._prepare()) or self._agree(self._probe())
        if refused:
            return Found(skipped=refused)
        operation_s = self._job.control.maximum([self._probe_ns])[0] / 1e9
        fits = max(1, int(self._sweep.timeout_s / 2 / max(operation_s, 1e-9)))
        for _ in range(min(self._sweep.warmup_iters, fits)):
            if self._group is not None:
                timing.run_once(self._issue, self._job.device)
        iterations = min(self._sweep.iters, fits)
        times: list[timing.RankTimes] = []
        while True:
            times.append(self._time(iterations))
            if self._precise_enough(times, started):
                break
        wrong = self._wrong()
        return self._collect(times, wrong, iterations)

    def _issue(self, async_op: bool) -> Any:
        assert self._group is not None and self._buffers is not None
        return self._call(self._cell, self._group, self._buffers, async_op)

    def _prepare(self) -> str | None:
        """Allocate this rank's buffers; the reason where that fails."""
        if self._group is None:
            return None
        needed = operations.buffer_bytes(self._cell, self._group.nranks)
        where = here(self._job.rank)
        try:
            free = self._job.device.free_bytes()
            if needed > free:
                return f"out of memory on {where}: the buffers need {needed} bytes, {free} are free"
            self._buffers = operations.allocate(self._cell, self._group, self._job.device.torch_device)
            operations.fill_for_timing(self._cell, self._buffers)
        except (RuntimeError, MemoryError, TypeError) as error:
            self._buffers = None
            memory = "memory" in str(error).lower() or isinstance(error, MemoryError)
            return f"{'out of memory' if memory else first_line(error)} on {where}"
        return None

    def _probe(self) -> str | None:
        """The first operation; the reason where the backend refuses it, as all ranks' backends then do."""
        if self._group is None:
            return None
        begun = now_ns()
        try:
            timing.run_once(self._issue, self._job.device)
        except (RuntimeError, ValueError, TypeError) as error:
            if is_broken_peer(error):
                raise
            return f"{self._job.device.backend} refuses it: {first_line(error)}"
        self._probe_ns = now_ns() - begun
        return None

    def _agree(self, refusal: str | None) -> str | None:
        """The lowest rank's refusal, on all ranks; None where no rank refuses."""
        if not any(self._job.control.maximum([int(refusal is not None)])):
            return None
        return next(str(reason) for reason in self._job.control.everyones(refusal) if reason is not None)

    def _time(self, iterations: int) -> timing.RankTimes:
        regime = timing.time_isolated if self._cell.timing == "isolated" else timing.time_pipelined
        issue = self._issue if self._group is not None else None
        return regime(issue, self._job.device, self._job.deadline, iterations)

    def _precise_enough(self, times: list[timing.RankTimes], started: float) -> bool:
        """Whether to stop repeating; without --precision one batch is all. Rank 0 decides for all."""
        if not self._sweep.precision or self._cell.timing != "isolated":
            return True
        # The sample of an iteration is the last exit over all ranks; groups that run together stop together.
        last_exits = self._job.control.maximum([value for batch in times for value in batch.left_ns])
        samples = [float(value) for value in last_exits]
        low, high = timing.interval_of_median(samples)
        narrow = high - low <= 2 * self._sweep.precision * timing.median(samples)
        stop = narrow or time.monotonic() - started > self._sweep.timeout_s / 4
        return bool(self._job.control.from_rank(0, stop))

    def _wrong(self) -> int:
        """Wrong elements of this rank's results in the last check; -1 where none was asked for."""
        if not self._sweep.check:
            return -1
        wrong = 0
        for _ in range(self._sweep.check):
            if self._group is None or self._buffers is None or wrong:
                continue
            operations.fill_for_check(self._cell, self._group, self._buffers)
            self._job.device.synchronize()
            self._issue(False)  # not timed: the plain blocking call
            self._job.device.synchronize()
            wrong = operations.wrong_elements(self._cell, self._group, self._buffers)
        return wrong

    def _collect(self, times: list[timing.RankTimes], wrong: int, iterations: int) -> Found:
        """Bring every rank's readings to rank 0, and make them records there."""
        entered = [value for batch in times for value in batch.entered_ns]
        left = [value for batch in times for value in batch.left_ns]
        readings = self._job.control.to_rank0([wrong, *entered, *left])
        if readings is None:
            return Found()
        return Found([self._record(ranks, readings, len(entered), iterations) for ranks in self._together])

    def _record(self, ranks: tuple[int, ...], readings: list[list[int]], samples: int, iterations: int) -> Record:
        of_ranks = [readings[rank] for rank in ranks]
        times = [timing.RankTimes(values[1 : 1 + samples], values[1 + samples :]) for values in of_ranks]
        if self._cell.timing == "isolated":
            figures = timing.summarize_isolated(ranks, times)
        else:
            figures = timing.summarize_pipelined(ranks, times, iterations)
        if not self._sweep.samples:
            del figures["samples_us"]
        record = {**self._cell.record(ranks), "nnodes": self._job.layout.nnodes_of(ranks), **figures}
        collective = COLLECTIVES[self._cell.collective]
        algbw, busbw = bandwidths_GBps(collective, record["size_bytes"], record["time_us"], len(ranks))
        wrong = [values[0] for values in of_ranks]
        record |= {"algbw_GBps": algbw, "busbw_GBps": busbw, "wrong": None if -1 in wrong else sum(wrong)}
        return record
