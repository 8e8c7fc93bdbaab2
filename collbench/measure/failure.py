"""Why a rank stopped: an exception -> the job's verdict, naming the rank that is gone where peers can tell.

Ranks that fail say so to each other through the store, which outlives the groups: what was wrong with them, that they
lost the others, or that a signal ended them. Of a rank that says nothing, the others say that it died or hangs.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from collbench.errors import EXIT_INTERRUPTED, EXIT_JOB, CollbenchError
from collbench.measure.names import few
from collbench.measure.process import ENDED_BY_LAUNCHER, Terminated, Verdict, begin_to_end, received

_REPORT_WAIT_S = 1.0  # for the living ranks to say that they live; less than the grace after a signal
_STORE_WAIT_S = 1.0  # for the store itself to answer
# What a rank reports: one of these, or these before its reason.
_OWN, _LOST, _SIGNAL = "own ", "lost", "signal"

_Answer = TypeVar("_Answer")

_SOURCE_PLACE = re.compile(r"^\[\S+:\d+\]\s*")  # gloo begins its messages with a place in its own source
_ADVICE = re.compile(r"\. This is typically caused by.*")
_BROKEN = ("connection", "timed out", "timeout", "closed", "peer", "remote process", "network error")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without what helps gloo's developers alone."""
    line = (str(error).strip().splitlines() or [""])[0]
    return _ADVICE.sub("", _SOURCE_PLACE.sub("", line))[:200] or type(error).__name__


def is_broken_peer(error: BaseException) -> bool:
    """Whether an error of torch.distributed says that another rank is gone or silent, not that this call was wrong."""
    return any(word in str(error).lower() for word in _BROKEN)


def explain(error: BaseException, rank: int, hosts: list[str], store: Any) -> Verdict:
    """The verdict on an exception that ended the walk. Called once it ends: no signal raises from here on.

    Every failing rank reports to the store, so that each can say what was wrong with another, or name those that did
    not report. `store` is None before the ranks met.
    """
    begin_to_end()
    if isinstance(error, KeyboardInterrupt):
        _report(rank, store, _SIGNAL)
        return Verdict(EXIT_INTERRUPTED, "interrupted")
    if isinstance(error, CollbenchError):
        _report(rank, store, f"{_OWN}{error}")
        return Verdict(error.exit_code, str(error))
    mine = f"{_names([rank], hosts)}: {first_line(error)}"
    terminated = isinstance(error, Terminated)
    if not terminated and not is_broken_peer(error):
        _report(rank, store, f"{_OWN}{mine}")
        return Verdict(EXIT_JOB, mine)

    answer = _in_time(lambda: _exchange(rank, len(hosts), store, _SIGNAL if terminated else _LOST))
    reports = answer or {}
    if received(signal.SIGINT):  # the other ranks were interrupted a moment earlier
        return Verdict(EXIT_INTERRUPTED, "interrupted")
    terminated = terminated or received(signal.SIGTERM)
    causes = [text.removeprefix(_OWN) for text in reports.values() if text.startswith(_OWN)]
    if causes:
        return Verdict(EXIT_JOB, causes[0])
    silent = [other for other in range(len(hosts)) if other != rank and other not in reports]
    # All silent: it is this rank that lost the others, or that alone was ended. But of two, one lost the other.
    lost = not isinstance(error, Terminated)
    if silent and (len(silent) < len(hosts) - 1 or (len(hosts) == 2 and lost and not (terminated and answer is None))):
        detail = f": {first_line(error)}" if lost else ""
        first_to_speak = rank == min(set(range(len(hosts))) - set(silent))
        return Verdict(EXIT_JOB, f"{_names(silent, hosts)} died or hangs{detail}", speaks=first_to_speak)
    if terminated:
        return Verdict(EXIT_JOB, ENDED_BY_LAUNCHER, cause=False)
    if ended := [other for other, text in reports.items() if text == _SIGNAL]:
        return Verdict(EXIT_JOB, f"{_names(ended, hosts)} was ended by a signal")
    return Verdict(EXIT_JOB, mine, cause=False)


def _names(ranks: list[int], hosts: list[str]) -> str:
    return few(f"rank {rank} (host {hosts[rank]})" for rank in ranks)


def _in_time(ask: Callable[[], _Answer]) -> _Answer | None:
    """The answer; None where the store's host can no longer be reached, so that it never comes: torch would wait until
    the kernel gives the connection up, a quarter of an hour."""
    answers: list[_Answer] = []
    asking = threading.Thread(target=lambda: answers.append(ask()), daemon=True)
    asking.start()
    asking.join(_REPORT_WAIT_S + _STORE_WAIT_S)
    return answers[0] if answers else None


def _exchange(rank: int, world_size: int, store: Any, text: str) -> dict[int, str] | None:
    """Report, and hear the others' reports; None where that cannot be."""
    return _reports(rank, world_size, store) if _report(rank, store, text) else None


def _report(rank: int, store: Any, text: str) -> bool:
    """Leave a report for the other ranks; whether it could be left."""
    if store is None:
        return False
    try:
        store.set(f"failed/{rank}", text)
    except RuntimeError:  # whoever held the store is gone
        return False
    return True


def _reports(rank: int, world_size: int, store: Any) -> dict[int, str] | None:
    """What the other ranks report in time, or until one knows what was wrong with it; None where nobody could."""
    found: dict[int, str] = {}
    give_up = time.monotonic() + _REPORT_WAIT_S
    missing = [other for other in range(world_size) if other != rank]
    try:
        while missing and time.monotonic() < give_up and not any(text.startswith(_OWN) for text in found.values()):
            for other in [other for other in missing if store.check([f"failed/{other}"])]:
                found[other] = store.get(f"failed/{other}").decode()
                missing.remove(other)
            time.sleep(0.02)
    except RuntimeError:  # the launcher, and the store with it, ended meanwhile
        return None
    return found
