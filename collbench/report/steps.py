"""The figure of a training step's prediction beside the real one."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from collbench.numbers import digits, percent
from collbench.report.canvas import (
    GREEN,
    GREY,
    INK,
    SOFT,
    dress,
    legend_below,
    new_figure,
)

QUANTITIES = {
    "step_ms": "step",
    "compute_ms": "computation",
    "exposed_comm_ms": "exposed communication",
    "exposed_tail_ms": "exposed tail",
}


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
