"""Warnings where measured times contradict what any sane library keeps to: checks of fits against each other.

Guidelines of Träff, Gropp and Thakur ("Self-consistent MPI performance requirements"): a collective takes no longer
than the collectives it can be put together from, and a message no longer than a larger one. A broken one means a bad
choice of algorithm, an unstable network or a wrong measurement. A difference counts where it is above 5 % and above
four times the noise, which the curves themselves show: how far a point lies off its neighbours (the median over the
curve, which a few jumps do not move).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from collbench.model.band import band
from collbench.model.estimate import Flags
from collbench.model.laws import Fit
from collbench.model.spread import SIGMA_OF_MEDIAN
from collbench.topology import counts
from collbench.units import format_size, format_time_us

# The collective -> what makes the same at the same size (nccl-tests': all_gather's and reduce_scatter's is the whole).
_GUIDELINES = {
    "all_reduce": ("reduce_scatter_tensor", "all_gather_into_tensor"),
    "broadcast": ("scatter", "all_gather_into_tensor"),
    "reduce": ("reduce_scatter_tensor", "gather"),
    "reduce_scatter_tensor": ("all_reduce",),
    "scatter": ("broadcast",),
    "gather": ("all_gather_into_tensor",),
}
_LEAST_EXCESS = math.log(1.05)  # a difference of less is no news, however small the noise
_SIGMAS = 4.0  # of lines with 5 % noise 1 in 400 of 28 points is warned of, 1 in 40 of 40
_UNLIKE = 1.10  # groups of a kind whose typical times differ by more are worth a look
_LEAST_SIZES = 3  # one slow size is an outlier, not a slow group; and fewer show no noise


def broken_guidelines(fits: Sequence[Fit]) -> list[str]:
    """One line per broken guideline: what, where, by how much, at how many sizes."""
    return [*_composed(fits), *(line for fit in fits for line in _falling(fit))]


def _composed(fits: Sequence[Fit]) -> Iterator[str]:
    """Collectives slower than the ones they can be put together from."""
    by_key: dict[tuple[object, ...], dict[str, Fit]] = {}
    # Out of place before in place, for the collectives that have both: the cheaper comparison of the two.
    for fit in sorted(fits, key=lambda fit: (False, None, True).index(fit.in_place)):
        key = (fit.group, fit.nranks, fit.nnodes, fit.backend, fit.dtype, fit.timing, fit.concurrent)
        by_key.setdefault(key, {}).setdefault(fit.collective, fit)
    for of_key in by_key.values():
        for name, parts in _GUIDELINES.items():
            if name in of_key and all(part in of_key for part in parts):
                yield from _slower_than(of_key[name], [of_key[part] for part in parts])


def _slower_than(whole: Fit, parts: Sequence[Fit]) -> Iterator[str]:
    sizes = np.array([size for size, _ in whole.curve], dtype=np.float64)
    first = max(part.curve[0][0] for part in parts)
    last = min(part.curve[-1][0] for part in parts)
    sizes = sizes[(first <= sizes) & (sizes <= last)]
    if not len(sizes):
        return
    own_us, others_us = band(whole, sizes).time_us, [band(part, sizes).time_us for part in parts]
    ratios = own_us / np.sum(others_us, axis=0)
    broken: Flags = np.log(ratios) > _threshold(whole, *parts)
    if not broken.any():
        return
    worst = int(np.argmax(np.where(broken, ratios, 0.0)))
    made = " + ".join(part.collective for part in parts)
    times = " + ".join(format_time_us(times_us[worst]) for times_us in others_us)
    yield (
        f"guideline: {_named(whole)}: slower than {made} at {_of(int(broken.sum()), len(sizes))}, most at "
        f"{format_size(sizes[worst])}: {format_time_us(own_us[worst])} against {times} ({ratios[worst]:.2f}×)"
    )


def _falling(fit: Fit) -> Iterator[str]:
    """Larger messages that are faster than a smaller one."""
    sizes, times_us = np.array(fit.curve, dtype=np.float64).T
    falls = np.log(np.maximum.accumulate(times_us) / times_us)  # [n], 0 where no smaller message is slower
    threshold = _threshold(fit, fit)
    lowest = int(np.argmax(falls))
    if falls[lowest] <= threshold:
        return
    slow = int(np.argmax(times_us[:lowest]))
    faster = int(np.sum(np.log(times_us[slow] / times_us[slow + 1 :]) > threshold))
    yield (
        f"guideline: {_named(fit)}: {format_size(sizes[slow])} takes {format_time_us(times_us[slow])}, longer than "
        f"{faster} larger size{'s' * (faster != 1)}, such as {format_size(sizes[lowest])} with "
        f"{format_time_us(times_us[lowest])}"
    )


def _threshold(*fits: Fit) -> float:
    """Above which log ratio of times of these fits (of two points, where one is named twice) a difference counts."""
    return max(_LEAST_EXCESS, _SIGMAS * math.sqrt(sum(_noise(fit) ** 2 for fit in fits)))


def _noise(fit: Fit) -> float:
    """Relative noise of one point: its distance from the mean of its neighbours in log time, σ from the median.

    The distance has 3/2 of a point's variance. Curvature adds to it, so the figure is rather too large than too small.
    """
    logs = np.log(np.array([time_us for _, time_us in fit.curve]))
    if len(logs) < _LEAST_SIZES:
        return 0.0
    distances = logs[1:-1] - (logs[:-2] + logs[2:]) / 2
    return SIGMA_OF_MEDIAN * float(np.median(np.abs(distances))) / math.sqrt(1.5)


def unlike_groups(name: str, groups: Mapping[tuple[int, ...], Mapping[float, float]], noise: float) -> list[str]:
    """Groups of one kind whose times are above the other groups', at most of the sizes and beyond the noise.

    `groups`: size in bytes -> median time in us of each group of ranks; `noise`: the relative noise of one of them. A
    fit takes the slowest group at each size, so one slow group makes all of its figures.
    """
    shared = sorted(set.intersection(*(set(times) for times in groups.values()))) if len(groups) > 1 else []
    if len(shared) < _LEAST_SIZES:
        return []
    logs = np.log([[times[size] for size in shared] for times in groups.values()])  # [groups, sizes]
    lines = []
    for index, group in enumerate(groups):
        usual = np.median(np.delete(logs, index, axis=0), axis=0)
        excess = float(np.median(logs[index] - usual))
        if excess > max(math.log(_UNLIKE), _SIGMAS * noise):
            lines.append(
                f"groups unlike: {name}: group {_ranks(group)} takes {math.exp(excess):.2f}× the time of the other "
                f"{len(groups) - 1} (median over {len(shared)} sizes); a fit takes the slowest group"
            )
    return lines


def _ranks(group: tuple[int, ...]) -> str:
    """`[0, 1, 2, 3]`, a long one `[0, 8, … 504]`."""
    if len(group) <= 8:
        return str(list(group))
    return f"[{group[0]}, {group[1]}, … {group[-1]}]"


def _named(fit: Fit) -> str:
    return f"{fit.collective} {fit.group} ({counts(fit.nranks, fit.nnodes)}, {fit.timing})"


def _of(broken: int, sizes: int) -> str:
    return f"{broken} of {sizes} size{'s' * (sizes != 1)}"
