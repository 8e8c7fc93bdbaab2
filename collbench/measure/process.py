"""A worker as a process: it dies with its launcher, ends soon after a signal, and leaves its verdict in a file."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from collbench.errors import EXIT_INTERRUPTED, EXIT_JOB

VERDICT_DIR = "COLLBENCH_VERDICT_DIR"
GRACE_S = 2.0  # from a signal to the end of a rank that hangs in a collective
ENDED_BY_LAUNCHER = "ended by its launcher"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a rank (or, rank 0's, the job) ended: its exit code, and why in one line where it is not 0."""

    exit_code: int
    reason: str | None = None


def die_with_parent(parent: int, sent: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel signal this process when `parent` dies, so that a kill -9 of a launcher leaves no rank behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(sent))
        if os.getppid() != parent:  # it died before we asked
            os.kill(os.getpid(), sent)


def write_verdict(name: str, verdict: Verdict) -> None:
    """Leave a verdict for the launcher that started this job, if collbench did."""
    folder = os.environ.get(VERDICT_DIR)
    if folder and Path(folder).is_dir():
        scratch = Path(folder) / f".{name}.{os.getpid()}"
        scratch.write_text(json.dumps(asdict(verdict)))
        scratch.rename(Path(folder) / f"{name}.json")


def read_verdict(folder: Path, name: str) -> Verdict | None:
    path = folder / f"{name}.json"
    return Verdict(**json.loads(path.read_text())) if path.exists() else None


def announce(rank: int) -> None:
    """Tell the launcher this rank's process id, so that it can end what outlives torchrun."""
    folder = os.environ.get(VERDICT_DIR)
    if folder:
        (Path(folder) / f"rank-{rank}.pid").write_text(str(os.getpid()))


def end_soon_after_a_signal(rank: int) -> None:
    """SIGINT raises KeyboardInterrupt in the main thread, SIGTERM Terminated; a rank that hangs in a collective (where
    Python runs no handler) is ended by a thread after GRACE_S."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminated)

    def watch() -> None:
        received = os.read(reading, 1)
        time.sleep(GRACE_S)
        interrupted = received == bytes([signal.SIGINT])
        verdict = Verdict(EXIT_INTERRUPTED, "interrupted") if interrupted else Verdict(EXIT_JOB, ENDED_BY_LAUNCHER)
        write_verdict(f"rank-{rank}", verdict)
        os._exit(verdict.exit_code)

    threading.Thread(target=watch, daemon=True, name="end-after-signal").start()


class Terminated(BaseException):
    """SIGTERM: the launcher ends this rank because another failed, or because it is itself ended."""


def _terminated(*_: object) -> None:
    raise Terminated


def claim_stdout() -> TextIO:
    """The real stdout, for what the user asked for; everything else this process prints there goes to stderr.

    Libraries write to file descriptor 1 themselves (gloo of torch 2.9 does), which would break a table or JSON.
    """
    sys.stdout.flush()
    ours = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return ours


def here(rank: int) -> str:
    """`rank 3 (host n1)`, for messages."""
    return f"rank {rank} (host {socket.gethostname()})"
