"""How nccl-tests prints, version by version: numbers, header, device lines, footer; and which of it a user asked for.

One table, `_CHANGES`, says what each version changed since 2.13.0, the first whose columns are those of today (found by
comparing the output of every tag, `src/common.cu` and, from 2.17.3, `src/util.cu`). Of all that nccl-tests prints one
line is left out: `# nccl-tests version`, which would be untrue.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from collbench.errors import InputError

TIME_WIDTH, BANDWIDTH_WIDTH = 7, 6

Version = tuple[int, int, int]


def _fixed(value: float, width: int) -> str:
    """Two decimals; a time loses them as it grows, a bandwidth outgrows its column."""
    decimals = 2 if width < TIME_WIDTH or value < 100 else 1 if value < 10_000 else 0
    return f"{value:.{decimals}f}"


def _by_digits(value: float, width: int) -> str:
    """As many decimals as the digits before the point leave room for, counted before rounding: 9999.996 outgrows."""
    digits = len(str(int(value))) if value >= 1 else 0
    for decimals, most in ((2, width - 3), (1, width - 2), (0, width)):
        if digits <= most:
            return f"{value:.{decimals}f}"
    return _exponent(value, width)


def _fitting(value: float, width: int) -> str:
    """The most decimals, of two, that fit the column."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text
    return _exponent(value, width)


def _exponent(value: float, width: int) -> str:
    return f"{value:.1e}" if width >= TIME_WIDTH else f"{value:.0e}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What one version of nccl-tests prints.

    number(value, width): a time (`TIME_WIDTH`) or a bandwidth (`BANDWIDTH_WIDTH`).
    wrong_width: of the #wrong column; wrong_gap stands before its name, wrong_unit_width blanks under it.
    tail_widths: of the last header column without and with -S, None where the header ends with #wrong.
    device: a line of "# Using devices".  blocking: the lines of -z 1, 2 and 3.
    names_program, says_unalign, has_error_line, has_last_comment: lines and words that came later.
    """

    version: Version
    number: Callable[[float, int], str] = _fixed
    wrong_width: int = 5
    wrong_gap: str = " "
    wrong_unit_width: int = 5
    tail_widths: tuple[int, int] | None = None
    device: str = "#   Rank {rank:2d} Pid {pid:6d} on {host:>10s} device {device:2d} [0x00] {name}"
    blocking: tuple[str, str, str] = 3 * ("wait for completion and barrier after each collective",)
    names_program: bool = False
    says_unalign: bool = False
    has_error_line: bool = False
    has_last_comment: bool = False

    @property
    def name(self) -> str:
        return ".".join(map(str, self.version))


_GROUPED = "#  Rank {rank:2d} Group {group:2d} Pid {pid:6d} on {host:>10s} device {device:2d} [%s] {name}"
_BARRIER = "wait for completion and barrier after each collective"
_NO_BARRIER = "wait for completion after each collective (no barrier)"

_CHANGES: tuple[tuple[Version, dict[str, Any]], ...] = (
    ((2, 13, 0), {}),
    ((2, 13, 4), {"device": _GROUPED % "0x00", "has_error_line": True}),
    ((2, 14, 1), {"device": _GROUPED % "0000:00:00"}),
    ((2, 16, 7), {"names_program": True}),
    ((2, 17, 3), {"number": _by_digits, "wrong_width": 6, "wrong_gap": "  "}),
    ((2, 17, 6), {"wrong_unit_width": 6, "tail_widths": (20, 20)}),
    ((2, 17, 7), {"tail_widths": (0, 19), "has_last_comment": True}),
    ((2, 18, 1), {"blocking": (_BARRIER, _NO_BARRIER, _NO_BARRIER)}),
    ((2, 18, 2), {"says_unalign": True}),
    (
        (2, 19, 2),
        {
            "blocking": (
                "wait and barrier after each inner iteration (-m)",
                "wait after each inner iteration (-m), no barrier",
                "wait and barrier after each outer iteration (-n); time excludes barrier",
            )
        },
    ),
    ((2, 19, 6), {"number": _fitting}),
)
OLDEST, NEWEST = (".".join(map(str, version)) for version, _ in (_CHANGES[0], _CHANGES[-1]))

# The version that brought a column or a line, by the flag that asks for it.
_SINCE: dict[str, tuple[str, Version]] = {
    "cpu_time": ("-C", (2, 13, 10)),
    "timestamps": ("-S", (2, 17, 6)),
    "memory": ("-M", (2, 17, 7)),
    "per_iter": ("-I", (2, 19, 2)),
}


def find_generation(text: str = NEWEST) -> Generation:
    """How the version called `text` (2.17.2, v2.19, ...) prints; InputError for one outside the known ones."""
    match = re.fullmatch(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", text.strip())
    version = tuple(int(part or 0) for part in match.groups()) if match else ()
    if not _CHANGES[0][0] <= version <= _CHANGES[-1][0]:
        raise InputError(
            f"--nccl-tests={text}: not a known version of nccl-tests: expected {OLDEST} to {NEWEST}, such as 2.17.2 "
            f"(a version after {NEWEST} prints as {NEWEST})"
        )
    generation = Generation(version=(version[0], version[1], version[2]))
    for since, changes in _CHANGES:
        if since <= version:
            generation = replace(generation, **changes)
    return generation


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStyle:
    """The table that was asked for.

    average: -a, which rank's time a pipelined row shows: 0 the first's, 1 the mean, 2 the fastest's, 3 the slowest's.
    cpu_time, timestamps, memory, per_iter: -C, -S, -M, -I.  plain: nccl-tests' lines and none of collbench's own.
    InputError for a column that the generation did not have.
    """

    generation: Generation = field(default_factory=find_generation)
    average: int = 1
    cpu_time: bool = False
    timestamps: bool = False
    memory: bool = False
    per_iter: bool = False
    plain: bool = False

    def __post_init__(self) -> None:
        for name, (flag, since) in _SINCE.items():
            if getattr(self, name) and self.generation.version < since:
                raise InputError(
                    f"{flag}: nccl-tests {self.generation.name} has no such column or line: it came with "
                    f"{'.'.join(map(str, since))}: leave {flag} out, or state a later --nccl-tests"
                )

    @property
    def time_field(self) -> str:
        """The field of a pipelined record that -a picks."""
        return ("time_rank0_us", "time_us", "time_rank_min_us", "time_rank_max_us")[self.average]
