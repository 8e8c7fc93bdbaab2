"""`collbench quickstart`, whole, on two gloo ranks."""

from __future__ import annotations

import json
import re

import pytest

from collbench.model.store import load_model
from collbench.results import load_results

pytestmark = pytest.mark.workers


@pytest.fixture(scope="module")
def quickstart(collbench, tmp_path_factory):
    folder = tmp_path_factory.mktemp("loop") / "out"
    done = collbench("quickstart", "--backend", "gloo", "-o", folder, timeout=300)
    assert done.returncode == 0, done.stderr
    return done, folder


def test_it_leaves_results_model_prediction_and_page(quickstart):
    _, folder = quickstart
    results = load_results(folder / "results.jsonl")
    assert {record["collective"] for record in results.measurements} == {
        "broadcast", "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor",
    }  # fmt: skip
    assert results.ends[-1]["exit_code"] == 0
    assert load_model(folder / "model.json").ranks_per_node == 2
    prediction = json.loads((folder / "prediction.json").read_text())
    assert prediction["strategy"] == "ddp" and prediction["step_ms"] >= prediction["compute_ms"]
    assert "<svg" in (page := (folder / "report.html").read_text()) or "image/svg+xml" in page


def test_it_prints_tables_fit_predictions_and_the_comparison(quickstart):
    out = quickstart[0].stdout
    assert out.count("# Collective test starting") == 4
    assert "α us" in out and "ddp on 1 x 2 ranks" in out and "fsdp on 1 x 2 ranks" in out
    assert re.search(r"predicted ms\s+measured ms", out)


def test_progress_is_a_line_a_step_in_a_log(quickstart):
    err = quickstart[0].stderr
    assert [f"[{step}/5]" in err for step in range(1, 6)] == [True] * 5
    assert "\r" not in err


def test_its_last_three_lines_are_commands_that_run(quickstart, collbench):
    commands = [line.split("collbench ", 1)[1].split() for line in quickstart[0].stdout.splitlines()[-3:]]
    assert [command[0] for command in commands] == ["estimate", "predict", "validate"]
    for command in commands[:2]:
        done = collbench(*command)
        assert done.returncode == 0, done.stderr


def test_a_folder_that_holds_something_is_refused(quickstart, collbench):
    done = collbench("quickstart", "-o", quickstart[1])
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
