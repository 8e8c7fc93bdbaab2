"""A sweep: a TOML file and flags -> the cells to measure. Pure; knows no torch and no clock.

A sweep file and the flags of `collbench run` use the same words, read by one table (`WORDS`); flags override the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from collbench.collectives import COLLECTIVES, Message, check_redop, find_collective, message
from collbench.dtypes import DTYPES, find_dtype
from collbench.errors import InputError, one_of
from collbench.results import Record
from collbench.tomlfile import TomlFile
from collbench.topology import Groups, check_group_kind
from collbench.units import parse_seconds, parse_size

TIMINGS = ("pipelined", "isolated")
BACKENDS = ("nccl", "gloo")
_MOST_SIZES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What to measure and how. `group` and `backend` are empty where the job decides.

    The size steps are nccl-tests': minbytes, then times `stepfactor` (or plus `stepbytes` where stepfactor is 1), up to
    maxbytes. `timeout_s` bounds one cell.
    """

    name: str = ""
    question: str = ""
    collective: tuple[str, ...] = tuple(COLLECTIVES)
    group: tuple[str, ...] = ()
    minbytes: int = 8
    maxbytes: int = 32 * 2**20
    stepfactor: int = 2
    stepbytes: int = 2**20
    datatype: tuple[str, ...] = ("float32",)
    redop: tuple[str, ...] = ("sum",)
    root: int = 0
    timing: tuple[str, ...] = TIMINGS
    iters: int = 20
    warmup_iters: int = 5
    check: int = 1
    concurrent: bool = True
    precision: float = 0.0
    seed: int = 0
    timeout_s: float = 60.0
    samples: bool = False
    backend: str = ""
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)  # field -> file:line, or flag

    def sizes(self) -> Iterator[int]:
        """The requested sizes in bytes, as nccl-tests steps through them (common.cu, TimeTest)."""
        size = self.minbytes
        while size <= self.maxbytes:
            yield size
            if self.stepfactor > 1:
                size = size * self.stepfactor or 8  # a factor leads nowhere from 0: go on from 8 bytes
            else:
                size += self.stepbytes

    def identity(self) -> dict[str, Any]:
        """What must be equal for a run to go on in the same file: all that a measured value depends on."""
        return identity_of(self.as_record())

    def as_record(self) -> dict[str, Any]:
        """The sweep as the run record keeps it."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "origins"}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def identity_of(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """`Sweep.identity` of the sweep that a run record keeps."""
    no_matter = ("name", "question", "timeout_s", "samples", "backend")
    return {name: value for name, value in sweep.items() if name not in no_matter}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One half-row of the table, for all groups of one kind: what is measured in one go.

    repeat: tells the two in-place passes apart where torch has no out-of-place form (the record's `pass`).
    requests: how many requested sizes round to this message; nccl-tests prints a row for each.
    """

    collective: str
    group: str
    dtype: str
    redop: str | None
    root: int | None
    requested_bytes: int
    timing: str
    in_place: bool
    repeat: int
    concurrent: bool
    requests: int = 1

    def message(self, nranks: int) -> Message:
        """What one call moves in a group of `nranks`."""
        return message(COLLECTIVES[self.collective], self.requested_bytes, nranks, DTYPES[self.dtype].itemsize)

    def record(self, group_ranks: tuple[int, ...]) -> Record:
        """The part of the measurement record that says what was measured, for one group of the kind."""
        sent = self.message(len(group_ranks))
        record: Record = {
            "collective": self.collective,
            "group": self.group,
            "group_ranks": list(group_ranks),
            "nranks": len(group_ranks),
            "dtype": self.dtype,
            "redop": self.redop,
            "root": self.root,
            "in_place": self.in_place,
            "pass": self.repeat,
            "size_bytes": sent.size_bytes,
            "count": sent.count,
            "timing": self.timing,
            "concurrent": self.concurrent,
        }
        return record if self.requests == 1 else {**record, "requests": self.requests}


def plan_cells(sweep: Sweep, groups: dict[str, Groups]) -> list[Cell]:
    """The cells of a sweep in the order of the table, for the groups this job can form.

    Requested sizes that round to the same message are one cell, measured once.
    """
    cells: dict[tuple[object, ...], Cell] = {}
    for cell in _cells(sweep, tuple(groups)):
        messages = tuple(cell.message(nranks) for nranks in sorted({len(ranks) for ranks in groups[cell.group]}))
        key = (replace(cell, requested_bytes=0), messages)
        cells[key] = replace(cells[key], requests=cells[key].requests + 1) if key in cells else cell
    return list(cells.values())


def _cells(sweep: Sweep, kinds: tuple[str, ...]) -> Iterator[Cell]:
    """One cell for every requested size."""
    for name, kind, dtype in product(sweep.collective, kinds, sweep.datatype):
        collective = COLLECTIVES[name]
        redops = sweep.redop if collective.reduces else (None,)
        for redop, size, timing, (in_place, repeat) in product(redops, sweep.sizes(), sweep.timing, collective.halves):
            yield Cell(
                collective=name,
                group=kind,
                dtype=dtype,
                redop=redop,
                root=sweep.root if collective.rooted else None,
                requested_bytes=size,
                timing=timing,
                in_place=in_place,
                repeat=repeat,
                concurrent=sweep.concurrent,
            )


def check_root(sweep: Sweep, groups: dict[str, Groups]) -> None:
    """InputError where the root (a rank inside the group) is outside a group."""
    if not any(COLLECTIVES[name].rooted for name in sweep.collective):
        return
    for kind, of_kind in groups.items():
        smallest = min(len(ranks) for ranks in of_kind)
        origin = f"{sweep.origins['root']}: " if "root" in sweep.origins else ""
        if sweep.root >= smallest:
            raise InputError(
                f"{origin}root {sweep.root}: a group of kind {kind} has {smallest} ranks: "
                f"expected a rank inside the group, 0 to {smallest - 1}"
            )


# --- reading -------------------------------------------------------------------------------------------------------


def _words(find: Callable[[str], str]) -> Callable[[object], tuple[str, ...]]:
    """A reader of one word or a list of words; a flag joins them by commas."""

    def read(value: object) -> tuple[str, ...]:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list) or not items or not all(isinstance(item, str) for item in items):
            raise InputError(f"is {value!r}: expected a word or a list of words")
        return tuple(dict.fromkeys(find(item.strip()) for item in items))

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


def _whole(least: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        try:
            number = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else None
        except ValueError:
            number = None
        if number is None or number < least:
            raise InputError(f"is {value!r}: expected a whole number of at least {least}")
        return number

    return read


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
    "collective": ("collective", _words(lambda text: find_collective(text).name)),
    "group": ("group", _words(check_group_kind)),
    "minbytes": ("minbytes", _size),
    "maxbytes": ("maxbytes", _size),
    "stepfactor": ("stepfactor", _whole(1)),
    "stepbytes": ("stepbytes", _size),
    "datatype": ("datatype", _words(lambda text: find_dtype(text).name)),
    "redop": ("redop", _words(check_redop)),
    "root": ("root", _whole(0)),
    "timing": ("timing", _timings),
    "iters": ("iters", _whole(1)),
    "warmup_iters": ("warmup_iters", _whole(0)),
    "check": ("check", _whole(0)),
    "concurrent": ("concurrent", _truth),
    "one_at_a_time": ("concurrent", lambda value: not _truth(value)),
    "op": ("redop", _words(check_redop)),
    "precision": ("precision", _fraction),
    "seed": ("seed", _whole(0)),
    "timeout": ("timeout_s", parse_seconds),
    "samples": ("samples", _truth),
    "backend": ("backend", _backend),
}


def load_sweep(path: str | Path | None = None, flags: dict[str, Any] | None = None) -> Sweep:
    """A sweep from a TOML file, flags (word -> value), or both; a flag overrides the file.

    Raises InputError naming the file and line, or the flag, and what was expected.
    """
    values: dict[str, Any] = {}
    where: dict[str, str] = {}
    if path is not None:
        file = TomlFile(path, "a sweep")
        if not file.data:
            raise InputError(f"{path}:1: is empty: expected a sweep, such as sweeps/quick.toml")
        for key, value in file.data.items():
            word = key.replace("-", "_")
            if word not in WORDS:
                raise InputError(f"{file.where(key)}: {one_of('key', key, list(WORDS))}")
            _read(word, value, file.where(key), values, where)
    for word, value in (flags or {}).items():
        _read(word, value, f"--{word.replace('_', '-')}", values, where)
    # The step is additive where only stepbytes is said, be it by a flag over a file that says stepfactor.
    said_last = flags if flags and ("stepbytes" in flags or "stepfactor" in flags) else values
    if "stepbytes" in said_last and "stepfactor" not in said_last:
        values["stepfactor"] = 1
    return _checked(Sweep(**values, origins=where))


def _read(word: str, value: Any, origin: str, values: dict[str, Any], where: dict[str, str]) -> None:
    name, read = WORDS[word]
    try:
        values[name] = read(value)
    except InputError as error:
        raise InputError(f"{origin}: {error}") from None
    where[name] = origin


def _checked(sweep: Sweep) -> Sweep:
    where = sweep.origins
    if sweep.minbytes > sweep.maxbytes:
        origin = where.get("minbytes") or where.get("maxbytes", "--minbytes")
        raise InputError(
            f"{origin}: minbytes {sweep.minbytes} is above maxbytes {sweep.maxbytes}: expected the smaller first"
        )
    if sweep.stepfactor == 1 and sweep.stepbytes == 0:
        raise InputError(f"{where.get('stepbytes', '--stepbytes')}: a step of 0 bytes never ends: expected 1 or more")
    if sweep.stepfactor == 1 and (steps := (sweep.maxbytes - sweep.minbytes) // sweep.stepbytes) > _MOST_SIZES:
        raise InputError(
            f"{where.get('stepbytes', '--stepbytes')}: makes {steps} sizes: expected at most {_MOST_SIZES}, "
            "so a larger step (or a factor: stepfactor)"
        )
    return sweep
