"""How soon collbench knows a median, beside loops of a fixed length: `python -m tests.bench_time_to_answer`.

Two gloo ranks measure every cell of a sweep twice in a row: as `collbench run` does, until the median is known to
--precision or --budget is over; then by loops of 100 iterations, which are repeated until the median is known as well
as collbench has come to know it. Both have the same group, buffers, warm-up, regimes, alignment, rule for void samples
and interval: the 95 % one of the median, from order statistics. How well a median is known is how far that reaches from
it. A sample is one operation in the isolated regime, one batch or one loop in the pipelined one; an interval needs six.
Neither side checks data or writes a file.

So both sides give the same answer for every cell, and what is compared is the time. A loop that has begun ends, as such
loops do; none begins after --most seconds, and a cell that the loops give up counts with the time spent in vain, which
is less than they would have needed. Either side may come to a narrow interval by luck, and over many cells that evens
out: the loops, which stop at the first one, are spared samples by theirs, and have to match collbench's.

Printed, for each regime and for both: the cells that collbench brought to the precision, those that it did not, and
all of them, with the sum of the wall times, their ratio, the median cell's ratio, and the median of how well they are
known; apart from them the cells for which collbench's budget had no six samples, as nothing is known there. Large
sizes, of which 100 iterations take seconds, weigh most in the sums. Goal: less than half the wall time of the loops.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from collbench.measure.process import Verdict
from collbench.sweep import Sweep, in_order, plan_cells
from collbench.sweep_words import TIMINGS
from collbench.units import parse_size

LOOP = 100
GOAL = 0.5


@dataclass(frozen=True)
class Answer:
    """What one side did for a cell. width: how far the interval reaches from the median, as a part of it."""

    wall_s: float
    width: float
    operations: int

    def __str__(self):
        return f"{self.wall_s:7.3f} s {self.operations:6} ops {self.width:8.2%}"


def by_collbench(job, sweep, cell, group, arena):
    """The samples in us and the number of operations, on rank 0; nothing on the others."""
    from collbench.measure.cell import CellMeasurement

    found = CellMeasurement(job, sweep, cell, group, [group.ranks], arena).run()
    assert found.skipped is None, found.skipped
    return (found.records[0]["samples_us"], found.records[0]["iterations"]) if job.rank == 0 else ([], 0)


def by_fixed_loops(job, sweep, cell, group, arena, width, most_s):
    """The same by loops of LOOP iterations, until the interval is as narrow as `width` (of rank 0)."""
    from collbench.measure import calls, samples
    from collbench.measure.slots import slot_of
    from collbench.measure.timing import RankTimes, run_once, time_isolated, time_pipelined

    slot = slot_of(cell, group.nranks, group.rank)
    for _ in range(sweep.warmup_iters):
        run_once(calls.plain(cell, group, arena, slot, 1), job.device)
    timed = time_isolated if cell.timing == "isolated" else time_pipelined
    started = time.monotonic()
    samples_us, loops, going = [], 0, True
    while going:
        issue = calls.plain(cell, group, arena, slot, LOOP)
        times = timed(issue, job.device, job.deadline, LOOP)
        loops += 1
        readings = job.control.to_rank0([*times.entered_ns, *times.left_ns])
        more = False
        if readings is not None:
            half = len(times.left_ns)
            of_ranks = [RankTimes(entered_ns=each[:half], left_ns=each[half:]) for each in readings]
            if cell.timing == "isolated":
                samples_us += samples.isolated_samples_us(of_ranks)
            else:
                samples_us += samples.pipelined_samples_us(of_ranks, LOOP)
            more = samples.relative_interval(samples_us) > width and time.monotonic() - started < most_s
        going = bool(job.control.maximum([int(more)])[0])
    return samples_us, loops * LOOP


def answer(job, side):
    """What a side found and took; on the other ranks than 0 without what it found."""
    from collbench.measure.samples import relative_interval

    job.deadline.wait()
    begun = time.perf_counter()
    samples_us, operations = side()
    wall_s = time.perf_counter() - begun
    return Answer(wall_s, relative_interval(samples_us) if job.rank == 0 else 0.0, operations)


def bench(job, stdout, sweep, most_s, each_cell):
    from collbench.measure.buffers import Arena
    from collbench.measure.groups import form_kind
    from collbench.measure.slots import slot_of

    groups = {"world": [tuple(range(job.world_size))]}
    group = form_kind(job.rank, groups["world"], job.device, sweep.timeout_s).groups[0]
    cells = in_order(sweep, plan_cells(sweep, groups))
    cache_bytes = job.control.maximum([job.device.cache_bytes])[0]
    largest_bytes = max(slot_of(cell, job.world_size).stride_bytes for cell in cells)
    arena = Arena(job.device.torch_device, 2 * cache_bytes, largest_bytes)
    answers = {timing: [] for timing in TIMINGS}
    for number, cell in enumerate(cells):
        what = (job, sweep, cell, group, arena)
        ours = answer(job, lambda what=what: by_collbench(*what))
        width = max(ours.width, sweep.precision)
        fixed = answer(job, lambda what=what, width=width: by_fixed_loops(*what, width, most_s))
        if job.rank != 0:
            continue
        answers[cell.timing].append((ours, fixed))
        if each_cell:
            print(f"{cell.timing:10} {cell.collective:22} {'in ' if cell.in_place else 'out'} {cell.requested_bytes:9} "
                  f"B  collbench {ours}  fixed {fixed}  ratio {ours.wall_s / fixed.wall_s:.2f}",
                  file=stdout, flush=True)  # fmt: skip
        elif number % 20 == 0:
            print(f"{number} of {len(cells)} cells", file=sys.stderr)
    if job.rank == 0:
        both = [cell for of_regime in answers.values() for cell in of_regime]
        for name, of_regime in {**answers, "both": both}.items():
            summarize(name, of_regime, sweep.precision, stdout)
        known = [cell for cell in both if cell[0].width < math.inf]
        if known:
            ratio = sum(ours.wall_s for ours, _ in known) / sum(fixed.wall_s for _, fixed in known)
            print(f"ratio {ratio:.3f}, goal under {GOAL}: {'met' if ratio < GOAL else 'not met'}", file=stdout)
    return Verdict(0)


def summarize(name, cells, precision, stdout):
    known = [cell for cell in cells if cell[0].width < math.inf]
    parts = [
        (f"known to {precision:.0%}", [cell for cell in known if cell[0].width <= precision]),
        ("known less well", [cell for cell in known if cell[0].width > precision]),
        ("all", known),
        ("no interval", [cell for cell in cells if cell[0].width == math.inf]),
    ]
    for what, part in parts:
        if not part:
            print(f"{name:9} {what}: 0 cells", file=stdout)
            continue
        ours_s, fixed_s = (sum(side.wall_s for side in sides) for sides in zip(*part, strict=True))
        middle = median([ours.wall_s / fixed.wall_s for ours, fixed in part])
        widths = ", ".join(f"{median([side.width for side in sides]):.2%}" for sides in zip(*part, strict=True))
        gave_up = sum(fixed.width > max(ours.width, precision) for ours, fixed in part)
        print(f"{name:9} {what}: {len(part)} cells  collbench {ours_s:.1f} s, fixed {fixed_s:.1f} s, ratio "
              f"{ours_s / fixed_s:.3f} (median cell {middle:.3f})  widths {widths}  given up by fixed: {gave_up}",
              file=stdout)  # fmt: skip


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-b", "--minbytes", type=parse_size, default=8)
    parser.add_argument("-e", "--maxbytes", type=parse_size, default=32 * 2**20)
    parser.add_argument("-f", "--stepfactor", type=int, default=2)
    parser.add_argument("--precision", type=float, default=Sweep().precision)
    parser.add_argument("--budget", type=float, default=Sweep().budget_s, help="seconds of collbench for one cell")
    parser.add_argument("--most", type=float, default=2.0, help="seconds after which no fixed loop begins")
    parser.add_argument("--cells", action="store_true", help="print every cell")
    arguments = parser.parse_args(argv)
    if "RANK" in os.environ:
        from collbench.measure.worker import be_a_rank

        sweep = Sweep(
            minbytes=arguments.minbytes, maxbytes=arguments.maxbytes, stepfactor=arguments.stepfactor,
            precision=arguments.precision, budget_s=arguments.budget, check=0, samples=True,
        )  # fmt: skip

        def work(job, stdout):
            return bench(job, stdout, sweep, arguments.most, arguments.cells)

        return be_a_rank(work, "gloo", sweep.timeout_s, debug=True)
    root = str(Path(__file__).parents[1])
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": root}
    return subprocess.call(
        [*command, "-m", "tests.bench_time_to_answer", *(argv or sys.argv[1:])], env=environment, cwd=root
    )


if __name__ == "__main__":
    sys.exit(main())
