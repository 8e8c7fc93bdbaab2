"""Run as a program: torch's own count of a step's memory (FSDPMemTracker), as one JSON document on stdout.

stdin: cases of `fully_shard` on eight ranks of the fake backend, of which this is one: {"root", "layers" (rows of 64
columns), "reshard_after_forward", "accumulate", "grad_sync"}. The last micro-batch's peak is told, by kind.
"""

from __future__ import annotations

import json
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Rows(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight.sum()


class Stack(nn.Module):
    """Layers, and a head behind them that is the root's."""

    def __init__(self, root: int, layers: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Rows(rows) for rows in layers)
        self.head = nn.Parameter(torch.zeros(root, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x + self.head.sum()


def peak(case: dict) -> dict[str, int]:
    mesh = init_device_mesh("cpu", (8,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": case.get("reshard_after_forward")}
    model = Stack(case["root"], case["layers"])
    for layer in model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    tracker = FSDPMemTracker(model, optimizer)
    accumulate = case.get("accumulate", 1)
    with tracker:
        for _ in range(2):  # the optimizer's state is there from the second step on
            for number in range(accumulate):
                tracker.reset_mod_stats()
                model.set_requires_gradient_sync(case.get("grad_sync", True) or number == accumulate - 1)
                model(torch.zeros(1, requires_grad=True)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        found = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    return {str(getattr(kind, "name", kind)): size for kind, size in found.items()}


def main() -> None:
    warnings.simplefilter("ignore")
    cases = json.load(sys.stdin)
    dist.init_process_group("fake", rank=0, world_size=8)
    print(json.dumps([peak(case) for case in cases]))


if __name__ == "__main__":
    main()
