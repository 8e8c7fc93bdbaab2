"""What a command imports, asked of fresh interpreters."""

from __future__ import annotations

import json
import os
import re
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from sample_records import measurement, run_record, write_lines

ROOT = Path(__file__).parents[1]

WORKLOAD = """\
name = "small"
param_dtype = "float32"
optimizer_bytes = 8

[[layers]]
name = "mlp"
repeat = 2
tensors = [[64, 64], 64]
forward_ms = 1.0
backward_ms = 2.0
"""


def start(*command):
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment |= {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, env=environment, check=False, timeout=120
    )


def imported_by(*arguments, done=0):
    """Top-level packages that `python -m collbench ARGUMENTS` imports."""
    child = start("-X", "importtime", "-m", "collbench", *arguments)
    assert child.returncode == done, child.stderr[-2000:]
    names = re.findall(r"^import time:\s+\d+ \|\s+\d+ \|\s+(\S+)$", child.stderr, re.MULTILINE)
    assert "collbench.cli" in names  # the list is what it should be
    return {name.split(".")[0] for name in names}


@pytest.fixture
def results(tmp_path):
    halves = [
        measurement(
            size_bytes=2**power, count=2**power // 4, time_us=10 + 2**power / 1000, timing=timing, **{"pass": 0}
        )
        for power in range(3, 22)
        for timing in ("pipelined", "isolated")
    ]
    return write_lines(tmp_path / "r.jsonl", run_record(), *halves)


@pytest.fixture
def workload(tmp_path):
    (tmp_path / "w.toml").write_text(WORKLOAD)
    return tmp_path / "w.toml"


HEAVY = {"torch", "scipy", "pandas", "matplotlib"}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["show", "--help"]])
def test_help_imports_nothing_heavy(arguments):
    assert imported_by(*arguments) & (HEAVY | {"numpy"}) == set()


def test_an_unknown_command_imports_nothing_heavy():
    assert imported_by("nothing", done=2) & (HEAVY | {"numpy"}) == set()


def test_show_imports_nothing_heavy(results):
    for layout in ([], ["--nccl-tests"]):
        assert imported_by("show", results, *layout) & HEAVY == set()


def test_a_dry_run_imports_nothing_heavy():
    assert imported_by("run", "--dry-run", "--backend", "gloo") & HEAVY == set()


def test_estimate_imports_neither_torch_nor_scipy_nor_pandas():
    asked = ("estimate", "all_reduce", "--size", "2GB", "--nranks", "8", "--bandwidth", "25GB/s")
    assert imported_by(*asked) & HEAVY == set()


def test_predict_imports_neither_torch_nor_scipy_nor_pandas(workload):
    for strategy in ("ddp", "fsdp"):
        asked = ("predict", workload, "--strategy", strategy, "--bandwidth", "25GB/s", "--nodes", "1")
        assert imported_by(*asked, "--ranks-per-node", "8") & HEAVY == set()


def test_fit_never_imports_torch_and_a_model_file_answers_without_scipy_or_pandas(results, workload, tmp_path):
    model = tmp_path / "model.json"
    imported = imported_by("fit", results, "-o", model)
    assert "torch" not in imported
    assert "pandas" in imported  # as it may: the check sees what is imported
    asked = ("estimate", "all_reduce", "--size", "1M", "--model", model)
    assert imported_by(*asked) & HEAVY == set()
    asked = ("predict", workload, "--strategy", "ddp", "--model", model)
    assert imported_by(*asked) & HEAVY == set()


def test_the_package_itself_imports_nothing_until_a_name_is_used():
    code = """
import json, sys
import collbench
before = sorted(name for name in sys.modules if name.startswith("collbench"))
collbench.InputError
heavy = sorted({"torch", "scipy", "pandas", "matplotlib", "numpy"} & set(sys.modules))
print(json.dumps([before, heavy]))
"""
    child = start("-c", code)
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == [["collbench"], []]


def test_every_public_name_is_there():
    code = """
import collbench
missing = [name for name in collbench.__all__ if not hasattr(collbench, name)]
assert not missing, missing
assert set(collbench.__all__) <= set(dir(collbench))
for name in ("read_results", "fit_results", "load_model", "Model", "Workload", "predict_step"):
    assert name in collbench.__all__, name
try:
    collbench.nothing
except AttributeError as error:
    assert "nothing" in str(error)
else:
    raise AssertionError
"""
    child = start("-c", code)
    assert child.returncode == 0, child.stderr


def cpu_seconds(*command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child = start(*command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert child.returncode == 0, child.stderr
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_costs_under_half_of_importing_numpy_and_pandas():
    costs = [(cpu_seconds("-m", "collbench", "--help"), cpu_seconds("-c", "import numpy, pandas")) for _ in range(3)]
    ours, theirs = (statistics.median(column) for column in zip(*costs, strict=True))
    assert ours < theirs / 2
