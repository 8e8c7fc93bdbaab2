"""Start torchrun on this machine, pass signals on, and turn what became of the ranks into one verdict."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from collbench.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_JOB, InputError
from collbench.measure.environment import gpus_without_torch, torch_facts
from collbench.measure.process import ENDED_BY_LAUNCHER, GRACE_S, VERDICT_DIR, Verdict, read_verdict

GLOO_RANKS = 2
_POLL_S = 0.1


def is_worker() -> bool:
    """Whether a launcher (torchrun, srun with the same variables) started this process as a rank.

    Raises InputError where its variables are there by accident: incomplete, or no numbers.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return False
    said = f"RANK={os.environ['RANK']} and WORLD_SIZE={os.environ['WORLD_SIZE']} are set, so this is a launcher's rank"
    advice = "start it with torchrun, or unset RANK and WORLD_SIZE to start ranks on this machine"
    if not (os.environ["RANK"].isdigit() and os.environ["WORLD_SIZE"].isdigit()):
        raise InputError(f"{said}, but they are no whole numbers: {advice}")
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise InputError(f"{said}, but {' and '.join(missing)} are not set: {advice}")
    return True


def choose_ranks(nproc: int | None, backend: str) -> tuple[int, str, str]:
    """(ranks, backend, why) for this machine: one rank a GPU where there are two or more, else two gloo ranks.

    Raises InputError where nccl is asked for and there is no GPU.
    """
    if nproc is not None and nproc < 1:
        raise InputError(f"--nproc {nproc}: expected at least 1")
    if backend == "gloo":
        return nproc or GLOO_RANKS, "gloo", "backend gloo"
    gpus = gpus_without_torch()
    if gpus is None:
        gpus = len(torch_facts().get("gpus", []))
    if backend == "nccl" and not gpus:
        raise InputError(
            "--backend nccl: this machine has no GPU that torch sees: use --backend gloo ('collbench env')"
        )
    if backend == "nccl":
        return nproc or gpus, "nccl", f"{gpus} GPU{'s' * (gpus > 1)}"
    if gpus >= 2 or (nproc == 1 and gpus):
        return nproc or gpus, "nccl", f"{gpus} GPUs"
    why = "no GPU" if not gpus else "one GPU, which nccl cannot share between ranks"
    return nproc or GLOO_RANKS, "gloo", why


def launch(arguments: list[str], nproc: int, backend: str, stdout: IO[str] | None = None) -> Verdict:
    """Run `python -m collbench ARGUMENTS` as `nproc` ranks here; they write to this process's stderr and stdout (or
    `stdout`). Returns the job's verdict; no process of it is left running, whatever happens."""
    with tempfile.TemporaryDirectory(prefix="collbench-") as folder:
        job = subprocess.Popen(
            [
                *(sys.executable, "-m", "collbench.measure.torchrun"),
                *("--nnodes", "1", "--nproc-per-node", str(nproc), "--max-restarts", "0", "--local-addr", "127.0.0.1"),
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", f"collbench-{os.getpid()}"),
                *("-m", "collbench", *_without_nproc(arguments)),
            ],
            env=_environment(folder, backend),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on
            preexec_fn=_ignore_interrupts,  # until torchrun, or what stands in for it, has a handler
        )
        interrupted = _wait(job, Path(folder))
        _end_stragglers(Path(folder))
        return _verdict(Path(folder), job.returncode, interrupted)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _without_nproc(arguments: list[str]) -> list[str]:
    """torchrun takes --nproc for an abbreviation of its own, even behind the program's name; the ranks need it not."""
    kept = [word for word in arguments if not word.startswith("--nproc=")]
    while "--nproc" in kept:
        at = kept.index("--nproc")
        del kept[at : at + 2]
    return kept


def _environment(folder: str, backend: str) -> dict[str, str]:
    package_home = str(Path(__file__).parents[2])
    environment = {
        **os.environ,
        VERDICT_DIR: folder,
        "COLLBENCH_LAUNCHER_PID": str(os.getpid()),
        "PYTHONPATH": os.pathsep.join(filter(None, [package_home, os.environ.get("PYTHONPATH")])),
    }
    environment.setdefault("OMP_NUM_THREADS", "1")  # torchrun's own choice, without its banner
    if backend == "gloo" and sys.platform == "linux":
        # One machine: the loopback, whatever the host name resolves to.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return environment


def _wait(job: subprocess.Popen[bytes], folder: Path) -> bool:
    """Wait for the job; whether it was interrupted. SIGINT, SIGTERM and SIGHUP to this process end the job.

    Ranks end within GRACE_S of a signal or of a peer's failure, torchrun soon after; what has not by then, is killed.
    """
    give_up = math.inf
    interrupted = False
    ending = (signal.SIGTERM, signal.SIGHUP)  # a closed terminal is an end like any other
    previous = [signal.signal(each, signal.default_int_handler) for each in ending]
    try:
        while job.poll() is None:
            try:
                with suppress(subprocess.TimeoutExpired):
                    job.wait(timeout=_POLL_S)
                if give_up == math.inf and any(_failed(folder)):
                    give_up = time.monotonic() + GRACE_S + 1.0
                if time.monotonic() > give_up:
                    _kill_ranks(folder)
                if time.monotonic() > give_up + 1.0:
                    job.kill()
            except KeyboardInterrupt:
                if interrupted:
                    job.kill()
                interrupted = True
                give_up = time.monotonic() + GRACE_S + 1.0
                with suppress(ProcessLookupError):
                    job.send_signal(signal.SIGINT)
    finally:
        for each, handler in zip(ending, previous, strict=True):
            signal.signal(each, handler)
    return interrupted


def _failed(folder: Path) -> Iterator[bool]:
    """Of every rank that has a verdict, whether it is a failure of the job."""
    for path in folder.glob("rank-*.json"):
        verdict = read_verdict(folder, path.stem)
        yield verdict is not None and verdict.exit_code > 1


def _kill_ranks(folder: Path) -> None:
    for pid in _living(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _end_stragglers(folder: Path) -> None:
    """Kill ranks that outlived torchrun (they get a signal when it dies; this is for those that hang)."""
    give_up = time.monotonic() + GRACE_S + 0.5
    while _living(folder) and time.monotonic() < give_up:
        time.sleep(0.05)
    _kill_ranks(folder)


def _living(folder: Path) -> list[int]:
    pids = [int(text) for path in folder.glob("rank-*.pid") if (text := path.read_text())]
    return [pid for pid in pids if _is_ours(pid, folder)]


def _is_ours(pid: int, folder: Path) -> bool:
    """Whether the process still runs and is a rank of this job (a process id may be used again)."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{VERDICT_DIR}={folder}".encode() in environment.split(b"\0")


def _verdict(folder: Path, returncode: int, interrupted: bool) -> Verdict:
    if interrupted:
        return Verdict(EXIT_INTERRUPTED, "interrupted")
    rank0, torchrun = read_verdict(folder, "rank-0"), read_verdict(folder, "torchrun")
    if returncode < 0 and not any(_failed_by_itself(folder)):
        return Verdict(EXIT_JOB, f"torchrun was killed by {signal.Signals(-returncode).name}")
    if rank0 is not None and (rank0.exit_code != EXIT_JOB or torchrun is None):
        return rank0
    if torchrun is not None and torchrun.reason:
        # A rank that could still say why it failed knows best; of one that was killed, torchrun knows.
        own = read_verdict(folder, f"rank-{torchrun.reason.split()[1]}")
        return own if own is not None and own.reason else torchrun
    if returncode == EXIT_DONE:
        return Verdict(EXIT_DONE)
    return Verdict(EXIT_JOB, "the ranks could not be started: see torchrun's message above ('collbench env' may help)")


def _failed_by_itself(folder: Path) -> Iterator[bool]:
    for path in folder.glob("rank-*.json"):
        verdict = read_verdict(folder, path.stem)
        yield verdict is not None and verdict.exit_code > 1 and verdict.reason != ENDED_BY_LAUNCHER
