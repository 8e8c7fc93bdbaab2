"""nccl-tests' JSON report (-J), file version 3 (since 2.19.6), made from records: the same keys in the same order.

What its readers trip over is left out: the environment is the run's allow-listed one, a number is never text or inf,
and every result says in `experiment_name` what nccl-tests leaves to the file's name. Format history of nccl-tests: 1 in
2.17.3, 2 in 2.19.2 (per-iteration times), 3 in 2.19.6 (skipped iterations).
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from collbench.errors import InputError
from collbench.nccl_style import TableStyle
from collbench.nccl_table import (
    DEFAULT,
    Row,
    devices,
    failed_checks,
    figures,
    first_columns,
    has_columns,
    local_time,
    mean_busbw_GBps,
    pass_of,
    rows_of,
    shown_timing,
    slowest,
    step_of,
)
from collbench.results import Record

_VERSION = 3
_PER_ITER = ("skipped_iterations", "min_us", "max_us", "avg_us", "p50_us", "p95_us", "p99_us", "stdev_us", "cv_pct")


def check_json_path(text: str | os.PathLike[str]) -> Path:
    """The path of a report to write; InputError for a name nccl-tests would not take, or a folder that is not there."""
    path = Path(text)
    if path.suffix != ".json":
        raise InputError(f"--output-file {path}: expected a name that ends with .json, as nccl-tests' -J does")
    if not path.parent.is_dir():
        raise InputError(f"--output-file {path}: there is no folder {path.parent}: make it, or name another file")
    try:
        TemporaryFile(dir=path.parent).close()  # now, and not after the sweep; nothing of it meets another rank's
    except OSError as error:
        raise InputError(f"--output-file {path}: cannot be written ({error.strerror}): name another file") from None
    return path


def write_json(
    path: str | os.PathLike[str],
    runs: Sequence[Record],
    records: Sequence[Record],
    ends: Sequence[Record] = (),
    style: TableStyle = DEFAULT,
    argv: Sequence[str] | None = None,
) -> Path:
    """Write one report of all tables that measurement records make; returns the path written.

    runs: the run and those that went on with it.  argv: the command line (default: the process's own). Nothing is
    overwritten: where `path` exists it is path.0, path.1, ... InputError where it cannot be written.
    """
    document = _finite(_report(runs, records, ends, style, sys.argv if argv is None else argv))
    file = _new_file(check_json_path(path))
    try:
        with file:
            file.write(json.dumps(document, allow_nan=False) + "\n")
    except OSError as error:
        Path(file.name).unlink(missing_ok=True)
        raise InputError(f"{file.name}: cannot write ({error.strerror}): name another file with -J") from None
    return Path(file.name)


def _new_file(path: Path) -> IO[str]:
    for number in count(-1):
        try:
            return Path(f"{path}.{number}" if number >= 0 else path).open("x", encoding="utf-8")
        except FileExistsError:
            continue
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror}): name another file with -J") from None
    raise AssertionError


def _finite(value: Any) -> Any:
    """The same document without inf and nan, which JSON has not: an unknown value is null."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _report(
    runs: Sequence[Record], records: Sequence[Record], ends: Sequence[Record], style: TableStyle, argv: Sequence[str]
) -> dict[str, Any]:
    run = runs[0]
    known = [record for record in records if has_columns(record)]
    rows = list(rows_of(known, run))
    shown = shown_timing(known)
    of_table = [row for row in rows if row[0][0]["timing"] == shown]
    failed = failed_checks(rows)
    return {
        "version": _VERSION,
        "start_time": local_time(run.get("started")),
        "args": list(argv),
        "env": [f"{name}={value}" for name, value in (run.get("environment") or {}).items()],
        "nccl_version": _nccl_version((run.get("versions") or {}).get("nccl")),
        "config": _config(run, known, style),
        "results": [result for row in rows for result in _results(row, style)],
        "out_of_bounds": {"count": failed, "okay": _truth(not failed)},
        "average_bus_bandwidth": {"bandwidth": mean_busbw_GBps(of_table, style), "okay": "unchecked"},
        "errors": [str(end["reason"]) for end in ends if end.get("reason")],
        "end_time": local_time(ends[-1].get("finished")) if ends else None,
    }


def _config(run: Record, records: Sequence[Record], style: TableStyle) -> dict[str, Any]:
    sweep = run.get("sweep") or {}
    step, unit = step_of(sweep)
    groups = {record.get("group") for record in records}
    return {
        "nthreads": 1,
        "ngpus": 1,
        "minimum_bytes": sweep.get("minbytes"),
        "maximum_bytes": sweep.get("maxbytes"),
        f"step_{unit}": step,
        "warmup_iters": sweep.get("warmup_iters"),
        "iterations": sweep.get("iters"),
        "aggregated_iterations": sweep.get("agg_iters") or 1,
        "validation": sweep.get("check"),
        "graph": sweep.get("cudagraph") or 0,
        "blocking_collectives": _truth(sweep.get("blocking")),
        "per_iter_timing": _truth(style.per_iter),
        "per_iter_skip": sweep.get("per_iter_skip") or 0,
        "parallel_init": _truth(False),
        "devices": [
            {
                "rank": device["rank"],
                "group": device["group"],
                "pid": device["pid"],
                "hostname": device["host"],
                "device": device["device"],
                "device_hex": "0000:00:00",
                "device_info": device["name"],
            }
            for device in devices(run, groups.pop() if len(groups) == 1 else "world")
        ],
    }


def _results(row: Row, style: TableStyle) -> Iterator[dict[str, Any]]:
    """One result for every size that was asked for and rounds to this row."""
    record = slowest(row[0])
    size, elements, dtype, redop, root = first_columns(record)
    result: dict[str, Any] = {"size": size, "count": elements, "type": dtype, "redop": redop, "root": root}
    for side, half in zip(("out_of_place", "in_place"), row, strict=True):
        values = figures(half, style)
        result[side] = {
            "cpu_time" if style.cpu_time else "time": values.time_us,
            "alg_bw": values.algbw_GBps,
            "bus_bw": values.busbw_GBps,
            "nwrong": None if values.wrong is None else float(values.wrong),
        }
        if values.per_iter is not None:
            times = {"times_us": values.per_iter.get("times_us") or []}
            result[f"{side}_per_iter"] = {name: values.per_iter.get(name) for name in _PER_ITER} | times
    result["actual_iterations"] = record.get("iterations")
    result["experiment_name"] = _experiment(record)
    for _ in range(record.get("requests", 1)):
        yield result


def _experiment(record: Record) -> str:
    """`all_reduce/inter/pipelined`, and what else tells two tables of a file apart."""
    words = [record["collective"], str(record.get("group") or "?"), record["timing"]]
    if record.get("concurrent") is False:
        words.append("one-at-a-time")
    if number := pass_of(record):
        words.append(f"pass-{number + 1}")
    if record.get("mode"):
        words.append(record["mode"])
    return "/".join(words)


def _nccl_version(text: object) -> int | None:
    """NCCL's version code of `2.27.3`, 22703; None where NCCL was not there."""
    try:
        major, minor, patch = (int(part) for part in str(text).split("."))
    except ValueError:
        return None
    return 10_000 * major + 100 * minor + patch


def _truth(value: object) -> str:
    return "true" if value else "false"
