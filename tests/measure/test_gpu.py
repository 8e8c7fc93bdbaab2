"""The NCCL path, on one GPU: plumbing, since one GPU cannot communicate with itself."""

from __future__ import annotations

import pytest

from collbench.measure.environment import gpus_without_torch
from collbench.results import load_results

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(gpus_without_torch() == 0, reason="no GPU on this machine"),
]


def test_one_rank_of_nccl_measures_every_collective(collbench, tmp_path):
    path = tmp_path / "r.jsonl"
    done = collbench("run", "--backend", "nccl", "--nproc", "1", "-b", "8", "-e", "1M", "-f", "8", "-o", path)
    assert done.returncode == 0, done.stderr
    results = load_results(path)
    assert results.runs[0]["backend"] == "nccl"
    assert {record["wrong"] for record in results.measurements} == {0}
    assert {record["busbw_GBps"] for record in results.measurements} == {0.0}
