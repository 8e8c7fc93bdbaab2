"""Other ways to say how long a collective takes, on the same splits as collbench's model: see fit_accuracy.py.

Over sizes: a function of what is shown (sizes [n] and times [n], increasing) and of the sizes asked. Over rank counts:
a function of the shown curves, by rank count, and of the count and sizes asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
from scipy.interpolate import Akima1DInterpolator, PchipInterpolator

from collbench.collectives import find_collective
from collbench.model.curve import Curve, relative_line
from collbench.model.segments import fit_segments

Floats = np.ndarray


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One published curve: `points` [n, 2] of size in bytes and time in us."""

    id: str
    collective: str
    nranks: int
    nnodes: int
    points: Floats


def least_squares(sizes: Floats, times: Floats, asked: Floats) -> Floats:
    """One line through all points, every microsecond counting alike: as most planners fit."""
    slope, alpha = np.polyfit(sizes, times, 1)
    return np.maximum(alpha + slope * asked, 1e-3)


def two_points(sizes: Floats, times: Floats, asked: Floats) -> Floats:
    """Latency from the smallest size, bandwidth from the largest."""
    return times[0] + times[-1] / sizes[-1] * asked


def relative_alpha_beta(sizes: Floats, times: Floats, asked: Floats) -> Floats:
    """One line, every percent counting alike."""
    alpha, slope = relative_line(sizes, times)
    return alpha + slope * asked


def segments(sizes: Floats, times: Floats, asked: Floats) -> Floats:
    """Up to four lines, as many as an information criterion wants: collbench's own summary, read as a model."""
    pieces = fit_segments(sizes, times)
    starts = np.array([sizes[piece.first] for piece in pieces])
    which = np.clip(np.searchsorted(starts, asked, side="right") - 1, 0, None)
    alphas, slopes = (np.array([getattr(p, name) for p in pieces]) for name in ("alpha_us", "slope_us_per_byte"))
    return alphas[which] + slopes[which] * asked


def log_log(sizes: Floats, times: Floats, asked: Floats) -> Floats:
    """Interpolation in log–log; beyond the ends by the slope there."""
    x, y, q = np.log(sizes), np.log(times), np.log(asked)
    inside = np.interp(q, x, y)
    after = np.maximum(q - x[-1], 0) * (y[-1] - y[-2]) / (x[-1] - x[-2])
    before = np.minimum(q - x[0], 0) * (y[1] - y[0]) / (x[1] - x[0])
    return np.exp(inside + after + before)


def monotone_cubics(sizes: Floats, times: Floats, asked: Floats) -> Floats:
    """Cubics that rise and fall where the points do (Fritsch and Carlson)."""
    return PchipInterpolator(sizes, times)(asked)


def monotone_cubics_log_log(sizes: Floats, times: Floats, asked: Floats) -> Floats:
    """The same in log–log."""
    return np.exp(PchipInterpolator(np.log(sizes), np.log(times))(np.log(asked)))


def akima_log_log(sizes: Floats, times: Floats, asked: Floats) -> Floats:
    """Akima's cubics in log–log, whose slopes follow four neighbours."""
    return np.exp(Akima1DInterpolator(np.log(sizes), np.log(times))(np.log(asked)))


def held_bandwidth(sizes: Floats, times: Floats, asked: Floats) -> Floats:
    """Linear interpolation; beyond the largest size its bandwidth."""
    return np.interp(asked, sizes, times) * np.maximum(asked / sizes[-1], 1.0)


def last_two(sizes: Floats, times: Floats, asked: Floats) -> Floats:
    """Linear interpolation; beyond the largest size the line through the last two points."""
    slope = max((times[-1] - times[-2]) / (sizes[-1] - sizes[-2]), 0.0)
    return np.interp(asked, sizes, times) + slope * np.maximum(asked - sizes[-1], 0.0)


def last_four(sizes: Floats, times: Floats, asked: Floats) -> Floats:
    """Linear interpolation; beyond the largest size the relative α–β line of the last four points."""
    alpha, slope = relative_line(sizes[-4:], times[-4:])
    return np.where(asked > sizes[-1], alpha + slope * asked, np.interp(asked, sizes, times))


OVER_SIZES: dict[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "one least-squares line": least_squares,
    "two points": two_points,
    "relative α–β": relative_alpha_beta,
    "α–β segments (BIC)": segments,
    "log–log interpolation": log_log,
}
INSIDE_SIZES = {
    **OVER_SIZES,
    "monotone cubics": monotone_cubics,
    "monotone cubics, log–log": monotone_cubics_log_log,
    "Akima's cubics, log–log": akima_log_log,
}
BEYOND_SIZES = {
    **OVER_SIZES,
    "hold busbw": held_bandwidth,
    "line of the last two": last_two,
    "relative α–β of the last four": last_four,
}


def _curve(sweep: Sweep) -> Curve:
    return Curve(sweep.points[:, 0], sweep.points[:, 1])


def hold_busbw(shown: Sequence[Sweep], asked: Sweep) -> Floats:
    """The largest count's busbw at each size."""
    last, fraction = shown[-1], find_collective(asked.collective).sent_fraction
    return _curve(last).time_us(asked.points[:, 0]) * fraction(asked.nranks) / fraction(last.nranks)


def constant(shown: Sequence[Sweep], asked: Sweep) -> Floats:
    """The largest count's time."""
    return _curve(shown[-1]).time_us(asked.points[:, 0])


def ring(shown: Sequence[Sweep], asked: Sweep) -> Floats:
    """A step of so many bytes takes as long at any count."""
    last, steps = shown[-1], find_collective(asked.collective).ring_steps
    return (
        _curve(last).time_us(asked.points[:, 0] * last.nranks / asked.nranks) * steps(asked.nranks) / steps(last.nranks)
    )


def log_of_count(shown: Sequence[Sweep], asked: Sweep) -> Floats:
    """u + v·log2 N at each size by relative least squares, v not below zero; with one count its time."""
    sizes = asked.points[:, 0]
    times = np.array([_curve(sweep).time_us(sizes) for sweep in shown])
    depths = np.array([_depth(sweep) for sweep in shown])[:, None]
    weights = 1 / times**2
    centre = np.sum(weights * depths, axis=0) / np.sum(weights, axis=0)
    mean = np.sum(weights * times, axis=0) / np.sum(weights, axis=0)
    spread = np.sum(weights * (depths - centre) ** 2, axis=0)
    slope = np.sum(weights * (depths - centre) * (times - mean), axis=0) / np.where(spread > 0, spread, 1.0)
    return mean + np.maximum(slope, 0.0) * (_depth(asked) - centre)


def _depth(sweep: Sweep) -> float:
    return math.log2(sweep.nnodes if sweep.nnodes > 1 else sweep.nranks)


OVER_COUNTS: dict[str, Callable[[Sequence[Sweep], Sweep], Floats]] = {
    "hold busbw": hold_busbw,
    "constant time": constant,
    "ring of chunks": ring,
    "u + v·log2 N": log_of_count,
}


def torch_estimate(sweep: Sweep) -> Floats | None:
    """What torch's inductor takes a collective to cost without any measurement; None where this torch has no such
    function, or does not know the collective. The GPU generation is the one the sweep's source names."""
    try:
        from torch._inductor import comm_analysis as theirs

        kinds = theirs.NCCL_COLL
        known = {"all_reduce": kinds.ALL_REDUCE, "all_gather_into_tensor": kinds.ALL_GATHER}
        known |= {"reduce_scatter_tensor": kinds.REDUCE_SCATTER, "all_to_all_single": kinds.ALL_TO_ALL}
        generation = next((g for word, g in _generations(theirs.NVIDIA_GPU_TYPE) if sweep.id.startswith(word)), None)
        if generation is None or sweep.collective not in known:
            return None
        with _pretended(theirs, generation, math.ceil(sweep.nranks / sweep.nnodes)):
            times_ms = [
                theirs.estimate_nccl_collective_runtime_impl(int(size), sweep.nranks, known[sweep.collective])
                for size in sweep.points[:, 0]
            ]
    except (ImportError, AttributeError):
        return None
    return 1e3 * np.array(times_ms)


def _generations(types: Any) -> list[tuple[str, Any]]:
    hopper, ampere, blackwell = types.HOPPER, types.AMPERE, types.BLACKWELL
    named = {"p5": hopper, "simumax": hopper, "alps": hopper, "p4de": ampere, "a100": ampere, "polaris": ampere}
    return [*named.items(), ("b200", blackwell)]


@contextmanager
def _pretended(theirs: Any, generation: Any, gpus_per_node: int) -> Iterator[None]:
    """torch as it would see that machine: it asks for its GPUs, and here there may be none."""
    with (
        patch.object(theirs, "get_gpu_type", lambda: generation),
        patch.object(theirs, "_has_nvlink", lambda: True),
        patch.object(theirs.torch.cuda, "is_available", lambda: True),
        patch.object(theirs.torch.cuda, "device_count", lambda: gpus_per_node),
    ):
        yield
