"""Two slowdown factors: their arithmetic, the rounds in a world whose factors are known, and a real job on gloo."""

from __future__ import annotations

import gc
import json
import math
import socket
import subprocess
import sys
import threading
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, clean_environment
from hypothesis import given
from hypothesis import strategies as st

from collbench.measure import overlap
from collbench.measure.device import Cpu
from collbench.measure.overlap import OverlapTimes, measure_overlap, overlap_record, work_done

US = 1000  # ns
MS = 1000 * US


# --- the arithmetic --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "window", "work"),
    [
        ([10, 20, 30, 35, 40], 30, 15),  # three at half the pace of one alone, which takes 5
        ([10, 20, 27.5, 32.5], 25, 12.5),  # the third was half done, the rest of it took 2.5
        ([5, 10, 15, 20], 12, 12),  # nothing slowed it
        ([5, 10, 15, 20], 15, 15),
        ([10, 20, 30, 40], 40, 20),  # the collective ends with the loop
        ([10, 20, 30, 40], 900, 20),  # the loop ended first: all of it was under the collective
        ([10, 20, 900, 905], 25, 10),  # stopped by something else: no more than what had ended is sure
        ([4, 8, 12, 16], 8, 10),  # faster than alone, which is noise: none was begun that had not been
        ([4, 8, 12, 16], 10, 12.5),
        ([20, 25, 30], 5, 1.25),  # in the first product: a quarter of its time, a quarter of it
        ([20, 25, 30], 0, 0),
    ],
)
def test_what_was_done_of_a_loop_by_hand(ends, window, work):
    assert work_done(ends, window, 5.0) == pytest.approx(work)


@given(st.integers(1, 1000), st.floats(1, 50), st.floats(0, 1), st.floats(1, 1e6))
def test_a_loop_that_a_known_slowdown_lengthens_gives_that_slowdown_back(products, slowdown, part, product_ns):
    alone = product_ns * (1 + part * (products - 1))  # of the loop, what is done under the collective
    window = alone * slowdown
    ends = [
        slowdown * done if done <= alone else window + done - alone
        for done in (product_ns * (i + 1) for i in range(products))
    ]
    assert window / work_done(ends, window, product_ns) == pytest.approx(slowdown, rel=1e-6)


# --- the record ------------------------------------------------------------------------------------------------------

CELL = {
    "kind": "measurement", "run_id": "r", "collective": "all_reduce", "group": "inter", "group_ranks": [2, 0],
    "nranks": 2, "nnodes": 2, "dtype": "float32", "redop": "sum", "root": None, "in_place": True, "pass": 1,
    "size_bytes": 4096, "count": 1024, "timing": "isolated", "concurrent": True, "time_us": 7.0, "samples_us": [7.0],
}  # fmt: skip


def readings(*rounds, product=1, loop=8):
    """rounds: (collective alone, together, window, work), in µs, and whether the loop outlasted the collective."""
    of_rounds = [(*(value * US for value in times), int(outlasted)) for *times, outlasted in rounds]
    return OverlapTimes(product, loop, of_rounds).readings()


def test_a_record_by_hand():
    of_rank_0 = readings((10, 30, 20, 10, True), (20, 40, 30, 10, True), (30, 50, 30, 20, True))
    of_rank_1 = readings((9999, 9999, 9999, 1, False), *[(0, 0, 0, 0, False)] * 2)  # of another group
    of_rank_2 = readings((30, 20, 40, 39, True), (10, 44, 40, 36, False), (20, 48, 40, 37, True))
    record = overlap_record(CELL, (2, 0), [of_rank_0, of_rank_1, of_rank_2])
    assert record == {
        **{name: value for name, value in CELL.items() if name not in ("timing", "time_us", "samples_us")},
        "kind": "overlap",
        "iterations": 3,
        "comm_alone_us": 30.0,  # last exits 30, 20, 30
        "comm_with_compute_us": 44.0,  # 30, 44, 50
        "comm_slowdown": pytest.approx(44 / 30),
        "comm_slowdown_interval": None,
        "compute_alone_us": pytest.approx(15.0),
        "compute_with_comm_us": 30.0,  # of rank 0, which lost 10, 20, 10; rank 2 lost 1, 4, 3
        "compute_slowdown": pytest.approx(2.0),  # 2, 3, 1.5
        "compute_slowdown_interval": None,
        "compute_rank": 0,
        "covered": pytest.approx(2 / 3),  # rank 2's second loop was too short
        "product": "128x128x128 float32",
        "products": 8,
    }


def test_intervals_hold_their_factors_and_widen_with_the_noise():
    def record_with(noise):
        rounds = [(50 + noise * (i % 5), 75, 60, 40 - noise * (i % 7), True) for i in range(30)]
        return overlap_record(CELL, (0,), [readings(*rounds)])

    quiet, noisy = record_with(0), record_with(3)
    for record in (quiet, noisy):
        for name in ("comm_slowdown", "compute_slowdown"):
            low, high = record[f"{name}_interval"]
            assert low <= record[name] <= high
    assert quiet["comm_slowdown_interval"] == [pytest.approx(1.5)] * 2
    assert quiet["compute_slowdown_interval"] == [pytest.approx(1.5)] * 2
    for name in ("comm_slowdown", "compute_slowdown"):
        low, high = noisy[f"{name}_interval"]
        assert low < high


def test_a_rank_that_no_collective_kept_busy_does_not_speak_for_the_others():
    # A broadcast's root is done at once: in the 1 µs of that it did little, whatever the reason.
    root = readings(*[(5, 6, 1, 0.1, True)] * 6)
    other = readings(*[(50, 60, 60, 40, True)] * 6)
    record = overlap_record(CELL, (0, 1), [root, other])
    assert record["compute_rank"] == 1
    assert record["compute_slowdown"] == pytest.approx(1.5)


def test_where_nothing_overlapped_there_is_no_factor_and_the_file_can_hold_that():
    record = overlap_record(CELL, (0,), [readings(*[(5, 6, -1, -0.5, True)] * 6)])
    names = ("compute_alone_us", "compute_with_comm_us", "compute_slowdown", "compute_slowdown_interval")
    assert [record[name] for name in names] == [None] * 4
    assert record["comm_slowdown"] == pytest.approx(1.2)
    json.dumps(record, allow_nan=False)


# --- the rounds, in a world whose factors are known ------------------------------------------------------------------


ENTER = 30 * US  # what a call takes to issue a collective


def product_ns(side):
    return side**3 / 50  # 64: 5 µs, 512: 2.7 ms


class World:
    """One rank on a machine where products and a collective slow each other by given factors; time in ns.

    It is its own clock, device, control and deadline. `missed`: the samples (counted from 0) that some rank was late
    for; `drift`: by what part everything gets slower from one deadline to the next.
    """

    def __init__(self, comm_ns, comm_slowdown=1.0, slowdown=1.0, missed=(), drift=0.0):
        self.now, self.comm_ns = 0.0, comm_ns
        self.comm_slowdown, self.slowdown, self.missed, self.drift = comm_slowdown, slowdown, missed, drift
        self.comm_left, self.comm_end = 0.0, 0.0
        self.waits, self.measured_ns, self.threads, self.collecting = 0, [], set(), set()
        self.previous_void = False
        self.torch_device = torch.device("cpu")
        self.control = self.deadline = self.device = self

    def clock(self):
        return int(self.now)

    mark = clock

    def synchronize(self):
        pass

    def between_marks_ns(self, marks):
        return [later - earlier for earlier, later in pairwise(marks)]

    def maximum(self, values):
        return values

    def wait(self):
        self.previous_void = self.waits - 1 in self.missed
        self.waits += 1
        self.now += 200 * US
        return self.clock()

    def measured(self, elapsed_ns):
        self.measured_ns.append(elapsed_ns)

    def speed(self):
        return 1 + self.drift * self.waits

    def start(self, issue):
        issue(True)
        self.now += ENTER
        self.comm_left = self.comm_ns * self.speed()
        return self.ended

    def ended(self):
        if self.comm_left:
            self.now += self.comm_left
            self.comm_left, self.comm_end = 0.0, self.now
        return int(self.comm_end)

    def multiply(self, left, right, out):
        self.threads.add(torch.get_num_threads())
        self.collecting.add(gc.isenabled())
        todo = product_ns(left.shape[0]) * self.speed()
        if self.comm_left:
            under = min(self.comm_left * self.comm_slowdown, todo * self.slowdown)
            self.now += under
            todo -= under / self.slowdown
            self.comm_left -= under / self.comm_slowdown
            if self.comm_left < 1e-6:
                self.comm_left, self.comm_end = 0.0, self.now
        self.now += todo


@pytest.fixture
def measured_in(monkeypatch):
    """measured_in(world, ...) -> (OverlapTimes, the record of this rank alone)."""

    def measure(world, iterations=6, budget_s=60.0, issue=lambda async_op: None):
        monkeypatch.setattr(overlap, "now_ns", world.clock)
        monkeypatch.setattr(overlap.torch, "mm", world.multiply)
        times = measure_overlap(issue, world, iterations, budget_s)
        return times, overlap_record(CELL, (0,), [times.readings()]) if issue else None

    return measure


@pytest.mark.parametrize("comm_ns", [20 * US, 300 * US, 4 * MS, 80 * MS])
@pytest.mark.parametrize(("comm_slowdown", "slowdown"), [(1.0, 1.0), (1.3, 1.6), (1.0, 3.0), (2.5, 1.0)])
def test_the_known_factors_are_found(measured_in, comm_ns, comm_slowdown, slowdown):
    times, record = measured_in(World(comm_ns, comm_slowdown, slowdown))
    assert len(times.rounds) == 6
    assert record["comm_alone_us"] == pytest.approx((ENTER + comm_ns) / US, rel=1e-3)
    assert record["comm_slowdown"] == pytest.approx((ENTER + comm_slowdown * comm_ns) / (ENTER + comm_ns), rel=1e-3)
    assert record["compute_with_comm_us"] == pytest.approx(comm_slowdown * comm_ns / US, rel=1e-3)
    assert record["compute_slowdown"] == pytest.approx(slowdown, rel=1e-2)
    assert record["covered"] == 1.0


@pytest.mark.parametrize(
    ("comm_ns", "side"), [(8 * US, 64), (200 * US, 128), (500 * US, 128), (2 * MS, 256), (50 * MS, 512)]
)
def test_products_are_small_enough_for_the_collective(measured_in, comm_ns, side):
    _, record = measured_in(World(comm_ns))
    assert record["product"] == f"{side}x{side}x{side} float32"
    assert 1.9 * comm_ns < record["products"] * product_ns(side) < 4 * (ENTER + comm_ns)


def test_a_collective_slowed_sixfold_gets_a_loop_that_outlasts_it(measured_in):
    _, record = measured_in(World(4 * MS, comm_slowdown=6.0, slowdown=1.2))
    assert record["covered"] == 1.0
    assert record["compute_with_comm_us"] == pytest.approx(6 * 4000, rel=1e-3)
    assert record["comm_slowdown"] == pytest.approx(6.0, rel=0.05)


def test_a_collective_that_no_loop_outlasts_is_told(measured_in):
    _, record = measured_in(World(4 * MS, comm_slowdown=1000.0, slowdown=1.2))
    assert record["covered"] == 0.0
    assert record["compute_slowdown"] == pytest.approx(1.2, rel=1e-3)  # which was under it throughout


def test_drift_cancels(measured_in):
    _, record = measured_in(World(4 * MS, comm_slowdown=1.3, slowdown=1.6, drift=0.05), iterations=6)
    assert record["comm_slowdown"] == pytest.approx(1.3, rel=0.03)
    assert record["compute_slowdown"] == pytest.approx(1.6, rel=0.03)


def test_the_deadline_learns_how_long_each_sample_took(measured_in):
    world = World(1 * MS)
    _, record = measured_in(world)
    assert len(world.measured_ns) == world.waits - 6  # one wait a round only tells of the last sample
    assert min(world.measured_ns) == ENTER + 1 * MS
    assert max(world.measured_ns) == pytest.approx(record["products"] * product_ns(128), rel=1e-3)


def test_a_round_with_a_late_rank_is_taken_again_and_that_has_an_end(measured_in):
    punctual, late, never = World(1 * MS), World(1 * MS, missed={20}), World(1 * MS, missed=range(10_000))
    assert len(measured_in(punctual)[0].rounds) == 6
    assert len(measured_in(late)[0].rounds) == 6
    assert late.waits == punctual.waits + 4  # three samples, and the wait that tells of the last
    assert len(measured_in(never)[0].rounds) == 6
    assert never.waits == punctual.waits + 6 * 4
    between_rounds = World(1 * MS, missed={punctual.waits - 5})  # no sample was taken then
    assert len(measured_in(between_rounds)[0].rounds) == 6
    assert between_rounds.waits == punctual.waits


@pytest.mark.parametrize("missed", [(), range(10_000)])
def test_without_a_budget_one_round_is_measured(measured_in, missed):
    times, record = measured_in(World(1 * MS, missed=missed), iterations=100, budget_s=0.0)
    assert len(times.rounds) == record["iterations"] == 1


def test_a_rank_that_only_keeps_time_gives_as_many_readings(measured_in):
    idle, _ = measured_in(World(1 * MS), issue=None)
    busy, _ = measured_in(World(1 * MS))
    assert len(idle.readings()) == len(busy.readings())
    assert idle.rounds == [(0,) * 5] * 6


def test_one_thread_multiplies_and_no_garbage_is_collected_meanwhile(measured_in):
    threads, collecting = torch.get_num_threads(), gc.isenabled()
    world = World(1 * MS)
    try:
        torch.set_num_threads(2)
        gc.enable()
        measured_in(world)
        assert (torch.get_num_threads(), gc.isenabled()) == (2, True)
    finally:
        torch.set_num_threads(threads)
        gc.enable() if collecting else gc.disable()
    assert world.threads == {1} and world.collecting == {False}


# --- where a CPU's collective ends -----------------------------------------------------------------------------------


class Work:
    """Ends by itself 20 ms after it was made."""

    def __init__(self):
        self.ended_ns = 0
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        time.sleep(0.02)
        self.ended_ns = time.perf_counter_ns()

    def wait(self):
        self.thread.join()


class WorkThatCalls(Work):
    def __init__(self):
        self.future = torch.futures.Future()
        super().__init__()

    def run(self):
        super().run()
        self.future.set_result(None)

    def get_future(self):
        return self.future


class WorkThatRefuses(Work):
    def get_future(self):
        raise RuntimeError("Work::getFuture not implemented.")


@pytest.mark.parametrize("work", [Work, WorkThatRefuses, WorkThatCalls])
def test_the_end_of_a_collective_is_its_own_whatever_the_caller_did_meanwhile(work):
    begun = []

    def issue(async_op):
        assert async_op
        begun.append(work())
        return begun[0]

    ended = Cpu(0, 1).start(issue)
    time.sleep(0.2)
    asked = time.perf_counter_ns()
    assert begun[0].ended_ns <= ended() < asked


def test_a_collective_that_has_ended_when_its_call_returns_ended_then():
    before = time.perf_counter_ns()
    ended = Cpu(0, 1).start(lambda async_op: None)
    after = time.perf_counter_ns()
    assert before <= ended() <= after


@pytest.mark.parametrize("with_future", [True, False])
def test_a_collective_that_fails_says_so_when_its_end_is_asked_for(with_future):
    def fail():
        raise RuntimeError("Connection closed by peer")

    work = SimpleNamespace(wait=fail)
    if with_future:
        work.get_future = torch.futures.Future
    with pytest.raises(RuntimeError, match="closed by peer"):
        Cpu(0, 1).start(lambda async_op: work)()


# --- a real job ------------------------------------------------------------------------------------------------------

RANK = """
import json, os, sys
import torch, torch.distributed as dist
from collbench.measure.job import join
from collbench.measure.overlap import measure_overlap, overlap_record

job = join(sys.argv[1], 60.0)
make = lambda ranks: dist.new_group(list(ranks), backend=job.device.backend)
everyone = tuple(range(job.world_size))
world, first = make(everyone), make([0])
whole = torch.zeros(4096 * job.world_size, device=job.device.torch_device)
share = torch.zeros(4096, device=job.device.torch_device)
cases = {
    "all_reduce": (everyone, lambda async_op: dist.all_reduce(whole, group=world, async_op=async_op)),
    "reduce_scatter_tensor": (
        everyone, lambda async_op: dist.reduce_scatter_tensor(share, whole, group=world, async_op=async_op)
    ),
    "of one rank": ((0,), lambda async_op: dist.all_reduce(whole, group=first, async_op=async_op)),
}
for name, (ranks, issue) in cases.items():
    mine = issue if job.rank in ranks else None
    for _ in range(2 if mine else 0):
        work = mine(True)
        work.wait()
    job.device.synchronize()
    job.control.maximum([0])
    times = measure_overlap(mine, job, 6, 20.0)
    readings = job.control.to_rank0(times.readings())
    if readings is not None:
        print(json.dumps(overlap_record({"run_id": "r", "collective": name}, ranks, readings), allow_nan=False))
sys.stdout.flush()
job.control.maximum([0])
os._exit(0)
"""


def records_of_a_job(backend, nranks):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = []
    for rank in range(nranks):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        shared = {
            "WORLD_SIZE": str(nranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "PYTHONWARNINGS": "ignore",
        }
        command = [sys.executable, "-c", RANK, backend]
        environment = clean_environment(**own, **shared)
        ranks.append(
            subprocess.Popen(
                command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    try:
        outputs = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * nranks, [error for _, error in outputs]
    return [json.loads(line) for line in outputs[0][0].splitlines()]


def check_record(record):
    assert record["kind"] == "overlap" and record["run_id"] == "r"
    assert 1 <= record["iterations"] <= 6
    for one, other in (("comm", "compute"), ("compute", "comm")):
        alone, together, slowdown = (
            record[name] for name in (f"{one}_alone_us", f"{one}_with_{other}_us", f"{one}_slowdown")
        )
        if one == "comm" or slowdown is not None:
            assert 0 < alone < math.inf and 0 < together < math.inf
            assert slowdown == pytest.approx(together / alone)
    assert record["products"] >= 1 and 0 <= record["covered"] <= 1


@pytest.mark.workers
def test_two_ranks_on_gloo_find_both_factors():
    both, scattered, of_one = records_of_a_job("gloo", 2)
    for record in (both, scattered, of_one):
        check_record(record)
        assert record["product"].endswith("float32")
    for record in (both, scattered):  # which go on after the call has returned, beside the products
        assert record["compute_slowdown"] is not None
        assert record["compute_rank"] in (0, 1)
    assert of_one["compute_rank"] == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
def test_one_rank_on_nccl_measures_both_factors():
    for record in records_of_a_job("nccl", 1):
        check_record(record)
        assert record["product"].endswith("float16")
