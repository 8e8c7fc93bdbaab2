"""Sharded parameters: torch's `fully_shard` on every wrapped layer and on the root (ZeRO-3), and HSDP.

Sources: torch/distributed/fsdp/_fully_shard (FSDPParamGroup.pre_forward … post_backward), and recorded runs. With the
default resharding the communicator sees: AG root, AG L0 … L3 | AG L3, AG L2, RS L3, AG L1, RS L2, AG L0, RS L1, RS L0,
RS root. All gathers and reduce-scatters share one communicator, so one stream, in that order. A gather is issued at
the start of the computation of the unit before it, once that unit's own gather has been waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from collbench.dtypes import find_dtype
from collbench.errors import InputError
from collbench.predict.options import Options
from collbench.predict.placement import Group, Placement
from collbench.predict.timeline import COMPUTE, Call, Schedule
from collbench.predict.workload import Layer, Workload

COMM = "comm"
REPLICATE = "comm:replicate"  # HSDP's all_reduces: another communicator, other links


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The tensors that one `fully_shard` call gathers together, padded: bytes of a gather and of a reduce-scatter."""

    name: str
    gather_bytes: int
    reduce_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One layer's computation in one direction; `unit` is the one it needs gathered for itself alone.

    reached: false where backward never gets to the layer: it may still be prefetched, but nothing waits for it.
    """

    name: str
    compute_ms: float
    unit: Unit | None
    reached: bool = True


def _unit(name: str, layers: list[Layer], workload: Workload, shards: int) -> Unit | None:
    """The unit of these layers; None where they have no tensors, as `fully_shard` then has nothing to gather."""
    numel = sum(layer.padded_numel(shards) for layer in layers)
    trained = sum(layer.padded_numel(shards) for layer in layers if layer.trainable)
    if not numel:
        return None
    return Unit(
        name=name,
        gather_bytes=numel * find_dtype(workload.param_dtype).itemsize,
        reduce_bytes=trained * find_dtype(workload.reduce_dtype).itemsize,
    )


def split_units(workload: Workload, shards: int) -> tuple[Unit | None, list[Unit | None]]:
    """(root, one per position of `workload.expanded`); None where a layer is the root's or has no tensors."""
    layers = workload.expanded
    root = _unit("root", [layer for _, layer in layers if not layer.wrap], workload, shards)
    units = [_unit(name, [layer], workload, shards) if layer.wrap else None for name, layer in layers]
    return root, units


def _first_reached(workload: Workload) -> int:
    """The position in `workload.expanded` at which backward ends: the first layer that trains or has backward time.

    Frozen layers before it hold nothing that needs a gradient, so torch's autograd never enters them.
    """
    reached = ((layer.trainable and bool(layer.tensors)) or layer.backward_ms > 0 for _, layer in workload.expanded)
    return next(position for position, here in enumerate(reached) if here)


def regather_group(options: Options, placement: Placement) -> Group | None:
    """The ranks that units are gathered over again in backward; None where they stay gathered.

    Raises InputError where `reshard_after_forward` is a number that does not divide the shard degree.
    """
    choice, shard = options.reshard_after_forward, placement.shard
    if choice is False:
        return None
    if choice is None or choice is True:
        return shard
    if not isinstance(choice, int) or choice < 2 or shard.nranks % choice:
        raise InputError(
            f"reshard_after_forward = {choice!r} must be true, false, none or a number of ranks above 1 that divides "
            f"the shard degree, {shard.nranks}"
        )
    return placement.consecutive(choice)


def fsdp(workload: Workload, placement: Placement, options: Options) -> Schedule:
    """Every micro-batch gathers and reduce-scatters (torch's default); the optimizer works on its shard.

    With replicas (HSDP) an all_reduce of the shard follows every reduce-scatter, on the replicate group's own stream.
    """
    builder = _Builder(workload, placement, options)
    before: tuple[int, ...] = ()
    for mark in options.micro_batch_marks:
        before = builder.micro_batch(before, mark)
    optimizer_ms = workload.optimizer_ms / placement.shard.nranks
    builder.schedule.add("optimizer", optimizer_ms, after=before, stream=COMPUTE, phase="optimizer")
    return builder.schedule


class _Builder:
    """Writes one step's tasks. `before` is always what the compute stream waits for, itself included."""

    def __init__(self, workload: Workload, placement: Placement, options: Options) -> None:
        self.schedule = Schedule()
        self.workload, self.placement, self.options = workload, placement, options
        self.shard = placement.shard
        self.regather = regather_group(options, placement)
        self.root, units = split_units(workload, self.shard.nranks)
        layers = [(f" {name}", layer, unit) for (name, layer), unit in zip(workload.expanded, units, strict=True)]
        first = _first_reached(workload)
        self.forward = [
            Step(name="", compute_ms=workload.forward_ms, unit=None),
            *(Step(name=name, compute_ms=layer.forward_ms, unit=unit) for name, layer, unit in layers),
        ]
        self.backward = [
            Step(name="", compute_ms=workload.backward_ms, unit=None),
            *(
                Step(name=name, compute_ms=layer.backward_ms, unit=unit, reached=position >= first)
                for position, (name, layer, unit) in reversed(list(enumerate(layers)))
            ),
        ]
        self.reduced: tuple[int, ...] = ()  # this micro-batch's last reduce-scatter that nothing has waited for
        self.synced: dict[str, tuple[int, ...]] = {}  # the last gradient collective of each stream

    def micro_batch(self, before: tuple[int, ...], mark: str) -> tuple[int, ...]:
        """Forward and backward; returns what the next computation waits for: the end of every gradient collective."""
        if self.root:
            before = (*before, *self._gather(self.root, self.shard, before, mark))
        before = self._walk(self.forward, "forward", self.shard, before, mark)
        if self.root and self.regather and self.options.reshard_after_forward is not None:
            before = (*before, *self._gather(self.root, self.regather, before, mark))
        before = self._walk(self.backward, "backward", self.regather, before, mark)
        if self.root:
            self._reduce(self.root, before, mark)
        self.reduced = ()
        return (*before, *chain.from_iterable(self.synced.values()))

    def _walk(
        self, steps: list[Step], phase: str, group: Group | None, before: tuple[int, ...], mark: str
    ) -> tuple[int, ...]:
        """The computations of one direction, with the gathers they need over `group` (None: all stay gathered)."""
        units = [step.unit for step in steps if step.unit and group]
        gathers: list[tuple[int, ...]] = []  # of units[0], units[1], …
        needed = 0
        ahead = 1 if self.options.prefetch else 0

        def issue(count: int) -> None:
            for unit in units[len(gathers) : count]:
                gathers.append(self._gather(unit, group or self.shard, before, mark))

        issue(ahead)
        for step in steps:
            if step.unit and group and step.reached:
                needed += 1
                issue(needed)
                before = (*before, *gathers[needed - 1])
                issue(needed + ahead)
            name = f"{phase}{step.name}{mark}"
            before = (self.schedule.add(name, step.compute_ms, after=before, stream=COMPUTE, phase=phase),)
            if step.unit and step.reached and phase == "backward":
                before = self._reduce(step.unit, before, mark)
        return before

    def _gather(self, unit: Unit, group: Group, before: tuple[int, ...], mark: str) -> tuple[int, ...]:
        call = Call(
            collective="all_gather_into_tensor",
            size_bytes=unit.gather_bytes,
            group=group,
            dtype=self.workload.param_dtype,
        )
        return self.schedule.call(f"all_gather {unit.name}{mark}", call, after=before, stream=COMM, phase="parameters")

    def _reduce(self, unit: Unit, before: tuple[int, ...], mark: str) -> tuple[int, ...]:
        """Reduce a unit's gradients; returns what the next computation waits for.

        torch keeps one reduce-scatter input in flight: after each unit's backward, frozen or not, the compute stream
        waits for the reduce-scatter before it (FSDPParamGroup.post_backward).
        """
        before = (*before, *self.reduced)
        self.reduced = ()
        if unit.reduce_bytes:
            call = Call(
                collective="reduce_scatter_tensor",
                size_bytes=unit.reduce_bytes,
                group=self.shard,
                dtype=self.workload.reduce_dtype,
            )
            name = f"reduce_scatter {unit.name}{mark}"
            scatter = self.schedule.call(name, call, after=before, stream=COMM, phase="gradients")
            self.synced[COMM] = self.reduced = scatter
            self._replicate(unit, scatter or before, mark)
        return before

    def _replicate(self, unit: Unit, after: tuple[int, ...], mark: str) -> None:
        """HSDP: sum the shard over the replicas. The next reduce-scatter does not wait for it."""
        call = Call(
            collective="all_reduce",
            size_bytes=unit.reduce_bytes // self.shard.nranks,
            group=self.placement.replicate,
            dtype=self.workload.reduce_dtype,
        )
        name = f"all_reduce {unit.name}{mark}"
        self.synced[REPLICATE] = self.schedule.call(name, call, after=after, stream=REPLICATE, phase="gradients")
