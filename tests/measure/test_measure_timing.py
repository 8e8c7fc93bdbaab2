from __future__ import annotations

import gc
import math
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.measure import timing
from collbench.measure.timing import (
    RankTimes,
    interval_of_median,
    median,
    quantile,
    run_once,
    summarize_isolated,
    summarize_pipelined,
    time_isolated,
    time_pipelined,
)

US = 1000  # ns
MS = 1000 * US

values = st.lists(st.floats(-1e9, 1e9, allow_nan=False), min_size=1, max_size=60)


# --- statistics ------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("n", [6, 7, 8, 10, 15, 20, 31, 50, 100, 200, 1000])
def test_the_interval_holds_the_median_with_95_percent(n):
    low, high = interval_of_median([float(x) for x in range(n)][::-1])
    # Exact for any continuous distribution: between the order statistics number low+1 and high+1 the true median lies
    # with the probability that low+1 to high of n samples fall below it.
    covered = sum(math.comb(n, k) for k in range(int(low) + 1, int(high) + 1)) / 2**n
    assert 0.92 <= covered <= 0.985  # the approximation is a little short for some counts
    assert int(low) + int(high) == n - 1
    assert low < median([float(x) for x in range(n)]) < high


def test_the_interval_narrows_with_more_samples():
    widths = []
    for n in (10, 40, 160, 640):
        low, high = interval_of_median([x / n for x in range(n)])
        widths.append(high - low)
    assert all(second < 0.7 * first for first, second in pairwise(widths))


def test_an_interval_of_few_values_is_all_of_them():
    assert interval_of_median([5.0, 1.0, 3.0]) == (1.0, 5.0)
    assert interval_of_median([2.0]) == (2.0, 2.0)


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
    assert found["samples_us"] == [20.0, 50.0, 40.0]
    assert (found["time_min_us"], found["time_p50_us"], found["time_max_us"]) == (20.0, 40.0, 50.0)
    assert found["time_p95_us"] == pytest.approx(49.0)
    assert found["time_rank_max_us"] == 30.0
    assert found["iterations"] == 3


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


# --- pipelined -------------------------------------------------------------------------------------------------------


def test_a_pipelined_time_is_the_mean_over_ranks_of_elapsed_over_operations():
    times = [RankTimes([1 * US], [201 * US]), RankTimes([2 * US], [402 * US]), RankTimes([0], [300 * US])]
    found = summarize_pipelined((4, 5, 6), times, 10)
    assert found["time_us"] == pytest.approx((20 + 40 + 30) / 3)
    assert found["time_rank_max_us"] == 40.0
    assert found["slowest_rank"] == 5
    assert found["iterations"] == 10
    assert found["samples_us"] == [pytest.approx(30.0)]
    assert [found[f"time_{name}_us"] for name in ("min", "p50", "p95", "max")] == [None] * 4


# --- the loops, with a clock that tests turn --------------------------------------------------------------------------


class Clock:
    """Time that passes only when a test says so, in ns."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now


class Deadlines:
    """Starts every iteration at once; iteration i is void where `missed` holds i."""

    def __init__(self, clock, missed=()):
        self.clock, self.missed, self.waits = clock, set(missed), 0
        self.previous_void = False

    def wait(self):
        self.previous_void = self.waits - 1 in self.missed
        self.waits += 1
        return self.clock.now


class Device:
    def __init__(self, issues_async):
        self.issues_async = issues_async
        self.synchronized = 0

    def synchronize(self):
        self.synchronized += 1


class Work:
    def __init__(self, clock, takes):
        self.clock, self.takes = clock, takes

    def wait(self):
        self.clock.now += self.takes


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing, "now_ns", clock)
    return clock


def operation(clock, enter, leave):
    def issue(async_op):
        clock.now += enter
        if async_op:
            return Work(clock, leave)
        clock.now += leave
        return None

    return issue


def test_entering_and_leaving_are_told_apart(clock):
    device = Device(issues_async=True)
    times = time_isolated(operation(clock, 3, 40), device, Deadlines(clock), 4)
    assert times == RankTimes([3] * 4, [43] * 4)
    assert device.synchronized >= 4


def test_a_sample_whose_deadline_was_missed_is_taken_again(clock):
    deadlines = Deadlines(clock, missed={1, 2})
    calls = []

    def issue(async_op):
        calls.append(async_op)
        clock.now += 100 * len(calls)
        return

    times = time_isolated(issue, Device(issues_async=False), deadlines, 3)
    assert times.left_ns == [100, 400, 500]  # the second and third are void


def test_voids_have_an_end(clock):
    deadlines = Deadlines(clock, missed=range(1000))
    times = time_isolated(operation(clock, 1, 1), Device(issues_async=True), deadlines, 5)
    assert len(times.left_ns) == len(times.entered_ns) == 5
    assert deadlines.waits <= 12


def test_a_rank_without_a_group_keeps_as_many_samples(clock):
    deadlines, others = Deadlines(clock, missed={1}), Deadlines(clock, missed={1})
    idle = time_isolated(None, Device(issues_async=True), deadlines, 3)
    busy = time_isolated(operation(clock, 1, 1), Device(issues_async=True), others, 3)
    assert idle == RankTimes([0] * 3, [0] * 3)
    assert len(busy.left_ns) == 3
    assert deadlines.waits == others.waits
    assert time_pipelined(None, Device(issues_async=True), deadlines, 3) == RankTimes([0], [0])


def test_pipelined_is_one_pair_of_readings_for_all_operations(clock):
    times = time_pipelined(operation(clock, 3, 40), Device(issues_async=True), Deadlines(clock), 10)
    assert times == RankTimes([0], [430])


def test_one_operation_is_waited_for(clock):
    device = Device(issues_async=True)
    run_once(operation(clock, 3, 40), device)
    assert clock.now == 43
    assert device.synchronized == 1


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_rests_while_time_is_taken_and_is_as_it_was_after(clock, enabled):
    seen = []

    def issue(async_op):
        seen.append(gc.isenabled())

    was = gc.isenabled()
    try:
        gc.enable() if enabled else gc.disable()
        time_isolated(issue, Device(issues_async=True), Deadlines(clock), 2)
        time_pipelined(issue, Device(issues_async=True), Deadlines(clock), 2)
        assert gc.isenabled() is enabled
    finally:
        gc.enable() if was else gc.disable()
    assert seen == [False] * 4


def test_a_late_call_on_the_real_clock_shows_in_the_reading():
    class Now:
        previous_void = False

        def wait(self):
            return timing.now_ns()

    times = time_isolated(lambda async_op: time.sleep(0.02), Device(issues_async=True), Now(), 2)
    assert min(times.entered_ns) >= 20 * MS
    assert all(left >= entered for entered, left in zip(times.entered_ns, times.left_ns, strict=True))
