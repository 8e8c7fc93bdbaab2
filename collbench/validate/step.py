"""Real steps: torch's own data parallelism over a workload's tensors, and a twin without communication, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from collbench.errors import InputError
from collbench.measure.clock import now_ns
from collbench.measure.failure import first_line
from collbench.measure.job import Job
from collbench.predict.workload import Workload
from collbench.validate.compute import Compute, compute_on
from collbench.validate.net import Net, twin_of
from collbench.validate.silent import silent_group

WARMUP_STEPS = 4  # DDP rebuilds its buckets after the first
WARMUP_TURNS = 1  # of the step and the one without communication; a twin's first is slower too


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """The options of a step that torch itself has; those of predict.options.Options, where they have the same name."""

    strategy: str
    bucket_cap_mb: float | tuple[float, ...] | None = None
    comm_hook: str | None = None
    accumulate: int = 1
    grad_sync: bool = True
    reshard_after_forward: bool | int | None = None
    mesh: tuple[int, int] | None = None  # replicas x shards, of hsdp


@dataclass(frozen=True, slots=True)
class Reading:
    """One step of one rank, ms after the common start: its end, the end of its last backward computation, and the end
    of its gradients' communication."""

    step_ms: float
    backward_ms: float
    gradients_ms: float


Rows = dict[str, torch.Tensor]  # of each kind a table of ranks, whose rows are its groups
Form = Callable[[Rows], list[Any]]  # torch's group of this rank in each kind

# What a micro-batch runs in: the last one of a step, or one whose gradients need not be reduced.
Syncing = Callable[[bool], AbstractContextManager[Any]]


class Step:
    """A module and how to run one optimizer step of it."""

    def __init__(self, job: Job, module: nn.Module, net: Net, knobs: Knobs, optimizer_ms: float, syncing: Syncing):
        self._job, self._module, self._net, self._syncing = job, module, net, syncing
        self._compute = net.outside.compute
        self._micro_batches, self._optimizer_ms = knobs.accumulate, optimizer_ms
        self.start_ns = 0  # of the latest step, on all ranks

    def run(self, syncs: bool = True) -> Reading:
        """One step of all micro-batches, from a start common to all ranks; without `syncs`, none communicates."""
        device = self._job.device
        self._module.zero_grad()  # as before every step of a training loop
        self.start_ns = self._job.deadline.wait()
        begun = device.mark()
        late_ns = now_ns() - self.start_ns
        self._compute.begin(syncs=syncs)
        for micro_batch in range(self._micro_batches):
            last = micro_batch == self._micro_batches - 1
            with self._syncing(syncs and last):
                self._module(torch.zeros(1, device=device.torch_device)).sum().backward()
        gradients = device.mark()
        self._compute.spend_ms(self._optimizer_ms, time.perf_counter())
        ended = device.mark()
        device.synchronize()
        parts_ns = device.between_marks_ns([begun, self._net.backward_ended, gradients, ended])
        backward_ms, gradients_ms, step_ms = ((late_ns + ns) / 1e6 for ns in accumulate(parts_ns))
        return Reading(step_ms, backward_ms, gradients_ms)


def slowest(job: Job, reading: Reading) -> Reading:
    """The step as the job sees it: the last rank's times."""
    times_ns = [round(1e6 * value) for value in (reading.step_ms, reading.backward_ms, reading.gradients_ms)]
    return Reading(*(value / 1e6 for value in job.control.maximum(times_ns)))


def build(
    job: Job, workload: Workload, knobs: Knobs, timeout_s: float, *, sends: bool = True
) -> tuple[Step, Callable[[], Step], Compute]:
    """(the real step, what makes the step that is to run without `syncs`, the compute).

    The second is the same one, or its twin, which takes memory of its own. A collective may take `timeout_s`.
    sends: False issues all collectives and moves no data.
    """

    def form(rows: Rows) -> list[Any]:
        return _handles(job, rows, timeout_s) if sends else _silent_handles(job, rows)

    compute = compute_on(job.device)
    if knobs.strategy == "ddp":
        step = _ddp(job, workload, knobs, compute, form)
        return step, lambda: step, compute
    replicas, shards = knobs.mesh or (1, job.world_size)
    storage, device = getattr(torch, workload.storage_dtype), job.device.torch_device
    # Sharded before it has memory: the whole need not fit.
    net = Net(workload, storage, torch.device("meta"), compute, job.device.mark)
    _shard(net, workload, knobs, _mesh(job, replicas, shards, form))
    net.to_empty(device=device)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()

    def syncing(last: bool) -> AbstractContextManager[Any]:
        net.set_requires_gradient_sync(last or knobs.grad_sync)  # type: ignore[operator]
        return nullcontext()

    def twin() -> Step:
        alone = twin_of(workload, storage, device, compute, job.device.mark)
        return Step(job, alone, alone, knobs, optimizer_ms, lambda _: nullcontext())

    optimizer_ms = workload.optimizer_ms / shards
    return Step(job, net, net, knobs, optimizer_ms, syncing), twin, compute


def _ddp(job: Job, workload: Workload, knobs: Knobs, compute: Compute, form: Form) -> Step:
    net = Net(workload, getattr(torch, workload.grad_dtype), job.device.torch_device, compute, job.device.mark)
    group = form({"world": torch.arange(job.world_size).view(1, -1)})[0]
    cap = knobs.bucket_cap_mb
    caps = {"bucket_cap_mb_list": list(cap)} if isinstance(cap, tuple) else {"bucket_cap_mb": cap}
    try:
        module = nn.parallel.DistributedDataParallel(
            net, process_group=group, broadcast_buffers=False, gradient_as_bucket_view=True, **caps
        )
        if knobs.comm_hook is not None:
            # The group is the hook's state, and not the default group, which carries no measured byte.
            module.register_comm_hook(group, getattr(default_hooks, f"{knobs.comm_hook}_compress_hook"))
    except TypeError as error:
        raise InputError(f"this torch ({torch.__version__}) or backend has no such step: {first_line(error)}") from None
    return Step(
        job, module, net, knobs, workload.optimizer_ms, lambda last: nullcontext() if last else module.no_sync()
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


def _mesh(job: Job, replicas: int, shards: int, form: Form) -> Any:
    """torch's mesh of shards, or of replicas x shards, row by row."""
    from torch.distributed.device_mesh import DeviceMesh

    kind = job.device.torch_device.type
    ranks = torch.arange(job.world_size).view(replicas, shards)
    if replicas == 1:
        return DeviceMesh.from_group(form({"shard": ranks})[0], kind)
    handles = form({"replicate": ranks.t(), "shard": ranks})
    return DeviceMesh.from_group(handles, kind, mesh=ranks, mesh_dim_names=("replicate", "shard"))


def _handles(job: Job, rows: Rows, timeout_s: float) -> list[Any]:
    """torch's group of this rank in each kind, whose groups are the rows of a table of ranks."""
    kinds = {kind: [tuple(row) for row in table.tolist()] for kind, table in rows.items()}
    formed = job.form(kinds, timeout_s)
    return [next(group.handle for group in groups if group is not None) for groups in formed.values()]


def _silent_handles(job: Job, rows: Rows) -> list[Any]:
    """The same, whose collectives end at once and move no data."""
    return [silent_group(next(row for row in table.tolist() if job.rank in row)) for table in rows.values()]
