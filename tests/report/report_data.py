"""A small run of known figures, a prediction and a validation, for the tests of the report."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from collbench.collectives import DEFAULT_COLLECTIVES

SIZES = [2**power for power in range(8, 23)]
_TRUTH = {"isolated": (50.0, 4.0), "pipelined": (30.0, 5.0)}  # α in us, algbw in GB/s


def measurement(**changes: Any) -> dict[str, Any]:
    """One record of two ranks; time is α + size / bandwidth unless `changes` say otherwise."""
    record: dict[str, Any] = {
        "kind": "measurement", "run_id": "r1", "collective": "all_reduce", "group": "world", "group_ranks": [0, 1],
        "nranks": 2, "nnodes": 1, "dtype": "float32", "redop": None, "root": None, "in_place": True, "pass": 0,
        "size_bytes": 1024, "timing": "isolated", "concurrent": True, "wrong": 0,
    } | changes  # fmt: skip
    alpha_us, algbw_GBps = _TRUTH[record["timing"]]
    return {"time_us": alpha_us + record["size_bytes"] / (algbw_GBps * 1e3)} | record


def sweep(collective: str | None = None, timing: str | None = None, **changes: Any) -> list[dict[str, Any]]:
    """The four collectives in both regimes over SIZES, or one of either."""
    return [
        measurement(collective=name, timing=regime, size_bytes=size, **changes)
        for name in ([collective] if collective else DEFAULT_COLLECTIVES)
        for regime in ([timing] if timing else _TRUTH)
        for size in SIZES
    ]


def results_file(
    path: Path, records: list[dict[str, Any]], *, ended: bool = True, skips: tuple[dict[str, Any], ...] = (), **run: Any
) -> Path:
    """A results file of one run with these measurements; `run` replaces fields of its record."""
    head = {
        "kind": "run", "schema": "collbench.results/1", "run_id": "r1", "started": "2026-05-01T10:00:00+00:00",
        "backend": "gloo", "world_size": 2, "nodes": [{"host": "n0", "ranks": [0, 1], "devices": ["cpu", "cpu"]}],
        "versions": {"torch": "2.13.0"}, "environment": {"GLOO_SOCKET_IFNAME": "lo"},
        "sweep": {"name": "quick", "question": "What does this machine give?"},
    } | run  # fmt: skip
    end = {"kind": "end", "run_id": "r1", "finished": "2026-05-01T10:01:00+00:00", "exit_code": 0, "reason": None}
    lines = [head, *records, *({"kind": "skip", "run_id": "r1"} | skip for skip in skips), *([end] if ended else [])]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def prediction(**changes: Any) -> dict[str, Any]:
    """An object of `predict --json`, with the contract's keys alone: one layer, one bucket, 4 of 14 ms exposed."""
    bars = [("compute", "forward a", 0.0, 4.0), ("compute", "backward a", 4.0, 10.0), ("comm", "bucket 0", 10.0, 14.0)]
    return {
        "workload": "tiny", "strategy": "ddp", "nodes": 1, "ranks_per_node": 2, "step_ms": 14.0,
        "step_ms_interval": [13.0, 15.5], "compute_ms": 10.0, "comm_ms": 4.0, "exposed_comm_ms": 4.0,
        "exposed_tail_ms": 4.0,
        "collectives": [
            {"collective": "all_reduce", "group": "world", "size_bytes": 1048576, "count": 1, "time_ms": 4.0}
        ],
        "memory": {"persistent_GB": 1.25},
        "timeline": [{"stream": s, "name": n, "start_ms": start, "end_ms": end} for s, n, start, end in bars],
    } | changes  # fmt: skip


def validation() -> dict[str, Any]:
    keys = ("step_ms", "compute_ms", "exposed_comm_ms", "exposed_tail_ms")
    return {
        "measured": dict(zip(keys, (14.5, 10.1, 4.4, 0.01), strict=True)),
        "predicted": dict(zip(keys, (14.0, 10.0, 4.0, 0.0), strict=True)),
        "error_pct": dict(zip(keys, (-3.45, -0.99, -9.09, None), strict=True)),
        "steps": 20,
        "compute": "sleep",
    }


class Page(HTMLParser):
    """A page taken apart: its text, its elements, every address it refers to. Tags that do not match are an error."""

    _VOID = ("meta", "img", "link", "br")

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.descriptions: list[str] = []
        self._open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert not self._open, f"never closed: {self._open}"

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self._VOID:
            self._open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action", "data"):
                self.addresses.append(value or "")
            if name == "alt":
                self.descriptions.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.words.append(data)
