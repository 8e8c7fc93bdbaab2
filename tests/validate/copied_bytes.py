"""Run as a program: how many bytes torch's own copies around collectives read and write, seen as they are dispatched.

stdin: [[workload, knobs, nranks], …]
stdout: for each, the bytes of the copies of its last step, by kind.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter

import torch
from issued_steps import recorded_steps
from torch.utils._python_dispatch import TorchDispatchMode

# Of the operators that torch copies with: what for, and which arguments it reads and which it writes.
_COPIES = {
    "aten::_foreach_copy_": ("cast", (1,), (0,)),
    "aten::_to_copy": ("cast", (0,), ("result",)),
    "fsdp::all_gather_copy_in": ("gather in", (0,), (0,)),
    "fsdp::split_with_sizes_copy": ("gather out", (0,), ("out",)),
    "fsdp::chunk_cat": ("reduce in", (0,), ("out",)),
    "aten::clone": ("reshard", (0,), ("result",)),
    "aten::add_": ("add", (0, 1), (0,)),
    "aten::mul": ("bucket", (0,), ("out",)),
    "aten::copy_": ("bucket", (1,), (0,)),
    "aten::div_": ("divide", (0,), (0,)),
}


def _bytes(value):
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(_bytes, value))


class Count(TorchDispatchMode):
    """Adds up what passes."""

    def __init__(self):
        super().__init__()
        self.moved = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func._schema.name in _COPIES:
            arguments = {**dict(enumerate(args)), **(kwargs or {}), "result": result}
            kind, reads, writes = _COPIES[func._schema.name]
            self.moved[kind] += sum(_bytes(arguments[name]) for name in (*reads, *writes))
        return result


def copied(workload, knobs, nranks):
    with Count() as count:
        for _ in recorded_steps(workload, knobs, nranks):
            last, count.moved = count.moved, Counter()
    return last


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps([copied(*case) for case in json.load(sys.stdin)]))
