"""Nodes and ranks -> the groups whose collectives a step runs.

Ranks are numbered as torchrun numbers them: node by node. A mesh RxS (R replicas of S shards) is row-major, as torch's
`init_device_mesh`: a shard group is S consecutive ranks, a replicate group every S-th rank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import lcm
from typing import NamedTuple

from collbench.errors import InputError
from collbench.predict.options import check_count


class Group(NamedTuple):
    """Ranks that communicate: `name` is the kind a model is asked for, as a sweep of it records it."""

    name: str
    nranks: int
    nnodes: int

    @property
    def crosses_nodes(self) -> bool:
        """Whether they use the links between nodes. Groups inside a node use others."""
        return self.nnodes > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """`nodes` equal nodes of `ranks_per_node` ranks, and the mesh over them: `replicas` copies of the sharded model."""

    nodes: int
    ranks_per_node: int
    replicas: int = 1

    @property
    def nranks(self) -> int:
        """All ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def world(self) -> Group:
        """All ranks."""
        return Group(name="world", nranks=self.nranks, nnodes=self.nodes)

    @property
    def shard(self) -> Group:
        """The ranks that one replica is divided over."""
        return self.consecutive(self.nranks // self.replicas)

    @property
    def replicate(self) -> Group:
        """The ranks that hold the same shard."""
        shards = self.nranks // self.replicas
        if shards == 1:
            return self.world
        if shards == self.ranks_per_node and self.nodes > 1:
            return Group(name="inter", nranks=self.nodes, nnodes=self.nodes)
        nnodes = min(self.replicas, self.nodes)  # members are apart by less than a node, or each is on another one
        return Group(name=f"{_mesh_name(self.nranks, shards)}:replicate", nranks=self.replicas, nnodes=nnodes)

    def consecutive(self, nranks: int) -> Group:
        """Groups of `nranks` ranks in a row; `nnodes` is that of the group that spans most nodes."""
        if nranks == self.nranks:
            return self.world
        if nranks == self.ranks_per_node:
            return Group(name="intra", nranks=nranks, nnodes=1)
        repeats = lcm(nranks, self.ranks_per_node)  # from here on groups lie as the first ones do
        nnodes = max(
            (first + nranks - 1) // self.ranks_per_node - first // self.ranks_per_node + 1
            for first in range(0, min(self.nranks, repeats), nranks)
        )
        return Group(name=f"{_mesh_name(self.nranks, nranks)}:shard", nranks=nranks, nnodes=nnodes)


def _mesh_name(nranks: int, shards: int) -> str:
    return f"mesh:{nranks // shards}x{shards}"


def parse_mesh(text: str, what: str = "mesh", example: str = "2x8") -> tuple[int, int]:
    """(replicas, shards) from `2x8`; InputError for anything else."""
    match = re.fullmatch(r"\s*(\d+)\s*[xX]\s*(\d+)\s*", text)
    if not match:
        raise InputError(f"{what} {text!r} is not understood: expected RxS (replicas x shards), such as {example}")
    return int(match[1]), int(match[2])


def place(nodes: int, ranks_per_node: int) -> Placement:
    """All ranks in one shard group; InputError where a number is not a whole one above zero."""
    check_count("nodes", nodes)
    check_count("ranks_per_node", ranks_per_node)
    return Placement(nodes=nodes, ranks_per_node=ranks_per_node)


def place_mesh(nodes: int, ranks_per_node: int, mesh: str | tuple[int, int] | None) -> Placement:
    """A mesh RxS of replicas x shards; without one, a replica per node. InputError where R x S is not the ranks."""
    flat = place(nodes, ranks_per_node)
    if mesh is None:
        if nodes == 1:
            raise InputError("hsdp on one node needs a mesh: give --mesh RxS (replicas x shards)")
        return Placement(nodes=nodes, ranks_per_node=ranks_per_node, replicas=nodes)
    text = mesh if isinstance(mesh, str) else "x".join(map(str, mesh))
    replicas, shards = parse_mesh(text, example=f"{nodes}x{ranks_per_node}")
    if replicas * shards != flat.nranks:
        raise InputError(
            f"mesh {replicas}x{shards} has {replicas * shards} ranks, but {nodes} x {ranks_per_node} nodes x ranks per "
            f"node are {flat.nranks}: change --mesh, --nodes or --ranks-per-node"
        )
    return Placement(nodes=nodes, ranks_per_node=ranks_per_node, replicas=replicas)
