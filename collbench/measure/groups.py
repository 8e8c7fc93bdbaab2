"""torch's process groups for the groups of a sweep."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from collbench.measure.device import Device
from collbench.topology import Groups, rounds


@dataclass(frozen=True, slots=True)
class Group:
    """One process group as this rank sees it. `handle` is torch's, `ranks` the global ranks in order."""

    handle: Any
    ranks: tuple[int, ...]
    rank: int  # of this process, inside the group

    @property
    def nranks(self) -> int:
        return len(self.ranks)


@dataclass(frozen=True, slots=True)
class Formed:
    """The groups of one kind: this rank's own, None for those it is not in; and how long creating them took it."""

    groups: list[Group | None]
    create_s: float

    def mine(self, indices: list[int]) -> Group | None:
        """This rank's group among those of `indices`, which share no rank."""
        return next((group for index in indices if (group := self.groups[index]) is not None), None)


def form_kind(rank: int, of_kind: Groups, device: Device, timeout_s: float) -> Formed:
    """Create and connect the groups of one kind that this rank is in.

    A rank creates no group that it is not in (`use_local_synchronization`): 4096 ranks on 512 nodes would else create
    520 groups each. All ranks go through the rounds of groups in one order, so that groups that share ranks (pairs)
    cannot wait for one another in a circle; and in each round a rank creates one group, be it of itself alone, because
    torch names a group by how many this process has created, and its members must agree on the name.
    """
    begun = time.perf_counter()
    groups: list[Group | None] = [None] * len(of_kind)
    for together in rounds(of_kind):
        mine = next((index for index in together if rank in of_kind[index]), None)
        ranks = (rank,) if mine is None else of_kind[mine]
        handle = dist.new_group(
            list(ranks), backend=device.backend, timeout=timedelta(seconds=timeout_s), use_local_synchronization=True
        )
        if len(ranks) > 1:  # backends connect at the first operation, which is no part of any measured one
            dist.all_reduce(torch.zeros(1, device=device.torch_device), group=handle)
            device.synchronize()
        if mine is not None:
            groups[mine] = Group(handle, ranks, ranks.index(rank))
    return Formed(groups, time.perf_counter() - begun)
