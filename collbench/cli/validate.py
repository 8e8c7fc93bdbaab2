"""`collbench validate`: run the real step here, and compare it with its prediction."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from functools import partial

from collbench.cli.step_flags import add_step_flags, step_options
from collbench.errors import InputError
from collbench.predict.options import Options
from collbench.predict.prediction import StepPrediction
from collbench.predict.step import predict_step
from collbench.predict.workload import Workload
from collbench.units import seconds_of
from collbench.validate.compare import check_strategy, parse_tolerance

# The options that the real step takes too.
_REAL = ("bucket_cap_mb", "comm_hook", "accumulate", "grad_sync", "reshard_after_forward", "mesh")
_NARROWER = {"strategy": "ddp (default), fsdp or hsdp", "bucket_cap_mb": "ddp: a single one (unset: 25, the first 1)"}

EPILOG = """\
The real step is torch's own DistributedDataParallel or fully_shard over the workload's tensors; its computation is
the workload's milliseconds (matrix products on a GPU, a wait on a CPU). torch's own copies around its collectives are
measured before the steps, and are part of the prediction. Exit code 1: the step's time is outside the tolerance.
Several nodes: torchrun ... -m collbench validate WORKLOAD.toml --model MODEL.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workload", metavar="WORKLOAD.toml", help="layers, their tensors and their times")
    parser.add_argument("--model", metavar="MODEL.json", required=True, help="of collbench fit, or public:NAME")
    parser.add_argument("--timing", choices=["pipelined", "isolated"], help="the regime to take from the model")
    parser.add_argument("--tolerance", default="10%", metavar="P", help="of the step's time (default 10%%)")
    parser.add_argument(
        "--steps", type=int, default=20, metavar="N", help="measured steps (default 20), after 4 to warm up"
    )
    for flag in add_step_flags(parser)._group_actions:
        if flag.dest not in (*_REAL, "strategy"):
            flag.help = argparse.SUPPRESS  # _check_step refuses it
        flag.help = _NARROWER.get(flag.dest, flag.help)
    job = parser.add_argument_group("the job")
    job.add_argument("--backend", choices=["nccl", "gloo"], help="default: nccl where there are GPUs")
    job.add_argument("--nproc", type=int, metavar="N", help="ranks to start here (default: as collbench run)")
    job.add_argument("--timeout", default="60", metavar="SECONDS", help="for one collective (default 60)")
    job.add_argument("--join-timeout", metavar="SECONDS", help="for all ranks to arrive (default 300)")


def run(args: argparse.Namespace) -> int:
    from collbench.measure.launch import choose_ranks, is_worker, launch

    tolerance = parse_tolerance(args.tolerance)
    if args.steps < 1:
        raise InputError(f"--steps {args.steps}: expected at least 1")
    timeout_s = seconds_of("--timeout", args.timeout)
    join_timeout_s = seconds_of("--join-timeout", args.join_timeout) if args.join_timeout is not None else None
    _check_step(args)
    workload, notes = _workload(args.workload)
    if not is_worker():
        ranks, backend, why = choose_ranks(args.nproc, args.backend or "")
        _predict(args, workload, 1, ranks, overlap=True, slowdown=True)  # refuse before ranks are started
        print(f"collbench: real steps: {args.steps}; {backend} ranks here: {ranks} ({why})", file=sys.stderr)
        verdict = launch(["validate", *args.argv, "--backend", backend], ranks, backend)
        if verdict.exit_code and verdict.reason:
            print(f"collbench: {verdict.reason}", file=sys.stderr)
        return verdict.exit_code

    from collbench.measure.process import die_with_parent

    die_with_parent(os.getppid())  # at once: to import torch takes seconds
    from collbench.predict.placement import place_mesh
    from collbench.validate.step import Knobs
    from collbench.validate.worker import validate

    def knobs(nodes: int, ranks_per_node: int) -> Knobs:
        placement = place_mesh(nodes, ranks_per_node, args.mesh) if args.strategy == "hsdp" else None
        return Knobs(
            strategy=args.strategy,
            **{name: getattr(args, name) for name in _REAL if name != "mesh"},
            mesh=(placement.replicas, placement.shard.nranks) if placement else None,
        )

    return validate(
        workload,
        knobs,
        partial(_predict, args, workload),
        steps=args.steps,
        tolerance=tolerance,
        backend=args.backend or "",
        timeout_s=timeout_s,
        join_timeout_s=join_timeout_s,
        as_json=args.json,
        debug=args.debug,
        notes=notes,
    )


def _check_step(args: argparse.Namespace) -> None:
    """InputError for a step that torch itself does not have, or that is not built here."""
    check_strategy(args.strategy)
    if isinstance(args.bucket_cap_mb, tuple):
        raise InputError("--bucket-cap-mb: the real step takes one cap: give a single number")
    usual = Options()
    for name, value in step_options(args).items():
        if name not in _REAL and value != getattr(usual, name):
            flag = f"--{'no-' if value is False else ''}{name.replace('_', '-')}"
            raise InputError(f"{flag}: the real step has no such option: leave it out")


def _workload(path: str) -> tuple[Workload, list[str]]:
    """(the workload, notes). What was captured from a module is left out: the real step is that of layers in a row."""
    workload = Workload.from_toml(path)
    if workload.captured is None:
        return workload, []
    note = (
        "the order that was captured from the module is used neither here nor in the prediction: the real step is that "
        "of the workload's layers in a row ('collbench predict' plays the captured order)"
    )
    return replace(workload, captured=None), [note]


def _predict(
    args: argparse.Namespace,
    workload: Workload,
    nodes: int,
    ranks_per_node: int,
    *,
    overlap: bool,
    slowdown: bool,
    **local: float | None,
) -> StepPrediction:
    # As the real step has it.
    views = {"gradient_as_bucket_view": True} if args.strategy == "ddp" else {}
    return predict_step(
        workload,
        args.model,
        args.strategy,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        overlap=overlap,
        slowdown=slowdown,
        timing=args.timing,
        **(step_options(args) | views | local),
    )
