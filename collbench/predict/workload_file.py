"""A workload as the TOML text that `Workload.from_toml` reads."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from collbench.predict.captured import Captured
from collbench.predict.workload import Layer, Workload

_COMMENTS = {
    "times": "where forward_ms and backward_ms come from",
    "tokens_per_micro_batch": "per rank",
    "plan": "the schedule that predict plans by itself, beside this one",
    "calls": "[collective, unit, size_bytes, dtype, ranks] as issued; [direction, layer] where it begins to compute",
}


def as_toml(workload: Workload) -> str:
    """The text. What has its default value is left out."""
    lines = [
        _line(field.name, getattr(workload, field.name))
        for field in fields(Workload)
        if field.name not in ("layers", "captured") and getattr(workload, field.name) != field.default
    ]
    for layer in workload.layers:
        lines += ["", "[[layers]]", *_layer(layer)]
    if workload.captured is not None:
        lines += ["", "[captured]", *_captured(workload.captured)]
    return "\n".join(lines) + "\n"


def _layer(layer: Layer) -> list[str]:
    named = [(field.name, getattr(layer, field.name), field.default) for field in fields(Layer)]
    return [_line(name, value) for name, value, default in named if value != default]


def _captured(captured: Captured) -> list[str]:
    table = captured.to_dict()
    calls = table.pop("calls")
    rows = [f"    {json.dumps(row, ensure_ascii=False)}," for row in calls]
    return [*(_line(name, value) for name, value in table.items()), f"calls = [  # {_COMMENTS['calls']}", *rows, "]"]


def _line(name: str, value: Any) -> str:
    """Texts, numbers, flags and lists read the same in TOML as in JSON."""
    if name in ("tensors", "frozen_tensors"):
        value = [shape[0] if len(shape) == 1 else list(shape) for shape in value]
    elif isinstance(value, float):
        value = int(value) if value.is_integer() and value < 1e15 else float(f"{value:.6g}")
    text = f"{name} = {json.dumps(value, ensure_ascii=False)}"
    return f"{text}  # {_COMMENTS[name]}" if name in _COMMENTS else text
