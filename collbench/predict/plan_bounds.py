"""What a step takes at least: found in a tenth of the time that playing it takes, so that few have to be played.

A step ends no sooner than its longest chain: a task after every task that it comes after, and after those before it on
its stream, each with its full duration. What shares a link or a device only takes longer. gloo serves two collectives
of a stream at a time, so there one need not end before the next. And what all collectives transfer over one link
cannot take less than that, whatever runs at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from collbench.predict.placement import Group, Placement
from collbench.predict.timeline import COMPUTE, Call, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles(Placement):
    """A placement whose groups are named by their part in a step: one schedule for all meshes of so many shards."""

    @property
    def world(self) -> Group:
        """All ranks."""
        return Group(name="world", nranks=self.nranks, nnodes=1)

    @property
    def replicate(self) -> Group:
        """The ranks that hold the same shard."""
        return Group(name="replicate", nranks=self.replicas, nnodes=1)

    def consecutive(self, nranks: int) -> Group:
        """The shard group, or a part of it."""
        whole = nranks * self.replicas == self.nranks
        return Group(name="shard" if whole else "part", nranks=nranks, nnodes=1)


def roles_of(placement: Placement) -> Roles:
    """The same shards, and two replicas where there are several."""
    replicas = min(placement.replicas, 2)
    return Roles(nodes=1, ranks_per_node=placement.shard.nranks * replicas, replicas=replicas)


@cache
def _group_of(placement: Placement, role: Group) -> Group:
    if role.name == "part":
        return placement.consecutive(role.nranks)
    if role.name == "replicate":
        return placement.replicate
    return placement.shard if role.name == "shard" else placement.world


class Chains:
    """The tasks of a schedule for `Roles`, ready to be added up again and again."""

    def __init__(self, schedule: Schedule) -> None:
        kinds: dict[Call, int] = {}
        streams: dict[str, int] = {}
        self._work_ms: list[float] = []
        self._kinds: list[tuple[int, int]] = []  # (position of a collective, its place in `calls`)
        self._rows: list[tuple[int, bool, tuple[int, ...]]] = []  # (stream, whether it computes, what it comes after)
        for position, task in enumerate(schedule.tasks):
            if isinstance(task.work, Call):
                self._kinds.append((position, kinds.setdefault(task.work, len(kinds))))
            self._work_ms.append(0.0 if isinstance(task.work, Call) else task.work)
            self._rows.append((streams.setdefault(task.stream, len(streams)), task.stream == COMPUTE, task.after))
        self.calls = list(kinds)
        self._counts = Counter(kind for _, kind in self._kinds)
        self._streams = len(streams)

    def placed(self, placement: Placement) -> list[Call]:
        """Its distinct calls on the groups of a placement, in the order of `calls`."""
        return [
            Call(
                collective=call.collective,
                size_bytes=call.size_bytes,
                group=_group_of(placement, call.group),
                dtype=call.dtype,
            )
            for call in self.calls
        ]

    def least_ms(
        self,
        placed: Sequence[Call],
        time_ms: Callable[[Call], float],
        transfer_ms: Callable[[Call], float],
        turns: bool,
    ) -> float:
        """What the step takes at least, of calls as `placed` gives them.

        transfer_ms: the part of a call's time that loads its link.  turns: each stream's collectives run in turn.
        """
        loads_ms = {False: 0.0, True: 0.0}  # of the links inside a node, and of those between nodes
        for kind, call in enumerate(placed):
            loads_ms[call.group.crosses_nodes] += self._counts[kind] * transfer_ms(call)
        return max(*loads_ms.values(), self._longest_ms([time_ms(call) for call in placed], turns))

    def _longest_ms(self, costs_ms: Sequence[float], turns: bool) -> float:
        work_ms = self._work_ms.copy()
        for position, kind in self._kinds:
            work_ms[position] = costs_ms[kind]
        free = [0.0] * self._streams
        ends: list[float] = []
        for duration, (stream, in_turn, after) in zip(work_ms, self._rows, strict=True):
            start = free[stream]
            for before in after:
                if ends[before] > start:
                    start = ends[before]
            end = start + duration
            ends.append(end)
            free[stream] = end if turns or in_turn else start
        return max(ends, default=0.0)
