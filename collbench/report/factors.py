"""How many times longer something takes than alone, against the message size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from collbench.report.canvas import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    SOFT,
    VERMILLION,
    dress,
    legend_below,
    new_figure,
    size_axis,
)

_COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, SKY, GREY)
_MARKERS = "osD^vPX"  # with six colours and seven markers 42 lines differ
_LEAST_TOP = 1.25  # of the axis: noise around 1 stays small


class Line(NamedTuple):
    """points: (size in bytes, times as long as alone), sizes increasing.  of: what shares a colour and a marker."""

    name: str
    points: Sequence[tuple[int, float]]
    of: str
    dashed: bool = False


def factor_figure(lines: Sequence[Line], title: str, details: str) -> Figure:
    """A line each over the sizes, with a rule at 1: as long as alone."""
    figure = new_figure(6.4, 3.6 + 0.18 * len(lines))
    axes = figure.add_subplot()
    axes.axhline(1, color=SOFT, linewidth=1)
    kinds = list(dict.fromkeys(line.of for line in lines))
    handles = []
    for line in lines:
        number = kinds.index(line.of)
        style = {
            "color": _COLOURS[number % len(_COLOURS)],
            "marker": _MARKERS[number % len(_MARKERS)],
            "linestyle": "--" if line.dashed else "-",
            "markersize": 4.5,
            "markerfacecolor": "none" if line.dashed else None,
        }
        axes.plot(*zip(*line.points, strict=True), gid="factors", **style)  # type: ignore[arg-type]
        handles.append(Line2D([], [], label=line.name, **style))  # type: ignore[arg-type]
    sizes = [size for line in lines for size, _ in line.points]
    size_axis(axes, min(sizes), max(sizes))
    axes.set_ylim(0, max(_LEAST_TOP, *(1.08 * factor for line in lines for _, factor in line.points)))
    axes.set_ylabel("times as long as alone")
    dress(axes, title, details)
    legend_below(axes, handles)
    return figure
