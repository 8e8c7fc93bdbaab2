"""Results -> Model: a curve per key, its α–β segments, and how far off it is at sizes it has not seen."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collbench.collectives import find_collective
from collbench.errors import InputError
from collbench.model.curve import Curve
from collbench.model.estimate import Floats
from collbench.model.laws import UNKNOWN_LOG, Fit, HeldOutError, Interval, Scaling, Segment
from collbench.model.pooling import Pooled, pool
from collbench.model.segments import NOISE_FLOOR, FittedSegment, fit_segments
from collbench.model.store import Model
from collbench.results import read_results

if TYPE_CHECKING:
    import pandas

Source = Any  # a DataFrame of read_results, or the path of a results file

LEAST_HELD_OUT = 3  # with fewer sizes to hold out there is no error to speak of
FULL_QUANTILES = 19  # residuals from which 5 % and 95 % quantiles can be read (split conformal: n ≥ 2/0.1 − 1)


def fit_results(*results: Source | Iterable[Source]) -> Model:
    """A model of one or more results: DataFrames of `read_results`, paths of results files, or lists of either.

    Raises InputError, in one line, where nothing can be fitted: no measurements, wrong data, fewer than 3 sizes.
    What is left out while something else can be fitted is listed in `Model.notes`.
    """
    import pandas

    sources: list[Source] = []
    for each in results:
        sources += [each] if isinstance(each, (str, os.PathLike, pandas.DataFrame)) else list(each)
    sources = _each_file_once(sources)
    names = [str(source) for source in sources if isinstance(source, (str, os.PathLike))]
    where = f"{', '.join(names)}: " if names else ""
    if not sources:
        raise InputError("no results to fit: give at least one results file")
    for source in sources:
        if not isinstance(source, (str, os.PathLike, pandas.DataFrame)):
            raise InputError(f"cannot fit a {type(source).__name__}: expected a DataFrame of read_results, or a path")
    frames = [source if isinstance(source, pandas.DataFrame) else read_results(source) for source in sources]
    frame = pandas.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
    curves, notes = pool(frame, where)
    fits = tuple(_fit(curve) for curve in curves)
    return Model(fits=fits, scaling=_scaling(fits), sources=_sources(frame), notes=tuple(notes))


def _each_file_once(sources: list[Source]) -> list[Source]:
    """A file that is named twice holds no more measurements than one."""
    kept: dict[object, Source] = {}
    for source in sources:
        kept.setdefault(Path(source).resolve() if isinstance(source, (str, os.PathLike)) else id(source), source)
    return list(kept.values())


def _sources(frame: pandas.DataFrame) -> tuple[dict[str, Any], ...]:
    """The runs in order of appearance."""
    if "run_id" not in frame.columns:
        return ()
    return tuple({"run_id": str(run_id)} for run_id in frame["run_id"].dropna().unique())


def _fit(pooled: Pooled) -> Fit:
    key: dict[str, Any] = pooled.key
    sizes, times = pooled.sizes_bytes, pooled.times_us
    pieces = fit_segments(sizes, times, pooled.noise)
    segments = tuple(_segment(piece, sizes) for piece in pieces)
    bus_factor = find_collective(key["collective"]).sent_fraction(key["nranks"])
    busbw_low_GBps, busbw_high_GBps = segments[-1].bandwidth_GBps_interval
    residuals_log = held_out_residuals(sizes, times)
    n_half_bytes = _n_half_bytes(segments)
    return Fit(
        **key,
        curve=tuple((int(size), float(time)) for size, time in zip(sizes, times, strict=True)),
        segments=segments,
        alpha_us=segments[0].alpha_us,
        alpha_us_interval=segments[0].alpha_us_interval,
        busbw_GBps=segments[-1].bandwidth_GBps * bus_factor,
        busbw_GBps_interval=(busbw_low_GBps * bus_factor, busbw_high_GBps * bus_factor),
        n_half_bytes=n_half_bytes,
        error_pct=_error_pct(residuals_log),
        points=pooled.points,
        interval_log=_interval_log(residuals_log, pooled.repeats_log),
        notes=(*pooled.notes, *_identified(n_half_bytes, sizes)),
    )


def _segment(piece: FittedSegment, sizes: Floats) -> Segment:
    low, high = piece.slope_interval
    return Segment(
        from_bytes=int(sizes[piece.first]),
        to_bytes=int(sizes[piece.last]),
        alpha_us=piece.alpha_us,
        alpha_us_interval=piece.alpha_us_interval,
        bandwidth_GBps=_GBps(piece.slope_us_per_byte),
        bandwidth_GBps_interval=(_GBps(high), _GBps(low)),
    )


def _GBps(slope_us_per_byte: float) -> float:
    return 1e-3 / slope_us_per_byte  # 1 B/us is 1e6 B/s


def _n_half_bytes(segments: tuple[Segment, ...]) -> float:
    """The first size at which a segment's size / time reaches half of the last segment's bandwidth.

    Of one segment it is α · bandwidth. size / (α + size/b) = half  ⇔  size = half·α / (1 − half/b).
    """
    half = segments[-1].bandwidth_GBps * 1e3 / 2  # bytes per us
    for segment in segments:
        ratio = half / (segment.bandwidth_GBps * 1e3)
        size = half * segment.alpha_us / (1 - ratio) if ratio < 1 else math.inf
        if size <= segment.to_bytes or segment is segments[-1]:
            break
    first = segment.from_bytes if segment is not segments[0] else 0
    return max(size, float(first))


def _identified(n_half_bytes: float, sizes: Floats) -> list[str]:
    """What the sweep cannot tell: α below n½, bandwidth above 4·n½ (modelling practice; a line's own two limits)."""
    notes = []
    if n_half_bytes < sizes[0]:
        notes.append("α not identified: no size below n½; measure smaller ones")
    if 4 * n_half_bytes > sizes[-1]:
        notes.append("bandwidth not identified: no size above 4 n½; measure larger ones")
    return notes


def held_out_residuals(sizes_bytes: Floats, times_us: Floats) -> Floats:
    """log(measured / predicted) at every inner size, each predicted from a curve without it.

    Every other inner size is held out at once, then the others: what a sweep at twice the step would have missed.
    Shape [n − 2]; empty below 3 sizes to hold out.
    """
    n = len(sizes_bytes)
    if n - 2 < LEAST_HELD_OUT:
        return np.empty(0)
    residuals = np.empty(n)
    for parity in (1, 2):
        held = np.arange(parity, n - 1, 2)
        kept = np.setdiff1d(np.arange(n), held)
        predicted = Curve(sizes_bytes[kept], times_us[kept]).time_us(sizes_bytes[held])
        residuals[held] = np.log(times_us[held] / predicted)
    return residuals[1:-1]


def _error_pct(residuals_log: Floats) -> HeldOutError:
    """|predicted − measured| / measured over the held-out sizes, in percent."""
    if not len(residuals_log):
        return HeldOutError(median=None, p90=None, held_out=False)
    errors = 100 * np.abs(np.expm1(-residuals_log))
    return HeldOutError(median=float(np.median(errors)), p90=float(np.quantile(errors, 0.9)), held_out=True)


def _interval_log(residuals_log: Floats, repeats_log: tuple[Floats, ...]) -> Interval:
    """5 % and 95 % quantile of log(a new measurement / prediction): model error at held-out sizes and repeat noise.

    Never narrower than the noise floor; with too few residuals for quantiles, by Student's t.
    """
    if not len(residuals_log):
        return (-UNKNOWN_LOG, UNKNOWN_LOG)
    inner = repeats_log[1:-1]
    combined = np.concatenate([residual + noise for residual, noise in zip(residuals_log, inner, strict=True)])
    if len(residuals_log) >= FULL_QUANTILES:
        low, high = np.quantile(combined, [0.05, 0.95], method="weibull")
    else:
        from scipy.special import stdtrit

        n = len(residuals_log)
        high = stdtrit(n, 0.95) * math.sqrt(float(np.mean(combined**2)) * (1 + 1 / n))
        low = -high
    return (min(float(low), -NOISE_FLOOR), max(float(high), NOISE_FLOOR))


def _scaling(fits: tuple[Fit, ...]) -> tuple[Scaling, ...]:
    """One ring law per collective, group and regime, summed up at the largest measured count."""
    families: dict[tuple[object, ...], list[Fit]] = {}
    for fit in fits:
        families.setdefault((fit.collective, fit.group, fit.backend, fit.dtype, fit.timing), []).append(fit)
    return tuple(_ring_law(family) for family in families.values())


def _ring_law(family: list[Fit]) -> Scaling:
    largest = max(family, key=lambda fit: (fit.nranks, not fit.in_place))
    steps = find_collective(largest.collective).ring_steps(largest.nranks)
    return Scaling(
        collective=largest.collective,
        group=largest.group,
        backend=largest.backend,
        dtype=largest.dtype,
        timing=largest.timing,
        algorithm="ring",
        nranks=tuple(sorted({fit.nranks for fit in family})),
        alpha_us_per_step=largest.alpha_us / steps,
        link_GBps=largest.busbw_GBps,
    )
