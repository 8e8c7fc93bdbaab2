"""Many ranks or hosts in few words, for messages and the head of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

SHOWN = 8  # names written out before "and 3 more"


def spans(numbers: Iterable[int]) -> str:
    """`0-2, 7` for 0, 1, 2, 7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def rank_names(ranks: Sequence[int]) -> str:
    """`rank 3`, or `ranks 0-2, 7`."""
    return f"rank{'s' * (len(ranks) > 1)} {spans(ranks)}"


def few(names: Iterable[str]) -> str:
    """Names in a row, each once; of more than SHOWN the rest only counted."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - SHOWN
    return ", ".join(distinct[:SHOWN]) + (f" and {more} more" if more > 0 else "")
