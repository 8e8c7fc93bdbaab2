"""torch's own work around collectives, as measured: the arithmetic, without ranks; the notes that go with it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from collbench.cli.validate import _workload
from collbench.measure.clock import now_ns
from collbench.measure.device import Cpu
from collbench.validate import local
from collbench.validate.compare import as_text
from collbench.validate.step import Knobs, Reading
from collbench.validate.worker import _other_backend

FSDP, DDP = Knobs(strategy="fsdp"), Knobs(strategy="ddp")


def _job(device="cpu", others=0):
    """Another rank takes `others` ns longer in everything."""
    control = SimpleNamespace(maximum=lambda values: [value + others for value in values])
    return SimpleNamespace(
        rank=0, device=SimpleNamespace(torch_device=torch.device(device)), control=control,
        deadline=SimpleNamespace(wait=now_ns),
    )  # fmt: skip


def test_the_host_has_what_is_left_beside_the_copies(monkeypatch):
    monkeypatch.setattr(local, "_copies_ms", lambda job, moved_bytes: 4.0)
    monkeypatch.setattr(local, "_silent_ms", lambda *_: 10.0)
    found = local.measure_local(_job(), None, FSDP, [6e6, 2e6], 20, 1.0)
    assert found.copy_GBps == pytest.approx(2.0) and found.host_us == pytest.approx(300)
    monkeypatch.setattr(local, "_silent_ms", lambda *_: 3.0)
    assert local.measure_local(_job(), None, FSDP, [8e6], 20, 1.0).host_us == 0
    assert local.measure_local(_job("cuda"), None, FSDP, [8e6], 20, 1.0).host_us == 0
    nothing = local.measure_local(_job(), None, FSDP, [], 0, 1.0)
    assert (nothing.copy_GBps, nothing.host_us) == (None, 0.0)


@pytest.mark.parametrize(("knobs", "expected_ms"), [(FSDP, 4.0), (DDP, 2.0)])
def test_where_collectives_block_each_waits_for_the_last_rank(knobs, expected_ms, monkeypatch):
    """Two collectives, so three ways from one to the next: on each another rank takes 1 ms longer."""
    start_ns = 10**9
    real = SimpleNamespace(start_ns=start_ns, run=lambda: Reading(12.0, 0.0, 0.0))
    alone = SimpleNamespace(run=lambda syncs: Reading(11.0, 0.0, 0.0))
    monkeypatch.setattr(local, "build", lambda *_, sends: (real, lambda: alone, None))
    monkeypatch.setattr(local, "slowest", lambda job, reading: reading)
    monkeypatch.setattr(local, "entered_ns", lambda: [start_ns + 3_000_000, start_ns + 7_000_000])
    assert local._silent_ms(_job(others=1_000_000), None, knobs, 1.0) == pytest.approx(expected_ms)


def test_the_copies_of_a_step_are_copied_and_the_slowest_rank_counts():
    job = _job(others=5_000_000)
    job.device = Cpu(0, 1)
    job.device.cache_bytes = 0
    assert 5.0 < local._copies_ms(job, [8, 80_000, 4_000]) < 1000


def test_a_model_of_another_backend_is_told(monkeypatch):
    job = SimpleNamespace(device=SimpleNamespace(backend="gloo"))
    (note,) = _other_backend(SimpleNamespace(backends=("nccl",)), job)
    assert "curves are of nccl" in note and "run --backend gloo" in note
    assert not _other_backend(SimpleNamespace(backends=("gloo",)), job)
    assert not _other_backend(SimpleNamespace(backends=()), job), "link figures are of none"


CAPTURED = """
[[layers]]
name = "a"
tensors = [8]
[captured]
strategy = "fsdp"
nranks = 2
source = "recorded"
plan = "as issued"
calls = [["all_gather_into_tensor", "a", 32, "float32", 2], ["forward", "a"]]
"""


def test_a_captured_order_is_left_out_and_told(tmp_path):
    path = tmp_path / "w.toml"
    path.write_text(CAPTURED)
    workload, (note,) = _workload(str(path))
    assert workload.captured is None and "captured" in note and "layers in a row" in note
    path.write_text(CAPTURED.partition("[captured]")[0])
    assert _workload(str(path))[1] == []


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ({"copy_GBps": 12.34, "host_us": 210.4}, "12.34 GB/s of copies and 210 us of the host around each collective"),
        ({"copy_GBps": 1840.0, "host_us": 0.0}, "1840 GB/s of copies, as measured here"),
    ],
)
def test_the_table_tells_what_was_measured(measured, words):
    times = dict.fromkeys(("step_ms", "compute_ms", "exposed_comm_ms", "exposed_tail_ms"), 1.0)
    document = {
        "workload": "w", "strategy": "fsdp", "steps": 2, "nodes": 1, "ranks_per_node": 2, "compute": "sleep",
        "predicted": times, "measured": times, "error_pct": dict.fromkeys(times, 0.0),
        "spread_ms": {name: [1.0, 1.0] for name in times}, "notes": [], **measured,
    }  # fmt: skip
    assert words in as_text(document)
    assert "copies" not in as_text({**document, "copy_GBps": None})
