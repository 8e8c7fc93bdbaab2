"""What a job on the cluster must measure: theory, and beside it a bare torch loop.

The bare loop runs inside the job that it judges: this file, as every rank's command, times torch's own calls, then is a
rank of `collbench run`, then times them again:

    cluster.run(beside_bare_loop("bare.json", ["all_reduce"], [4 << 20], 5, ["run", "--group", "world", ...]))
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

WIRE = ("all_reduce", "broadcast", "send_recv")  # those that move their bytes and copy nothing
_PORTS_ON = -10_000  # from the job's port to the bare loops', which the kernel gives nobody either


def bytes_through_a_nic(collective: str, size_bytes: int, hosts: int) -> float:
    """What gloo sends through the busiest NIC, one rank a host. gather and scatter have the same at the root alone.

    all_reduce is a ring; broadcast a binomial tree whose root sends to all of its children at once; reduce_scatter is
    an all_reduce of which each rank keeps its part.
    """
    ring = (hosts - 1) / hosts * size_bytes
    return {
        "all_reduce": 2 * ring,
        "reduce_scatter_tensor": 2 * ring,
        "all_gather_into_tensor": ring,
        "broadcast": math.ceil(math.log2(hosts)) * size_bytes,
        "send_recv": float(size_bytes),
    }[collective]


def delays(collective: str, hosts: int) -> int:
    """One-way delays in a row in a small message: each hop waits for the receiver's notice, then for the data."""
    return {
        "all_reduce": 4 * (hosts - 1),
        "reduce_scatter_tensor": 4 * (hosts - 1),
        "all_gather_into_tensor": 2 * (hosts - 1),
        "broadcast": 2,
        "send_recv": 2,
    }[collective]


def records_of(path: Path, kind: str = "measurement") -> list[dict[str, Any]]:
    """The records of a kind in a results file, as they are there."""
    return [each for line in path.read_text().splitlines() if (each := json.loads(line))["kind"] == kind]


def wire_time_us(record: dict[str, Any]) -> float:
    """Of a measurement, the time that the wire decides: all ranks', where the mean over ranks would not be.

    Back to back the root of a broadcast is done when its last bytes are queued; its receivers are when they are there.
    """
    slowest = record["collective"] == "broadcast" and record["timing"] == "pipelined"
    return float(record["time_rank_max_us" if slowest else "time_us"])


def sweeps_of(path: Path, sweeps: int) -> Iterable[Path]:
    """The sweeps of a file, one a `pass`, each as a file of its own with the run before it."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for number in range(sweeps):
        one = path.with_suffix(f".{number}.jsonl")
        kept = [each for each in lines if each["kind"] == "run" or each.get("pass") == number]
        one.write_text("".join(json.dumps(each) + "\n" for each in kept))
        yield one


def slow_in_pairs(path: Path) -> set[str]:
    """What the matrices of pairs in a file call slow."""
    from collbench.links import pair_tables
    from collbench.results import load_results
    from collbench.slow_links import compare_links

    [table] = pair_tables(load_results(path))
    return {slow.name for matrix in table.matrices for each in compare_links(table, matrix) for slow in each.slow}


def slow_in_groups(path: Path) -> set[int]:
    """The ranks that are in the slowest group of every kind, where groups of a kind differ by more than a tenth."""
    aggregates = records_of(path, "aggregate")
    named = [set(each["slowest_group"]) if each["overlap"] < 0.9 else set() for each in aggregates]
    return set.intersection(*named)


# --- the bare loop -------------------------------------------------------------------------------------------------


def beside_bare_loop(
    output: Path, collectives: Iterable[str], sizes: Iterable[int], iterations: int, collbench: Sequence[str]
) -> list[str]:
    """The command of a rank that also runs the bare loop. `collbench`: the words after `collbench`.

    output: a file to write, {timing: {collective: {size: us}}}, medians over what came before and after.
    """
    what = json.dumps([str(output), list(collectives), list(sizes), iterations])
    return [sys.executable, str(Path(__file__).resolve()), what, *collbench]


def read_bare(path: Path) -> dict[tuple[str, str, int], float]:
    """{(timing, collective, size): us} of a file that the bare loop wrote."""
    written = json.loads(path.read_text())
    return {
        (timing, collective, int(size)): time_us
        for timing, of_timing in written.items()
        for collective, of_size in of_timing.items()
        for size, time_us in of_size.items()
    }


def _operation(collective: str, size_bytes: int) -> Callable[[], Any]:
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = torch.ones(size_bytes // 4 // ranks * ranks)
    part = torch.ones(len(whole) // ranks)

    def pass_on() -> None:
        # The receive first: gloo's sends wait for the receiver's notice.
        posted = [dist.irecv(received, (rank - 1) % ranks), dist.isend(whole, (rank + 1) % ranks)]
        for each in posted:
            each.wait()

    # torch 2.13 has new names for two, and warns of the old ones.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    if collective == "send_recv":
        received = torch.zeros_like(whole)
        return pass_on
    return {
        "all_reduce": lambda: dist.all_reduce(whole, op=dist.ReduceOp.MAX),  # sums of sums would leave the numbers
        "broadcast": lambda: dist.broadcast(whole, 0),
        "all_gather_into_tensor": lambda: all_gather(whole, part),
        "reduce_scatter_tensor": lambda: reduce_scatter(part, whole),
    }[collective]


def _time_us(collective: str, size_bytes: int, iterations: int) -> dict[str, list[float]]:
    """Samples of both regimes; every rank gets them. The hosts are one machine and so have one clock."""
    import torch.distributed as dist

    call = _operation(collective, size_bytes)
    of_ranks = max if collective == "broadcast" else statistics.mean  # as `wire_time_us` has it

    def together(timed: Callable[[], None]) -> list[tuple[float, float]]:
        dist.barrier()
        begun = time.monotonic()
        timed()
        times: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(times, (begun, time.monotonic()))
        return times

    def back_to_back() -> None:
        for _ in range(iterations):
            call()

    call()
    alone = [together(call) for _ in range(iterations)]
    batch = together(back_to_back)
    return {
        "isolated": [1e6 * (max(end for _, end in each) - max(begun for begun, _ in each)) for each in alone],
        "pipelined": [1e6 * of_ranks([end - begun for begun, end in batch]) / iterations],
    }


def _bare_loop(collectives: list[str], sizes: list[int], iterations: int, port: int) -> dict[Any, list[float]]:
    import torch.distributed as dist

    address = f"tcp://{os.environ['MASTER_ADDR']}:{port}"
    dist.init_process_group(
        "gloo", init_method=address, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
    )
    found = {
        (timing, collective, size): samples
        for collective in collectives
        for size in sizes
        for timing, samples in _time_us(collective, size, iterations).items()
    }
    dist.destroy_process_group()
    return found


def _main(output: str, collectives: list[str], sizes: list[int], iterations: int) -> int:
    from collbench.cli import main

    port = int(os.environ["MASTER_PORT"])
    before = _bare_loop(collectives, sizes, iterations, port + _PORTS_ON)
    code = main(sys.argv[2:])
    if code:
        return code
    after = _bare_loop(collectives, sizes, iterations, port + 1 + _PORTS_ON)
    if os.environ["RANK"] == "0":
        times: dict[str, dict[str, dict[int, float]]] = {}
        for (timing, collective, size), samples in before.items():
            of_sizes = times.setdefault(timing, {}).setdefault(collective, {})
            of_sizes[size] = statistics.median(samples + after[timing, collective, size])
        Path(output).write_text(json.dumps(times, indent=1) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(_main(*json.loads(sys.argv[1])))
