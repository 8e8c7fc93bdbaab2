"""`collbench show`: a results file as a table, in nccl-tests' layout, as CSV or as JSON."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from typing import Any

from collbench.nccl_table import Printer, has_columns, rows_of
from collbench.results import Record, ResultsFile, load_results
from collbench.sweep import identity_of
from collbench.units import format_size

_CSV_COLUMNS = [
    "run_id", "collective", "group", "group_ranks", "nranks", "nnodes", "dtype", "redop", "root", "in_place", "pass",
    "size_bytes", "count", "timing", "concurrent", "iterations", "time_us", "time_min_us", "time_p50_us", "time_p95_us",
    "time_max_us", "time_rank_max_us", "slowest_rank", "algbw_GBps", "busbw_GBps", "wrong",
]  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", metavar="RESULTS", help="a results file")
    layout = parser.add_mutually_exclusive_group()
    layout.add_argument("--nccl-tests", action="store_true", help="the table nccl-tests prints")
    layout.add_argument("--csv", action="store_true", help="comma-separated, one line a measurement")


def run(args: argparse.Namespace) -> int:
    results = load_results(args.results)
    if args.json:
        print(json.dumps(results.as_document(), indent=1))
    elif args.csv:
        _print_csv(results.measurements)
    elif args.nccl_tests:
        _print_nccl_tests(results)
    else:
        _print_table(results)
    return 0


def _print_csv(measurements: list[Record]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for record in measurements:
        values: list[Any] = [record.get(name) for name in _CSV_COLUMNS]
        writer.writerow([" ".join(map(str, v)) if isinstance(v, list) else v for v in values])


def _print_nccl_tests(results: ResultsFile) -> None:
    for runs in _continued(results.runs):
        ids = {run["run_id"] for run in runs}
        all_of_run = [record for record in results.measurements if record["run_id"] in ids]
        of_run = [record for record in all_of_run if has_columns(record)]
        if len(of_run) < len(all_of_run):
            print(
                f"collbench: note: {len(all_of_run) - len(of_run)} measurements lack what a row of nccl-tests says "
                "(count, datatype, in place ...) and are left out: --csv has them",
                file=sys.stderr,
            )
        shown = "pipelined" if any(record["timing"] == "pipelined" for record in of_run) else "isolated"
        printer = Printer(runs[0], sys.stdout.write)
        for row in rows_of([record for record in of_run if record["timing"] == shown]):
            printer.add(row)
        printer.close()


def _continued(runs: list[Record]) -> list[list[Record]]:
    """The runs that went on with one another: a run that was killed, and those that measured the rest."""
    together: dict[str, list[Record]] = {}
    for run in runs:
        same = [identity_of(run.get("sweep") or {}), run.get("world_size"), run.get("backend")]
        together.setdefault(json.dumps(same) if run.get("sweep") else run["run_id"], []).append(run)
    return list(together.values())


def _print_table(results: ResultsFile) -> None:
    head = ("collective", "group", "ranks", "timing", "in place", "size", "time us", "algbw GB/s", "busbw GB/s",
            "wrong", "slowest")  # fmt: skip
    lines = [head]
    for record in results.measurements:
        lines.append(
            (
                record["collective"],
                record.get("group") or "-",
                str(record.get("nranks") or "-"),
                record["timing"],
                {True: "yes", False: "no", None: "-"}[record.get("in_place")],
                format_size(record["size_bytes"]),
                f"{record['time_us']:.2f}",
                _figure(record.get("algbw_GBps")),
                _figure(record.get("busbw_GBps")),
                "-" if record.get("wrong") is None else str(record["wrong"]),
                "-" if record.get("slowest_rank") is None else f"rank {record['slowest_rank']}",
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        cells = [
            text.ljust(w) if i in (0, 1, 3, 4) else text.rjust(w)
            for i, (text, w) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    for skip in results.skips:
        size = "" if skip.get("size_bytes") is None else f" {format_size(skip['size_bytes'])}"
        print(f"skipped: {skip['collective']} {skip['group']}{size}: {skip['reason']}")
    for end in results.ends:
        if end.get("exit_code"):
            print(f"run {end['run_id']} ended with exit code {end['exit_code']}: {end.get('reason')}")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
