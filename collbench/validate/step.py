"""Real steps: torch's own data parallelism over a workload's tensors, and a twin without communication, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from collbench.measure.job import Job
from collbench.predict.workload import Workload
from collbench.validate.compute import Compute, compute_on
from collbench.validate.net import Net

WARMUP_STEPS = 4  # DDP rebuilds its buckets after the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """The options of a step that torch itself has."""

    strategy: str
    bucket_cap_mb: float | None = None
    accumulate: int = 1
    reshard_after_forward: bool | int | None = None
    mesh: tuple[int, int] | None = None  # replicas x shards, of hsdp


@dataclass(frozen=True, slots=True)
class Reading:
    """One step of one rank, ms after the common start: its end, the end of its last backward computation, and the end
    of its gradients' communication."""

    step_ms: float
    backward_ms: float
    gradients_ms: float


class Step:
    """A module and how to run one optimizer step of it."""

    def __init__(self, job: Job, workload: Workload, knobs: Knobs, module: nn.Module, net: Net, shards: int) -> None:
        self._job, self._workload, self._knobs, self._module, self._net = job, workload, knobs, module, net
        self._compute = net.outside.compute
        self._optimizer_ms = workload.optimizer_ms / shards

    def run(self, syncs: bool) -> Reading:
        """One step of all micro-batches, from a start common to all ranks; without `syncs`, none communicates."""
        start = self._job.deadline.wait() / 1e9
        for micro_batch in range(self._knobs.accumulate):
            last = micro_batch == self._knobs.accumulate - 1
            with self._without_sync() if not (syncs and last) else nullcontext():
                x = torch.zeros(1, device=self._job.device.torch_device, requires_grad=True)
                self._module(x).sum().backward()
        self._job.device.synchronize()
        gradients = time.perf_counter()
        self._compute.spend_ms(self._optimizer_ms, gradients)
        self._job.device.synchronize()
        ended = time.perf_counter()
        return Reading((ended - start) * 1e3, (self._net.backward_ended_s - start) * 1e3, (gradients - start) * 1e3)

    def _without_sync(self) -> AbstractContextManager[Any]:
        no_sync: Callable[[], AbstractContextManager[Any]] = getattr(self._module, "no_sync", nullcontext)
        return no_sync()


def build(job: Job, workload: Workload, knobs: Knobs, group: Any) -> tuple[Step, Step, Compute]:
    """(the real step, its twin that communicates nothing, the compute). `group` is the measured world group."""
    compute = compute_on(job.device)
    if knobs.strategy == "ddp":
        net = Net(workload, getattr(torch, workload.grad_dtype), job.device.torch_device, compute)
        module = nn.parallel.DistributedDataParallel(
            net,
            process_group=group,
            bucket_cap_mb=knobs.bucket_cap_mb,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
        )
        step = Step(job, workload, knobs, module, net, shards=1)
        return step, step, compute
    replicas, shards = knobs.mesh or (1, job.world_size)
    storage = getattr(torch, workload.storage_dtype)
    net = Net(workload, storage, job.device.torch_device, compute)
    twin = Net(workload, storage, job.device.torch_device, compute)
    _shard(net, job, workload, knobs, group, replicas, shards)
    return (
        Step(job, workload, knobs, net, net, shards),
        Step(job, workload, knobs, twin, twin, shards),
        compute,
    )


def _shard(net: Net, job: Job, workload: Workload, knobs: Knobs, group: Any, replicas: int, shards: int) -> None:
    """torch's fully_shard on every wrapped layer, then on the root."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    kind = job.device.torch_device.type
    mesh = DeviceMesh.from_group(group, kind) if replicas == 1 else _mesh_of_groups(job, kind, replicas, shards)
    policy = MixedPrecisionPolicy(
        param_dtype=getattr(torch, workload.param_dtype), reduce_dtype=getattr(torch, workload.reduce_dtype)
    )
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
    if knobs.reshard_after_forward is not None:
        options["reshard_after_forward"] = knobs.reshard_after_forward
    for layer, wrapped in zip(net.layers, net.wrapped, strict=True):
        if wrapped:
            fully_shard(layer, **options)
    fully_shard(net, **options)


def _mesh_of_groups(job: Job, kind: str, replicas: int, shards: int) -> Any:
    from torch.distributed.device_mesh import DeviceMesh

    ranks = torch.arange(replicas * shards).view(replicas, shards)
    row, column = divmod(job.rank, shards)
    rows = [dist.new_group(members, backend=job.device.backend) for members in ranks.tolist()]
    columns = [dist.new_group(members, backend=job.device.backend) for members in ranks.t().tolist()]
    return DeviceMesh.from_group([columns[column], rows[row]], kind, mesh=ranks, mesh_dim_names=("replicate", "shard"))
