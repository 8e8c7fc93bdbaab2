from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from collbench.errors import EXIT_INTERRUPTED, EXIT_JOB, InputError, JobError
from collbench.measure import failure, launch, process
from collbench.measure.failure import explain, first_line, is_broken_peer
from collbench.measure.process import ENDED_BY_LAUNCHER, Terminated, Verdict, read_verdict, reserve_verdicts

HOSTS = ["n0", "n0", "n1", "n1"]
LOST = RuntimeError("Connection closed by peer [10.0.0.2]:1234")


class Store:
    """torch's store, with the reports of the ranks in `failed` in it: that they lost their peers, or what is given."""

    def __init__(self, *failed, broken=False, **reports):
        self.keys = {f"failed/{rank}": b"lost" for rank in failed}
        self.keys |= {f"failed/{name.removeprefix('rank_')}": text.encode() for name, text in reports.items()}
        self.broken = broken

    def _reached(self):
        if self.broken:
            raise RuntimeError("store is gone")

    def set(self, key, value):
        self._reached()
        self.keys[key] = value.encode()

    def get(self, key):
        return self.keys[key]

    def check(self, keys):
        self._reached()
        return set(keys) <= set(self.keys)


@pytest.fixture(autouse=True)
def a_rank_that_has_just_begun(monkeypatch):
    monkeypatch.setattr(failure, "_REPORT_WAIT_S", 0.1)
    monkeypatch.setattr(process, "_ending", process._Ending())


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("first\nsecond"), "first"),
        (RuntimeError("  padded  "), "padded"),
        (RuntimeError(), "RuntimeError"),
        (ValueError("\n\n"), "ValueError"),
        (RuntimeError("x" * 1000), "x" * 200),
    ],
)
def test_an_error_is_one_line(error, line):
    assert first_line(error) == line


@pytest.mark.parametrize(
    "text",
    [
        "Connection closed by peer [127.0.0.1]:31337",
        "Timed out waiting 60000ms for recv operation to complete",
        "Socket Timeout",
        "Read error [127.0.0.1]: Connection reset by peer",
        "NCCL error: a remote process exited or there was a network error",
    ],
)
def test_a_lost_peer_is_told_from(text):
    assert is_broken_peer(RuntimeError(text))


@pytest.mark.parametrize("text", ["Invalid scalar type", "unsupported ReduceOp", "CUDA out of memory", ""])
def test_a_wrong_call(text):
    assert not is_broken_peer(RuntimeError(text))


def test_the_users_own_errors_keep_their_code_and_words():
    assert explain(InputError("bad flag"), 1, HOSTS, Store()) == Verdict(2, "bad flag")
    assert explain(JobError("did not meet"), 1, HOSTS, None) == Verdict(3, "did not meet")


def test_an_error_of_this_rank_names_it_and_its_host():
    verdict = explain(RuntimeError("Invalid scalar type\n at line 7"), 2, HOSTS, Store())
    assert verdict == Verdict(EXIT_JOB, "rank 2 (host n1): Invalid scalar type")


# --- who is to blame -------------------------------------------------------------------------------------------------


def test_the_rank_that_does_not_report_is_the_one_that_died():
    verdict = explain(LOST, 0, HOSTS, Store(1, 3))
    assert verdict.exit_code == EXIT_JOB
    assert verdict.reason.startswith("rank 2 (host n1) died or hangs: Connection closed by peer")


def test_several_that_do_not_report_are_all_named():
    assert explain(LOST, 0, HOSTS, Store(3)).reason.startswith("rank 1 (host n0), rank 2 (host n1) died or hangs")


def test_of_very_many_the_first_are_named():
    reason = explain(LOST, 0, ["n0"] * 100, Store(99)).reason
    assert reason.startswith("rank 1 (host n0), rank 2") and "rank 8 (host n0) and 90 more died or hangs" in reason


def test_the_first_rank_that_lives_speaks_for_a_rank_0_that_does_not():
    assert explain(LOST, 1, HOSTS, Store(2, 3)).speaks
    assert not explain(LOST, 2, HOSTS, Store(1, 3)).speaks


def test_a_rank_reports_itself():
    store = Store(0, 1, 2)
    explain(LOST, 3, HOSTS, store)
    assert "failed/3" in store.keys


def test_a_rank_that_knows_what_was_wrong_with_it_is_quoted_by_all():
    store = Store(2)
    explain(RuntimeError("CUDA error: an illegal memory access"), 1, HOSTS, store)
    expected = Verdict(EXIT_JOB, "rank 1 (host n0): CUDA error: an illegal memory access")
    assert explain(LOST, 3, HOSTS, store) == expected
    assert explain(Terminated(), 0, HOSTS, store) == expected


def test_where_all_report_no_one_is_accused():
    verdict = explain(LOST, 1, HOSTS, Store(0, 2, 3))
    assert verdict.reason.startswith("rank 1 (host n0): Connection closed") and not verdict.cause


def test_a_rank_that_hears_of_no_one_accuses_no_one():
    # It is this rank that lost the others.
    assert explain(LOST, 3, HOSTS, Store()).reason.startswith("rank 3 (host n1): Connection closed")


def test_of_two_ranks_the_silent_one_is_named():
    assert explain(LOST, 0, ["n0", "n1"], Store()).reason.startswith("rank 1 (host n1) died or hangs")


def test_a_store_that_is_gone_is_no_second_error():
    verdict = explain(LOST, 2, HOSTS, Store(broken=True))
    assert verdict.exit_code == EXIT_JOB
    assert verdict.reason.startswith("rank 2 (host n1): Connection closed")


# --- signals ---------------------------------------------------------------------------------------------------------


def test_an_interrupt_is_no_failure():
    assert explain(KeyboardInterrupt(), 0, HOSTS, Store()) == Verdict(EXIT_INTERRUPTED, "interrupted")


def test_a_peer_lost_to_an_interrupt_that_comes_here_too_is_an_interrupt():
    process._ending.received.append(signal.SIGINT)
    assert explain(LOST, 0, HOSTS, Store(1, 2)) == Verdict(EXIT_INTERRUPTED, "interrupted")


def test_where_all_were_ended_the_launcher_was():
    store = Store(rank_1="signal", rank_2="signal", rank_3="signal")
    assert explain(Terminated(), 0, HOSTS, store) == Verdict(EXIT_JOB, ENDED_BY_LAUNCHER, cause=False)
    assert explain(Terminated(), 0, ["n0", "n1"], Store(broken=True)).reason == ENDED_BY_LAUNCHER


def test_a_rank_that_alone_was_ended_accuses_no_one():
    # The other may be in a collective, waiting for this one.
    assert explain(Terminated(), 0, ["n0", "n1"], Store()).reason == ENDED_BY_LAUNCHER
    assert explain(Terminated(), 0, HOSTS, Store()).reason == ENDED_BY_LAUNCHER


def test_of_two_ranks_the_silent_one_is_named_though_the_launcher_ends_this_one_meanwhile():
    process._ending.received.append(signal.SIGTERM)
    assert explain(LOST, 0, ["n0", "n1"], Store()).reason.startswith("rank 1 (host n1) died or hangs")
    assert explain(LOST, 0, ["n0", "n1"], Store(broken=True)).reason == ENDED_BY_LAUNCHER


def test_a_rank_ended_because_of_another_names_that():
    store = Store(rank_1="signal", rank_3="signal")
    assert explain(Terminated(), 0, HOSTS, store).reason == "rank 2 (host n1) died or hangs"


def test_a_rank_that_alone_got_a_signal_is_named():
    verdict = explain(LOST, 0, HOSTS, Store(1, 3, rank_2="signal"))
    assert verdict == Verdict(EXIT_JOB, "rank 2 (host n1) was ended by a signal")


RANK = """
import ctypes, os, signal, time
from collbench.measure import process
from collbench.measure.process import Terminated, Verdict

def say(error):
    process.begin_to_end()
    return Verdict(3, f"last words after {type(error).__name__}")

def hang():  # as in a collective: no Python runs, and no signal interrupts it
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)

process.end_soon_after_a_signal(0)
process.last_words(say)
"""


def end_of_rank(code, folder):
    """(exit code, verdict) of a process that is rank 0."""
    reserve_verdicts(folder, ["rank-0"])
    environment = {"COLLBENCH_VERDICT_DIR": str(folder), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", RANK + code], env=environment, timeout=30, check=False)
    return done.returncode, read_verdict(folder, "rank-0")


def test_the_first_signal_raises_and_what_follows_lets_the_last_words_be_said(tmp_path):
    code = """
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)
except Terminated as error:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
    process.leave(0, say(error))
"""
    assert end_of_rank(code, tmp_path) == (3, Verdict(3, "last words after Terminated"))


@pytest.mark.parametrize(("sent", "error"), [("SIGTERM", "Terminated"), ("SIGINT", "KeyboardInterrupt")])
def test_the_last_words_of_a_rank_that_hangs_are_said_all_the_same(sent, error, tmp_path):
    code = f"import threading\nthreading.Timer(0.1, os.kill, [os.getpid(), signal.{sent}]).start()\nhang()"
    assert end_of_rank(code, tmp_path) == (3, Verdict(3, f"last words after {error}"))


def test_a_rank_whose_last_words_hang_is_ended(tmp_path):
    code = """
process.last_words(lambda error: hang())
import threading
threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGTERM]).start()
hang()
"""
    assert end_of_rank(code, tmp_path) == (3, Verdict(3, ENDED_BY_LAUNCHER, cause=False))


def test_a_rank_that_was_stopped_and_goes_on_is_not_ended(tmp_path):
    code = """
signal.signal(signal.SIGCONT, lambda *_: None)
os.kill(os.getpid(), signal.SIGCONT)
time.sleep(process._REACTION_S + 0.3)
process.leave(0, Verdict(0))
"""
    assert end_of_rank(code, tmp_path) == (0, Verdict(0))


# --- the launcher's choice -------------------------------------------------------------------------------------------

OWN = Verdict(EXIT_JOB, "rank 1 (host n0): CUDA error")
BLAME = Verdict(EXIT_JOB, "rank 2 (host n1) died or hangs: Timed out")
ENDED = Verdict(EXIT_JOB, ENDED_BY_LAUNCHER, cause=False)
LOST_ALL = Verdict(EXIT_JOB, "rank 1 (host n0): Timed out", cause=False)
KILLED = Verdict(EXIT_JOB, "rank 2 was killed by SIGKILL")
CODE_3 = Verdict(EXIT_JOB, "rank 1 ended with exit code 3", cause=False)


@pytest.mark.parametrize(
    ("ranks", "torchrun", "expected"),
    [
        ({0: Verdict(0), 1: Verdict(0)}, None, Verdict(0)),
        ({0: Verdict(1, "wrong data"), 1: Verdict(1)}, CODE_3, Verdict(1, "wrong data")),
        ({0: Verdict(2, "no room"), 1: LOST_ALL}, CODE_3, Verdict(2, "no room")),
        ({0: BLAME, 1: BLAME}, KILLED, KILLED),
        ({0: BLAME, 1: OWN}, CODE_3, OWN),
        ({0: BLAME, 1: LOST_ALL}, CODE_3, BLAME),
        ({0: ENDED, 1: LOST_ALL, 3: BLAME}, CODE_3, BLAME),
        ({1: BLAME}, None, BLAME),  # rank 0 hung, and torchrun over it
        ({0: ENDED, 1: LOST_ALL}, CODE_3, LOST_ALL),
        ({0: ENDED, 1: ENDED}, CODE_3, Verdict(EXIT_JOB, "rank 1 was ended by a signal")),
        ({}, CODE_3, CODE_3),
    ],
)
def test_the_jobs_verdict_is_that_which_knows_what_began_it(ranks, torchrun, expected):
    verdicts = {f"rank-{rank}": verdict for rank, verdict in ranks.items()}
    assert (
        launch._verdict(verdicts, torchrun, -9 if torchrun is None and ranks.get(0) is None else 3, False) == expected
    )


def test_a_torchrun_that_was_killed_is_what_began_it():
    assert launch._verdict({"rank-0": BLAME}, None, -9, True).reason == "torchrun was killed by SIGKILL"
    assert launch._verdict({"rank-0": Verdict(0)}, None, -9, True) == Verdict(0)  # all was done


def test_signals_that_are_ignored_stay_ignored():
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with launch._ending_signals() as received:
            signal.raise_signal(signal.SIGHUP)
            assert received == []
            signal.raise_signal(signal.SIGTERM)
            assert received == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_verdicts_find_room_on_a_disk_that_filled_up(tmp_path, monkeypatch):
    monkeypatch.setenv("COLLBENCH_VERDICT_DIR", str(tmp_path))
    reserve_verdicts(tmp_path, ["rank-0"])
    reserved = (tmp_path / "rank-0.json").stat()
    assert read_verdict(tmp_path, "rank-0") is None
    process.write_verdict("rank-0", Verdict(EXIT_JOB, "x" * 5000))
    written = (tmp_path / "rank-0.json").stat()
    assert (written.st_ino, written.st_size, written.st_blocks) == (
        reserved.st_ino,
        reserved.st_size,
        reserved.st_blocks,
    )
    assert read_verdict(tmp_path, "rank-0") == Verdict(EXIT_JOB, "x" * 600)
