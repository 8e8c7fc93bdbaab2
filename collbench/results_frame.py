"""The measurements of a results file as one pandas DataFrame, read some hundred lines at a time.

A million records at once are 5 GB; their columns, with equal texts and lists shared, are under one. A file that
is not sound is read line by line in its place, by `load_results`, which says what is wrong or mends it.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.errors import InputError
from collbench.results import DECODER, MEASUREMENT_FIELDS, TIMINGS, Record, ResultsFile, add_record, load_results

if TYPE_CHECKING:
    import pandas

# Columns of `read_results`, whether a file knows them or not; what else a file holds comes after these.
_COLUMNS = (
    *("run_id", "collective", "group", "group_ranks", "nranks", "nnodes", "dtype", "redop", "root", "in_place", "pass"),
    *("size_bytes", "count", "timing", "concurrent", "iterations", "time_us", "time_min_us", "time_p50_us"),
    *("time_p95_us", "time_max_us", "time_rank_max_us", "slowest_rank", "algbw_GBps", "busbw_GBps", "wrong"),
    *("backend", "world_size", "started"),
)
# The attribute of the frame that holds `overlap` records, with their run's backend: JSON, for pandas copies attributes
# deeply with every column that is looked at.
OVERLAPS = "collbench.overlaps"


def read_results(path: str | os.PathLike[str]) -> pandas.DataFrame:
    """One DataFrame of a results file: a row per measurement, the contract's fields as columns (null where the file
    does not know them), plus the run's `backend`, `world_size` and `started`.

    What collectives and computation cost one another (`run --with-compute`) are no measurements: these records are in
    `attrs`, which what pandas makes of the frame keeps, but for a `concat` of several: give `fit_results` all of them.

    Raises InputError as `load_results` does.
    """
    import pandas

    rest = ResultsFile(Path(path))
    try:
        with _no_garbage_collection():
            columns, rows = _joined(_parts(rest))
    except _NotPlain:  # whatever it is, it is said, or mended, line by line
        rest = load_results(path)
        runs = {run["run_id"]: run for run in rest.runs}
        columns, rows = _joined([_columns_of(rest.measurements, runs)])
    names = dict.fromkeys([*_COLUMNS, *columns])
    table = {name: pandas.Series(columns.pop(name, [None] * rows)) for name in names}
    frame = pandas.DataFrame(table, columns=[*names])
    if rest.overlaps:
        backends = {run["run_id"]: run.get("backend") for run in rest.runs}
        frame.attrs[OVERLAPS] = json.dumps(
            [record | {"backend": backends[record["run_id"]]} for record in rest.overlaps]
        )
    return frame


class _NotPlain(Exception):
    """A file that is not read in large parts: damaged, or no results file."""


_PART_LINES = 500  # held as records at a time, few enough for a cache; a million rows as records are 5 GB
_RUN_COLUMNS = ("backend", "world_size", "started")


def _parts(results: ResultsFile) -> Iterator[dict[str, list[Any]]]:
    """The measurements of a sound file as columns, some hundred lines at a time; its other records go into `results`.
    _NotPlain where one is not sound."""
    first = 1
    runs: dict[str, Record] = {}
    shared: dict[Any, Any] = {}
    try:
        with results.path.open("rb") as file:
            while lines := list(islice(file, _PART_LINES)):
                measurements = []
                for number, record in enumerate(_parse_all(lines), start=first):
                    if record.get("kind") == "measurement":
                        measurements.append(record)
                        run_id = record.get("run_id")
                        if not isinstance(run_id, str) or run_id not in runs:
                            raise _NotPlain
                    else:
                        add_record(results, record, number)
                        runs = {run["run_id"]: run for run in results.runs} if record["kind"] == "run" else runs
                first += len(lines)
                columns = _columns_of(measurements, runs)
                _check_all(columns)
                yield {name: _share(name, column, shared) for name, column in columns.items()}
    except (OSError, InputError):
        raise _NotPlain from None
    if not results.runs:
        raise _NotPlain


def _parse_all(lines: list[bytes]) -> list[Record]:
    """The records of whole lines, parsed at once: twice as fast as one by one."""
    try:
        records = DECODER.decode((b"[" + b",".join(lines) + b"]").decode())
    except (ValueError, RecursionError):
        raise _NotPlain from None
    if len(records) != len(lines) or set(map(type, records)) != {dict}:
        raise _NotPlain
    return records  # type: ignore[no-any-return]


def _check_all(columns: dict[str, list[Any]]) -> None:
    """What `add_record` checks of each measurement, a field of all of them at a time."""
    for name, (types, optional, least) in MEASUREMENT_FIELDS.items():
        values = columns.get(name, [])
        found = set(map(type, values))
        allowed = {*(types if isinstance(types, tuple) else (types,)), *([type(None)] if optional else [])}
        if not found <= allowed or (not optional and name not in columns and columns["run_id"]):
            raise _NotPlain
        known = values if type(None) not in found else [value for value in values if value is not None]
        if least is not None and known and not (least <= min(known) and max(known) <= sys.float_info.max):
            raise _NotPlain
    if min(columns.get("time_us", ()), default=1) <= 0 or not {*columns.get("timing", ())} <= {*TIMINGS}:
        raise _NotPlain
    if not set(map(type, chain.from_iterable(filter(None, columns.get("group_ranks", ()))))) <= {int}:
        raise _NotPlain


def _columns_of(measurements: list[Record], runs: dict[str, Record]) -> dict[str, list[Any]]:
    """Name -> a value per measurement: those of the contract that any of them knows, and whatever else they hold."""
    names = dict.fromkeys(chain.from_iterable(measurements))
    names.pop("kind", None)
    columns: dict[str, list[Any]] = {"run_id": []}
    columns |= {name: [record.get(name) for record in measurements] for name in names}
    for name in _RUN_COLUMNS:
        columns[name] = [runs[run_id].get(name) for run_id in columns["run_id"]]
    return columns


def _share(name: str, column: list[Any], shared: dict[Any, Any]) -> list[Any]:
    """One object for equal texts, and for equal lists of ranks, of which a file has few and rows many."""
    if set(map(type, column)) - {type(None)} == {str}:
        return [shared.setdefault(value, value) for value in column]
    if name == "group_ranks":
        return [ranks if ranks is None else shared.setdefault(tuple(ranks), ranks) for ranks in column]
    return column


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Records hold no cycles, and looking for some while millions are made takes as long as making them."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _joined(parts: Iterable[dict[str, list[Any]]]) -> tuple[dict[str, list[Any]], int]:
    """(the columns of all parts, how many rows they have); None where a part lacks a column."""
    columns: dict[str, list[Any]] = {}
    rows = 0
    for part in parts:
        count = len(part["run_id"])
        for name in dict.fromkeys([*columns, *part]):
            column = columns.setdefault(name, [])
            column.extend([None] * (rows - len(column)))
            column.extend(part.get(name, [None] * count))
        rows += count
    return columns, rows
