"""`collbench run`: measure a sweep. Starts torchrun here, or is its worker where a launcher's variables say so."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from collbench.errors import EXIT_INPUT
from collbench.results import ResultsWriter
from collbench.resume import done_cells
from collbench.sweep import WORDS, Sweep, check_root, load_sweep, plan_cells
from collbench.topology import Layout, form_kinds
from collbench.units import format_size

EPILOG = """\
Sizes: 8, 64K, 1.5M, 1G (1024, as nccl-tests), KiB/MiB/GiB, kB/MB/GB (1000). Without a sweep file: 8 B to 32 MiB, x2.
Several nodes: torchrun --nnodes=4 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 \\
                        -m collbench run sweeps/cluster.toml -o results.jsonl
On an existing file, run measures only what is missing. -o is the output file (nccl-tests' -o is --redop here).
"""

_NO_COLLECTIVE_S, _ASSUMED_GBps, _ASSUMED_CALL_S = 5e-3, 1.0, 100e-6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("sweep", nargs="?", metavar="SWEEP.toml", help="a sweep file; flags override it")
    add("-o", "--output", default="results.jsonl", metavar="FILE", help="results file (default results.jsonl)")
    sweep = parser.add_argument_group("what to measure").add_argument
    sweep(
        "--collective",
        metavar="A,B",
        help="default: broadcast, all_reduce, all_gather_into_tensor, reduce_scatter_tensor",
    )
    sweep("--group", metavar="A,B", help="world, intra, inter (default: those the job has)")
    sweep("-b", "--minbytes", metavar="SIZE", help="smallest size (default 8)")
    sweep("-e", "--maxbytes", metavar="SIZE", help="largest size (default 32M)")
    sweep("-f", "--stepfactor", metavar="N", help="multiply the size by N (default 2)")
    sweep("-i", "--stepbytes", metavar="SIZE", help="add SIZE instead")
    sweep(
        "-d", "--datatype", metavar="A,B", help="float32 (float), float64 (double), float16 (half), bfloat16, int8 ..."
    )
    sweep("-r", "--root", metavar="RANK", help="root of rooted collectives: the rank inside the group (default 0)")
    sweep("--redop", "--op", metavar="A,B", help="sum, prod, max, min, avg (default sum)")
    how = parser.add_argument_group("how to measure").add_argument
    how(
        "--timing",
        metavar="REGIME",
        help="pipelined (as nccl-tests), isolated (last exit of all ranks), both (default)",
    )
    how("-n", "--iters", metavar="N", help="timed iterations (default 20)")
    how("-w", "--warmup-iters", "--warmup_iters", metavar="N", help="warm-up iterations for each size (default 5)")
    how("-c", "--check", metavar="N", help="data checks for each size, 0 for none (default 1)")
    how(
        "--precision",
        metavar="P",
        help="repeat isolated cells until the median is known to P, e.g. 2%% (default: once)",
    )
    how("--one-at-a-time", action="store_true", help="groups of one kind one after the other, not together")
    how("--samples", action="store_true", help="keep every sample (samples_us)")
    how("--timeout", metavar="SECONDS", help="for one cell (default 60)")
    how("--seed", metavar="N", help="kept in the record")
    job = parser.add_argument_group("the job").add_argument
    job("--backend", metavar="NAME", help="nccl or gloo (default: nccl where there are GPUs)")
    job(
        "--nproc",
        type=int,
        metavar="N",
        help="ranks to start here (default: one a GPU where there are two, else 2 gloo ranks)",
    )
    job("--append", action="store_true", help="add another sweep's run to an existing file")
    job("--dry-run", action="store_true", help="print cells, memory and estimated time; measure nothing")


def run(args: argparse.Namespace) -> int:
    from collbench.measure.launch import choose_ranks, is_worker, launch

    sweep = load_sweep(args.sweep, _flags(args))
    output = Path(args.output)
    if is_worker() and not args.dry_run:
        from collbench.measure.worker import run_sweep

        return run_sweep(sweep, output, args.append, args.json, args.debug)
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
    check_root(sweep, form_kinds(sweep.group, Layout.regular(1, ranks))[0])
    done_cells(output, sweep, ranks, backend, args.append)
    ResultsWriter(output).close()
    started = f"{ranks} {backend} rank{'s' * (ranks > 1)}"
    print(f"collbench: {started} on this machine ({why}); results in {output}", file=sys.stderr)
    verdict = launch(["run", *args.argv, "--backend", backend], ranks, backend)
    if verdict.exit_code and verdict.reason:
        print(f"collbench: {verdict.reason}{_kept(verdict.exit_code, output)}", file=sys.stderr)
    return verdict.exit_code


def _flags(args: argparse.Namespace) -> dict[str, Any]:
    """What was given: every flag of a sweep has the name of its word."""
    return {word: value for word in WORDS if (value := getattr(args, word, None)) not in (None, False)}


def _kept(exit_code: int, output: Path) -> str:
    if exit_code <= EXIT_INPUT or _is_empty(output):
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
    seconds, memory = 0.0, 0
    for cell in cells:
        size = cell.message(len(groups[cell.group][0])).size_bytes
        calls = 1 + sweep.warmup_iters + sweep.iters + sweep.check
        times = 1 if sweep.concurrent else len(groups[cell.group])
        seconds += times * (_NO_COLLECTIVE_S + calls * (_ASSUMED_CALL_S + size / 1e9 / _ASSUMED_GBps))
        memory = max(memory, size if cell.in_place else 2 * size)
    plan = {
        "cells": len(cells),
        "ranks": layout.world_size,
        "groups": {kind: len(of_kind) for kind, of_kind in groups.items()},
        "memory_bytes_per_rank": memory,
        "estimated_s": round(seconds, 1),
        "assumes": f"{_ASSUMED_CALL_S * 1e6:g} us a call and {_ASSUMED_GBps:g} GB/s",
    }
    if as_json:
        print(json.dumps({**plan, "sweep": sweep.as_record()}, indent=1))
        return
    for kind, of_kind in groups.items():
        print(f"group {kind}: {len(of_kind)} group{'s' * (len(of_kind) > 1)}, {len(of_kind[0])} ranks each")
    sizes = [cell.requested_bytes for cell in cells] or [0]
    print(
        f"cells: {len(cells)} ({', '.join(sweep.collective)}; {format_size(min(sizes))} to {format_size(max(sizes))})"
    )
    print(f"memory: {format_size(memory)} a rank for buffers")
    print(f"time: about {seconds:.0f} s, at {plan['assumes']}")
