"""`collbench report` as it is typed."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
from report_data import Page, measurement, prediction, results_file, sweep, validation

from collbench.cli import main
from collbench.model.fit import fit_results


@pytest.fixture
def results(tmp_path):
    return results_file(tmp_path / "r.jsonl", sweep(collective="all_reduce"))


def _write(path: Path, document) -> str:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)


def test_everything_on_one_page(tmp_path, results, capsys):
    output = tmp_path / "out" / "page.html"
    fit_results([results]).save(tmp_path / "m.json")
    argv = ["report", str(results), "-o", str(output), "--model", str(tmp_path / "m.json"), "--prediction"]
    argv += [_write(tmp_path / "p.json", prediction()), _write(tmp_path / "q.json", [prediction(strategy="fsdp")])]
    argv += ["--validation", _write(tmp_path / "v.json", validation()), "--title", "Machine <A>"]
    assert main(argv) == 0
    assert capsys.readouterr().out == f"report: {output}\n"
    text = Page(output).text
    for word in ("Machine <A>", "tiny ddp", "tiny fsdp", "Predicted against measured", "isolated 50.0"):
        assert word in text


def test_without_a_model_the_results_are_fitted(tmp_path, results, capsys):
    output = tmp_path / "page.html"
    assert main(["report", str(results), "-o", str(output), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"page": str(output), "fits": 2, "warnings": []}
    assert "isolated 50.0 [" in Page(output).text


def test_results_that_cannot_be_fitted_still_make_a_page(tmp_path, capsys):
    results = results_file(tmp_path / "r.jsonl", [measurement(), measurement(timing="pipelined")])
    output = tmp_path / "page.html"
    assert main(["report", str(results), "-o", str(output)]) == 0
    assert "no fit: " in capsys.readouterr().err
    text = Page(output).text
    assert "all 2 usable measurements are of one size" in text and "There is no fit" in text


@pytest.mark.filterwarnings("default")  # what a user's process does
def test_a_torn_line_is_told_of_once(tmp_path, results, capsys):
    with results.open("a") as file:
        file.write('{"kind":"measu')
    assert main(["report", str(results), "-o", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().err.count("line is torn") == 1
    assert "the last line is torn" in Page(tmp_path / "page.html").text


@pytest.mark.parametrize(
    ("flag", "document", "complaint"),
    [
        ("--prediction", "", ":1: not JSON"),
        ("--prediction", {"workload": "w"}, "strategy is None, not text: expected a prediction"),
        ("--prediction", [prediction(), 3], "[1]: is not an object"),
        ("--prediction", prediction(step_ms="fast"), "step_ms is 'fast', not a number"),
        ("--prediction", prediction(timeline=None), "timeline is not a list"),
        (
            "--prediction",
            prediction(timeline=[{"stream": "compute", "name": "a", "start_ms": 0}]),
            "timeline[0].end_ms",
        ),
        (
            "--prediction",
            prediction(timeline=[{"stream": "disk", "name": "a", "start_ms": 0, "end_ms": 1}]),
            "stream is 'disk': expected compute or comm",
        ),
        ("--validation", [], "is not an object: expected a validation as 'collbench validate --json' prints it"),
        ("--validation", validation() | {"measured": {}}, "measured.step_ms is None"),
        ("--validation", {"measured": {}}, "predicted: is not an object"),
        ("--validation", validation() | {"error_pct": {"step_ms": "x"}}, "error_pct.step_ms is 'x'"),
        ("--model", "{}", "schema"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path, results, capsys, flag, document, complaint):
    path = _write(tmp_path / "bad.json", document)
    output = tmp_path / "page.html"
    assert main(["report", str(results), "-o", str(output), flag, path]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and path in err and complaint in err
    assert not output.exists()


def test_missing_files_and_overwriting_an_input(tmp_path, results, capsys):
    assert main(["report", str(tmp_path / "none.jsonl"), "-o", str(tmp_path / "page.html")]) == 2
    assert (
        main(["report", str(results), "-o", str(tmp_path / "p.html"), "--prediction", str(tmp_path / "no.json")]) == 2
    )
    before = results.read_bytes()
    assert main(["report", str(results), "-o", str(results)]) == 2
    assert results.read_bytes() == before
    assert capsys.readouterr().err.count("\n") == 3


def test_the_readme_figure_is_the_same_every_time(tmp_path, results, monkeypatch, capsys):
    folder = tmp_path / "quickstart"
    folder.mkdir()
    results.rename(folder / "results.jsonl")
    fit_results([folder / "results.jsonl"]).save(folder / "model.json")
    study = Path(__file__).parents[2] / "analysis" / "fit_figure.py"
    for name in ("fit.svg", "again.svg"):
        monkeypatch.setattr(
            sys, "argv", [str(study), str(folder), *([] if name == "fit.svg" else ["-o", str(folder / name)])]
        )
        runpy.run_path(str(study), run_name="__main__")
    assert (folder / "fit.svg").read_bytes() == (folder / "again.svg").read_bytes()
    assert b"all_reduce" in (folder / "fit.svg").read_bytes()
    assert capsys.readouterr().out.splitlines() == [str(folder / "fit.svg"), str(folder / "again.svg")]


def test_a_collective_of_another_version_is_left_out_with_a_note_and_the_rest_is_shown(tmp_path, results, capsys):
    lines = results.read_text().splitlines()
    foreign = next(line for line in lines if '"measurement"' in line).replace("all_reduce", "all_to_one_half")
    results.write_text("\n".join([*lines, foreign]) + "\n")
    assert main(["report", str(results), "-o", str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text()
    assert "not a collective of this version (all_to_one_half)" in page and "all_reduce" in page
