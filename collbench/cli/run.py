"""`collbench run`: measure a sweep. Starts torchrun here, or is its worker where a launcher's variables say so."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from collbench.cli.nccl_flags import HELP, without_impossible
from collbench.cli.table_flags import add_table_flags, table_style
from collbench.cli.table_flags import normalize as normalize_table_flags
from collbench.collectives import COLLECTIVES, REDOPS
from collbench.errors import EXIT_INPUT, InputError
from collbench.measure.keeping import Keeping
from collbench.measure.process import Verdict, die_with_parent
from collbench.measure.slots import largest_slot_bytes
from collbench.nccl_json import check_json_path
from collbench.results import ResultsWriter, close_run
from collbench.resume import done_cells
from collbench.sweep import Sweep, check_root, load_sweep, plan_cells
from collbench.sweep_words import ENDLESS, WORDS
from collbench.topology import Layout, form_kinds, rounds
from collbench.units import format_size, seconds_of

EPILOG = f"""\
Sizes: 8, 64K, 1.5M, 1G (1024, as nccl-tests), KiB/MiB/GiB, kB/MB/GB (1000). Without a sweep file: 8 B to 32 MiB, x2.
Several nodes: torchrun --nnodes=4 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 \\
                        -m collbench run sweeps/cluster.toml -o results.jsonl
On an existing file, run measures only what is missing. -o is the output file (nccl-tests' -o is --redop here).
Cells are measured in shuffled order and the table is printed in its own; --order table measures row by row.

{HELP}
"""

_NO_COLLECTIVE_S, _ASSUMED_GBps, _ASSUMED_CALL_S, _ASSUMED_SAMPLES = 5e-3, 1.0, 100e-6, 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("sweep", nargs="?", metavar="SWEEP.toml", help="a sweep file; flags override it")
    add("-o", "--output", default="results.jsonl", metavar="FILE", help="results file (default results.jsonl)")
    sweep = parser.add_argument_group("what to measure").add_argument
    sweep("--collective", metavar="A,B", help=f"{', '.join(COLLECTIVES)}, or all (default: the first four)")
    sweep(
        "--group",
        metavar="A,B",
        help="world, intra, inter (default: those the job has); pairs (of nodes), pairs:rank, mesh:RxS",
    )
    sweep("-b", "--minbytes", metavar="SIZE", help="smallest size (default 8)")
    sweep("-e", "--maxbytes", metavar="SIZE", help="largest size (default 32M)")
    sweep("-f", "--stepfactor", metavar="N", help="multiply the size by N (default 2)")
    sweep("-i", "--stepbytes", metavar="SIZE", help="add SIZE instead")
    sweep("-d", "--datatype", metavar="A,B", help="float32 (float), float16 (half), bfloat16, int8 ..., or all")
    sweep("-r", "--root", metavar="RANK", help="root: the rank inside the group (default 0), or all")
    sweep("--redop", "--op", metavar="A,B", help="sum, prod, max, min, avg, mulsum, or all (default sum)")
    sweep("-u", "--unalign", metavar="N", help="put buffers N elements off their alignment")
    how = parser.add_argument_group("how to measure").add_argument
    how(
        "--timing",
        metavar="REGIME",
        help="pipelined (as nccl-tests), isolated (last exit of all ranks), both (default)",
    )
    how("--precision", metavar="P", help="repeat a cell until its median is known to P (95%% interval; default 2%%)")
    how("--budget", metavar="SECONDS", help="but for no longer than this (default 0.5)")
    how("-n", "--iters", metavar="N", help="a fixed number of iterations instead; with --precision: of one batch")
    how("-w", "--warmup-iters", "--warmup_iters", metavar="N", help="warm-up iterations for each size (default 5)")
    how("-N", "--passes", "--run_cycles", metavar="P", help="passes over the whole sweep (default 1; 0: until stopped)")
    how("-m", "--agg-iters", "--agg_iters", metavar="N", help="coalesce N operations into one call (pipelined)")
    how(
        "-z", "--blocking", metavar="N", help="after each operation: 1 wait, barrier; 2 wait; 3 as 1, barrier uncounted"
    )
    how("-G", "--cudagraph", metavar="N", help="replay a CUDA graph of the iterations N times (pipelined)")
    how("-I", "--per-iter-timing", "--per_iter_timing", metavar="0/1", help="time every pipelined operation too")
    how("-K", "--per-iter-skip", "--per_iter_skip", metavar="N", help="leave out the first N of those")
    how("--hot", action="store_true", help="always the same buffers, which then lie in a cache (default: rotate)")
    how("-c", "--check", metavar="N", help="data checks for each size, 0 for none (default 1)")
    how("--one-at-a-time", action="store_true", help="groups of one kind one after the other, not together")
    how("--contention", action="store_true", help="both, and print what being together costs")
    how("--with-compute", action="store_true", help="also beside a matrix product: how much each slows the other")
    how("--order", metavar="ORDER", help="of the cells: shuffled (default), or table")
    how("--seed", metavar="N", help="of the shuffled order (default 0)")
    how("--samples", action="store_true", help="keep every sample of every rank")
    how("-T", "--timeout", metavar="SECONDS", help="for one cell (default 60)")
    add_table_flags(parser.add_argument_group("the table"))
    job = parser.add_argument_group("the job").add_argument
    job("--backend", metavar="NAME", help="nccl or gloo (default: nccl where there are GPUs)")
    job(
        "--nproc",
        type=int,
        metavar="N",
        help="ranks to start here (default: one a GPU where there are two, else 2 gloo ranks)",
    )
    job("--join-timeout", metavar="SECONDS", help="for all started ranks to arrive (default 300)")
    job("--append", action="store_true", help="add another sweep's run to an existing file")
    job("--dry-run", action="store_true", help="print cells, memory and estimated time; measure nothing")


def normalize(argv: list[str]) -> list[str]:
    """The arguments as argparse can read them; InputError for an option of nccl-tests that cannot be had here."""
    return normalize_table_flags(without_impossible(argv))


def run(args: argparse.Namespace) -> int:
    from collbench.measure.launch import choose_ranks, is_worker, launch

    program = next((c.name for c in COLLECTIVES.values() if args.sweep and Path(args.sweep).name == c.program), None)
    if program is not None:
        raise InputError(f"{args.sweep}: expected a sweep file: --collective {program} measures what that program does")
    sweep = load_sweep(args.sweep, _flags(args))
    keeping = _keeping(args, sweep)
    join_timeout_s = seconds_of("--join-timeout", args.join_timeout) if args.join_timeout is not None else None
    if is_worker() and not args.dry_run:
        die_with_parent(os.getppid())  # at once: to import torch takes seconds
        from collbench.measure.worker import run_sweep

        return run_sweep(sweep, keeping, args.json, args.debug, join_timeout_s)
    if is_worker():
        if os.environ["RANK"] == "0":
            local = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
            _dry_run(sweep, Layout.regular(int(os.environ["WORLD_SIZE"]) // local, local), args.json)
        return 0
    ranks, backend, why = choose_ranks(args.nproc, sweep.backend)
    if args.dry_run:
        _dry_run(sweep, Layout.regular(1, ranks), args.json)
        return 0
    # Refuse what can be refused before ranks are started.
    if sweep.cudagraph and backend == "gloo":
        raise InputError("--cudagraph: gloo runs on the CPU, which records no CUDA graphs: leave it out, or use a GPU")
    check_root(sweep, form_kinds(sweep.group, Layout.regular(1, ranks))[0])
    output = keeping.output
    done_cells(output, sweep, ranks, backend, args.append)
    ResultsWriter(output).close()
    started = f"{ranks} {backend} rank{'s' * (ranks > 1)}"
    print(f"collbench: {started} on this machine ({why}); results in {output}", file=sys.stderr)
    verdict = launch(["run", *args.argv, "--backend", backend], ranks, backend)
    if verdict.exit_code > EXIT_INPUT:
        close_run(output, verdict.exit_code, verdict.reason)
    if verdict.exit_code and verdict.reason:
        print(f"collbench: {verdict.reason}{_kept(verdict, output)}", file=sys.stderr)
    return verdict.exit_code


def _keeping(args: argparse.Namespace, sweep: Sweep) -> Keeping:
    if args.output in (*REDOPS, "all"):
        raise InputError(f"-o {args.output}: -o is the results file: nccl-tests' -o is --redop here")
    nccl_json = check_json_path(args.output_file) if args.output_file is not None else None
    return Keeping(Path(args.output), args.append, table_style(args, per_iter=bool(sweep.per_iter)), nccl_json)


def _flags(args: argparse.Namespace) -> dict[str, Any]:
    """What was given: every flag of a sweep has the name of its word."""
    return {word: value for word in WORDS if (value := getattr(args, word, None)) not in (None, False)}


def _kept(verdict: Verdict, output: Path) -> str:
    if verdict.exit_code <= EXIT_INPUT or _is_empty(output) or "same command" in str(verdict.reason):
        return ""
    return f"; what was measured is in {output}, the same command measures the rest"


def _is_empty(output: Path) -> bool:
    return not output.exists() or output.stat().st_size == 0


def _dry_run(sweep: Sweep, layout: Layout, as_json: bool) -> None:
    """What the sweep would do, at assumed speeds: nothing is known of this machine yet."""
    groups, reasons = form_kinds(sweep.group, layout)
    for kind, reason in reasons.items():
        print(f"collbench: group {kind} would be skipped: {reason}", file=sys.stderr)
    check_root(sweep, groups)
    cells = plan_cells(sweep, groups)
    in_turn = {kind: len(rounds(of_kind)) for kind, of_kind in groups.items()}
    seconds, budgets_s, memory = 0.0, 0.0, 0
    for cell in cells:
        of_kind = groups[cell.group]
        sent = cell.message(len(of_kind[0]))
        call_s = _ASSUMED_CALL_S + sent.size_bytes / 1e9 / _ASSUMED_GBps
        timed_s = min(_ASSUMED_SAMPLES * call_s, max(sweep.budget_s, 3 * call_s))
        budgets_s += sweep.budget_s if sweep.precision else 0.0
        if not sweep.precision:
            timed_s = sweep.iters * sweep.agg_iters * max(1, sweep.cudagraph) * call_s
        calls_s = (1 + sweep.warmup_iters + sweep.check) * call_s + timed_s
        seconds += (in_turn[cell.group] if cell.concurrent else len(of_kind)) * (_NO_COLLECTIVE_S + calls_s)
        memory = max(memory, largest_slot_bytes(cell, of_kind, sweep.unalign))
    passes = max(1, sweep.passes)
    plan = {
        "cells": passes * len(cells),
        "ranks": layout.world_size,
        "groups": {kind: len(of_kind) for kind, of_kind in groups.items()},
        "memory_bytes_per_rank": memory,
        "estimated_s": round(passes * seconds, 1),
        "estimated_most_s": round(passes * (seconds + budgets_s), 1),
        "assumes": f"{_ASSUMED_CALL_S * 1e6:g} us a call and {_ASSUMED_GBps:g} GB/s",
    }
    if as_json:
        print(json.dumps({**plan, "sweep": sweep.as_record()}, indent=1))
        return
    for kind, of_kind in groups.items():
        print(f"group {kind}: {len(of_kind)} group{'s' * (len(of_kind) > 1)}, {len(of_kind[0])} ranks each")
    sizes = [cell.requested_bytes for cell in cells] or [0]
    from_to = f"{format_size(min(sizes))} to {format_size(max(sizes))}"
    print(f"cells: {plan['cells']} ({', '.join(sweep.collective)}; {from_to})")
    print(f"memory: {format_size(memory)} a rank for the largest buffers (and at least twice the last-level cache)")
    endless = ", and again until it is stopped" if sweep.passes == ENDLESS else ""
    most = f" (where no cell is precise within its budget, {plan['estimated_most_s']:.0f} s)" if sweep.precision else ""
    print(f"time: about {passes * seconds:.0f} s{most}{endless}, at {plan['assumes']}")
