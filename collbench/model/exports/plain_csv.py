"""A plain table of the curves and what was fitted to them, for a spreadsheet or another program."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping

import numpy as np

from collbench.collectives import bandwidths_GBps, find_collective
from collbench.model.band import band
from collbench.model.exports.common import Export
from collbench.model.laws import KEY, Fit, Segment
from collbench.model.store import Model

_POINT = ("size_bytes", "time_us", "low_us", "high_us", "algbw_GBps", "busbw_GBps")
_SEGMENT = (
    *("segment_alpha_us", "segment_alpha_low_us", "segment_alpha_high_us"),
    *("segment_bandwidth_GBps", "segment_bandwidth_low_GBps", "segment_bandwidth_high_GBps"),
)
_FIT = (
    *("alpha_us", "alpha_low_us", "alpha_high_us", "fit_busbw_GBps", "fit_busbw_low_GBps", "fit_busbw_high_GBps"),
    *("n_half_bytes", "n_half_low_bytes", "n_half_high_bytes"),
    *("size_90_bytes", "size_90_low_bytes", "size_90_high_bytes"),
    *("error_median_pct", "error_p90_pct", "points"),
)
COLUMNS = KEY + _POINT + _SEGMENT + _FIT


def export(model: Model, forced: Mapping[tuple[str, str], Model]) -> Export:
    """One file, one row per fit and measured size."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for fit in model.fits:
        table.writerows(_rows(fit))
    return Export(files={"fits.csv": text.getvalue()})


def _rows(fit: Fit) -> Iterator[list[object]]:
    key = [getattr(fit, name) for name in KEY]
    error = fit.error_pct
    summary = [
        *(fit.alpha_us, *fit.alpha_us_interval, fit.busbw_GBps, *fit.busbw_GBps_interval),
        *(fit.n_half_bytes, *(fit.n_half_bytes_interval or (None, None))),
        *(fit.size_90_bytes, *(fit.size_90_bytes_interval or (None, None))),
        *(error.median, error.p90, fit.points),
    ]
    collective = find_collective(fit.collective)
    interval = band(fit, np.array([size for size, _ in fit.curve], dtype=np.float64))
    lows, highs = interval.low_us.tolist(), interval.high_us.tolist()
    for (size_bytes, time_us), low_us, high_us in zip(fit.curve, lows, highs, strict=True):
        bandwidths = bandwidths_GBps(collective, size_bytes, time_us, fit.nranks)
        yield [*key, size_bytes, time_us, low_us, high_us, *bandwidths, *_segment(fit, size_bytes), *summary]


def _segment(fit: Fit, size_bytes: int) -> list[float]:
    """The α–β segment that a measured size lies in."""
    segment: Segment = next((part for part in fit.segments if size_bytes <= part.to_bytes), fit.segments[-1])
    return [segment.alpha_us, *segment.alpha_us_interval, segment.bandwidth_GBps, *segment.bandwidth_GBps_interval]
