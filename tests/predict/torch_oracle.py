"""Run as a program: what torch itself does, as one JSON document on stdout. The predictor is compared with it.

ddp: bucket sizes of DDP's own reducer after it rebuilt them, one gloo rank. fsdp: the collectives that `fully_shard`
issues, recorded by a process group that moves no data, registered through torch's public interface.
"""

from __future__ import annotations

import json
import sys
import warnings
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.nn.parallel import DistributedDataParallel


class Tensors(nn.Module):
    """A layer with the given shapes; its output depends on every tensor."""

    def __init__(self, shapes: list[list[int]], trainable: bool) -> None:
        super().__init__()
        self.tensors = nn.ParameterList(nn.Parameter(torch.zeros(shape), requires_grad=trainable) for shape in shapes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for tensor in self.tensors:  # in registration order, so that gradients come in the reverse one
            x = x + tensor.sum()
        return x


class Stack(nn.Module):
    def __init__(self, layers: list[dict]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Tensors(layer["tensors"], layer.get("trainable", True)) for layer in layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def ddp_bucket_bytes(layers: list[dict], options: dict) -> list[int]:
    model = DistributedDataParallel(Stack(layers), **options)
    for _ in range(4):  # the sizes are logged from the third step on, of a static graph from the fourth
        model(torch.zeros(1)).sum().backward()
    logged = model._get_ddp_logging_data()
    rebuilt = not options.get("find_unused_parameters") or options.get("static_graph")
    sizes = logged["rebuilt_bucket_sizes" if rebuilt else "bucket_sizes"]
    return [int(size) for size in sizes.split(", ")]


ISSUED: list[list] = []


class Done(dist.Work):
    def wait(self, timeout=None) -> bool:
        return True


class RecordingGroup(dist.ProcessGroup):
    def __init__(self, rank: int, size: int, name: str) -> None:
        super().__init__(rank, size)
        self._name, self._nranks = name, size

    @property
    def group_name(self) -> str:
        return self._name

    def getGroupName(self) -> str:
        return self._name

    def getBackendName(self) -> str:
        return "recording"

    def _record(self, collective: str, tensor: torch.Tensor) -> Done:
        ISSUED.append([collective, tensor.numel() * tensor.element_size(), self._nranks, str(tensor.dtype)[6:]])
        return Done()

    def allreduce(self, tensors, opts=None) -> Done:
        return self._record("all_reduce", tensors[0])

    def _allgather_base(self, output, tensor, opts=None) -> Done:
        return self._record("all_gather_into_tensor", output)

    def _reduce_scatter_base(self, output, tensor, opts=None) -> Done:
        return self._record("reduce_scatter_tensor", tensor)

    def allgather(self, outputs, tensors, opts=None) -> Done:
        """As FSDP1 gathers on a CPU."""
        return self._record("all_gather_into_tensor", torch.cat(outputs[0]))

    def broadcast(self, tensors, opts=None) -> Done:
        return self._record("broadcast", tensors[0])

    all_gather_single, reduce_scatter_single = _allgather_base, _reduce_scatter_base


def fsdp_calls(case: dict) -> list[list]:
    model = Stack(case["layers"])
    shape = tuple(case["mesh"])
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": case.get("reshard_after_forward")}
    for index, spec in enumerate(case["layers"]):
        if spec.get("wrap", True):
            if case.get("recompute"):
                model.layers[index] = checkpoint_wrapper(model.layers[index])
            fully_shard(model.layers[index], **options)
    fully_shard(model, **options)
    if "prefetch_ahead" in case:
        units = [layer for layer in model.layers if isinstance(layer, FSDPModule)]
        for index, unit in enumerate(units):
            ahead = case["prefetch_ahead"]
            unit.set_modules_to_forward_prefetch(units[index + 1 : index + 1 + ahead])
            unit.set_modules_to_backward_prefetch(units[max(0, index - ahead) : index][::-1])
    ISSUED.clear()
    accumulate = case.get("accumulate", 1)
    for number in range(accumulate):
        model.set_requires_gradient_sync(case.get("grad_sync", True) or number == accumulate - 1)
        model(torch.zeros(1)).sum().backward()
    return list(ISSUED)


def fsdp1_calls(case: dict) -> list[list]:
    """Of the second step: the first one is where it learns the order that it prefetches in."""
    warnings.simplefilter("ignore")
    model = Stack(case["layers"])
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    strategy = ShardingStrategy.SHARD_GRAD_OP if case.get("reshard_after_forward") is False else None
    prefetch = {"pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST, "none": None}
    options = {
        "sharding_strategy": strategy or ShardingStrategy.FULL_SHARD,
        "mixed_precision": half,
        "backward_prefetch": prefetch[case.get("backward_prefetch", "pre")],
        "forward_prefetch": case.get("forward_prefetch", False),
        "device_id": torch.device("cpu"),
    }
    for index, spec in enumerate(case["layers"]):
        if spec.get("wrap", True):
            model.layers[index] = FullyShardedDataParallel(model.layers[index], **options)
    model = FullyShardedDataParallel(model, **options)
    accumulate = case.get("accumulate", 1)
    for _ in range(2):
        ISSUED.clear()
        for number in range(accumulate):
            last = number == accumulate - 1
            with nullcontext() if case.get("grad_sync", True) or last else model.no_sync():
                model(torch.zeros(1)).sum().backward()
        model.zero_grad()
    return list(ISSUED)


def main() -> None:
    warnings.simplefilter("ignore")
    cases = json.load(sys.stdin)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    ddp = [ddp_bucket_bytes(case["layers"], case["options"]) for case in cases["ddp"]]
    dist.destroy_process_group()
    dist.Backend.register_backend(
        "recording",
        lambda group, _: RecordingGroup(group.group_rank, group.group_size, str(group.group_id)),
        extended_api=True,
        devices=["cpu"],
    )
    dist.init_process_group("recording", rank=0, world_size=8, store=dist.HashStore())
    fsdp = [fsdp_calls(case) for case in cases["fsdp"]]
    fsdp1 = [fsdp1_calls(case) for case in cases["fsdp1"]]
    print(json.dumps({"ddp": ddp, "fsdp": fsdp, "fsdp1": fsdp1}))


if __name__ == "__main__":
    main()
