"""Two levels of links, nodes and the network between them, make a world that was not measured. numpy alone.

A collective over N nodes of g ranks runs inside the nodes and, on the g-th part of the data where that is divided or
reduced, between them (two-level algorithms; a flat ring is as slow as the slower of both). Latencies add up; bytes of
the two levels flow at the same time, so the slower one counts.
"""

from __future__ import annotations

import math

import numpy as np

from collbench.collectives import find_collective
from collbench.model.curve import Curve, sizes_of_both

LEVELS_SPREAD = math.log(1.5)  # half of a 90 % interval: libraries differ in how they join the levels

# What crosses the network of S bytes: all of it for these, one rank's share of the node for the others.
_WHOLE = {"broadcast", "reduce", "all_to_all_single", "send_recv", "gather", "scatter"}


def two_levels(collective: str, inside: Curve, across: Curve, ranks_per_node: int) -> Curve:
    """The curve of a world from those of `intra` (g ranks of one node) and of `inter` (one rank on each node)."""
    part = 1 if find_collective(collective).name in _WHOLE else ranks_per_node
    across = Curve(across.sizes_bytes * part, across.times_us, across.spread_log)
    sizes = sizes_of_both(inside, across)
    times = [curve.time_us(sizes) for curve in (inside, across)]
    latencies = [float(np.min(curve.times_us)) for curve in (inside, across)]
    flowing = [np.maximum(time - latency, 0.0) for time, latency in zip(times, latencies, strict=True)]
    widths = [np.maximum(*curve.half_widths_log(sizes)) for curve in (inside, across)]
    return Curve(sizes, sum(latencies) + np.maximum(*flowing), np.maximum(*widths))
