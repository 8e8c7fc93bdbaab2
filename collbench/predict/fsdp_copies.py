"""`fully_shard`'s step, with torch's own copies where they are counted.

Sources, torch/distributed/fsdp/_fully_shard: foreach_all_gather, foreach_all_gather_copy_out and foreach_reduce in
_fsdp_collectives.py, FSDPParam.to_sharded_post_forward and to_accumulated_grad_if_needed.

gather      the shard is cast where it is kept in another type, and copied into the output, on a stream of its own; the
            compute stream copies the output into the parameters once it is there
reshard     to a part of the ranks: a copy of their share
reduction   the compute stream copies (and casts) the gradients into the input. fp16, whose sums might overflow, is
            divided before and after. The reduced shard is cast to the type that is kept and, but in the first
            micro-batch, added to what is there
no sync     gradients are cast to the type that they are reduced in, and added up there; where they are of that type
            already, autograd adds them up

Padding is taken to be read like what it pads.
"""

from __future__ import annotations

from collbench.dtypes import find_dtype
from collbench.predict.copies import COPY_IN, COPY_OUT, Copying
from collbench.predict.fsdp import Builder
from collbench.predict.options import Options
from collbench.predict.order import ROOT
from collbench.predict.placement import Placement
from collbench.predict.timeline import COMM, COMPUTE, Schedule
from collbench.predict.workload import Workload


def fsdp(workload: Workload, placement: Placement, options: Options) -> Schedule:
    """One step of `fully_shard`, or of HSDP."""
    copying = Copying.of(options)
    if not copying.counted:
        return Builder(workload, placement, options).step()
    return _CopyingBuilder(workload, placement, options, copying).step()


class _CopyingBuilder(Builder):
    """`itemsizes`: of what is kept, what is gathered and computed with, and what is reduced."""

    def __init__(self, workload: Workload, placement: Placement, options: Options, copying: Copying) -> None:
        super().__init__(workload, placement, options)
        types = (workload.storage_dtype, workload.param_dtype, workload.reduce_dtype)
        self.itemsizes = tuple(find_dtype(name).itemsize for name in types)
        self.copying = copying
        self.divides = workload.reduce_dtype == "float16"
        self.held: set[int] = set()  # units whose gradients of earlier micro-batches are kept, and not reduced

    def _copy(
        self, what: str, position: int, moved_bytes: int, after: tuple[int, ...], stream: str, *, collectives: int = 0
    ) -> tuple[int, ...]:
        """A copy of a unit's; none where it takes no time."""
        name = f"{what} {self.units[position].name}{self.mark}"
        return self.copying.add(self.schedule, name, moved_bytes, after=after, stream=stream, collectives=collectives)

    def _copy_here(self, what: str, position: int, moved_bytes: int, *, collectives: int = 0) -> None:
        """The same on the compute stream."""
        copied = self._copy(what, position, moved_bytes, self.before, COMPUTE, collectives=collectives)
        self.before = copied or self.before

    def _gather(self, position: int, phase: str) -> None:
        group = self._gathered_over(phase)
        stored, gathered, _ = self.itemsizes
        moved = 0 if group.nranks == 1 else 2 * gathered  # a group of one has no output to copy into
        if stored != gathered:
            moved += (stored if group == self.shard else gathered) + gathered
        moved_bytes = self.units[position].gather_numel // group.nranks * moved
        ready = self.released if self.options.prefetch else self.before
        self.copied_in = self._copy("copy in", position, moved_bytes, ready, COPY_IN)
        super()._gather(position, phase)
        self.pending[position] = self.gathered or self.copied_in

    def _gather_after(self, position: int) -> tuple[int, ...]:
        return (*super()._gather_after(position), *self.copied_in)

    def _copied_out(self, position: int, arrived: tuple[int, ...]) -> tuple[int, ...]:
        moved_bytes = 2 * self.units[position].gather_bytes
        return self._copy("copy out", position, moved_bytes, arrived, COMPUTE, collectives=1) or arrived

    def _computed(self, unit: int, phase: str) -> None:
        if phase == "forward" and unit != ROOT:
            self._reshard(unit)

    def _turned(self) -> None:
        self._reshard(ROOT)

    def _reshard(self, position: int) -> None:
        """Behind its forward. What goes back to all ranks is dropped."""
        if position in self.units and self.regather is not None and self.regather != self.shard:
            self._copy_here("reshard", position, 2 * self.units[position].gather_bytes // self.regather.nranks)

    def _gradients_in(self, position: int) -> tuple[int, ...]:
        unit, (_, gathered, reduced) = self.units[position], self.itemsizes
        if position in self.held:
            self._hold(position)
            gathered = reduced
            self.held.remove(position)
        self._copy_here("gradients in", position, unit.reduce_numel * (gathered + reduced), collectives=1)
        if not self.divides:
            return self.before
        return self._copy("divide", position, 2 * unit.reduce_bytes, self.before, COMM) or self.before

    def _gradients_out(self, position: int, after: tuple[int, ...]) -> None:
        stored, _, reduced = self.itemsizes
        moved = 2 * reduced * (self.divides + (self.shard.nranks == 1))  # a group of one copies what it would reduce
        moved += (reduced + stored) * (reduced != stored)
        moved += 3 * stored * (self.options.grad_sync and self.mark != self.options.micro_batch_marks[0])
        moved_bytes = self.units[position].reduce_numel // self.shard.nranks * moved
        self.synced += self._copy("gradients out", position, moved_bytes, after, COPY_OUT)

    def _hold(self, position: int) -> None:
        _, gathered, reduced = self.itemsizes
        if gathered != reduced:
            moved = gathered + reduced + reduced * (position in self.held)
            self._copy_here("add up", position, self.units[position].reduce_numel * moved)
            self.held.add(position)
