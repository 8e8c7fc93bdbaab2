"""What collbench's worker adds to a bare loop of torch calls: `python -m tests.bench_overhead`.

One process group of two ranks; the same collective, alignment and clock; blocks interleaved A B B A (bare, worker,
worker, bare) so that drift cancels. Prints, for each size and regime, the median over blocks of the ratio
worker / bare with its 95 % interval. Goal: at most 1.05 from 8 B to 64 KiB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from collbench.measure.process import Verdict
from collbench.sweep import Cell

SIZES = (8, 64, 512, 4096, 65536)
GOAL = 1.05


def block_of_bare_calls(torch_all_reduce, tensor, group, deadline, now_ns, iterations, timing):
    """Nanoseconds of `iterations` operations, written as one would without collbench, on its alignment and clock."""
    if timing == "pipelined":
        deadline.wait()
        begun = now_ns()
        for _ in range(iterations):
            torch_all_reduce(tensor, group=group)
        return now_ns() - begun
    spent, pending, voids = [], None, 0
    while True:
        start = deadline.wait()
        if pending is not None:
            if (
                deadline.previous_void and voids < iterations
            ):  # some rank missed the deadline: not a sample, on any side
                voids += 1
            else:
                spent.append(pending)
        if len(spent) == iterations:
            return sum(spent)
        torch_all_reduce(tensor, group=group)
        pending = now_ns() - start


def bench(job, stdout, blocks, iterations):
    import torch.distributed as dist

    from collbench.measure import operations
    from collbench.measure.clock import now_ns
    from collbench.measure.timing import interval_of_median, median, time_isolated, time_pipelined

    group = job.form({"world": [tuple(range(job.world_size))]}, 60.0)["world"][0]
    worst = 0.0
    for timing in ("pipelined", "isolated"):
        for size in SIZES:
            cell = Cell(
                collective="all_reduce", group="world", dtype="float32", redop="sum", root=None, requested_bytes=size,
                timing=timing, in_place=True, repeat=0, concurrent=True,
            )  # fmt: skip
            buffers = operations.allocate(cell, group, job.device.torch_device)
            operations.fill_for_timing(cell, buffers)

            def issue(async_op, cell=cell, buffers=buffers):
                return operations.OPERATIONS["all_reduce"].call(cell, group, buffers, async_op)

            def bare(tensor=buffers.recv, timing=timing):
                return block_of_bare_calls(
                    dist.all_reduce, tensor, group.handle, job.deadline, now_ns, iterations, timing
                )

            def worker(issue=issue, timing=timing):
                regime = time_isolated if timing == "isolated" else time_pipelined
                times = regime(issue, job.device, job.deadline, iterations)
                if timing == "isolated":
                    return sum(times.left_ns)
                return times.left_ns[0] - times.entered_ns[0]

            ratios = []
            for block in range(blocks + 10):
                order = (bare, worker, worker, bare)
                a1, b1, b2, a2 = job.control.maximum([run() for run in order])  # the slowest rank's, as the worker's
                if block >= 10:
                    ratios.append((b1 + b2) / (a1 + a2))
            low, high = interval_of_median(ratios)
            worst = max(worst, median(ratios))
            if job.rank == 0:
                print(
                    f"{timing:10} {size:7} B  worker/bare {median(ratios):.3f}  [{low:.3f}, {high:.3f}]  "
                    f"{len(ratios)} blocks of {iterations}", file=stdout, flush=True,
                )  # fmt: skip
    if job.rank == 0:
        print(f"worst {worst:.3f}, goal {GOAL}", file=stdout, flush=True)
    return Verdict(0)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=200)
    parser.add_argument("--iterations", type=int, default=20)
    arguments = parser.parse_args(argv)
    if "RANK" in os.environ:
        from collbench.measure.worker import be_a_rank

        return be_a_rank(
            lambda job, stdout: bench(job, stdout, arguments.blocks, arguments.iterations), "gloo", 60.0, debug=True
        )
    root = str(Path(__file__).parents[1])
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "tests.bench_overhead"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": root}
    return subprocess.call([*command, *(argv or sys.argv[1:])], env=environment, cwd=root)


if __name__ == "__main__":
    sys.exit(main())
