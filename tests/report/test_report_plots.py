"""The figures: what is drawn, read back from the axes."""

from __future__ import annotations

import numpy as np
import pytest
from report_data import SIZES, measurement, results_file, sweep, validation

from collbench.model.fit import fit_results
from collbench.report.canvas import svg_of
from collbench.report.panels import panels_of, plotted
from collbench.report.plots import busbw_figure, time_figure
from collbench.report.steps import validation_figure
from collbench.results import load_results


def _panels(tmp_path, records, fit=True):
    path = results_file(tmp_path / "r.jsonl", records)
    return panels_of([load_results(path)], fit_results([path]).fits if fit else ())


def _lines(axes, gid):
    return [line for line in axes.lines if line.get_gid() == gid]


def test_the_fit_is_drawn_through_the_points(tmp_path):
    panel = _panels(tmp_path, sweep(collective="all_reduce"))[0]
    axes = time_figure([panel]).axes[0]
    points, segments = _lines(axes, "medians"), _lines(axes, "segment")
    assert len(points) == 2 and len(segments) == 2, "one series a regime"
    for line, drawn in zip(points, segments, strict=True):
        sizes, times_us = line.get_data()
        assert list(sizes) == SIZES
        on_the_line = np.interp(sizes, *drawn.get_data())
        assert on_the_line == pytest.approx(times_us, rel=0.02)
        assert drawn.get_color() == line.get_color()
    assert segments[0].get_color() != segments[1].get_color()
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_the_band_holds_the_points(tmp_path):
    axes = time_figure([_panels(tmp_path, sweep(collective="all_reduce", timing="isolated"))[0]]).axes[0]
    (band,) = [each for each in axes.collections if "FillBetween" in type(each).__name__]
    edge = band.get_paths()[0].vertices
    for size, time_us in zip(*_lines(axes, "medians")[0].get_data(), strict=True):
        near = edge[np.isclose(edge[:, 0], size, rtol=0.1)][:, 1]
        assert near.min() < time_us < near.max()


def test_the_legend_tells_the_fits_figures(tmp_path):
    (panel,) = _panels(tmp_path, sweep(collective="all_reduce", timing="isolated"))
    (text, band) = [text.get_text() for text in time_figure([panel]).axes[0].get_legend().get_texts()]
    assert text == "isolated: α 50 us, busbw 4.00 GB/s, n½ 195.3 KiB"
    assert "90 %" in band


def test_a_bandwidth_that_the_sizes_do_not_show_is_a_bound(tmp_path):
    """n½ of the line is 195 KiB, and the largest size is below four of it."""
    records = sweep(collective="all_reduce", timing="isolated")
    (panel,) = _panels(tmp_path, [record for record in records if record["size_bytes"] <= 2**19])
    for figure in (time_figure, busbw_figure):
        (text, _) = [text.get_text() for text in figure([panel]).axes[0].get_legend().get_texts()]
        assert "> " in text and text.index("> ") < text.index("GB/s")


def test_bus_bandwidth_is_the_time_seen_from_the_other_side(tmp_path):
    (panel,) = _panels(tmp_path, sweep(collective="all_gather_into_tensor", timing="isolated"))
    axes = busbw_figure([panel]).axes[0]
    sizes, busbw = _lines(axes, "medians")[0].get_data()
    assert busbw == pytest.approx(sizes / (50.0 + sizes / 4e3) / 1e3 / 2)  # (n-1)/n of two ranks is a half
    assert axes.get_yscale() == "linear" and axes.get_ylim()[0] == 0


def test_sizes_and_times_are_labelled_in_units(tmp_path):
    axes = time_figure([_panels(tmp_path, sweep(collective="broadcast"))[0]]).axes[0]
    axes.figure.draw_without_rendering()
    assert {"1 KiB", "64 KiB", "1 MiB"} <= {label.get_text() for label in axes.get_xticklabels()}
    assert {"100 us", "1 ms"} <= {label.get_text() for label in axes.get_yticklabels()}


def test_wrong_data_are_marked_and_take_no_part(tmp_path):
    records = sweep(collective="all_reduce", timing="isolated")
    records[3] |= {"wrong": 2, "time_us": 1.0}
    (panel,) = _panels(tmp_path, records)
    axes = time_figure([panel]).axes[0]
    assert _lines(axes, "wrong")[0].get_data()[0] == [SIZES[3]]
    assert SIZES[3] not in _lines(axes, "medians")[0].get_data()[0]
    assert any("wrong" in text.get_text() for text in axes.get_legend().get_texts())


def test_without_a_fit_the_points_are_the_pooled_measurements(tmp_path):
    records = [
        measurement(size_bytes=1024, time_us=time_us, group="inter", group_ranks=ranks, **{"pass": n})
        for ranks, times in (([0, 2], (10, 12, 50)), ([1, 3], (20, 22, 90)))
        for n, time_us in enumerate(times)
    ]
    axes = time_figure(_panels(tmp_path, records, fit=False)).axes[0]
    assert [list(data) for data in _lines(axes, "medians")[0].get_data()] == [[1024], [22]], "median, slowest group"
    assert not _lines(axes, "segment")


def test_groups_and_collectives_get_a_plot_each_and_places_share_one(tmp_path):
    records = [
        *sweep(group="intra"),
        *sweep(group="inter", nnodes=2),
        *sweep(collective="all_gather_into_tensor", group="inter", nnodes=2, in_place=False),
    ]
    panels = _panels(tmp_path, records)
    shown = plotted(panels)
    assert len(panels) == 9 and len(shown) == 8
    assert [panel.kind.group for panel in shown] == ["intra"] * 4 + ["inter"] * 4
    assert [panel.kind.in_place for panel in shown if panel.kind.collective.startswith("all_gather")] == [True, False]
    assert len(time_figure(shown, columns=2).axes) == 8


def test_a_fit_goes_with_the_operator_it_is_of(tmp_path):
    records = [*sweep(collective="all_reduce", redop="max"), *sweep(collective="all_reduce", redop="sum")]
    assert [(panel.redop, bool(panel.fits)) for panel in _panels(tmp_path, records)] == [("max", False), ("sum", True)]


def test_equal_figures_are_equal_bytes(tmp_path):
    panels = _panels(tmp_path, sweep())
    first, second = (svg_of(time_figure(panels, columns=2)) for _ in range(2))
    assert first == second and b"<dc:date>" not in first


def test_the_validation_stands_side_by_side_with_its_errors():
    axes = validation_figure(validation()).axes[0]
    measured, predicted = ([bar.get_height() for bar in bars] for bars in axes.containers)
    assert measured == [14.5, 10.1, 4.4, 0.01] and predicted == [14.0, 10.0, 4.0, 0.0]
    texts = [text.get_text() for text in axes.texts]
    assert "-3.5 %" in texts and "too small to compare" in texts
