"""A rank as a process: it dies with its launcher, ends soon after a signal, and leaves its verdict where the launcher
that collbench started it with reads it."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TextIO

from collbench.errors import EXIT_INTERRUPTED, EXIT_JOB, CollbenchError

VERDICT_DIR = "COLLBENCH_VERDICT_DIR"
TORCHRUN_PID = "COLLBENCH_TORCHRUN_PID"
GRACE_S = 2.0  # from a signal to the end of a rank that hangs in a collective
ENDED_BY_LAUNCHER = "ended by its launcher"
_REACTION_S = 0.3  # from a signal to when a rank that has not taken it is found to hang
_PR_SET_PDEATHSIG = 1
_VERDICT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a rank (or, rank 0's, the job) ended: its exit code, and why in one line where it is not 0.

    cause: whether `reason` says what began the trouble, or only that this rank lost the others or was ended.
    speaks: whether this rank is the one to tell the user, should it not be rank 0.
    """

    exit_code: int
    reason: str | None = None
    cause: bool = True
    speaks: bool = False


# --- verdicts and the launcher ---------------------------------------------------------------------------------------


def reserve_verdicts(folder: Path, names: list[str]) -> None:
    """Make room for the verdicts, so that they can be left when the disk is full."""
    for name in names:
        (folder / f"{name}.json").write_bytes(b" " * _VERDICT_BYTES)


def write_verdict(name: str, verdict: Verdict) -> None:
    """Leave a verdict for the launcher that started this job, if collbench did."""
    _ending.verdict_left = True
    folder = os.environ.get(VERDICT_DIR)
    if not folder:
        return
    short = replace(verdict, reason=verdict.reason and verdict.reason[:600])  # up to 6 bytes a character
    with suppress(OSError), (Path(folder) / f"{name}.json").open("r+b") as file:  # gone with its launcher
        file.write(json.dumps(asdict(short)).encode().ljust(_VERDICT_BYTES))


def read_verdict(folder: Path, name: str) -> Verdict | None:
    """The verdict left under a name; None where none was, or is just being written."""
    try:
        return Verdict(**json.loads((folder / f"{name}.json").read_bytes()))
    except (OSError, ValueError):
        return None


def announce(rank: int) -> None:
    """Tell the launcher that this rank takes signals: from now on it is worth ending it gently."""
    if folder := os.environ.get(VERDICT_DIR):
        with suppress(OSError):
            (Path(folder) / f"rank-{rank}.ready").touch()


def living(folder: Path, besides: int | None = None) -> list[int]:
    """The processes of the job whose verdicts go to `folder`, whoever their parents are now: torchrun, its ranks, and
    what those started. Not this process, nor `besides`."""
    ours = f"{VERDICT_DIR}={folder}".encode()
    found = []
    for each in Path("/proc").glob("[0-9]*") if sys.platform == "linux" else ():
        with suppress(OSError):  # it ended, or is another user's
            if ours in (each / "environ").read_bytes().split(b"\0"):  # a zombie has none
                found.append(int(each.name))
    return [pid for pid in found if pid not in (os.getpid(), besides)]


def signal_living(folder: Path, sent: signal.Signals, besides: int | None = None) -> bool:
    """Send a signal to every process of a job; whether there was one."""
    pids = living(folder, besides)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, sent)
    return bool(pids)


# --- signals ---------------------------------------------------------------------------------------------------------


class Terminated(BaseException):
    """SIGTERM: the launcher ends this rank because another failed, or because it is itself ended."""


@dataclass
class _Ending:
    """What this process knows of its own end. `by`: the thread that sees to it, once one does."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    received: list[int] = field(default_factory=list)
    by: int | None = None
    last_words: Callable[[BaseException], Verdict] | None = None
    verdict_left: bool = False


_ending = _Ending()


def die_with_parent(parent: int, sent: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel signal this process when `parent` dies, so that a kill -9 of a launcher leaves no rank behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(sent))
        if os.getppid() != int(os.environ.get(TORCHRUN_PID, parent)):  # it died before we asked
            os.kill(os.getpid(), sent)


def end_soon_after_a_signal(rank: int) -> None:
    """SIGINT raises KeyboardInterrupt in the main thread, SIGTERM Terminated, the first of them and only while nothing
    else ends this rank. One that hangs in a collective, where Python runs no handler, is ended by threads: the first
    says the last words in its place, the second ends it in any case after GRACE_S."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, _raise_once)
    signal.signal(signal.SIGTERM, _raise_once)

    def watch() -> None:
        while (number := os.read(reading, 1)[0]) not in (signal.SIGINT, signal.SIGTERM):
            pass  # another signal that has a handler
        interrupted = number == signal.SIGINT
        time.sleep(_REACTION_S)
        error = KeyboardInterrupt() if interrupted else Terminated()
        threading.Thread(target=_end_in_place_of_main, args=(rank, error), daemon=True).start()
        time.sleep(GRACE_S - _REACTION_S)
        verdict = Verdict(EXIT_JOB, ENDED_BY_LAUNCHER, cause=False)
        if interrupted:
            verdict = Verdict(EXIT_INTERRUPTED, "interrupted")
        if not _ending.verdict_left:
            write_verdict(f"rank-{rank}", verdict)
        os._exit(verdict.exit_code)

    threading.Thread(target=watch, daemon=True, name="end-after-signal").start()


def last_words(say: Callable[[BaseException], Verdict]) -> None:
    """What ends this rank's work after KeyboardInterrupt or Terminated, and gives its verdict. The main thread calls it
    itself when it catches them; this is for when it hangs."""
    _ending.last_words = say


def begin_to_end() -> None:
    """From now on this thread alone ends the process: signals raise nothing, so that the last words get written.
    Does not return where another thread does so already."""
    if not _claims_the_end():
        _park()


def received(sent: signal.Signals) -> bool:
    """Whether this process got such a signal."""
    return sent in _ending.received


def leave(rank: int, verdict: Verdict, speaks: bool | None = None) -> None:
    """Leave the verdict, and tell the user unless collbench's launcher will: rank 0 does, or who speaks for it. Ends
    the process at once where the job failed: a broken group cannot be destroyed, it would wait for those that are gone.
    """
    begin_to_end()
    write_verdict(f"rank-{rank}", verdict)
    if speaks is None:
        speaks = rank == 0 or verdict.speaks
    if verdict.exit_code and verdict.reason and speaks and VERDICT_DIR not in os.environ:
        print(f"collbench: {verdict.reason}", file=sys.stderr, flush=True)
    if verdict.exit_code > 1:
        os._exit(verdict.exit_code)


def _claims_the_end() -> bool:
    with _ending.lock:
        if _ending.by is None:
            _ending.by = threading.get_ident()
        return _ending.by == threading.get_ident()


def _end_in_place_of_main(rank: int, error: BaseException) -> None:
    if _ending.last_words is None or not _claims_the_end():
        return
    _ending.received.append(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
    try:
        verdict = _ending.last_words(error)
    except CollbenchError as refusal:  # the file takes no more words
        verdict = Verdict(refusal.exit_code, str(refusal))
    leave(rank, verdict)


def _raise_once(number: int, _: FrameType | None) -> None:
    if _ending.by not in (None, threading.get_ident()):
        _park()  # else the main thread would go on measuring
    first = not _ending.received and _ending.by is None
    _ending.received.append(number)
    if first:
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated


def _park() -> None:
    while True:
        time.sleep(GRACE_S)


# --- the rest --------------------------------------------------------------------------------------------------------


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
