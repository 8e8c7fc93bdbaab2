"""The picture of one predicted step: a row a stream, and which part of each communication no computation hides."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from collbench.errors import InputError
from collbench.numbers import ms
from collbench.report.canvas import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PICTURES,
    SKY,
    VERMILLION,
    dress,
    legend_below,
    new_figure,
)
from collbench.report.exposure import Span, merged, outside
from collbench.report.files import write_file

Bar = dict[str, Any]  # of a prediction's timeline

# What a bar is for: predict's `phase`. A bar without one is told by its stream.
_PHASES = {
    "forward": (SKY, "forward"),
    "backward": (BLUE, "backward"),
    "optimizer": (GREY, "optimizer"),
    "copies": (GREEN, "copies"),
    "compute": (SKY, "computation"),
    "parameters": (ORANGE, "gather"),
    "gradients": (VERMILLION, "reduce"),
    "comm": (VERMILLION, "communication"),
}
_COMMUNICATION = ("parameters", "gradients", "comm")
_PALE = 0.62  # of white, in the colour of what is hidden
_TAIL = "#F0C9B8"
_WIDTH_IN = 10.0
_EDGES = ((0.008, 0.5), (0.003, 0.25), (0.0, 0.0))  # (from what part of the width, points): none leaves a bar white
_CHARACTER = 0.007  # of the plot's width, at the bars' font size: what fits into a bar
_LEGEND_COLUMNS = 7
_HALF = 0.36  # of a bar's height; rows are 1 apart


def check_gantt(path: str | os.PathLike[str]) -> None:
    """InputError for a file that is to be neither PNG nor SVG."""
    if Path(path).suffix.lower() not in PICTURES:
        raise InputError(f"{path}: the picture is PNG or SVG: name a file that ends in .png or .svg")


def write_gantt(prediction: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Draw `timeline_figure` into a file that ends in .png or .svg. InputError where it cannot be written."""
    check_gantt(path)
    picture = PICTURES[Path(path).suffix.lower()](timeline_figure(prediction))
    write_file(path, picture, "--gantt")


def timeline_figure(prediction: dict[str, Any]) -> Figure:
    """The streams of one predicted step (an object of `predict --json`) against time in ms.

    Communication is pale where computation runs meanwhile, and full where the computation stands still; the exposed
    tail is shaded and labelled.
    """
    bars = [bar for bar in prediction["timeline"] if bar["end_ms"] > bar["start_ms"]]
    rows = list(dict.fromkeys(["compute", *sorted(map(_row, bars))]))
    figure = new_figure(_WIDTH_IN, 1.7 + 0.5 * len(rows))
    axes = figure.add_subplot()
    end_ms = max([bar["end_ms"] for bar in bars], default=0.0) or 1.0
    phases = [phase for phase in _PHASES if any(_phase(bar) == phase for bar in bars)]
    computing = merged(_span(bar) for bar in bars if bar["stream"] == "compute")
    for phase in phases:
        for place, row in enumerate(rows):
            of_row = [bar for bar in bars if _phase(bar) == phase and _row(bar) == row]
            _draw(axes, place, phase, [_span(bar) for bar in of_row], computing, end_ms)
    for bar in bars:
        _name_bar(axes, bar, rows.index(_row(bar)), computing, end_ms)
    _shade_tail(axes, bars, prediction["exposed_tail_ms"])
    axes.set_yticks(range(len(rows)), [row.replace("comm:", "comm ") for row in rows])
    axes.set_ylim(len(rows) - 0.5, -1.05)  # the first stream on top, and room for the tail's label
    axes.set_xlim(0, end_ms * 1.005)
    axes.set_xlabel("time since the start of the step (ms)")
    dress(axes, _title(prediction), _summary(prediction))
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    handles = _handles(phases)
    legend_below(axes, handles, columns=min(len(handles), _LEGEND_COLUMNS))
    return figure


def _draw(axes: Axes, row: int, phase: str, spans: list[Span], computing: list[Span], end_ms: float) -> None:
    """The bars of one phase in one row; of communication in full colour only what is exposed."""
    colour = _PHASES[phase][0]
    if phase in _COMMUNICATION:
        exposed = [part for span in spans for part in outside(span, computing)]
        _bars(axes, row, exposed, colour, "exposed", 0)
        colour = _pale(colour)
    edges = [next(edge for part, edge in _EDGES if end - start > part * end_ms) for start, end in spans]
    _bars(axes, row, spans, colour, phase, edges)


def _bars(axes: Axes, row: int, spans: list[Span], colour: str, name: str, edges: Any) -> None:
    widths = [(start, end - start) for start, end in spans]
    axes.broken_barh(
        widths, (row - _HALF, 2 * _HALF), facecolor=colour, edgecolor="white", linewidth=edges, gid=name,
        zorder=2 if name == "exposed" else 1,
    )  # fmt: skip


def _pale(colour: str) -> str:
    red, green, blue = (_PALE + (1 - _PALE) * part for part in to_rgb(colour))
    return to_hex((red, green, blue))


def _handles(phases: list[str]) -> list[Patch]:
    """A patch a phase of the computation, two of the communication: what is exposed and what is hidden."""
    handles = []
    for phase in phases:
        colour, words = _PHASES[phase]
        if phase in _COMMUNICATION:
            handles.append(Patch(color=colour, label=f"{words}, exposed"))
            handles.append(Patch(color=_pale(colour), label=f"{words}, hidden"))
        else:
            handles.append(Patch(color=colour, label=words))
    return handles


def _row(bar: Bar) -> str:
    """The line a bar stands on: its channel where the prediction tells one, else its stream."""
    return str(bar.get("channel", bar["stream"]))


def _phase(bar: Bar) -> str:
    return str(bar["phase"] if bar.get("phase") in _PHASES else bar["stream"])


def _span(bar: Bar) -> Span:
    return bar["start_ms"], bar["end_ms"]


def _name_bar(axes: Axes, bar: Bar, row: int, computing: list[Span], end_ms: float) -> None:
    """The name inside the bar: without its first word, which the colour says; nothing where it does not fit."""
    name = str(bar["name"]).partition(" ")[2] or str(bar["name"])
    room = int((bar["end_ms"] - bar["start_ms"]) / end_ms / _CHARACTER)
    if len(name) <= room:
        middle = (bar["start_ms"] + bar["end_ms"]) / 2
        pale = _phase(bar) in _COMMUNICATION and outside(_span(bar), computing) != [_span(bar)]  # at least a part
        dark = not pale and _PHASES[_phase(bar)][0] in (BLUE, VERMILLION)
        axes.text(middle, row, name, ha="center", va="center", fontsize=7, color="white" if dark else INK)


def _shade_tail(axes: Axes, bars: list[Bar], tail_ms: float) -> None:
    """From the end of the last backward computation to the end of the last gradient collective."""
    ends = [bar["end_ms"] for bar in bars if _phase(bar) in ("gradients", "comm")]
    if not ends or tail_ms <= 0:
        return
    end = max(ends)
    axes.axvspan(end - tail_ms, end, color=_TAIL, alpha=0.55, linewidth=0, zorder=0, gid="tail")
    axes.text(end, -0.72, f"exposed tail {ms(tail_ms)} ", ha="right", va="center", fontsize=8, color=INK)


def _title(prediction: dict[str, Any]) -> str:
    title = f"{prediction['workload']}, {prediction['strategy']}"
    if prediction.get("nodes") and prediction.get("ranks_per_node"):
        title += f", {prediction['nodes']} × {prediction['ranks_per_node']} ranks"
    return title


def _summary(prediction: dict[str, Any]) -> str:
    return (
        f"step {ms(prediction['step_ms'])}: computation {ms(prediction['compute_ms'])}, "
        f"exposed communication {ms(prediction['exposed_comm_ms'])}"
    )
