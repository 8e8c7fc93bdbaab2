"""What is said of samples: medians and their intervals against scipy's binomial, summaries and percentiles by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from collbench.measure.samples import (
    interval_of_median,
    is_precise,
    isolated_samples_us,
    median,
    per_iteration,
    pipelined_samples_us,
    quantile,
    relative_interval,
    summarize_isolated,
    summarize_pipelined,
)
from collbench.measure.timing import RankTimes

US = 1000  # ns
MS = 1000 * US

values = st.lists(st.floats(-1e9, 1e9, allow_nan=False), min_size=1, max_size=60)


# --- order statistics ------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=200)
@given(values, st.floats(0, 1))
def test_a_quantile_is_numpys(sample, q):
    assert quantile(sample, q) == pytest.approx(np.quantile(sample, q), rel=1e-9, abs=1e-6)


@settings(deadline=None, max_examples=100)
@given(values)
def test_a_median_is_numpys_and_order_plays_no_part(sample):
    assert median(sample) == pytest.approx(np.median(sample), rel=1e-12, abs=1e-12)
    assert median(sample[::-1]) == median(sample)


@pytest.mark.parametrize(("sample", "middle"), [([3.0], 3.0), ([1.0, 9.0], 5.0), ([9.0, 1.0, 4.0], 4.0)])
def test_medians_by_hand(sample, middle):
    assert median(sample) == middle


# --- the interval of the median --------------------------------------------------------------------------------------


def ranks_of(n):
    """The two places, from 0, of the order statistics that bound the median of n values."""
    low, high = interval_of_median([float(x) for x in range(n)][::-1])
    assert (low, high) == (int(low), int(high))
    return int(low), int(high)


def coverage(n, low):
    """The probability that the median of any continuous distribution lies between the order statistics number `low`
    and n-1-`low` from 0: that more than `low` and fewer than n-`low` of n samples fall below it."""
    return binom.cdf(n - 1 - low, n, 0.5) - binom.cdf(low, n, 0.5)


def test_the_interval_holds_the_median_with_95_percent_and_no_narrower_one_does():
    for n in range(6, 501):
        low, high = ranks_of(n)
        assert low + high == n - 1, n  # symmetric
        assert low < (n - 1) / 2 < high
        assert coverage(n, low) >= 0.95 - 1e-12, n
        assert coverage(n, low + 1) < 0.95, n


def test_beyond_500_samples_the_interval_is_nearly_the_narrowest():
    for n in (*range(501, 1200, 7), 1999, 2000, 5001, 20_000, 100_003):
        low, high = ranks_of(n)
        assert low + high == n - 1
        assert coverage(n, low) >= 0.95, n
        assert coverage(n, low + 2) < 0.95, n  # at most one place wider, on either side


@pytest.mark.parametrize("n", range(1, 6))
def test_so_few_values_have_no_interval(n):
    assert interval_of_median([float(x) for x in range(n)]) is None
    assert relative_interval([float(x + 1) for x in range(n)]) == math.inf
    assert not is_precise([5.0] * n, 0.5)


@pytest.mark.parametrize(
    ("n", "low", "high"),  # from printed tables of the sign test: n=6 all, n=9 2nd to 8th, n=20 6th to 15th, ...
    [(6, 0, 5), (8, 0, 7), (9, 1, 7), (12, 2, 9), (15, 3, 11), (20, 5, 14), (25, 7, 17), (50, 17, 32), (100, 39, 60)],
)
def test_intervals_by_the_tables(n, low, high):
    assert ranks_of(n) == (low, high)


def test_the_interval_narrows_with_more_samples():
    widths = []
    for n in (10, 40, 160, 640, 2560):
        low, high = interval_of_median([x / n for x in range(n)])
        widths.append(high - low)
    assert all(second < 0.7 * first for first, second in pairwise(widths))


def test_the_interval_reaches_as_far_as_its_farther_end():
    sample = [90.0, 100.0, 100.0, 100.0, 100.0, 130.0]
    assert interval_of_median(sample) == (90.0, 130.0)
    assert relative_interval(sample) == pytest.approx(0.3)
    assert is_precise(sample, 0.3) and not is_precise(sample, 0.29)
    sample[-1] = 101.0
    assert relative_interval(sample) == pytest.approx(0.1)


def test_a_median_of_zero_is_never_precise():
    assert relative_interval([0.0] * 10) == math.inf


def test_equal_samples_are_precise_as_soon_as_there_are_six():
    assert [n for n in range(1, 20) if is_precise([7.0] * n, 1e-9)] == list(range(6, 20))


# --- isolated --------------------------------------------------------------------------------------------------------


def test_an_isolated_time_is_the_last_exit_of_each_iteration_then_the_median():
    ranks = (4, 7)
    times = [
        RankTimes([1 * US, 1 * US, 1 * US], [10 * US, 50 * US, 30 * US]),
        RankTimes([1 * US, 1 * US, 1 * US], [20 * US, 15 * US, 40 * US]),
    ]
    # last exits: 20, 50, 40. Not the larger of the ranks' own medians (30 and 20), nor their mean.
    found = summarize_isolated(ranks, times)
    assert found["time_us"] == 40.0
    assert found["samples_us"] == isolated_samples_us(times) == [20.0, 50.0, 40.0]
    assert found["rank_samples_us"] == [[10.0, 50.0, 30.0], [20.0, 15.0, 40.0]]
    assert (found["time_min_us"], found["time_p50_us"], found["time_max_us"]) == (20.0, 40.0, 50.0)
    assert found["time_p5_us"] == pytest.approx(22.0)
    assert found["time_p95_us"] == pytest.approx(49.0)
    assert found["time_p99_us"] == pytest.approx(49.8)
    assert found["time_us_interval"] is None
    assert found["time_rank_max_us"] == 30.0
    assert found["iterations"] == 3


def test_the_interval_of_an_isolated_time_is_of_its_last_exits():
    times = [RankTimes([0] * 9, [x * US for x in range(1, 10)]), RankTimes([0] * 9, [3 * US] * 9)]
    found = summarize_isolated((0, 1), times)
    assert found["samples_us"] == [3.0, 3.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    assert (found["time_us"], found["time_us_interval"]) == (5.0, [3.0, 8.0])


def test_rank_0_that_returns_early_is_not_the_answer():
    # A broadcast: the root has sent at once, the last rank receives late.
    times = [
        RankTimes([1 * US] * 5, [3 * US] * 5),
        RankTimes([1 * US] * 5, [80 * US] * 5),
        RankTimes([1 * US] * 5, [120 * US] * 5),
    ]
    found = summarize_isolated((0, 1, 2), times)
    assert found["time_us"] == 120.0
    assert found["slowest_rank"] == 2


@pytest.mark.parametrize("late", [0, 1, 2, 3])
def test_a_rank_that_enters_20_ms_late_is_named_though_all_leave_together(late):
    ranks = (10, 11, 12, 13)
    jitter = [0, 3, 1, 2, 4, 1, 0, 2]
    times = []
    for index in range(4):
        enters = 20 * MS if index == late else 2 * US
        # Those that waited leave no earlier, and rank 2 even last of all by a little.
        leaves = 20 * MS + 100 * US + (5 * US if index == 2 else 0)
        times.append(RankTimes([enters + j * US for j in jitter], [leaves + j * US for j in jitter]))
    found = summarize_isolated(ranks, times)
    assert found["slowest_rank"] == ranks[late]
    assert found["time_us"] == pytest.approx(20105, abs=5)


def test_where_all_enter_together_the_rank_that_leaves_latest_is_named():
    entered = [2 * US, 4 * US, 3 * US, 1 * US]
    times = [
        RankTimes(entered, [50 * US] * 4),
        RankTimes([x + 200 for x in entered], [40 * US] * 4),  # enters last, but within the spread
        RankTimes(entered, [45 * US] * 4),
    ]
    assert summarize_isolated((5, 6, 7), times)["slowest_rank"] == 5


def test_one_late_iteration_names_no_rank():
    times = [
        RankTimes([1 * US] * 9, [50 * US] * 9),
        RankTimes([1 * US] * 8 + [20 * MS], [40 * US] * 8 + [20 * MS]),
    ]
    found = summarize_isolated((0, 1), times)
    assert found["slowest_rank"] == 0
    assert found["time_us"] == 50.0
    assert found["time_max_us"] == 20000.0


def test_a_rank_alone_is_the_slowest():
    found = summarize_isolated((3,), [RankTimes([1 * US], [9 * US])])
    assert (found["time_us"], found["slowest_rank"]) == (9.0, 3)


SPREAD = ("min", "p5", "p50", "p95", "p99", "max")


def test_one_isolated_sample_has_no_repeats_to_describe():
    found = summarize_isolated((3,), [RankTimes([1 * US], [9 * US])])
    assert [found[f"time_{name}_us"] for name in SPREAD] == [None] * 6
    assert found["time_us_interval"] is None


# --- pipelined -------------------------------------------------------------------------------------------------------


def test_a_pipelined_time_is_the_mean_over_ranks_of_elapsed_over_operations():
    times = [
        RankTimes([1 * US], [201 * US], [21 * US]),
        RankTimes([2 * US], [402 * US], [32 * US]),
        RankTimes([0], [300 * US], [70 * US]),
    ]
    found = summarize_pipelined((4, 5, 6), times, 10)
    assert found["time_us"] == pytest.approx((20 + 40 + 30) / 3)
    assert (found["time_rank0_us"], found["time_rank_min_us"], found["time_rank_max_us"]) == (20.0, 20.0, 40.0)
    assert found["cpu_time_us"] == pytest.approx((2 + 3 + 7) / 3)
    assert found["slowest_rank"] == 5
    assert (found["iterations"], found["batches"]) == (10, 1)
    assert found["samples_us"] == pipelined_samples_us(times, 10) == [pytest.approx(30.0)]
    assert found["rank_samples_us"] == [[20.0], [40.0], [30.0]]
    assert [found[f"time_{name}_us"] for name in SPREAD] == [None] * 6
    assert found["time_us_interval"] is None


def test_of_several_batches_the_median_counts():
    first = RankTimes([0] * 7, [x * 10 * US for x in (1, 2, 3, 4, 5, 6, 90)], [5 * US] * 7)
    second = RankTimes([0] * 7, [x * 10 * US for x in (3, 4, 5, 6, 7, 8, 110)], [15 * US] * 7)
    found = summarize_pipelined((1, 3), [first, second], 10)
    assert found["samples_us"] == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 100.0]
    assert found["time_us"] == found["time_p50_us"] == 5.0
    assert (found["time_min_us"], found["time_max_us"], found["time_us_interval"]) == (2.0, 100.0, [2.0, 100.0])
    assert (found["time_rank0_us"], found["time_rank_min_us"], found["time_rank_max_us"]) == (4.0, 4.0, 6.0)
    assert found["cpu_time_us"] == 1.0
    assert (found["iterations"], found["batches"], found["slowest_rank"]) == (70, 7, 3)
    assert found["rank_samples_us"][1] == [3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 110.0]


def test_rank_0_of_a_group_is_its_first_rank():
    times = [RankTimes([0], [(3 - index) * US], [0]) for index in range(3)]
    found = summarize_pipelined((6, 2, 4), times, 1)
    assert (found["time_rank0_us"], found["time_rank_min_us"], found["slowest_rank"]) == (3.0, 1.0, 6)


# --- every iteration (nccl-tests -I) ---------------------------------------------------------------------------------


def of_ranks(*iterations_us):
    return [RankTimes(iterations_ns=[round(us * US) for us in of_rank]) for of_rank in iterations_us]


def test_of_each_iteration_the_slowest_rank_counts():
    found = per_iteration(of_ranks([1, 20, 3, 4], [10, 2, 3, 5]), 4, 0)
    assert found == {
        "skipped_iterations": 0,
        "min_us": 3.0,
        "max_us": 20.0,
        "avg_us": 9.5,
        "p50_us": 10.0,  # sorted[n/2]: 3 5 10 20
        "p95_us": 20.0,
        "p99_us": 20.0,
        "stdev_us": pytest.approx(math.sqrt((0.5**2 + 10.5**2 + 6.5**2 + 4.5**2) / 4)),  # of the population
        "cv_pct": pytest.approx(100 * math.sqrt(173 / 4) / 9.5),
        "times_us": [10.0, 20.0, 3.0, 5.0],
    }


@pytest.mark.parametrize("skipped", [0, 1, 3])
def test_the_first_iterations_are_left_out(skipped):
    found = per_iteration(of_ranks([100, 50, 7, 8, 9]), 5, skipped)
    assert found["times_us"] == [100.0, 50.0, 7.0, 8.0, 9.0][skipped:]
    assert found["skipped_iterations"] == skipped
    assert found["max_us"] == max(found["times_us"])


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=250), st.integers(0, 249))
def test_percentiles_are_nearest_rank_and_the_deviation_is_numpys(sample_ns, skipped):
    skipped = min(skipped, len(sample_ns) - 1)
    found = per_iteration([RankTimes(iterations_ns=sample_ns)], len(sample_ns), skipped)
    kept = np.array(sample_ns[skipped:]) / 1e3
    ordered, n = np.sort(kept), len(kept)
    assert found["p50_us"] == ordered[n // 2]
    for percent in (95, 99):
        rank = next(rank for rank in range(1, n + 1) if 100 * rank >= percent * n)  # in whole numbers
        assert found[f"p{percent}_us"] == ordered[rank - 1]
        assert found[f"p{percent}_us"] == np.percentile(kept, percent, method="inverted_cdf")
    assert found["avg_us"] == pytest.approx(kept.mean())
    assert found["stdev_us"] == pytest.approx(kept.std(), abs=1e-9)
    assert found["cv_pct"] == pytest.approx(100 * kept.std() / kept.mean(), abs=1e-9)


def test_times_of_nothing_have_no_variation():
    assert per_iteration(of_ranks([0, 0]), 2, 0)["cv_pct"] is None


def test_the_first_iterations_of_every_batch_are_left_out_and_a_coalesced_call_is_cut_into_its_operations():
    found = per_iteration(of_ranks([100, 8, 8, 100, 8, 8]), 3, 1, per_call=4)
    assert found["skipped_iterations"] == 1
    assert found["times_us"] == [value / 4 for value in per_iteration(of_ranks([8] * 4), 4, 0)["times_us"]]
