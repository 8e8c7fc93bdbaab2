"""Model.time: on the curve in range, flagged and wider outside it, and which fit answers which question."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_data import SIZES, frame, line_us, noisy, rows, sweep

from collbench.errors import InputError
from collbench.model.curve import Curve
from collbench.model.fit import fit_results
from collbench.model.store import Model


def model_of(*lists: list[dict]) -> Model:
    return fit_results(frame(*lists))


@pytest.fixture(scope="module")
def noisy_model() -> Model:
    times = noisy(line_us(SIZES, 20, 25), 0.1, seed=3)
    return model_of(sweep(times))


@pytest.fixture(scope="module")
def cluster() -> Model:
    """8 ranks on 2 nodes: intra groups of 4, inter groups of 2, and a world; α tells them apart."""
    return model_of(
        rows(alpha_us=80, nranks=8, nnodes=2),
        rows(alpha_us=40, nranks=4, nnodes=1, group="intra"),
        rows(alpha_us=20, nranks=2, nnodes=2, group="inter"),
        rows(alpha_us=70, collective="all_gather_into_tensor"),
    )


def alpha_us(model: Model, *args: object, **question: object) -> float:
    """The time of a tiny message: which fit answered."""
    return float(model.time(*(args or ("all_reduce",)), 8, **question).time_us)  # type: ignore[arg-type]


def test_at_the_measured_sizes_it_is_the_measured_median(noisy_model: Model) -> None:
    (fit,) = noisy_model.fits
    estimate = noisy_model.time("all_reduce", SIZES)
    assert np.array_equal(estimate.time_us, [us for _, us in fit.curve])
    assert not np.any(estimate.extrapolated)
    assert (estimate.source, estimate.notes) == ("fit", ())


def test_between_two_sizes_time_is_linear(noisy_model: Model) -> None:
    (fit,) = noisy_model.fits
    (size_a, us_a), (size_b, us_b) = fit.curve[10:12]
    quarter = noisy_model.time("all_reduce", 0.75 * size_a + 0.25 * size_b)
    assert quarter.time_us == pytest.approx(0.75 * us_a + 0.25 * us_b)


def test_numbers_in_numbers_out_arrays_in_arrays_out(noisy_model: Model) -> None:
    one = noisy_model.time("all_reduce", 1000)
    assert [type(value) for value in (one.time_us, one.low_us, one.high_us, one.extrapolated)] == [float] * 3 + [bool]
    many = noisy_model.time("all_reduce", [[1000, 1], [0, 10**13]])
    for value in (many.time_us, many.low_us, many.high_us, many.extrapolated):
        assert np.shape(value) == (2, 2)
    assert np.asarray(many.time_us)[0, 0] == one.time_us
    assert np.asarray(many.extrapolated).tolist() == [[False, True], [True, True]]


def test_the_ends_join_the_curve_and_carry_on_along_the_line() -> None:
    model = model_of(rows(SIZES[5:21], alpha_us=20, bandwidth_GBps=25))  # 256 B to 8 MiB
    for size in (8, 100, 10**8, 10**10):
        estimate = model.time("all_reduce", size)
        assert estimate.time_us == pytest.approx(float(line_us(size, 20, 25)), rel=1e-6)
        assert estimate.extrapolated
    inside, beyond, far = (model.time("all_reduce", size) for size in (2**23, 2**24, 2**27))
    assert inside.notes == ()
    assert "beyond the largest measured size, 8 MiB:" in beyond.notes[0]
    assert "more than 4×: measure larger sizes" in far.notes[0]
    assert "below the smallest measured size, 256 B, by" in model.time("all_reduce", 8).notes[0]
    assert "to these ranks" in model.time("all_reduce", 2**30, nranks=64, nnodes=16).notes[-1]


def test_an_interval_widens_with_every_doubling_outside(noisy_model: Model) -> None:
    estimate = noisy_model.time("all_reduce", 2.0 ** np.array([29, 30, 31, 32, 33, 34]))
    assert np.all(np.diff(np.log(np.asarray(estimate.high_us) / np.asarray(estimate.low_us)))[1:] > 0)
    before = noisy_model.time("all_reduce", np.array([8, 4, 2, 1, 0]))
    assert np.all(np.diff(np.log(np.asarray(before.high_us) / np.asarray(before.low_us)))[:3] > 0)


def test_size_zero_costs_what_the_smallest_message_does(noisy_model: Model) -> None:
    assert noisy_model.time("all_reduce", 0).time_us == noisy_model.time("all_reduce", 1).time_us


@settings(max_examples=100, deadline=None)
@given(
    times=st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=20),
    sizes=st.lists(st.floats(0, 1e15), min_size=1, max_size=20),
)
def test_time_is_never_zero_negative_or_nan(times: list[float], sizes: list[float]) -> None:
    curve = Curve(8.0 * 2.0 ** np.arange(len(times)), np.array(times))
    asked = np.array(sizes)
    found = curve.time_us(asked)
    assert np.all(np.isfinite(found))
    assert np.all(found > 0)
    inside = found[~curve.is_outside(asked)]
    assert np.all((inside >= min(times) * (1 - 1e-9)) & (inside <= max(times) * (1 + 1e-9)))
    for width in curve.half_widths_log(asked):
        assert np.all(np.isfinite(width) & (width >= 0))


def test_a_sweep_that_stops_early_is_less_sure_of_what_follows() -> None:
    """Beyond 16 MiB a protocol may change; a sweep that has settled in its bandwidth goes on as it is."""
    early, settled = (Curve(sizes.astype(float), line_us(sizes, 20, 25)) for sizes in (SIZES[:22], SIZES))
    for curve, least, most in ((early, 0.3, 1.2), (settled, 0.0, 0.25)):
        below, _ = curve.half_widths_log(np.array([4 * curve.sizes_bytes[-1]]))
        assert least < float(below[0]) <= most


def test_beyond_the_range_the_last_points_count_most() -> None:
    times = line_us(SIZES, 20, 25)
    times[:-3] *= 2.0  # another regime, six times as far from the end as the last three points
    curve = Curve(SIZES.astype(float), times)
    assert curve.time_us(np.array([2.0**32]))[0] == pytest.approx(float(line_us(2.0**32, 20, 25)), rel=0.05)


@pytest.mark.parametrize("limit_GBps", [10.0, 43.75, 100.0])
def test_no_answer_is_faster_than_a_stated_link(limit_GBps: float) -> None:
    model = fit_results(frame(rows(alpha_us=20, bandwidth_GBps=25)), link_GBps=limit_GBps)  # busbw up to 43.75
    sizes = np.geomspace(1, 1e13, 200)
    for question in ({}, {"nranks": 64, "nnodes": 16}, {"nranks": 2, "nnodes": 2}):
        answer = model.time("all_reduce", sizes, **question)
        nranks = question.get("nranks", 8)
        least_us = sizes * 2 * (nranks - 1) / nranks / (limit_GBps * 1e3)
        for times in (answer.time_us, answer.low_us, answer.high_us):
            assert np.all(np.asarray(times) >= least_us * (1 - 1e-12))
    (fit,) = model.fits
    assert any("faster than the stated link" in note for note in fit.notes) == (limit_GBps < 40)


def test_a_hundred_thousand_sizes_in_a_tenth_of_a_second(noisy_model: Model) -> None:
    sizes = np.geomspace(1, 1e12, 100_000)
    started = time.process_time()
    estimate = noisy_model.time("all_reduce", sizes)
    assert time.process_time() - started < 0.1
    assert np.all(np.asarray(estimate.low_us) < np.asarray(estimate.high_us))


def test_ninety_percent_of_new_measurements_fall_into_the_interval() -> None:
    held = []
    for seed in range(30):
        times = noisy(line_us(SIZES, 20, 25), 0.05, seed)
        model = model_of(sweep(times))
        new = np.geomspace(8, 2**30, 100)
        measured, estimate = noisy(line_us(new, 20, 25), 0.05, 1000 + seed), model.time("all_reduce", new)
        held.append(np.mean((measured >= estimate.low_us) & (measured <= estimate.high_us)))  # type: ignore[operator]
    assert 0.85 < float(np.mean(held)) < 0.97


# Which fit answers


def test_groups_have_their_own_fits_and_counts(cluster: Model) -> None:
    assert alpha_us(cluster) == pytest.approx(80, rel=1e-3)
    assert alpha_us(cluster, "all_reduce", group="intra") == pytest.approx(40, rel=1e-3)
    assert alpha_us(cluster, "all_reduce", group="inter") == pytest.approx(20, rel=1e-3)
    assert alpha_us(cluster, "all_gather") == pytest.approx(70, rel=1e-3)
    assert (cluster.nodes, cluster.ranks_per_node) == (2, 4)
    assert cluster.counts("all_reduce", "world", None, None) == (8, 2)
    assert cluster.counts("all_reduce", "world", 12, None) == (12, 3)
    assert cluster.counts("all_reduce", "world", 3, None) == (3, 1)
    assert cluster.counts("all_reduce", "intra", 2, None) == (2, 1)
    assert cluster.counts("all_reduce", "inter", 16, None) == (16, 16)


def test_layout_without_a_world_group() -> None:
    model = model_of(rows(nranks=4, nnodes=1, group="intra"), rows(nranks=3, nnodes=3, group="inter"))
    assert (model.nodes, model.ranks_per_node) == (3, 4)


@pytest.mark.parametrize(
    ("question", "expected_us", "stands_in"),
    [
        ({"group": "mesh:2x4", "nranks": 4, "nnodes": 1}, 40, "group intra"),
        ({"group": "mesh:2x4", "nranks": 2, "nnodes": 2}, 20, "group inter"),
        ({"group": "world", "nranks": 4, "nnodes": 1}, 40, "group intra"),  # measured there, in another group
    ],
)
def test_a_group_like_it_stands_in(cluster: Model, question: dict, expected_us: float, stands_in: str) -> None:
    estimate = cluster.time("all_reduce", 8, **question)
    assert estimate.time_us == pytest.approx(expected_us, rel=1e-3)
    assert estimate.source == "fit"
    assert stands_in in estimate.notes[0]


def test_a_one_node_world_stands_in_for_intra() -> None:
    model = model_of(rows(alpha_us=30, nranks=4, nnodes=1))
    estimate = model.time("all_reduce", 8, group="intra")
    assert estimate.time_us == pytest.approx(30, rel=1e-3)
    assert "group world (4 ranks on 1 node) stands in" in estimate.notes[0]


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ({"collective": "all_gather", "group": "inter"}, "no all_gather_into_tensor on group inter .*--group inter"),
        ({"collective": "broadcast"}, "no broadcast, only all_gather_into_tensor, all_reduce: measure it with"),
        (
            {"collective": "all_gather", "group": "mesh:2x4", "nranks": 2, "nnodes": 2},
            "nor on one like it.*--group mesh:2x4'",
        ),
        ({"group": "wrold"}, "did you mean world"),
        ({"nranks": 2, "nnodes": 4}, "2 ranks cannot be on 4 nodes"),
        ({"nranks": 0}, "0 ranks"),
        ({"nnodes": 5}, "on 5 nodes was not measured: say how many ranks"),
        ({"timing": "pipelined"}, "no pipelined fit here, only isolated"),
        ({"timing": "fast"}, "unknown timing"),
        ({"dtype": "float33"}, "unknown datatype"),
        ({"backend": "gloo"}, "no fit of the backend 'gloo' here, only nccl"),
        ({"size_bytes": -1}, "size"),
    ],
)
def test_what_the_model_cannot_say(cluster: Model, question: dict, says: str) -> None:
    with pytest.raises(InputError, match=says) as refusal:
        cluster.time(**{"collective": "all_reduce", "size_bytes": 8, **question})
    assert "\n" not in str(refusal.value)


def test_regimes_isolated_unless_asked() -> None:
    both = model_of(rows(alpha_us=20), rows(alpha_us=9, timing="pipelined"))
    assert alpha_us(both) == pytest.approx(20, rel=1e-3)
    assert alpha_us(both, "all_reduce", timing="pipelined") == pytest.approx(9, rel=1e-3)
    (note,) = model_of(rows(timing="pipelined")).time("all_reduce", 8).notes
    assert note == "isolated was not measured: this is the pipelined time"


def test_a_dtype_not_measured_is_the_same_bytes_of_another() -> None:
    model = model_of(rows(alpha_us=20), rows(alpha_us=9, dtype="bfloat16"), rows(alpha_us=5, dtype="int32"))
    assert alpha_us(model) == pytest.approx(20, rel=1e-3)
    assert alpha_us(model, "all_reduce", dtype="bf16") == pytest.approx(9, rel=1e-3)
    half = model.time("all_reduce", 8, dtype="half")
    assert half.time_us == pytest.approx(9, rel=1e-3)  # two bytes each
    assert half.notes == ("half was not measured: this is the time of as many bytes of bfloat16",)


def test_out_of_place_and_concurrent_first() -> None:
    model = model_of(rows(alpha_us=20), rows(alpha_us=9, in_place=True), rows(alpha_us=5, concurrent=False))
    assert alpha_us(model) == pytest.approx(20, rel=1e-3)
    assert alpha_us(model_of(rows(alpha_us=9, in_place=True))) == pytest.approx(9, rel=1e-3)


def test_backends_are_never_guessed() -> None:
    model = model_of(rows(alpha_us=20), rows(alpha_us=90, backend="gloo"))
    assert alpha_us(model, "all_reduce", backend="gloo") == pytest.approx(90, rel=1e-3)
    with pytest.raises(InputError, match="backends gloo, nccl, which are never mixed"):
        model.time("all_reduce", 8)


def test_one_rank_moves_nothing(cluster: Model) -> None:
    estimate = cluster.time("all_reduce", [8, 16], nranks=1)
    assert np.array_equal(np.asarray(estimate.time_us), [0, 0])
    assert estimate.notes


def test_two_levels_make_a_world_that_was_not_measured() -> None:
    """Of 100 us inside and 20 between, 400 and 12.5 GB/s: latencies add up, the slower level's bytes count."""
    inside = rows(alpha_us=100, bandwidth_GBps=400, nranks=4, nnodes=1, group="intra")
    across = rows(alpha_us=20, bandwidth_GBps=12.5, nranks=2, nnodes=2, group="inter")
    model = model_of(inside, across)
    sizes = np.array([1e3, 1e8])
    answer = model.time("all_reduce", sizes, nranks=8, nnodes=2)
    assert answer.time_us == pytest.approx(120 + sizes / 4 / 12.5e3, rel=1e-3)  # each node's quarter goes across
    assert (answer.source, bool(np.all(answer.extrapolated))) == ("scaling", True)
    assert "made of the groups intra and inter" in answer.notes[-1]
    assert np.all(np.asarray(answer.high_us) > 1.4 * np.asarray(answer.time_us))
    more = model.time("all_reduce", sizes, nranks=16, nnodes=4)
    assert np.all(np.asarray(more.time_us) > np.asarray(answer.time_us))
    with pytest.raises(InputError, match="nor on one like it"):
        model_of(inside).time("all_reduce", sizes, group="inter", nranks=2, nnodes=2)
