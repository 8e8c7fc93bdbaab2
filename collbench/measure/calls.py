"""What the timed loops call: one operation on the next buffers of the rotation, or several as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed import distributed_c10d

from collbench.measure.buffers import Arena
from collbench.measure.device import Device
from collbench.measure.groups import Group
from collbench.measure.operations import OPERATIONS
from collbench.measure.slots import Slot
from collbench.measure.timing import Issue
from collbench.sweep import Cell

# Those of which gloo does several as one; NCCL groups any.
_COALESCED_THEMSELVES = ("send_recv", "hypercube")  # torch nests no coalescing
_GLOO_COALESCES = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")


def plain(cell: Cell, group: Group, arena: Arena, slot: Slot, calls: int) -> Issue:
    """One operation a call; the tensors of the next `calls` calls are made here and now."""
    call = OPERATIONS[cell.collective].call
    buffers = arena.buffers(cell, group, slot, calls)

    def issue(async_op: bool) -> Any:
        return call(cell, group, next(buffers), async_op)

    return issue


def coalesced(one: Issue, operations: int, cell: Cell, group: Group, device: Device) -> Issue:
    """`operations` operations a call, as one (nccl-tests -m: an NCCL group). RuntimeError where torch has no such
    form."""
    manager: Callable[..., Any] | None = getattr(distributed_c10d, "_coalescing_manager", None)
    if manager is None:
        raise RuntimeError("this torch coalesces no operations")
    if cell.collective in _COALESCED_THEMSELVES:
        raise RuntimeError(f"{cell.collective} is made of coalesced operations itself")
    if device.backend == "gloo" and cell.collective not in _GLOO_COALESCES:
        raise RuntimeError(f"gloo coalesces {', '.join(_GLOO_COALESCES)} alone")
    where = None if device.backend == "gloo" else device.torch_device

    def issue(async_op: bool) -> Any:
        try:
            with manager(group=group.handle, device=where, async_ops=True) as works:
                for _ in range(operations):
                    one(False)
        except BaseException:  # else every later call in this group would be queued, and never run
            distributed_c10d._world.pg_coalesce_state.pop(group.handle, None)
            raise
        return works

    return issue


def replayed(one: Issue, calls: int, device: Device) -> Issue:
    """`calls` calls recorded as one CUDA graph. RuntimeError where the device or the backend records none."""

    def all_calls() -> None:
        for _ in range(calls):
            work = one(False)
            if work is not None:
                work.wait()

    replay = device.record(all_calls)

    def issue(async_op: bool) -> Any:
        replay()

    return issue
