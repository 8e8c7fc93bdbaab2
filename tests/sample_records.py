"""Records and results files for the tests of the base modules, written out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Record = dict[str, Any]

# busbw / algbw of nccl-tests, typed here a second time.
FACTOR = {
    "broadcast": lambda n: 1,
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather_into_tensor": lambda n: (n - 1) / n,
    "reduce_scatter_tensor": lambda n: (n - 1) / n,
}


def run_record(run_id: str = "r1", **changes: Any) -> Record:
    return {
        "kind": "run",
        "schema": "collbench.results/1",
        "run_id": run_id,
        "started": "2026-01-02T03:04:05+00:00",
        "backend": "gloo",
        "world_size": 2,
        "nodes": [{"host": "n0", "ranks": [0, 1], "devices": ["cpu", "cpu"], "pids": [101, 102]}],
        "groups": {"world": [[0, 1]]},
        "versions": {"torch": "2.13.0"},
        "environment": {},
        "sweep": {"minbytes": 8, "maxbytes": 1024, "stepfactor": 2, "warmup_iters": 5, "iters": 20, "check": 1},
        **changes,
    }


def measurement(run_id: str = "r1", **changes: Any) -> Record:
    """A measurement of an all_reduce; the bandwidths follow from the size, the time and the ranks."""
    record = {
        "kind": "measurement",
        "run_id": run_id,
        "collective": "all_reduce",
        "group": "world",
        "group_ranks": [0, 1],
        "nranks": 2,
        "nnodes": 1,
        "dtype": "float32",
        "redop": "sum",
        "root": None,
        "in_place": True,
        "pass": 0,
        "size_bytes": 1024,
        "count": 256,
        "timing": "pipelined",
        "concurrent": True,
        "iterations": 20,
        "time_us": 100.0,
        "time_min_us": None,
        "time_p50_us": None,
        "time_p95_us": None,
        "time_max_us": None,
        "time_rank_max_us": 101.0,
        "slowest_rank": 1,
        "wrong": 0,
        **changes,
    }
    algbw = record["size_bytes"] / record["time_us"] / 1e3
    bandwidths = {"algbw_GBps": algbw, "busbw_GBps": algbw * FACTOR[record["collective"]](record["nranks"])}
    return {**bandwidths, **record}


def write_lines(path: Path, *records: Record) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
