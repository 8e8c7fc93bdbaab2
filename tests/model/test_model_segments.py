"""α–β segments against known truth: recovered, no more of them than there are, intervals that hold what they say."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_data import SIZES, line_us, noisy

from collbench.model.curve import relative_line
from collbench.model.segments import LEAST_RISE, fit_segments

X = SIZES.astype(float)
# (α in µs, bandwidth in GB/s): a fast node, a network, a slow one
TRUTHS = [(5.0, 400.0), (20.0, 25.0), (100.0, 1.0)]


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize(("repeats", "least_share"), [(1, 0.97), (20, 1.0)])
def test_a_line_with_5_percent_noise_is_recovered_within_5_percent(
    truth: tuple[float, float], repeats: int, least_share: float
) -> None:
    alpha_us, bandwidth_GBps = truth
    good = single = 0
    for seed in range(200):
        times = np.median(noisy(np.tile(line_us(X, *truth), (repeats, 1)), 0.05, seed), axis=0)
        segments = fit_segments(X, times)
        single += len(segments) == 1
        found = segments[0].alpha_us / alpha_us, 1e-3 / segments[-1].slope_us_per_byte / bandwidth_GBps
        good += all(abs(ratio - 1) < 0.05 for ratio in found)
    assert good >= least_share * 200
    assert single >= 0.97 * 200  # noise alone buys no second segment


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    runs, alpha_held, slope_held = 300, 0, 0
    for seed in range(runs):
        segment = fit_segments(X, noisy(line_us(X, 20, 25), 0.05, seed))[-1]
        alpha_held += segment.alpha_us_interval[0] <= 20 <= segment.alpha_us_interval[1]
        slope_held += segment.slope_interval[0] <= 1 / 25e3 <= segment.slope_interval[1]
    assert 0.85 <= alpha_held / runs <= 0.95
    assert 0.85 <= slope_held / runs <= 0.95


def test_two_segments_are_found_where_they_are() -> None:
    truth = np.where(X <= 65536, line_us(X, 10, 2), line_us(X, 60, 25))
    two = near = 0
    for seed in range(100):
        segments = fit_segments(X, noisy(truth, 0.05, seed))
        two += len(segments) == 2
        near += 2 * X[segments[0].last] >= 65536 >= X[segments[0].last] / 2
    assert two >= 95
    assert near >= 95


def test_clean_segments_are_exact() -> None:
    pieces = [(X <= 2048, 5, 0.5), ((X > 2048) & (X <= 2**20), 30, 5), (X > 2**20, 200, 40)]
    times = np.select([where for where, *_ in pieces], [line_us(X, a, b) for _, a, b in pieces])
    segments = fit_segments(X, times)
    assert [X[segment.last] for segment in segments] == [2048, 2**20, 2**30]
    for segment, (_, alpha_us, bandwidth_GBps) in zip(segments, pieces, strict=True):
        assert segment.alpha_us == pytest.approx(alpha_us, rel=1e-6)
        assert 1e-3 / segment.slope_us_per_byte == pytest.approx(bandwidth_GBps, rel=1e-6)
        assert segment.alpha_us_interval[0] < alpha_us < segment.alpha_us_interval[1]


def test_clean_data_buy_no_segments() -> None:
    # √size bends the line by less than the noise floor of 1 %.
    assert len(fit_segments(X, line_us(X, 20, 25) * (1 + 0.004 * np.sin(np.log(X))))) == 1


def test_measured_noise_raises_the_floor() -> None:
    wavy = line_us(X, 20, 25) * np.where(X < 2**16, 1.0, 1.12)
    assert len(fit_segments(X, wavy)) > 1
    assert len(fit_segments(X, wavy, noise=0.2)) == 1


def test_a_flat_curve_has_a_finite_bandwidth_that_changes_no_time() -> None:
    (segment,) = fit_segments(X[:8], np.full(8, 12.0))
    rise = segment.slope_us_per_byte * X[7] / (segment.alpha_us + segment.slope_us_per_byte * X[7])
    assert 0 < rise <= 1.01 * LEAST_RISE
    assert 0 < segment.slope_interval[0] <= segment.slope_us_per_byte <= segment.slope_interval[1]


def test_a_curve_without_latency_has_alpha_zero() -> None:
    (segment,) = fit_segments(X, X / 1e3)
    assert segment.alpha_us == pytest.approx(0, abs=1e-9)
    assert segment.alpha_us_interval[0] == 0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-2, 1e8), min_size=3, max_size=40))
def test_any_positive_times_give_sound_segments(times: list[float]) -> None:
    sizes = 8.0 * 2.0 ** np.arange(len(times))
    segments = fit_segments(sizes, np.array(times))
    assert segments[0].first == 0
    assert segments[-1].last == len(times) - 1
    for left, right in pairwise(segments):
        assert right.first == left.last + 1
    for segment in segments:
        assert segment.alpha_us_interval[0] <= segment.alpha_us <= segment.alpha_us_interval[1]
        assert 0 < segment.slope_interval[0] <= segment.slope_us_per_byte <= segment.slope_interval[1]
        assert np.isfinite([*segment.alpha_us_interval, *segment.slope_interval]).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-2, 1e6), min_size=2, max_size=10))
def test_the_line_is_scipys_non_negative_least_squares(times: list[float]) -> None:
    from scipy.optimize import nnls

    sizes, target = 8.0 * 2.0 ** np.arange(len(times)), np.array(times)
    alpha, slope = relative_line(sizes, target)
    expected, _ = nnls(np.stack([1 / target, sizes / sizes[-1] / target], axis=1), np.ones(len(times)))

    def residual(line: tuple[float, float]) -> float:
        return float(np.sum(((line[0] + line[1] * sizes) / target - 1) ** 2))

    assert min(alpha, slope) >= 0
    assert residual((alpha, slope)) == pytest.approx(
        residual((expected[0], expected[1] / sizes[-1])), rel=1e-6, abs=1e-9
    )
