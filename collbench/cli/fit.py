"""`collbench fit`: results -> α–β fits, a table of them, and the model file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.columns import aligned
from collbench.errors import EXIT_DONE, InputError
from collbench.numbers import digits, interval
from collbench.units import format_size

if TYPE_CHECKING:
    from collbench.model.laws import Fit, Segment

EPILOG = """\
Columns: α is the first segment's latency, busbw the last one's bandwidth, both with 90 % intervals. n½ is the size at
which half of that bandwidth is reached. error: how far off the curve is at sizes it was not shown (median / 90th
percentile). points: measurements used; seg: α–β segments the data carry. In the model, time between two measured
sizes is read off the measured curve; segments sum it up.
"""

_COLUMNS = (
    *("collective", "group", "ranks", "nodes", "backend", "dtype", "place", "timing"),
    *("α us", "[90 %]", "busbw GB/s", "[90 %]", "n½", "error %", "points", "seg"),
)
_TEXT_COLUMNS = 8  # the first ones are aligned to the left


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `collbench fit`."""
    parser.add_argument("results", nargs="+", metavar="RESULTS", help="results files of 'collbench run'")
    parser.add_argument(
        "-o", "--output", default="model.json", metavar="MODEL.json", help="the model file to write (%(default)s)"
    )
    parser.add_argument("--segments", action="store_true", help="print every fit's α–β segments beneath it")


def run(args: argparse.Namespace) -> int:
    """Fit, write the model file, print the table (or, with --json, the model document)."""
    from collbench.model.fit import fit_results

    if any(Path(args.output).resolve() == Path(path).resolve() for path in args.results):
        raise InputError(f"{args.output}: is one of the results files: name another file with -o")
    model = fit_results(args.results)
    model.save(args.output)
    for note in model.notes:
        print(f"collbench: warning: {note}", file=sys.stderr)
    print(json.dumps(model.to_dict(), allow_nan=False) if args.json else fit_table(model.fits, segments=args.segments))
    print(f"model: {args.output}", file=sys.stderr)
    return EXIT_DONE


def fit_table(fits: tuple[Fit, ...], *, segments: bool = False) -> str:
    """One row per fit; with `segments` theirs beneath, and beneath the table what the fits themselves note."""
    rows = [_row(fit) for fit in fits]
    head, *below = aligned([_COLUMNS, *rows], left=range(_TEXT_COLUMNS))
    lines = [head]
    for fit, line in zip(fits, below, strict=True):
        lines.append(line)
        lines += [f"    {_segment_line(segment)}" for segment in fit.segments if segments]
        lines += [f"    note: {note}" for note in fit.notes]
    return "\n".join(lines)


def _row(fit: Fit) -> tuple[str, ...]:
    error = fit.error_pct
    place = {True: "in", False: "out"}.get(fit.in_place, "-")  # type: ignore[arg-type]
    return (
        *(
            fit.collective,
            fit.group + (" (alone)" if fit.concurrent is False else ""),
            str(fit.nranks),
            str(fit.nnodes),
        ),
        *(fit.backend or "-", fit.dtype or "-", place, fit.timing),
        digits(fit.alpha_us),
        interval(fit.alpha_us_interval),
        _bandwidth(fit),
        interval(fit.busbw_GBps_interval),
        format_size(fit.n_half_bytes),
        f"{error.median:.1f} / {error.p90:.1f}" if error.median is not None and error.p90 is not None else "-",
        str(fit.points),
        str(len(fit.segments)),
    )


def _bandwidth(fit: Fit) -> str:
    """The last bandwidth; its low end where the sweep shows no more than that it is above it."""
    unknown = any(note.startswith("bandwidth not identified") for note in fit.notes)
    return f"> {digits(fit.busbw_GBps_interval[0])}" if unknown else digits(fit.busbw_GBps)


def _segment_line(segment: Segment) -> str:
    return (
        f"{format_size(segment.from_bytes)} to {format_size(segment.to_bytes)}: "
        f"{digits(segment.alpha_us)} us {interval(segment.alpha_us_interval)} + size / "
        f"{digits(segment.bandwidth_GBps)} GB/s {interval(segment.bandwidth_GBps_interval)}"
    )
