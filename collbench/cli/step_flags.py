"""The flags that say what step is meant, for every command that predicts one."""

from __future__ import annotations

import argparse
from typing import Any

from collbench.errors import InputError


def add_step_flags(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add them; returns their group, for a command's own."""
    step = parser.add_argument_group("the step")
    step.add_argument("--strategy", default="ddp", help="ddp (default), zero1, zero2, zero3, fsdp or hsdp")
    step.add_argument("--mesh", metavar="RxS", help="hsdp: replicas x shards (default: nodes x ranks per node)")
    step.add_argument("--bucket-cap-mb", type=float, metavar="MiB", help="ddp, zero1, zero2 (unset: 25, the first 1)")
    step.add_argument("--first-bucket-mb", type=float, metavar="MiB", help="the first bucket's own limit")
    step.add_argument("--accumulate", type=int, default=1, metavar="K", help="micro-batches per optimizer step")
    step.add_argument(
        "--reshard-after-forward", type=_reshard, metavar="true|false|none|K", help="fsdp: as torch's fully_shard"
    )
    step.add_argument("--no-prefetch", dest="prefetch", action="store_false", help="fsdp: gather a unit when needed")
    return step


def step_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `predict_step` that those flags are."""
    names = ("bucket_cap_mb", "first_bucket_mb", "accumulate", "reshard_after_forward", "prefetch", "mesh")
    return {name: getattr(args, name) for name in names}


def _reshard(text: str) -> bool | int | None:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return int(text)
    except ValueError:
        raise InputError(
            f"--reshard-after-forward {text!r} is not understood: expected true, false, none or a number of ranks"
        ) from None
