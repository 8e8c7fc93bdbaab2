"""The timed loops of one rank, with a clock that passes only when a test says so."""

from __future__ import annotations

import gc
import time
from itertools import pairwise

import pytest

from collbench.measure import timing
from collbench.measure.timing import Between, RankTimes, run_once, time_isolated, time_pipelined

US = 1000  # ns
MS = 1000 * US


class Clock:
    """Time that passes only when a test says so, in ns."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now


class Deadlines:
    """Starts every sample at once. What is between two waits has a number; that of the numbers in `missed` is void."""

    def __init__(self, clock, missed=()):
        self.clock, self.missed, self.waits = clock, set(missed), 0
        self.previous_void = False
        self.told = []  # what was measured

    def wait(self):
        self.previous_void = self.waits - 1 in self.missed
        self.waits += 1
        return self.clock.now

    def measured(self, elapsed_ns):
        self.told.append(elapsed_ns)


class Device:
    def __init__(self, clock, issues_async=True, takes=0):
        self.clock, self.issues_async, self.takes = clock, issues_async, takes
        self.synchronized = 0

    def synchronize(self):
        self.synchronized += 1
        self.clock.now += self.takes

    def mark(self):
        return self.clock.now

    def between_marks_ns(self, marks):
        return [later - earlier for earlier, later in pairwise(marks)]


class Control:
    """The barriers that ranks take part in."""

    def __init__(self, clock, takes=0):
        self.clock, self.takes, self.barriers = clock, takes, 0

    def maximum(self, values):
        self.barriers += 1
        self.clock.now += self.takes
        return values


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


def growing(clock):
    """The n-th call takes n times 100 ns."""
    calls = []

    def issue(async_op):
        calls.append(async_op)
        clock.now += 100 * len(calls)

    return issue


# --- isolated --------------------------------------------------------------------------------------------------------


def test_entering_and_leaving_are_told_apart(clock):
    device, deadlines = Device(clock), Deadlines(clock)
    times = time_isolated(operation(clock, 3, 40), device, deadlines, 4)
    assert times == RankTimes([3] * 4, [43] * 4)
    assert device.synchronized >= 4
    assert deadlines.told == [43] * 4


def test_leaving_is_when_the_device_has_ended(clock):
    times = time_isolated(operation(clock, 3, 40), Device(clock, takes=500), Deadlines(clock), 2)
    assert times == RankTimes([3] * 2, [543] * 2)


def test_a_call_that_returns_at_its_end_is_entered_there(clock):
    times = time_isolated(operation(clock, 3, 40), Device(clock, issues_async=False), Deadlines(clock), 2)
    assert times == RankTimes([43] * 2, [43] * 2)


def test_a_sample_for_which_a_rank_came_late_is_taken_again(clock):
    deadlines = Deadlines(clock, missed={1, 2})
    times = time_isolated(growing(clock), Device(clock, issues_async=False), deadlines, 3)
    assert times.left_ns == [100, 400, 500]  # the second and third are void
    assert (times.late, times.late_kept) == (2, 0)
    assert deadlines.told == [100, 200, 300, 400, 500]
    assert deadlines.waits == 6  # the last one says whether the last sample was void


def test_the_last_sample_may_be_void_too(clock):
    times = time_isolated(growing(clock), Device(clock, issues_async=False), Deadlines(clock, missed={2}), 3)
    assert times.left_ns == [100, 200, 400]
    assert (times.late, times.late_kept) == (1, 0)


def test_what_is_done_again_has_an_end_and_says_what_was_kept(clock):
    deadlines = Deadlines(clock, missed=range(1000))
    times = time_isolated(operation(clock, 1, 1), Device(clock), deadlines, 5)
    assert len(times.left_ns) == len(times.entered_ns) == 5
    assert (times.late, times.late_kept) == (5, 5)  # as many again, and then as they come
    assert deadlines.waits == 11
    deadlines = Deadlines(clock, missed={0, 1, 2, 3, 5})
    times = time_isolated(growing(clock), Device(clock), deadlines, 3)
    assert times.left_ns == [400, 500, 600]
    assert (times.late, times.late_kept) == (3, 2)


def test_a_rank_without_a_group_keeps_time_with_the_others(clock):
    for missed in (set(), {1}, {0, 2, 3}, range(100)):
        deadlines, others = Deadlines(clock, missed), Deadlines(clock, missed)
        idle = time_isolated(None, Device(clock), deadlines, 3)
        busy = time_isolated(operation(clock, 1, 1), Device(clock), others, 3)
        assert idle.entered_ns == idle.left_ns == [0] * 3
        assert len(busy.left_ns) == 3
        assert deadlines.waits == others.waits
        assert (idle.late, idle.late_kept) == (busy.late, busy.late_kept)
        assert deadlines.told == []  # it cannot be late for what it does not do


# --- pipelined -------------------------------------------------------------------------------------------------------


def test_pipelined_is_one_pair_of_readings_for_all_operations(clock):
    device, deadlines = Device(clock), Deadlines(clock)
    times = time_pipelined(operation(clock, 3, 40), device, deadlines, 10)
    assert times == RankTimes([0], [430], [430])
    assert device.synchronized == 1
    assert deadlines.told == [430]
    assert deadlines.waits == 2  # the second one says whether the batch was void


def test_issuing_is_told_apart_from_what_the_device_does(clock):
    times = time_pipelined(operation(clock, 3, 0), Device(clock, issues_async=False, takes=1000), Deadlines(clock), 10)
    assert times == RankTimes([0], [1030], [30])


# Every try is between two waits, so the tries have the numbers 0, 2, 4.
@pytest.mark.parametrize(
    ("missed", "kept", "late", "late_kept"),
    [
        (set(), 1, 0, 0),
        ({0}, 2, 1, 0),
        ({0, 2}, 3, 2, 0),
        ({0, 2, 4}, 3, 2, 1),
        ({0, 2, 4, 6, 8}, 3, 2, 1),
        ({1, 3, 5}, 1, 0, 0),  # what is between the batches is not measured
    ],
)
def test_a_batch_for_which_a_rank_came_late_is_done_again_twice_at_most(clock, missed, kept, late, late_kept):
    deadlines = Deadlines(clock, missed)
    times = time_pipelined(growing(clock), Device(clock), deadlines, 1)
    assert times.left_ns == [kept * 100]  # one batch is kept, the last one
    assert (times.late, times.late_kept) == (late, late_kept)
    assert deadlines.waits == 2 * (late + 1)
    idle = time_pipelined(None, Device(clock), others := Deadlines(clock, missed), 1)
    assert (idle.late, idle.late_kept) == (late, late_kept)
    assert others.waits == deadlines.waits


def test_a_rank_without_a_group_has_readings_of_nothing(clock):
    deadlines = Deadlines(clock)
    assert time_pipelined(None, Device(clock), deadlines, 3) == RankTimes([0], [0], [0])
    assert time_pipelined(None, Device(clock), deadlines, 3, each=True) == RankTimes([0], [0], [0], [0, 0, 0])


# blocking; of five operations of 40 ns with barriers of 1000: ns that count, of the device's 7, barriers
@pytest.mark.parametrize(
    ("blocking", "left", "issued", "barriers", "waits"),
    [
        (1, 5 * (40 + 7 + 1000) + 7, 5 * (40 + 7 + 1000), 5, 6),  # the barrier counts
        (2, 5 * (40 + 7) + 7, 5 * (40 + 7), 0, 6),  # a wait alone
        (3, 5 * (40 + 7) + 7, 5 * (40 + 7), 5, 6),  # the barrier does not count
    ],
)
def test_what_comes_between_operations(clock, blocking, left, issued, barriers, waits):
    device, control = Device(clock, takes=7), Control(clock, takes=1000)
    between = Between(blocking, control)
    times = time_pipelined(operation(clock, 0, 40), device, Deadlines(clock), 5, between)
    assert times == RankTimes([0], [left], [issued])
    assert (control.barriers, device.synchronized) == (barriers, waits)


@pytest.mark.parametrize("blocking", [0, 1, 2, 3])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("missed", [set(), {0}, {0, 2, 4}])
def test_all_ranks_meet_at_the_same_barriers(clock, blocking, each, missed):
    of_ranks = []
    for issue in (operation(clock, 1, 1), None):
        control, deadlines = Control(clock), Deadlines(clock, missed)
        times = time_pipelined(issue, Device(clock), deadlines, 4, Between(blocking, control), each)
        lists = (times.entered_ns, times.left_ns, times.issued_ns, times.iterations_ns)
        of_ranks.append((control.barriers, deadlines.waits, times.late, times.late_kept, *map(len, lists)))
    assert of_ranks[0] == of_ranks[1]
    assert of_ranks[0][0] == (4 * (times.late + 1) if blocking in (1, 3) else 0)


@pytest.mark.parametrize("blocking", [None, 1, 2, 3])
def test_each_operation_is_timed_without_what_comes_between(clock, blocking):
    between = None if blocking is None else Between(blocking, Control(clock, takes=1000))
    times = time_pipelined(growing(clock), Device(clock, takes=7), Deadlines(clock), 4, between, each=True)
    assert times.iterations_ns == [100, 200, 300, 400]
    counted = {None: 7, 1: 5 * 7 + 4 * 1000, 2: 5 * 7, 3: 5 * 7}[blocking]
    assert times.left_ns == [1000 + counted]


def test_timing_each_operation_does_not_change_the_sum(clock):
    plain = time_pipelined(operation(clock, 3, 40), Device(clock), Deadlines(clock), 10)
    marked = time_pipelined(operation(clock, 3, 40), Device(clock), Deadlines(clock), 10, each=True)
    assert (marked.entered_ns, marked.left_ns, marked.issued_ns) == (plain.entered_ns, plain.left_ns, plain.issued_ns)
    assert marked.iterations_ns == [43] * 10


# --- around them -----------------------------------------------------------------------------------------------------


def test_batches_are_put_together():
    times = RankTimes()
    times.extend(RankTimes([1], [2], [3], [4, 5], late=1))
    times.extend(RankTimes([6], [7], [8], [9], late=2, late_kept=1))
    assert times == RankTimes([1, 6], [2, 7], [3, 8], [4, 5, 9], late=3, late_kept=1)


def test_one_operation_is_waited_for(clock):
    device = Device(clock)
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
        time_isolated(issue, Device(clock), Deadlines(clock), 2)
        time_pipelined(issue, Device(clock), Deadlines(clock), 2)
        assert gc.isenabled() is enabled
    finally:
        gc.enable() if was else gc.disable()
    assert seen == [False] * 4


def test_the_garbage_collector_comes_back_after_a_failure(clock):
    def issue(async_op):
        raise RuntimeError("the peer is gone")

    was = gc.isenabled()
    try:
        gc.enable()
        for measure in (time_isolated, time_pipelined):
            with pytest.raises(RuntimeError, match="gone"):
                measure(issue, Device(clock), Deadlines(clock), 2)
            assert gc.isenabled()
    finally:
        gc.enable() if was else gc.disable()


def test_a_late_call_on_the_real_clock_shows_in_the_reading():
    class Now:
        previous_void = False

        def wait(self):
            return timing.now_ns()

        def measured(self, elapsed_ns):
            assert elapsed_ns >= 20 * MS

    device = Device(Clock())
    times = time_isolated(lambda async_op: time.sleep(0.02), device, Now(), 2)
    assert min(times.entered_ns) >= 20 * MS
    assert all(left >= entered for entered, left in zip(times.entered_ns, times.left_ns, strict=True))
