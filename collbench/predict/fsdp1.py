"""Sharded parameters as torch's first FSDP, FullyShardedDataParallel, issues them: a flat parameter a wrapped layer.

The same gathers and reduce-scatters as fsdp.py's, on one communicator, but padded by the unit, and other waits
(torch/distributed/fsdp/_runtime_utils.py):

gathers     wait for the micro-batch's start, and with `limit_all_gathers` for the units that are freed: a gather that
            finds two units freed since waits for the first of them (_FreeEventQueue). The first one of backward is
            taken to wait for all of forward
reductions  the compute stream waits for none of them before the end
"""

from __future__ import annotations

from collections import deque

from collbench.errors import InputError
from collbench.predict.fsdp import Builder
from collbench.predict.options import Options
from collbench.predict.order import ROOT, Item, planned_order
from collbench.predict.placement import Placement
from collbench.predict.timeline import Schedule
from collbench.predict.units import Division
from collbench.predict.workload import Workload

FLAT = Division(padded="units")
_IN_FLIGHT = 2  # _FreeEventQueue._max_num_inflight_all_gathers


def fsdp1(workload: Workload, placement: Placement, options: Options) -> Schedule:
    """FULL_SHARD, or SHARD_GRAD_OP where `reshard_after_forward` is false. The root stays gathered until backward.

    Raises InputError where `reshard_after_forward` is a number: FullyShardedDataParallel has no such choice.
    """
    if isinstance(options.reshard_after_forward, int) and not isinstance(options.reshard_after_forward, bool):
        raise InputError(
            f"reshard_after_forward = {options.reshard_after_forward!r}: fsdp1 has true (FULL_SHARD) and false "
            "(SHARD_GRAD_OP)"
        )
    return _FlatBuilder(workload, placement, options, FLAT).step()


class _FlatBuilder(Builder):
    def __init__(self, workload: Workload, placement: Placement, options: Options, division: Division) -> None:
        super().__init__(workload, placement, options, division)
        self.freed: deque[tuple[int, ...]] = deque()  # what each freed unit was freed after, of those not waited for
        self.kept: set[int] = set()  # units that stay gathered: not freed while gradients are not synced
        self.reshards = options.reshard_after_forward is not False

    def _order(self, has_unit: list[bool]) -> list[Item]:
        """Never the captured one, which is of the other FSDP. True is FULL_SHARD: the root is not gathered again."""
        order = planned_order(self.workload, ROOT in self.units, has_unit, self.options)
        backward = order.index(Item("backward", ROOT))
        order = [item for index, item in enumerate(order) if item != Item("gather", ROOT) or not 0 < index < backward]
        return self._reduced_late(order) if self.options.forward_prefetch else order

    def _reduced_late(self, order: list[Item]) -> list[Item]:
        """Every unit reduced behind the backward of the next one.

        A unit that is prefetched in forward has its parameters' views made before the unit before it computes, so
        autograd, which goes backwards, comes to them after that unit's backward.
        """
        late: list[Item] = []
        held: list[Item] = []
        for item in order:
            if item.kind == "reduce":
                held.append(item)
                continue
            late.append(item)
            if item.kind == "backward" and item.at != ROOT and item.at in self.units:
                late += held
                held = []
        return late + held

    def _micro_batch(self, before: tuple[int, ...], mark: str, *, syncs: bool) -> tuple[int, ...]:
        self.frees = syncs or self.reshards
        after = super()._micro_batch(before, mark, syncs=syncs)
        if ROOT in self.units:
            self._free(ROOT)
        return after

    def _gather(self, position: int, phase: str) -> None:
        if position not in self.kept:
            super()._gather(position, phase)

    def _gather_after(self, position: int) -> tuple[int, ...]:
        limit: tuple[int, ...] = ()
        if self.options.limit_all_gathers and len(self.freed) >= _IN_FLIGHT:
            limit = self.freed.popleft()
        return (*self.released, *self.gathered, *limit)

    def _wait(self, unit: int, phase: str) -> None:
        """Gathers on their stream wait for no copy-out: there is none."""
        self.before = (*self.before, *self.pending.pop(unit, ()))

    def _computed(self, unit: int, phase: str) -> None:
        if unit != ROOT and (phase == "backward" or self.reshards):
            self._free(unit)

    def _free(self, unit: int) -> None:
        if self.frees:
            self.freed.append(self.before)
            self.kept.discard(unit)
        else:
            self.kept.add(unit)

    def _await_reduced(self) -> None:
        """Not here."""
