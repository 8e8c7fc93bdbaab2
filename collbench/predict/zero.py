"""ZeRO as a DeepSpeed config has it: its stages 0 to 3 with buckets that count elements.

Sources, DeepSpeed 0.18: engine.buffered_allreduce_fallback (stage 0), zero/stage_1_and_2.py, zero/stage3.py,
zero/partitioned_param_coordinator.py, zero/parameter_offload.py.

stages 0-2  a bucket is sent before the gradient that would overfill it; all ranks sum it whole (all_reduce), as
            `use_multi_rank_bucket_allreduce` has it. Without overlap_comm computation waits for it; with it, for the
            bucket before it: two buffers. Stages 0 and 1 without overlap_comm send behind the last backward
stage 3     whole layers are gathered, where DeepSpeed goes module by module and prefetches some elements ahead; small
            parameters stay whole and are gathered once a step, behind the optimizer
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from collbench.dtypes import find_dtype
from collbench.predict.ddp import add_optimizer, add_sharded_optimizer
from collbench.predict.deepspeed import DeepSpeed
from collbench.predict.fsdp import Builder
from collbench.predict.options import Options
from collbench.predict.order import ROOT, Item, planned_order
from collbench.predict.placement import Placement
from collbench.predict.timeline import COMM, COMPUTE, Call, Schedule
from collbench.predict.units import Division, Unit
from collbench.predict.workload import Workload, backward_ms


def division_of(config: DeepSpeed) -> Division:
    """How stage 3 divides parameters."""
    return Division(padded="tensors", whole_numel=config.persistence_numel)


def reused_units(units: Mapping[int, Unit], config: DeepSpeed) -> set[int]:
    """The positions of stage 3's units that stay gathered until their backward.

    Fewer than `reuse_numel` elements of other units lie between.
    """
    kept = set()
    between = 0
    for position in sorted(units, reverse=True):
        if position == ROOT:
            continue
        if between < config.reuse_numel:
            kept.add(position)
        between += 2 * units[position].gather_numel
    return kept


def in_its_types(workload: Workload, config: DeepSpeed) -> Workload:
    """The workload in the config's types. What was captured from torch holds for torch alone, and is dropped."""
    grad_dtype = config.dtype or workload.grad_dtype
    return replace(
        workload,
        storage_dtype=config.dtype or workload.storage_dtype,
        param_dtype=config.dtype or workload.param_dtype,
        grad_dtype=grad_dtype,
        reduce_dtype=config.comm_dtype or grad_dtype,
        captured=None,
    )


def replicated(workload: Workload, placement: Placement, options: Options, config: DeepSpeed) -> Schedule:
    """Stages 0, 1 and 2: computation with whole layers."""
    return _Replicated(workload, placement, options, config).step()


def sharded(workload: Workload, placement: Placement, options: Options, config: DeepSpeed) -> Schedule:
    """Stage 3."""
    return _Sharded(workload, placement, options, config).step()


class _Replicated:
    def __init__(self, workload: Workload, placement: Placement, options: Options, config: DeepSpeed) -> None:
        self.schedule = Schedule()
        self.workload, self.placement, self.options, self.config = workload, placement, options, config
        self.sent: tuple[int, ...] = ()  # the last bucket
        self.waits: tuple[int, ...] = ()  # what the next computation waits for

    def step(self) -> Schedule:
        marks = self.options.micro_batch_marks
        for mark in marks:
            self._micro_batch(mark, sends=self.config.stage == 2 or mark == marks[-1])
        if self.config.stage:
            # Parameters are gathered in one call: DeepSpeed does not look at allgather_bucket_size where torch gathers
            # tensors.
            add_sharded_optimizer(self.schedule, self.workload, self.placement)
        else:
            add_optimizer(self.schedule, self.workload.optimizer_ms)
        return self.schedule

    def _micro_batch(self, mark: str, *, sends: bool) -> None:
        layers = self.workload.expanded
        self._compute(f"forward{mark}", self.workload.forward_ms, "forward")
        for name, layer in layers:
            self._compute(f"forward {name}{mark}", layer.forward_ms, "forward")
        self._compute(f"backward{mark}", self.workload.backward_ms, "backward")
        late = not self.config.overlaps and self.config.stage < 2
        waiting: list[int] = []  # full buckets that are sent behind the last backward
        numel = index = 0
        last = 0
        for name, layer in reversed(layers):
            work = backward_ms(layer, recompute=self.options.recompute)
            last = self._compute(f"backward {name}{mark}", work, "backward")
            for shape in reversed(layer.tensors) if layer.trainable and sends else ():
                if numel and numel + prod(shape) > self.config.reduce_bucket_numel:
                    waiting.append(numel)
                    numel = 0
                numel += prod(shape)
            for full in () if late else waiting:
                self._send(full, index, last, mark)
                index += 1
            waiting = waiting if late else []
        for full in [*waiting, numel] if numel else waiting:
            self._send(full, index, last, mark)
            index += 1

    def _compute(self, name: str, milliseconds: float, phase: str) -> int:
        task = self.schedule.add(name, milliseconds, after=self.waits, stream=COMPUTE, phase=phase)
        self.waits = ()
        return task

    def _send(self, numel: int, index: int, ready: int, mark: str) -> None:
        dtype = self.workload.reduce_dtype
        size_bytes = numel * find_dtype(dtype).itemsize
        call = Call(collective="all_reduce", size_bytes=size_bytes, group=self.placement.world, dtype=dtype)
        before, name = self.sent, f"all_reduce bucket {index}{mark}"
        self.sent = self.schedule.call(name, call, after=(ready,), stream=COMM, phase="gradients")
        self.waits += before if self.config.overlaps else self.sent


class _Sharded(Builder):
    def __init__(self, workload: Workload, placement: Placement, options: Options, config: DeepSpeed) -> None:
        self.config = config
        super().__init__(workload, placement, options, division_of(config))
        self._merge_reductions()

    def step(self) -> Schedule:
        schedule = super().step()
        whole = sum(unit.whole_trained_numel for unit in self.units.values())
        if whole:
            call = Call(
                collective="all_gather_into_tensor",
                size_bytes=whole * find_dtype(self.workload.param_dtype).itemsize,
                group=self.shard,
                dtype=self.workload.param_dtype,
            )
            optimizer = (len(schedule.tasks) - 1,)
            schedule.call("all_gather small parameters", call, after=optimizer, stream=COMM, phase="parameters")
        return schedule

    def _order(self, has_unit: list[bool]) -> list[Item]:
        """Without the second gathers of units that are used again too soon to be released."""
        self.options = replace(self.options, prefetch=self._prefetches, deepspeed=None)
        order = planned_order(self.workload, ROOT in self.units, has_unit, self.options)
        kept = reused_units(self.units, self.config)
        seen: set[int] = set()
        found = []
        for item in order:
            if item.kind == "gather":
                if not self.units[item.at].gather_bytes or (item.at in seen and item.at in kept):
                    continue
                seen.add(item.at)
            found.append(item)
        return found

    @property
    def _prefetches(self) -> bool:
        largest = max((unit.gather_numel for unit in self.units.values()), default=0)
        room = self.config.max_live_numel > largest
        return self.config.overlaps and self.config.prefetch_numel > 0 and room

    def _merge_reductions(self) -> None:
        """Gradients of consecutive units go in one call, as many as a bucket takes."""
        itemsize = find_dtype(self.workload.reduce_dtype).itemsize
        reduced = [item.at for item in self.order if item.kind == "reduce"]
        numel = 0
        for position, following in zip(reduced, [*reduced[1:], None], strict=True):
            numel += self.units[position].reduce_numel
            full = following is None or numel + self.units[following].reduce_numel > self.config.reduce_bucket_numel
            self.units[position] = replace(self.units[position], reduce_bytes=numel * itemsize if full else 0)
            numel = 0 if full else numel

    def _await_reduced(self) -> None:
        if self.config.overlaps:
            super()._await_reduced()
