"""Replicated parameters: DDP, and ZeRO stages 1 and 2, which divide what is kept but still compute with whole layers.

One communication stream, in bucket order: a bucket is launched only after all before it (torch's reducer).
"""

from __future__ import annotations

from collbench.dtypes import find_dtype
from collbench.predict.buckets import Bucket, captured_buckets, compressed, ddp_buckets
from collbench.predict.captured import Captured
from collbench.predict.options import Options
from collbench.predict.order import ROOT
from collbench.predict.placement import Placement
from collbench.predict.timeline import COMM, COMPUTE, Call, Schedule
from collbench.predict.units import rounded_up
from collbench.predict.workload import Workload, backward_ms


def ddp(workload: Workload, placement: Placement, options: Options) -> Schedule:
    """Micro-batches without communication, the last one with an all_reduce per bucket; then the optimizer.

    A module's buffers, where they were captured, are broadcast at the start of the step: all computation waits for it.
    """
    schedule = Schedule()
    captured = workload.captured
    buffers: tuple[int, ...] = ()
    if captured is not None and captured.is_ddp_of(options):
        buffers = _broadcast(schedule, placement, captured)
    buckets = reduced_buckets(workload, options)
    ends = [_compute(schedule, workload, options, mark, buffers) for mark in options.micro_batch_marks][-1]
    _reduce(schedule, placement, buckets, ends, "all_reduce")
    if options.finds_unused:
        _say_used(schedule, workload, placement)
    add_optimizer(schedule, workload.optimizer_ms)
    return schedule


def zero1(workload: Workload, placement: Placement, options: Options) -> Schedule:
    """Optimizer divided: the last micro-batch's gradients are reduce-scattered, parameters gathered at the end."""
    schedule = Schedule()
    buckets = _buckets(workload, options)
    ends = [_compute(schedule, workload, options, mark) for mark in options.micro_batch_marks][-1]
    _reduce(schedule, placement, buckets, ends, "reduce_scatter_tensor")
    add_sharded_optimizer(schedule, workload, placement)
    return schedule


def zero2(workload: Workload, placement: Placement, options: Options) -> Schedule:
    """Gradients divided too: they are reduce-scattered in every micro-batch."""
    schedule = Schedule()
    buckets = _buckets(workload, options)
    for mark in options.micro_batch_marks:
        ends = _compute(schedule, workload, options, mark)
        _reduce(schedule, placement, buckets, ends, "reduce_scatter_tensor", mark)
    add_sharded_optimizer(schedule, workload, placement)
    return schedule


def reduced_buckets(workload: Workload, options: Options) -> list[Bucket]:
    """As DDP sends them: captured or planned, and compressed where a hook does that."""
    captured = workload.captured
    if captured is not None and captured.is_ddp_of(options):
        buckets = captured_buckets(workload, captured)
    else:
        buckets = _buckets(workload, options)
    if options.comm_hook is None:
        return buckets
    dtype = find_dtype(options.comm_hook).name
    return [compressed(bucket, dtype) for bucket in buckets]


def _buckets(workload: Workload, options: Options) -> list[Bucket]:
    return ddp_buckets(workload, options.bucket_cap_mb, options.first_bucket_mb, rebuilt=not options.finds_unused)


def _compute(
    schedule: Schedule, workload: Workload, options: Options, mark: str, after: tuple[int, ...] = ()
) -> dict[int, int]:
    """One micro-batch's forward and backward; returns the backward task of each position in `workload.expanded`.

    after: what its first computation waits for.
    """
    layers = list(enumerate(workload.expanded))
    schedule.add(f"forward{mark}", workload.forward_ms, after=after, stream=COMPUTE, phase="forward")
    for _, (name, layer) in layers:
        schedule.add(f"forward {name}{mark}", layer.forward_ms, stream=COMPUTE, phase="forward")
    outside = schedule.add(f"backward{mark}", workload.backward_ms, stream=COMPUTE, phase="backward")
    return {ROOT: outside} | {
        position: schedule.add(
            f"backward {name}{mark}", backward_ms(layer, recompute=options.recompute), stream=COMPUTE, phase="backward"
        )
        for position, (name, layer) in reversed(layers)
    }


def _broadcast(schedule: Schedule, placement: Placement, captured: Captured) -> tuple[int, ...]:
    tasks: tuple[int, ...] = ()
    for event in captured.issued:
        if event.collective == "broadcast":
            call = Call(collective="broadcast", size_bytes=event.size_bytes, group=placement.world, dtype=event.dtype)
            tasks += schedule.call(f"broadcast {event.unit}", call, after=(), stream=COMM, phase="parameters")
    return tasks


def _reduce(
    schedule: Schedule,
    placement: Placement,
    buckets: list[Bucket],
    ends: dict[int, int],
    collective: str,
    mark: str = "",
) -> None:
    for index, bucket in enumerate(buckets):
        numel = bucket.numel if collective == "all_reduce" else rounded_up(bucket.numel, placement.nranks)
        size_bytes = numel * find_dtype(bucket.dtype).itemsize
        call = Call(collective=collective, size_bytes=size_bytes, group=placement.world, dtype=bucket.dtype)
        name = f"{collective} bucket {index}{mark}"
        schedule.call(name, call, after=(ends[bucket.layer],), stream=COMM, phase="gradients")


def _say_used(schedule: Schedule, workload: Workload, placement: Placement) -> None:
    """Behind the last bucket, what parameters this rank used: one int32 for each (torch's local_used_map)."""
    tensors = sum(len(layer.tensors) for _, layer in workload.expanded if layer.trainable)
    call = Call(collective="all_reduce", size_bytes=4 * tensors, group=placement.world, dtype="int32")
    schedule.call("all_reduce used", call, after=(), stream=COMM, phase="gradients")


def add_optimizer(schedule: Schedule, milliseconds: float) -> int:
    """The optimizer, after everything."""
    everything = tuple(range(len(schedule.tasks)))
    return schedule.add("optimizer", milliseconds, after=everything, stream=COMPUTE, phase="optimizer")


def add_sharded_optimizer(schedule: Schedule, workload: Workload, placement: Placement) -> None:
    """Each rank updates its share, then all gather the trained parameters."""
    optimizer = add_optimizer(schedule, workload.optimizer_ms / placement.nranks)
    numel = rounded_up(workload.trainable_numel, placement.nranks)
    call = Call(
        collective="all_gather_into_tensor",
        size_bytes=numel * find_dtype(workload.param_dtype).itemsize,
        group=placement.world,
        dtype=workload.param_dtype,
    )
    schedule.call("all_gather parameters", call, after=(optimizer,), stream=COMM, phase="parameters")
