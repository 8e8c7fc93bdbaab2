"""Replicated parameters: DDP, and ZeRO stages 1 and 2, which divide what is kept but still compute with whole layers.

One communication stream, in bucket order: a bucket is launched only after all before it (torch's reducer).

DDP's copies, where they are counted (torch/csrc/distributed/c10d/reducer.cpp): a layer's gradients are divided into
their buckets behind its backward (mark_variable_ready_dense; in place, where they are views of the bucket), and where
they are no views, copied back behind the last all_reduce (finalize_backward). A compression hook casts and divides a
bucket before it is sent, and casts it back (ddp_comm_hooks/default_hooks.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from collbench.dtypes import find_dtype
from collbench.predict.buckets import Bucket, captured_buckets, compressed, ddp_buckets
from collbench.predict.captured import Captured
from collbench.predict.copies import COPY_OUT, Copying
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
    marks = options.micro_batch_marks
    for mark in marks[:-1]:
        _compute(schedule, workload, options, mark, buffers)
    copies = Copying.of(options).counted
    ends = _compute(schedule, workload, options, marks[-1], buffers, copied=buckets if copies else ())
    sent = _reduce(schedule, placement, buckets, ends, "all_reduce")
    if copies:
        _copy_back(schedule, workload, options, buckets, sent)
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
    schedule: Schedule,
    workload: Workload,
    options: Options,
    mark: str,
    after: tuple[int, ...] = (),
    *,
    copied: Sequence[Bucket] = (),
) -> dict[int, int]:
    """One micro-batch's forward and backward; returns, for each position in `workload.expanded`, the backward task, or
    the last copy behind it.

    after: what its first computation waits for.  copied: the buckets that gradients are copied into; none where copies
    are not counted.
    """
    copying, ready = Copying.of(options), defaultdict[int, list[Bucket]](list)
    for bucket in copied:
        ready[bucket.layer].append(bucket)
    layers = list(enumerate(workload.expanded))
    schedule.add(f"forward{mark}", workload.forward_ms, after=after, stream=COMPUTE, phase="forward")
    for _, (name, layer) in layers:
        schedule.add(f"forward {name}{mark}", layer.forward_ms, stream=COMPUTE, phase="forward")
    outside = schedule.add(f"backward{mark}", workload.backward_ms, stream=COMPUTE, phase="backward")
    ends = {ROOT: outside}
    for position, (name, layer) in reversed(layers):
        work = backward_ms(layer, recompute=options.recompute)
        ends[position] = schedule.add(f"backward {name}{mark}", work, stream=COMPUTE, phase="backward")
        if copied:
            full = ready[position]
            moved_bytes = _copied_in_bytes(workload, options, layer.trainable_numel, full)
            name = f"gradients in {name}{mark}"
            copying.add(schedule, name, moved_bytes, after=(), stream=COMPUTE, collectives=len(full))
            ends[position] = len(schedule.tasks) - 1
    return ends


def _copied_in_bytes(workload: Workload, options: Options, numel: int, full: Sequence[Bucket]) -> int:
    """Of a layer's gradients into their buckets, and of making those ready that are full with it."""
    size = find_dtype(workload.grad_dtype).itemsize
    moved_bytes = 2 * size * numel
    if options.comm_hook is not None:  # cast, then divided in place
        moved_bytes += sum(bucket.numel * size + 3 * bucket.size_bytes for bucket in full)
    return moved_bytes


def _copy_back(
    schedule: Schedule, workload: Workload, options: Options, buckets: Sequence[Bucket], sent: Sequence[tuple[int, ...]]
) -> None:
    """What was reduced, cast back where a hook had cast it, into gradients that are no views of their buckets."""
    size, copying = find_dtype(workload.grad_dtype).itemsize, Copying.of(options)
    for index, (bucket, after) in enumerate(zip(buckets, sent, strict=True)):
        if options.comm_hook is not None:
            moved_bytes = bucket.size_bytes + bucket.numel * size
            name = f"cast back bucket {index}"
            after = copying.add(schedule, name, moved_bytes, after=after, stream=COPY_OUT) or after
        if not options.gradient_as_bucket_view:
            name = f"gradients out bucket {index}"
            copying.add(schedule, name, 2 * bucket.numel * size, after=after, stream=COMPUTE)


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
) -> list[tuple[int, ...]]:
    """Returns the task of each bucket; none for one rank."""
    sent = []
    for index, bucket in enumerate(buckets):
        numel = bucket.numel if collective == "all_reduce" else rounded_up(bucket.numel, placement.nranks)
        size_bytes = numel * find_dtype(bucket.dtype).itemsize
        call = Call(collective=collective, size_bytes=size_bytes, group=placement.world, dtype=bucket.dtype)
        name = f"{collective} bucket {index}{mark}"
        sent.append(schedule.call(name, call, after=(ends[bucket.layer],), stream=COMM, phase="gradients"))
    return sent


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
