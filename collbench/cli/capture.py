"""`collbench capture`: a torch module -> a workload file, with the collectives that torch issues for it."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from collbench.cli.step_flags import parse_reshard
from collbench.columns import aligned
from collbench.errors import EXIT_DONE
from collbench.units import format_size

if TYPE_CHECKING:
    from collbench.predict.workload import Workload

EPILOG = """\
FUNCTION takes nothing and returns a torch.nn.Module, or (module, inputs of its forward). It is called on the meta
device, where parameters take no memory, as rank 0 of all ranks, so it may call fully_shard itself: its units are read
then. Otherwise --wrap says what is a unit. No GPU and no network are used.
Without --mfu, --time or --trace the workload has no times, and predict its communication alone.

  collbench capture train.py:build --input 8x2048:int64 --strategy fsdp --nranks 64 --param-dtype bf16 \\
      --mfu 40% --peak-tflops 989 -o workload.toml
  collbench predict workload.toml --strategy fsdp --nodes 8 --ranks-per-node 8 --model model.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `capture`."""
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="train:build, or models/gpt.py:build")
    parser.add_argument("-o", "--output", default="workload.toml", metavar="WORKLOAD.toml", help="(%(default)s)")
    parser.add_argument("--name", help="of the workload (default: the function's)")
    parser.add_argument(
        "--input",
        action="append",
        metavar="SHAPE[:TYPE]",
        help="an input of forward, such as 8x2048:int64 or 32x3x224x224 (float32); again for more",
    )
    parser.add_argument("--tokens", type=int, metavar="N", help="per micro-batch (default: elements of integer inputs)")
    step = parser.add_argument_group("the step")
    step.add_argument("--strategy", default="ddp", help="ddp (default), fsdp or hsdp")
    step.add_argument("--nranks", type=int, metavar="N", help="ranks (default 8; predict may be asked for others)")
    step.add_argument("--mesh", metavar="RxS", help="hsdp: replicas x shards")
    step.add_argument("--bucket-cap-mb", type=float, metavar="MiB", help="ddp (unset: 25, the first 1)")
    step.add_argument("--find-unused-parameters", action="store_true", help="ddp: as torch's option")
    step.add_argument("--wrap", metavar="CLASS[,CLASS]", help="FSDP units (default: the blocks of every list of them)")
    step.add_argument("--param-dtype", metavar="TYPE", help="fsdp, hsdp: what is computed with and gathered")
    step.add_argument("--reduce-dtype", metavar="TYPE", help="fsdp, hsdp: what gradients are reduced in")
    step.add_argument(
        "--reshard-after-forward", type=parse_reshard, metavar="true|false|none|K", help="as torch's fully_shard"
    )
    times = parser.add_argument_group("times of the layers (one of)")
    times.add_argument("--mfu", metavar="P", help="from FLOPs at this share of the peak, such as 40%%")
    times.add_argument("--peak-tflops", type=float, metavar="T", help="of the device, in the type that it computes in")
    times.add_argument(
        "--time", dest="device", nargs="?", const="", metavar="DEVICE", help="measured here (default: the GPU, or cpu)"
    )
    times.add_argument("--trace", metavar="TRACE.json", help="from a trace of torch.profiler, taken with_stack=True")


def run(args: argparse.Namespace) -> int:
    """Capture, write the file, say what is in it."""
    from collbench.predict.capture.loading import parse_inputs
    from collbench.predict.capture.module import Request, from_function

    names = ("strategy", "nranks", "mesh", "param_dtype", "reduce_dtype", "reshard_after_forward", "bucket_cap_mb")
    more = ("find_unused_parameters", "mfu", "peak_tflops", "device", "trace", "tokens", "name")
    request = Request(
        wrap=None if args.wrap is None else tuple(args.wrap.split(",")),
        **{name: getattr(args, name) for name in (*names, *more)},
    )
    workload = from_function(args.function, parse_inputs(args.input) if args.input else None, request)
    workload.save(args.output)
    document = _document(workload, args.output)
    print(json.dumps(document, indent=1, allow_nan=False) if args.json else _text(workload, document))
    return EXIT_DONE


def _document(workload: Workload, path: str) -> dict[str, Any]:
    captured = workload.captured
    assert captured is not None
    calls = Counter((event.collective, event.nranks, event.dtype, event.size_bytes) for event in captured.issued)
    return {
        "workload": workload.name,
        "output": path,
        "strategy": captured.strategy,
        "nranks": captured.nranks,
        "parameters": workload.numel,
        "trainable": workload.trainable_numel,
        "layers": len(workload.expanded),
        "units": sum(layer.repeat for layer in workload.layers if layer.wrap),
        "flops_per_token": workload.flops_per_token,
        "times": workload.times or None,
        "source": captured.source,
        "plan": captured.plan,
        "collectives": [
            {"collective": collective, "nranks": nranks, "dtype": dtype, "size_bytes": size, "count": count}
            for (collective, nranks, dtype, size), count in calls.items()
        ],
    }


def _text(workload: Workload, document: dict[str, Any]) -> str:
    frozen = workload.numel - workload.trainable_numel
    lines = [
        f"{workload.name}: {workload.numel:,} parameters" + (f", {frozen:,} of them frozen" if frozen else ""),
        f"{document['layers']} layers, {document['units']} of them FSDP units",
        f"times: {document['times'] or 'none: give --mfu and --peak-tflops, --time or --trace'}",
        f"collectives of one {document['strategy']} step on {document['nranks']} ranks, {document['source']}:",
    ]
    rows = [
        [call["collective"], str(call["nranks"]), call["dtype"], format_size(call["size_bytes"]), str(call["count"])]
        for call in document["collectives"]
    ]
    table = aligned([["collective", "ranks", "dtype", "size", "count"], *rows], left=[0])
    return "\n".join([*lines, *(f"  {row}" for row in table), f"planned by predict: {document['plan']}"])
