"""The flags that say what step is meant, for every command that predicts one."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from collbench.errors import InputError
from collbench.predict.options import BACKWARD_PREFETCHES, COMM_HOOKS, Options
from collbench.units import parse_size


def add_step_flags(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add them; returns their group, for a command's own."""
    step = parser.add_argument_group("the step")
    step.add_argument("--strategy", default="ddp", help="ddp (default), zero1, zero2, zero3, fsdp, hsdp or fsdp1")
    step.add_argument("--mesh", metavar="RxS", help="hsdp: replicas x shards (default: nodes x ranks per node)")
    step.add_argument(
        "--bucket-cap-mb",
        type=parse_caps,
        metavar="MiB[,MiB...]",
        help="ddp, zero1, zero2 (unset: 25, the first 1); of several the last holds for all further buckets",
    )
    step.add_argument("--first-bucket-mb", type=float, metavar="MiB", help="the first bucket's own limit")
    step.add_argument("--comm-hook", choices=COMM_HOOKS, help="ddp: gradients are sent in this type")
    step.add_argument("--find-unused-parameters", action="store_true", help="ddp: buckets are never made anew")
    step.add_argument("--gradient-as-bucket-view", action="store_true", help="ddp: gradients are no second copy")
    step.add_argument("--static-graph", action="store_true", help="ddp: unused parameters are found once")
    step.add_argument("--accumulate", type=int, default=1, metavar="K", help="micro-batches per optimizer step")
    step.add_argument(
        "--no-grad-sync",
        dest="grad_sync",
        action="store_false",
        help="fsdp, hsdp: only the last micro-batch reduces gradients (set_requires_gradient_sync, no_sync)",
    )
    step.add_argument(
        "--recompute", action="store_true", help="activation checkpointing: wrapped layers compute forward twice"
    )
    step.add_argument(
        "--reshard-after-forward", type=parse_reshard, metavar="true|false|none|K", help="fsdp: as torch's fully_shard"
    )
    step.add_argument("--no-prefetch", dest="prefetch", action="store_false", help="fsdp: gather a unit when needed")
    step.add_argument(
        "--prefetch-ahead", type=int, metavar="N", help="fsdp, hsdp: units gathered ahead, as set explicitly"
    )
    step.add_argument("--backward-prefetch", choices=BACKWARD_PREFETCHES, default="pre", help="fsdp1: (default pre)")
    step.add_argument("--forward-prefetch", action="store_true", help="fsdp1: gather the next unit before computing")
    step.add_argument(
        "--no-limit-all-gathers", dest="limit_all_gathers", action="store_false", help="fsdp1: any number in flight"
    )
    step.add_argument(
        "--copy-GBps",
        dest="copy_GBps",
        type=float,
        metavar="GBps",
        help="ddp, fsdp, hsdp: the rate of torch's own copies, of bytes read and written (unset: not counted)",
    )
    step.add_argument(
        "--host-us",
        type=float,
        default=0.0,
        metavar="US",
        help="the same: the host's own time around each collective, where it does not run ahead of its device",
    )
    return step


def step_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `predict_step` that those flags are."""
    return {field.name: getattr(args, field.name) for field in fields(Options) if field.name != "deepspeed"}


def parse_caps(text: str) -> float | tuple[float, ...]:
    """A number of MiB, or several separated by commas; InputError for anything else."""
    try:
        caps = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--bucket-cap-mb {text!r} is not understood: expected MiB, or several such as 5,25") from None
    return caps[0] if len(caps) == 1 else caps


def parse_memory_GB(text: str) -> float:
    """A rank's memory; InputError for a bare 80, which is bytes and hardly meant so."""
    size_bytes = parse_size(text, "--memory")
    if size_bytes < 1e6:
        raise InputError(f"--memory {text!r} is {size_bytes} bytes: expected a rank's memory, such as 80GB")
    return size_bytes / 1e9


def parse_reshard(text: str) -> bool | int | None:
    """`true`, `false`, `none` or a number of ranks; InputError for anything else."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return int(text)
    except ValueError:
        raise InputError(
            f"--reshard-after-forward {text!r} is not understood: expected true, false, none or a number of ranks"
        ) from None
