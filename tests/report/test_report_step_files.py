"""`collbench predict --trace --gantt` as it is typed."""

from __future__ import annotations

import json

import pytest

from collbench.cli import main

WORKLOAD = """
[[layers]]
repeat = 2
tensors = [[256, 256]]
forward_ms = 1.0
backward_ms = 2.0
"""


@pytest.fixture
def argv(tmp_path):
    (tmp_path / "w.toml").write_text(WORKLOAD)
    return ["predict", str(tmp_path / "w.toml"), "--bandwidth", "1", "--ranks-per-node", "2"]


def test_both_files_are_written_and_named(argv, tmp_path, capsys):
    trace, gantt = tmp_path / "new" / "step.json", tmp_path / "step.svg"
    assert main([*argv, "--trace", str(trace), "--gantt", str(gantt)]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [f"trace: {trace}", f"gantt: {gantt}"]
    assert json.loads(trace.read_text())["traceEvents"]
    assert b"backward" in gantt.read_bytes()


def test_json_stays_one_document(argv, tmp_path, capsys):
    assert main([*argv, "--json", "--trace", str(tmp_path / "step.json")]) == 0
    assert json.loads(capsys.readouterr().out)["strategy"] == "ddp"
    assert (tmp_path / "step.json").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--trace", "w.toml"], "is one of the files to read"),
        (["--gantt", "w.toml"], "is one of the files to read"),
        (["--gantt", "step.pdf"], "PNG or SVG"),
        (["--trace", "w.toml/step.json"], "cannot be written"),
    ],
)
def test_a_file_that_cannot_be_is_one_line(argv, flags, words, tmp_path, capsys):
    assert main([*argv, flags[0], str(tmp_path / flags[1])]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and words in captured.err and flags[1] in captured.err
    assert (tmp_path / "w.toml").read_text() == WORKLOAD and not captured.out
