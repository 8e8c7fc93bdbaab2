"""One rank's walk through the cells of a sweep. Rank 0 alone writes the file and prints.

All ranks walk the same cells in the same order. Before a cell they agree that every rank can run it; a refusal (no
memory, a type the backend does not take) skips the cell on all ranks together. Anything worse ends the job.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import torch.distributed as dist

from collbench.errors import EXIT_DONE, InputError
from collbench.measure.cell import CellMeasurement
from collbench.measure.failure import explain, is_broken_peer
from collbench.measure.job import Job, join
from collbench.measure.keeper import Keeper
from collbench.measure.process import (
    VERDICT_DIR,
    Verdict,
    announce,
    claim_stdout,
    die_with_parent,
    end_soon_after_a_signal,
    write_verdict,
)
from collbench.progress import Progress
from collbench.results import load_results
from collbench.sweep import Cell, Sweep, check_root, plan_cells
from collbench.topology import Groups, form_kinds


def run_sweep(sweep: Sweep, output: Path, append: bool, as_json: bool, debug: bool) -> int:
    """Be one rank of `collbench run`: measure what is missing in `output`. Returns this rank's exit code."""

    def work(job: Job, stdout: TextIO) -> Verdict:
        verdict = walk(job, sweep, output, append, debug, sys.stderr if as_json else stdout)
        if job.rank == 0 and as_json and verdict.exit_code <= 1:
            print(json.dumps(load_results(output).as_document(), indent=1), file=stdout)
        return verdict

    return be_a_rank(work, sweep.backend, sweep.timeout_s, debug)


def be_a_rank(work: Callable[[Job, TextIO], Verdict], backend: str, timeout_s: float, debug: bool) -> int:
    """Join the job, do `work`, and leave a verdict however it ends. For every command that runs under torchrun."""
    rank = int(os.environ["RANK"])
    die_with_parent(os.getppid())
    end_soon_after_a_signal(rank)
    announce(rank)
    stdout = claim_stdout()
    warnings.filterwarnings("ignore", category=FutureWarning)  # torch's, on names that we look up in both spellings
    hosts = ["?"] * int(os.environ["WORLD_SIZE"])
    store: Any = None
    speaks = rank == 0  # and a rank that failed by itself, not because another did
    try:
        job = join(backend, timeout_s)
        hosts, store = [facts.host for facts in job.facts], job.store
        verdict = work(job, stdout)
    except BaseException as error:
        if debug:
            traceback.print_exc()
        verdict = explain(error, rank, hosts, store)
        speaks = speaks or (isinstance(error, Exception) and not is_broken_peer(error))
    stdout.flush()
    write_verdict(f"rank-{rank}", verdict)
    if verdict.exit_code and verdict.reason and speaks and VERDICT_DIR not in os.environ:
        print(f"collbench: {verdict.reason}", file=sys.stderr, flush=True)
    if verdict.exit_code > 1:
        os._exit(verdict.exit_code)  # a broken group cannot be destroyed: it would wait for those that are gone
    dist.destroy_process_group()
    return verdict.exit_code


def walk(job: Job, sweep: Sweep, output: Path, append: bool, debug: bool, table: TextIO) -> Verdict:
    """Measure all that is missing in `output`. The verdict, also on a failure, is the last record there."""
    hosts = [facts.host for facts in job.facts]
    keeper: Keeper | None = None
    try:
        groups, unformed = form_kinds(sweep.group, job.layout)
        check_root(sweep, groups)
        keeper = Keeper(job, sweep, output, append, groups, unformed, table) if job.rank == 0 else None
        _walk(job, sweep, groups, keeper)
        return _share(job, keeper.finish() if keeper is not None else Verdict(EXIT_DONE))
    except BaseException as error:
        if debug:
            traceback.print_exc()
        verdict = explain(error, job.rank, hosts, job.store)
        if keeper is not None:
            keeper.end(verdict)
        return verdict


def _walk(job: Job, sweep: Sweep, groups: dict[str, Groups], keeper: Keeper | None) -> None:
    todo = _plan(job, sweep, groups, keeper)
    if not todo:
        return
    formed = job.form(groups, sweep.timeout_s)
    progress = Progress(len(todo), "measuring") if job.rank == 0 else None
    for cell in todo:
        of_kind = list(range(len(groups[cell.group])))
        for together in [of_kind] if cell.concurrent else [[index] for index in of_kind]:
            mine = next((group for index in together if (group := formed[cell.group][index]) is not None), None)
            ranks = [groups[cell.group][index] for index in together]
            found = CellMeasurement(job, sweep, cell, mine, ranks).run()
            if keeper is not None and progress is not None:
                progress.clear()
                keeper.keep(cell, found)
        if progress is not None:
            progress.advance(f"{cell.collective} {cell.group}")
    if progress is not None:
        progress.clear()


def _plan(job: Job, sweep: Sweep, groups: dict[str, Groups], keeper: Keeper | None) -> list[Cell]:
    """The cells still to measure: rank 0 opens the file and decides, all ranks learn of it (or of its refusal)."""
    cells = plan_cells(sweep, groups)
    answer: list[int] | str | None = None
    if keeper is not None:
        try:
            keeper.open()
            answer = [index for index, cell in enumerate(cells) if not keeper.has(cell)]
            keeper.begin(len(answer))
        except InputError as error:
            answer = str(error)
    answer = job.control.from_rank(0, answer)
    if isinstance(answer, str):
        raise InputError(answer)
    return [cells[index] for index in answer or []]


def _share(job: Job, verdict: Verdict) -> Verdict:
    """Rank 0's verdict on all ranks."""
    code = job.control.from_rank(0, verdict.exit_code)
    return verdict if job.rank == 0 else Verdict(code)
