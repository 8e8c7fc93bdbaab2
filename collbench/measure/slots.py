"""How much memory a call needs, and where its tensors lie in it. Pure arithmetic; knows no torch."""

from __future__ import annotations

from dataclasses import dataclass

from collbench.collectives import COLLECTIVES
from collbench.dtypes import DTYPES
from collbench.sweep import Cell
from collbench.topology import Groups

ALIGNMENT_BYTES = 512


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one call's tensors lie: offsets in bytes and numbers of elements, and the bytes to the next slot."""

    send_bytes: int
    sent: int
    recv_bytes: int
    received: int
    stride_bytes: int


def slot_of(cell: Cell, nranks: int, rank: int = 0, unalign: int = 0) -> Slot:
    """The slot of a cell for one rank of a group; in place, the smaller buffer is the rank's own part of the larger
    (nccl-tests' in-place layout). `unalign` elements are left free before each buffer."""
    collective, itemsize = COLLECTIVES[cell.collective], DTYPES[cell.dtype].itemsize
    count = cell.message(nranks).count
    sent, received = collective.elements(count, nranks)
    free = unalign * itemsize
    if not cell.in_place:
        second = _aligned(free + sent * itemsize)
        return Slot(free, sent, second + free, received, second + _aligned(free + received * itemsize))
    own = free + rank * count * itemsize
    stride = _aligned(free + max(sent, received) * itemsize)
    return Slot(own if sent < received else free, sent, own if received < sent else free, received, stride)


def _aligned(size_bytes: int) -> int:
    return max(1, -(-size_bytes // ALIGNMENT_BYTES)) * ALIGNMENT_BYTES


def largest_slot_bytes(cell: Cell, of_kind: Groups, unalign: int = 0) -> int:
    """The most that any group of a kind needs; a share out of place is largest in the smallest group."""
    return max(slot_of(cell, nranks, 0, unalign).stride_bytes for nranks in {len(ranks) for ranks in of_kind})
