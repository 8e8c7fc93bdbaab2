"""The flags that say how a table looks, for `run` and `show`: nccl-tests' words, its letters, its way to say 0 or 1.

nccl-tests' switches take a value (`-C 1`). Here it may be left out, so a command that has these flags gives its
arguments to `normalize` first: argparse alone would take what follows a bare switch, a file name say, for its value.
"""

from __future__ import annotations

import argparse
import re

from collbench.errors import InputError
from collbench.nccl_style import NEWEST, OLDEST, TableStyle, find_generation

# Every spelling of a flag whose value may be left out -> its long flag, the value then, what a value looks like.
_SWITCH, _VERSION, _PICTURE = re.compile(r"-?\d+"), re.compile(r"v?\d+\.\d+(\.\d+)?"), re.compile(r".*\.png")
_OPTIONAL = {
    "--nccl-tests": ("--nccl-tests", NEWEST, _VERSION),
    "--matrix": ("--matrix", "", _PICTURE),
    **dict.fromkeys(("-C", "--report-cputime", "--report_cputime"), ("--report-cputime", "1", _SWITCH)),
    **dict.fromkeys(("-S", "--report-timestamps", "--report_timestamps"), ("--report-timestamps", "1", _SWITCH)),
    **dict.fromkeys(("-M", "--memory"), ("--memory", "1", _SWITCH)),
    **dict.fromkeys(("-I", "--per-iter-timing", "--per_iter_timing"), ("--per-iter-timing", "1", _SWITCH)),
}


def normalize(argv: list[str]) -> list[str]:
    """The arguments with every optional value spelt out: `-C RESULTS` as `--report-cputime=1 RESULTS`."""
    spelt: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*spelt, word, *rest]
        if word in _OPTIONAL:
            flag, value, pattern = _OPTIONAL[word]
            if rest and pattern.fullmatch(rest[0]):
                value = rest.pop(0)
            word = f"{flag}={value}"
        spelt.append(word)
    return spelt


def add_table_flags(group: argparse._ArgumentGroup, per_iter: bool = False) -> None:
    """Add them to a group of a parser; -I too where it only chooses what is shown."""
    add = group.add_argument
    add(
        "--nccl-tests",
        nargs="?",
        const=NEWEST,
        metavar="VERSION",
        help=f"nccl-tests' table and nothing else, as version {OLDEST} ... {NEWEST} (default) prints it",
    )
    add(
        "-a",
        "--average",
        metavar="N",
        help="the time a pipelined row shows: 0 of the first rank, 1 mean (default), 2 fastest, 3 slowest rank",
    )
    _add_switch(
        group, "-C", "--report-cputime", "--report_cputime", help="time column: what issuing a call takes the host"
    )
    _add_switch(group, "-S", "--report-timestamps", "--report_timestamps", help="a column of when it was measured")
    if per_iter:
        _add_switch(group, "-I", "--per-iter-timing", "--per_iter_timing", help="columns of the iterations one by one")
    _add_switch(group, "-M", "--memory", help="a last line of the memory used")
    add(
        "-J",
        "--output-file",
        "--output_file",
        metavar="FILE.json",
        help="also write nccl-tests' JSON (never over a file)",
    )


def _add_switch(group: argparse._ArgumentGroup, *flags: str, help: str) -> None:
    group.add_argument(*flags, nargs="?", const="1", metavar="0/1", help=help)


def table_style(args: argparse.Namespace, per_iter: bool | None = None) -> TableStyle:
    """The table that the flags ask for. InputError for a value that none of them has, or a column its version lacks.

    per_iter: whether to show iterations one by one, where the flag for it is not one of `add_table_flags`.
    """
    average = args.average if args.average is not None else "1"
    if average not in ("0", "1", "2", "3"):
        raise InputError(f"--average {average!r}: expected 0 (first rank), 1 (mean), 2 (fastest) or 3 (slowest rank)")
    return TableStyle(
        generation=find_generation(NEWEST if args.nccl_tests is None else args.nccl_tests),
        average=int(average),
        cpu_time=_switch(args, "report_cputime"),
        timestamps=_switch(args, "report_timestamps"),
        memory=_switch(args, "memory"),
        per_iter=_switch(args, "per_iter_timing") if per_iter is None else per_iter,
        plain=args.nccl_tests is not None,
    )


def _switch(args: argparse.Namespace, name: str) -> bool:
    value = getattr(args, name, None)
    if value not in (None, "0", "1"):
        raise InputError(f"--{name.replace('_', '-')} {value!r}: expected 0 or 1, or nothing, which is 1")
    return value == "1"
