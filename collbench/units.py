"""Sizes, rates and latencies: read from text, written to text. The only place that knows a unit.

Sizes follow nccl-tests where it speaks (`8`, `64K`, `1G`: powers of 1024), IEC for `KiB/MiB/GiB`, and powers of
1000 for `kB/MB/GB`. Bandwidth is GB/s with GB = 10^9 bytes. Times are seconds inside, suffixed where they are stored.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from collbench.errors import InputError

_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ/]*)\s*")

_SIZE_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _SIZE_UNITS[_letter] = _SIZE_UNITS[_letter + "ib"] = 1024**_power
    _SIZE_UNITS[_letter + "b"] = 1000**_power

# GB/s per unit; a small b is a bit, a capital B a byte.
_RATE_UNITS = {"": 1.0}
for _power, _letter in ((0, ""), (3, "k"), (3, "K"), (6, "M"), (9, "G"), (12, "T")):
    _RATE_UNITS[f"{_letter}B/s"] = _RATE_UNITS[f"{_letter}Bps"] = 10.0**_power / 1e9
    _RATE_UNITS[f"{_letter}b/s"] = _RATE_UNITS[f"{_letter}bit/s"] = _RATE_UNITS[f"{_letter}bps"] = 10.0**_power / 8e9
for _power, _letter in ((1, "Ki"), (2, "Mi"), (3, "Gi"), (4, "Ti")):
    _RATE_UNITS[f"{_letter}B/s"] = 1024.0**_power / 1e9

_TIME_UNITS = {"": 1e-6, "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


_LARGEST_SIZE = 2**63 - 1  # what a tensor can be


def _split(text: object, what: str, expected: str) -> tuple[str, str]:
    match = _NUMBER.fullmatch(str(text)) if not isinstance(text, bool) else None
    if match is None:
        raise InputError(f"{what} {str(text)!r} is not understood: expected {expected}")
    value = float(match[1])
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{what} {str(text)!r} must be a finite number, not below zero: expected {expected}")
    return match[1], match[2]


def parse_size(text: object, what: str = "size") -> int:
    """Bytes from `8`, `64K`, `1.5M`, `2GiB`, `25MB`; fractions of a byte are cut, as nccl-tests cuts them.

    Raises InputError for anything else, negative numbers included.
    """
    expected = "bytes, or a number with K, M, G (1024, like KiB, MiB, GiB) or kB, MB, GB (1000)"
    value, unit = _split(text, what, expected)
    factor = _SIZE_UNITS.get(unit.lower())
    if factor is None:
        raise InputError(f"{what} {str(text)!r} has the unknown unit {unit!r}: expected {expected}")
    # Exact: in floats 1.001kB would be 1000.99... bytes.
    size = Decimal(value) * factor
    if size > _LARGEST_SIZE:
        raise InputError(f"{what} {str(text)!r} is more than any memory holds: expected {expected}")
    return int(size)


def parse_rate(text: object, what: str = "bandwidth") -> float:
    """GB/s (10^9 bytes) from `25GB/s`, `200Gb/s` (bits: 25 GB/s), or a bare number of GB/s. Must be above zero."""
    expected = "a rate above zero such as 25GB/s, 200Gb/s (bits), or a bare number of GB/s"
    value, unit = _split(text, what, expected)
    factor = _RATE_UNITS.get(unit)
    if factor is None:
        raise InputError(f"{what} {str(text)!r} has the unknown unit {unit!r}: expected {expected}")
    rate = float(value) * factor
    if not 0 < rate < math.inf:
        raise InputError(f"{what} {str(text)!r} must be finite and above zero: expected {expected}")
    return rate


def parse_latency(text: object, what: str = "latency") -> float:
    """Seconds from `5us`, `0.1ms`, `2e-6s`; a bare number is µs, the unit of every table."""
    expected = "a time such as 5us, 0.1ms, or a bare number of us"
    value, unit = _split(text, what, expected)
    factor = _TIME_UNITS.get(unit)
    if factor is None:
        raise InputError(f"{what} {str(text)!r} has the unknown unit {unit!r}: expected {expected}")
    return float(value) * factor


def parse_seconds(value: object) -> float:
    """Seconds from `60` or `60s`: above zero, at most a million (what a timer can hold)."""
    try:
        seconds = float(str(value).removesuffix("s"))
    except ValueError:
        seconds = math.nan
    if isinstance(value, bool) or not 0 < seconds <= 1e6:
        raise InputError(f"is {value!r}: expected seconds above zero, such as 60")
    return seconds


def seconds_of(flag: str, value: object) -> float:
    """`parse_seconds` of a flag's value; its InputError names the flag."""
    try:
        return parse_seconds(value)
    except InputError as error:
        raise InputError(f"{flag}: {error}") from None


def format_size(size_bytes: float) -> str:
    """`8 B`, `64 KiB`, `1.5 MiB`: at most four digits, binary units."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size_bytes >= 1024**power:
            return f"{size_bytes / 1024**power:.4g} {unit}"
    return f"{size_bytes:.4g} B"


def format_time_us(time_us: float) -> str:
    """`12.3 us`, `4.56 ms`, `1.2 s`: three digits, the unit that reads best."""
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if time_us >= 0.9995 * factor:  # three digits of 999.7 us are 1 ms
            return f"{time_us / factor:.3g} {unit}" if time_us / factor < 999.5 else f"{time_us / factor:.0f} {unit}"
    return f"{time_us:.3g} us"
