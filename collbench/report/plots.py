"""Time and bus bandwidth against size: the measurements, and the fit drawn through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from collbench.model.band import band
from collbench.model.estimate import Floats
from collbench.model.laws import Fit, Segment
from collbench.report.canvas import (
    BLUE,
    INK,
    SOFT,
    VERMILLION,
    dress,
    legend_below,
    new_figure,
    size_axis,
    time_axis,
)
from collbench.report.fit_text import busbw_text, n_half_text
from collbench.report.panels import TIMINGS, Panel
from collbench.units import format_time_us

# Full circles under open squares, full lines under dashes: both stay visible where the regimes agree.
_STYLES: dict[str, dict[str, Any]] = {
    "isolated": {"color": BLUE, "marker": "o", "markersize": 4.5, "linestyle": "-"},
    "pipelined": {"color": VERMILLION, "marker": "s", "markersize": 5.5, "linestyle": "--", "markerfacecolor": "none"},
}
_DENSE = 100  # places at which a curve is read; a segment is bent on logarithmic axes


def time_figure(panels: Sequence[Panel], columns: int = 1) -> Figure:
    """Time against size, log–log, one plot a panel: medians, their repeats, α–β segments, the 90 % interval."""
    return grid([(panel, draw_time, panel.kind.details) for panel in panels], columns)


def busbw_figure(panels: Sequence[Panel], columns: int = 1) -> Figure:
    """Bus bandwidth against size, one plot a panel; a panel whose ranks are not known stays empty."""
    return grid([(panel, draw_busbw, panel.kind.details) for panel in panels], columns)


def grid(plots: Sequence[tuple[Panel, Callable[[Axes, Panel], None], str]], columns: int) -> Figure:
    """Plots, row by row: what is drawn of a panel, `draw_time` or `draw_busbw`, and the details beneath its title."""
    rows = -(-len(plots) // columns)
    figure = new_figure(5.4 * columns, 4.1 * rows)
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)  # type: ignore[union-attr, call-arg]
    for index, (panel, draw, details) in enumerate(plots, start=1):
        axes = figure.add_subplot(rows, columns, index)
        draw(axes, panel)
        dress(axes, panel.kind.collective, details)
        size_axis(axes, *_size_range(panel))
    return figure


def draw_time(axes: Axes, panel: Panel) -> None:
    """Time against size, both logarithmic, into these axes."""

    def as_time(_: Floats, times_us: Floats) -> Floats:
        return times_us

    for timing in _timings(panel):
        _draw_series(axes, panel, timing, as_time)
    time_axis(axes)
    _legend(axes, panel, _time_label)


def draw_busbw(axes: Axes, panel: Panel) -> None:
    """Bus bandwidth against size into these axes."""

    def as_busbw(sizes_bytes: Floats, times_us: Floats) -> Floats:
        pairs = zip(sizes_bytes, times_us, strict=True)
        return np.array([panel.busbw_GBps(size, time) for size, time in pairs], dtype=np.float64)

    for timing in _timings(panel):
        _draw_series(axes, panel, timing, as_busbw)
    drawn = [float(y) for line in axes.lines for y in np.asarray(line.get_ydata(), dtype=np.float64)]
    axes.set_ylim(0, 1.08 * max([y for y in drawn if np.isfinite(y)], default=1.0) or 1.0)  # a wide band is cut
    axes.set_ylabel("bus bandwidth (GB/s)")
    _legend(axes, panel, _busbw_label)


def _timings(panel: Panel) -> list[str]:
    return [timing for timing in TIMINGS if timing in panel.records or timing in panel.fits]


def _draw_series(axes: Axes, panel: Panel, timing: str, of: Callable[[Floats, Floats], Floats]) -> None:
    """One regime; `of` makes the y values from sizes in bytes and times in us."""
    style = _STYLES[timing]
    colour, dashes = style["color"], style["linestyle"]
    wrong = _measured(panel, timing, wrong=True)
    if len(wrong[0]):
        axes.plot(wrong[0], of(*wrong), "x", color=INK, markersize=7, markeredgewidth=1.6, gid="wrong", zorder=5)
    sizes, times_us = _measured(panel, timing)
    low, high = (_by_size(of(sizes, times_us), sizes, pick) for pick in (np.min, np.max))
    axes.vlines(np.unique(sizes), low, high, color=colour, linewidth=1, alpha=0.6)
    medians = _medians(panel, timing)
    axes.plot(medians[0], of(*medians), **(style | {"linestyle": "none"}), gid="medians", zorder=3)
    fit = panel.fits.get(timing)
    if fit is None:
        return
    sizes = np.geomspace(*_span(fit), _DENSE)
    interval = band(fit, sizes)
    ends = of(sizes, interval.low_us), of(sizes, interval.high_us)
    axes.fill_between(sizes, *ends, color=colour, alpha=0.13, linewidth=0)
    for segment in fit.segments:
        sizes, times_us = _segment_line(segment)
        axes.plot(sizes, of(sizes, times_us), dashes, color=colour, linewidth=1.8, gid="segment", zorder=4)


def _measured(panel: Panel, timing: str, wrong: bool = False) -> tuple[Floats, Floats]:
    """(sizes in bytes, times in us) of every right measurement, or of every wrong one. Size 0 has no place here."""
    records = [record for record in panel.records.get(timing, []) if bool(record.get("wrong")) is wrong]
    return _columns([(record["size_bytes"], record["time_us"]) for record in records if record["size_bytes"]])


def _by_size(values: Floats, sizes: Floats, pick: Callable[[Floats], Any]) -> Floats:
    """One of the values of each size, sizes increasing."""
    return np.array([pick(values[sizes == size]) for size in np.unique(sizes)], dtype=np.float64)


def _medians(panel: Panel, timing: str) -> tuple[Floats, Floats]:
    """(sizes in bytes, times in us): the fit's own points, without a fit those of the measurements."""
    if timing in panel.fits:
        return _columns(list(panel.fits[timing].curve))
    points = panel.points(timing)
    return _columns([(point.size_bytes, point.time_us) for point in points if point.size_bytes and not point.wrong])


def _columns(pairs: list[tuple[int, float]]) -> tuple[Floats, Floats]:
    sizes, values = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    return sizes, values


def _span(fit: Fit) -> tuple[float, float]:
    """The sizes that a fit speaks for: its points, and with a prior the prior's too."""
    first, last = fit.curve[0][0], fit.curve[-1][0]
    if fit.prior is None:
        return first, last
    return min(first, fit.segments[0].from_bytes), max(last, fit.segments[-1].to_bytes)


def _segment_line(segment: Segment) -> tuple[Floats, Floats]:
    """(sizes in bytes, times in us) along α + size / bandwidth, over the segment's own sizes."""
    sizes = np.geomspace(segment.from_bytes, segment.to_bytes, _DENSE)
    return sizes, segment.alpha_us + sizes / (segment.bandwidth_GBps * 1e3)  # 1 GB/s is 1e3 B/us


def _size_range(panel: Panel) -> tuple[float, float]:
    """The smallest and the largest size that a panel shows."""
    of_timing = [(_medians(panel, timing)[0], _measured(panel, timing, wrong=True)[0]) for timing in _timings(panel)]
    spans = [np.array(_span(fit)) for fit in panel.fits.values()]
    sizes = np.concatenate([np.empty(0), *(sizes for both in of_timing for sizes in both), *spans])
    return (float(sizes.min()), float(sizes.max())) if len(sizes) else (1.0, 1024.0)


def _legend(axes: Axes, panel: Panel, label: Callable[[str, Fit | None], str]) -> None:
    """One entry a regime, with its fit's figures; one for the bands, one for wrong data where there are any."""
    handles: list[Line2D | Patch] = []
    for timing in _timings(panel):
        fit = panel.fits.get(timing)
        style = _STYLES[timing] if fit else _STYLES[timing] | {"linestyle": "none"}
        handles.append(Line2D([], [], **style, label=label(timing, fit)))
    if panel.fits:
        handles.append(Patch(color=SOFT, alpha=0.2, linewidth=0, label="90 % interval of a new measurement"))
    if any(len(_measured(panel, timing, wrong=True)[0]) for timing in _timings(panel)):
        handles.append(Line2D([], [], color=INK, marker="x", linestyle="none", label="wrong data (not used)"))
    legend_below(axes, handles)


def _time_label(timing: str, fit: Fit | None) -> str:
    if fit is None:
        return f"{timing} (not fitted)"
    alpha = format_time_us(fit.alpha_us)
    return f"{timing}: α {alpha}, busbw {busbw_text(fit)} GB/s, n½ {n_half_text(fit)}" + _prior(fit)


def _busbw_label(timing: str, fit: Fit | None) -> str:
    if fit is None:
        return f"{timing} (not fitted)"
    return f"{timing}: {busbw_text(fit)} GB/s busbw at large sizes" + _prior(fit)


def _prior(fit: Fit) -> str:
    return "" if fit.prior is None else f"; off the points: {fit.prior.kind} prior"
