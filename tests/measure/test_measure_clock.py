"""One clock for ranks of different kernels: the offset found by ping-pong, on two threads with clocks apart."""

from __future__ import annotations

import queue
import threading
import time

from collbench.measure import clock

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
