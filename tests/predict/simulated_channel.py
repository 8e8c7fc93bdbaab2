"""Run as a program: torch's own DDP at any number of ranks in one process, over a channel that takes a model's time.

A process group, registered through torch's public interface, moves no data: a collective completes when the model says
that it would have, one after another. Computation is a wait, so that it overlaps as a GPU's does.

stdin: {"nranks": …, "alpha_ms": …, "ms_per_MB": …, "cases": [{"layers": […], "bucket_cap_mb": …}, …]}
stdout: for each case {"step_ms": […], "backward_ms": […]}: each step's end, and that of its last backward computation.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from collbench.predict.workload import Workload
from collbench.validate.compute import Wait
from collbench.validate.net import Net

WARMUP_STEPS, STEPS = 3, 10


class Channel:
    """Serves collectives in the order of issue, each alpha_ms and ms_per_MB of its size."""

    def __init__(self, alpha_ms: float, ms_per_MB: float) -> None:
        self._alpha_ms, self._ms_per_MB = alpha_ms, ms_per_MB
        self._waiting: queue.Queue[tuple[float, float, torch.futures.Future, Any]] = queue.Queue()
        threading.Thread(target=self._serve, daemon=True).start()

    def send(self, size_bytes: int, result: Any) -> torch.futures.Future:
        future: torch.futures.Future = torch.futures.Future()
        cost_s = (self._alpha_ms + self._ms_per_MB * size_bytes / 1e6) / 1e3
        self._waiting.put((time.perf_counter(), cost_s, future, result))
        return future

    def _serve(self) -> None:
        free = 0.0
        while True:
            issued, cost_s, future, result = self._waiting.get()
            free = max(free, issued) + cost_s
            time.sleep(max(0.0, free - time.perf_counter()))
            future.set_result(result)


class Sending(dist.Work):
    def __init__(self, future: torch.futures.Future) -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout=None) -> bool:
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        return self._future.done()

    def get_future(self) -> torch.futures.Future:
        return self._future


class Simulated(dist.ProcessGroup):
    channel: Channel

    def __init__(self, rank: int, size: int, name: str) -> None:
        super().__init__(rank, size)
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name

    def getGroupName(self) -> str:
        return self._name

    def getBackendName(self) -> str:
        return "simulated"

    def allreduce(self, tensors, opts=None) -> Sending:
        size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return Sending(self.channel.send(size_bytes, tensors))

    def allgather(self, outputs, inputs, opts=None) -> Sending:
        for output, tensor in zip(outputs, inputs, strict=True):
            for each in output:
                each.copy_(tensor)
        return self._done(outputs)

    def broadcast(self, tensors, opts=None) -> Sending:
        return self._done(tensors)

    def _done(self, result: Any) -> Sending:
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(result)
        return Sending(future)


def measure(case: dict) -> dict[str, list[float]]:
    workload = Workload.from_dict({"layers": case["layers"]})
    compute = Wait()
    net = Net(workload, torch.float32, torch.device("cpu"), compute)
    ddp = DistributedDataParallel(net, bucket_cap_mb=case["bucket_cap_mb"], gradient_as_bucket_view=True)
    steps: dict[str, list[float]] = {"step_ms": [], "backward_ms": []}
    for _ in range(WARMUP_STEPS + STEPS):
        compute.begin(syncs=False)  # what Python needs between layers
        with ddp.no_sync():
            ddp(torch.zeros(1, requires_grad=True)).sum().backward()
        compute.begin(syncs=True)
        started = time.perf_counter()
        ddp(torch.zeros(1, requires_grad=True)).sum().backward()
        steps["step_ms"].append(1e3 * (time.perf_counter() - started))
        steps["backward_ms"].append(1e3 * (net.backward_ended - started))
    return {name: values[WARMUP_STEPS:] for name, values in steps.items()}


def main() -> None:
    warnings.simplefilter("ignore")
    request = json.load(sys.stdin)
    Simulated.channel = Channel(request["alpha_ms"], request["ms_per_MB"])
    dist.Backend.register_backend(
        "simulated",
        lambda group, _: Simulated(group.group_rank, group.group_size, str(group.group_id)),
        extended_api=True,
        devices=["cpu"],
    )
    dist.init_process_group("simulated", rank=0, world_size=request["nranks"], store=dist.HashStore())
    print(json.dumps([measure(case) for case in request["cases"]]))


if __name__ == "__main__":
    main()
