"""Curves of real clusters as people published them: the accuracy page's figures, on its splits."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import numpy as np
import pytest
from conftest import ROOT


def load_study() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fit_accuracy", ROOT / "analysis" / "fit_accuracy.py")
    assert spec is not None
    assert spec.loader is not None
    study = importlib.util.module_from_spec(spec)
    sys.modules["fit_accuracy"] = study  # its dataclasses look their module up
    spec.loader.exec_module(study)
    return study


study = load_study()
needs_curves = pytest.mark.skipif(not study.CURVES.exists(), reason=f"the public curves are not at {study.CURVES}")


@pytest.fixture(scope="module")
def sweeps() -> list:
    return study.load_curves(study.CURVES)


@needs_curves
def test_held_out_sizes(sweeps: list) -> None:
    """Linear interpolation reaches 1.8 / 18 % here, and nothing that was tried does better by more than chance: whoever
    knew the best method for each sweep would be at 1.9 / 16."""
    row = study.held_out_sizes(sweeps)
    median, p90 = row.figures(study.OURS)
    assert len(row.held) > 500
    assert median <= 1.9
    assert p90 <= 18.0
    assert 0.85 <= row.coverage <= 0.95
    assert p90 <= 1.15 * row.figures(study.HINDSIGHT)[1]


@needs_curves
@pytest.mark.parametrize(("factor", "target"), [(2, (2.0, 12.0)), (4, (3.0, 19.0))])
def test_beyond_the_largest_size(factor: int, target: tuple[float, float], sweeps: list) -> None:
    row = study.beyond_the_largest(sweeps[:10], factor, target)
    assert len(row.held) > 20
    assert all(own <= wanted for own, wanted in zip(row.figures(study.OURS), target, strict=True))
    assert row.coverage >= 0.85


@needs_curves
@pytest.mark.parametrize("kind", [kind for kind in study.COUNT_ROWS if kind.target], ids=lambda kind: kind.question)
def test_other_rank_counts(kind: object, sweeps: list) -> None:
    row = study.other_counts(sweeps, kind)
    assert len(row.held) >= 30
    assert all(own <= wanted for own, wanted in zip(row.figures(study.OURS), row.target, strict=True))
    assert row.coverage >= 0.85


@needs_curves
def test_ours_is_never_worse_than_any_other_method(sweeps: list) -> None:
    """By the median, but for half a percent: on sizes not shown and on counts not shown."""
    few = [sweep for sweep in sweeps if sweep.id.startswith(("alps", "simumax"))]
    for row in [study.held_out_sizes(few), *(study.other_counts(few, kind) for kind in study.COUNT_ROWS)]:
        if row.errors:
            ours = row.figures(study.OURS)[0]
            assert ours <= min(row.figures(name)[0] for name in row.errors) + 0.5


def synthetic(id: str, nranks: int, nnodes: int) -> object:
    sizes = 2.0 ** np.arange(10, 31)
    times = 20 + 5 * np.log2(nranks) + sizes / 25e3
    return study.Sweep(
        id=id, collective="all_reduce", nranks=nranks, nnodes=nnodes, points=np.stack([sizes, times], axis=1)
    )


def test_the_page_says_what_was_reached_and_is_the_same_every_time() -> None:
    """On curves of known truth, where there are no published ones."""
    clean = [synthetic(f"lab_{nodes}", 4 * nodes, nodes) for nodes in (4, 8, 16)]
    rows = study.all_rows(clean)
    text = study.page(rows, clean)
    assert text == study.page(study.all_rows(clean), clean)
    assert "| held-out sizes inside the range | 57 | 0.0 / 0 | 1.7 / 15 | reached | 100 % (of 57) |" in text
    assert "rank count ×2, from two or more counts" in text
    assert "| one least-squares line |" in text
    assert study.figure(rows) == study.figure(rows)


def test_families_are_sweeps_that_differ_in_their_count_only() -> None:
    names = ["p5_1n8r", "p5_2n16r", "p4de_2n16r", "a100_2r", "a100_4r", "alps_4", "alps_1"]
    sweeps = [synthetic(name, 2 + 2 * number, 1 + ("2n" in name)) for number, name in enumerate(names)]
    found = {tuple(sweep.id for sweep in family) for family in study.families(sweeps)}
    assert found == {("p5_1n8r",), ("p5_2n16r",), ("p4de_2n16r",), ("a100_2r", "a100_4r"), ("alps_4", "alps_1")}
