"""The memory that collectives work on: one arena a rank, cut into slots that calls rotate through.

Consecutive calls work on consecutive slots, so that no call finds its data in a cache which a training step's would not
find there (nccl-tests rotates too, but through the memory of its largest size: nccl-tests issue 104 is the same size
measured twice as fast in another sweep). Here the slots depend on the size of the message alone: the same working set
for every size, of twice the last-level cache, beginning at multiples of 512 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from collbench.collectives import COLLECTIVES
from collbench.dtypes import DTYPES
from collbench.measure.groups import Group
from collbench.measure.slots import ALIGNMENT_BYTES, Slot
from collbench.sweep import Cell


@dataclass(frozen=True, slots=True)
class Buffers:
    """One call's tensors: what this rank sends, what it receives (the same memory, or part of it, in place).

    shares: the one of the two that is made of shares, cut into them; empty where neither is, or both are.
    """

    send: torch.Tensor
    recv: torch.Tensor
    shares: tuple[torch.Tensor, ...] = ()


class Arena:
    """The memory of one rank for all cells of a sweep.

    working_set_bytes: what calls of one size rotate through, where more than one slot fits into it; 0 for one slot
    (`--hot`). The arena is that large, and as large as `largest_bytes`, the largest slot of the sweep.
    """

    def __init__(self, device: torch.device, working_set_bytes: int, largest_bytes: int) -> None:
        self._working_set_bytes = working_set_bytes
        memory = torch.zeros(  # zeros touch every page, and stay finite however often a reduction repeats
            max(working_set_bytes, largest_bytes) + ALIGNMENT_BYTES, dtype=torch.uint8, device=device
        )
        self._memory = memory[-memory.data_ptr() % ALIGNMENT_BYTES :]
        self._next_bytes = 0

    def slots(self, slot: Slot) -> int:
        """How many slots of this size are in rotation."""
        return max(1, self._working_set_bytes // slot.stride_bytes)

    def buffers(self, cell: Cell, group: Group, slot: Slot, calls: int) -> Iterator[Buffers]:
        """The tensors of consecutive calls, without end; `calls` of them are expected, and twice as many again where
        samples are void, so those are made here and not in a timed loop.

        The rotation goes on where the last one ended: also two cells in a row do not find each other's data in a cache.
        """
        slots = self.slots(slot)
        first = -(-self._next_bytes // slot.stride_bytes) % slots
        self._next_bytes = (first + calls) % slots * slot.stride_bytes

        def view(number: int) -> Buffers:
            return self._view(cell, group, slot, (first + number) % slots * slot.stride_bytes)

        made = [view(number) for number in range(min(3 * max(1, calls), slots))]

        def rotation() -> Iterator[Buffers]:
            yield from made
            for number in range(len(made), slots):
                made.append(view(number))
                yield made[-1]
            while True:
                yield from made

        return rotation()

    def clear(self, buffers: Buffers) -> None:
        """Put back what a check has written."""
        for tensor in (buffers.send, buffers.recv):
            tensor.zero_()

    def _view(self, cell: Cell, group: Group, slot: Slot, start: int) -> Buffers:
        send = self._tensor(cell, start + slot.send_bytes, slot.sent)
        recv = self._tensor(cell, start + slot.recv_bytes, slot.received)
        collective, count = COLLECTIVES[cell.collective], min(slot.sent, slot.received)
        if collective.sends_shares == collective.receives_shares:
            return Buffers(send, recv)
        return Buffers(send, recv, tuple((send if collective.sends_shares else recv).view(group.nranks, count)))

    def _tensor(self, cell: Cell, start: int, elements: int) -> torch.Tensor:
        part = self._memory[start : start + elements * DTYPES[cell.dtype].itemsize]
        return part.view(getattr(torch, cell.dtype))
