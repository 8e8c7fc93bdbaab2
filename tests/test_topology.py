from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import InputError
from collbench.topology import (
    MOST_PAIRS,
    CannotForm,
    Layout,
    check_group_kind,
    default_group_kinds,
    expand_kind,
    form_groups,
    form_kinds,
    rounds,
)

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
        (TWO_BY_TWO, "pairs", [(0, 1, 2, 3)]),
        (FOUR_BY_ONE, "pairs", [(0, 3), (1, 2), (0, 2), (1, 3), (0, 1), (2, 3)]),
        (THREE_BY_TWO, "pairs", [(2, 3, 4, 5), (0, 1, 4, 5), (0, 1, 2, 3)]),
        (UNEVEN, "pairs", [(3, 4, 5), (0, 1, 2, 4, 5), (0, 1, 2, 3)]),
        (SCATTERED, "pairs", [(0, 1, 2, 3)]),
        (Layout.regular(1, 2), "pairs:rank", [(0, 1)]),
        (ONE_NODE, "pairs:rank", [(0, 3), (1, 2), (0, 2), (1, 3), (0, 1), (2, 3)]),
        (TWO_BY_TWO, "mesh:2x2:shard", [(0, 1), (2, 3)]),
        (TWO_BY_TWO, "mesh:2x2:replicate", [(0, 2), (1, 3)]),
        (THREE_BY_TWO, "mesh:2x3:shard", [(0, 1, 2), (3, 4, 5)]),
        (THREE_BY_TWO, "mesh:2x3:replicate", [(0, 3), (1, 4), (2, 5)]),
        (THREE_BY_TWO, "mesh:1x6:shard", [(0, 1, 2, 3, 4, 5)]),
        (THREE_BY_TWO, "mesh:6x1:replicate", [(0, 1, 2, 3, 4, 5)]),
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
        (ONE_NODE, "pairs", "one node.*--nnodes.*or use pairs:rank"),
        (ALONE, "pairs", "one node"),
        (ALONE, "pairs:rank", "one rank has no pair.*--nproc"),
        (Layout.regular(142, 1), "pairs", "142 nodes make 10011 pairs, at most 10000 .*use fewer nodes$"),
        (Layout.regular(2, 71), "pairs:rank", r"142 ranks make 10011 pairs, at most 10000 .*use pairs \(of nodes\)$"),
        (Layout.regular(2, 4), "mesh:3x3:shard", "a mesh of 3x3 has 9 ranks, this job 8: expected RxS with R\\*S ="),
        (Layout.regular(2, 4), "mesh:2x3:replicate", "a mesh of 2x3 has 6 ranks, this job 8"),
        (TWO_BY_TWO, "mesh:1x4:replicate", "the replicate groups of a mesh of 1x4 have one rank each"),
        (TWO_BY_TWO, "mesh:4x1:shard", "the shard groups of a mesh of 4x1 have one rank each"),
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


# --- pairs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("members", range(2, 18))
def test_every_pair_comes_once_in_as_few_rounds_as_can_be(members):
    for kind, layout in (("pairs:rank", Layout.regular(1, members)), ("pairs", Layout.regular(members, 1))):
        pairs = form_groups(kind, layout)
        assert sorted(pairs) == list(combinations(range(members), 2))
        cut = rounds(pairs)
        assert [index for one in cut for index in one] == list(range(len(pairs)))  # in order, nothing left out
        for one in cut:
            busy = [rank for index in one for rank in pairs[index]]
            assert len(busy) == len(set(busy)) == members - members % 2  # all are at work, but for one that is odd
        assert len(cut) == members - 1 + members % 2


@pytest.mark.parametrize("nnodes", [2, 3, 5, 8])
def test_a_pair_of_nodes_is_all_their_ranks(nnodes):
    layout = Layout.regular(nnodes, 3)
    groups = form_groups("pairs", layout)
    assert sorted(groups) == [
        (*range(3 * one, 3 * one + 3), *range(3 * other, 3 * other + 3))
        for one, other in combinations(range(nnodes), 2)
    ]
    assert {layout.nnodes_of(ranks) for ranks in groups} == {2}
    for one in rounds(groups):
        busy = [rank for index in one for rank in groups[index]]
        assert len(busy) == len(set(busy)) == 3 * (nnodes - nnodes % 2)


def test_the_most_pairs_are_those_of_141_nodes():
    groups = form_groups("pairs", Layout.regular(141, 1))
    assert len(groups) == 9870 <= MOST_PAIRS < 142 * 141 / 2
    assert len(rounds(groups)) == 141


@pytest.mark.parametrize("layout", [TWO_BY_TWO, THREE_BY_TWO, UNEVEN, SCATTERED])
def test_groups_that_share_no_rank_are_one_round(layout):
    for kind in ("world", "intra", "inter"):
        groups = form_groups(kind, layout)
        assert rounds(groups) == [list(range(len(groups)))]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True).map(tuple), max_size=12))
def test_rounds_keep_the_order_and_share_no_rank(groups):
    cut = rounds(groups)
    assert [index for one in cut for index in one] == list(range(len(groups)))
    for one in cut:
        busy = [rank for index in one for rank in groups[index]]
        assert one and len(busy) == len(set(busy))
    for one, following in pairwise(cut):  # a new round only where it must be
        assert set(groups[following[0]]) & {rank for index in one for rank in groups[index]}


# --- kinds -----------------------------------------------------------------------------------------------------------


def test_a_mesh_is_two_kinds_its_rows_and_its_columns():
    assert expand_kind("mesh:2x8") == ("mesh:2x8:shard", "mesh:2x8:replicate")
    assert expand_kind("mesh:2x8:shard") == ("mesh:2x8:shard",)
    assert [expand_kind(kind) for kind in ("world", "pairs", "pairs:rank")] == [("world",), ("pairs",), ("pairs:rank",)]
    groups, reasons = form_kinds(["mesh:2x4", "world", "mesh:2x4:shard"], Layout.regular(2, 4))
    assert list(groups) == ["mesh:2x4:shard", "mesh:2x4:replicate", "world"]
    assert (groups["mesh:2x4:replicate"][3], reasons) == ((3, 7), {})


def test_a_mesh_over_nodes_of_its_columns_is_intra_and_inter():
    layout = Layout.regular(3, 4)
    groups, _ = form_kinds(["mesh:3x4", "intra", "inter"], layout)
    assert groups["mesh:3x4:shard"] == groups["intra"]
    assert groups["mesh:3x4:replicate"] == groups["inter"]


def test_without_kinds_the_layouts_own_are_formed():
    assert list(form_kinds((), TWO_BY_TWO)[0]) == ["world", "intra", "inter"]
    assert list(form_kinds((), ONE_NODE)[0]) == ["world"]


def test_what_cannot_be_formed_is_told_and_the_others_stay():
    groups, reasons = form_kinds(["inter", "world", "mesh:3x3", "pairs"], Layout.regular(1, 8))
    assert list(groups) == ["world"]
    assert list(reasons) == ["inter", "mesh:3x3:shard", "mesh:3x3:replicate", "pairs"]
    assert "a mesh of 3x3 has 9 ranks, this job 8" in reasons["mesh:3x3:shard"]
    groups, reasons = form_kinds(["mesh:1x8"], Layout.regular(1, 8))
    assert (list(groups), list(reasons)) == (["mesh:1x8:shard"], ["mesh:1x8:replicate"])


@pytest.mark.parametrize("kinds", [["mesh:3x3"], ["mesh:3x3:shard"], ["inter", "mesh:3x3"]])
def test_a_mesh_of_the_wrong_shape_alone_is_an_error_in_the_input(kinds):
    with pytest.raises(InputError, match=r"^group mesh:3x3: a mesh of 3x3 has 9 ranks, this job 8: expected RxS with"):
        form_kinds(kinds, Layout.regular(1, 8))


def test_nothing_to_form_for_another_reason_is_no_error_in_the_input():
    groups, reasons = form_kinds(["inter", "pairs"], Layout.regular(1, 8))
    assert groups == {} and list(reasons) == ["inter", "pairs"]


@pytest.mark.parametrize(
    "text", ["mesh", "mesh:", "mesh:4", "mesh:0x4", "mesh:2x", "mesh:2x4x2", "mesh:-2x4", "mesh:2X4", "mesh:2x4:rows",
             "mesh:2 x 4", "mesh:2x4\n"],
)  # fmt: skip
def test_a_bad_mesh_is_refused_with_an_example(text):
    with pytest.raises(InputError, match=r"expected mesh:RxS, such as mesh:2x8 \(2 replicas of 8 shards\)"):
        check_group_kind(text)


@pytest.mark.parametrize(("text", "near"), [("pair", "pairs"), ("pairs:ranks", "pairs:rank"), ("wrold", "world")])
def test_an_unknown_kind_names_the_nearest_of_all(text, near):
    with pytest.raises(InputError, match=rf"unknown group '{text}' \(did you mean {near}\?\): .*pairs:rank, mesh:RxS"):
        check_group_kind(text)


@pytest.mark.parametrize("kind", ["world", "pairs", "pairs:rank", "mesh:1x1", "mesh:64x8", "mesh:2x2:replicate"])
def test_known_kinds_are_taken_as_they_are(kind):
    assert check_group_kind(kind) == kind


def test_an_unknown_kind_is_refused_with_the_nearest():
    assert check_group_kind("intra") == "intra"
    with pytest.raises(InputError, match=r"unknown group 'intar' \(did you mean intra\?\): one of world, intra, inter"):
        check_group_kind("intar")
