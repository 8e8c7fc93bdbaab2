"""Joining a job: this rank, its node, its device, the control group, and the groups that are measured.

The control group is gloo on every backend: it agrees, aligns and collects, and never carries a measured byte.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from collbench.errors import CollbenchError, InputError, JobError
from collbench.measure.clock import Deadline, offset_to_rank0_ns
from collbench.measure.control import Control
from collbench.measure.device import Device, default_backend, open_device
from collbench.measure.failure import explain, first_line
from collbench.measure.groups import Group, form_kind
from collbench.measure.meeting_place import NotMet, speaks_for_host
from collbench.measure.names import spans
from collbench.measure.preflight import Told, everyones, this_rank
from collbench.measure.rendezvous import JOIN_TIMEOUT_S, Meeting, arrive, machine, meet
from collbench.topology import Groups, Layout

_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What every rank tells the others of itself."""

    host: str
    node: int | None  # None until numbered, where the launcher does not say
    local_rank: int | None
    device: str
    pid: int
    machine: str | None = None  # the same on ranks that share a host, whatever its names
    cpus: str = ""  # that it may run on: `0-3, 8`


@dataclass(frozen=True, slots=True)
class Job:
    """A job joined: all ranks hold the same facts."""

    rank: int
    world_size: int
    control: Control
    store: Any  # where failing ranks report, should the groups be broken
    device: Device
    deadline: Deadline
    facts: tuple[RankFacts, ...]
    told: tuple[Told, ...] = field(default=(), repr=False)  # what every rank said of its host and settings

    @property
    def layout(self) -> Layout:
        return Layout(tuple(f.node or 0 for f in self.facts), tuple(f.local_rank or 0 for f in self.facts))

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes as the run record keeps them."""
        nodes: dict[int, dict[str, Any]] = {}
        for rank, facts in enumerate(self.facts):
            node = nodes.setdefault(facts.node or 0, {"host": facts.host, "ranks": [], "devices": [], "pids": []})
            node["ranks"].append(rank)
            node["devices"].append(facts.device)
            node["pids"].append(facts.pid)
        return [nodes[index] for index in sorted(nodes)]

    def form(self, groups: dict[str, Groups], timeout_s: float) -> dict[str, list[Group | None]]:
        """torch's process groups for every group of every kind; None for those this rank is not in.

        Called by all ranks together, with the groups in one order.
        """
        return {kind: form_kind(self.rank, of_kind, self.device, timeout_s).groups for kind, of_kind in groups.items()}


def join(backend: str, timeout_s: float, join_timeout_s: float = JOIN_TIMEOUT_S) -> Job:
    """Meet the other ranks, within `join_timeout_s`; `timeout_s` is for one cell.

    Raises NotMet, on all ranks for the same reason, where they cannot be met or one of them cannot take part.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(_first(*_LOCAL_RANK) or 0)
    local_world_size = int(_first("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE") or world_size)
    backend = backend or default_backend()
    device: Device | None = None
    refusal: CollbenchError | None = None  # which the others wait to hear
    try:
        device = open_device(backend, local_rank, local_world_size)
    except InputError as error:
        refusal = error
    except RuntimeError as error:
        refusal = JobError(f"rank {rank} (host {socket.gethostname()}) cannot use its GPU: {first_line(error)}")
    meeting = meet(rank, world_size, arrive(refusal, backend), join_timeout_s)
    assert device is not None
    node = _first("GROUP_RANK", "SLURM_NODEID")
    mine = RankFacts(
        socket.gethostname(),
        int(node) if node else None,
        None if _first(*_LOCAL_RANK) is None else local_rank,
        device.name,
        os.getpid(),
        machine(),
        spans(os.sched_getaffinity(0)),
    )
    failures = distributed_c10d.PrefixStore("failures", meeting.store)
    try:
        control = _form_control(meeting, rank, timeout_s, join_timeout_s)
        facts, told = everyones(control, mine, this_rank(device, local_rank == 0))
        deadline = Deadline(control, offset_to_rank0_ns(control))
    except RuntimeError as error:
        raise _lost(meeting, rank, error, failures, join_timeout_s) from error
    return Job(rank, world_size, control, failures, device, deadline, number_nodes(facts), told)


def _form_control(meeting: Meeting, rank: int, timeout_s: float, join_timeout_s: float) -> Control:
    """Connect all ranks by gloo; one that dies meanwhile is missed after the time to join."""
    dist.init_process_group(
        "gloo",
        store=distributed_c10d.PrefixStore("world", meeting.store),
        rank=rank,
        world_size=meeting.world_size,
        timeout=timedelta(seconds=join_timeout_s),
    )
    # What passes between ranks around a cell may wait as long as a cell may.
    return Control(max(timeout_s + 2, 10), meeting.arrivals()[rank].gloo_address)


def _lost(meeting: Meeting, rank: int, error: RuntimeError, failures: Any, join_timeout_s: float) -> NotMet:
    """Who is gone, of those who had met."""
    try:
        if isinstance(error, dist.DistNetworkError):
            raise error
        if isinstance(error, dist.DistStoreError):  # a wait that ended; its keys help nobody
            error = RuntimeError(f"timed out after {join_timeout_s:g} s (--join-timeout)")
        hosts = [arrival.host for arrival in meeting.arrivals()]
        verdict = explain(error, rank, hosts, failures)
        return NotMet(f"while the ranks connected: {verdict.reason}", speaks=meeting.chooses(rank))
    except dist.DistNetworkError as lost:
        reason = f"while the ranks connected: {meeting.holder}, which held their store, is gone: {first_line(lost)}"
        return NotMet(reason, speaks=speaks_for_host())


def number_nodes(everyone: list[RankFacts]) -> tuple[RankFacts, ...]:
    """Fill in nodes and local ranks that the launcher does not give, from those that it does.

    Two ranks of one host with the same local rank are on different nodes (containers may share a host name); without
    local ranks a host is a node, told from others by its network too. With nodes alone, local ranks count up inside
    each.
    """
    numbered: list[RankFacts] = []
    same_place: Counter[tuple[str, str | None, int]] = Counter()
    node_of: dict[tuple[str, str | None, int], int] = {}
    ranks_of: Counter[int] = Counter()
    for facts in everyone:
        twins = 0
        if facts.local_rank is not None:
            twins = same_place[facts.host, facts.machine, facts.local_rank]
            same_place[facts.host, facts.machine, facts.local_rank] += 1
        implied = node_of.setdefault((facts.host, facts.machine, twins), len(node_of))
        node = implied if facts.node is None else facts.node
        local_rank = ranks_of[node] if facts.local_rank is None else facts.local_rank
        ranks_of[node] += 1
        numbered.append(replace(facts, node=node, local_rank=local_rank))
    return tuple(numbered)


def _first(*names: str) -> str | None:
    return next((os.environ[name] for name in names if name in os.environ), None)
