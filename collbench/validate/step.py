"""Real steps: torch's own data parallelism over a workload's tensors, and a twin without communication, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
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
        self._compute.begin()
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


def build(job: Job, workload: Workload, knobs: Knobs, timeout_s: float) -> tuple[Step, Step, Compute]:
    """(the real step, its twin that communicates nothing, the compute). A collective may take `timeout_s`."""
    compute = compute_on(job.device)
    if knobs.strategy == "ddp":
        net = Net(workload, getattr(torch, workload.grad_dtype), job.device.torch_device, compute)
        module = nn.parallel.DistributedDataParallel(
            net,
            process_group=_handles(job, {"world": torch.arange(job.world_size).view(1, -1)}, timeout_s)[0],
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
    _shard(net, workload, knobs, _mesh(job, replicas, shards, timeout_s))
    return (
        Step(job, workload, knobs, net, net, shards),
        Step(job, workload, knobs, twin, twin, shards),
        compute,
    )


def _shard(net: Net, workload: Workload, knobs: Knobs, mesh: Any) -> None:
    """torch's fully_shard on every wrapped layer, then on the root."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

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


def _mesh(job: Job, replicas: int, shards: int, timeout_s: float) -> Any:
    """torch's mesh of shards, or of replicas x shards, row by row."""
    from torch.distributed.device_mesh import DeviceMesh

    kind = job.device.torch_device.type
    ranks = torch.arange(job.world_size).view(replicas, shards)
    if replicas == 1:
        return DeviceMesh.from_group(_handles(job, {"shard": ranks}, timeout_s)[0], kind)
    handles = _handles(job, {"replicate": ranks.t(), "shard": ranks}, timeout_s)
    return DeviceMesh.from_group(handles, kind, mesh=ranks, mesh_dim_names=("replicate", "shard"))


def _handles(job: Job, rows: dict[str, torch.Tensor], timeout_s: float) -> list[Any]:
    """torch's group of this rank in each kind, whose groups are the rows of a table of ranks."""
    kinds = {kind: [tuple(row) for row in table.tolist()] for kind, table in rows.items()}
    formed = job.form(kinds, timeout_s)
    return [next(group.handle for group in groups if group is not None) for groups in formed.values()]
