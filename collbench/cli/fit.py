"""`collbench fit`: results -> α–β fits, a table of them, the model file, and what else is made of it."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.cli.cost_flags import add_link_flags, given_link_flags, link_model
from collbench.columns import aligned
from collbench.errors import EXIT_DONE, InputError
from collbench.model.exports import FORMATS, split_kind
from collbench.numbers import digits, interval
from collbench.units import format_size, parse_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collbench.model.contention import Contention
    from collbench.model.laws import Fit, Segment
    from collbench.model.store import Model


def _told(word: str, text: str) -> str:
    return textwrap.fill(f"{word} {text}", width=120, initial_indent=" " * 6, subsequent_indent=" " * 13)


_FORMATS = "\n".join(
    f"  {name}: {format.what}\n{_told('exact:', format.keeps)}\n{_told('lost: ', format.loses)}"
    for name, format in FORMATS.items()
)
EPILOG = f"""\
Columns: α is the first segment's latency, busbw the last one's bandwidth, both with 90 % intervals. n½ is the size at
which half of that bandwidth is reached. error: how far off the curve is at sizes it was not shown (median / 90th
percentile). points: measurements used; seg: α–β segments the data carry. In the model, time between two measured
sizes is read off the measured curve; segments sum it up. --full says all of it, a block per fit.

--export KIND[=FILE]; times and sizes are the contract's (us, bytes of nccl-tests' size, GB = 10^9) unless said:
{_FORMATS}
"""

_COLUMNS = (
    *("collective", "group", "ranks", "nodes", "backend", "dtype", "place", "timing"),
    *("α us", "[90 %]", "busbw GB/s", "[90 %]", "n½", "error %", "points", "seg"),
)
PLOT_SUFFIXES = (".png", ".svg")
_TEXT_COLUMNS = 8  # the first ones are aligned to the left


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `collbench fit`."""
    add = parser.add_argument
    add("results", nargs="+", metavar="RESULTS", help="results files of 'collbench run' or 'collbench import'")
    add("-o", "--output", default="model.json", metavar="MODEL.json", help="the model file to write (%(default)s)")
    add("--segments", action="store_true", help="print every fit's α–β segments beneath it")
    add("--full", action="store_true", help="print all that is known of each fit, a block each, in place of the table")
    add("--plot", metavar="FILE.png", help="draw points, segments and intervals (.png or .svg; 6 kinds a file)")
    add(
        "--export",
        action="append",
        default=[],
        metavar="KIND[=FILE]",
        help=f"also write the model as {', '.join(FORMATS)} (beneath: what is exact and what is lost)",
    )
    add(
        "--link-GBps",
        metavar="B",
        help="one rank's one-way link rate (25GB/s, 200Gb/s, bare GB/s): no answer's bus bandwidth will be above it",
    )
    prior = parser.add_argument_group("few points: what to think of the sizes between and beyond them")
    prior.add_argument(
        "--prior",
        choices=("nccl", "datasheet"),
        help="NCCL's own latencies, or the ring of the link figures, where fewer than 8 sizes were measured; corrected "
        "by those, marked, with wide intervals (rates for nccl: --bandwidth, else the highest measured)",
    )
    add_link_flags(prior)


def run(args: argparse.Namespace) -> int:
    """Fit, write the model file and what was asked for beside it, print the table (or, with --json, the document)."""
    exports = [split_kind(text) for text in args.export]
    _check(args, [path for _, path in exports if path is not None])
    model = _model(args)
    model.save(args.output)
    for note in model.notes:
        print(f"collbench: warning: {note}", file=sys.stderr)
    print(json.dumps(model.to_dict(), allow_nan=False) if args.json else _text(args, model))
    print(f"model: {args.output}", file=sys.stderr)
    if args.plot is not None:
        from collbench.report.fit_plot import write_fit_plots

        for picture in write_fit_plots(Path(args.plot), model.fits):
            print(f"plot: {picture}", file=sys.stderr)
    for kind, path in exports:
        _export(kind, path, model, args.results)
    return EXIT_DONE


def _check(args: argparse.Namespace, exported: list[str]) -> None:
    """Before anything is read or written: what can be wrong with the arguments."""
    read = {Path(path).resolve() for path in args.results}
    for option, path in [("-o", args.output), ("--plot", args.plot), *(("--export", path) for path in exported)]:
        if path is not None and Path(path).resolve() in read:
            raise InputError(f"{path}: is one of the results files: name another file with {option}")
    if args.plot is not None and Path(args.plot).suffix.lower() not in PLOT_SUFFIXES:
        raise InputError(f"--plot {args.plot}: expected a file that ends in {' or '.join(PLOT_SUFFIXES)}")
    given = given_link_flags(args)
    if args.prior is None and given:
        raise InputError(f"{given[0]} is for --prior: without one, fits are made of measurements alone")
    if args.bandwidth is None and (args.prior == "datasheet" or given):
        raise InputError(f"--prior {args.prior} needs --bandwidth, the links' rate such as 25GB/s")


def _model(args: argparse.Namespace) -> Model:
    from collbench.model.fit import fit_results

    link_GBps = None if args.link_GBps is None else parse_rate(args.link_GBps, "--link-GBps")
    link = None if args.bandwidth is None else link_model(args)
    return fit_results(args.results, link_GBps=link_GBps, prior=args.prior, link=link)


def _text(args: argparse.Namespace, model: Model) -> str:
    if args.full:
        from collbench.report.fit_text import full_text

        fits = full_text(model.fits)
    else:
        fits = fit_table(model.fits, segments=args.segments)
    return f"{fits}\n\n{contention_table(model.contention)}" if model.contention else fits


def _export(kind: str, path: str | None, model: Model, results: list[str]) -> None:
    from collbench.model.exports import export, write

    forced = _forced(results) if kind == "nccl-tuner" else {}
    exported = export(kind, model, forced)
    for note in exported.notes:
        print(f"collbench: warning: {note}", file=sys.stderr)
    for target in write(exported, kind, path):
        print(f"{kind}: {target}", file=sys.stderr)


def _forced(paths: list[str]) -> dict[tuple[str, str], Model]:
    """A model for each algorithm and protocol that the runs of these files were forced to; none where all had one."""
    from collbench.model.exports.nccl_tuner import forced_choice
    from collbench.model.fit import fit_results
    from collbench.results import load_results

    by_choice: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        choices = {forced_choice(run.get("environment") or {}) for run in load_results(path).runs}
        if len(choices) != 1 or None in choices:
            raise InputError(
                f"{path}: its runs do not have one NCCL_ALGO and one NCCL_PROTO of one word each: "
                "nccl-tuner wants a results file per pair"
            )
        by_choice.setdefault(choices.pop(), []).append(path)  # type: ignore[arg-type]
    return {choice: fit_results(files) for choice, files in by_choice.items()} if len(by_choice) > 1 else {}


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


def contention_table(contention: Sequence[Contention]) -> str:
    """What running together costs the groups of each kind that was measured both ways."""
    title = "contention: how many times as long the groups of a kind take together"
    head = ("collective", "group", "ranks", "nodes", "timing", "latency", "[90 %]", "transfer", "[90 %]")
    rows = [
        (
            *(each.collective, each.group, str(each.nranks), str(each.nnodes), each.timing),
            *(f"x{digits(each.latency_factor)}", interval(each.latency_factor_interval)),
            *(f"x{digits(each.transfer_factor)}", interval(each.transfer_factor_interval)),
        )
        for each in contention
    ]
    return "\n".join([title, *aligned([head, *rows], left=(0, 1, 4))])


def _row(fit: Fit) -> tuple[str, ...]:
    from collbench.report.fit_text import busbw_interval_text, busbw_text, n_half_text

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
        busbw_text(fit),
        busbw_interval_text(fit),
        n_half_text(fit),
        f"{error.median:.1f} / {error.p90:.1f}" if error.median is not None and error.p90 is not None else "-",
        str(fit.points),
        str(len(fit.segments)),
    )


def _segment_line(segment: Segment) -> str:
    return (
        f"{format_size(segment.from_bytes)} to {format_size(segment.to_bytes)}: "
        f"{digits(segment.alpha_us)} us {interval(segment.alpha_us_interval)} + size / "
        f"{digits(segment.bandwidth_GBps)} GB/s {interval(segment.bandwidth_GBps_interval)}"
    )
