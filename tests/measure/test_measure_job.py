"""Which ranks are one node: what the launcher says, else what its numbers imply, else the host name."""

from __future__ import annotations

import pytest

from collbench.measure.job import RankFacts, number_nodes


def ranks(*told):
    """(host, node, local rank) of every rank."""
    return [RankFacts(host, node, local, "cpu", 1) for host, node, local in told]


def numbers(facts):
    return [(each.node, each.local_rank) for each in number_nodes(facts)]


TWO_BY_TWO = [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([("h", 0, 0), ("h", 0, 1), ("h", 1, 0), ("h", 1, 1)], TWO_BY_TWO),  # torchrun: its word stands
        ([("h", None, 0), ("h", None, 1), ("h", None, 0), ("h", None, 1)], TWO_BY_TWO),  # OpenMPI, one host name
        ([("h", None, 0), ("h", None, 0), ("h", None, 1), ("h", None, 1)], [(0, 0), (1, 0), (0, 1), (1, 1)]),  # by node
        ([("a", None, 0), ("b", None, 0), ("b", None, 1)], [(0, 0), (1, 0), (1, 1)]),  # uneven nodes
        ([("h", 0, None), ("h", 0, None), ("h", 1, None), ("h", 1, None)], TWO_BY_TWO),  # Slurm's node alone
        ([("a", None, None), ("b", None, None), ("a", None, None)], [(0, 0), (1, 0), (0, 1)]),  # nothing said
    ],
)
def test_nodes_and_local_ranks(told, expected):
    assert numbers(ranks(*told)) == expected


def test_hosts_of_one_name_are_told_apart_by_their_networks():
    told = [RankFacts("vm", None, None, "cpu", 1, machine) for machine in ("a", "b", "a", "b")]
    assert numbers(told) == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_thousands_of_ranks_are_numbered():
    """In a moment: quadratic work would take half a minute."""
    told = [(f"n{rank // 8}", None, rank % 8) for rank in range(8192)]
    numbered = numbers(ranks(*told))
    assert numbered[-1] == (1023, 7) and numbered[8] == (1, 0)
