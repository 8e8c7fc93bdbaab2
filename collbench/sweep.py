"""A sweep: a TOML file and flags -> the cells to measure. Pure; knows no torch and no clock.

A sweep file and the flags of `collbench run` use the same words, read by one table (`WORDS`); flags override the file.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from collbench.collectives import (
    COLLECTIVES,
    DEFAULT_COLLECTIVES,
    Message,
    message,
)
from collbench.dtypes import DTYPES
from collbench.errors import InputError, one_of
from collbench.results import Record
from collbench.sweep_words import ALL_ROOTS, TIMINGS, WORDS
from collbench.tomlfile import TomlFile
from collbench.topology import Groups

_MOST_SIZES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What to measure and how. `group` and `backend` are empty where the job decides.

    The size steps are nccl-tests': minbytes, then times `stepfactor` (or plus `stepbytes` where stepfactor is 1), up to
    maxbytes.

    precision: a cell is repeated until the 95 % interval of its median is within this fraction of it, for `budget_s` at
    most; 0: `iters` operations, once. timeout_s bounds one cell. passes: how often the whole sweep is measured, 0 for
    ever. order: of the cells; "shuffled" by `seed`, or as in the table.
    agg_iters: operations in one coalesced call (nccl-tests -m). blocking: what comes between pipelined operations
    (nccl-tests -z). unalign: elements that buffers are off their alignment. hot: one buffer instead of a rotation.
    per_iter: keep the time of each pipelined operation but the first per_iter_skip (nccl-tests -I, -K).
    contention: measure groups of one kind together and alone. with_compute: also beside a matrix product.
    """

    name: str = ""
    question: str = ""
    collective: tuple[str, ...] = DEFAULT_COLLECTIVES
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
    contention: bool = False
    precision: float = 0.02
    budget_s: float = 0.5
    passes: int = 1
    order: str = "shuffled"
    seed: int = 0
    timeout_s: float = 60.0
    samples: bool = False
    agg_iters: int = 1
    blocking: int = 0
    cudagraph: int = 0
    unalign: int = 0
    hot: bool = False
    per_iter: int = 0
    per_iter_skip: int = 0
    with_compute: bool = False
    backend: str = ""
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)  # field -> file:line, or flag

    def mode(self, timing: str) -> str | None:
        """What sets this sweep's times of a regime apart from those that training sees; never fitted with those."""
        ordinary = Sweep()
        names = _MODES if timing == "pipelined" else _MODES_OF_ISOLATED
        words = [f"{name}={value}" for name in names if (value := getattr(self, name)) != getattr(ordinary, name)]
        return " ".join(words).replace("=True", "") or None

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


_MODES_OF_ISOLATED = ("unalign", "hot")  # one operation, whatever comes between those of a batch
_MODES = (*_MODES_OF_ISOLATED, "agg_iters", "blocking", "cudagraph")


def identity_of(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """`Sweep.identity` of the sweep that a run record keeps."""
    no_matter = ("name", "question", "timeout_s", "samples", "backend", "passes", "order", "seed")
    return {name: value for name, value in sweep.items() if name not in no_matter}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One half-row of the table, for all groups of one kind: what is measured in one go.

    repeat: the record's `pass`: of passes over the sweep, and of the two halves where torch has one form alone.
    requests: how many requested sizes round to this message; nccl-tests prints a row for each.
    mode: `Sweep.mode`.
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
    mode: str | None = None
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
        if self.mode is not None:
            record["mode"] = self.mode
        return record if self.requests == 1 else {**record, "requests": self.requests}


def plan_cells(sweep: Sweep, groups: dict[str, Groups], sweep_pass: int = 0) -> list[Cell]:
    """The cells of one pass over a sweep in the order of the table, for the groups this job can form.

    Requested sizes that round to the same message are one cell, measured once.
    """
    counts = {kind: sorted({len(ranks) for ranks in of_kind}) for kind, of_kind in groups.items()}
    cells: dict[tuple[object, ...], Cell] = {}
    for cell in _cells(sweep, groups, sweep_pass):
        messages = tuple(cell.message(nranks) for nranks in counts[cell.group])
        key = (replace(cell, requested_bytes=0), messages)
        cells[key] = replace(cells[key], requests=cells[key].requests + 1) if key in cells else cell
    return list(cells.values())


def in_order(sweep: Sweep, cells: list[Cell], sweep_pass: int = 0) -> list[Cell]:
    """The cells in the order in which they are measured: shuffled, so that a drift of the machine falls on all sizes
    and collectives alike, by the seed and the pass alone."""
    if sweep.order == "table":
        return cells
    return random.Random(f"{sweep.seed} {sweep_pass}").sample(cells, len(cells))


def refused_cell(cell: Cell, of_kind: Groups) -> str | None:
    """Why a collective cannot run on groups of this many ranks; None where it can."""
    refusal = COLLECTIVES[cell.collective].refusal
    return next((reason for ranks in of_kind if (reason := refusal(len(ranks)))), None)


def _cells(sweep: Sweep, groups: dict[str, Groups], sweep_pass: int) -> Iterator[Cell]:
    """One cell for every requested size."""
    for name, kind in product(sweep.collective, groups):
        collective = COLLECTIVES[name]
        redops = sweep.redop if collective.reduces else (None,)
        halves = collective.halves(sweep_pass)
        tables = product(_concurrent(sweep, groups[kind]), sweep.datatype, redops, _roots(sweep, name, groups[kind]))
        for concurrent, dtype, redop, root in tables:
            for size, timing, (in_place, repeat) in product(sweep.sizes(), sweep.timing, halves):
                yield Cell(
                    collective=name,
                    group=kind,
                    dtype=dtype,
                    redop=redop,
                    root=root,
                    requested_bytes=size,
                    timing=timing,
                    in_place=in_place,
                    repeat=repeat,
                    concurrent=concurrent,
                    mode=sweep.mode(timing),
                )


def _roots(sweep: Sweep, collective: str, of_kind: Groups) -> tuple[int | None, ...]:
    if not COLLECTIVES[collective].rooted:
        return (None,)
    return tuple(range(min(map(len, of_kind)))) if sweep.root == ALL_ROOTS else (sweep.root,)


def _concurrent(sweep: Sweep, of_kind: Groups) -> tuple[bool, ...]:
    """Together, alone, or both; a single group has nobody to contend with."""
    return (True, False) if sweep.contention and len(of_kind) > 1 else (sweep.concurrent,)


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
                f"expected a rank inside the group, 0 to {smallest - 1}, or all"
            )


# --- reading -------------------------------------------------------------------------------------------------------


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
            _refuse_twice(word, file.where(key), where)
            _read(word, value, file.where(key), values, where)
    for word, value in (flags or {}).items():
        _read(word, value, f"--{word.replace('_', '-')}", values, where)
    # The step is additive where only stepbytes is said, be it by a flag over a file that says stepfactor.
    said_last = flags if flags and ("stepbytes" in flags or "stepfactor" in flags) else values
    if "stepbytes" in said_last and "stepfactor" not in said_last:
        values["stepfactor"] = 1
    # A number of iterations is a fixed number, as in nccl-tests, unless a precision is asked for as well.
    if "iters" in values and "precision" not in values:
        values["precision"] = 0.0
    return _checked(Sweep(**values, origins=where))


def _refuse_twice(word: str, origin: str, where: Mapping[str, str]) -> None:
    """InputError where another word of the same file has said it already."""
    name = WORDS[word][0]
    if name in where:
        raise InputError(f"{origin}: {word} is said already at {where[name]}: expected one of the two")


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
    for name, other, why in _contradictions(sweep):
        raise InputError(f"{_said(sweep, name)} does not go with {_said(sweep, other)}: {why}")
    if sweep.per_iter_skip and not sweep.per_iter:
        raise InputError(f"{_said(sweep, 'per_iter_skip')}: there are no times of single operations without -I 1")
    return sweep


def _said(sweep: Sweep, name: str) -> str:
    """Where a field was said, or the flag that says it."""
    words = {"per_iter": "per_iter_timing", "concurrent": "one_at_a_time"}
    return sweep.origins.get(name) or f"--{words.get(name, name).replace('_', '-')}"


def _contradictions(sweep: Sweep) -> Iterator[tuple[str, str, str]]:
    """(field, field, why) of those that cannot both be had."""
    for name in ("agg_iters", "blocking", "cudagraph"):
        if getattr(sweep, name) != getattr(Sweep(), name) and "pipelined" not in sweep.timing:
            yield name, "timing", "it is about operations one after another, the pipelined regime"
    if sweep.contention and not sweep.concurrent:
        yield "contention", "concurrent", "contention measures the groups of a kind together and one at a time"
    if sweep.cudagraph and sweep.backend == "gloo":
        yield "cudagraph", "backend", "gloo runs on the CPU, which records no CUDA graphs"
    if sweep.cudagraph and (sweep.blocking or sweep.per_iter):
        yield "cudagraph", "blocking" if sweep.blocking else "per_iter", "a graph replays without stopping in between"
    if sweep.with_compute and "isolated" not in sweep.timing:
        yield "with_compute", "timing", "a collective beside a matrix product is timed alone, in the isolated regime"
    if sweep.per_iter and "pipelined" not in sweep.timing:
        yield "per_iter", "timing", "it times the operations of the pipelined regime (isolated ones are timed singly)"
    if sweep.per_iter and not sweep.precision and sweep.per_iter_skip >= sweep.iters:
        yield "per_iter_skip", "iters", f"of {sweep.iters} iterations none would be left"
