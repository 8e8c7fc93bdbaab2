"""A picture of fits: time over size and bus bandwidth over size side by side, a row per kind of measurement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from collbench.model.laws import Fit
from collbench.report.canvas import PICTURES
from collbench.report.files import write_file
from collbench.report.panels import Panel, panels_of, plotted
from collbench.report.plots import draw_busbw, draw_time, grid

ROWS = 6  # of a file; further ones go into files of their own


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
    both = [((panel, draw_time, panel.kind.details), (panel, draw_busbw, "bus bandwidth")) for panel in panels]
    return grid([plot for row in both for plot in row], columns=2)
