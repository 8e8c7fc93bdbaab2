"""How the report writes numbers: significant digits, never an exponent, a dash for what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

UNKNOWN = "–"


def digits(value: float | None, significant: int = 3) -> str:
    """`2490`, `0.872`, `0.0000101`: `significant` digits; whole digits are never cut, trailing zeros are kept."""
    if value is None:
        return UNKNOWN
    if value == 0 or abs(value) >= 10**significant:
        return f"{value:.0f}"
    return f"{Decimal(f'{value:#.{significant}g}'):f}".removesuffix(".")


def interval(ends: Sequence[float], significant: int = 3) -> str:
    """`[266, 411]`."""
    return f"[{digits(ends[0], significant)}, {digits(ends[1], significant)}]"


def ms(value: float | None) -> str:
    """`107.6 ms`: four digits, so that the parts of a step add up."""
    return UNKNOWN if value is None else f"{digits(value, 4)} ms"


def percent(value: float | None, signed: bool = False) -> str:
    """`1.7 %`, signed `+1.7 %`."""
    return UNKNOWN if value is None else f"{value:{'+' if signed else ''}.1f} %"
