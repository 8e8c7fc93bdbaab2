"""Figures of a training step: when its streams work, and how its prediction compares with the real one."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from collbench.numbers import digits, ms, percent
from collbench.report.canvas import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    SKY,
    SOFT,
    VERMILLION,
    dress,
    legend_below,
    new_figure,
)

# What a bar is for: predict's `phase`. A bar without one is told by its stream.
_PHASES = {
    "forward": (SKY, "forward"),
    "backward": (BLUE, "backward"),
    "optimizer": (GREY, "optimizer"),
    "parameters": (ORANGE, "parameters (gather)"),
    "gradients": (VERMILLION, "gradients (reduce)"),
    "compute": (SKY, "computation"),
    "comm": (VERMILLION, "communication"),
}
_TAIL = "#F0C9B8"
_WIDTH_IN = 10.0
_THIN = 0.008  # of the plot's width: a white edge would leave nothing of a thinner bar
_CHARACTER = 0.007  # of the plot's width, at the bars' font size: what fits into a bar

QUANTITIES = {
    "step_ms": "step",
    "compute_ms": "computation",
    "exposed_comm_ms": "exposed communication",
    "exposed_tail_ms": "exposed tail",
}


def timeline_figure(prediction: dict[str, Any]) -> Figure:
    """The streams of one predicted step (an object of `predict --json`), its exposed tail shaded and labelled."""
    bars = [bar for bar in prediction["timeline"] if bar["end_ms"] > bar["start_ms"]]
    rows = list(dict.fromkeys(["compute", *sorted(map(_row, bars))]))
    figure = new_figure(_WIDTH_IN, 1.7 + 0.5 * len(rows))
    axes = figure.add_subplot()
    end_ms = max([bar["end_ms"] for bar in bars], default=0.0) or 1.0
    phases = [phase for phase in _PHASES if any(_phase(bar) == phase for bar in bars)]
    for phase in phases:
        for row in rows:
            of_row = [bar for bar in bars if _phase(bar) == phase and _row(bar) == row]
            spans = [(bar["start_ms"], bar["end_ms"] - bar["start_ms"]) for bar in of_row]
            axes.broken_barh(
                spans, (rows.index(row) - 0.36, 0.72), facecolor=_PHASES[phase][0], edgecolor="white",
                linewidth=[0.5 if span[1] > _THIN * end_ms else 0 for span in spans],
            )  # fmt: skip
    for bar in bars:
        _name_bar(axes, bar, rows.index(_row(bar)), end_ms)
    _shade_tail(axes, bars, prediction["exposed_tail_ms"])
    axes.set_yticks(range(len(rows)), [row.replace("comm:", "comm ") for row in rows])
    axes.set_ylim(len(rows) - 0.5, -1.05)  # the first stream on top, and room for the tail's label
    axes.set_xlim(0, end_ms * 1.005)
    axes.set_xlabel("time since the start of the step (ms)")
    dress(axes, f"{prediction['workload']}, {prediction['strategy']}", _summary(prediction))
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    handles = [Patch(color=_PHASES[phase][0], label=_PHASES[phase][1]) for phase in phases]
    legend_below(axes, handles, columns=len(handles))
    return figure


def validation_figure(validation: dict[str, Any]) -> Figure:
    """Predicted against measured, one pair of bars a quantity (an object of `validate --json`)."""
    figure = new_figure(6.4, 3.6)
    axes = figure.add_subplot()
    measured, predicted = validation["measured"], validation["predicted"]
    highest = max([times[key] for times in (measured, predicted) for key in QUANTITIES], default=0.0) or 1.0
    for side, (times, colour) in enumerate(((measured, GREY), (predicted, GREEN))):
        places = [index + (side - 0.5) * 0.38 for index in range(len(QUANTITIES))]
        bars = axes.bar(places, [times[key] for key in QUANTITIES], 0.36, color=colour)
        axes.bar_label(bars, [digits(times[key], 4) for key in QUANTITIES], fontsize=7.5, color=SOFT, padding=1)
    for index, key in enumerate(QUANTITIES):
        error = validation["error_pct"].get(key)
        top = max(measured[key], predicted[key])
        text = percent(error, signed=True) if error is not None else "too small to compare"
        axes.annotate(
            text, (index, top), xytext=(0, 13), textcoords="offset points", ha="center", fontsize=8.5, color=INK,
            fontweight="bold" if error is not None else "normal",
        )  # fmt: skip
    axes.set_xticks(range(len(QUANTITIES)), [name.replace(" ", "\n", 1) for name in QUANTITIES.values()])
    axes.set_ylim(0, highest * 1.18)
    axes.set_ylabel("time (ms)")
    dress(axes, "predicted against measured")
    axes.grid(False, axis="x")
    legend_below(axes, [Patch(color=GREY, label="measured"), Patch(color=GREEN, label="predicted")], columns=2)
    return figure


def _row(bar: dict[str, Any]) -> str:
    """The line a bar stands on: its channel where the prediction tells one, else its stream."""
    return str(bar.get("channel", bar["stream"]))


def _phase(bar: dict[str, Any]) -> str:
    return str(bar["phase"] if bar.get("phase") in _PHASES else bar["stream"])


def _name_bar(axes: Axes, bar: dict[str, Any], row: int, end_ms: float) -> None:
    """The name inside the bar: without its first word, which the colour says; nothing where it does not fit."""
    name = str(bar["name"]).partition(" ")[2] or str(bar["name"])
    room = int((bar["end_ms"] - bar["start_ms"]) / end_ms / _CHARACTER)
    if len(name) <= room:
        middle = (bar["start_ms"] + bar["end_ms"]) / 2
        dark = _PHASES[_phase(bar)][0] in (BLUE, VERMILLION)
        axes.text(middle, row, name, ha="center", va="center", fontsize=7, color="white" if dark else INK)


def _shade_tail(axes: Axes, bars: list[dict[str, Any]], tail_ms: float) -> None:
    """From the end of the last backward computation to the end of the last gradient collective."""
    ends = [bar["end_ms"] for bar in bars if _phase(bar) in ("gradients", "comm")]
    if not ends or tail_ms <= 0:
        return
    end = max(ends)
    axes.axvspan(end - tail_ms, end, color=_TAIL, alpha=0.55, linewidth=0, zorder=0, gid="tail")
    axes.text(end, -0.72, f"exposed tail {ms(tail_ms)} ", ha="right", va="center", fontsize=8, color=INK)


def _summary(prediction: dict[str, Any]) -> str:
    return (
        f"step {ms(prediction['step_ms'])}: computation {ms(prediction['compute_ms'])}, "
        f"exposed communication {ms(prediction['exposed_comm_ms'])}"
    )
