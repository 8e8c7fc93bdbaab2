"""Each collective's buffers, its torch call and its data check.

A new collective is one entry in OPERATIONS (and one in `collbench/collectives.py`). The torch function is looked up at
every call, under the name this torch has: 2.13 renamed `all_gather_into_tensor` to `all_gather_single` and
`reduce_scatter_tensor` to `reduce_scatter_single`, and warns about the old names.

The check fills the buffers with small whole numbers, which every type adds exactly in any order, in a pattern that
differs from rank to rank and from place to place, and compares every element of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from collbench.collectives import COLLECTIVES
from collbench.dtypes import DTYPES
from collbench.sweep import Cell

_PERIOD = 61  # of the pattern; prime, so that no share of a buffer repeats its neighbour
_CHUNK = 2**24  # elements compared at a time: the check must not need another buffer


@dataclass(frozen=True, slots=True)
class Buffers:
    """One rank's tensors for one cell: what it sends, what it receives (the same memory, or part of it, in place)."""

    send: torch.Tensor
    recv: torch.Tensor


@dataclass(frozen=True, slots=True)
class Group:
    """One process group as this rank sees it. `handle` is torch's, `ranks` the global ranks in order."""

    handle: Any
    ranks: tuple[int, ...]
    rank: int  # of this process, inside the group

    @property
    def nranks(self) -> int:
        return len(self.ranks)


_REDOPS: dict[str | None, Any] = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "avg": dist.ReduceOp.AVG,
}


def _broadcast(cell: Cell, group: Group, buffers: Buffers, async_op: bool) -> Any:
    # nccl-tests' root is the rank inside the group, torch's src the global one.
    source = group.ranks[cell.root or 0]
    return dist.broadcast(buffers.recv, src=source, group=group.handle, async_op=async_op)


def _all_reduce(cell: Cell, group: Group, buffers: Buffers, async_op: bool) -> Any:
    return dist.all_reduce(buffers.recv, op=_REDOPS[cell.redop], group=group.handle, async_op=async_op)


def _all_gather(cell: Cell, group: Group, buffers: Buffers, async_op: bool) -> Any:
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return gather(buffers.recv, buffers.send, group=group.handle, async_op=async_op)


def _reduce_scatter(cell: Cell, group: Group, buffers: Buffers, async_op: bool) -> Any:
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return scatter(buffers.recv, buffers.send, op=_REDOPS[cell.redop], group=group.handle, async_op=async_op)


@dataclass(frozen=True, slots=True)
class Operation:
    """How torch does one collective.

    buffer_elements(count, nranks): (sent, received) by one rank, in elements.
    expect(cell, group, count): the parts of the receive buffer, each the place where it begins in the pattern and one
    period of the values it must hold.
    """

    call: Callable[[Cell, Group, Buffers, bool], Any]
    buffer_elements: Callable[[int, int], tuple[int, int]]
    expect: Callable[[Cell, Group, int], list[tuple[int, list[float]]]]


def _inputs(cell: Cell, rank: int, nranks: int) -> list[float]:
    """One period of what `rank` sends: whole numbers small enough for the result to be exact in the cell's type."""
    limit = DTYPES[cell.dtype].exact_integers
    if not COLLECTIVES[cell.collective].reduces:
        return [float((place * 7 + rank * 5) % min(_PERIOD, limit + 1)) for place in range(_PERIOD)]
    if cell.redop == "prod":  # at most three ranks hold a 2 at one place: products stay at 8
        return [2.0 if (place - rank) % max(nranks + 1, 4) < min(3, nranks) else 1.0 for place in range(_PERIOD)]
    if cell.redop in ("max", "min"):  # of the place, plus of the rank: the extremes differ from place to place
        part = min(_PERIOD, limit // 2)
        return [float(place * 7 % part + (place + rank * 5) % part) for place in range(_PERIOD)]
    if cell.redop == "avg" and DTYPES[cell.dtype].is_float:
        # A backend may scale by 1/n before it adds, so what is added must stay near-exact: a power of two, at one to
        # three ranks a place.
        power = 2.0 ** (nranks - 1).bit_length()
        return [power if (place + rank) % nranks < min(1 + place % 3, nranks) else 0.0 for place in range(_PERIOD)]
    # sum: where all ranks at 3 would pass the limit, only one rank in `sparse` holds anything at one place.
    sparse = -(-3 * nranks // (limit - 3))
    # Rank 0 counts in another order: else 3, 6, ... ranks had equal sums everywhere, and a misplaced share were right.
    return [
        float(1 + (place + rank if rank else place * 7 % _PERIOD) % 3) if (place + rank) % sparse == 0 else 0.0
        for place in range(_PERIOD)
    ]


def _reduced(cell: Cell, nranks: int) -> list[float]:
    columns = zip(*(_inputs(cell, rank, nranks) for rank in range(nranks)), strict=True)
    if cell.redop == "max":
        return [max(column) for column in columns]
    if cell.redop == "min":
        return [min(column) for column in columns]
    if cell.redop == "prod":
        products = [1.0] * _PERIOD
        for place, column in enumerate(columns):
            for value in column:
                products[place] *= value
        return products
    sums = [sum(column) for column in columns]
    return [value / nranks for value in sums] if cell.redop == "avg" else sums


# What a rank expects: parts of its receive buffer, each (first place of the pattern, one period of values).
def _expect_root(cell: Cell, group: Group, count: int) -> list[tuple[int, list[float]]]:
    return [(0, _inputs(cell, cell.root or 0, group.nranks))]


def _expect_reduced(cell: Cell, group: Group, count: int) -> list[tuple[int, list[float]]]:
    return [(0, _reduced(cell, group.nranks))]


def _expect_gathered(cell: Cell, group: Group, count: int) -> list[tuple[int, list[float]]]:
    return [(0, _inputs(cell, rank, group.nranks)) for rank in range(group.nranks)]


def _expect_own_share(cell: Cell, group: Group, count: int) -> list[tuple[int, list[float]]]:
    return [(group.rank * count, _reduced(cell, group.nranks))]


OPERATIONS: dict[str, Operation] = {
    "broadcast": Operation(_broadcast, lambda count, nranks: (count, count), _expect_root),
    "all_reduce": Operation(_all_reduce, lambda count, nranks: (count, count), _expect_reduced),
    "all_gather_into_tensor": Operation(_all_gather, lambda count, nranks: (count, count * nranks), _expect_gathered),
    "reduce_scatter_tensor": Operation(
        _reduce_scatter, lambda count, nranks: (count * nranks, count), _expect_own_share
    ),
}


def buffer_bytes(cell: Cell, nranks: int) -> int:
    """Memory of one rank's buffers for this cell."""
    sent, received = OPERATIONS[cell.collective].buffer_elements(cell.message(nranks).count, nranks)
    elements = max(sent, received) if cell.in_place else sent + received
    return elements * DTYPES[cell.dtype].itemsize


def allocate(cell: Cell, group: Group, device: torch.device) -> Buffers:
    """This rank's buffers; in place, the smaller is its own part of the larger (nccl-tests' in-place layout)."""
    count = cell.message(group.nranks).count
    sent, received = OPERATIONS[cell.collective].buffer_elements(count, group.nranks)
    dtype = getattr(torch, cell.dtype)
    larger = torch.empty(max(sent, received), dtype=dtype, device=device)
    if not cell.in_place:
        other = torch.empty(min(sent, received), dtype=dtype, device=device)
        return Buffers(larger, other) if sent > received else Buffers(other, larger)
    if sent == received:
        return Buffers(larger, larger)
    own = larger[group.rank * count : (group.rank + 1) * count]
    return Buffers(larger, own) if sent > received else Buffers(own, larger)


def fill_for_timing(cell: Cell, buffers: Buffers) -> None:
    """Touch every page; values that stay finite however often an in-place reduction repeats."""
    for tensor in (buffers.send, buffers.recv):
        tensor.fill_(1 if cell.redop == "prod" else 0)


def fill_for_check(cell: Cell, group: Group, buffers: Buffers) -> None:
    """The pattern in what is sent; something else in what is only received."""
    if not cell.in_place:
        buffers.recv.fill_(0)
    _tile(buffers.send, _inputs(cell, group.rank, group.nranks))


def wrong_elements(cell: Cell, group: Group, buffers: Buffers) -> int:
    """How many elements of this rank's result differ from what they must be."""
    count = cell.message(group.nranks).count
    parts = OPERATIONS[cell.collective].expect(cell, group, count)
    share = buffers.recv.numel() // len(parts)
    wrong = 0
    for index, (first, values) in enumerate(parts):
        turned = values[first % _PERIOD :] + values[: first % _PERIOD]
        part = buffers.recv[index * share : (index + 1) * share]
        step = _CHUNK // _PERIOD * _PERIOD
        for begin in range(0, part.numel(), step):
            wrong += _differing(cell, part[begin : begin + step], turned)
    return wrong


def _table(values: list[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).to(like.dtype).to(like.device)


def _tile(tensor: torch.Tensor, values: list[float]) -> None:
    table = _table(values, tensor)
    whole = tensor.numel() // _PERIOD * _PERIOD
    tensor[:whole].view(-1, _PERIOD).copy_(table)
    tensor[whole:].copy_(table[: tensor.numel() - whole])


def _differing(cell: Cell, part: torch.Tensor, values: list[float]) -> int:
    table = _table(values, part)
    expected = table.repeat(-(-part.numel() // _PERIOD))[: part.numel()]
    if cell.redop == "avg" and part.is_floating_point():
        # The mean is a sum times 1/n: nccl-tests allows it 2 units in the last place.
        tolerance = 2 * torch.finfo(part.dtype).eps
        difference = (part.double() - expected.double()).abs()
        return int((~(difference <= tolerance * expected.double().abs())).sum())
    if cell.dtype.startswith("float8"):  # which torch does not compare; the bits do
        part, expected = part.view(torch.uint8), expected.view(torch.uint8)
    return int((part != expected).sum())
