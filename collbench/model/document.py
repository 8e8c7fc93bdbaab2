"""The JSON of a model file to laws and back, every value checked. numpy-free and scipy-free.

A value that is not what it must be raises InputError, one line: `model.json: fits[2].alpha_us is nan: expected …`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from collbench.collectives import find_collective
from collbench.errors import InputError
from collbench.model.curve import UNKNOWN_LOG
from collbench.model.laws import (
    ALGORITHMS,
    UNKNOWN_ERROR,
    Breakpoint,
    Fit,
    HeldOutError,
    Interval,
    Scaling,
    Segment,
)
from collbench.model.prior import KINDS as PRIORS
from collbench.model.prior import Prior

if TYPE_CHECKING:
    from collbench.model.contention import Contention
    from collbench.model.slowdown import Overlap

Json = dict[str, Any]
LARGEST = 1e300  # no size, time or rate
Convert = Callable[[Any], Any]  # the value read, or ValueError saying what was expected
Defaulted = tuple[Convert, Any]  # with what stands for a key that is missing or null


def to_json(part: Fit | Scaling | Overlap | Contention) -> Json:
    """The file's object of a part of a model: field names are its keys."""
    return _plain(asdict(part))


def fit_from_json(record: Any, where: str) -> Fit:
    values = _read_all(record, _FIT_FIELDS, where, _OPTIONAL_FIT_FIELDS)
    if values["nnodes"] > values["nranks"]:
        raise InputError(f"{where}.nnodes is {values['nnodes']}: expected at most nranks, {values['nranks']}")
    if values["spread_log"] and len(values["spread_log"]) != len(values["curve"]):
        raise InputError(f"{where}.spread_log has {len(values['spread_log'])} values: expected one per point of curve")
    return Fit(**values)


def scaling_from_json(record: Any, where: str) -> Scaling:
    return Scaling(**_read_all(record, _SCALING_FIELDS, where, _OPTIONAL_SCALING_FIELDS))


def overlap_from_json(record: Any, where: str) -> Overlap:
    from collbench.model.slowdown import Overlap  # where a file holds one: few do

    return Overlap(**_read_all(record, _OVERLAP_FIELDS, where))


def contention_from_json(record: Any, where: str) -> Contention:
    from collbench.model.contention import Contention  # where a file holds one: few do

    return Contention(**_read_all(record, _CONTENTION_FIELDS, where))


def _plain(record: Json) -> Json:
    """Tuples as lists, as they are in JSON."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, (tuple, list)) else value

    return {name: plain(value) for name, value in record.items()}


def _read_all(record: Any, fields: Mapping[str, Convert], where: str, optional: Mapping[str, Defaulted] = {}) -> Json:
    if not isinstance(record, dict):
        raise InputError(f"{where} is {_short(record)}: expected an object")
    values = {name: _read(record, name, convert, where) for name, convert in fields.items()}
    for name, (convert, default) in optional.items():
        values[name] = _read(record, name, convert, where) if record.get(name) is not None else default
    return values


def _read(record: Json, name: str, convert: Convert, where: str) -> Any:
    if name not in record:
        raise InputError(f"{where}.{name} is missing: fit the results again with 'collbench fit'")
    try:
        return convert(record[name])
    except ValueError as error:
        raise InputError(f"{where}.{name} is {_short(record[name])}: expected {error}") from None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _number(value: Any, expected: str = "a finite number") -> float:
    # Comparing does not overflow, where isfinite of a huge whole number does; NaN is not less than anything.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < LARGEST:
        raise ValueError(expected)
    return value


def _not_negative(value: Any) -> float:
    expected = "a finite number, not below zero"
    if _number(value, expected) < 0:
        raise ValueError(expected)
    return float(value)


def _positive(value: Any) -> float:
    expected = "a finite number above zero"
    if _number(value, expected) <= 0:
        raise ValueError(expected)
    return float(value)


def _whole(least: int) -> Convert:
    def convert(value: Any) -> int:
        expected = f"a whole number of at least {least}"
        if _number(value, expected) < least or value != int(value):
            raise ValueError(expected)
        return int(value)

    return convert


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true, false or null")
    return value


def _or_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _word(*known: str) -> Convert:
    def convert(value: Any) -> str:
        if value not in known:
            raise ValueError(" or ".join(known))
        return str(value)

    return convert


def _collective(value: Any) -> str:
    try:
        return find_collective(value).name
    except InputError as error:
        raise ValueError(f"a collective ({error})") from None


def _interval(convert: Convert) -> Callable[[Any], Interval]:
    def read(value: Any) -> Interval:
        expected = "two numbers [low, high]"
        if not isinstance(value, list) or len(value) != 2:
            raise ValueError(expected)
        low, high = convert(value[0]), convert(value[1])
        if low > high:
            raise ValueError(f"{expected}, the lower one first")
        return (low, high)

    return read


def _interval_log(value: Any) -> Interval:
    low, high = _interval(lambda end: float(_number(end)))(value)
    if low > 0 or high < 0:
        raise ValueError("two numbers [low, high] around zero")
    return (low, high)


def _curve(value: Any) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("a list of [size_bytes, time_us]")
    points: list[tuple[int, float]] = []
    for index, point in enumerate(value):
        if not isinstance(point, list) or len(point) != 2:
            raise ValueError(f"[size_bytes, time_us] as point {index}")
        try:
            points.append((_whole(1)(point[0]), _positive(point[1])))
        except ValueError as error:
            raise ValueError(f"{error} in point {index}") from None
        if index and points[index][0] <= points[index - 1][0]:
            raise ValueError(f"increasing sizes at point {index}")
    return tuple(points)


def _prior_point(value: Any) -> tuple[int, float, float]:
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError("a list of [size_bytes, time_us, half of the interval]")
    return (_whole(1)(value[0]), _positive(value[1]), _not_negative(value[2]))


def _list_of(convert: Convert, *, least: int = 0) -> Callable[[Any], tuple[Any, ...]]:
    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) < least:
            raise ValueError("a list" if least == 0 else f"a list of at least {least}")
        return tuple(convert(item) for item in value)

    return read


def _object(make: Callable[..., Any], fields: Mapping[str, Convert]) -> Convert:
    """An object inside a fit; what is wrong with it is told as the expectation of the key it stands under."""

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError("an object")
        missing = [name for name in fields if name not in value]
        if missing:
            raise ValueError(f"the key {missing[0]}")
        values = {}
        for name, convert in fields.items():
            try:
                values[name] = convert(value[name])
            except ValueError as error:
                raise ValueError(f"{name} to be {error}") from None
        return make(**values)

    return read


_SEGMENT_FIELDS: dict[str, Convert] = {
    "from_bytes": _whole(1),
    "to_bytes": _whole(1),
    "alpha_us": _not_negative,
    "bandwidth_GBps": _positive,
}


def _segment(value: Any) -> Segment:
    """Its intervals are this program's own addition: without them they are the figures themselves."""
    plain = _object(dict, _SEGMENT_FIELDS)(value)
    optional = {
        "alpha_us_interval": (_not_negative, "alpha_us"),
        "bandwidth_GBps_interval": (_positive, "bandwidth_GBps"),
    }
    for name, (convert, figure) in optional.items():
        given = value.get(name)
        plain[name] = (plain[figure], plain[figure]) if given is None else _interval(convert)(given)
    return Segment(**plain)


_ERROR = _object(HeldOutError, {"median": _or_null(_not_negative), "p90": _or_null(_not_negative), "held_out": _flag})
_FIT_FIELDS: dict[str, Convert] = {
    "collective": _collective,
    "group": _text,
    "nranks": _whole(2),
    "nnodes": _whole(1),
    "backend": _or_null(_text),
    "dtype": _or_null(_text),
    "in_place": _or_null(_flag),
    "timing": _word("isolated", "pipelined"),
    "concurrent": _or_null(_flag),
    "curve": _curve,
    "segments": _list_of(_segment, least=1),
    "alpha_us": _not_negative,
    "alpha_us_interval": _interval(_not_negative),
    "busbw_GBps": _positive,
    "busbw_GBps_interval": _interval(_positive),
    "n_half_bytes": _not_negative,
    "error_pct": _ERROR,
    "points": _whole(1),
}
_OPTIONAL_FIT_FIELDS: dict[str, Defaulted] = {
    "interval_log": (_interval_log, (-UNKNOWN_LOG, UNKNOWN_LOG)),
    "spread_log": (_list_of(_not_negative), ()),
    "n_half_bytes_interval": (_interval(_not_negative), None),
    "size_90_bytes": (_not_negative, None),
    "size_90_bytes_interval": (_interval(_not_negative), None),
    "breakpoints": (_list_of(_object(Breakpoint, {"size_bytes": _positive, "interval": _interval(_positive)})), ()),
    "link_GBps": (_positive, None),
    "prior": (_object(Prior, {"kind": _word(*PRIORS), "points": _list_of(_prior_point, least=1)}), None),
    "notes": (_list_of(_text), ()),
}
_SCALING_FIELDS: dict[str, Convert] = {
    "collective": _collective,
    "group": _text,
    "algorithm": _word(*ALGORITHMS),
    "alpha_us_per_step": _not_negative,
    "link_GBps": _positive,
}
_OPTIONAL_SCALING_FIELDS: dict[str, Defaulted] = {
    "backend": (_text, None),
    "dtype": (_text, None),
    "timing": (_FIT_FIELDS["timing"], None),
    "nranks": (_list_of(_whole(2), least=1), ()),
    "network": (_text, None),
    "offset": (_not_negative, None),
    "exponent": (_positive, None),
    "call_us": (_not_negative, None),
    "spread_log": (_not_negative, None),
    "error_pct": (_ERROR, UNKNOWN_ERROR),
}
_OVERLAP_FIELDS: dict[str, Convert] = {
    **{name: _FIT_FIELDS[name] for name in ("collective", "group", "nranks", "nnodes", "backend")},
    "size_bytes": _whole(1),
    "comm_slowdown": _positive,
    "compute_slowdown": _positive,
}
_CONTENTION_FIELDS: dict[str, Convert] = {
    **{name: _FIT_FIELDS[name] for name in ("collective", "group", "nranks", "nnodes", "backend", "dtype", "timing")},
    **dict.fromkeys(("latency_factor", "transfer_factor", "spread_log"), _not_negative),
    **{f"{name}_factor_interval": _interval(_not_negative) for name in ("latency", "transfer")},
    **{name: _whole(1) for name in ("from_bytes", "to_bytes", "points")},
}
