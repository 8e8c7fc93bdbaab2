"""The words of a sweep file and of the flags of `collbench run`: what each is called, and how its value is read.

A reader takes what TOML or a flag gives and raises InputError without saying where: whoever asks knows the place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from collbench.collectives import COLLECTIVES, REDOPS, check_redop, find_collective
from collbench.dtypes import DTYPES, find_dtype
from collbench.errors import InputError, one_of
from collbench.topology import check_group_kind
from collbench.units import parse_seconds, parse_size

TIMINGS = ("pipelined", "isolated")
BACKENDS = ("nccl", "gloo")
ORDERS = ("shuffled", "table")
ALL_ROOTS = -1
ENDLESS = 0  # passes


def _words(find: Callable[[str], str], everything: Iterable[str] = ()) -> Callable[[object], tuple[str, ...]]:
    """A reader of one word or a list of words; a flag joins them by commas. `everything` is what `all` stands for."""

    def read(value: object) -> tuple[str, ...]:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list) or not items or not all(isinstance(item, str) for item in items):
            raise InputError(f"is {value!r}: expected a word or a list of words")
        stripped = [item.strip() for item in items]
        words = [word for item in stripped for word in (everything if item == "all" and everything else [item])]
        return tuple(dict.fromkeys(find(word) for word in words))

    return read


def _timings(value: object) -> tuple[str, ...]:
    def find(text: str) -> str:
        if text not in (*TIMINGS, "both"):
            raise one_of("timing", text, [*TIMINGS, "both"])
        return text

    words = _words(find)(value)
    return TIMINGS if "both" in words else words


def _backend(value: object) -> str:
    if value not in BACKENDS:
        raise one_of("backend", value, list(BACKENDS))
    return str(value)


def _whole(least: int, most: int | None = None) -> Callable[[object], int]:
    expected = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"

    def read(value: object) -> int:
        try:
            number = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else None
        except ValueError:
            number = None
        if number is None or number < least or (most is not None and number > most):
            raise InputError(f"is {value!r}: expected {expected}")
        return number

    return read


def _root(value: object) -> int:
    return ALL_ROOTS if value in ("all", "-1", -1) else _whole(0)(value)


def _order(value: object) -> str:
    if value not in ORDERS:
        raise one_of("order", value, list(ORDERS))
    return str(value)


def _fraction(value: object) -> float:
    text = str(value)
    try:
        fraction = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        fraction = math.nan
    if isinstance(value, bool) or not 0 < fraction < 1:
        raise InputError(f"is {value!r}: expected a fraction of the time such as 0.02 or 2%")
    return fraction


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"is {value!r}: expected true or false")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise InputError(f"is {value!r}: expected text")
    return value


def _size(value: object) -> int:
    if not isinstance(value, int | str) or isinstance(value, bool):
        raise InputError(f'is {value!r}: expected a size such as 8 or "64K"')
    return parse_size(value)


# word of a sweep file and long flag -> (field of Sweep, reader)
WORDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "name": ("name", _text),
    "question": ("question", _text),
    "collective": ("collective", _words(lambda text: find_collective(text).name, COLLECTIVES)),
    "group": ("group", _words(check_group_kind)),
    "minbytes": ("minbytes", _size),
    "maxbytes": ("maxbytes", _size),
    "stepfactor": ("stepfactor", _whole(1)),
    "stepbytes": ("stepbytes", _size),
    "datatype": ("datatype", _words(lambda text: find_dtype(text).name, DTYPES)),
    "redop": ("redop", _words(check_redop, REDOPS)),
    "op": ("redop", _words(check_redop, REDOPS)),
    "root": ("root", _root),
    "timing": ("timing", _timings),
    "iters": ("iters", _whole(1)),
    "warmup_iters": ("warmup_iters", _whole(0)),
    "check": ("check", _whole(0)),
    "concurrent": ("concurrent", _truth),
    "one_at_a_time": ("concurrent", lambda value: not _truth(value)),
    "contention": ("contention", _truth),
    "precision": ("precision", _fraction),
    "budget": ("budget_s", parse_seconds),
    "passes": ("passes", _whole(ENDLESS)),
    "run_cycles": ("passes", _whole(ENDLESS)),
    "order": ("order", _order),
    "seed": ("seed", _whole(0)),
    "timeout": ("timeout_s", parse_seconds),
    "samples": ("samples", _truth),
    "agg_iters": ("agg_iters", _whole(1)),
    "blocking": ("blocking", _whole(0, 3)),
    "cudagraph": ("cudagraph", _whole(0)),
    "unalign": ("unalign", _whole(0)),
    "hot": ("hot", _truth),
    "per_iter_timing": ("per_iter", _whole(0, 1)),
    "per_iter_skip": ("per_iter_skip", _whole(0)),
    "with_compute": ("with_compute", _truth),
    "backend": ("backend", _backend),
}
