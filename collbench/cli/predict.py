"""`collbench predict`: a training step's time, its exposed communication and its memory, without running it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from collbench.cli.cost_flags import add_cost_flags, cost_model
from collbench.cli.step_flags import add_step_flags, parse_memory_GB, step_options
from collbench.columns import aligned
from collbench.errors import EXIT_DONE, InputError
from collbench.numbers import digits, percent
from collbench.predict.prediction import StepPrediction
from collbench.predict.step import predict_step
from collbench.predict.workload import Workload
from collbench.units import format_size, format_time_us

_MEMORY_UNITS = (("GB (10^9 bytes)", 1.0), ("GiB (2^30 bytes)", 1e9 / 2**30))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `predict`."""
    parser.add_argument("workload", metavar="WORKLOAD.toml", help="layers, their tensors and their times")
    add_cost_flags(parser)
    layout = parser.add_argument_group("layout (default: the model's own)")
    layout.add_argument("--nodes", "--nnodes", type=int, metavar="N")
    layout.add_argument("--ranks-per-node", type=int, metavar="R")
    step = add_step_flags(parser)
    parser.set_defaults(strategy=None)  # a DeepSpeed config says its own
    step.add_argument("--deepspeed", metavar="CONFIG.json", help="strategy, types and buckets of a DeepSpeed config")
    step.add_argument("--micro-batches", type=int, metavar="M", help="micro-batches altogether")
    step.add_argument("--no-overlap", dest="overlap", action="store_false", help="hide no communication")
    step.add_argument(
        "--no-slowdown",
        dest="slowdown",
        action="store_false",
        help="leave out what communication and computation cost one another, where the model has it",
    )
    parser.add_argument(
        "--memory", metavar="SIZE", help="a rank's, 80GB (1000) or 80GiB (1024): warn of a peak above it"
    )
    pictures = parser.add_argument_group("the step's timeline, as a file")
    pictures.add_argument("--trace", metavar="FILE.json", help="a Chrome trace, for https://ui.perfetto.dev")
    pictures.add_argument("--gantt", metavar="FILE.png|svg", help="a picture: a row a stream, what is exposed in full")


def run(args: argparse.Namespace) -> int:
    """Predict, write what was asked for, and print the answer."""
    _check_files(args)
    limit_GB = None if args.memory is None else parse_memory_GB(args.memory)
    workload, model = Workload.from_toml(args.workload), cost_model(args)
    prediction = predict_step(
        workload,
        model,
        args.strategy,
        nodes=args.nodes,
        ranks_per_node=args.ranks_per_node,
        deepspeed=args.deepspeed,
        micro_batches=args.micro_batches,
        overlap=args.overlap,
        timing=args.timing,
        slowdown=args.slowdown,
        **step_options(args),
    )
    _write_files(args, prediction)
    if limit_GB is not None and prediction.memory.peak_GB > limit_GB:
        print(f"collbench: warning: {_too_large(args, prediction.memory.peak_GB, limit_GB)}", file=sys.stderr)
    if args.json:
        print(json.dumps(_document(prediction, limit_GB), indent=2, allow_nan=False))
    else:
        print(format_prediction(prediction))
        for what, path in (("trace", args.trace), ("gantt", args.gantt)):
            if path:
                print(f"{what}: {path}")
    return EXIT_DONE


def _too_large(args: argparse.Namespace, peak_GB: float, limit_GB: float) -> str:
    return (
        f"memory: the step's peak of {digits(peak_GB, 4)} GB a rank is above --memory {args.memory} "
        f"({digits(limit_GB, 4)} GB), activations not counted: 'collbench plan' with the same --memory lists what fits"
    )


def _document(prediction: StepPrediction, limit_GB: float | None) -> dict[str, Any]:
    """The JSON object; with a limit, what it says of the peak."""
    document = prediction.to_dict()
    if limit_GB is not None:
        above = prediction.memory.peak_GB > limit_GB
        document["memory"] |= {"limit_GB": limit_GB, "peak_exceeds_limit": above}
    return document


def _check_files(args: argparse.Namespace) -> None:
    """InputError, before anything is predicted, for a file that is read, or that is no picture."""
    for flag, path in (("--trace", args.trace), ("--gantt", args.gantt)):
        if path and any(Path(path).resolve() == Path(read).resolve() for read in (args.workload, args.model) if read):
            raise InputError(f"{flag} {path}: is one of the files to read: name another file")
    if args.gantt:
        from collbench.report.gantt import check_gantt  # matplotlib takes a while to import

        check_gantt(args.gantt)


def _write_files(args: argparse.Namespace, prediction: StepPrediction) -> None:
    if args.trace:
        from collbench.report.trace import write_trace

        write_trace(prediction, args.trace)
    if args.gantt:
        from collbench.report.gantt import write_gantt

        write_gantt(prediction.to_dict(), args.gantt)


def format_prediction(prediction: StepPrediction) -> str:
    """The report a person reads: times, collectives, memory, notes."""
    placement = prediction.placement
    layout = f"{placement.nodes} x {placement.ranks_per_node} ranks (nodes x ranks per node)"
    if placement.replicas > 1:
        layout += f", mesh {placement.replicas}x{placement.shard.nranks}"
    parts = [
        f"{prediction.workload}: {prediction.strategy} on {layout}",
        _times(prediction),
        _table(_collectives(prediction)),
        _table(_memory(prediction)),
        "\n".join(
            [
                f"times of the layers: {prediction.times}",
                f"order of the collectives: {prediction.order}",
                *(f"note: {note}" for note in prediction.notes),
            ]
        ),
    ]
    return "\n\n".join(part for part in parts if part)


def _times(prediction: StepPrediction) -> str:
    step, comm, exposed = prediction.step_ms, prediction.comm_ms, prediction.exposed_comm_ms
    shares = ""
    if comm:
        hidden = max(0.0, 1 - exposed / comm)
        shares = f"{percent(100 * exposed / step)} of the step; {percent(100 * hidden)} of communication is hidden"
    rows = [
        ("step", _ms(step), _interval("90 % interval", prediction.step_ms_interval)),
        ("compute", _ms(prediction.compute_ms), "the step with free communication"),
        (
            "communication",
            _ms(comm),
            f"all collectives, one after another{_interval('; 90 %', prediction.comm_ms_interval)}",
        ),
        *_copies(prediction),
        ("exposed", _ms(exposed), f"{shares}{_interval('; 90 %', prediction.exposed_comm_ms_interval)}"),
        (
            "exposed tail",
            _ms(prediction.exposed_tail_ms),
            f"after the last backward computation{_interval('; 90 %', prediction.exposed_tail_ms_interval)}",
        ),
    ]
    if prediction.windows is not None and prediction.total_ms is not None:
        windows = f"{sum(prediction.windows)} micro-batches, {len(prediction.windows)} gradient syncs"
        total = f"{windows}{_interval('; 90 %', prediction.total_ms_interval)}"
        rows.append(("total", _ms(prediction.total_ms), total))
    if prediction.tokens_per_s is not None:
        tflops = prediction.tflops_per_rank
        rows.append(("tokens/s", f"{prediction.tokens_per_s:.4g}", f"{tflops:.4g} TFLOP/s a rank" if tflops else ""))
    return "\n".join(f"  {name:<15}{value:>15}   {words}".rstrip() for name, value, words in rows)


def _copies(prediction: StepPrediction) -> list[tuple[str, str, str]]:
    if prediction.copies_ms is None:
        return []
    return [("copies", _ms(prediction.copies_ms), "torch's own for them, one after another; on top of computation")]


def _interval(before: str, low_high: tuple[float, float] | None) -> str:
    return f"{before} {low_high[0]:.3f} to {low_high[1]:.3f} ms" if low_high else ""


def _collectives(prediction: StepPrediction) -> list[list[str]]:
    if not prediction.collectives:
        return []
    rows = [["collective", "group", "ranks", "nodes", "dtype", "size", "count", "time each", "together"]]
    for entry in prediction.collectives:
        call, group = entry.call, entry.call.group
        counts = [str(group.nranks), str(group.nnodes), call.dtype, format_size(call.size_bytes), str(entry.count)]
        times = [format_time_us(entry.time_ms * 1e3), format_time_us(entry.time_ms * 1e3 * entry.count)]
        rows.append([call.collective, group.name, *counts, *times])
    return rows


def _memory(prediction: StepPrediction) -> list[list[str]]:
    """In both units: devices are sold in one and report themselves in the other."""
    memory = prediction.memory
    columns = {
        "parameters": memory.parameters_GB,
        "gradients": memory.gradients_GB,
        "optimizer": memory.optimizer_GB,
        "persistent": memory.persistent_GB,
        "gathered peak": memory.gathered_peak_GB,
        "buffers": memory.buffers_GB,
        "peak": memory.peak_GB,
    }
    rows = [[unit, *(f"{value * per_GB:.4g}" for value in columns.values())] for unit, per_GB in _MEMORY_UNITS]
    return [["memory per rank", *columns], *rows]


def _table(rows: list[list[str]]) -> str:
    return "\n".join(f"  {line}" for line in aligned(rows, left={0}))


def _ms(time_ms: float) -> str:
    return f"{time_ms:.3f} ms"
