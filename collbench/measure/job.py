"""Joining a job: this rank, its node, its device, the control group, and the groups that are measured.

The control group is gloo on every backend: it agrees, aligns and collects, and never carries a measured byte.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from collbench.errors import JobError
from collbench.measure.clock import Deadline, offset_to_rank0_ns
from collbench.measure.control import Control
from collbench.measure.device import Device, default_backend, open_device
from collbench.measure.failure import first_line
from collbench.measure.operations import Group
from collbench.topology import Groups, Layout

JOIN_TIMEOUT_S = 300.0
_NOTICE_S = 10.0
_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What every rank tells the others of itself."""

    host: str
    node: int | None  # None until numbered, where the launcher does not say
    local_rank: int | None
    device: str
    pid: int


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
    local_rank = int(_first(*_LOCAL_RANK) or 0)
    local_world_size = int(_first("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE") or world_size)
    device = open_device(backend or default_backend(), local_rank, local_world_size)
    notice = threading.Timer(_NOTICE_S, _say_whom_we_wait_for, [rank, world_size])
    notice.daemon = True
    notice.start()
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
    finally:
        notice.cancel()
    # What passes between ranks around a cell may wait as long as a cell may.
    control = Control(max(timeout_s + 2, 10))
    node = _first("GROUP_RANK", "SLURM_NODEID")
    known_local_rank = None if _first(*_LOCAL_RANK) is None else local_rank
    mine = RankFacts(socket.gethostname(), int(node) if node else None, known_local_rank, device.name, os.getpid())
    facts = number_nodes(control.everyones(mine))
    deadline = Deadline(control, offset_to_rank0_ns(control))
    return Job(
        rank,
        world_size,
        control,
        distributed_c10d.PrefixStore("failures", store),
        device,
        deadline,
        facts,
    )


def _say_whom_we_wait_for(rank: int, world_size: int) -> None:
    where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    print(
        f"collbench: rank {rank} waits for the other ranks of {world_size} at {where} (RANK and WORLD_SIZE are set, so "
        "this is a launcher's rank; unset them to start ranks here)",
        file=sys.stderr,
    )


def number_nodes(everyone: list[RankFacts]) -> tuple[RankFacts, ...]:
    """Fill in nodes and local ranks that the launcher does not give, from those that it does.

    Two ranks of one host with the same local rank are on different nodes (containers may share a host name); without
    local ranks a host is a node. With nodes alone, local ranks count up inside each.
    """
    numbered: list[RankFacts] = []
    keys: list[tuple[str, int]] = []
    for facts in everyone:
        twins = [other for other in numbered if (other.host, other.local_rank) == (facts.host, facts.local_rank)]
        key = (facts.host, len(twins) if facts.local_rank is not None else 0)
        keys = keys if key in keys else [*keys, key]
        node = keys.index(key) if facts.node is None else facts.node
        before = sum(other.node == node for other in numbered)
        numbered.append(replace(facts, node=node, local_rank=before if facts.local_rank is None else facts.local_rank))
    return tuple(numbered)


def _first(*names: str) -> str | None:
    return next((os.environ[name] for name in names if name in os.environ), None)
