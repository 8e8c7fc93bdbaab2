from __future__ import annotations

import pytest

from collbench.errors import InputError
from collbench.topology import CannotForm, Layout, check_group_kind, default_group_kinds, form_groups

ONE_NODE = Layout.regular(1, 4)
TWO_BY_TWO = Layout.regular(2, 2)
THREE_BY_TWO = Layout.regular(3, 2)
FOUR_BY_ONE = Layout.regular(4, 1)
ALONE = Layout.regular(1, 1)
UNEVEN = Layout(node_of=(0, 0, 0, 1, 2, 2), local_rank_of=(0, 1, 2, 0, 0, 1))
SCATTERED = Layout(node_of=(1, 0, 1, 0), local_rank_of=(0, 0, 1, 1))  # ranks numbered round robin over nodes


@pytest.mark.parametrize(
    ("layout", "kind", "groups"),
    [
        (ONE_NODE, "world", [(0, 1, 2, 3)]),
        (ONE_NODE, "intra", [(0, 1, 2, 3)]),
        (TWO_BY_TWO, "world", [(0, 1, 2, 3)]),
        (TWO_BY_TWO, "intra", [(0, 1), (2, 3)]),
        (TWO_BY_TWO, "inter", [(0, 2), (1, 3)]),
        (THREE_BY_TWO, "intra", [(0, 1), (2, 3), (4, 5)]),
        (THREE_BY_TWO, "inter", [(0, 2, 4), (1, 3, 5)]),
        (FOUR_BY_ONE, "world", [(0, 1, 2, 3)]),
        (FOUR_BY_ONE, "inter", [(0, 1, 2, 3)]),
        (UNEVEN, "world", [(0, 1, 2, 3, 4, 5)]),
        (UNEVEN, "intra", [(0, 1, 2), (4, 5)]),
        (UNEVEN, "inter", [(0, 3, 4), (1, 5)]),
        (SCATTERED, "intra", [(1, 3), (0, 2)]),
        (SCATTERED, "inter", [(0, 1), (2, 3)]),
        (ALONE, "world", [(0,)]),
    ],
)
def test_groups_of_a_layout(layout, kind, groups):
    assert form_groups(kind, layout) == groups


@pytest.mark.parametrize(
    ("layout", "kind", "reason"),
    [
        (ONE_NODE, "inter", "one node.*--nnodes"),
        (ALONE, "inter", "one node"),
        (ALONE, "intra", "no node of this job has two ranks.*--nproc"),
        (FOUR_BY_ONE, "intra", "no node of this job has two ranks"),
        (Layout((0, 1), (0, 1)), "inter", "same local rank"),
    ],
)
def test_a_group_that_cannot_be_formed_has_a_reason(layout, kind, reason):
    with pytest.raises(CannotForm, match=reason):
        form_groups(kind, layout)


@pytest.mark.parametrize(
    ("layout", "kinds"),
    [
        (ONE_NODE, ["world"]),
        (ALONE, ["world"]),
        (FOUR_BY_ONE, ["world"]),
        (TWO_BY_TWO, ["world", "intra", "inter"]),
        (THREE_BY_TWO, ["world", "intra", "inter"]),
        (UNEVEN, ["world", "intra", "inter"]),
    ],
)
def test_intra_and_inter_are_measured_where_the_job_has_both_levels(layout, kinds):
    assert default_group_kinds(layout) == kinds


def test_a_layout_counts_ranks_and_nodes():
    assert (UNEVEN.world_size, UNEVEN.nnodes) == (6, 3)
    assert UNEVEN.nnodes_of((0, 1, 2)) == 1
    assert UNEVEN.nnodes_of((0, 3, 4)) == 3
    assert Layout.regular(2, 3) == Layout((0, 0, 0, 1, 1, 1), (0, 1, 2, 0, 1, 2))


def test_an_unknown_kind_is_refused_with_the_nearest():
    assert check_group_kind("intra") == "intra"
    with pytest.raises(InputError, match=r"unknown group 'intar' \(did you mean intra\?\): one of world, intra, inter"):
        check_group_kind("intar")
