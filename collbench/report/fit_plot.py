"""A picture of fits: time over size and bus bandwidth over size side by side, a row per kind of measurement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from collbench.model.laws import Fit
from collbench.report.canvas import PICTURES, dress, new_figure, size_axis
from collbench.report.files import write_file
from collbench.report.panels import Panel, panels_of, plotted
from collbench.report.plots import draw_busbw, draw_time, size_range

ROWS = 6  # of a file; further ones go into files of their own
_ROW_IN = (10.8, 4.1)  # width and height


def write_fit_plots(path: Path, fits: Sequence[Fit]) -> list[Path]:
    """The picture (PNG, or SVG by its suffix), or FILE, FILE-2, … of ROWS rows each; returns their paths.

    Regimes share a row; of fits that differ only in place the one is shown that a model answers with.
    InputError where a file cannot be written.
    """
    panels = plotted(panels_of((), fits))
    pages = [panels[first : first + ROWS] for first in range(0, len(panels), ROWS)]
    paths = [path, *(path.with_stem(f"{path.stem}-{number}") for number in range(2, len(pages) + 1))]
    for target, page in zip(paths, pages, strict=True):
        write_file(target, PICTURES[target.suffix.lower()](fit_figure(page)), "--plot")
    return paths


def fit_figure(panels: Sequence[Panel]) -> Figure:
    """One row a panel: its points, α–β segments and 90 % interval as time, log–log, and as bus bandwidth."""
    figure = new_figure(_ROW_IN[0], _ROW_IN[1] * len(panels))
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)  # type: ignore[union-attr, call-arg]
    places: Iterator[int] = iter(range(1, 2 * len(panels) + 1))
    for panel in panels:
        for draw, details in ((draw_time, panel.kind.details), (draw_busbw, "bus bandwidth")):
            axes = figure.add_subplot(len(panels), 2, next(places))
            draw(axes, panel)
            dress(axes, panel.kind.collective, details)
            size_axis(axes, *size_range(panel))
    return figure
