"""Why a rank stopped: an exception -> the job's verdict, naming the rank that is gone where peers can tell."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from typing import Any

from collbench.errors import EXIT_INTERRUPTED, EXIT_JOB, CollbenchError
from collbench.measure.process import ENDED_BY_LAUNCHER, Terminated, Verdict

_REPORT_WAIT_S = 1.0  # for the living ranks to say that they live; less than the grace after a signal


_SOURCE_PLACE = re.compile(r"^\[\S+:\d+\]\s*")  # gloo begins its messages with a place in its own source
_ADVICE = re.compile(r"\. This is typically caused by.*")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without what helps gloo's developers alone."""
    line = (str(error).strip().splitlines() or [""])[0]
    return _ADVICE.sub("", _SOURCE_PLACE.sub("", line))[:200] or type(error).__name__


def is_broken_peer(error: BaseException) -> bool:
    """Whether an error of torch.distributed says that another rank is gone or silent, not that this call was wrong."""
    return any(word in str(error).lower() for word in ("connection", "timed out", "timeout", "closed", "peer"))


def explain(error: BaseException, rank: int, hosts: list[str], store: Any) -> Verdict:
    """The verdict on an exception that ended the walk. Every failing rank reports to the store, so that rank 0 can name
    those that did not."""
    if isinstance(error, KeyboardInterrupt):
        return Verdict(EXIT_INTERRUPTED, "interrupted")
    if isinstance(error, Terminated):
        return Verdict(EXIT_JOB, ENDED_BY_LAUNCHER)
    if isinstance(error, CollbenchError):
        return Verdict(error.exit_code, str(error))
    try:
        silent = _silent_ranks(rank, len(hosts), store) if is_broken_peer(error) else []
    except KeyboardInterrupt:  # the other ranks were interrupted a moment earlier
        return Verdict(EXIT_INTERRUPTED, "interrupted")
    if silent:
        names = ", ".join(f"rank {r} (host {hosts[r]})" for r in silent)
        return Verdict(EXIT_JOB, f"{names} died or hangs: {first_line(error)}")
    return Verdict(EXIT_JOB, f"rank {rank} (host {hosts[rank]}): {first_line(error)}")


def _silent_ranks(rank: int, world_size: int, store: Any) -> list[int]:
    """The other ranks that do not report their own failure in time."""
    silent = [other for other in range(world_size) if other != rank]
    # A launcher ends the living ranks soon after one died; those have reported by then.
    with suppress(RuntimeError, Terminated):
        store.set(f"failed/{rank}", "1")
        give_up = time.monotonic() + _REPORT_WAIT_S
        while silent and time.monotonic() < give_up:
            silent = [other for other in silent if not store.check([f"failed/{other}"])]
            time.sleep(0.02)
    # All silent: it is this rank that lost the others, not the others that died.
    return silent if len(silent) < world_size - 1 or world_size == 2 else []
