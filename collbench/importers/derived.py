"""What follows from numbers as they are printed: intervals that must meet, times that only a bandwidth tells."""

from __future__ import annotations

from collections.abc import Iterable

from collbench.importers.spans import Span
from collbench.importers.table import Printed

GIB_PER_GB = 2**30 / 1e9  # what a tool that divides by 2^30 and prints GB/s is off by
GBPS_PER_GBITPS = 1 / 8

# What a log can say at most: their product is still a size that a results file holds.
MOST_BYTES = 2**42
MOST_RANKS = 2**20


def whole(text: str) -> int | None:
    """The whole number that a cell is; None for anything else, and for what is too long to be one of a log."""
    return int(text) if len(text) <= 15 and text.isascii() and text.isdecimal() else None


def ranks_in(text: str) -> int | None:
    """Likewise, of ranks or nodes: at least one, and not more than there are."""
    count = whole(text)
    return count if count is not None and 1 <= count <= MOST_RANKS else None


def count_in(number: Printed | None) -> int | None:
    """How many a cell says; None for none, and for one below 0."""
    return int(number.value) if number is not None and number.value >= 0 else None


def exact(value: float) -> Printed:
    """A number without a rounding of its own."""
    return Printed(value, 0.0)


def agree(one: Printed, other: Printed) -> bool:
    """Whether both may be roundings of one value."""
    return Span.of(one).meets(Span.of(other))


def single(printed: Printed) -> Printed:
    """A number that was computed in single precision and printed with more digits than that holds."""
    return Printed(printed.value, max(printed.half_step, 2.0**-23 * abs(printed.value)))


def quotient(numerator: Printed, denominator: Printed) -> Printed | None:
    """Their ratio and how far it may be off; None where the denominator may be 0."""
    low = denominator.value - denominator.half_step
    if low <= 0:
        return None
    ratio = numerator.value / denominator.value
    return Printed(ratio, (numerator.value + numerator.half_step) / low - ratio)


def time_us(size_bytes: float, algbw_GBps: Printed) -> Printed | None:
    """The time that an operation of this bandwidth took; None where the bandwidth is printed as 0."""
    return quotient(exact(size_bytes / 1e3), algbw_GBps)  # 1 GB/s is 1e3 bytes per us


def rate_GBps(size_bytes: float, time_us: Printed) -> Printed | None:
    """size / time; None where the time may be 0."""
    return quotient(exact(size_bytes / 1e3), time_us)


def ranks_of_share(ratios: Iterable[Printed]) -> int | None:
    """The one n whose (n-1)/n lies within the rounding of all these ratios; None where none or several do."""
    low, high = 2.0, float(MOST_RANKS)
    for ratio in ratios:
        least, most = ratio.value - ratio.half_step, ratio.value + ratio.half_step
        if least < 1:
            low = max(low, 1 / (1 - least))
        else:
            return None
        if most < 1:
            high = min(high, 1 / (1 - most))
    first, last = round(low), round(high)
    first += first < low - 1e-6
    last -= last > high + 1e-6
    return first if first == last else None
