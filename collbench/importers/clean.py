"""What launchers, terminals and web pages put around a line of a log, taken off again.

Every expression here is anchored or has bounded repeats: a hostile line costs no more than its length.
"""

from __future__ import annotations

import html
import json
import re
from typing import NamedTuple

LONGEST_LINE = 4096  # characters; a longer line is no row of a table, its rest is dropped

# `node01:1905512:1905512 [0] NCCL INFO ...`: what NCCL itself writes into the middle of everything.
_NCCL = r"(?:\[[^\]\n]{1,40}\] ?)?[\w.-]{1,128}:\d{1,9}:\d{1,9} \[\d{1,4}\] NCCL (?:INFO|WARN|TRACE|CALL|VERSION)\b"
NCCL_LINE = re.compile(_NCCL)
ROOT_CELL = "  -1  "  # of nearly all rows of nccl-tests, and of no line of NCCL's
_ONLY_NCCL = re.compile(
    rf"(?:\[\d{{1,9}},\d{{1,9}}\]<std(?:out|err)>: ?|\s{{0,8}}\d{{1,7}}: |\[[a-z_]{{1,24}}\d{{1,7}}\]: ?)?{_NCCL}"
)

# Blanks that are none in ASCII, also as Latin letters of their UTF-8; marks without width; minus signs that are none; a
# box's sides and rules.
_BLANKS = "\u00a0\u1680\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_CHARACTERS = str.maketrans(
    dict.fromkeys(_BLANKS, " ")
    | dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", "")
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\u2500\u2501\u2550", "-")
    | dict.fromkeys("\u2502\u2503\u2551", "|")
    | dict.fromkeys("".join(map(chr, range(0x250C, 0x254C))) + "".join(map(chr, range(0x2552, 0x2571))), "+")
)
_UNPLAIN = re.compile(f"[{''.join(map(chr, _CHARACTERS))}]")
_THIN_BLANK_IN_NUMBER = re.compile("(?<=\\d)[\u202f\u2009](?=\\d{3}(?!\\d))")
_BLANK_MISREAD = "\u00c2\u00a0"
_ANSI = re.compile(r"(?:\x1b|\^\[)\[[0-?]{0,32}[ -/]{0,4}[@-~]|\x1b\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|\x1b[@-Z\\-_=>]")
_COLOUR_WITHOUT_ESCAPE = re.compile(r"\[(?:\d{1,3}(?:;\d{1,3}){0,4})?[mK]")
_MARKUP = re.compile(r"</?(?:pre|code|span|br|p|div|b|strong|tt|font|t[rdh]|li)(?: [^<>]{0,200})?/?>", re.IGNORECASE)
_END_OF_CELL = re.compile(r"</t[dh]>", re.IGNORECASE)
_ESCAPED = re.compile(r"\\([#_*|<>~\[\]-])")
_ESCAPED_TWICE = re.compile(r"&[lg]t;")
_COLOUR_BEGINS = re.compile(r"\[\d{0,3}[mK;]")
PIPE_RULE = re.compile(r"[\s|:-]{3,400}\Z")  # the line under a pipe table's names; also an empty row
_FENCE = re.compile(r"\s*(?:```|~~~)")

# Open MPI's --tag-output, which may stand inside a line, before each piece that a rank wrote.
_MPI_TAG = re.compile(r"\[(?:[\w.-]{1,80}@)?(\d{1,9}),(\d{1,9})\]<std(?:out|err|diag)>: ?")

_MONTHS = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_ZONE = r"(?:Z| ?[+-]\d\d:?\d\d| UTC)?"
_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
# What a benchmark's own line begins with: only before such a one is a word and a colon a prefix.
_WORDS = "size[\\s(]|nodes\\s|\\(B\\)|out-of-place|nThread|Rank |Out of |Avg bus|[nr]ccl-tests|Collective test|=="
_BEFORE_TABLE = rf"(?=\s*(?:\d{{1,7}}: )?\s*(?:#|\d{{1,15}}\s+\d[\d.]{{0,18}}(?:\s|\Z)|{_WORDS}))"
_LEVEL = "(?:INFO|DEBUG|WARNING|ERROR)"

# What may stand before a line; a group is the part that names who wrote it.
_PREFIXES = (
    # a reply's quote marks
    r"(?:> ?){1,8}",
    # `2024-07-19T10:00:00.000000000Z `, `[2024-07-19 10:00:00,123] `, `2024/07/19 10:00:00 `
    rf"\[?\d{{4}}[-/]\d\d[-/]\d\d[T ]{_TIME}{_ZONE}\]?(?: [|:-](?= )|:)? ?",
    # `Fri Jul 19 10:00:00 2024`, `Jul 19 10:00:00 `
    rf"\[?(?:[A-Z][a-z]{{2}} )?{_MONTHS} [ \d]\d {_TIME}(?: \d{{4}})?\]?:? ?",
    # `10:00:00 `, `[10:00:00.123] `
    rf"(?:\[{_TIME}\]|{_TIME}:?(?=\s)) ?",
    # torchrun's `[default0]:`, `[rank0]:`
    r"\[([a-z_]{1,24}\d{1,7})\]: ?",
    # `srun --label`, numbered lines of grep
    r"(\d{1,7}):(?=[\s#\[])(?=\s*\S) ?",
    # MPICH's -prepend-rank, Intel MPI's -l
    rf"\[(\d{{1,7}})\] {_BEFORE_TABLE}",
    # Ray's `(worker pid=123, ip=10.0.0.1) `
    r"\(([\w.:-]{0,60} ?(?:pid|rank)=\d{1,9}[^()\n]{0,80})\) ?",
    # kubectl's --prefix: `[pod/name/container] `
    r"\[(pod/[\w./-]{1,200})\] ?",
    # compose's `worker-1  | `
    rf"([\w./-]{{1,80}}) {{1,20}}\| {_BEFORE_TABLE}(?=[^|]{{0,400}}\Z)",
    # pdsh's and launchers' `node01: `, before what is a comment or a row of numbers
    rf"([\w.-]{{1,100}}): ?{_BEFORE_TABLE}",
    # a diff's `+`, a box's `|`, a comment's `//`, before the same
    rf"(?:[+|*]|//) ?{_BEFORE_TABLE}(?=[^|]{{0,400}}\Z)",
    # a logger's level
    rf"(?:\[{_LEVEL} {{0,4}}\]|{_LEVEL}(?::[\w.]{{1,40}})?:| ?INFO -) ?{_BEFORE_TABLE}",
)
_PREFIX = re.compile(rf"\s{{0,8}}(?:{'|'.join(_PREFIXES)})")
_MOST_PREFIXES = 4
_AS_PRINTED = re.compile(r"\s*(?:#|\d{1,20}\s+\d{1,20}\s|\Z)")  # a comment, a row, nothing: without a prefix


class Piece(NamedTuple):
    """One line without what stood around it. source: what the prefixes say about who wrote it (rank, host, pod)."""

    source: str
    text: str


def clean(line: str) -> list[Piece]:
    """The pieces of a line: one, but where a launcher put the output of several ranks into it."""
    line = line[:LONGEST_LINE]
    if NCCL_LINE.match(line):
        return [Piece("", line)]
    if line.startswith('{"log":'):
        line = _of_container(line)
    if _may_be_marked_up(line):
        line = _in_plain_characters(line.replace(_BLANK_MISREAD, " "))
        if "\x1b" in line or "[" in line:
            line = _COLOUR_WITHOUT_ESCAPE.sub("", _ANSI.sub("", line))
        if "&" in line or "<" in line:
            line = _without_markup(line)
        if "\\" in line:
            line = _ESCAPED.sub(r"\1", line)
    if _FENCE.match(line):
        return [Piece("", "")]
    if ">" in line and _MPI_TAG.search(line):
        return _by_rank(line)
    return [_without_prefixes(line)]


def _may_be_marked_up(line: str) -> bool:
    """Whether a line holds what a terminal or a web page adds; several times as fast as one expression."""
    if not line.isascii() or "\x1b" in line or "&" in line or "<" in line or "\\" in line:
        return True
    return "[" in line and ("^[" in line or _COLOUR_BEGINS.search(line) is not None)


def is_of_nccl(line: str) -> bool:
    """Whether nothing in a raw line is a benchmark's, nor says NCCL's version."""
    if _ONLY_NCCL.match(line) is None or "NCCL version" in line or ROOT_CELL in line:
        return False
    return line[0] != "[" or line.count("]<std") < 2


def cells(line: str) -> list[str]:
    """The cells of a pipe table's line, outer pipes or not, without the marks of bold and code around them."""
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [cell.strip().strip("*`_").strip() for cell in inner.split("|")]


def _without_markup(line: str) -> str:
    """A web page's line as it shows; escaped twice where it was. A row of an HTML table becomes a pipe table's."""
    if ">" in line:
        line = _MARKUP.sub("", _END_OF_CELL.sub(" | ", line))
    if "&" not in line:
        return line
    text = html.unescape(line)
    if _ESCAPED_TWICE.search(text):
        text = html.unescape(text)
    return _in_plain_characters(text)


def _in_plain_characters(text: str) -> str:
    if _UNPLAIN.search(text) is None:
        return text
    return _THIN_BLANK_IN_NUMBER.sub("", text).translate(_CHARACTERS)


def _without_prefixes(line: str, source: str = "") -> Piece:
    if _AS_PRINTED.match(line):
        return Piece(source, line)
    sources = [source] if source else []
    for _ in range(_MOST_PREFIXES):
        match = _PREFIX.match(line)
        if match is None:
            break
        sources += filter(None, match.groups())
        line = line[match.end() :]
    return Piece("/".join(sources), line)


def _by_rank(line: str) -> list[Piece]:
    """The pieces between Open MPI's tags, those of one rank joined, in the order of their ranks' first."""
    before, *rest = _MPI_TAG.split(line)
    pieces: dict[str, str] = {}
    outer = _without_prefixes(before)
    if outer.text.strip():
        pieces[outer.source] = outer.text
    for job, rank, text in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        source = f"{job},{rank}"
        pieces[source] = pieces.get(source, "") + text
    return [_without_prefixes(text, source) for source, text in pieces.items()]


def _of_container(line: str) -> str:
    """What a container's JSON log line holds."""
    try:
        text = json.loads(line)["log"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return line
    return text.rstrip("\r\n") if isinstance(text, str) else line
