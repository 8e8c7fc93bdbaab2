"""The pictures of fits: what stands in them, how many there are, and that equal fits give equal files."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from report_data import results_file, sweep

from collbench.errors import InputError
from collbench.model.fit import fit_results
from collbench.model.laws import Fit
from collbench.report import fit_plot
from collbench.report.panels import panels_of


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Fit, ...]:
    """One collective in three types, in two regimes each."""
    records = [record for dtype in ("float16", "float32", "int8") for record in sweep("all_reduce", dtype=dtype)]
    return fit_results(results_file(tmp_path_factory.mktemp("fits") / "r.jsonl", records)).fits


def test_a_row_has_time_and_bus_bandwidth_side_by_side(fits: tuple[Fit, ...]) -> None:
    figure = fit_plot.fit_figure(panels_of((), fits[:2]))
    time, busbw = figure.axes
    assert (time.get_xscale(), time.get_yscale(), busbw.get_yscale()) == ("log", "log", "linear")
    assert time.get_ylabel() == "time of one operation" and busbw.get_ylabel() == "bus bandwidth (GB/s)"
    for axes in (time, busbw):
        gids = [line.get_gid() for line in axes.lines]
        assert gids.count("segment") == sum(len(fit.segments) for fit in fits[:2])
        assert len(axes.collections) == 4  # an interval and the repeats of each regime


def test_points_are_the_fits_own(fits: tuple[Fit, ...]) -> None:
    (time, _) = fit_plot.fit_figure(panels_of((), fits[:1])).axes
    (medians,) = [line for line in time.lines if line.get_gid() == "medians"]
    assert np.array(medians.get_xydata()).tolist() == [list(map(float, point)) for point in fits[0].curve]


def test_many_fits_are_several_files(fits: tuple[Fit, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_plot, "ROWS", 2)
    paths = fit_plot.write_fit_plots(tmp_path / "f.svg", fits)
    assert [path.name for path in paths] == ["f.svg", "f-2.svg"]
    texts = ["".join(ET.fromstring(path.read_text()).itertext()) for path in paths]
    assert [[dtype in text for dtype in ("float16", "float32", "int8")] for text in texts] == [
        [True, True, False],
        [False, False, True],
    ]


def test_a_png_is_one(fits: tuple[Fit, ...], tmp_path: Path) -> None:
    (path,) = fit_plot.write_fit_plots(tmp_path / "deep" / "p.PNG", fits[:1])
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_place_that_cannot_be_written(fits: tuple[Fit, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        fit_plot.write_fit_plots(tmp_path / "file" / "p.png", fits[:1])


def test_a_prior_is_drawn_where_it_speaks_and_named(tmp_path: Path) -> None:
    records = [one for one in sweep("all_reduce", "isolated") if one["size_bytes"] in (2**10, 2**20)]
    (fit,) = fit_results(results_file(tmp_path / "r.jsonl", records), prior="nccl").fits
    for axes in fit_plot.fit_figure(panels_of((), [fit])).axes:
        (medians,) = [line for line in axes.lines if line.get_gid() == "medians"]
        assert len(np.asarray(medians.get_xdata())) == 2
        drawn = [
            float(size) for line in axes.lines if line.get_gid() == "segment" for size in np.asarray(line.get_xdata())
        ]
        assert min(drawn) == pytest.approx(8) and max(drawn) == pytest.approx(2**36)
        low, high = axes.get_xlim()
        assert low < 8 and high > 2**36
        assert "off the points: nccl prior" in axes.get_legend().get_texts()[0].get_text()
