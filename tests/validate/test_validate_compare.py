"""Predicted against measured: the arithmetic, the verdict, the refusals. No processes."""

from __future__ import annotations

import pytest

from collbench.errors import InputError
from collbench.validate.compare import as_text, check_strategy, error_pct, parse_tolerance, within

MEASURED = {"step_ms": 200.0, "compute_ms": 160.0, "exposed_comm_ms": 40.0, "exposed_tail_ms": 1.5}


def test_errors_are_signed_and_null_where_measured_is_under_one_per_cent_of_the_step():
    predicted = {"step_ms": 190.0, "compute_ms": 168.0, "exposed_comm_ms": 22.0, "exposed_tail_ms": 3.0}
    expected = {"step_ms": -5.0, "compute_ms": 5.0, "exposed_comm_ms": -45.0, "exposed_tail_ms": None}
    assert error_pct(predicted, MEASURED) == pytest.approx(expected)


@pytest.mark.parametrize(("error", "verdict"), [(9.9, True), (-9.9, True), (10.1, False), (-40.0, False)])
def test_the_step_decides(error, verdict):
    assert within({"error_pct": {"step_ms": error}}, parse_tolerance("10%")) is verdict


@pytest.mark.parametrize(("text", "fraction"), [("10%", 0.1), ("5", 0.05), ("0.5%", 0.005)])
def test_tolerances(text, fraction):
    assert parse_tolerance(text) == pytest.approx(fraction)


@pytest.mark.parametrize("text", ["", "ten", "-5%", "0", "nan", "5kg"])
def test_tolerances_refused(text):
    with pytest.raises(InputError, match="--tolerance"):
        parse_tolerance(text)


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3", "tp"])
def test_strategies_that_torch_has_no_step_for_are_refused(strategy):
    with pytest.raises(InputError, match="ddp, fsdp, hsdp"):
        check_strategy(strategy)


def test_the_table_names_every_quantity_with_its_spread():
    document = {
        "workload": "w", "strategy": "ddp", "steps": 20, "nodes": 1, "ranks_per_node": 2, "compute": "sleep",
        "predicted": MEASURED, "measured": MEASURED, "error_pct": error_pct(MEASURED, MEASURED),
        "spread_ms": {name: [value, value + 1] for name, value in MEASURED.items()}, "notes": ["a note"],
    }  # fmt: skip
    text = as_text(document)
    assert "200.00..201.00" in text and "+0.0 %" in text and "note: a note" in text
    assert text.splitlines()[-2].endswith("-")  # the tail, too small to compare
