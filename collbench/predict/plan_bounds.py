"""What a step takes at least: found in a tenth of the time that playing it takes, so that few have to be played.

A step ends no sooner than its longest chain: a task after every task that it comes after, and after those before it on
its stream, each with its full duration. What shares a link or a device only takes longer. gloo serves two collectives
of a stream at a time, so there one need not end before the next. And what all collectives transfer over one link
cannot take less than that, whatever runs at the same time.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from collbench.predict.placement import Group, Placement
from collbench.predict.timeline import COMPUTE, Call, Schedule, Task


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
        self._work_ms = array("d")  # of each task: 0 of a collective
        self._stream = bytearray()
        self._after: list[tuple[int, ...]] = []
        self._kinds: dict[int, int] = {}  # of each collective's position its place in `calls`
        self._firsts: dict[tuple[str, int], Task] = {}  # of each collective on each stream
        for position, task in enumerate(schedule.tasks):
            work_ms = task.work
            if isinstance(work_ms, Call):
                self._kinds[position] = kind = kinds.setdefault(work_ms, len(kinds))
                self._firsts.setdefault((task.stream, kind), task)
                work_ms = 0.0
            self._work_ms.append(work_ms)
            self._stream.append(streams.setdefault(task.stream, len(streams)))
            self._after.append(task.after)
        self.calls = list(kinds)
        self._counts = Counter(self._kinds.values())
        self._computes = [stream == COMPUTE for stream in streams]

    def placed(self, placement: Placement) -> list[Call]:
        """Its distinct calls on the groups of a placement, in the order of `calls`."""
        return [call._replace(group=_group_of(placement, call.group)) for call in self.calls]

    def kinds(self, placed: Sequence[Call]) -> list[Task]:
        """A task of each collective on each stream, of calls as `placed` gives them."""
        return [task._replace(work=placed[kind]) for (_, kind), task in self._firsts.items()]

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
        return max(*loads_ms.values(), self.longest_ms(placed, time_ms, turns))

    def longest_ms(self, placed: Sequence[Call], time_ms: Callable[[Call], float], turns: bool) -> float:
        """The longest chain. Where streams just run in turn it is the step, as `timeline.play` places it."""
        costs_ms = [time_ms(call) for call in placed]
        work_ms = self._work_ms[:]
        for position, kind in self._kinds.items():
            work_ms[position] = costs_ms[kind]
        in_turn = [turns or computes for computes in self._computes]
        free = [0.0] * len(in_turn)
        ends: list[float] = []
        for duration, stream, after in zip(work_ms, self._stream, self._after, strict=True):
            start = free[stream]
            for before in after:
                if ends[before] > start:
                    start = ends[before]
            end = start + duration
            ends.append(end)
            free[stream] = end if in_turn[stream] else start
        return max(ends, default=0.0)
