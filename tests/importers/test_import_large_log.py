"""A large log with one table in it: a few seconds, and not much more memory than the log."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from conftest import clean_environment
from nccl_texts import log

_LINE = "node01:1905512:1905512 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read and more of the same\n"
_BAR = "Epoch 3:  45%|\u2588\u2588\u2588\u2588     | 450/1000 [00:45<00:55, 10.0it/s, loss=0.123]\r"
_MEASURED = """
import json, re, sys, time
from collbench.cli import main
code = main(["import", sys.argv[1], "-o", sys.argv[2]])
status = open("/proc/self/status").read()  # ru_maxrss would count the process that started this one
print(json.dumps([code, time.process_time(), int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) / 1024]))
"""


def _import(tmp_path, megabytes, line=_LINE):
    """(exit code, seconds of the process's own, MiB) of the command on a log of that size."""
    half = line * (megabytes * 500_000 // len(line.encode())) + "\n"
    path = tmp_path / "large.log"
    with path.open("w", encoding="utf-8") as file:
        file.writelines([half, log(), half])
    out = tmp_path / "results.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, path, out],
        capture_output=True, text=True, check=True, env=clean_environment(),
    )  # fmt: skip
    path.unlink()
    assert len(out.read_text().splitlines()) == 12
    return json.loads(done.stdout)


def test_a_log_of_nccl_s_lines(tmp_path):
    code, seconds, megabytes = _import(tmp_path, 20)
    assert code == 0
    assert seconds < 5
    assert megabytes < 200


@pytest.mark.study
def test_a_log_of_a_hundred_megabytes(tmp_path):
    code, seconds, megabytes = _import(tmp_path, 100)
    assert code == 0
    assert seconds < 5
    assert megabytes < 300


@pytest.mark.parametrize(
    ("size_MB", "most_seconds", "most_megabytes"), [(10, 5, 150), pytest.param(50, 20, 200, marks=pytest.mark.study)]
)
@pytest.mark.parametrize("part", [_BAR, "x\r"], ids=["bar", "mark"])
def test_lines_that_were_overwritten(tmp_path, part, size_MB, most_seconds, most_megabytes):
    """A bar of progress, and a mark that turns: each half is one line."""
    code, seconds, megabytes = _import(tmp_path, size_MB, part)
    assert code == 0
    assert seconds < most_seconds
    assert megabytes < most_megabytes
