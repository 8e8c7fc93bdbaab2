"""The NCCL path, on one GPU: plumbing, since one GPU cannot communicate with itself."""

from __future__ import annotations

import pytest

from collbench.collectives import COLLECTIVES
from collbench.measure.environment import gpus_without_torch
from collbench.results import load_results

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(gpus_without_torch() == 0, reason="no GPU on this machine"),
]


def run(collbench, path, *arguments):
    done = collbench("run", "--backend", "nccl", "--nproc", "1", *arguments, "-o", path)
    assert done.returncode == 0, done.stderr
    return load_results(path)


def test_one_rank_of_nccl_measures_every_collective(collbench, tmp_path):
    path = tmp_path / "r.jsonl"
    results = run(collbench, path, "--collective", "all", "-d", "float,bfloat16", "-b", "8", "-e", "1M", "-f", "8")
    assert {record["collective"] for record in results.measurements} == set(COLLECTIVES)
    assert results.runs[0]["backend"] == "nccl"
    assert {record["wrong"] for record in results.measurements} == {0}
    assert {record["busbw_GBps"] for record in results.measurements} == {0.0}


@pytest.mark.parametrize("way", [["-m", "4"], ["-G", "2"], ["-z", "1", "-I", "1"], ["--with-compute"]])
def test_ways_to_time_on_a_gpu(collbench, tmp_path, way):
    arguments = ["--collective", "all_reduce,all_gather", "-b", "64K", "-e", "1M", "-f", "16", "-n", "5"]
    results = run(collbench, tmp_path / "r.jsonl", *arguments, *way)
    assert {record["wrong"] for record in results.measurements} == {0} and results.skips == []
    assert bool(results.overlaps) is (way == ["--with-compute"])
