"""Closed forms from link figures: the project's arithmetic seeds, two-level links, impossible questions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from collbench.collectives import COLLECTIVES, bandwidths_GBps, find_collective
from collbench.errors import InputError
from collbench.model.link import LinkModel


def test_two_gigabytes_over_eight_ranks_take_140_ms_and_not_245() -> None:
    estimate = LinkModel(bandwidth_GBps=25.0).time("all_reduce", 2e9, nranks=8)
    assert estimate.time_us == pytest.approx(140_000)
    assert (estimate.source, estimate.extrapolated, estimate.low_us, estimate.high_us) == ("link", False, None, None)
    algbw, busbw = bandwidths_GBps(find_collective("all_reduce"), 2e9, float(estimate.time_us), 8)
    assert (algbw, busbw) == (pytest.approx(14.286, abs=1e-3), pytest.approx(25.0))
    assert find_collective("all_reduce").sent_fraction(8) * 2e9 == 3.5e9


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("nranks", [2, 3, 8])
def test_busbw_of_a_link_without_latency_is_its_bandwidth(collective: str, nranks: int) -> None:
    estimate = LinkModel(bandwidth_GBps=12.5).time(collective, 1e9, nranks=nranks)
    _, busbw = bandwidths_GBps(find_collective(collective), 1e9, float(estimate.time_us), nranks)
    assert busbw == pytest.approx(12.5)


@pytest.mark.parametrize(("collective", "steps"), [("all_reduce", 14), ("all_gather", 7), ("broadcast", 1)])
def test_latency_is_per_step_of_the_ring(collective: str, steps: int) -> None:
    assert LinkModel(bandwidth_GBps=1.0, latency_us=5.0).time(collective, 0, nranks=8).time_us == 5.0 * steps


def test_two_levels_take_the_slower_link_and_ncclS_count_of_steps_between_nodes() -> None:
    model = LinkModel(bandwidth_GBps=100.0, latency_us=1.0, inter_bandwidth_GBps=10.0, inter_latency_us=20.0)
    # 8 ranks on 2 nodes: of 14 steps 2(N-1) = 2 cross, of an all_gather's 7 one does, and a broadcast's only one does.
    assert model.time("all_reduce", 0, nranks=8, nnodes=2).time_us == 2 * 20 + 12 * 1
    assert model.time("reduce_scatter", 0, nranks=8, nnodes=2).time_us == 1 * 20 + 6 * 1
    assert model.time("broadcast", 0, nranks=8, nnodes=2).time_us == 20
    assert model.time("broadcast", 1e9, nranks=8, nnodes=2).time_us == pytest.approx(20 + 1e5)
    assert model.time("all_gather", 0, group="intra", nranks=8).time_us == 7
    assert model.time("all_gather", 0, group="inter", nranks=8).time_us == 7 * 20
    assert model.time("all_gather", 0, nranks=8, nnodes=8).time_us == 7 * 20
    assert (model.nodes, model.ranks_per_node) == (None, None)


def test_inter_figures_default_to_the_plain_ones() -> None:
    model = LinkModel(bandwidth_GBps=10.0, latency_us=3.0)
    one, many = (model.time("all_reduce", 1e6, nranks=8, nnodes=nnodes).time_us for nnodes in (1, 4))
    assert one == pytest.approx(many)


def test_arrays_in_arrays_out() -> None:
    estimate = LinkModel(bandwidth_GBps=25.0).time("broadcast", np.array([0.0, 25e3, 50e3]), nranks=4)
    assert np.asarray(estimate.time_us).tolist() == [0.0, 1.0, 2.0]


def test_one_rank_moves_nothing() -> None:
    estimate = LinkModel(bandwidth_GBps=25.0, latency_us=5.0).time("broadcast", 1e9, nranks=1)
    assert (estimate.time_us, estimate.low_us, estimate.source) == (0.0, None, "link")
    assert estimate.notes


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ({}, "--nranks"),
        ({"nranks": 0}, "0 ranks"),
        ({"nranks": -2}, "-2 ranks"),
        ({"nranks": 2, "nnodes": 3}, "2 ranks cannot be on 3 nodes"),
        ({"nranks": 4, "nnodes": 2, "group": "intra"}, "ranks of one node"),
        ({"nranks": 4, "nnodes": 2, "group": "inter"}, "one rank per node"),
        ({"nranks": 4, "group": "wrold"}, "did you mean world"),
    ],
)
def test_impossible_questions_are_refused(question: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        LinkModel(bandwidth_GBps=25.0).time("all_reduce", 8, **question)


@pytest.mark.parametrize("size", [-1, math.nan, math.inf, "many"])
def test_impossible_sizes_are_refused(size: object) -> None:
    with pytest.raises(InputError, match="size"):
        LinkModel(bandwidth_GBps=25.0).time("all_reduce", size, nranks=8)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "figures",
    [
        {"bandwidth_GBps": 0.0},
        {"bandwidth_GBps": -1.0},
        {"bandwidth_GBps": math.nan},
        {"bandwidth_GBps": 1.0, "inter_bandwidth_GBps": math.inf},
        {"bandwidth_GBps": 1.0, "latency_us": -1.0},
        {"bandwidth_GBps": 1.0, "inter_latency_us": math.nan},
    ],
)
def test_impossible_links_are_refused(figures: dict) -> None:
    with pytest.raises(InputError, match="expected a finite"):
        LinkModel(**figures)
