"""What collbench's timed loops add to a bare loop of torch calls: `python -m tests.bench_overhead`.

Both run in the same processes on the same process group, with the same buffers in the same rotation, the same common
deadline, clock and rule for void samples, and without the garbage collector. The bare loop is what one writes by hand:
torch's own blocking call on tensors that lie ready. What differs is collbench's: its iterators and closures around
the call, the table of operations, the asynchronous call and its wait, the readings it keeps.

Blocks are interleaved A B B A (bare, collbench, collbench, bare), so that a drift of the machine cancels. A block's
ratio is that of the medians of its samples, collbench / bare: an isolated sample is the last exit over all ranks of
one operation, a pipelined one the time per operation, mean over ranks, of a batch. A row is the median of the blocks'
ratios with its 95 % interval. Where collbench adds nothing, the two sides of a block can be exchanged, and so its ratio
is as often above 1 as below, whatever the distribution of the times: also where an operation takes either 0.4 ms or,
when a wake-up waits for the scheduler's tick, 4 ms. A ratio of means or of totals would be the ratio of the numbers of
ticks; a ratio of minima would leave out what happens only sometimes. Batches are short, so that half of them have no
tick in them.

The last rows are the host's time for a call on torch's fake process group, which communicates nothing: the same
difference without the noise, in microseconds, and as a part of the quickest operation of the rows above.

Goals, over sizes and regimes: the median ratio at most 1.02, the worst at most 1.05.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import subprocess
import sys
import time
from copy import copy
from itertools import islice
from pathlib import Path

from collbench.measure.process import Verdict
from collbench.sweep import Cell
from collbench.sweep_words import TIMINGS
from collbench.units import format_size, parse_size

SIZES = (8, 64, 512, 4096, 32768, 262144, 1048576)
MEDIAN_GOAL, WORST_GOAL = 1.02, 1.05
LEAST_BLOCKS = 6  # fewer have no interval
WARM_UP_BLOCKS = 3
BATCH = 4  # operations
MOST_TRIES = 3  # of a pipelined batch, void ones included
CALLS_ALONE = 200  # in a batch on the fake process group


def bare_isolated(tensors, group, synchronize, deadline, iterations):
    """Nanoseconds from the deadline to this rank's exit, of each operation; those where a rank came late again."""
    import torch.distributed as dist

    from collbench.measure.clock import now_ns

    spent, pending, again = [], None, 0
    gc.disable()
    while True:
        start = deadline.wait()
        if pending is not None:
            if deadline.previous_void and again < iterations:
                again += 1
            else:
                spent.append(pending)
        if len(spent) == iterations:
            gc.enable()
            return spent
        dist.all_reduce(next(tensors), group=group)
        if synchronize is not None:
            synchronize()
        pending = now_ns() - start
        deadline.measured(pending)


def bare_pipelined(tensors, group, synchronize, deadline, iterations):
    """Nanoseconds of a batch of operations; done again, twice at most, where a rank came late."""
    import torch.distributed as dist

    from collbench.measure.clock import now_ns

    gc.disable()
    for _ in range(MOST_TRIES):
        batch = list(islice(tensors, iterations))
        start = deadline.wait()
        begun = now_ns()
        for tensor in batch:
            dist.all_reduce(tensor, group=group)
        if synchronize is not None:
            synchronize()
        ended = now_ns()
        deadline.measured(ended - start)
        deadline.wait()
        if not deadline.previous_void:
            break
    gc.enable()
    return [ended - begun]


def collbench_isolated(issue, device, deadline, iterations):
    from collbench.measure.timing import time_isolated

    return time_isolated(issue, device, deadline, iterations).left_ns


def collbench_pipelined(issue, device, deadline, iterations):
    from collbench.measure.timing import time_pipelined

    times = time_pipelined(issue, device, deadline, iterations)
    return [times.left_ns[0] - times.entered_ns[0]]


BARE = {"pipelined": bare_pipelined, "isolated": bare_isolated}
COLLBENCH = {"pipelined": collbench_pipelined, "isolated": collbench_isolated}


def two_sides(job, group, arena, cell, samples, batch):
    """(bare, collbench): functions without arguments that return this rank's readings in ns of one run, which is so
    many samples; `batch`: operations of a pipelined one."""
    import torch

    from collbench.measure import calls
    from collbench.measure.slots import slot_of

    slot = slot_of(cell, group.nranks, group.rank)
    synchronize = torch.cuda.synchronize if job.device.backend == "nccl" else None
    at_once, times = (samples, 1) if cell.timing == "isolated" else (batch, samples)

    def bare():
        buffers = arena.buffers(cell, group, slot, samples * batch)
        tensors = iter([each.recv for each in islice(buffers, MOST_TRIES * samples * batch)])
        runs = (BARE[cell.timing](tensors, group.handle, synchronize, job.deadline, at_once) for _ in range(times))
        return [reading for run in runs for reading in run]

    def collbench():
        issue = calls.plain(cell, group, arena, slot, samples * batch)
        runs = (COLLBENCH[cell.timing](issue, job.device, job.deadline, at_once) for _ in range(times))
        return [reading for run in runs for reading in run]

    return bare, collbench


def figure(timing, runs):
    """The median of the samples of two runs; runs[i][rank] are readings."""
    from collbench.measure.samples import median

    of_ranks = max if timing == "isolated" else lambda readings: sum(readings) / len(readings)
    return median([of_ranks(readings) for run in runs for readings in zip(*run, strict=True)])


def measure_blocks(job, timing, bare, collbench, seconds):
    """(bare ns, collbench ns) of every block, on rank 0: medians of an operation, or of a batch."""
    blocks, done, going = [], 0, True
    until = time.monotonic() + seconds
    while going:
        a1, b1, b2, a2 = (job.control.to_rank0(run()) for run in (bare, collbench, collbench, bare))
        done += 1
        if job.rank == 0 and done > WARM_UP_BLOCKS:
            blocks.append((figure(timing, (a1, a2)), figure(timing, (b1, b2))))
        more = job.rank == 0 and (len(blocks) < LEAST_BLOCKS or time.monotonic() < until)
        going = bool(job.control.maximum([int(more)])[0])
    return blocks


def bench(job, stdout, sizes, seconds, samples):
    from torch.testing._internal.distributed import fake_pg  # noqa: F401  makes the fake backend known

    from collbench.measure.buffers import Arena
    from collbench.measure.groups import form_kind
    from collbench.measure.samples import interval_of_median, median

    def say(text):
        if job.rank == 0:
            print(text, file=stdout, flush=True)

    world = [tuple(range(job.world_size))]
    silent_device = copy(job.device)
    silent_device.backend = "fake"
    group, silent = (form_kind(job.rank, world, device, 60.0).groups[0] for device in (job.device, silent_device))
    cache_bytes = job.control.maximum([job.device.cache_bytes])[0]
    arena = Arena(job.device.torch_device, 2 * cache_bytes, 2 * max(sizes))
    rows, quickest_us = [], math.inf
    for timing in TIMINGS:
        for size in sizes:
            batch = BATCH if timing == "pipelined" else 1
            sides = two_sides(job, group, arena, cell_of(timing, size), samples, batch)
            blocks = measure_blocks(job, timing, *sides, seconds)
            if job.rank == 0:
                ratios = [ours / bare for bare, ours in blocks]
                low, high = interval_of_median(ratios)
                rows.append((median(ratios), low, high))
                bare_us = median([bare for bare, _ in blocks]) / batch / 1e3
                quickest_us = min(quickest_us, bare_us)
                say(f"{timing:10} {size:7} B  collbench/bare {median(ratios):.3f}  [{low:.3f}, {high:.3f}]  bare "
                    f"{bare_us:.1f} us  {len(blocks)} blocks")  # fmt: skip
    for size in (min(sizes), max(sizes)):
        cell = cell_of("pipelined", size)
        blocks = measure_blocks(job, "pipelined", *two_sides(job, silent, arena, cell, 1, CALLS_ALONE), seconds)
        if job.rank == 0:
            added = [(ours - bare) / CALLS_ALONE / 1e3 for bare, ours in blocks]
            low, high = interval_of_median(added)
            bare_us = median([bare for bare, _ in blocks]) / CALLS_ALONE / 1e3
            say(f"calls alone {format_size(size):>6}  {median(added):+.2f} us a call  [{low:+.2f}, {high:+.2f}]  bare "
                f"{bare_us:.2f} us  {len(blocks)} blocks  {median(added) / quickest_us:+.2%} of the quickest operation"
                )  # fmt: skip
    if job.rank == 0:
        middle, worst = median([ratio for ratio, *_ in rows]), max(rows)
        say(f"median {middle:.3f}, goal at most {MEDIAN_GOAL}: {'met' if middle <= MEDIAN_GOAL else 'not met'}")
        say(f"worst  {worst[0]:.3f}  [{worst[1]:.3f}, {worst[2]:.3f}], goal at most {WORST_GOAL}: "
            f"{'met' if worst[0] <= WORST_GOAL else 'not met'}")  # fmt: skip
    return Verdict(0)


def cell_of(timing, size):
    return Cell(
        collective="all_reduce", group="world", dtype="float32", redop="sum", root=None, requested_bytes=size,
        timing=timing, in_place=True, repeat=0, concurrent=True,
    )  # fmt: skip


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=SIZES, type=lambda text: [parse_size(size) for size in text.split(",")])
    parser.add_argument("--seconds", type=float, default=20.0, help="for each row")
    parser.add_argument("--samples", type=int, default=10, help="in one run of one side")
    parser.add_argument("--backend", default="gloo", choices=("gloo", "nccl"))
    parser.add_argument("--nproc", type=int, default=2, help="ranks")
    arguments = parser.parse_args(argv)
    if "RANK" in os.environ:
        from collbench.measure.worker import be_a_rank

        def work(job, stdout):
            return bench(job, stdout, arguments.sizes, arguments.seconds, arguments.samples)

        return be_a_rank(work, arguments.backend, 60.0, debug=True)
    root = str(Path(__file__).parents[1])
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(arguments.nproc)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": root}
    return subprocess.call([*command, "-m", "tests.bench_overhead", *(argv or sys.argv[1:])], env=environment, cwd=root)


if __name__ == "__main__":
    sys.exit(main())
