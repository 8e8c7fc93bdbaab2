"""The results file, `collbench.results/1`: JSON lines, append-only, readable at every moment of a run's life.

A file holds `run` records, each before its `measurement`, `skip` and `end` records. Between them stand `init` (how long
a kind of group took to create), `aggregate` (groups of a kind that ran together) and `overlap` (a collective beside a
matrix product). Writers append one line and flush; a line torn by a kill is dropped with a warning and overwritten by
the next writer. Any other damage is an error that names the line. Format history: 1 first version.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from collbench.errors import CollbenchError, InputError, JobError

if TYPE_CHECKING:
    import pandas

SCHEMA = "collbench.results/1"

Record = dict[str, Any]

# What makes a measurement one cell of a sweep: measured once, whatever becomes of the run.
CELL_FIELDS = (
    "collective",
    "group",
    "group_ranks",
    "dtype",
    "redop",
    "root",
    "in_place",
    "size_bytes",
    "timing",
    "concurrent",
    "pass",
    "mode",
)

# field: (type, may be null or absent, must be at least). Importers leave out what a log does not say.
_NUMBER = (int, float)
_Fields = dict[str, tuple[type | tuple[type, ...], bool, float | None]]
_MEASUREMENT_FIELDS: _Fields = {
    "collective": (str, False, None),
    "size_bytes": (int, False, 0),
    "time_us": (_NUMBER, False, 0),
    "timing": (str, False, None),
    "nranks": (int, True, 1),
    "nnodes": (int, True, 1),
    "count": (int, True, 0),
    "wrong": (int, True, 0),
    "algbw_GBps": (_NUMBER, True, 0),
    "busbw_GBps": (_NUMBER, True, 0),
    "group": (str, True, None),
    "group_ranks": (list, True, None),
    "dtype": (str, True, None),
    "redop": (str, True, None),
    "root": (int, True, 0),
    "slowest_rank": (int, True, 0),
    "concurrent": (bool, True, None),
    "in_place": (bool, True, None),
}
_SKIP_FIELDS: _Fields = {
    "collective": (str, False, None),
    "group": (str, False, None),
    "reason": (str, False, None),
    "size_bytes": (int, True, 0),
}

# Columns of `read_results`, whether a file knows them or not; what else a file holds comes after these.
_COLUMNS = (
    *("run_id", "collective", "group", "group_ranks", "nranks", "nnodes", "dtype", "redop", "root", "in_place", "pass"),
    *("size_bytes", "count", "timing", "concurrent", "iterations", "time_us", "time_min_us", "time_p50_us"),
    *("time_p95_us", "time_max_us", "time_rank_max_us", "slowest_rank", "algbw_GBps", "busbw_GBps", "wrong"),
    *("backend", "world_size", "started"),
)


@dataclass
class ResultsFile:
    """The records of one results file, in file order.

    torn_at_byte: where a torn last line begins (a writer cuts the file there), None where the file ends well.
    """

    path: Path
    runs: list[Record] = field(default_factory=list)
    measurements: list[Record] = field(default_factory=list)
    skips: list[Record] = field(default_factory=list)
    ends: list[Record] = field(default_factory=list)
    aggregates: list[Record] = field(default_factory=list)
    overlaps: list[Record] = field(default_factory=list)
    inits: list[Record] = field(default_factory=list)
    torn_at_byte: int | None = None

    def of_runs(self, run_ids: Collection[str]) -> ResultsFile:
        """The records of these runs."""

        def own(records: list[Record]) -> list[Record]:
            return [record for record in records if record["run_id"] in run_ids]

        kinds = own(self.runs), own(self.measurements), own(self.skips), own(self.ends)
        return ResultsFile(self.path, *kinds, own(self.aggregates), own(self.overlaps), own(self.inits))

    def as_document(self) -> dict[str, list[Record]]:
        """What `run --json` and `show --json` print; kinds of records that not every file has, where it has them."""
        document = {"runs": self.runs, "measurements": self.measurements, "skips": self.skips}
        more = {"aggregates": self.aggregates, "overlaps": self.overlaps}
        return document | {name: records for name, records in more.items() if records}


def cell_key(record: Record) -> tuple[Any, ...]:
    """What identifies the cell of a measurement record; equal for a repeated measurement of it."""
    return tuple(tuple(value) if isinstance(value := record.get(name), list) else value for name in CELL_FIELDS)


def load_results(path: str | os.PathLike[str]) -> ResultsFile:
    """Read and check a results file.

    Raises InputError, naming file and line, for a file that is missing, empty, damaged or of another schema. A last
    line without its newline that does not parse is no damage: it is dropped with a warning.
    """
    results = ResultsFile(Path(path))
    for number, line, start, complete in _lines(results.path):
        if not line.strip():
            continue
        try:
            record = _parse(line)
        except ValueError as error:
            if not complete:
                results.torn_at_byte = start
                warnings.warn(
                    f"{path}:{number}: the last line is torn (the run was killed while writing it) and is ignored",
                    stacklevel=2,
                )
                break
            raise InputError(
                f"{path}:{number}: not a record of a {SCHEMA} file ({error}): "
                "restore the file, or delete that line if its loss does not matter"
            ) from None
        _add(results, record, number)
    if not results.runs:
        raise InputError(f"{path}: holds no records: expected a {SCHEMA} file as 'collbench run -o' writes it")
    return results


def read_results(path: str | os.PathLike[str]) -> pandas.DataFrame:
    """One DataFrame of a results file: a row per measurement, the contract's fields as columns (null where the file
    does not know them), plus the run's `backend`, `world_size` and `started`.

    Raises InputError as `load_results` does.
    """
    import pandas

    try:
        with _no_garbage_collection():
            columns, rows = _joined(_parts(Path(path)))
    except _NotPlain:  # whatever it is, it is said, or mended, line by line
        results = load_results(path)
        runs = {run["run_id"]: run for run in results.runs}
        columns, rows = _joined([_columns_of(results.measurements, runs)])
    names = dict.fromkeys([*_COLUMNS, *columns])
    table = {name: pandas.Series(columns.pop(name, [None] * rows)) for name in names}
    return pandas.DataFrame(table, columns=[*names])


class _NotPlain(Exception):
    """A file that is not read in large parts: damaged, or no results file."""


_PART_LINES = 500  # held as records at a time, few enough for a cache; a million rows as records are 5 GB
_RUN_COLUMNS = ("backend", "world_size", "started")


def _parts(path: Path) -> Iterator[dict[str, list[Any]]]:
    """The measurements of a sound file as columns, some hundred lines at a time; _NotPlain where one is not sound."""
    results, first = ResultsFile(path), 1
    runs: dict[str, Record] = {}
    shared: dict[Any, Any] = {}
    try:
        with path.open("rb") as file:
            while lines := list(islice(file, _PART_LINES)):
                measurements = []
                for number, record in enumerate(_parse_all(lines), start=first):
                    if record.get("kind") == "measurement":
                        measurements.append(record)
                        if record.get("run_id") not in runs:
                            raise _NotPlain
                    else:
                        _add(results, record, number)
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
        records = _DECODER.decode((b"[" + b",".join(lines) + b"]").decode())
    except (ValueError, RecursionError):
        raise _NotPlain from None
    if len(records) != len(lines) or set(map(type, records)) != {dict}:
        raise _NotPlain
    return records  # type: ignore[no-any-return]


def _check_all(columns: dict[str, list[Any]]) -> None:
    """What `_add` checks of each measurement, a field of all of them at a time."""
    for name, (types, optional, least) in _MEASUREMENT_FIELDS.items():
        values = columns.get(name, [])
        found = set(map(type, values))
        allowed = {*(types if isinstance(types, tuple) else (types,)), *([type(None)] if optional else [])}
        if not found <= allowed or (not optional and name not in columns and columns["run_id"]):
            raise _NotPlain
        known = values if type(None) not in found else [value for value in values if value is not None]
        if least is not None and known and not (least <= min(known) and max(known) <= sys.float_info.max):
            raise _NotPlain
    if min(columns.get("time_us", ()), default=1) <= 0 or not {*columns.get("timing", ())} <= {"pipelined", "isolated"}:
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


class ResultsWriter:
    """Appends records to a results file, one flushed line each. Holds the file's lock: one writer at a time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = self.path.open("ab")
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror}): name another file with -o") from None
        self._lock()
        self._checked_end = False

    def append(self, record: Record) -> None:
        """Write one record. JobError where the disk takes no more. A value that JSON cannot hold (NaN, inf) is a
        programming error: ValueError."""
        line = json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n"
        try:
            if not self._checked_end:
                self._drop_torn_line()
            self._file.write(line.encode())
            self._file.flush()
        except OSError as error:
            raise JobError(
                f"{self.path}: cannot write ({error.strerror}): what was written so far reads; "
                "make room and run the same command to finish"
            ) from None

    def mend(self) -> None:
        """Drop or end a torn last line now; for a file that is known to be a results file."""
        if not self._checked_end:
            self._drop_torn_line()

    def close(self) -> None:
        self._file.close()

    def _lock(self) -> None:
        import fcntl

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise InputError(
                f"{self.path}: another run is writing this file: wait for it, or name another file with -o"
            ) from None
        except OSError:
            pass  # a file system without locks

    def _drop_torn_line(self) -> None:
        """Cut a last line that does not parse; end one that does but lacks its newline. Not before the first append:
        only then has the file been found to be a results file."""
        self._checked_end = True
        line, start, complete = b"", 0, True
        for _, line, start, complete in _lines(self.path):  # noqa: B007  the last one counts
            pass
        if complete:
            return
        try:
            _parse(line)
        except ValueError:
            self._file.truncate(start)
        else:
            self._file.write(b"\n")
            self._file.flush()


def close_run(path: Path, exit_code: int, reason: str | None) -> None:
    """Write the end record that the last run of a file lacks, because whoever should have written it was killed."""
    try:
        results = load_results(path)
        ended = {end["run_id"] for end in results.ends}
        last = results.runs[-1]["run_id"]
        if last in ended:
            return
        counts = {"measurements": results.measurements, "skips": results.skips}
        own = {name: sum(record["run_id"] == last for record in records) for name, records in counts.items()}
        finished = datetime.now(UTC).isoformat(timespec="seconds")
        writer = ResultsWriter(path)
        end = {"kind": "end", "run_id": last, "finished": finished, **own, "exit_code": exit_code, "reason": reason}
        writer.append(end)
        writer.close()
    except CollbenchError:
        return  # the run's own failure is what the user must hear of


def _lines(path: Path) -> Iterator[tuple[int, bytes, int, bool]]:
    """(number from 1, line, first byte, ends with a newline) of every line."""
    start = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                yield number, line, start, line.endswith(b"\n")
                start += len(line)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): expected a {SCHEMA} file") from None


def _parse(line: bytes) -> Record:
    """The record in a line. ValueError where it holds none: reader and writer agree on what a torn line is."""
    try:
        record = _DECODER.decode(line.decode())
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError(f"is a JSON {type(record).__name__}, not an object")
    return record


def _refuse_constant(name: str) -> None:
    raise ValueError(f"holds {name}, which no collbench file may: an unknown value is null")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)  # made once: as slow to make as a line to parse


def _add(results: ResultsFile, record: Record, number: int) -> None:
    where = f"{results.path}:{number}"
    kind = record.get("kind")
    if kind == "run":
        if record.get("schema") != SCHEMA:
            raise InputError(
                f"{where}: schema {record.get('schema')!r}: this collbench reads {SCHEMA}: "
                "use the version of collbench that wrote the file"
            )
        if not isinstance(record.get("run_id"), str):
            raise InputError(f"{where}: run record without a run_id: expected a string")
        results.runs.append(record)
        return
    lists = {
        "measurement": results.measurements,
        "skip": results.skips,
        "end": results.ends,
        "aggregate": results.aggregates,
        "overlap": results.overlaps,
        "init": results.inits,
    }
    if kind not in lists:
        if not results.runs:
            raise InputError(f'{where}: not a {SCHEMA} file: its first record must have "kind":"run"')
        raise InputError(f"{where}: unknown kind of record {kind!r}: expected run, {', '.join(lists)}")
    if all(run["run_id"] != record.get("run_id") for run in reversed(results.runs)):
        raise InputError(f"{where}: {kind} of run {record.get('run_id')!r}, which no run record before it describes")
    if kind == "measurement":
        _check_fields(record, _MEASUREMENT_FIELDS, where)
        _check_measurement(record, where)
    elif kind == "skip":
        _check_fields(record, _SKIP_FIELDS, where)
    lists[kind].append(record)


def _check_fields(record: Record, fields: _Fields, where: str) -> None:
    for name, (types, optional, least) in fields.items():
        value = record.get(name)
        if value is None:
            if not optional:
                raise InputError(f"{where}: {record['kind']} without {name}: restore the file or delete the line")
            continue
        wrong_bool = isinstance(value, bool) and types is not bool
        if wrong_bool or not isinstance(value, types):
            raise InputError(f"{where}: {name} is {value!r}: expected {_type_name(types)}")
        if least is not None and not least <= value <= sys.float_info.max:  # type: ignore[operator]
            raise InputError(f"{where}: {name} is {value!r}: expected a finite number of at least {least:g}")


def _check_measurement(record: Record, where: str) -> None:
    ranks = record.get("group_ranks") or []
    if not all(isinstance(rank, int) and not isinstance(rank, bool) for rank in ranks):
        raise InputError(f"{where}: group_ranks is {ranks!r}: expected a list of whole numbers")
    if record["time_us"] <= 0:
        raise InputError(f"{where}: time_us is {record['time_us']!r}: expected a time above zero")
    if record["timing"] not in ("pipelined", "isolated"):
        raise InputError(f"{where}: timing is {record['timing']!r}: expected pipelined or isolated")


def _type_name(types: type | tuple[type, ...]) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false", list: "a list"}
    return names[types] if isinstance(types, type) else "a number"
