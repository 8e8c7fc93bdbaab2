"""The pattern that a data check sends, and what every rank must then hold.

The buffers are filled with small whole numbers, which every type adds exactly in any order, in a pattern that differs
from rank to rank and from place to place, and every element of the result is compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from collbench.collectives import COLLECTIVES
from collbench.dtypes import DTYPES
from collbench.measure.groups import Group
from collbench.sweep import Cell

MULTIPLIER = 2.0  # of mulsum, on every rank
_PERIOD = 61  # of the pattern; prime, so that no share of a buffer repeats its neighbour
_CHUNK = 2**24 // _PERIOD * _PERIOD  # elements compared at a time: the check must not need another buffer

# torch does not compare these types everywhere; their bits do as well
_NOT_COMPARED = {
    "float8_e4m3fn": torch.uint8,
    "float8_e5m2": torch.uint8,
    "uint32": torch.int32,
    "uint64": torch.int64,
}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a receive buffer: the place where it begins in the pattern, and one period of its values."""

    first: int
    values: list[float]


def inputs(cell: Cell, rank: int, nranks: int) -> list[float]:
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
    largest = 3 * int(MULTIPLIER) if cell.redop == "mulsum" else 3
    sparse = max(1, -(-largest * nranks // max(1, limit - largest)))
    # Rank 0 counts in another order: else 3, 6, ... ranks had equal sums everywhere, and a misplaced share were right.
    return [
        float(1 + (place + rank if rank else place * 7 % _PERIOD) % 3) if (place + rank) % sparse == 0 else 0.0
        for place in range(_PERIOD)
    ]


def _reduced(cell: Cell, nranks: int) -> list[float]:
    columns = zip(*(inputs(cell, rank, nranks) for rank in range(nranks)), strict=True)
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
    if cell.redop == "mulsum":
        return [value * MULTIPLIER for value in sums]
    return [value / nranks for value in sums] if cell.redop == "avg" else sums


def expect_root(cell: Cell, group: Group, count: int) -> list[Part]:
    """All that the root sent."""
    return [Part(0, inputs(cell, cell.root or 0, group.nranks))]


def expect_share_of_root(cell: Cell, group: Group, count: int) -> list[Part]:
    """This rank's share of what the root sent."""
    return [Part(group.rank * count, inputs(cell, cell.root or 0, group.nranks))]


def expect_reduced(cell: Cell, group: Group, count: int) -> list[Part]:
    """What all ranks sent, reduced."""
    return [Part(0, _reduced(cell, group.nranks))]


def expect_reduced_share(cell: Cell, group: Group, count: int) -> list[Part]:
    """This rank's share of what all ranks sent, reduced."""
    return [Part(group.rank * count, _reduced(cell, group.nranks))]


def expect_gathered(cell: Cell, group: Group, count: int) -> list[Part]:
    """What every rank sent, one after the other."""
    return [Part(0, inputs(cell, rank, group.nranks)) for rank in range(group.nranks)]


def expect_shares_of_all(cell: Cell, group: Group, count: int) -> list[Part]:
    """This rank's share of what every rank sent, one after the other."""
    return [Part(group.rank * count, inputs(cell, rank, group.nranks)) for rank in range(group.nranks)]


def expect_rank_before(cell: Cell, group: Group, count: int) -> list[Part]:
    """All that the rank before this one sent, in the ring."""
    return [Part(0, inputs(cell, (group.rank - 1) % group.nranks, group.nranks))]


def tile(tensor: torch.Tensor, values: list[float]) -> None:
    """Fill a tensor with repetitions of one period."""
    table = _table(values, tensor)
    whole = tensor.numel() // _PERIOD * _PERIOD
    tensor[:whole].view(-1, _PERIOD).copy_(table)
    tensor[whole:].copy_(table[: tensor.numel() - whole])


def differing(cell: Cell, received: torch.Tensor, part: Part) -> int:
    """How many elements of what was received are not those of `part`."""
    values = part.values[part.first % _PERIOD :] + part.values[: part.first % _PERIOD]
    chunks = (received[begin : begin + _CHUNK] for begin in range(0, received.numel(), _CHUNK))
    return sum(_differing(cell, chunk, _table(values, chunk)) for chunk in chunks)


def _table(values: list[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).to(like.dtype).to(like.device)


def _differing(cell: Cell, received: torch.Tensor, table: torch.Tensor) -> int:
    expected = table.repeat(-(-received.numel() // _PERIOD))[: received.numel()]
    if cell.redop == "avg" and received.is_floating_point():
        # The mean is a sum times 1/n: nccl-tests allows it 2 units in the last place.
        tolerance = 2 * torch.finfo(received.dtype).eps
        difference = (received.double() - expected.double()).abs()
        return int((~(difference <= tolerance * expected.double().abs())).sum())
    if cell.dtype in _NOT_COMPARED:
        received, expected = received.view(_NOT_COMPARED[cell.dtype]), expected.view(_NOT_COMPARED[cell.dtype])
    return int((received != expected).sum())
