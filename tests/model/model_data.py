"""Synthetic measurements of known truth, for the tests of the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from collbench.collectives import find_collective

SIZES = 2 ** np.arange(3, 31)  # 8 B to 1 GiB, 28 of them


def line_us(sizes: Any, alpha_us: float, bandwidth_GBps: float) -> Any:
    return alpha_us + np.asarray(sizes) / (bandwidth_GBps * 1e3)


def row(size_bytes: int, time_us: float, **changes: Any) -> dict[str, Any]:
    """One measurement record; `changes` replace its fields."""
    record: dict[str, Any] = {
        "run_id": "r1",
        "collective": "all_reduce",
        "group": "world",
        "group_ranks": list(range(changes.get("nranks") or 8)),
        "nranks": 8,
        "nnodes": 2,
        "dtype": "float32",
        "redop": "sum",
        "root": None,
        "in_place": False,
        "size_bytes": int(size_bytes),
        "count": int(size_bytes) // 4,
        "timing": "isolated",
        "concurrent": True,
        "iterations": 20,
        "time_us": float(time_us),
        "wrong": 0,
        "backend": "nccl",
    }
    return record | changes


def rows(sizes: Any = SIZES, alpha_us: float = 20.0, bandwidth_GBps: float = 25.0, **changes: Any) -> list[dict]:
    """A noise-free sweep of t = alpha + size / bandwidth."""
    return sweep(line_us(sizes, alpha_us, bandwidth_GBps), sizes, **changes)


def sweep(times_us: Any, sizes: Any = SIZES, **changes: Any) -> list[dict]:
    """A measurement of each size."""
    return [row(size, time, **changes) for size, time in zip(sizes, times_us, strict=True)]


def frame(*lists: list[dict]) -> pandas.DataFrame:
    return pandas.DataFrame([record for each in lists for record in each])


def noisy(times: Any, noise: float, seed: int) -> Any:
    """Times with multiplicative noise, one draw each."""
    return times * (1 + noise * np.random.default_rng(seed).standard_normal(np.shape(times)))


def write_results(path: Path, records: list[dict], **run: Any) -> Path:
    """A results file of these measurements."""
    head = {"kind": "run", "schema": "collbench.results/1", "run_id": "r1", "backend": "nccl", "world_size": 8} | run
    lines = [head]
    for record in records:
        factor = find_collective(record["collective"]).bus_factor(record["nranks"])
        algbw = record["size_bytes"] / 1e3 / record["time_us"]
        body = {name: value for name, value in record.items() if name != "backend"}
        lines.append({"kind": "measurement", **body, "algbw_GBps": algbw, "busbw_GBps": algbw * factor})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
