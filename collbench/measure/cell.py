"""One cell on every rank: agree that it can run, warm up, time it until it is precise, check the data.

Rank 0 receives every rank's readings after each batch, and decides for all whether another is needed.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate

from collbench.collectives import COLLECTIVES, bandwidths_GBps
from collbench.measure import calls, operations, samples, timing
from collbench.measure.buffers import Arena
from collbench.measure.clock import now_ns
from collbench.measure.failure import first_line, is_broken_peer
from collbench.measure.groups import Group
from collbench.measure.job import Job
from collbench.measure.overlap import measure_overlap, overlap_record
from collbench.measure.process import here
from collbench.measure.samples import FEWEST_WITH_INTERVAL
from collbench.measure.slots import slot_of
from collbench.measure.timing import RankTimes
from collbench.results import Record
from collbench.sweep import Cell, Sweep

_FIRST_SAMPLES = {"isolated": 10, "pipelined": 6}
_LEAST_SAMPLES = {"isolated": 3, "pipelined": 1}  # also where the budget is for fewer
_BATCH_S = 0.02  # a pipelined batch need not be longer than this: the first operation's latency is little in it
_LEAST_OPERATIONS = 2  # of a pipelined batch
_ROUNDS_BESIDE_COMPUTE, _CALLS_OF_A_ROUND = 30, 2
_ROUND_TO_SAMPLE = 10  # a round beside a matrix product takes as long as several samples, and its loop must be found


@dataclass
class Found:
    """One cell of groups that ran together, as rank 0 holds it: records, or why it was skipped.

    refused: the backend refused the call itself, so it refuses every size.
    """

    records: list[Record] = field(default_factory=list)
    aggregates: list[Record] = field(default_factory=list)
    overlaps: list[Record] = field(default_factory=list)
    skipped: str | None = None
    refused: bool = False


class CellMeasurement:
    """A cell in groups that run at the same time. `group` is this rank's own, None where it only keeps time."""

    def __init__(
        self,
        job: Job,
        sweep: Sweep,
        cell: Cell,
        group: Group | None,
        together: list[tuple[int, ...]],
        arena: Arena,
    ) -> None:
        self._job, self._sweep, self._cell, self._group, self._together = job, sweep, cell, group, together
        self._arena = arena
        self._slot = None if group is None else slot_of(cell, group.nranks, group.rank, sweep.unalign)
        self._fixed = not sweep.precision
        self._late_before = job.deadline.times_late
        # Operations that one call of the timed loop does.
        self._per_call = 1
        if cell.timing == "pipelined":
            self._per_call = sweep.agg_iters * (sweep.iters if sweep.cudagraph else 1)
        # Every rank's readings, on rank 0.
        self._of_ranks = [RankTimes() for _ in range(job.world_size if job.rank == 0 else 0)]

    def run(self) -> Found:
        first_call_ns, refusal = self._probe()
        refusal = self._agree(refusal)
        if refusal is not None:
            return Found(skipped=refusal, refused="memory" not in refusal)
        first_call_ns = self._job.control.maximum([first_call_ns])[0]
        call_s = self._warm_up(first_call_ns / 1e9)
        started = time.monotonic()
        length = self._batch_length(call_s)
        count = self._first_samples(call_s * length)
        while count:
            self._bring_to_rank0(self._measure(count, length))
            count = self._samples_still_needed(started, length)
        beside_compute = self._beside_compute()
        of_ranks = self._job.control.to_rank0([self._wrong(), self._times_late()])
        if of_ranks is None:
            return Found()
        late = [rank for rank, (_, times_late) in enumerate(of_ranks) if times_late]
        found = Found([self._record(ranks, length, [of_ranks[rank][0] for rank in ranks]) for ranks in self._together])
        for record in found.records:
            record |= {"first_call_us": first_call_ns / 1e3, "late_ranks": late}
        if beside_compute is not None:
            found.overlaps = [
                overlap_record(record, ranks, beside_compute)
                for ranks, record in zip(self._together, found.records, strict=True)
            ]
        return found

    # --- on every rank ---------------------------------------------------------------------------------------------

    def _issue(self, count: int) -> timing.Issue | None:
        """What the timed loop calls, `count` times; None on a rank that only keeps time."""
        if self._group is None or self._slot is None:
            return None
        cell, group, device, sweep = self._cell, self._group, self._job.device, self._sweep
        issue = calls.plain(cell, group, self._arena, self._slot, count * self._per_call)
        if cell.timing == "isolated":
            return issue
        if sweep.agg_iters > 1:
            issue = calls.coalesced(issue, sweep.agg_iters, cell, group, device)
        return calls.replayed(issue, sweep.iters, device) if sweep.cudagraph else issue

    def _probe(self) -> tuple[int, str | None]:
        """The first call: (ns it took, the reason where it is refused, as all ranks' backends then refuse it)."""
        if self._group is None or self._slot is None:
            return 0, None
        device = self._job.device
        try:
            # Plainly first: the backend connects now, which no graph can record.
            issue = calls.plain(self._cell, self._group, self._arena, self._slot, 1)
            begun = now_ns()
            timing.run_once(issue, device)
            first_call_ns = now_ns() - begun
            if self._per_call > 1 or self._sweep.cudagraph:
                timing.run_once(self._issue(1) or issue, device)
        except (RuntimeError, ValueError, TypeError, MemoryError) as error:
            if is_broken_peer(error):
                raise
            if isinstance(error, MemoryError) or "memory" in str(error).lower():
                return 0, f"out of memory on {here(self._job.rank)}: {first_line(error)}"
            return 0, f"{device.backend} refuses it: {first_line(error)}"
        return first_call_ns, None

    def _agree(self, refusal: str | None) -> str | None:
        """The lowest rank's refusal, on all ranks; None where no rank refuses."""
        if not any(self._job.control.maximum([int(refusal is not None)])):
            return None
        return next(str(reason) for reason in self._job.control.everyones(refusal) if reason is not None)

    def _warm_up(self, first_call_s: float) -> float:
        """Warm up; the seconds of one call, on the slowest rank, equal on all ranks."""
        calls_s = [] if self._sweep.warmup_iters else [first_call_s]
        issue = self._issue(self._sweep.warmup_iters)
        fits = max(1, int(self._sweep.timeout_s / 2 / max(first_call_s, 1e-9)))
        for _ in range(min(self._sweep.warmup_iters, fits)):
            begun = now_ns()
            if issue is not None:
                timing.run_once(issue, self._job.device)
            calls_s.append((now_ns() - begun) / 1e9)
        return self._job.control.maximum([round(min(calls_s) * 1e9)])[0] / 1e9

    def _batch_length(self, call_s: float) -> int:
        """Calls of a pipelined batch; 1 in the isolated regime."""
        if self._cell.timing == "isolated":
            return 1
        length = self._sweep.cudagraph or self._sweep.iters
        if not self._fixed:
            in_budget = int(self._sweep.budget_s / (_FIRST_SAMPLES["pipelined"] * max(call_s, 1e-9)))
            length = max(_LEAST_OPERATIONS, min(length, in_budget, math.ceil(_BATCH_S / max(call_s, 1e-9))))
            length = max(length, self._sweep.per_iter_skip + _LEAST_OPERATIONS * bool(self._sweep.per_iter))
        return max(1, min(length, self._fits(call_s)))

    def _first_samples(self, sample_s: float) -> int:
        regime = self._cell.timing
        if self._fixed:
            return min(self._sweep.iters, self._fits(sample_s)) if regime == "isolated" else 1
        in_budget = int(self._sweep.budget_s / max(sample_s, 1e-9))
        # Fewer than six have no interval: rather some budgets more.
        with_interval = FEWEST_WITH_INTERVAL if FEWEST_WITH_INTERVAL * sample_s < 4 * self._sweep.budget_s else 0
        count = max(_LEAST_SAMPLES[regime], with_interval, min(_FIRST_SAMPLES[regime], in_budget))
        return min(count, self._fits(sample_s))

    def _fits(self, seconds: float) -> int:
        """How many of so many seconds fit into the timeout of a cell, with room."""
        return max(1, int(self._sweep.timeout_s / 2 / max(seconds, 1e-9)))

    def _measure(self, count: int, length: int) -> RankTimes:
        """`count` samples."""
        device, deadline = self._job.device, self._job.deadline
        issue = self._issue(count * length)
        if self._cell.timing == "isolated":
            return timing.time_isolated(issue, device, deadline, count)
        between = timing.Between(self._sweep.blocking, self._job.control) if self._sweep.blocking else None
        times = RankTimes()
        for _ in range(count):
            times.extend(
                timing.time_pipelined(issue, device, deadline, length, between, each=bool(self._sweep.per_iter))
            )
        return times

    def _beside_compute(self) -> list[list[int]] | None:
        """Every rank's readings of the collective beside a matrix product, on rank 0, where they are asked for."""
        if not self._sweep.with_compute or self._cell.timing != "isolated":
            return None
        rounds = _ROUNDS_BESIDE_COMPUTE
        issue = self._issue(_CALLS_OF_A_ROUND * rounds)
        budget_s = _ROUND_TO_SAMPLE * self._sweep.budget_s
        return self._job.control.to_rank0(measure_overlap(issue, self._job, rounds, budget_s).readings())

    def _wrong(self) -> int:
        """Wrong elements of this rank's results in the last check; -1 where none was asked for."""
        if not self._sweep.check:
            return -1
        wrong = 0
        for _ in range(self._sweep.check):  # all of them on all ranks, whatever one of them finds
            if self._group is None or self._slot is None:
                continue
            buffers = next(self._arena.buffers(self._cell, self._group, self._slot, 1))
            operations.fill_for_check(self._cell, self._group, buffers)
            self._job.device.synchronize()
            # Not timed: the plain blocking call.
            operations.OPERATIONS[self._cell.collective].call(self._cell, self._group, buffers, False)
            self._job.device.synchronize()
            wrong = wrong or operations.wrong_elements(self._cell, self._group, buffers)
            self._arena.clear(buffers)
        return wrong

    def _times_late(self) -> int:
        return self._job.deadline.times_late - self._late_before

    def _bring_to_rank0(self, times: RankTimes) -> None:
        lists = [times.entered_ns, times.left_ns, times.issued_ns, times.iterations_ns]
        readings = self._job.control.to_rank0(
            [times.late, times.late_kept, *(value for each in lists for value in each)]
        )
        for of_rank, values in zip(self._of_ranks, readings or [], strict=False):
            late, late_kept, *rest = values
            ends = accumulate(map(len, lists))
            entered, left, issued, each_ns = (
                rest[end - len(part) : end] for end, part in zip(ends, lists, strict=True)
            )
            of_rank.extend(RankTimes(entered, left, issued, each_ns, late, late_kept))

    def _samples_still_needed(self, started: float, length: int) -> int:
        """How many samples more, 0 for none; equal on all ranks."""
        if self._fixed:
            return 0
        count = self._more_samples(time.monotonic() - started, length) if self._job.rank == 0 else 0
        return self._job.control.maximum([count])[0]

    # --- on rank 0 -------------------------------------------------------------------------------------------------

    def _samples_us(self, ranks: tuple[int, ...], length: int) -> list[float]:
        times = [self._of_ranks[rank] for rank in ranks]
        if self._cell.timing == "isolated":
            return samples.isolated_samples_us(times)
        return samples.pipelined_samples_us(times, length * self._per_call)

    def _more_samples(self, elapsed_s: float, length: int) -> int:
        """What the least precise group needs more: the interval narrows with the root of the number of samples."""
        of_groups = [self._samples_us(ranks, length) for ranks in self._together]
        if all(samples.is_precise(of_group, self._sweep.precision) for of_group in of_groups):
            return 0
        done = len(of_groups[0])
        in_budget = int((self._sweep.budget_s - elapsed_s) / (elapsed_s / done))
        widest = max(samples.relative_interval(of_group) for of_group in of_groups)
        needed = done * ((widest / self._sweep.precision) ** 2 - 1)
        return max(0, min(math.ceil(min(max(needed, done / 4), 2 * done)), in_budget))

    def _record(self, ranks: tuple[int, ...], length: int, wrong: list[int]) -> Record:
        times = [self._of_ranks[rank] for rank in ranks]
        if self._cell.timing == "isolated":
            figures = samples.summarize_isolated(ranks, times)
        else:
            figures = samples.summarize_pipelined(ranks, times, length * self._per_call)
        in_time = times[0].late_kept < len(figures["samples_us"])  # at least one sample that all ranks began in time
        precise = None if self._fixed else in_time and samples.is_precise(figures["samples_us"], self._sweep.precision)
        unstable = samples.is_unstable(figures["samples_us"])
        if not self._sweep.samples:
            del figures["samples_us"], figures["rank_samples_us"]
        record = {**self._cell.record(ranks), "nnodes": self._job.layout.nnodes_of(ranks), **figures}
        collective = COLLECTIVES[self._cell.collective]
        algbw, busbw = bandwidths_GBps(collective, record["size_bytes"], record["time_us"], len(ranks))
        record |= {
            "algbw_GBps": algbw,
            "busbw_GBps": busbw,
            "wrong": None if -1 in wrong else sum(wrong),
            "precise": precise,
            "unstable": unstable,
            "late": times[0].late,
            "late_kept": times[0].late_kept,
            "rotation": self._arena.slots(slot_of(self._cell, len(ranks), 0, self._sweep.unalign)),
            "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        if self._sweep.per_iter and self._cell.timing == "pipelined":
            record["per_iter"] = samples.per_iteration(times, length, self._sweep.per_iter_skip, self._per_call)
        return record
