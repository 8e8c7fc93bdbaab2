"""How torch does each collective, and what every rank must then hold.

A new collective is one entry in OPERATIONS (and one in `collbench/collectives.py`). The torch function is looked up at
every call, under the name this torch has: 2.13 renamed `all_gather_into_tensor` to `all_gather_single` and
`reduce_scatter_tensor` to `reduce_scatter_single`, and warns about the old names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.distributed as dist

from collbench.measure import pattern
from collbench.measure.buffers import Buffers
from collbench.measure.groups import Group
from collbench.measure.pattern import Part
from collbench.sweep import Cell

_REDOPS: dict[str | None, Callable[[], Any]] = {
    "sum": lambda: dist.ReduceOp.SUM,
    "prod": lambda: dist.ReduceOp.PRODUCT,
    "max": lambda: dist.ReduceOp.MAX,
    "min": lambda: dist.ReduceOp.MIN,
    "avg": lambda: dist.ReduceOp.AVG,
    "mulsum": lambda: getattr(dist, "_make_nccl_premul_sum")(pattern.MULTIPLIER),  # noqa: B009  private, and untyped
}


def _root(cell: Cell, group: Group) -> int:
    """nccl-tests' root is the rank inside the group, torch's the global one."""
    return group.ranks[cell.root or 0]


def _broadcast(cell: Cell, group: Group, buffers: Buffers, async_op: bool) -> Any:
    return dist.broadcast(buffers.recv, src=_root(cell, group), group=group.handle, async_op=async_op)


def _all_reduce(cell: Cell, group: Group, buffers: Buffers, async_op: bool) -> Any:
    return dist.all_reduce(buffers.recv, op=_REDOPS[cell.redop](), group=group.handle, async_op=async_op)


def _reduce(cell: Cell, group: Group, buffers: Buffers, async_op: bool) -> Any:
    redop, root = _REDOPS[cell.redop](), _root(cell, group)
    return dist.reduce(buffers.recv, dst=root, op=redop, group=group.handle, async_op=async_op)


def _all_gather(cell: Cell, group: Group, buffers: Buffers, async_op: bool) -> Any:
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return gather(buffers.recv, buffers.send, group=group.handle, async_op=async_op)


def _reduce_scatter(cell: Cell, group: Group, buffers: Buffers, async_op: bool) -> Any:
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return scatter(buffers.recv, buffers.send, op=_REDOPS[cell.redop](), group=group.handle, async_op=async_op)


def _all_to_all(cell: Cell, group: Group, buffers: Buffers, async_op: bool) -> Any:
    return dist.all_to_all_single(buffers.recv, buffers.send, group=group.handle, async_op=async_op)


def _gather(cell: Cell, group: Group, buffers: Buffers, async_op: bool) -> Any:
    root = _root(cell, group)
    gathered = list(buffers.shares) if root == group.ranks[group.rank] else None
    return dist.gather(buffers.send, gathered, dst=root, group=group.handle, async_op=async_op)


def _scatter(cell: Cell, group: Group, buffers: Buffers, async_op: bool) -> Any:
    root = _root(cell, group)
    shares = list(buffers.shares) if root == group.ranks[group.rank] else None
    return dist.scatter(buffers.recv, shares, src=root, group=group.handle, async_op=async_op)


def _send_recv(cell: Cell, group: Group, buffers: Buffers, async_op: bool) -> Any:
    following, before = (group.ranks[(group.rank + step) % group.nranks] for step in (1, -1))
    return _exchange(group, buffers.send, following, buffers.recv, before, async_op)


def _hypercube(cell: Cell, group: Group, buffers: Buffers, async_op: bool) -> Any:
    """Step k doubles what a rank holds: it exchanges it with the rank whose number differs in bit k."""

    def steps() -> Iterator[Any]:
        if not cell.in_place:
            buffers.shares[group.rank].copy_(buffers.send)
        count, bit = buffers.send.numel(), 1
        while bit < group.nranks:
            held = group.rank & -bit
            mine, theirs = (buffers.recv[first * count : (first + bit) * count] for first in (held, held ^ bit))
            peer = group.ranks[group.rank ^ bit]
            yield _exchange(group, mine, peer, theirs, peer, async_op=True)
            bit *= 2

    work = _Steps(steps())
    return work if async_op else work.wait()


def _exchange(group: Group, sent: Any, to: int, received: Any, source: int, async_op: bool) -> Any:
    # The receive first: between two ranks gloo's notice that it may come would else wait behind what is sent.
    exchange = [dist.P2POp(dist.irecv, received, source, group.handle), dist.P2POp(dist.isend, sent, to, group.handle)]
    works = _Works(dist.batch_isend_irecv(exchange))
    return works if async_op else works.wait()


@dataclass(frozen=True, slots=True)
class _Works:
    """Several works as one."""

    works: list[Any]

    def wait(self) -> None:
        for work in self.works:
            work.wait()


class _Steps:
    """Works that must follow one another; the first has begun, `wait` does the rest."""

    def __init__(self, steps: Iterator[Any]) -> None:
        self._steps = steps
        self._current = next(steps, None)

    def wait(self) -> None:
        while self._current is not None:
            self._current.wait()
            self._current = next(self._steps, None)


@dataclass(frozen=True, slots=True)
class Operation:
    """call: one collective; what it returns has `wait`, or is None where it has ended.

    expect(cell, group, count): the parts of the receive buffer, in order and equally long; none on a rank that receives
    nothing.
    """

    call: Callable[[Cell, Group, Buffers, bool], Any]
    expect: Callable[[Cell, Group, int], list[Part]]


def _on_the_root(expect: Callable[[Cell, Group, int], list[Part]], cell: Cell, group: Group, count: int) -> list[Part]:
    return expect(cell, group, count) if group.rank == cell.root else []


OPERATIONS: dict[str, Operation] = {
    "broadcast": Operation(_broadcast, pattern.expect_root),
    "all_reduce": Operation(_all_reduce, pattern.expect_reduced),
    "all_gather_into_tensor": Operation(_all_gather, pattern.expect_gathered),
    "reduce_scatter_tensor": Operation(_reduce_scatter, pattern.expect_reduced_share),
    "all_to_all_single": Operation(_all_to_all, pattern.expect_shares_of_all),
    "reduce": Operation(_reduce, partial(_on_the_root, pattern.expect_reduced)),
    "gather": Operation(_gather, partial(_on_the_root, pattern.expect_gathered)),
    "scatter": Operation(_scatter, pattern.expect_share_of_root),
    "send_recv": Operation(_send_recv, pattern.expect_rank_before),
    "hypercube": Operation(_hypercube, pattern.expect_gathered),
}


def fill_for_check(cell: Cell, group: Group, buffers: Buffers) -> None:
    """The pattern in what is sent; something else in what is only received."""
    if not cell.in_place:
        buffers.recv.zero_()
    pattern.tile(buffers.send, pattern.inputs(cell, group.rank, group.nranks))


def wrong_elements(cell: Cell, group: Group, buffers: Buffers) -> int:
    """How many elements of this rank's result differ from what they must be."""
    parts = OPERATIONS[cell.collective].expect(cell, group, cell.message(group.nranks).count)
    share = buffers.recv.numel() // max(1, len(parts))
    return sum(
        pattern.differing(cell, buffers.recv[index * share : (index + 1) * share], part)
        for index, part in enumerate(parts)
    )
