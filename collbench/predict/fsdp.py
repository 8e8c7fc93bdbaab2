"""Sharded parameters: torch's `fully_shard` on every wrapped layer and on the root (ZeRO-3), and HSDP.

The order of issue is order.py's. All gathers and reduce-scatters share one communicator, so one stream, in that order.
What each waits for on the device (torch/distributed/fsdp/_fully_shard, FSDPParamGroup.unshard, wait_for_unshard):

forward     a gather, until the unit before the one that the host waited for last is copied out: the host runs ahead,
            so the gather of a unit may start with the computation two units before it
backward    a gather, until the unit that the host waited for last is copied out: the unit before it is prefetched
            while it computes. The first one is taken to wait for all of forward
"""

from __future__ import annotations

from collections import Counter

from collbench.errors import InputError
from collbench.predict.options import Options
from collbench.predict.order import ROOT, Item, captured_order, planned_order
from collbench.predict.placement import Group, Placement
from collbench.predict.timeline import COMM, COMPUTE, Call, Schedule
from collbench.predict.units import ROWS, Division, Unit, split_units
from collbench.predict.workload import Workload, backward_ms

REPLICATE = "comm:replicate"  # HSDP's all_reduces: another communicator, other links


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


class Builder:
    """Writes one step's tasks: every micro-batch gathers and reduce-scatters (torch's default), or the last alone
    reduce-scatters. Without gradient sync the others keep unsharded gradients. The optimizer works on its shard.

    With replicas (HSDP) an all_reduce of the shard follows every reduce-scatter, on the replicate group's own stream.
    `before` is always what the compute stream waits for, itself included.
    """

    def __init__(self, workload: Workload, placement: Placement, options: Options, division: Division = ROWS) -> None:
        self.schedule = Schedule()
        self.workload, self.placement, self.options = workload, placement, options
        self.shard = placement.shard
        self.regather = regather_group(options, placement)
        self.layers = workload.expanded
        root, units = split_units(workload, self.shard.nranks, division)
        self.units = {position: unit for position, unit in enumerate(units) if unit}
        if root:
            self.units[ROOT] = root
        self.order = self._order([unit is not None for unit in units])
        self.computing = self._computing()
        self.times = Counter(self.order)  # a layer that is called n times takes an n-th each time
        self.mark = ""  # of the micro-batch
        self.before: tuple[int, ...] = ()
        self.pending: dict[int, tuple[int, ...]] = {}  # gathers that no computation has waited for, by unit
        self.released: tuple[int, ...] = ()  # what the next gather waits for
        self.copied_out: tuple[int, ...] = ()  # what the last unit's copy-out waited for
        self.gathered: tuple[int, ...] = ()  # the last gather
        self.reduced: tuple[int, ...] = ()  # this micro-batch's last reduce-scatter that nothing has waited for
        self.synced: list[int] = []  # this micro-batch's gradient collectives

    def step(self) -> Schedule:
        """All micro-batches, and the optimizer."""
        before: tuple[int, ...] = ()
        marks = self.options.micro_batch_marks
        for mark in marks:
            before = self._micro_batch(before, mark, syncs=self.options.grad_sync or mark == marks[-1])
        optimizer_ms = self.workload.optimizer_ms / self.shard.nranks
        self.schedule.add("optimizer", optimizer_ms, after=before, stream=COMPUTE, phase="optimizer")
        return self.schedule

    def _order(self, has_unit: list[bool]) -> list[Item]:
        captured = self.workload.captured
        if captured is not None and captured.is_fsdp_of(self.options):
            return captured_order(self.workload, captured)
        return planned_order(self.workload, ROOT in self.units, has_unit, self.options)

    def _micro_batch(self, before: tuple[int, ...], mark: str, *, syncs: bool) -> tuple[int, ...]:
        """Forward and backward; returns what the next computation waits for: the end of every gradient collective."""
        self.before = self.released = self.copied_out = before
        self.gathered, self.reduced, self.synced, self.pending = (), (), [], {}
        phase, self.mark = "forward", mark
        for item, (direction, unit) in zip(self.order, self.computing, strict=True):
            if direction != phase:
                self._turned()
                phase, self.released = direction, self.before
            if item.kind == "gather":
                if item.at != unit:  # prefetched, when the unit of the computation has been waited for
                    self._wait(unit, phase)
                self._gather(item.at, phase)
            elif item.kind == "reduce":
                if syncs:
                    self._reduce(item.at)
                else:
                    self._hold(item.at)
            else:
                self._wait(unit, phase)
                self._compute(item)
                self._computed(unit, phase)
        return (*self.before, *self.synced)

    def _computing(self) -> list[tuple[str, int]]:
        """For every item of the order: direction and unit of the computation that it is, or that comes next."""
        computing: list[tuple[str, int]] = []
        found = ("backward", ROOT)  # of what is behind the last one: gradients are reduced
        for item in reversed(self.order):
            if item.kind in ("forward", "backward"):
                found = (item.kind, item.at if item.at in self.units else ROOT)
            computing.append(found)
        return computing[::-1]

    def _wait(self, unit: int, phase: str) -> None:
        """The compute stream copies the unit out, once it is gathered; then gathers may go on."""
        if unit not in self.pending:
            return
        self.before = self._copied_out(unit, (*self.before, *self.pending.pop(unit)))
        self.released = self.copied_out if phase == "forward" else self.before
        self.copied_out = self.before

    def _compute(self, item: Item) -> None:
        name, source = ("", self.workload) if item.at == ROOT else self.layers[item.at]
        if item.kind == "forward":
            total_ms = source.forward_ms
        elif isinstance(source, Workload):
            total_ms = source.backward_ms
        else:
            total_ms = backward_ms(source, recompute=self.options.recompute)
        title = f"{item.kind} {name}".rstrip() + self.mark
        work = total_ms / self.times[item]
        self.before = (self.schedule.add(title, work, after=self.before, stream=COMPUTE, phase=item.kind),)

    def _gather(self, position: int, phase: str) -> None:
        unit = self.units[position]
        call = Call(
            collective="all_gather_into_tensor",
            size_bytes=unit.gather_bytes,
            group=self._gathered_over(phase),
            dtype=self.workload.param_dtype,
        )
        name, after = f"all_gather {unit.name}{self.mark}", self._gather_after(position)
        gathered = self.schedule.call(name, call, after=after, stream=COMM, phase="parameters")
        self.gathered = self.pending[position] = gathered

    def _gathered_over(self, phase: str) -> Group:
        return self.shard if phase == "forward" else self.regather or self.shard

    def _gather_after(self, position: int) -> tuple[int, ...]:
        """What a gather waits for.

        The gather before it too: the communicator would see to it, but a backend that runs two at a time not.
        """
        return (*self.released, *self.gathered) if self.options.prefetch else self.before

    def _reduce(self, position: int) -> None:
        self._await_reduced()
        unit = self.units[position]
        if unit.reduce_bytes:
            call = Call(
                collective="reduce_scatter_tensor",
                size_bytes=unit.reduce_bytes,
                group=self.shard,
                dtype=self.workload.reduce_dtype,
            )
            name = f"reduce_scatter {unit.name}{self.mark}"
            after = self._gradients_in(position)
            scatter = self.schedule.call(name, call, after=after, stream=COMM, phase="gradients")
            self.reduced = scatter
            self.synced += scatter
            replicated = self._replicate(unit, scatter or self.before)
            self._gradients_out(position, replicated or scatter or self.before)

    def _await_reduced(self) -> None:
        """After each unit's backward, frozen or not, the compute stream waits for the reduce-scatter before it.

        torch keeps one reduce-scatter input in flight (FSDPParamGroup.post_backward).
        """
        self.before = (*self.before, *self.reduced)
        self.reduced = ()

    # What fsdp1 and the copies (fsdp_copies.py) have to do.

    def _computed(self, unit: int, phase: str) -> None:
        """Called behind each computation, with its unit."""

    def _turned(self) -> None:
        """Called between forward and backward."""

    def _copied_out(self, position: int, arrived: tuple[int, ...]) -> tuple[int, ...]:
        """What computation comes after, where it needs a unit that has arrived."""
        return arrived

    def _gradients_in(self, position: int) -> tuple[int, ...]:
        """What the reduction of a unit comes after."""
        return self.before

    def _gradients_out(self, position: int, after: tuple[int, ...]) -> None:
        """Called behind the reduction of a unit."""

    def _hold(self, position: int) -> None:
        """Called where the gradients of a unit are not reduced."""

    def _replicate(self, unit: Unit, after: tuple[int, ...]) -> tuple[int, ...]:
        """HSDP: sum the shard over the replicas. The next reduce-scatter does not wait for it."""
        call = Call(
            collective="all_reduce",
            size_bytes=unit.reduce_bytes // self.shard.nranks,
            group=self.placement.replicate,
            dtype=self.workload.reduce_dtype,
        )
        name = f"all_reduce {unit.name}{self.mark}"
        replicated = self.schedule.call(name, call, after=after, stream=REPLICATE, phase="gradients")
        self.synced += replicated
        return replicated
