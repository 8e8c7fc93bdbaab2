"""Curves of real clusters as people published them: how far off the model is at sizes it was not shown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from model_data import frame, row

from collbench.collectives import COLLECTIVES
from collbench.model.fit import fit_results, held_out_residuals

CURVES = Path(__file__).parents[2].parent / "shared" / "logs" / "curves.json"
pytestmark = pytest.mark.skipif(not CURVES.exists(), reason=f"the public curves are not at {CURVES}")


def published() -> list[dict]:
    return [curve for curve in json.loads(CURVES.read_text()) if curve["collective"] in COLLECTIVES]


def records(curve: dict, points: np.ndarray) -> list[dict]:
    counts = {name: curve[name] for name in ("collective", "nranks", "nnodes")}
    return [row(int(size), us, **counts) for size, us in points]


def test_held_out_sizes_are_within_a_few_percent() -> None:
    residuals = np.concatenate([held_out_residuals(*np.array(curve["points"]).T) for curve in published()])
    errors = 100 * np.abs(np.expm1(-residuals))
    assert len(errors) > 400
    assert np.median(errors) <= 2.0
    assert np.quantile(errors, 0.9) <= 19.0


def test_ninety_percent_intervals_hold_at_sizes_not_shown() -> None:
    held = []
    for curve in published():
        points = np.array(curve["points"])
        for parity in (1, 2):
            hidden = points[parity:-1:2]
            kept = points[~np.isin(points[:, 0], hidden[:, 0])]
            estimate = fit_results(frame(records(curve, kept))).time(curve["collective"], hidden[:, 0])
            held += list((hidden[:, 1] >= estimate.low_us) & (hidden[:, 1] <= estimate.high_us))
    assert 0.88 <= np.mean(held) <= 0.98


def test_beyond_the_largest_size_the_tail_holds() -> None:
    errors: dict[int, list[float]] = {2: [], 4: []}
    for curve in published():
        points = np.array(curve["points"])
        for shown in range(5, len(points)):
            if points[shown - 1, 0] < 2**28:
                continue
            model = fit_results(frame(records(curve, points[:shown])))
            for factor, found in errors.items():
                for size, us in points[np.isclose(points[:, 0], factor * points[shown - 1, 0])]:
                    estimate = model.time(curve["collective"], size)
                    assert estimate.extrapolated
                    found.append(100 * abs(float(estimate.time_us) / us - 1))
    assert len(errors[2]) > 50
    assert np.median(errors[2]) <= 2.0
    assert np.median(errors[4]) <= 3.0
