"""The parts of a real step that need no ranks: its computation, its net, its memory, its options."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from collbench.cli import main
from collbench.predict.workload import Workload
from collbench.validate import compute, memory, worker
from collbench.validate.compare import QUANTITIES, as_text
from collbench.validate.compute import Matmul, Wait, compute_on
from collbench.validate.memory import CudaPeak, Peak, peak_memory_on
from collbench.validate.net import Net, twin_of
from collbench.validate.step import WARMUP_STEPS, WARMUP_TURNS, Knobs, Reading

CPU = torch.device("cpu")
LAYERS = {"layers": [{"tensors": [[30, 20], 7], "frozen_tensors": [[8, 8]]}, {"tensors": [[4, 5]]}]}


def _device(kind):
    return SimpleNamespace(torch_device=torch.device(kind), synchronize=lambda: None)


def test_a_cpu_waits_and_has_no_count_of_memory():
    assert isinstance(compute_on(_device("cpu")), Wait)
    assert peak_memory_on(_device("cpu")) is None


class _Clock:
    """A time that only sleeping and the test move; a sleep takes a millisecond too long."""

    def __init__(self, monkeypatch):
        self.now_s = 100.0
        monkeypatch.setattr(compute.time, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(compute.time, "sleep", self.sleep)

    def sleep(self, seconds):
        self.now_s += seconds + 0.001


def _step_ms(clock, wait, *, syncs, between_ms):
    """What a step of layers of 10 ms takes, with so much between each and the one before."""
    begun_s = clock.now_s
    wait.begin(syncs=syncs)
    for ms in between_ms:
        clock.now_s += ms / 1e3
        wait.spend_ms(10.0, clock.now_s)
    return 1e3 * (clock.now_s - begun_s)


def test_what_python_needs_between_layers_and_what_a_wait_oversleeps_is_taken_off_the_next(monkeypatch):
    clock, wait = _Clock(monkeypatch), Wait()
    # Only what was overslept last is left.
    assert _step_ms(clock, wait, syncs=False, between_ms=[0, 2, 3, 2]) == pytest.approx(41)
    # Communication adds 4 and 1 ms: all of it counts, however short.
    assert _step_ms(clock, wait, syncs=True, between_ms=[0, 6, 4, 2]) == pytest.approx(46)
    assert _step_ms(clock, wait, syncs=True, between_ms=[0, 1, 3, 2]) == pytest.approx(41)


def test_how_long_python_needs_is_the_median_of_the_steps_without_communication(monkeypatch):
    clock, wait = _Clock(monkeypatch), Wait()
    for between_ms in (2, 50, 2):
        _step_ms(clock, wait, syncs=False, between_ms=[0, between_ms])
    assert _step_ms(clock, wait, syncs=True, between_ms=[0, 7]) == pytest.approx(26)
    assert _step_ms(_Clock(monkeypatch), Wait(), syncs=True, between_ms=[0, 7]) == pytest.approx(28), "none seen yet"


def test_products_take_the_stated_time_and_what_is_not_whole_is_owed_to_the_next_layer(monkeypatch):
    monkeypatch.setattr(compute, "_SIDE", 8)
    device = SimpleNamespace(torch_device=CPU, synchronize=lambda: None)
    matmul = Matmul(device)
    ran = []
    monkeypatch.setattr(matmul, "_run", ran.append)
    monkeypatch.setattr(matmul, "_one_ms", 0.4)
    matmul.begin(syncs=True)
    for _ in range(10):
        matmul.spend_ms(1.0, 0.0)
    assert sum(ran) == 25 and set(ran) == {2, 3}
    matmul.spend_ms(0.15, 0.0)
    matmul.begin(syncs=True)
    matmul.spend_ms(0.15, 0.0)
    assert ran[-2:] == [0, 0], "a step owes nothing to the next"


def test_the_peak_is_torchs_count_since_the_step_began(monkeypatch):
    asked = []
    fake = SimpleNamespace(
        reset_peak_memory_stats=lambda device: asked.append(device),
        max_memory_allocated=lambda device: 5,
        max_memory_reserved=lambda device: 8,
    )
    monkeypatch.setattr(memory.torch, "cuda", fake)
    counter = peak_memory_on(_device("cuda:1"))
    assert isinstance(counter, CudaPeak)
    counter.begin()
    assert asked == [torch.device("cuda:1")]
    assert counter.peak() == Peak(allocated_bytes=5, reserved_bytes=8)


class _Counter:
    """A device's memory: every step takes less than the one before."""

    def __init__(self):
        self.steps = 0

    def begin(self):
        self.steps += 1

    def peak(self):
        return Peak(allocated_bytes=1000 // self.steps, reserved_bytes=2000 // self.steps)


@pytest.mark.parametrize("counted", [True, False])
def test_memory_is_that_of_the_first_step_and_of_the_last_to_warm_up_before_there_is_a_twin(monkeypatch, counted):
    log = []
    reading = Reading(step_ms=10.0, backward_ms=8.0, gradients_ms=9.0)
    real = SimpleNamespace(run=lambda syncs=True: log.append("real") or reading)

    def make_silent():
        log.append("made")
        return SimpleNamespace(run=lambda syncs: log.append("silent") or Reading(7.0, 6.0, 6.0))

    monkeypatch.setattr(worker, "build", lambda *_: (real, make_silent, Wait()))
    monkeypatch.setattr(worker, "peak_memory_on", lambda device: _Counter() if counted else None)
    control = SimpleNamespace(maximum=lambda values: [value + 1 for value in values])  # another rank's is larger
    job = SimpleNamespace(rank=1, device=None, control=control)
    measured = worker._measure(job, None, Knobs(strategy="fsdp"), 3, 1.0)
    assert log == ["real"] * WARMUP_STEPS + ["made"] + ["real", "silent"] * (WARMUP_TURNS + 3)
    assert set(measured.samples) == set(QUANTITIES)
    assert measured.samples["exposed_comm_ms"] == pytest.approx([3.0] * 3)
    assert measured.samples["exposed_tail_ms"] == pytest.approx([1.0] * 3)
    steady = Peak(allocated_bytes=1000 // WARMUP_STEPS + 1, reserved_bytes=2000 // WARMUP_STEPS + 1)
    first = Peak(allocated_bytes=1001, reserved_bytes=2001)
    assert (measured.first, measured.steady) == ((first, steady) if counted else (None, None))


def test_the_table_tells_the_memory_of_both(capsys):
    times = dict.fromkeys(QUANTITIES, 1.0)
    document = {
        "workload": "w", "strategy": "fsdp", "steps": 2, "nodes": 1, "ranks_per_node": 2, "compute": "matmul",
        "predicted": times, "measured": times, "error_pct": dict.fromkeys(QUANTITIES, 0.0),
        "spread_ms": {name: [1.0, 1.0] for name in QUANTITIES}, "notes": [],
        "memory": {
            "first_step": {"allocated_bytes": 2_000_000_000, "reserved_bytes": 2_500_000_000},
            "steady_state": {"allocated_bytes": 1_000_000_000, "reserved_bytes": 2_500_000_000},
        },
    }  # fmt: skip
    first, steady = as_text(document).splitlines()[-2:]
    assert first.startswith("memory of the first step") and "2 GB allocated, 2.5 GB reserved" in first
    assert steady.startswith("memory of the steady state") and "1 GB allocated" in steady


def test_the_twin_takes_the_memory_of_one_tensor_and_keeps_no_gradient():
    twin = twin_of(Workload.from_dict(LAYERS), torch.float32, CPU, Wait(), lambda: "now")
    assert [tuple(each.shape) for each in twin.parameters()] == [(30, 20), (7,), (8, 8), (4, 5)]
    assert len({each.data_ptr() for each in twin.parameters()}) == 1
    assert next(twin.parameters()).untyped_storage().nbytes() == 4 * 30 * 20
    seen = []
    for each in twin.parameters():
        if each.requires_grad:
            each.register_hook(lambda gradient: seen.append(tuple(gradient.shape)))
    twin(torch.zeros(1)).sum().backward()
    assert sorted(seen) == [(4, 5), (7,), (30, 20)] and twin.backward_ended == "now"
    assert all(each.grad is None for each in twin.parameters())


def test_frozen_tensors_are_there_and_take_no_gradient():
    net = Net(Workload.from_dict(LAYERS), torch.float32, CPU, Wait())
    net(torch.zeros(1)).sum().backward()
    grads = {tuple(each.shape): each.grad is not None for each in net.parameters()}
    assert grads == {(30, 20): True, (7,): True, (8, 8): False, (4, 5): True}


def test_the_help_tells_the_flags_that_the_real_step_takes(capsys):
    assert main(["validate", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--bucket-cap-mb" in out and "--no-grad-sync" in out
    assert not any(flag in out for flag in ("zero1", "--recompute", "--no-prefetch", "--copy-GBps", "--static-graph"))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--first-bucket-mb", "1"], "--first-bucket-mb: the real step has no such option"),
        (["--strategy", "fsdp", "--no-prefetch"], "--no-prefetch: the real step has no such option"),
    ],
)
def test_an_option_that_the_real_step_lacks_is_refused(flags, words, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert main(["validate", str(tmp_path / "w.toml"), "--model", "m.json", *flags]) == 2
    assert words in capsys.readouterr().err
