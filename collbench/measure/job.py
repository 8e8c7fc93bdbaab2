"""Joining a job: this rank, its node, its device, the control group, and the groups that are measured.

The control group is gloo on every backend: it agrees, aligns and collects, and never carries a measured byte.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from collbench.errors import JobError
from collbench.measure.clock import Deadline, offset_to_rank0_ns
from collbench.measure.device import Device, default_backend, open_device
from collbench.measure.failure import first_line
from collbench.measure.operations import Group
from collbench.topology import Groups, Layout

JOIN_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What every rank tells the others of itself."""

    host: str
    node: int
    local_rank: int
    device: str
    pid: int


@dataclass(frozen=True, slots=True)
class Job:
    """A job joined: all ranks hold the same facts."""

    rank: int
    world_size: int
    control: Any
    store: Any  # where failing ranks report, should the groups be broken
    device: Device
    deadline: Deadline
    facts: tuple[RankFacts, ...]

    @property
    def layout(self) -> Layout:
        return Layout(tuple(f.node for f in self.facts), tuple(f.local_rank for f in self.facts))

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes as the run record keeps them."""
        nodes: dict[int, dict[str, Any]] = {}
        for rank, facts in enumerate(self.facts):
            node = nodes.setdefault(facts.node, {"host": facts.host, "ranks": [], "devices": [], "pids": []})
            node["ranks"].append(rank)
            node["devices"].append(facts.device)
            node["pids"].append(facts.pid)
        return [nodes[index] for index in sorted(nodes)]

    def form(self, groups: dict[str, Groups], timeout_s: float) -> dict[str, list[Group | None]]:
        """torch's process groups for every group of every kind; None for those this rank is not in.

        Called by all ranks together: torch wants every rank at every new_group, in one order.
        """
        formed: dict[str, list[Group | None]] = {}
        for kind, of_kind in groups.items():
            formed[kind] = []
            for ranks in of_kind:
                handle = dist.new_group(list(ranks), backend=self.device.backend, timeout=timedelta(seconds=timeout_s))
                mine = Group(handle, ranks, ranks.index(self.rank)) if self.rank in ranks else None
                formed[kind].append(mine)
        return formed


def join(backend: str, timeout_s: float) -> Job:
    """Meet the other ranks. Raises JobError where they cannot be met, InputError where this rank has no device."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(_first("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK") or 0)
    local_world_size = int(_first("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE") or world_size)
    device = open_device(backend or default_backend(), local_rank, local_world_size)
    try:
        store, _, _ = next(rendezvous("env://", rank, world_size, timeout=timedelta(seconds=JOIN_TIMEOUT_S)))
        dist.init_process_group(
            "gloo", store=distributed_c10d.PrefixStore("collbench", store), rank=rank, world_size=world_size
        )
    except (RuntimeError, ValueError) as error:
        raise JobError(
            f"the ranks did not meet at {os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')} "
            f"({first_line(error)}): check that all {world_size} were started and reach that address"
        ) from error
    # What passes between ranks around a cell may wait as long as a cell may.
    control = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s + 10))
    node = _first("GROUP_RANK", "SLURM_NODEID")
    mine = RankFacts(socket.gethostname(), int(node) if node else -1, local_rank, device.name, os.getpid())
    everyone: list[Any] = [None] * world_size
    dist.all_gather_object(everyone, mine, group=control)
    deadline = Deadline(control, offset_to_rank0_ns(control))
    return Job(
        rank,
        world_size,
        control,
        distributed_c10d.PrefixStore("failures", store),
        device,
        deadline,
        tuple(_with_nodes(everyone)),
    )


def _with_nodes(everyone: list[RankFacts]) -> list[RankFacts]:
    """Nodes by host name where the launcher does not number them."""
    if all(facts.node >= 0 for facts in everyone):
        return everyone
    hosts = list(dict.fromkeys(facts.host for facts in everyone))
    return [RankFacts(f.host, hosts.index(f.host), f.local_rank, f.device, f.pid) for f in everyone]


def _first(*names: str) -> str | None:
    return next((os.environ[name] for name in names if name in os.environ), None)
