"""`collbench import`: logs of other tools -> a results file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from collbench.errors import EXIT_DONE, EXIT_INPUT, EXIT_NO, InputError, one_of
from collbench.importers.check import Asked
from collbench.importers.reading import Imported, read_log, read_together, rows_in, why_nothing
from collbench.importers.registry import FORMATS
from collbench.importers.source import read_sources
from collbench.importers.table import Format, Table
from collbench.results import Record, ResultsWriter, load_results

_MOST_REFUSALS = 10  # named for one file

EPILOG = """\
formats:
{formats}

Each is recognised by its content; one log may hold several tests and several formats. What a log does not say is taken
from its numbers where they leave one possibility, and named as inferred, both on stderr and in the run's record
("imported"). Rows that contradict themselves are refused, each with its line.
Exit codes: 0 read; 1 a row was refused and --strict was given; 2 a file held nothing to read.
""".format(formats="\n".join(f"  {format.name:<16}{format.title}" for format in FORMATS.values()))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `collbench import`."""
    parser.add_argument(
        "logs", nargs="+", metavar="LOG", help="logs, plain or gzip, directories of them, or - (standard input)"
    )
    parser.add_argument(
        "-o", "--output", default="results.jsonl", metavar="RESULTS.jsonl", help="where to, - for stdout (%(default)s)"
    )
    parser.add_argument("--append", action="store_true", help="add to a results file that holds other runs")
    parser.add_argument("--format", metavar="NAME", help="read as this format, whatever the content looks like")
    parser.add_argument("--strict", action="store_true", help="exit 1 if any row was refused")
    said = parser.add_argument_group("what the logs do not say")
    said.add_argument("--collective", metavar="NAME", help="the collective")
    said.add_argument("--nranks", metavar="N", help="ranks of the communicator")
    said.add_argument("--nnodes", metavar="N", help="nodes they were on")
    said.add_argument("--dtype", metavar="NAME", help="the element type")


def run(args: argparse.Namespace) -> int:
    """Read the logs, write the records, say on stderr what was read and what was not."""
    if args.json and args.output == "-":
        raise InputError("--json and -o - both print on standard output: name a file with -o")
    asked, formats = _asked(args), _formats(args.format)
    there = _runs_in(Path(args.output)) if args.output != "-" else set()
    results: list[Imported] = []
    for log in read_sources(args.logs):
        imported = read_log(log, formats, asked, force=args.format is not None)
        if imported.tables:
            log.forget()  # a directory may hold more than the memory
        results.append(imported)
    read_together(results, formats)
    empty = [imported for imported in results if not imported.tables and imported.told_by is None]
    runs = list(_new_runs(results, there))
    if runs:
        _write(args, runs, there)
    summaries = [_summary(imported) for imported in results]
    for summary in summaries:
        _print(summary)
    if args.json:
        written = None if args.output == "-" else args.output
        print(json.dumps({"output": written, "runs": len(runs), "files": summaries}))
    elif args.output != "-" and any(imported.tables for imported in results):
        already = sum(len(imported.tables) for imported in results) - len(runs)
        print(
            f"results: {args.output}" + (f" ({already} of the runs were in it already)" if already else ""),
            file=sys.stderr,
        )
    named = [imported for imported in empty if imported.log.name in args.logs]
    if named or len(empty) == len(results):
        return EXIT_INPUT
    return EXIT_NO if args.strict and any(imported.refused for imported in results) else EXIT_DONE


def _asked(args: argparse.Namespace) -> Asked:
    from collbench.collectives import find_collective
    from collbench.dtypes import find_dtype

    return Asked(
        collective=find_collective(args.collective).name if args.collective is not None else None,
        nranks=_count("--nranks", args.nranks),
        nnodes=_count("--nnodes", args.nnodes),
        dtype=find_dtype(args.dtype).name if args.dtype is not None else None,
    )


def _count(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 9 and int(text) > 0):
        raise InputError(f"{flag} {text!r}: expected a whole number above zero")
    return int(text)


def _formats(name: str | None) -> list[Format]:
    if name is None:
        return list(FORMATS.values())
    if name not in FORMATS:
        raise one_of("format", name, list(FORMATS))
    return [FORMATS[name]]


# --- the results file -----------------------------------------------------------------------------------------------


def _runs_in(path: Path) -> set[str]:
    """The ids of the runs that a results file holds already; none where there is no such file yet."""
    if path.exists() and not path.is_file() and path != Path(os.devnull):
        raise InputError(f"{path}: is not a regular file: name a results file with -o")
    if not path.is_file() or path.stat().st_size == 0:
        return set()
    return {run["run_id"] for run in load_results(path).runs}


def _new_runs(results: list[Imported], there: set[str]) -> Iterator[list[Record]]:
    """The records of each run that is not there yet: the same log under two names is one run."""
    seen = set(there)
    for imported in results:
        for records in imported.records():
            if records[0]["run_id"] not in seen:
                seen.add(records[0]["run_id"])
                yield records


def _write(args: argparse.Namespace, runs: list[list[Record]], there: set[str]) -> None:
    if args.output == "-":
        for record in (record for records in runs for record in records):
            print(json.dumps(record, allow_nan=False, separators=(",", ":")))
        return
    if there and not args.append:
        raise InputError(
            f"{args.output}: holds other runs: --append puts both in one file, or name another file with -o"
        )
    writer = ResultsWriter(args.output)
    try:
        for record in (record for records in runs for record in records):
            writer.append(record)
    finally:
        writer.close()


# --- what was read --------------------------------------------------------------------------------------------------


def _summary(imported: Imported) -> dict[str, Any]:
    return {
        "file": imported.log.name,
        "formats": imported.formats,
        "rows": imported.rows,
        "tables": [_table_summary(table) for table in imported.tables],
        "refused": [{"line": refusal.line, "reason": refusal.reason} for refusal in imported.refused],
        "read_with": imported.told_by,
        "reasons": [] if imported.tables or imported.told_by else why_nothing(imported, FORMATS),
    }


def _table_summary(table: Table) -> dict[str, Any]:
    return {
        "line": table.line,
        "format": table.format,
        "collective": table.collective,
        "nranks": table.nranks,
        "nnodes": table.nnodes,
        "rows": rows_in(table),
        "wrong_rows": len({row.line for row in table.rows if row.wrong}),
        "inferred": table.inferred,
        "notes": table.notes,
    }


def _print(summary: dict[str, Any]) -> None:
    """One file's summary, on stderr."""
    lines = []
    if summary["reasons"]:
        lines.append(f"collbench: {summary['file']}: nothing to read: {'; or '.join(summary['reasons'])}")
    elif not summary["tables"]:
        lines.append(f"{summary['file']}: read together with {summary['read_with']}")
    for table in summary["tables"]:
        ranks = _counted(table["nranks"], "rank") + (
            f" on {_counted(table['nnodes'], 'node')}" if table["nnodes"] else ""
        )
        what = f"{table['format']}: {table['collective'] or 'estimates'}"
        lines.append(f"{summary['file']}:{table['line']}: {what}, {ranks}: {_counted(table['rows'], 'row')}")
        if table["wrong_rows"]:
            lines.append(f"    wrong data in {_counted(table['wrong_rows'], 'row')}: kept and marked, no fit uses them")
        lines += [f"    inferred {name}: {how}" for name, how in table["inferred"].items()]
        lines += [f"    note: {note}" for note in table["notes"]]
    refused = summary["refused"]
    lines += [f"    refused {summary['file']}:{each['line']}: {each['reason']}" for each in refused[:_MOST_REFUSALS]]
    if len(refused) > _MOST_REFUSALS:
        lines.append(f"    ... and {len(refused) - _MOST_REFUSALS} more ({len(refused)} refused in all)")
    print("\n".join(lines), file=sys.stderr)


def _counted(count: int | None, thing: str) -> str:
    return f"{'?' if count is None else count} {thing}{'' if count == 1 else 's'}"
