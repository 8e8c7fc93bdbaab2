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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from collbench.errors import EXIT_DONE, EXIT_INPUT, EXIT_INTERRUPTED, EXIT_JOB, InputError
from collbench.measure.environment import gpus_without_torch, torch_facts
from collbench.measure.process import (
    ENDED_BY_LAUNCHER,
    GRACE_S,
    VERDICT_DIR,
    Verdict,
    living,
    read_verdict,
    reserve_verdicts,
    signal_living,
)

GLOO_RANKS = 2
_POLL_S = 0.1
_CLOSE_S = 30.0  # from rank 0's verdict to the end of the job: groups of many ranks take their time to close


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
    ranks = [f"rank-{rank}" for rank in range(nproc)]
    with _ending_signals() as received, _folder(["torchrun", *ranks]) as folder:
        job = subprocess.Popen(
            [
                *(sys.executable, "-m", "collbench.measure.torchrun"),
                *("--nnodes", "1", "--nproc-per-node", str(nproc), "--max-restarts", "0", "--local-addr", "127.0.0.1"),
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", f"collbench-{os.getpid()}"),
                *("-m", "collbench", *_without_nproc(arguments)),
            ],
            env=_environment(folder, backend),
            stdin=subprocess.PIPE,  # closes when this process is gone, which is how torchrun learns of it
            stdout=stdout,
            start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on
        )
        try:
            ended = _wait(job, folder, ranks, received)
        finally:
            _kill(job, folder)
        verdicts = {name: verdict for name in ranks if (verdict := read_verdict(folder, name)) is not None}
        if received and (verdicts.get("rank-0") or Verdict(EXIT_INTERRUPTED)).exit_code > EXIT_INPUT:
            return Verdict(EXIT_INTERRUPTED, "interrupted")
        return _verdict(verdicts, read_verdict(folder, "torchrun"), job.returncode, ended)


@contextmanager
def _ending_signals() -> Iterator[list[int]]:
    """The signals that came to end this process, which goes on: Ctrl-C, SIGTERM, or its terminal closed. Those that
    whoever started it ignores (nohup, a script's background) are left ignored."""
    received: list[int] = []
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    caught = [each for each in ending if signal.getsignal(each) is not signal.SIG_IGN]
    previous = [signal.signal(each, lambda number, _: received.append(number)) for each in caught]
    try:
        yield received
    finally:
        for each, handler in zip(caught, previous, strict=True):
            signal.signal(each, handler)


@contextmanager
def _folder(names: list[str]) -> Iterator[Path]:
    """A folder with room for verdicts of these names; torchrun's own logs go there too."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="collbench-", ignore_cleanup_errors=True)
        reserve_verdicts(Path(folder.name), names)
    except OSError as error:
        raise InputError(
            f"no folder can be made for temporary files ({error.strerror or error}): make room, or set TMPDIR"
        ) from None
    with folder as path:
        yield Path(path)


def _without_nproc(arguments: list[str]) -> list[str]:
    """torchrun takes --nproc for an abbreviation of its own, even behind the program's name; the ranks need it not."""
    kept = [word for word in arguments if not word.startswith("--nproc=")]
    while "--nproc" in kept:
        at = kept.index("--nproc")
        del kept[at : at + 2]
    return kept


def _environment(folder: Path, backend: str) -> dict[str, str]:
    package_home = str(Path(__file__).parents[2])
    environment = {
        **os.environ,
        VERDICT_DIR: str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, [package_home, os.environ.get("PYTHONPATH")])),
    }
    environment.setdefault("OMP_NUM_THREADS", "1")  # torchrun's own choice, without its banner
    if backend == "gloo" and sys.platform == "linux":
        # One machine: the loopback, whatever the host name resolves to.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return environment


def _wait(job: subprocess.Popen[bytes], folder: Path, ranks: list[str], received: list[int]) -> bool:
    """Wait until the job has ended, or should have; whether torchrun ended by itself.

    Ranks end within GRACE_S of a signal or of a peer's failure, torchrun soon after. A first signal to this process is
    passed on, so that rank 0 can write its last record; a second one ends the waiting.
    """
    give_up = math.inf
    passed_on = False
    while job.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            job.wait(timeout=_POLL_S)
        if received and not passed_on:
            passed_on = True
            if not any(folder.glob("rank-*.ready")):  # nobody has begun
                return False
            with suppress(ProcessLookupError):
                job.send_signal(signal.SIGINT)
            give_up = min(give_up, time.monotonic() + GRACE_S + 1.0)
        give_up = min(give_up, time.monotonic() + _rest_s(folder, ranks))
        if len(received) > 1 or time.monotonic() > give_up + 1.0:
            return False
        if time.monotonic() > give_up:
            # What has not ended by now, hangs; torchrun would wait half a minute for it.
            signal_living(folder, signal.SIGKILL, besides=job.pid)
    # Without torchrun its ranks get a signal of their own.
    give_up = time.monotonic() + GRACE_S + 0.5
    while living(folder) and time.monotonic() < give_up and len(received) < 2:
        time.sleep(0.05)
    return True


def _rest_s(folder: Path, ranks: list[str]) -> float:
    """How long the job may still take, by the verdicts that its ranks have left."""
    verdicts = [read_verdict(folder, name) for name in ranks]
    if any(verdict is not None and verdict.exit_code > 1 for verdict in verdicts):
        return GRACE_S + 1.0
    return math.inf if verdicts[0] is None else _CLOSE_S


def _kill(job: subprocess.Popen[bytes], folder: Path) -> None:
    """Leave no process of the job: torchrun first, which might start more."""
    job.kill()
    job.wait()
    assert job.stdin is not None
    job.stdin.close()
    give_up = time.monotonic() + GRACE_S  # one that the kernel does not let die is not waited for
    while signal_living(folder, signal.SIGKILL) and time.monotonic() < give_up:
        time.sleep(0.01)


def _verdict(verdicts: dict[str, Verdict], torchrun: Verdict | None, returncode: int, ended: bool) -> Verdict:
    """Of all that the ranks and torchrun say, what began the trouble. `ended`: torchrun was not killed from here."""
    rank0 = verdicts.get("rank-0")
    if rank0 is not None and rank0.exit_code <= EXIT_INPUT:
        return rank0
    if ended and returncode < 0:
        return Verdict(EXIT_JOB, f"torchrun was killed by {signal.Signals(-returncode).name}")
    failed = [verdict for verdict in verdicts.values() if verdict.exit_code > 1 and verdict.reason]
    # A rank that could still say why it failed knows best, and torchrun which failed first; of one that was killed,
    # torchrun alone knows why.
    first = verdicts.get(f"rank-{torchrun.reason.split()[1]}") if torchrun and torchrun.reason else None
    said = [first, torchrun if first is None else None, rank0, *failed]
    known = [verdict for verdict in said if verdict is not None]
    if known:
        chosen = next((verdict for verdict in known if verdict.cause), known[0])
        if chosen.reason == ENDED_BY_LAUNCHER and torchrun is not None and torchrun.reason:  # not by this one
            return Verdict(EXIT_JOB, f"rank {torchrun.reason.split()[1]} was ended by a signal")
        return chosen
    if returncode == EXIT_DONE:
        return Verdict(EXIT_DONE)
    return Verdict(EXIT_JOB, "the ranks could not be started: see torchrun's message above ('collbench env' may help)")
