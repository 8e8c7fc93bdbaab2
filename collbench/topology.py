"""Ranks and nodes -> the groups of ranks that a sweep measures.

A node is what the launcher calls one (torchrun's GROUP_RANK), not a host name: containers may share one. A new kind of
group is one new entry in GROUP_KINDS; `mesh:RxS`, with numbers in its name, is two kinds: its rows and its columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from collbench.errors import InputError, one_of

Groups = list[tuple[int, ...]]
MOST_PAIRS = 10_000  # 141 nodes: every rank keeps a communicator for each pair it is in


@dataclass(frozen=True, slots=True)
class Layout:
    """Where every rank runs: `node_of[rank]` and `local_rank_of[rank]`, as the launcher numbers them."""

    node_of: tuple[int, ...]
    local_rank_of: tuple[int, ...]

    @property
    def world_size(self) -> int:
        return len(self.node_of)

    @property
    def nnodes(self) -> int:
        return len(set(self.node_of))

    def nnodes_of(self, ranks: tuple[int, ...]) -> int:
        """Over how many nodes these ranks spread."""
        return len({self.node_of[rank] for rank in ranks})

    @classmethod
    def regular(cls, nnodes: int, ranks_per_node: int) -> Layout:
        """torchrun's numbering of equal nodes: rank = node * ranks_per_node + local rank."""
        ranks = range(nnodes * ranks_per_node)
        return cls(tuple(r // ranks_per_node for r in ranks), tuple(r % ranks_per_node for r in ranks))


class CannotForm(Exception):
    """This job has no group of that kind; the text is the reason, for a skip record."""


class WrongShape(CannotForm):
    """The numbers in the kind's own name do not fit this job."""


def _world(layout: Layout) -> Groups:
    return [tuple(range(layout.world_size))]


def _same(keys: tuple[int, ...]) -> Groups:
    ranks_of: dict[int, list[int]] = {}
    for rank, key in enumerate(keys):
        ranks_of.setdefault(key, []).append(rank)
    return [tuple(ranks) for _, ranks in sorted(ranks_of.items())]


def _intra(layout: Layout) -> Groups:
    groups = [ranks for ranks in _same(layout.node_of) if len(ranks) > 1]
    if not groups:
        raise CannotForm("no node of this job has two ranks: start more with --nproc (torchrun: --nproc-per-node)")
    return groups


def _inter(layout: Layout) -> Groups:
    if layout.nnodes == 1:
        raise CannotForm("this job runs on one node: start it on several (torchrun: --nnodes)")
    groups = [ranks for ranks in _same(layout.local_rank_of) if len(ranks) > 1]
    if not groups:
        raise CannotForm("no two nodes of this job have a rank of the same local rank")
    return groups


def _in_rounds(members: int) -> Iterator[tuple[int, int]]:
    """Every pair of 0..members-1, in rounds of disjoint pairs (the circle method of a round-robin tournament)."""
    circle: list[int | None] = [*range(members), *([None] if members % 2 else [])]
    for _ in range(len(circle) - 1):
        for one, other in zip(circle[: len(circle) // 2], reversed(circle), strict=False):
            if one is not None and other is not None:
                yield min(one, other), max(one, other)
        circle = [circle[0], circle[-1], *circle[1:-1]]


def _pairs_of_nodes(layout: Layout) -> Groups:
    nodes = _same(layout.node_of)
    if len(nodes) == 1:
        raise CannotForm("this job runs on one node: start it on several (torchrun: --nnodes), or use pairs:rank")
    _check_pairs("pairs", len(nodes), "nodes")
    return [tuple(sorted(nodes[one] + nodes[other])) for one, other in _in_rounds(len(nodes))]


def _pairs_of_ranks(layout: Layout) -> Groups:
    if layout.world_size == 1:
        raise CannotForm("one rank has no pair: start more with --nproc (torchrun: --nproc-per-node)")
    _check_pairs("pairs:rank", layout.world_size, "ranks")
    return list(_in_rounds(layout.world_size))


def _check_pairs(kind: str, members: int, what: str) -> None:
    if (pairs := members * (members - 1) // 2) > MOST_PAIRS:
        raise CannotForm(f"{members} {what} make {pairs} pairs, at most {MOST_PAIRS} are measured in one launch: use "
                         f"{'fewer nodes' if kind == 'pairs' else 'pairs (of nodes)'}")  # fmt: skip


def _mesh(rows: int, columns: int, axis: str) -> Callable[[Layout], Groups]:
    """Rows (shard) or columns (replicate) of a mesh of `rows` x `columns`, ranks in row order as torch's DeviceMesh."""

    def form(layout: Layout) -> Groups:
        if rows * columns != layout.world_size:
            raise WrongShape(
                f"a mesh of {rows}x{columns} has {rows * columns} ranks, this job {layout.world_size}: "
                "expected RxS with R*S = the number of ranks"
            )
        if (columns if axis == "shard" else rows) == 1:
            raise CannotForm(f"the {axis} groups of a mesh of {rows}x{columns} have one rank each")
        if axis == "shard":
            return [tuple(range(row * columns, (row + 1) * columns)) for row in range(rows)]
        return [tuple(range(column, rows * columns, columns)) for column in range(columns)]

    return form


GROUP_KINDS: dict[str, Callable[[Layout], Groups]] = {
    "world": _world,
    "intra": _intra,
    "inter": _inter,
    "pairs": _pairs_of_nodes,
    "pairs:rank": _pairs_of_ranks,
}
_MESH = re.compile(r"mesh:([1-9]\d*)x([1-9]\d*)(?::(shard|replicate))?")
_MESH_AXES = ("shard", "replicate")


def check_group_kind(text: object) -> str:
    """A known kind of group; InputError for an unknown one."""
    if text not in GROUP_KINDS and not _MESH.fullmatch(str(text)):
        if str(text).startswith("mesh"):
            raise InputError(f"group {str(text)!r}: expected mesh:RxS, such as mesh:2x8 (2 replicas of 8 shards)")
        raise one_of("group", text, [*GROUP_KINDS, "mesh:RxS"])
    return str(text)


def expand_kind(kind: str) -> tuple[str, ...]:
    """The kinds a word of the user stands for: a mesh is two kinds, its rows and its columns."""
    mesh = _MESH.fullmatch(kind)
    return tuple(f"{kind}:{axis}" for axis in _MESH_AXES) if mesh and not mesh[3] else (kind,)


def measured_as(group: str) -> str:
    """The word a kind of group is measured by: mesh:2x8 for mesh:2x8:shard and mesh:2x8:replicate."""
    if group.startswith("mesh:"):
        return ":".join(group.split(":")[:2])
    return group if group in GROUP_KINDS else "world"


def contends(group: str) -> bool:
    """Whether a step has several groups of this kind, which run at once. Pairs serve to find a slow link."""
    return group != "world" and not group.startswith("pairs")


def counts(nranks: int, nnodes: int) -> str:
    """`8 ranks on 2 nodes`."""
    return f"{nranks} rank{'s' * (nranks != 1)} on {nnodes} node{'s' * (nnodes != 1)}"


def default_group_kinds(layout: Layout) -> list[str]:
    """`world`; and `intra` and `inter` where the job has both levels."""
    kinds = ["world"]
    if layout.nnodes > 1 and any(len(ranks) > 1 for ranks in _same(layout.node_of)):
        kinds += ["intra", "inter"]
    return kinds


def form_groups(kind: str, layout: Layout) -> Groups:
    """The groups of one (expanded) kind, each a tuple of global ranks in order.

    Groups of pairs share ranks; `rounds` says which may run together. Raises CannotForm, with the reason, where this
    job has no such group.
    """
    mesh = _MESH.fullmatch(kind)
    return (_mesh(int(mesh[1]), int(mesh[2]), mesh[3]) if mesh else GROUP_KINDS[kind])(layout)


def rounds(groups: Groups) -> list[list[int]]:
    """The indices of `groups`, in order, cut into rounds of groups that share no rank and so can run together."""
    cut: list[list[int]] = []
    busy: set[int] = set()
    for index, ranks in enumerate(groups):
        if not cut or not busy.isdisjoint(ranks):
            cut.append([])
            busy = set()
        cut[-1].append(index)
        busy.update(ranks)
    return cut


def form_kinds(kinds: Iterable[str], layout: Layout) -> tuple[dict[str, Groups], dict[str, str]]:
    """(the groups of each kind, in order; why the others cannot be formed). No kinds: the layout's default ones.

    Raises InputError where nothing is left because the shape of a mesh does not fit this job.
    """
    groups: dict[str, Groups] = {}
    reasons: dict[str, str] = {}
    wrong_shape: list[str] = []
    for kind in tuple(kinds) or default_group_kinds(layout):
        for each in expand_kind(kind):
            try:
                groups[each] = form_groups(each, layout)
            except CannotForm as error:
                reasons[each] = str(error)
                if isinstance(error, WrongShape):
                    wrong_shape.append(f"group {measured_as(kind)}: {error}")
    if wrong_shape and not groups:
        raise InputError(wrong_shape[0])
    return groups, reasons
