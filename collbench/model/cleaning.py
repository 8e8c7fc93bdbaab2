"""What a measured curve holds besides the collective's time: a first call that warmed up, cells that were disturbed.

Nothing is dropped in silence: every finding is a note. A point that stands alone and that no repeat confirms is set
aside; one that may be real stays in the curve, and only the α–β segments leave it out. numpy alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from collbench.model.estimate import Flags, Floats
from collbench.model.spread import SIGMA_OF_MEDIAN
from collbench.units import format_size, format_time_us

LEAST_WARM_UP = 0.15  # log units the first row must be above the rows behind it: 85 µs before 63 µs is warm-up
FLAT_ROWS = 3  # the rows behind the first, which must agree among themselves
FLAT_REACH = 64  # and be no further than this factor from it
LEAST_POINTS = 5  # with fewer nothing can be told from a curve's own shape
LEAST_LEFT = 3  # what a line needs: a curve of hardly anything but dips is taken as it is
LEAST_DIP = 0.2  # log units above both neighbours
SET_ASIDE = 1.1  # three times as slow as both neighbours
SIGMAS = 4.0  # of the curve's own noise; the larger limit counts
AGREEING = 0.2  # repeats this near in log units confirm each other


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """keep: points of the curve [n].  odd: points that segments leave out [n], a superset of what is not kept."""

    keep: Flags
    odd: Flags
    notes: tuple[str, ...]


def clean(sizes_bytes: Floats, times_us: Floats, repeats_log: tuple[Floats, ...]) -> Cleaned:
    """Judge the n ≥ 1 points of a curve; `repeats_log` are each point's log(repeat / median).

    A warm-up is a first row slower than the next three, which agree; a dip (of the bandwidth) is an inner point slower
    than both its neighbours (Hampel's test with a window of three, against the noise of the whole curve). A peak is one
    faster than the smaller messages before it, after which time grows by more than the size: no α–β line does that,
    where a step down to a faster algorithm does the first alone.
    """
    n, notes = len(sizes_bytes), []
    keep, odd = np.ones(n, dtype=bool), np.zeros(n, dtype=bool)
    if n < LEAST_POINTS:
        return Cleaned(keep=keep, odd=odd, notes=())
    logs = np.log(times_us)
    confirmed = np.array([len(repeat) > 1 and float(np.ptp(repeat)) <= AGREEING for repeat in repeats_log])
    if _warms_up(sizes_bytes, logs) and not confirmed[0]:
        keep[0] = False
        odd[0] = True
        notes.append(
            f"first row set aside as warm-up: {format_size(sizes_bytes[0])} took {format_time_us(times_us[0])}, "
            f"{format_size(sizes_bytes[1])} {format_time_us(times_us[1])}"
        )
    above = np.zeros(n)
    above[1:-1] = logs[1:-1] - np.maximum(logs[:-2], logs[2:])
    limit = max(LEAST_DIP, SIGMAS * _noise(logs))
    dips = set(np.flatnonzero(above > limit).tolist())
    peaks = {index for index in _peaks(sizes_bytes, logs, limit) if index + 1 not in dips}
    found: list[tuple[int, float, str]] = []  # with the log of how far off it is, and words
    for index in sorted(dips - {index - 1 for index in peaks}):  # before a peak anything is slower than its neighbours
        words = f"{format_time_us(times_us[index])} is {np.exp(above[index]):.2g}× the slower of its neighbours"
        found.append((index, above[index], f"dip at {format_size(sizes_bytes[index])}: {words}"))
    for index in sorted(peaks):
        before_us, own_us, after_us = times_us[index - 1 : index + 2]
        words = f"{format_time_us(own_us)}, its neighbours {format_time_us(before_us)} and {format_time_us(after_us)}"
        below = math.log(min(before_us, after_us) / own_us)
        found.append((index, below, f"peak at {format_size(sizes_bytes[index])}: {words}"))
    for index, off_log, words in found:
        aside = off_log > SET_ASIDE and not confirmed[index]
        odd[index] = True
        keep[index] &= not aside
        notes.append(f"{words}: {'set aside' if aside else 'kept, left out of the segments'}")
    if np.sum(~odd) < LEAST_LEFT:
        return Cleaned(keep=np.ones(n, dtype=bool), odd=np.zeros(n, dtype=bool), notes=())
    return Cleaned(keep=keep, odd=odd, notes=tuple(notes))


def _warms_up(sizes: Floats, logs: Floats) -> bool:
    """Whether the first row is above the next three by more than these differ."""
    if sizes[FLAT_ROWS] > FLAT_REACH * sizes[0]:
        return False
    behind = logs[1 : FLAT_ROWS + 1]
    return bool(logs[0] - behind.max() > max(LEAST_WARM_UP, float(np.ptp(behind))))


def _peaks(sizes: Floats, logs: Floats, limit: float) -> list[int]:
    """Points more than `limit` below the two before, of which one may be slow itself, and below where their size alone
    would put the next one."""
    per_byte = logs - np.log(sizes)
    before = np.minimum(logs[:-3], logs[1:-2]) - logs[2:-1]
    behind = per_byte[3:] - per_byte[2:-1]
    return (np.flatnonzero(np.minimum(before, behind) > limit) + 2).tolist()


def _noise(logs: Floats) -> float:
    """Standard deviation of one point of the curve, by its second differences: a bend is no noise, a spike is one."""
    seconds = logs[1:-1] - (logs[:-2] + logs[2:]) / 2
    centred = np.abs(seconds - np.median(seconds))
    return SIGMA_OF_MEDIAN * float(np.median(centred)) / math.sqrt(1.5)
