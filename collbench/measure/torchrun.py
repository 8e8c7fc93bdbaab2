"""torchrun as collbench starts it: the same program, but it does not outlive its launcher, and says which rank failed
first in a verdict file instead of a traceback."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from collbench.errors import EXIT_INTERRUPTED, EXIT_JOB
from collbench.measure.process import GRACE_S, TORCHRUN_PID, VERDICT_DIR, Verdict, signal_living, write_verdict


def main(arguments: list[str]) -> int:
    folder = Path(os.environ[VERDICT_DIR])
    os.environ[TORCHRUN_PID] = str(os.getpid())
    orphaned = threading.Event()
    guard = threading.Thread(target=_outlive_no_launcher, args=(_claim_stdin(), folder, orphaned), daemon=True)
    guard.start()
    logging.disable(logging.CRITICAL)  # torchrun's own account of a failure: the verdict says it in one line
    try:
        return _torchrun(["--log-dir", str(folder / "logs"), *arguments])
    finally:
        if orphaned.is_set():
            guard.join()


def _torchrun(arguments: list[str]) -> int:
    try:
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.run import main as torchrun
    except ImportError as error:
        write_verdict("torchrun", Verdict(EXIT_JOB, f"torch does not import ({error}): see 'collbench env'"))
        return EXIT_JOB

    try:
        torchrun(arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code = failure.exitcode
        killed = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        write_verdict("torchrun", Verdict(EXIT_JOB, f"rank {rank} {killed}", cause=code < 0))
        return EXIT_JOB
    except SignalException as error:
        interrupted = error.sigval == signal.SIGINT
        return EXIT_INTERRUPTED if interrupted else EXIT_JOB
    return 0


def _claim_stdin() -> int:
    """The launcher's end of standard input, which it never writes to and which closes with it; the ranks get none."""
    ours = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return ours


def _outlive_no_launcher(stdin: int, folder: Path, orphaned: threading.Event) -> None:
    """Once the launcher is gone without having ended us (kill -9), do what it would have: end the ranks, those that
    hang too, and remove the folder."""
    os.read(stdin, 1)
    orphaned.set()
    give_up = time.monotonic() + GRACE_S + 1.0
    while time.monotonic() < give_up and signal_living(folder, signal.SIGTERM):  # to a rank the first one counts
        time.sleep(0.05)
    signal_living(folder, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(EXIT_JOB)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
