"""Ranks and nodes -> the groups of ranks that a sweep measures.

A node is what the launcher calls one (torchrun's GROUP_RANK), not a host name: containers may share one. A new kind of
group is one new entry in GROUP_KINDS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from collbench.errors import one_of

Groups = list[tuple[int, ...]]


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


GROUP_KINDS: dict[str, Callable[[Layout], Groups]] = {"world": _world, "intra": _intra, "inter": _inter}


def check_group_kind(text: object) -> str:
    """A known kind of group; InputError for an unknown one."""
    if text not in GROUP_KINDS:
        raise one_of("group", text, list(GROUP_KINDS))
    return str(text)


def default_group_kinds(layout: Layout) -> list[str]:
    """`world`; and `intra` and `inter` where the job has both levels."""
    kinds = ["world"]
    if layout.nnodes > 1 and any(len(ranks) > 1 for ranks in _same(layout.node_of)):
        kinds += ["intra", "inter"]
    return kinds


def form_groups(kind: str, layout: Layout) -> Groups:
    """The groups of one kind, each a tuple of global ranks in order; they share no rank.

    Raises CannotForm, with the reason, where this job has no such group.
    """
    return GROUP_KINDS[kind](layout)


def form_kinds(kinds: Iterable[str], layout: Layout) -> tuple[dict[str, Groups], dict[str, str]]:
    """(the groups of each kind, in order; why the others cannot be formed). No kinds: the layout's default ones."""
    groups: dict[str, Groups] = {}
    reasons: dict[str, str] = {}
    for kind in tuple(kinds) or default_group_kinds(layout):
        try:
            groups[kind] = form_groups(kind, layout)
        except CannotForm as reason:
            reasons[kind] = str(reason)
    return groups, reasons
