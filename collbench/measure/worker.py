"""Being one rank of a job, from joining it to the verdict. Rank 0 alone writes the file and prints."""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
import zlib
from collections.abc import Callable
from typing import Any, TextIO

import torch.distributed as dist

from collbench.errors import EXIT_DONE, InputError
from collbench.measure.clock import STOPS
from collbench.measure.failure import explain, is_broken_peer
from collbench.measure.job import Job, join
from collbench.measure.keeper import Keeper
from collbench.measure.keeping import Keeping
from collbench.measure.meeting_place import NotMet
from collbench.measure.process import (
    Verdict,
    announce,
    claim_stdout,
    die_with_parent,
    end_soon_after_a_signal,
    last_words,
    leave,
)
from collbench.measure.rendezvous import JOIN_TIMEOUT_S
from collbench.measure.walk import Walk
from collbench.results import load_results
from collbench.sweep import Sweep, check_root
from collbench.topology import form_kinds


def run_sweep(sweep: Sweep, keeping: Keeping, as_json: bool, debug: bool, join_timeout_s: float | None = None) -> int:
    """Be one rank of `collbench run`: measure what is missing in the file. Returns this rank's exit code."""

    def work(job: Job, stdout: TextIO) -> Verdict:
        verdict = walk(job, sweep, keeping, debug, sys.stderr if as_json else stdout)
        if job.rank == 0 and as_json and verdict.exit_code <= 1:
            print(json.dumps(load_results(keeping.output).as_document(), indent=1), file=stdout)
        return verdict

    return be_a_rank(work, sweep.backend, sweep.timeout_s, debug, join_timeout_s)


def be_a_rank(
    work: Callable[[Job, TextIO], Verdict],
    backend: str,
    timeout_s: float,
    debug: bool,
    join_timeout_s: float | None = None,
) -> int:
    """Join the job, do `work`, and leave a verdict however it ends. For every command that runs under torchrun."""
    rank = int(os.environ["RANK"])
    die_with_parent(os.getppid())
    end_soon_after_a_signal(rank)
    STOPS.watch()
    announce(rank)
    stdout = claim_stdout()
    warnings.filterwarnings("ignore", category=FutureWarning)  # torch's, on names that we look up in both spellings
    hosts = ["?"] * int(os.environ["WORLD_SIZE"])
    store: Any = None
    speaks: bool | None = None  # as `leave` has it, but for a rank that failed by itself, not because another did
    try:
        job = join(backend, timeout_s, join_timeout_s or JOIN_TIMEOUT_S)
        hosts, store = [facts.host for facts in job.facts], job.store
        last_words(lambda error: explain(error, rank, hosts, store))
        verdict = work(job, stdout)
    except BaseException as error:
        if debug:
            traceback.print_exc()
        verdict = explain(error, rank, hosts, store)
        if isinstance(error, NotMet):
            speaks = error.speaks
        elif isinstance(error, Exception) and not is_broken_peer(error):
            speaks = True
    stdout.flush()
    leave(rank, verdict, speaks)
    dist.destroy_process_group()
    return verdict.exit_code


def walk(job: Job, sweep: Sweep, keeping: Keeping, debug: bool, table: TextIO) -> Verdict:
    """Measure all that is missing in the file. The verdict, also on a failure, is the last record there."""
    hosts = [facts.host for facts in job.facts]
    keeper: Keeper | None = None

    def end(error: BaseException) -> Verdict:
        if isinstance(error, Exception) and is_broken_peer(error):
            # A rank that had done its part waits for this one, and longer. It must say so now, else it counts as lost.
            job.control.leave()
        verdict = explain(error, job.rank, hosts, job.store)
        if keeper is not None:
            keeper.end(verdict)
        return verdict

    last_words(end)
    try:
        _check_same_sweep(job, sweep)
        groups, unformed = form_kinds(sweep.group, job.layout)
        check_root(sweep, groups)
        keeper = Keeper(job, sweep, keeping, groups, unformed, table) if job.rank == 0 else None
        memory_bytes = Walk(job, sweep, groups, keeper).go()
        return _share(job, keeper.finish(memory_bytes) if keeper is not None else Verdict(EXIT_DONE))
    except BaseException as error:
        if debug:
            traceback.print_exc()
        return end(error)


def _check_same_sweep(job: Job, sweep: Sweep) -> None:
    """InputError, on all ranks, where a rank was started with another sweep: they would wait for one another."""
    mine = {name: value for name, value in sweep.as_record().items() if name not in ("name", "question")}
    digests = job.control.everyones(zlib.crc32(json.dumps(mine, sort_keys=True).encode()))
    other = next((rank for rank, digest in enumerate(digests) if digest != digests[0]), None)
    if other is None:
        return
    first, second = job.control.from_rank(0, mine), job.control.from_rank(other, mine)
    name = next(name for name in first if first[name] != second.get(name))
    raise InputError(
        f"{name} is {first[name]} on rank 0 and {second.get(name)} on rank {other} (host {job.facts[other].host}): "
        "start every node with the same sweep and flags"
    )


def _share(job: Job, verdict: Verdict) -> Verdict:
    """Rank 0's verdict on all ranks."""
    code = job.control.from_rank(0, verdict.exit_code)
    return verdict if job.rank == 0 else Verdict(code)
