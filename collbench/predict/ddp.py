"""Replicated parameters: DDP, and ZeRO stages 1 and 2, which divide what is kept but still compute with whole layers.

One communication stream, in bucket order: a bucket is launched only after all before it (torch's reducer).
"""

from __future__ import annotations

from collbench.dtypes import find_dtype
from collbench.predict.buckets import Bucket, ddp_buckets
from collbench.predict.options import Options
from collbench.predict.placement import Placement
from collbench.predict.timeline import COMPUTE, Call, Schedule
from collbench.predict.workload import Workload

COMM = "comm"


def ddp(workload: Workload, placement: Placement, options: Options) -> Schedule:
    """Micro-batches without communication, the last one with an all_reduce per bucket; then the optimizer."""
    schedule = Schedule()
    buckets = _buckets(workload, options)
    ends = [_compute(schedule, workload, mark) for mark in options.micro_batch_marks][-1]
    _reduce(schedule, workload, placement, buckets, ends, "all_reduce")
    _optimizer(schedule, workload.optimizer_ms)
    return schedule


def zero1(workload: Workload, placement: Placement, options: Options) -> Schedule:
    """Optimizer divided: the last micro-batch's gradients are reduce-scattered, parameters gathered at the end."""
    schedule = Schedule()
    buckets = _buckets(workload, options)
    ends = [_compute(schedule, workload, mark) for mark in options.micro_batch_marks][-1]
    _reduce(schedule, workload, placement, buckets, ends, "reduce_scatter_tensor")
    _sharded_optimizer(schedule, workload, placement)
    return schedule


def zero2(workload: Workload, placement: Placement, options: Options) -> Schedule:
    """Gradients divided too: they are reduce-scattered in every micro-batch."""
    schedule = Schedule()
    buckets = _buckets(workload, options)
    for mark in options.micro_batch_marks:
        ends = _compute(schedule, workload, mark)
        _reduce(schedule, workload, placement, buckets, ends, "reduce_scatter_tensor", mark)
    _sharded_optimizer(schedule, workload, placement)
    return schedule


def _buckets(workload: Workload, options: Options) -> list[Bucket]:
    return ddp_buckets(workload, options.bucket_cap_mb, options.first_bucket_mb)


def _compute(schedule: Schedule, workload: Workload, mark: str) -> dict[int, int]:
    """One micro-batch's forward and backward; returns the backward task of each position in `workload.expanded`."""
    layers = list(enumerate(workload.expanded))
    schedule.add(f"forward{mark}", workload.forward_ms, stream=COMPUTE, phase="forward")
    for _, (name, layer) in layers:
        schedule.add(f"forward {name}{mark}", layer.forward_ms, stream=COMPUTE, phase="forward")
    schedule.add(f"backward{mark}", workload.backward_ms, stream=COMPUTE, phase="backward")
    return {
        position: schedule.add(f"backward {name}{mark}", layer.backward_ms, stream=COMPUTE, phase="backward")
        for position, (name, layer) in reversed(layers)
    }


def _reduce(
    schedule: Schedule,
    workload: Workload,
    placement: Placement,
    buckets: list[Bucket],
    ends: dict[int, int],
    collective: str,
    mark: str = "",
) -> None:
    itemsize = find_dtype(workload.grad_dtype).itemsize
    for index, bucket in enumerate(buckets):
        numel = bucket.numel if collective == "all_reduce" else _divisible(bucket.numel, placement.nranks)
        call = Call(
            collective=collective, size_bytes=numel * itemsize, group=placement.world, dtype=workload.grad_dtype
        )
        name = f"{collective} bucket {index}{mark}"
        schedule.call(name, call, after=(ends[bucket.layer],), stream=COMM, phase="gradients")


def _optimizer(schedule: Schedule, milliseconds: float) -> int:
    """The optimizer, after everything: streams end in order, so after the last task of each is enough."""
    last = {task.stream: position for position, task in enumerate(schedule.tasks)}
    return schedule.add("optimizer", milliseconds, after=tuple(last.values()), stream=COMPUTE, phase="optimizer")


def _sharded_optimizer(schedule: Schedule, workload: Workload, placement: Placement) -> None:
    """Each rank updates its share, then all gather the trained parameters."""
    optimizer = _optimizer(schedule, workload.optimizer_ms / placement.nranks)
    numel = _divisible(workload.trainable_numel, placement.nranks)
    call = Call(
        collective="all_gather_into_tensor",
        size_bytes=numel * find_dtype(workload.param_dtype).itemsize,
        group=placement.world,
        dtype=workload.param_dtype,
    )
    schedule.call("all_gather parameters", call, after=(optimizer,), stream=COMM, phase="parameters")


def _divisible(numel: int, nranks: int) -> int:
    """Padded so that every rank's share is equal."""
    return -(-numel // nranks) * nranks
