"""Results -> Model: a curve per key, its α–β segments, and how far off it is at sizes it has not seen."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collbench.collectives import find_collective
from collbench.errors import InputError
from collbench.model.cleaning import clean
from collbench.model.contention_fit import fit_contention
from collbench.model.curve import UNKNOWN_LOG, Curve
from collbench.model.estimate import Floats
from collbench.model.guidelines import broken_guidelines, unlike_groups
from collbench.model.laws import UNKNOWN_ERROR, Breakpoint, Fit, HeldOutError, Interval, Scaling, Segment, network_of
from collbench.model.link import LinkModel
from collbench.model.pooling import MIN_SIZES, Pooled, pool
from collbench.model.prior_laws import FEW_SIZES, Priors
from collbench.model.scaling import fit_law
from collbench.model.segments import FittedSegment, fit_segments, relative_scatter
from collbench.model.slowdown import pool_overlaps
from collbench.model.spread import NOISE_FLOOR, SIGMA_90, held_out_residuals, spread_log
from collbench.model.store import Model
from collbench.results import Record
from collbench.results_frame import OVERLAPS, read_results

if TYPE_CHECKING:
    import pandas

Source = Any  # a DataFrame of read_results, or the path of a results file

MUCH_APART = 2.0  # times the scatter about the segments; of 600 lines with independent noise of repeats none reaches it
FULL_QUANTILES = 19  # residuals from which 5 % and 95 % quantiles can be read (split conformal: n ≥ 2/0.1 − 1)


def fit_results(
    *results: Source | Iterable[Source],
    link_GBps: float | None = None,
    prior: str | None = None,
    link: LinkModel | None = None,
) -> Model:
    """A model of one or more results: DataFrames of `read_results`, paths of results files, or lists of either.

    `link_GBps`, where stated, is one rank's one-way link rate: no answer's busbw will be above it. `prior` ("nccl",
    "datasheet") says what to think where fewer than 8 sizes were measured, with `link`'s figures (needed for a
    datasheet; for nccl the highest measured rates unless given).

    Raises InputError, in one line, where nothing can be fitted: no measurements, wrong data, fewer than 3 sizes (with a
    prior: none).
    What is left out while something else can be fitted is listed in `Model.notes`.
    """
    import pandas

    if link_GBps is not None and not (math.isfinite(link_GBps) and link_GBps > 0):
        raise InputError(f"link rate {link_GBps}: expected a finite rate above zero, in GB/s")
    sources: list[Source] = []
    single = (str, os.PathLike, pandas.DataFrame)
    for each in results:
        sources += [each] if isinstance(each, single) or not isinstance(each, Iterable) else list(each)
    sources = _each_file_once(sources)
    paths = [source for source in sources if isinstance(source, (str, os.PathLike))]
    where = f"{', '.join(map(str, paths))}: " if paths else ""
    if not sources:
        raise InputError("no results to fit: give at least one results file")
    for source in sources:
        if not isinstance(source, single):
            raise InputError(f"cannot fit a {type(source).__name__}: expected a DataFrame of read_results, or a path")
    frames = [source if isinstance(source, pandas.DataFrame) else read_results(source) for source in sources]
    overlaps = pool_overlaps(record for each in frames for record in _overlap_records(each))
    frame = pandas.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
    curves, notes = pool(frame, where, MIN_SIZES if prior is None else 1)
    priors = None
    if prior is not None:
        priors = Priors.of(prior, link, [(*_operation(curve), curve.sizes_bytes, curve.times_us) for curve in curves])
    fits = tuple(_fit(curve, link_GBps, priors) for curve in curves)
    others = sorted({fit.backend for fit in fits if fit.prior is not None and fit.backend is not None} - {"nccl"})
    if prior == "nccl" and others:
        notes.append(
            f"the nccl prior is NCCL's own thinking, and of {', '.join(others)} it knows nothing: state the link's "
            "figures with the datasheet prior"
        )
    if priors is not None and all(fit.prior is None for fit in fits):
        notes.append(f"the {prior} prior changed nothing: every fit has {FEW_SIZES} sizes or more")
    for curve in curves:
        notes += unlike_groups(curve.name, curve.groups, curve.noise)
    notes += broken_guidelines(fits)
    # A kind of one group has nobody to contend with, whatever its records say.
    contention, of_contention = fit_contention(fit for fit, curve in zip(fits, curves, strict=True) if curve.groups)
    notes += of_contention
    return Model(
        fits=fits,
        scaling=_scaling(fits),
        sources=_sources(frame),
        notes=tuple(notes),
        overlaps=overlaps,
        contention=contention,
    )


def _each_file_once(sources: list[Source]) -> list[Source]:
    """A file that is named twice holds no more measurements than one."""
    kept: dict[object, Source] = {}
    for source in sources:
        kept.setdefault(Path(source).resolve() if isinstance(source, (str, os.PathLike)) else id(source), source)
    return list(kept.values())


def _overlap_records(frame: pandas.DataFrame) -> list[Record]:
    """What came with it of the runs that it still holds."""
    records: list[Record] = json.loads(frame.attrs.get(OVERLAPS, "[]"))
    if not records or "run_id" not in frame.columns:
        return records
    held = set(frame["run_id"])
    return [record for record in records if record["run_id"] in held]


def _sources(frame: pandas.DataFrame) -> tuple[dict[str, Any], ...]:
    """The runs in order of appearance."""
    if "run_id" not in frame.columns:
        return ()
    return tuple({"run_id": str(run_id)} for run_id in frame["run_id"].dropna().unique())


def _fit(pooled: Pooled, link_GBps: float | None, priors: Priors | None) -> Fit:
    key: dict[str, Any] = pooled.key
    cleaned = clean(pooled.sizes_bytes, pooled.times_us, pooled.repeats_log)
    sizes, times = pooled.sizes_bytes[cleaned.keep], pooled.times_us[cleaned.keep]
    repeats_log = tuple(logs for logs, keep in zip(pooled.repeats_log, cleaned.keep, strict=True) if keep)
    line = Curve(pooled.sizes_bytes[~cleaned.odd], pooled.times_us[~cleaned.odd])
    prior, prior_notes = priors.of_curve(*_operation(pooled), sizes, times, pooled.noise) if priors else (None, [])
    line = prior.fill(line) if prior is not None else line
    pieces = fit_segments(line.sizes_bytes, line.times_us, pooled.noise)
    segments = tuple(_segment(piece, line.sizes_bytes) for piece in pieces)
    if prior is not None:
        segments = tuple(_as_sure_as(line, segment) for segment in segments)
    n_half_bytes, n_half_interval = reach_bytes(segments, 0.5)
    size_90_bytes, size_90_interval = reach_bytes(segments, 0.9)
    between_log = _between_runs_log(pooled.noise, line, pieces) if prior is None else 0.0
    segments = tuple(_widened(segment, between_log, between_log) for segment in segments)
    bus_factor = find_collective(key["collective"]).sent_fraction(key["nranks"])
    busbw_low_GBps, busbw_high_GBps = segments[-1].bandwidth_GBps_interval
    residuals_log = held_out_residuals(sizes, times)
    steps_log2 = np.diff(np.log2(sizes)) if prior is None else np.zeros(len(sizes) - 1)  # a prior fills the gaps
    fit = Fit(
        **key,
        curve=tuple((int(size), float(time)) for size, time in zip(sizes, times, strict=True)),
        segments=segments,
        alpha_us=segments[0].alpha_us,
        alpha_us_interval=segments[0].alpha_us_interval,
        busbw_GBps=segments[-1].bandwidth_GBps * bus_factor,
        busbw_GBps_interval=(busbw_low_GBps * bus_factor, busbw_high_GBps * bus_factor),
        n_half_bytes=n_half_bytes,
        n_half_bytes_interval=n_half_interval,
        size_90_bytes=size_90_bytes,
        size_90_bytes_interval=size_90_interval,
        breakpoints=_breakpoints(pieces, line.sizes_bytes),
        error_pct=_error_pct(residuals_log),
        points=pooled.points,
        interval_log=_interval_log(residuals_log, repeats_log),
        spread_log=tuple(spread_log(steps_log2, residuals_log, repeats_log).tolist()),
        link_GBps=link_GBps,
        prior=prior,
    )
    apart = [_runs_apart(between_log)] if between_log else []
    too_fast = _faster_than_link(sizes, times, bus_factor, link_GBps)
    return replace(fit, notes=(*prior_notes, *pooled.notes, *cleaned.notes, *apart, *_identified(fit), *too_fast))


def _operation(pooled: Pooled) -> tuple[str, int, int]:
    """(collective, nranks, nnodes) of a curve."""
    key: dict[str, Any] = pooled.key
    return key["collective"], key["nranks"], key["nnodes"]


def _as_sure_as(curve: Curve, segment: Segment) -> Segment:
    """A segment through a prior's points, no surer than these: α than at its first size, the rate than at its last."""
    ends = np.array([segment.from_bytes, segment.to_bytes], dtype=np.float64)
    (first, last), _ = curve.half_widths_log(ends)
    return _widened(segment, float(first), float(last))


def _widened(segment: Segment, alpha_log: float, rate_log: float) -> Segment:
    """With wider intervals of its α and of its rate, by as much in log units at either end."""
    (alpha_low, alpha_high), (rate_low, rate_high) = segment.alpha_us_interval, segment.bandwidth_GBps_interval
    return replace(
        segment,
        alpha_us_interval=(alpha_low * math.exp(-alpha_log), alpha_high * math.exp(alpha_log)),
        bandwidth_GBps_interval=(rate_low * math.exp(-rate_log), rate_high * math.exp(rate_log)),
    )


def _between_runs_log(noise: float, line: Curve, pieces: list[FittedSegment]) -> float:
    """Half of a 90 % interval, in log units, for what moves all sizes of a run alike, which no line through their
    medians shows: where repeats are much further apart than the medians are off the segments. 0 where they are not.
    """
    cuts = [(piece.first, piece.last + 1) for piece in pieces]
    lines = [(piece.alpha_us, piece.slope_us_per_byte) for piece in pieces]
    scatter = relative_scatter(line.sizes_bytes, line.times_us, cuts, lines)
    return SIGMA_90 * math.sqrt(noise**2 - scatter**2) if noise > MUCH_APART * scatter else 0.0


def _runs_apart(between_log: float) -> str:
    return (
        f"repeats differ at all sizes alike, as of unlike runs: α and bandwidth are no surer than "
        f"± {100 * math.expm1(between_log):.0f} %"
    )


def _breakpoints(pieces: list[FittedSegment], sizes: Floats) -> tuple[Breakpoint, ...]:
    """Between the last size of one segment and the first of the next: their geometric mean."""
    return tuple(
        Breakpoint(
            size_bytes=float(np.sqrt(sizes[piece.first - 1] * sizes[piece.first])),
            interval=(float(sizes[piece.start[0] - 1]), float(sizes[piece.start[1]])),
        )
        for piece in pieces[1:]
    )


def _faster_than_link(sizes: Floats, times: Floats, bus_factor: float, link_GBps: float | None) -> list[str]:
    if link_GBps is None:
        return []
    faster = int(np.sum(bus_factor * sizes / times > link_GBps * 1e3 * (1 + NOISE_FLOOR)))
    if not faster:
        return []
    return [
        f"{faster} of {len(sizes)} sizes were measured faster than the stated link of {link_GBps:g} GB/s, and are "
        "answered at its rate: is the figure right, or does the switch reduce?"
    ]


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


def reach_bytes(segments: tuple[Segment, ...], fraction: float) -> tuple[float, Interval]:
    """(first size at which size / time reaches a fraction of the last segment's bandwidth, its 90 % interval).

    The interval moves one segment's α, and one's bandwidth, after the other to the ends of theirs, in quadrature.
    """
    reached = _reach(segments, fraction)
    low_squares = high_squares = 0.0
    for index, segment in enumerate(segments):
        ends = [replace(segment, alpha_us=alpha_us) for alpha_us in segment.alpha_us_interval]
        for pair in (ends, [replace(segment, bandwidth_GBps=rate) for rate in segment.bandwidth_GBps_interval]):
            moved = [_reach((*segments[:index], end, *segments[index + 1 :]), fraction) - reached for end in pair]
            low_squares += min(*moved, 0.0) ** 2
            high_squares += max(*moved, 0.0) ** 2
    return reached, (max(reached - math.sqrt(low_squares), 0.0), reached + math.sqrt(high_squares))


def _reach(segments: tuple[Segment, ...], fraction: float) -> float:
    """Of one segment and a fraction of a half it is α · bandwidth: size / (α + size/b) = rate  ⇔  size = rate·α /
    (1 − rate/b)."""
    rate = fraction * segments[-1].bandwidth_GBps * 1e3  # bytes per us
    for segment in segments:
        ratio = rate / (segment.bandwidth_GBps * 1e3)
        size = rate * segment.alpha_us / (1 - ratio) if ratio < 1 else math.inf
        if size <= segment.to_bytes or segment is segments[-1]:
            break
    first = segment.from_bytes if segment is not segments[0] else 0
    return max(size, float(first))


def _identified(fit: Fit) -> list[str]:
    """What the sweep cannot tell: α without a size below n½, the bandwidth without one above 4 n½."""
    notes = []
    if fit.n_half_bytes < fit.curve[0][0]:
        notes.append("α not identified: no size below n½; measure smaller ones")
    if not fit.shows_bandwidth:
        notes.append("bandwidth not identified: no size above 4 n½; measure larger ones")
    return notes


def _error_pct(residuals_log: Floats) -> HeldOutError:
    """|predicted − measured| / measured over the held-out sizes, in percent."""
    if not len(residuals_log):
        return UNKNOWN_ERROR
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
    """One law per collective, group, regime and kind of links."""
    families: dict[tuple[object, ...], list[Fit]] = {}
    for fit in fits:
        network = network_of(fit.nranks, fit.nnodes)
        families.setdefault((fit.collective, fit.group, fit.backend, fit.dtype, fit.timing, network), []).append(fit)
    return tuple(fit_law(family) for family in families.values())
