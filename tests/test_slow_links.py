"""Slow links, nodes and ranks: what is found, and that noise alone is not."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pair_records import cluster, noisy, results, sweep

from collbench.links import BANDWIDTH, LATENCY, pair_tables
from collbench.slow_links import compare_links, sensitivity

_SEEDS = 200


def _found(table, matrix):
    (comparison,) = compare_links(table, matrix)
    return [(each.kind, each.name) for each in comparison.slow]


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 12])
@pytest.mark.parametrize("known", ["none", "interval", "passes"])
def test_noise_alone_raises_at_most_one_false_alarm_in_twenty_matrices(nodes, known):
    alarms = sum(bool(_found(*noisy(nodes, seed, noise=0.2, known=known))) for seed in range(_SEEDS))
    assert alarms <= 0.05 * _SEEDS + 6  # two standard deviations of a rate of 5 %


def test_small_differences_are_not_slow_however_little_the_noise():
    table, matrix = noisy(8, 0, noise=1e-5, slow=lambda link: 1.04 if link == (2, 5) else 1)
    assert _found(table, matrix) == []
    table, matrix = noisy(8, 0, noise=1e-5, slow=lambda link: 1.06 if link == (2, 5) else 1)
    assert _found(table, matrix) == [("link", "n2 – n5")]


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.integers(5, 16),
    seed=st.integers(0, 10**6),
    which=st.integers(0),
    known=st.sampled_from(["none", "interval", "passes"]),
    quantity=st.sampled_from([BANDWIDTH, LATENCY]),
)
def test_a_link_of_half_the_speed_is_found_in_2_percent_noise(nodes, seed, which, known, quantity):
    links = list(itertools.combinations(range(nodes), 2))
    slow = links[which % len(links)]
    table, matrix = noisy(
        nodes, seed, noise=0.02, known=known, slow=lambda link: 2 if link == slow else 1, quantity=quantity
    )
    assert ("link", f"n{slow[0]} – n{slow[1]}") in _found(table, matrix)


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.integers(5, 16),
    seed=st.integers(0, 10**6),
    which=st.integers(0),
    known=st.sampled_from(["none", "interval", "passes"]),
    quantity=st.sampled_from([BANDWIDTH, LATENCY]),
)
def test_a_node_of_half_the_speed_is_named_and_not_its_links(nodes, seed, which, known, quantity):
    slow = which % nodes
    table, matrix = noisy(
        nodes, seed, noise=0.02, known=known, slow=lambda link: 2 if slow in link else 1, quantity=quantity
    )
    (comparison,) = compare_links(table, matrix)
    node = comparison.slow[0]
    assert (node.kind, node.name, node.places) == ("node", f"n{slow}", (slow,))
    assert node.slow_links == len(node.links) == nodes - 1
    assert node.slowdown == pytest.approx(2, rel=0.2)
    assert not any(slow in each.places for each in comparison.slow[1:])


@pytest.mark.parametrize(("percent", "rate"), [(20, 0.5), (30, 0.9), (50, 0.99)])
def test_what_is_found_among_28_links_in_5_percent_noise(percent, rate):
    def slow(link):
        return 1 / (1 - percent / 100) if link == (2, 5) else 1

    found = sum(("link", "n2 – n5") in _found(*noisy(8, seed, slow=slow)) for seed in range(200))
    assert found >= 200 * rate


@pytest.mark.parametrize(
    ("nodes", "slow", "found"),
    [
        (3, {(0, 1)}, [("link", "n0 – n1")]),
        (3, {(0, 2), (1, 2)}, [("node", "n2")]),
        (4, {(0, 3), (1, 3), (2, 3)}, [("node", "n3")]),
        (4, {(1, 2)}, [("link", "n1 – n2")]),
    ],
)
def test_few_links_are_compared_by_their_own_uncertainty(nodes, slow, found):
    for seed in range(20):
        matrix = noisy(nodes, seed, noise=0.01, known="interval", slow=lambda link: 2 if link in slow else 1)
        assert _found(*matrix) == found


def test_three_links_that_were_not_repeated_tell_nothing():
    (comparison,) = compare_links(*noisy(3, 0, slow=lambda link: 3 if link == (0, 1) else 1))
    assert (comparison.slow, comparison.noise, comparison.visible) == ((), None, None)


def test_an_uncertain_link_is_not_slow():
    table, matrix = noisy(8, 0, noise=0.01, known="interval", slow=lambda link: 2 if link == (2, 5) else 1)
    assert _found(table, matrix)
    matrix.sigma[2, 5] = 0.5
    assert _found(table, matrix) == []


def test_two_slow_nodes_and_a_slow_link_are_all_named_the_worst_first():
    def slow(link):
        return 3 if 1 in link else 2 if 6 in link else 1.5 if link == (2, 5) else 1

    assert _found(*noisy(10, 1, noise=0.01, slow=slow)) == [("node", "n1"), ("node", "n6"), ("link", "n2 – n5")]


def test_what_would_have_been_found_is_found_and_less_is_not():
    table, matrix = noisy(8, 3)
    (comparison,) = compare_links(table, matrix)
    assert comparison.slow == ()
    for factor, expected in ((1.2, [("link", "n2 – n5")]), (0.8, [])):
        matrix.values[2, 5] = comparison.usual / comparison.visible**factor
        assert _found(table, matrix) == expected


def _rank_table(folder, slowdown):
    run = cluster(3, 4)
    (table,) = pair_tables(results(folder, run, *sweep(run, slowdown, group="pairs:rank", time_us_interval=[99, 101])))
    return [
        (c.among, [(s.kind, s.name, s.slow_links) for s in c.slow]) for c in compare_links(table, table.matrices[0])
    ]


def test_links_within_nodes_are_not_compared_with_those_between(tmp_path):
    def within_is_ten_times_faster(ranks):
        return 0.1 if ranks[0] // 4 == ranks[1] // 4 else 1

    assert _rank_table(tmp_path, within_is_ten_times_faster) == [("between nodes", []), ("within nodes", [])]


def test_a_slow_rank_is_named(tmp_path):
    assert _rank_table(tmp_path, lambda ranks: 2 if 6 in ranks else 1) == [
        ("between nodes", [("rank", "n1 r6", 8)]),
        ("within nodes", [("rank", "n1 r6", 3)]),
    ]


def test_a_slow_node_is_named_rather_than_its_ranks(tmp_path):
    def network_of_n1(ranks):
        nodes = {rank // 4 for rank in ranks}
        return 2 if len(nodes) == 2 and 1 in nodes else 1

    assert _rank_table(tmp_path, network_of_n1) == [("between nodes", [("node", "n1", 32)]), ("within nodes", [])]


def test_more_links_take_more_to_stand_out_and_few_links_too():
    assert sensitivity(4) > sensitivity(10) > sensitivity(28) > 3
    assert sensitivity(8000) > sensitivity(800) > 3.8
