"""The results file, `collbench.results/1`: JSON lines, append-only, readable at every moment of a run's life.

A file holds `run` records, each before its `measurement`, `skip` and `end` records. Between them stand `init` (how long
a kind of group took to create), `aggregate` (groups of a kind that ran together) and `overlap` (a collective beside a
matrix product). Writers append one line and flush; a line torn by a kill is dropped with a warning and overwritten by
the next writer. Any other damage is an error that names the line. Format history: 1 first version.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from collbench.errors import CollbenchError, InputError, JobError

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

TIMINGS = ("pipelined", "isolated")

# field: (type, may be null or absent, must be at least). Importers leave out what a log does not say.
_NUMBER = (int, float)
_Fields = dict[str, tuple[type | tuple[type, ...], bool, float | None]]
MEASUREMENT_FIELDS: _Fields = {
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
_RUN_FIELDS: _Fields = {"backend": (str, True, None), "world_size": (int, True, 1)}
_SKIP_FIELDS: _Fields = {
    "collective": (str, False, None),
    "group": (str, False, None),
    "reason": (str, False, None),
    "size_bytes": (int, True, 0),
}

# Kind of a record that is not a run -> where ResultsFile keeps it.
_LISTS = {
    "measurement": "measurements",
    "skip": "skips",
    "end": "ends",
    "aggregate": "aggregates",
    "overlap": "overlaps",
    "init": "inits",
}


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
        lists = {name: getattr(self, name) for name in ("runs", *_LISTS.values())}
        own: Any = {name: [one for one in records if one["run_id"] in run_ids] for name, records in lists.items()}
        return ResultsFile(self.path, **own)

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
        add_record(results, record, number)
    if not results.runs:
        raise InputError(f"{path}: holds no records: expected a {SCHEMA} file as 'collbench run -o' writes it")
    return results


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
        record = DECODER.decode(line.decode())
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError(f"is a JSON {type(record).__name__}, not an object")
    return record


def _refuse_constant(name: str) -> None:
    raise ValueError(f"holds {name}, which no collbench file may: an unknown value is null")


DECODER = json.JSONDecoder(parse_constant=_refuse_constant)  # made once: as slow to make as a line to parse


def add_record(results: ResultsFile, record: Record, number: int) -> None:
    """Check a record, from line `number`, and put it where it belongs; InputError, naming file and line."""
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
        _check_fields(record, _RUN_FIELDS, where)
        results.runs.append(record)
        return
    if kind not in _LISTS:
        if not results.runs:
            raise InputError(f'{where}: not a {SCHEMA} file: its first record must have "kind":"run"')
        raise InputError(f"{where}: unknown kind of record {kind!r}: expected run, {', '.join(_LISTS)}")
    if all(run["run_id"] != record.get("run_id") for run in reversed(results.runs)):
        raise InputError(f"{where}: {kind} of run {record.get('run_id')!r}, which no run record before it describes")
    if kind == "measurement":
        _check_fields(record, MEASUREMENT_FIELDS, where)
        _check_measurement(record, where)
    elif kind == "skip":
        _check_fields(record, _SKIP_FIELDS, where)
    getattr(results, _LISTS[kind]).append(record)


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
    if record["timing"] not in TIMINGS:
        raise InputError(f"{where}: timing is {record['timing']!r}: expected {' or '.join(TIMINGS)}")


def _type_name(types: type | tuple[type, ...]) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false", list: "a list"}
    return names[types] if isinstance(types, type) else "a number"
