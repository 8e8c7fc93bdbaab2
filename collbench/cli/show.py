"""`collbench show`: a results file as a table, in nccl-tests' layout, as CSV or as JSON."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterator
from itertools import compress
from pathlib import Path
from typing import Any

from collbench.aggregates import aggregate_lines
from collbench.cli.table_flags import add_table_flags, normalize, table_style
from collbench.columns import aligned
from collbench.contention import contention_lines
from collbench.errors import InputError
from collbench.measure.repeats import repeat_lines
from collbench.measure.samples import reach
from collbench.nccl_json import check_json_path, write_json
from collbench.nccl_style import TableStyle
from collbench.nccl_table import Printer, has_columns, pass_of, places, rows_of, shown_timing
from collbench.overlaps import overlap_lines
from collbench.results import Record, ResultsFile, load_results
from collbench.sweep import identity_of
from collbench.units import format_size

__all__ = ["add_arguments", "normalize", "run"]

_CSV_COLUMNS = [
    "run_id", "collective", "group", "group_ranks", "nranks", "nnodes", "dtype", "redop", "root", "in_place", "pass",
    "size_bytes", "count", "timing", "concurrent", "iterations", "time_us", "time_min_us", "time_p50_us", "time_p95_us",
    "time_max_us", "time_rank_max_us", "slowest_rank", "algbw_GBps", "busbw_GBps", "wrong",
    # since then
    "mode", "time_p5_us", "time_p99_us", "time_us_interval", "precise", "unstable", "late", "late_kept", "late_ranks",
    "first_call_us", "cpu_time_us", "time_rank0_us", "time_rank_min_us", "measured", "rotation",
]  # fmt: skip

EPILOG = """\
-a, -C, -S, -I and -M are nccl-tests' and say what its table (--nccl-tests, -J) shows. Samples, and the times of single
iterations, are in the file and in --json.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", metavar="RESULTS", help="a results file")
    parser.add_argument("--csv", action="store_true", help="comma-separated, one line a measurement")
    parser.add_argument(
        "--matrix",
        nargs="?",
        const="",
        metavar="FILE.png",
        help="bandwidth and latency of every pair, as text and as a heat map (default RESULTS.png), and the slow links",
    )
    add_table_flags(parser.add_argument_group("nccl-tests' table"), per_iter=True)


def run(args: argparse.Namespace) -> int:
    style = table_style(args)
    _check(args, style)
    results = load_results(args.results)
    _check_fields(results, style)
    if args.output_file is not None:
        for runs, measurements in _sweeps(results):
            ids = {run["run_id"] for run in runs}
            ends = [end for end in results.ends if end["run_id"] in ids]
            timing = shown_timing(measurements)
            shown = [record for record in measurements if record["timing"] == timing]
            path = write_json(args.output_file, runs, shown, ends, style)
            print(f"collbench: nccl-tests' JSON is in {path}", file=sys.stderr)
    if args.json:
        print(json.dumps(results.as_document(), indent=1))
    elif args.csv:
        _print_csv(results.measurements)
    elif args.nccl_tests is not None:
        _print_nccl_tests(results, style)
    elif args.matrix is not None:
        from collbench.report.matrix import show_matrix

        png = Path(args.matrix or Path(args.results).with_suffix(".png"))
        show_matrix(results, png, sys.stdout.write)
    else:
        _print_table(results)
    return 0


def _check(args: argparse.Namespace, style: TableStyle) -> None:
    """InputError for flags that exclude each other, before the file is read."""
    layouts = {"--json": args.json, "--csv": args.csv, "--nccl-tests": args.nccl_tests is not None,
               "--matrix": args.matrix is not None}  # fmt: skip
    given = [flag for flag, on in layouts.items() if on]
    if len(given) > 1:
        raise InputError(f"argument {given[0]}: not allowed with argument {given[1]}: one layout at a time")
    if args.output_file is not None:
        check_json_path(args.output_file)
    elif args.nccl_tests is None:
        columns = {"--average": style.average != 1, "--report-cputime": style.cpu_time, "--memory": style.memory,
                   "--report-timestamps": style.timestamps, "--per-iter-timing": style.per_iter}  # fmt: skip
        for flag, on in columns.items():
            if on:
                raise InputError(f"{flag} is about nccl-tests' table: add --nccl-tests (or -J FILE.json)")


def _sweeps(results: ResultsFile) -> Iterator[tuple[list[Record], list[Record]]]:
    """(runs, their measurements) of each sweep: a run that was killed goes with those that measured the rest."""
    together: dict[str, list[Record]] = {}
    for run in results.runs:
        same = [identity_of(run.get("sweep") or {}), run.get("world_size"), run.get("backend")]
        together.setdefault(json.dumps(same) if run.get("sweep") else run["run_id"], []).append(run)
    for runs in together.values():
        ids = {run["run_id"] for run in runs}
        yield runs, [record for record in results.measurements if record["run_id"] in ids]


def _check_fields(results: ResultsFile, style: TableStyle) -> None:
    """InputError where no measurement has what the style shows; where some have not, theirs is N/A."""
    measured = results.measurements
    pipelined = [record for record in measured if record["timing"] == "pipelined"]
    asked = (
        (f"--average {style.average}", style.average != 1, style.time_field, pipelined),
        ("--report-cputime", style.cpu_time, "cpu_time_us", measured),
        ("--report-timestamps", style.timestamps, "measured", measured),
        ("--per-iter-timing", style.per_iter, "per_iter", measured),
    )
    for flag, on, name, records in asked:
        if on and records and all(record.get(name) is None for record in records):
            raise InputError(f"{flag}: no measurement in {results.path} has {name}: it was measured without")


def _print_csv(measurements: list[Record]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for record in measurements:
        values: list[Any] = [record.get(name) for name in _CSV_COLUMNS]
        writer.writerow([" ".join(map(str, v)) if isinstance(v, list) else v for v in values])


def _print_nccl_tests(results: ResultsFile, style: TableStyle) -> None:
    for runs, measurements in _sweeps(results):
        known = [record for record in measurements if has_columns(record)]
        if len(known) < len(measurements):
            _note(
                f"{len(measurements) - len(known)} measurements lack what a row of nccl-tests says "
                "(count, datatype, in place ...) and are left out: --csv has them"
            )
        shown = shown_timing(known)
        if known and shown == "isolated":
            _note("the table shows isolated calls (last exit of all ranks): nothing was measured back to back")
        printer = Printer(runs[0], sys.stdout.write, style)
        for row in rows_of([record for record in known if record["timing"] == shown], runs[0]):
            printer.add(row)
        printer.close(_memory(results, runs, style))


def _memory(results: ResultsFile, runs: list[Record], style: TableStyle) -> Record | None:
    """What the last of these runs that ended says of its memory."""
    ids = {run["run_id"] for run in runs}
    told = [end["memory_bytes"] for end in results.ends if end["run_id"] in ids and end.get("memory_bytes")]
    if style.memory and not told:
        _note("--memory: the file does not say how much was used")
    return told[-1] if told else None


def _note(text: str) -> None:
    print(f"collbench: note: {text}", file=sys.stderr)


# --- collbench's own table ------------------------------------------------------------------------------------------


def _print_table(results: ResultsFile) -> None:
    measurements: list[Record] = []
    for runs, measured in _sweeps(results):
        measurements += sorted(measured, key=places(measured, runs[0]))
    for line in _table(measurements):
        print(line)
    if any(record.get("precise") is False for record in measurements):
        print("* the cell's time was up before its median was known to the precision that was asked for")
    for skip in results.skips:
        size = "" if skip.get("size_bytes") is None else f" {format_size(skip['size_bytes'])}"
        print(f"skipped: {skip['collective']} {skip['group']}{size}: {skip['reason']}")
    # Whatever the sweep: groups together and alone may stand in two.
    networks = {run["run_id"]: (run.get("backend"), run.get("world_size")) for run in results.runs}
    for network in dict.fromkeys(networks.values()):
        measured, aggregates, overlaps = (
            [record for record in records if networks[record["run_id"]] == network]
            for records in (measurements, results.aggregates, results.overlaps)
        )
        aggregates.sort(key=places(aggregates, results.runs[0]))
        overlaps.sort(key=places(overlaps, results.runs[0]))
        groups = (aggregate_lines(aggregates), contention_lines(measured))
        for lines in (*groups, overlap_lines(overlaps), repeat_lines(measured)):
            if lines:
                print("", *lines, sep="\n")
    for end in results.ends:
        if end.get("exit_code"):
            print(f"run {end['run_id']} ended with exit code {end['exit_code']}: {end.get('reason')}")


_LEFT = ("collective", "group", "which", "together", "mode", "timing", "in place")
_IF_KNOWN = ("which", "together", "mode", "pass", "± %", "p95 us", "late")


def _table(measurements: list[Record]) -> list[str]:
    """A line a measurement, so one for each group."""
    groups = {(record.get("group"), tuple(record.get("group_ranks") or ())) for record in measurements}
    several = {kind for kind, _ in groups if sum(other == kind for other, _ in groups) > 1}
    columns: dict[str, Callable[[Record], str]] = {
        "collective": lambda record: record["collective"],
        "group": lambda record: record.get("group") or "-",
        "ranks": lambda record: str(record.get("nranks") or "-"),
        "which": lambda record: _ranks(record.get("group_ranks") or []) if record.get("group") in several else "-",
        "timing": lambda record: record["timing"],
        "together": lambda record: "no" if record.get("concurrent") is False else "-",
        "mode": lambda record: record.get("mode") or "-",
        "pass": lambda record: str(number + 1) if (number := _pass(record)) else "-",
        "in place": lambda record: {True: "yes", False: "no", None: "-"}[record.get("in_place")],
        "size": lambda record: format_size(record["size_bytes"]),
        "time us": lambda record: f"{record['time_us']:.2f}",
        "± %": _precision,
        "p95 us": lambda record: _figure(record.get("time_p95_us"), 2),
        "algbw GB/s": lambda record: _figure(record.get("algbw_GBps")),
        "busbw GB/s": lambda record: _figure(record.get("busbw_GBps")),
        "wrong": lambda record: _text(record.get("wrong")),
        "late": lambda record: _text(record.get("late") or None),
        "slowest": lambda record: "-" if record.get("slowest_rank") is None else f"rank {record['slowest_rank']}",
    }
    lines = [list(columns), *([cell(record) for cell in columns.values()] for record in measurements)]
    told = [
        any(line[number] != "-" for line in lines[1:]) or name not in _IF_KNOWN for number, name in enumerate(columns)
    ]
    shown = [list(compress(line, told)) for line in lines]
    return aligned(shown, {number for number, name in enumerate(shown[0]) if name in _LEFT})


def _pass(record: Record) -> int:
    return pass_of(record) if has_columns(record) else 0


def _ranks(ranks: list[int]) -> str:
    """The ranks of a group, or its first and last ones."""
    words = list(map(str, ranks))
    return " ".join(words if len(words) <= 4 else [*words[:2], "..", words[-1]])


def _precision(record: Record) -> str:
    """How far the 95 % interval of the median reaches, in percent of it."""
    if not record.get("time_us_interval"):
        return "-"
    part = reach(record["time_us"], *record["time_us_interval"])
    return f"{100 * part:.1f}{'*' if record.get('precise') is False else ''}"


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _figure(value: float | None, decimals: int = 3) -> str:
    return "-" if value is None else f"{value:.{decimals}f}"
