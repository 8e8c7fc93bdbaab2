"""Summaries of ds_bench and its like: a pipe table with a line for each setting and a column of times for each size.

    | Environment | World | 4 KB (us) | 1 MB (us) | Peak Bus BW (GB/s) |

Such a table does not say which collective it is of. A line is a table of its own: its ranks differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from collbench.importers.clean import PIPE_RULE, cells
from collbench.importers.derived import MOST_BYTES, ranks_in
from collbench.importers.source import Log
from collbench.importers.table import Format, Printed, Refusal, Row, Table
from collbench.units import parse_size

_LONGEST_LINE = 1000
_SIZE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) ?([KMG]?)(i?)B \((us|ms)\)\Z")
_RANKS = ("world", "world size", "world_size", "ranks", "nranks", "gpus", "devices", "workers")
_NODES = ("nodes", "nnodes")
_LABEL_CHARACTERS = 120


def _recognises(log: Log) -> bool:
    return log.holds("B (us) |", "B (us)|", "B (ms) |", "B (ms)|")


def _read(log: Log) -> Iterator[Table | Refusal]:
    sizes: dict[int, tuple[int, float]] = {}  # column -> bytes, us a unit
    names: list[str] = []
    for number, _, line in log.pieces(without_nccl=True):
        if len(line) > _LONGEST_LINE or "|" not in line:
            sizes = {}
            continue
        words = cells(line)
        found = {place: size for place, word in enumerate(words) if (size := _size(word)) is not None}
        if len(found) > 1:
            sizes, names = found, [word.lower() for word in words]
        elif sizes and not PIPE_RULE.match(line):
            yield from _line(number, words, sizes, names)


def _size(word: str) -> tuple[int, float] | None:
    match = _SIZE.match(word)
    if match is None:
        return None
    size = parse_size(match[1] + match[2])
    return (size, 1.0 if match[4] == "us" else 1e3) if 0 < size <= MOST_BYTES else None


def _line(
    number: int, words: list[str], sizes: dict[int, tuple[int, float]], names: list[str]
) -> Iterator[Table | Refusal]:
    if len(words) != len(names):
        yield Refusal(number, f"{len(words)} cells under {len(names)} columns")
        return
    table = Table(
        format=FORMAT.name,
        line=number,
        timing="pipelined",
        nranks=_count(words, names, _RANKS),
        nnodes=_count(words, names, _NODES),
        notes=["KB is 1024 bytes, as ds_bench has it"],
        more={"label": words[0][:_LABEL_CHARACTERS]} if 0 not in sizes else {},
    )
    no_times = []
    for place, (size_bytes, unit_us) in sizes.items():
        time = Printed.read(words[place])
        if time is None or time.value <= 0:
            no_times.append(words[place][:40] or "empty")
        else:
            table.rows.append(Row(line=number, size_bytes=size_bytes, time_us=time.times(unit_us)))
    if no_times:
        yield Refusal(number, f"no time: {', '.join(no_times)}")
    if table.rows:
        yield table


def _count(words: list[str], names: list[str], wanted: tuple[str, ...]) -> int | None:
    return ranks_in(next((word for word, name in zip(words, names, strict=True) if name in wanted), ""))


FORMAT = Format(
    name="size-columns",
    title="summaries with a column of times for each size",
    recognises=_recognises,
    read=_read,
)
