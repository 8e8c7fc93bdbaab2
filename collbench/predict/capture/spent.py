"""How much of what is counted, operations or ms, each layer took."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

Spent = Counter[tuple[str, str]]  # (direction, layer) -> how much; the layer "" is what is outside all


def medians(runs: Sequence[Spent]) -> Spent:
    """Of each layer, over all runs."""
    return Counter({key: statistics.median(run[key] for run in runs) for key in set().union(*runs)})
