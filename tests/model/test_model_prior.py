"""Priors: NCCL's own figures, and what a few measured points make of them."""

from __future__ import annotations

import numpy as np
import pytest

from collbench.errors import InputError
from collbench.model.curve import Curve
from collbench.model.estimate import Floats
from collbench.model.link import LinkModel
from collbench.model.nccl_law import nccl_time_us
from collbench.model.prior import Prior
from collbench.model.prior_laws import Priors, law_of, link_of, prior_of

LINK = LinkModel(bandwidth_GBps=300, inter_bandwidth_GBps=40)
SIZES = 2.0 ** np.arange(3, 31)


def nccl(collective: str, size: float, nranks: int, nnodes: int) -> float:
    return float(nccl_time_us(LINK, collective, nranks, nnodes, np.array([size]))[0])


@pytest.mark.parametrize(
    ("collective", "nranks", "nnodes", "time_us"),
    [
        ("all_gather", 8, 1, 6.6 + 7 * 0.6),  # ring, LL
        ("all_reduce", 8, 1, min(6.6 + 14 * 0.6, 6.8 + 2 * 7 * 0.6)),
        ("all_reduce", 64, 8, 6.8 + 2 * (7 * 0.6 + 3 * 5.0)),  # tree, LL: log2 of the nodes
        ("all_gather", 64, 8, 6.6 + 56 * 1.0 + 7 * 2.7),  # a step inside costs the network's overhead
        ("all_gather", 8, 8, 6.6 + 7 * 2.7),
    ],
)
def test_nccls_own_latencies(collective: str, nranks: int, nnodes: int, time_us: float) -> None:
    assert nccl(collective, 0.0, nranks, nnodes) == pytest.approx(time_us)


@pytest.mark.parametrize(("nranks", "nnodes", "rate_GBps"), [(8, 1, 300), (16, 2, 40), (4, 4, 40)])
def test_large_messages_go_at_the_links_rate(nranks: int, nnodes: int, rate_GBps: float) -> None:
    size = 2.0**38
    assert 7 * size / 8 / nccl("all_gather", size, 8, 1) / 1e3 == pytest.approx(300, rel=0.01)
    bytes_sent = 2 * (nranks - 1) / nranks * size
    assert bytes_sent / nccl("all_reduce", size, nranks, nnodes) / 1e3 == pytest.approx(rate_GBps, rel=0.09)


def points(prior: Prior) -> tuple[Floats, Floats, Floats]:
    """Sizes, times and half widths."""
    sizes, times_us, halves = np.array(prior.points).T
    return sizes, times_us, halves


def test_one_point_moves_the_law_near_it_most() -> None:
    law = law_of("nccl", LINK, "all_reduce", 8, 1)
    at = np.array([2.0**14])
    sizes, times_us, halves = points(prior_of("nccl", law, at, 2 * law(at), 0.02, 1))
    ratio = times_us / law(sizes)
    here = int(np.argmin(halves))
    assert sizes[here] == at[0] and ratio[here] == pytest.approx(2, rel=0.01)
    assert halves[here] < 0.06
    assert np.all(np.diff(halves[here:]) > 0) and np.all(np.diff(halves[: here + 1]) < 0)
    assert np.all(np.diff(ratio[here:]) < 0) and 1.0 < ratio[-1] < 2.0
    assert halves.max() < 1.645 * 0.8


def test_many_points_leave_nothing_of_the_law() -> None:
    truth = 50 + SIZES / 10e3
    prior = prior_of("datasheet", law_of("datasheet", LINK, "all_reduce", 8, 1), SIZES, truth, 0.0, 1)
    sizes, times_us, halves = points(prior)
    shown = np.isin(sizes, SIZES)
    assert times_us[shown] == pytest.approx(truth, rel=0.01)
    assert halves[shown].max() < 0.06


def test_a_curve_is_filled_where_it_was_not_measured() -> None:
    measured = Curve(np.array([64.0, 256.0, 2.0**20]), np.array([30.0, 31.0, 60.0]), np.full(3, 0.01))
    law = law_of("nccl", LINK, "all_reduce", 8, 1)
    filled = prior_of("nccl", law, measured.sizes_bytes, measured.times_us, 0.0, 1).fill(measured)
    sizes = np.array([32.0, 64.0, 100.0, 256.0, 257.0, 2.0**19, 2.0**20, 2.0**21])
    guessed = [True, False, False, False, True, True, False, True]
    assert filled.is_outside(sizes).tolist() == guessed
    assert filled.time_us(measured.sizes_bytes) == pytest.approx(measured.times_us)
    assert np.all(np.diff(filled.sizes_bytes) > 0) and 128 not in filled.sizes_bytes and 512 in filled.sizes_bytes
    below, above = filled.half_widths_log(sizes)
    assert below.tolist() == above.tolist()
    assert below[1] == pytest.approx(0.01) and min(below[[0, 5, 7]]) > 0.1


def test_few_sizes_get_a_prior_and_many_do_not() -> None:
    priors = Priors.of("nccl", LINK, [])
    few, notes = priors.of_curve("all_reduce", 8, 1, SIZES[:7], SIZES[:7] + 20, 0.0)
    assert few is not None and few.kind == "nccl"
    assert notes[0].startswith("nccl prior: 7 sizes measured; ") and "at the stated link's rate" in notes[0]
    assert priors.of_curve("all_reduce", 8, 1, SIZES[:8], SIZES[:8] + 20, 0.0) == (None, [])


def test_a_datasheet_needs_figures_and_nccl_takes_those_measured() -> None:
    with pytest.raises(InputError, match="needs the link's figures"):
        Priors.of("datasheet", None, [])
    sizes = np.array([2.0**20])
    priors = Priors.of("nccl", None, [("all_gather", 8, 1, sizes, 7 * sizes / 8 / 100e3)])
    assert priors.link.bandwidth_GBps == pytest.approx(100)
    assert "100 GB/s (faster links: --bandwidth)" in priors.rates


def test_intervals_cover_what_the_walk_says() -> None:
    """Truth drawn as the prior thinks it: 90 % of the points that were not shown lie in the interval."""
    random = np.random.default_rng(0)
    law = law_of("nccl", LINK, "all_reduce", 64, 8)
    x = np.log2(SIZES)
    covariance = np.exp(-np.abs(x[:, None] - x[None, :]) / 40)
    inside: list[bool] = []
    for _ in range(200):
        truth = law(SIZES) * np.exp(random.multivariate_normal(np.zeros(len(x)), covariance))
        shown = np.sort(random.choice(len(x), 4, replace=False))
        sizes, times_us, halves = points(prior_of("nccl", law, SIZES[shown], truth[shown], 0.0, 8))
        asked = np.isin(sizes, SIZES[np.setdiff1d(np.arange(len(x)), shown)])
        errors = np.log(np.delete(truth, shown) / times_us[asked])
        inside += (np.abs(errors) < halves[asked]).tolist()
    assert 0.87 < np.mean(inside) < 0.93


def test_a_datasheet_without_latency_takes_some_time() -> None:
    assert law_of("datasheet", LINK, "all_reduce", 8, 1)(np.array([8.0]))[0] >= 1.0


def test_unknown_prior() -> None:
    with pytest.raises(InputError, match="did you mean nccl"):
        law_of("ncll", LINK, "all_reduce", 8, 1)


def test_rates_that_were_not_given_are_the_highest_measured() -> None:
    sizes = np.array([2.0**20, 2.0**24])
    link = link_of(
        [
            ("all_reduce", 8, 1, sizes, 1.75 * sizes / 200e3),
            ("all_gather", 16, 2, sizes, sizes / 30e3),
            ("all_reduce", 8, 1, sizes, 1.75 * sizes / 150e3),
        ]
    )
    assert link.bandwidth_GBps == pytest.approx(200)
    assert link.inter_bandwidth_GBps == pytest.approx(30 * 15 / 16)
    assert link_of([("broadcast", 4, 4, sizes, sizes / 5e3)]).bandwidth_GBps == pytest.approx(5)
