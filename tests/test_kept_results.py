"""What lies under results/ can be made again from its measurements."""

from __future__ import annotations

import importlib.util
import json
from importlib.metadata import version

import pytest
from conftest import ROOT

from collbench.model.fit import fit_results
from collbench.model.store import load_model
from collbench.results import load_results

QUICKSTART = ROOT / "results" / "quickstart"


def test_the_quickstarts_model_is_the_fit_of_its_results():
    kept, again = load_model(QUICKSTART / "model.json"), fit_results(QUICKSTART / "results.jsonl")
    assert len(kept.fits) == len(again.fits) == 12
    for old, new in zip(kept.fits, again.fits, strict=True):
        assert old.curve == new.curve
        assert (old.alpha_us, old.busbw_GBps) == pytest.approx((new.alpha_us, new.busbw_GBps), rel=1e-6)


def test_its_sweep_ended_well_with_right_data():
    results = load_results(QUICKSTART / "results.jsonl")
    assert results.ends[-1]["exit_code"] == 0 and all(record["wrong"] == 0 for record in results.measurements)


def test_readmes_final_table_is_the_kept_validation():
    document = json.loads((QUICKSTART / "validation.json").read_text())
    line = next(line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("step  "))
    assert line.split()[1:3] == [f"{document[side]['step_ms']:.2f}" for side in ("predicted", "measured")]


def test_readmes_figure_is_drawn_from_them():
    pins = dict(line.split("==") for line in (ROOT / "tests/constraints.txt").read_text().splitlines() if "==" in line)
    if version("matplotlib") != pins["matplotlib"]:
        pytest.skip(f"the bytes are those of matplotlib {pins['matplotlib']}")
    spec = importlib.util.spec_from_file_location("fit_figure", ROOT / "analysis" / "fit_figure.py")
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    assert study.draw_fit(QUICKSTART) == (QUICKSTART / "fit.svg").read_bytes()
