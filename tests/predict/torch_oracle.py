"""Run as a program: what torch itself does, as one JSON document on stdout. The predictor is compared with it.

ddp: bucket sizes of DDP's own reducer after it rebuilt them, one gloo rank. fsdp: the collectives that `fully_shard`
issues, recorded by a process group that moves no data, registered through torch's public interface.
"""

from __future__ import annotations

import json
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
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
    for _ in range(3):  # the sizes are logged from the third step on
        model(torch.zeros(1)).sum().backward()
    sizes = model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
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

    all_gather_single, reduce_scatter_single = _allgather_base, _reduce_scatter_base


def fsdp_calls(case: dict) -> list[list]:
    model = Stack(case["layers"])
    shape = tuple(case["mesh"])
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": case.get("reshard_after_forward")}
    for layer, spec in zip(model.layers, case["layers"], strict=True):
        if spec.get("wrap", True):
            fully_shard(layer, **options)
    fully_shard(model, **options)
    ISSUED.clear()
    model(torch.zeros(1)).sum().backward()
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
    print(json.dumps({"ddp": ddp, "fsdp": fsdp}))


if __name__ == "__main__":
    main()
