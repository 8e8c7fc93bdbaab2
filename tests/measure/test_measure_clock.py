"""One clock for ranks of different kernels, found by ping-pong on two threads; deadlines on a clock that tests turn."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time

import pytest

from collbench.measure import clock, timing
from collbench.measure.clock import Deadline, Stops

APART_NS = 5_000_000_000


class Pair:
    """Control of two ranks that are threads; `clock_ns` of rank 1 is ahead."""

    def __init__(self):
        self.boxes = [queue.Queue(), queue.Queue()]
        self.meeting = threading.Barrier(2)
        self.said = [None, None]


class Rank:
    def __init__(self, pair, rank):
        self.pair, self.rank = pair, rank

    def everyones(self, value):
        self.pair.said[self.rank] = value
        self.pair.meeting.wait(timeout=10)
        return list(self.pair.said)

    def from_rank(self, source, value):
        return self.everyones(value)[source]

    def send(self, value, other):
        self.pair.boxes[other].put(value)

    def receive(self, other):
        return self.pair.boxes[self.rank].get(timeout=10)


def offsets(monkeypatch, identity):
    here = threading.local()
    monkeypatch.setattr(clock, "clock_identity", lambda: identity(here.rank))
    monkeypatch.setattr(clock, "now_ns", lambda: time.perf_counter_ns() + here.rank * APART_NS)
    pair, found = Pair(), {}

    def be(rank):
        here.rank = rank
        found[rank] = clock.offset_to_rank0_ns(Rank(pair, rank))

    threads = [threading.Thread(target=be, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    return found[0], found[1]


def test_the_offset_between_two_kernels_is_found_by_ping_pong(monkeypatch):
    zero, offset = offsets(monkeypatch, lambda rank: f"kernel {rank}")
    assert zero == 0
    assert abs(offset + APART_NS) < 50_000_000  # threads of a busy machine; a network's round trip is less


def test_ranks_under_one_kernel_share_its_clock_exactly(monkeypatch):
    assert offsets(monkeypatch, lambda rank: "one kernel") == (0, 0)


def test_this_process_has_a_clock_identity():
    assert clock.clock_identity() == clock.clock_identity() != ""


# --- deadlines -------------------------------------------------------------------------------------------------------

US = 1000
MS = 1000 * US


class Turned:
    """A clock that a test turns; reading it takes 10 ns, sleeping takes what is slept."""

    def __init__(self, monkeypatch, start=0):
        self.now, self.slept = start, 0
        monkeypatch.setattr(clock, "now_ns", self)
        monkeypatch.setattr(timing, "now_ns", self)
        monkeypatch.setattr(clock.time, "sleep", self.sleep)
        monkeypatch.setattr(clock.os, "sched_yield", lambda: None)

    def __call__(self):
        self.now += 10
        return self.now

    def sleep(self, seconds):
        self.slept += 1
        self.now += round(seconds * 1e9)


class Control:
    """This rank's exchange with the others, which say `others`; it takes `takes` ns."""

    world_size = 2

    def __init__(self, turned, takes=0):
        self.turned, self.takes = turned, takes
        self.others = [0, 0, 0]
        self.told = []

    def maximum(self, values):
        self.told.append(list(values))
        self.turned.now += self.takes
        return [max(pair) for pair in zip(values, self.others, strict=True)]


@pytest.fixture
def turned(monkeypatch):
    monkeypatch.setattr(clock, "STOPS", Stops())
    return Turned(monkeypatch)


def said_late(control):
    """What this rank said at its last exchange."""
    return bool(control.told[-1][1])


def test_a_deadline_is_ahead_of_the_last_arrival_and_is_waited_for(turned):
    control = Control(turned, takes=30 * US)
    deadline = Deadline(control, 0)
    control.others = [turned.now + 5 * MS, 0, 0]  # another rank arrives 5 ms from now
    at = deadline.wait()
    assert at >= 5 * MS + 100 * US
    assert at <= turned.now <= at + 1 * US
    assert turned.slept == 1  # most of the wait; its end is awake


def test_a_deadline_is_in_this_ranks_own_clock(turned):
    turned.now = 50 * MS
    control = Control(turned)
    deadline = Deadline(control, offset_ns=-40 * MS)  # rank 0's clock shows 10 ms
    control.others = [12 * MS, 0, 0]
    assert 52 * MS + 100 * US <= deadline.wait() <= 52 * MS + 300 * US
    assert 10 * MS <= control.told[0][0] <= 10 * MS + 1 * US


def test_a_deadline_is_twice_as_far_off_as_learning_of_the_last_one_took_within_bounds(turned):
    control = Control(turned, takes=400 * US)
    deadline = Deadline(control, 0)
    deadline.wait()
    for slowest_us, off_us in ((400, 800), (700, 1400), (5000, 2000)):  # of all ranks
        control.others = [0, 0, slowest_us * US]
        at = deadline.wait()
        arrived = control.told[-1][0]
        assert off_us * US <= at - arrived <= off_us * US + 2 * US
    control.takes = 10 * US
    deadline.wait()
    control.others = [0, 0, 0]
    at = deadline.wait()
    assert 100 * US <= at - control.told[-1][0] <= 101 * US


# How late a rank comes, and how long what it measured took, in us: more than 20 us and more than 1 % is late.
@pytest.mark.parametrize(
    ("late_us", "elapsed_us", "void"),
    [
        (0, 1, False),
        (15, 1, False),
        (25, 1, True),
        (25, 1000, True),
        (25, 2000, True),
        (25, 3000, False),
        (15, 100_000, False),
        (900, 100_000, False),
        (1100, 100_000, True),
    ],
)
def test_late_is_more_than_20_us_and_more_than_a_hundredth(turned, late_us, elapsed_us, void):
    control = Control(turned)
    deadline = Deadline(control, 0)
    control.takes = (200 + late_us) * US  # the first deadline is 200 us off
    deadline.wait()
    control.takes = 0
    turned.now += elapsed_us * US
    deadline.measured(elapsed_us * US)
    assert deadline.times_late == int(void)
    deadline.wait()
    assert (said_late(control), deadline.previous_void) == (void, void)
    # It is said once; nothing has been measured since.
    deadline.wait()
    assert (said_late(control), deadline.previous_void) == (False, False)
    assert deadline.times_late == int(void)


def test_lateness_is_judged_by_what_was_measured_alone(turned):
    control = Control(turned, takes=500 * US)
    deadline = Deadline(control, 0)
    deadline.wait()  # late by 300 us, but nothing is measured
    deadline.wait()
    assert not said_late(control) and deadline.times_late == 0


def test_another_rank_that_was_late_makes_the_sample_void_and_is_not_this_one(turned):
    control = Control(turned)
    deadline = Deadline(control, 0)
    deadline.wait()
    deadline.measured(100 * US)
    control.others = [0, 1, 0]
    deadline.wait()
    assert deadline.previous_void
    assert deadline.times_late == 0
    control.others = [0, 0, 0]
    deadline.measured(100 * US)
    deadline.wait()
    assert not deadline.previous_void


def test_a_stop_makes_the_next_sample_void_and_only_that(turned):
    control = Control(turned)
    deadline = Deadline(control, 0)
    late = []
    for sample in range(5):
        deadline.wait()
        if sample == 2:
            clock.STOPS.count += 1  # stopped while it measured
        deadline.measured(10 * MS)
        late.append(deadline.times_late)
    assert late == [0, 0, 1, 1, 1]
    deadline.wait()
    assert [values[1] for values in control.told] == [0, 0, 0, 1, 0, 0]


def test_a_stop_before_the_deadline_counts_too_but_not_one_before_the_job(turned):
    clock.STOPS.count = 3
    control = Control(turned)
    deadline = Deadline(control, 0)
    deadline.wait()
    deadline.measured(10 * MS)
    assert deadline.times_late == 0
    clock.STOPS.count += 2  # twice between the samples
    deadline.wait()
    deadline.measured(10 * MS)
    assert deadline.times_late == 1


def test_a_rank_without_a_group_makes_no_batch_void(turned):
    # It cannot be late for what it does not do.
    control = Control(turned, takes=250 * US)
    deadline = Deadline(control, 0)
    times = timing.time_pipelined(None, None, deadline, 3)
    assert (times.late, deadline.times_late) == (0, 0)


def test_going_on_after_a_stop_is_counted():
    before, stops = signal.getsignal(signal.SIGCONT), Stops()
    try:
        stops.watch()
        assert stops.count == 0
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGCONT)
            time.sleep(0)
        assert stops.count == 2
    finally:
        signal.signal(signal.SIGCONT, before)


def test_over_a_far_network_the_deadline_is_as_far_off_as_learning_of_it_takes_at_best(turned):
    control = Control(turned, takes=20 * MS)
    deadline, slacks = Deadline(control, 0), []
    for _ in range(4):
        control.others[2] = control.told[-1][2] if control.told else 0
        begun = turned.now
        slacks.append(deadline.wait() - begun)
    assert slacks[0] < 1 * MS  # nothing is known yet
    assert min(slacks[2:]) >= 40 * MS  # twice as long as it takes: nobody is late
