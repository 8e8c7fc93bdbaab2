"""`collbench plan`: strategies and knobs that fit into the memory, ranked by the step they lead to."""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

from collbench.cli.cost_flags import add_cost_flags, cost_model
from collbench.cli.step_flags import parse_memory_GB, parse_reshard
from collbench.columns import aligned
from collbench.errors import EXIT_DONE, EXIT_NO, InputError
from collbench.numbers import digits, ms, percent
from collbench.predict.placement import parse_mesh
from collbench.predict.plan import plan_step
from collbench.predict.plan_result import Plan, PlannedStep
from collbench.predict.plan_space import Configuration
from collbench.predict.plan_why import PHASES
from collbench.predict.workload import Workload

EPILOG = """\
what is tried, unless a list says otherwise:
  ddp, zero1, zero2 with bucket caps of 1 to 400 MiB; fsdp (fully_shard; zero3 is the same step) and hsdp on
  every mesh whose shard groups are whole nodes or divide one, each with the parameters gathered again in backward
  (none, true), kept (false) or kept by a node's ranks together (a number), and with 1, 2, 4 … layers as one unit
  (fully_shard([a, b])). With --accumulate they also reduce gradients in the last micro-batch alone.
  The fastest of each number of nodes are listed, by step time. Their memory is the ledger of 'collbench predict'; what
  activations take no workload knows: give it with --activations-GB.

efficiency, against the smallest number of nodes that has a configuration, the best of each compared:
  weak    every rank does the same work, so more nodes do more of it: step time there / step time here.
  strong  all nodes together do the same work, that of one step on the most nodes; fewer nodes do it in more
          micro-batches: rank-seconds there / rank-seconds here.
  Above 100 %: the smallest number of nodes cannot hold the faster configuration.

  collbench plan sweeps/workloads/small.toml --bandwidth 25GB/s --ranks-per-node 8 --nodes 1..64 --memory 80GB

Exit code 1: nothing fits.
"""

_Value = TypeVar("_Value")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `plan`."""
    parser.add_argument("workload", metavar="WORKLOAD.toml", help="layers, their tensors and their times")
    add_cost_flags(parser)
    layout = parser.add_argument_group("layout (default: the model's own)")
    layout.add_argument("--nodes", "--nnodes", metavar="N,…|N..M", help="a list; 1..64 doubles: 1, 2, 4 … 64")
    layout.add_argument("--ranks-per-node", type=int, metavar="R")
    limits = parser.add_argument_group("what a rank has")
    limits.add_argument("--memory", required=True, metavar="SIZE", help="its memory: 80GB (1000), 80GiB (1024)")
    limits.add_argument(
        "--activations-GB", type=float, default=0.0, metavar="GB", help="of one micro-batch (default 0)"
    )
    limits.add_argument("--peak-tflops", type=float, metavar="X", help="its 10^12 operations a second, for the MFU")
    choices = parser.add_argument_group("what to choose from, as lists (default: all that makes sense)")
    choices.add_argument("--strategy", metavar="S,…", help="of ddp, zero1, zero2, zero3, fsdp1, fsdp, hsdp")
    choices.add_argument("--mesh", metavar="RxS,…", help="hsdp: replicas x shards")
    choices.add_argument(
        "--bucket-cap-mb", metavar="MiB,…", help="ddp, zero1, zero2; default: torch's, 25, the first 1"
    )
    choices.add_argument("--reshard-after-forward", metavar="R,…", help="fsdp1, fsdp, hsdp: true, false, none or ranks")
    choices.add_argument(
        "--layers-per-unit", metavar="N,…", help="fsdp1, fsdp, hsdp: layers that are gathered together"
    )
    parser.add_argument("--accumulate", type=int, default=1, metavar="K", help="micro-batches per optimizer step")
    parser.add_argument("--recompute", action="store_true", help="activation checkpointing, as in 'collbench predict'")
    parser.add_argument("--top", type=int, metavar="N", help="of each number of nodes (default 10; of several, 3)")


def run(args: argparse.Namespace) -> int:
    """Plan, and print the answer; 1 where nothing fits."""
    workload, model = Workload.from_toml(args.workload), cost_model(args)
    nodes = [] if args.nodes is None else parse_nodes(args.nodes)
    plan = plan_step(
        workload,
        model,
        memory_GB=parse_memory_GB(args.memory),
        nodes=nodes,
        ranks_per_node=args.ranks_per_node,
        strategies=_list(args.strategy, str),
        meshes=_list(args.mesh, lambda word: parse_mesh(word, "--mesh")),
        bucket_caps_mb=_list(args.bucket_cap_mb, _cap_mb),
        reshards=_list(args.reshard_after_forward, parse_reshard),
        layers_per_unit=_list(args.layers_per_unit, lambda word: _count(word, "--layers-per-unit")),
        accumulate=args.accumulate,
        recompute=args.recompute,
        activations_GB=args.activations_GB,
        peak_TFLOPS=args.peak_tflops,
        top=args.top if args.top is not None else 3 if len(nodes) > 1 else 10,
        timing=args.timing,
    )
    print(json.dumps(plan.to_dict(), indent=2, allow_nan=False) if args.json else format_plan(plan))
    return EXIT_DONE if plan.fitting else EXIT_NO


def parse_nodes(text: str) -> list[int]:
    """`8`, `1,2,4`, and `1..64`: doubled from the first, the last one included. InputError for anything else."""
    found: list[int] = []
    for word in text.split(","):
        first, dots, last = word.partition("..")
        low = _count(first, "--nodes", " such as 8, 1,2,4 or 1..64")
        high = _count(last, "--nodes") if dots else low
        if high < low:
            raise InputError(f"--nodes {word!r} ends before it begins: expected N..M with N below M")
        doubled = low
        while doubled < high:
            found.append(doubled)
            doubled *= 2
        found.append(high)
    return found


def format_plan(plan: Plan) -> str:
    """The report a person reads: what was tried, the ranking, scaling over nodes, why, notes."""
    tried = f"{plan.workload}: {plan.tried} configurations, {plan.fitting} fit into {plan.memory_GB:g} GB a rank"
    parts = [tried]
    if plan.nearest is not None:
        near = plan.nearest
        where = f"{_nodes(near.configuration)}, {_words(near.configuration)}"
        parts.append(f"nothing fits; the nearest needs {digits(near.total_GB)} GB: {where}")
    if plan.steps:
        parts.append("\n".join(_ranking(plan)))
    if len(plan.scaling) > 1:
        parts.append("\n".join(_scaling(plan)))
    best = {row.configuration for row in plan.scaling}
    parts += ["\n".join(_why(step)) for step in plan.steps if step.configuration in best]
    refused = [f"note: {each.count} configurations need {each.what}: {each.reason}" for each in plan.refused]
    notes = [f"note: {note}" for note in plan.notes]
    if plan.steps:
        told, most = plan.steps[0].prediction.notes, plan.scaling[-1].configuration
        notes += [f"note on the first: {note}" for note in told]
        farthest = next(step for step in plan.steps if step.configuration == most)
        notes += [f"note on {_nodes(most)}: {note}" for note in farthest.prediction.notes if note not in told]
    parts.append("\n".join([*refused, *notes]))
    return "\n\n".join(parts)


def _ranking(plan: Plan) -> list[str]:
    """One line a step; columns that no line fills are left out."""
    columns: dict[str, Callable[[int, PlannedStep], str]] = {
        "": lambda rank, step: f"{rank}{'*' if step.prediction.extrapolated else ''}",
        "strategy": lambda _, step: step.configuration.strategy,
        "nodes": lambda _, step: str(step.configuration.nodes),
        "mesh": lambda _, step: _knob(step.configuration, "mesh"),
        "bucket MiB": lambda _, step: _knob(step.configuration, "bucket_cap_mb"),
        "reshard": lambda _, step: _knob(step.configuration, "reshard_after_forward"),
        "grad sync": lambda _, step: _knob(step.configuration, "grad_sync") if plan.accumulate > 1 else "",
        "layers/unit": lambda _, step: _knob(step.configuration, "layers_per_unit"),
        "step": lambda _, step: ms(step.prediction.step_ms),
        "90 % interval": lambda _, step: _interval(step),
        "exposed": lambda _, step: percent(_share(step)),
        "tail": lambda _, step: ms(step.prediction.exposed_tail_ms),
        "tokens/s": lambda _, step: _known(step.prediction.tokens_per_s),
        "TFLOP/s a rank": lambda _, step: _known(step.prediction.tflops_per_rank),
        "MFU": lambda _, step: "" if step.mfu is None else percent(100 * step.mfu),
        "GB a rank": lambda _, step: digits(step.total_GB),
    }
    rows = [[cell(rank, step) for cell in columns.values()] for rank, step in enumerate(plan.steps, start=1)]
    filled = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    titles = list(columns)
    lines = aligned([[row[place] for place in filled] for row in [titles, *rows]], left={1})
    if any(step.prediction.extrapolated for step in plan.steps):
        lines.append("* outside what was measured")
    return lines


def _scaling(plan: Plan) -> list[str]:
    rows = [["nodes", "the best", "step", "tokens/s", "weak", "strong"]]
    for row in plan.scaling:
        strong = "" if row.strong is None else percent(100 * row.strong)
        weak = percent(100 * row.weak)
        rows.append(
            [str(row.nodes), _words(row.configuration), ms(row.step_ms), _known(row.tokens_per_s), weak, strong]
        )
    return aligned(rows, left={1})


def _why(step: PlannedStep) -> list[str]:
    """What is exposed, by phase, and what each knob would change."""
    prediction, configuration, waits = step.prediction, step.configuration, step.waits
    lines = [f"{_nodes(configuration)}, {_words(configuration)}: {ms(prediction.step_ms)}"]
    lines.append(f"  computes {ms(prediction.compute_ms)}, waits {ms(prediction.exposed_comm_ms)} for communication")
    for phase in PHASES:
        alike: defaultdict[str, list[float]] = defaultdict(list)
        for wait in waits:
            if wait.phase == phase:
                alike[_family(wait.collective)].append(wait.wait_ms)
        if alike:
            total_ms = sum(map(sum, alike.values()))
            longest = sorted(alike.items(), key=lambda item: -sum(item[1]))[:2]
            words = ", ".join(
                f"{name} {ms(sum(found))}" + (f" in {len(found)} waits" if len(found) > 1 else "")
                for name, found in longest
            )
            lines.append(f"  {phase} {ms(total_ms)}: {words}")
    for change in step.changes:
        costs_ms = round(change.step_ms - prediction.step_ms, 6)  # beneath lies the noise of sums
        if change.knob == "strategy":
            value = _words(change.to)
        else:
            value = f"{_TITLES[change.knob]} {_knob(change.to, change.knob)}"
        lines.append(f"  {value} instead: {'+' if costs_ms >= 0 else '-'}{ms(abs(costs_ms))}")
    return lines


_TITLES = {  # of the knobs
    "mesh": "mesh",
    "bucket_cap_mb": "bucket cap",
    "reshard_after_forward": "reshard after forward",
    "grad_sync": "gradient sync in each micro-batch",
    "layers_per_unit": "layers per unit",
}


def _nodes(configuration: Configuration) -> str:
    return "1 node" if configuration.nodes == 1 else f"{configuration.nodes} nodes"


def _words(configuration: Configuration) -> str:
    """`hsdp 2x8, reshard none, 2 layers a unit`."""
    knobs = {knob: _knob(configuration, knob) for knob in configuration.knobs}
    words = [" ".join([configuration.strategy, *([knobs["mesh"]] if "mesh" in knobs else [])])]
    if "bucket_cap_mb" in knobs:
        words.append(
            "default buckets" if configuration.bucket_cap_mb is None else f"{knobs['bucket_cap_mb']} MiB a bucket"
        )
    if "reshard_after_forward" in knobs:
        words.append(f"reshard {knobs['reshard_after_forward']}")
    if not configuration.grad_sync:
        words.append("one gradient sync")
    if configuration.layers_per_unit > 1:
        words.append(f"{configuration.layers_per_unit} layers a unit")
    return ", ".join(words)


def _knob(configuration: Configuration, knob: str) -> str:
    """The knob's value as its flag has it; nothing where the strategy does not take it."""
    if knob not in configuration.knobs:
        return ""
    value = getattr(configuration, knob)
    if value is None:
        return "default" if knob == "bucket_cap_mb" else "none"
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _family(collective: str) -> str:
    """`all_gather block.3 #2` -> `all_gather block.*`: units that are alike in all micro-batches."""
    return re.sub(r"\.\d+$", ".*", re.sub(r" #\d+$", "", collective))


def _interval(step: PlannedStep) -> str:
    ends = step.prediction.step_ms_interval
    return "" if ends is None else f"{digits(ends[0], 4)} to {digits(ends[1], 4)}"


def _share(step: PlannedStep) -> float:
    prediction = step.prediction
    return 100 * prediction.exposed_comm_ms / prediction.step_ms if prediction.step_ms else 0.0


def _known(value: float | None) -> str:
    return "" if value is None else digits(value, 4)


def _list(text: str | None, read: Callable[[str], _Value]) -> list[_Value]:
    return [] if text is None else [read(word.strip()) for word in text.split(",")]


def _count(word: str, flag: str, example: str = "") -> int:
    if not re.fullmatch(r"\s*[1-9]\d*\s*", word):
        raise InputError(f"{flag}: {word.strip()!r} is not understood: expected whole numbers above zero{example}")
    return int(word)


def _cap_mb(word: str) -> float | None:
    try:
        return None if word == "default" else float(word)
    except ValueError:
        raise InputError(f"--bucket-cap-mb: {word!r} is not understood: expected MiB, or default") from None
