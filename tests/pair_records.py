"""Results of pairs, made up: what every node (or rank) gave with every other one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sample_records import Record, measurement, run_record, write_lines

from collbench.links import BANDWIDTH, LATENCY, Link, Matrix, PairTable
from collbench.results import ResultsFile, load_results

BUSBW_GBps, ALPHA_US = 40.0, 20.0
SIZES = (8, 1 << 20, 1 << 30)


def cluster(nodes: int, per_node: int = 1, **changes: Any) -> Record:
    """A run on n0, n1 ... with so many ranks each."""
    return run_record(
        world_size=nodes * per_node,
        nodes=[
            {"host": f"n{node}", "ranks": list(range(node * per_node, (node + 1) * per_node)), "devices": []}
            for node in range(nodes)
        ],
        **changes,
    )


def pairs_of(run: Record, group: str = "pairs") -> list[tuple[int, ...]]:
    """The groups of ranks of a run."""
    if group == "pairs:rank":
        return list(itertools.combinations(range(run["world_size"]), 2))
    return [(*low["ranks"], *high["ranks"]) for low, high in itertools.combinations(run["nodes"], 2)]


def pair(run: Record, ranks: Sequence[int], slowdown: float = 1.0, **changes: Any) -> Record:
    """A measurement of one pair: 20 us and 40 GB/s, both worse by `slowdown`."""
    fields = {"group": "pairs", "size_bytes": SIZES[0], "timing": "isolated"} | changes
    factor = 2 * (len(ranks) - 1) / len(ranks)
    time_us = slowdown * (ALPHA_US + fields["size_bytes"] * factor / BUSBW_GBps / 1e3)
    busbw = fields["size_bytes"] * factor / time_us / 1e3
    return measurement(
        run["run_id"],
        **({"group_ranks": list(ranks), "nranks": len(ranks), "time_us": time_us, "busbw_GBps": busbw} | fields),
    )


def sweep(
    run: Record, slowdown: Callable[[tuple[int, ...]], float] = lambda ranks: 1.0, **changes: Any
) -> list[Record]:
    """Every pair of a run at all SIZES in both regimes."""
    return [
        pair(run, ranks, slowdown(ranks), **({"size_bytes": size, "timing": timing} | changes))
        for ranks in pairs_of(run, changes.get("group", "pairs"))
        for size in SIZES
        for timing in ("pipelined", "isolated")
    ]


def results(folder: Path, *records: Record) -> ResultsFile:
    return load_results(write_lines(folder / "pairs.jsonl", *records))


def noisy(
    nodes: int,
    seed: int,
    *,
    noise: float = 0.05,
    known: str = "none",
    slow: Callable[[Link], float] = lambda link: 1.0,
    quantity: str = BANDWIDTH,
) -> tuple[PairTable, Matrix]:
    """A matrix of nodes whose links differ by normal noise (a fraction), some of them slower by a factor.

    known: what a link knows of its own noise: "none", "interval" (all of it), or "passes" (the difference of two).
    """
    links = list(itertools.combinations(range(nodes), 2))
    passes = np.random.default_rng(seed).normal(0, noise * math.sqrt(2), (len(links), 2))
    log_times = passes.mean(axis=1) + np.log([slow(link) for link in links])
    sigmas: dict[str, list[float | None]] = {
        "none": [None] * len(links),
        "interval": [noise] * len(links),
        "passes": [float(abs(first - second) / 2) for first, second in passes],
    }
    signs = {BANDWIDTH: -1, LATENCY: 1}
    matrix = Matrix(
        quantity=quantity,
        size_bytes=8,
        timing="isolated",
        values=dict(zip(links, map(float, 40 * np.exp(signs[quantity] * log_times)), strict=True)),
        sigma=dict(zip(links, sigmas[known], strict=True)),
    )
    names = tuple(f"n{node}" for node in range(nodes))
    return (
        PairTable(
            collective="all_reduce", group="pairs", details="", places=names, node_of=tuple(range(nodes)),
            nodes=names, matrices=(matrix,), notes=(),
        ),
        matrix,
    )  # fmt: skip
