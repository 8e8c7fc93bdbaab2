"""All that is known of fits, in words: a block each, in the manner of lmfit's report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from collbench.columns import aligned
from collbench.model.laws import Fit, Interval
from collbench.numbers import UNKNOWN, digits, interval, percent
from collbench.report.panels import kind_of_fit
from collbench.units import format_size


def full_text(fits: Sequence[Fit]) -> str:
    """The blocks of these fits, an empty line between two."""
    return "\n\n".join("\n".join(_block(fit)) for fit in fits)


def busbw_text(fit: Fit) -> str:
    """The last bandwidth; its low end where the sweep shows no more than that it is above it."""
    return digits(fit.busbw_GBps) if fit.shows_bandwidth else f"> {digits(fit.busbw_GBps_interval[0])}"


def busbw_interval_text(fit: Fit) -> str:
    """Its 90 % interval; of a bandwidth that the sweep does not show nothing tells the upper end."""
    low = fit.busbw_GBps_interval[0]
    return interval(fit.busbw_GBps_interval) if fit.shows_bandwidth else f"[{digits(low)}, {UNKNOWN}]"


def n_half_text(fit: Fit) -> str:
    """n½; its low end where the bandwidth that it is half of is not shown."""
    _, text, *_ = _size("", fit.n_half_bytes, fit.n_half_bytes_interval, shown=fit.shows_bandwidth)
    return text


def _block(fit: Fit) -> Iterator[str]:
    kind = kind_of_fit(fit)
    yield f"[[{kind.collective}, {kind.details}, {fit.timing}]]"
    yield from (f"    {name:<16}{text}" for name, text in _facts(fit))
    yield from (f"    {line}" for line in aligned([_HEAD, *_figures(fit)], left=(0,)))
    yield from (f"    note: {note}" for note in fit.notes)


def _facts(fit: Fit) -> Iterator[tuple[str, str]]:
    first, last = fit.curve[0][0], fit.curve[-1][0]
    yield "data", f"{fit.points} measurements, {len(fit.curve)} sizes, {format_size(first)} to {format_size(last)}"
    error = fit.error_pct
    text = f"median {percent(error.median)}, 90th percentile {percent(error.p90)}, at sizes it was not shown"
    yield "held-out error", text if error.held_out else f"{UNKNOWN} (too few sizes to hold any out)"
    if fit.spread_log:
        widths = [100 * math.expm1(half) for half in fit.spread_log]
        typical, most = percent(median(widths)), percent(max(widths))
        yield ("interval, 90 %", f"a time read off the curve ± {typical} (median over sizes), at most {most}")
    yield "segments", f"{len(fit.segments)} of α + size / algbw"
    if fit.link_GBps is not None:
        yield "link limit", f"{digits(fit.link_GBps)} GB/s: no answer's bus bandwidth is above it"


_HEAD = ("", "value", "unit", "90 % interval", "±")


def _figures(fit: Fit) -> Iterator[tuple[str, ...]]:
    yield _figure("α", "us", fit.alpha_us, fit.alpha_us_interval)
    shown = fit.shows_bandwidth
    if shown:
        yield _figure("busbw", "GB/s", fit.busbw_GBps, fit.busbw_GBps_interval)
    else:
        yield ("busbw", busbw_text(fit), "GB/s", busbw_interval_text(fit), UNKNOWN)
    yield _size("n½, half of algbw", fit.n_half_bytes, fit.n_half_bytes_interval, shown=shown)
    if fit.size_90_bytes is not None:
        yield _size("90 % of algbw", fit.size_90_bytes, fit.size_90_bytes_interval, shown=shown)
    if len(fit.segments) == 1:
        return
    for number, segment in enumerate(fit.segments):
        if 0 < number <= len(fit.breakpoints):
            yield _size("break", fit.breakpoints[number - 1].size_bytes, fit.breakpoints[number - 1].interval)
        yield (f"{format_size(segment.from_bytes)} to {format_size(segment.to_bytes)}", "", "", "", "")
        yield _figure("  α", "us", segment.alpha_us, segment.alpha_us_interval)
        yield _figure("  algbw", "GB/s", segment.bandwidth_GBps, segment.bandwidth_GBps_interval)


def _size(name: str, size_bytes: float, ends: Interval | None, *, shown: bool = True) -> tuple[str, ...]:
    """A row of a size in bytes; of one that is not shown the low end is all that is known."""
    if ends is None:
        return (name, format_size(size_bytes) if shown else UNKNOWN, "", UNKNOWN, "")
    if not shown:
        return (name, f"> {format_size(ends[0])}", "", f"[{format_size(ends[0])}, {UNKNOWN}]", "")
    return (name, format_size(size_bytes), "", f"[{format_size(ends[0])}, {format_size(ends[1])}]", "")


def _figure(name: str, unit: str, value: float, ends: Interval) -> tuple[str, ...]:
    """A row; ± is half of the interval, relative to the value."""
    half = 100 * (ends[1] - ends[0]) / 2 / value if value else math.inf
    return (name, digits(value), unit, interval(ends), percent(half) if half < 100 else "> 100 %")
