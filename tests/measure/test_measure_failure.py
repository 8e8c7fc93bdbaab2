from __future__ import annotations

import pytest

from collbench.errors import EXIT_INTERRUPTED, EXIT_JOB, InputError, JobError
from collbench.measure import failure
from collbench.measure.failure import explain, first_line, is_broken_peer
from collbench.measure.process import Terminated, Verdict

HOSTS = ["n0", "n0", "n1", "n1"]
LOST = RuntimeError("Connection closed by peer [10.0.0.2]:1234")


class Store:
    """torch's store, with the reports of the ranks in `failed` in it."""

    def __init__(self, *failed, broken=False):
        self.keys = {f"failed/{rank}" for rank in failed}
        self.broken = broken

    def set(self, key, value):
        if self.broken:
            raise RuntimeError("store is gone")
        self.keys.add(key)

    def check(self, keys):
        if self.broken:
            raise RuntimeError("store is gone")
        return set(keys) <= self.keys


@pytest.fixture(autouse=True)
def no_long_wait(monkeypatch):
    monkeypatch.setattr(failure, "_REPORT_WAIT_S", 0.1)


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
    ],
)
def test_a_lost_peer_is_told_from(text):
    assert is_broken_peer(RuntimeError(text))


@pytest.mark.parametrize("text", ["Invalid scalar type", "unsupported ReduceOp", "CUDA out of memory", ""])
def test_a_wrong_call(text):
    assert not is_broken_peer(RuntimeError(text))


def test_the_users_own_errors_keep_their_code_and_words():
    assert explain(InputError("bad flag"), 1, HOSTS, Store()) == Verdict(2, "bad flag")
    assert explain(JobError("did not meet"), 1, HOSTS, Store()) == Verdict(3, "did not meet")


def test_signals():
    assert explain(KeyboardInterrupt(), 0, HOSTS, Store()) == Verdict(EXIT_INTERRUPTED, "interrupted")
    ended = explain(Terminated(), 0, HOSTS, Store())
    assert ended.exit_code == EXIT_JOB and "ended by its launcher" in ended.reason


def test_an_error_of_this_rank_names_it_and_its_host():
    verdict = explain(RuntimeError("Invalid scalar type\n at line 7"), 2, HOSTS, Store())
    assert verdict == Verdict(EXIT_JOB, "rank 2 (host n1): Invalid scalar type")


def test_the_rank_that_does_not_report_is_the_one_that_died():
    verdict = explain(LOST, 0, HOSTS, Store(1, 3))
    assert verdict.exit_code == EXIT_JOB
    assert verdict.reason.startswith("rank 2 (host n1) died or hangs: Connection closed by peer")


def test_several_that_do_not_report_are_all_named():
    assert explain(LOST, 0, HOSTS, Store(3)).reason.startswith("rank 1 (host n0), rank 2 (host n1) died or hangs")


def test_a_rank_reports_itself():
    store = Store(0, 1, 2)
    explain(LOST, 3, HOSTS, store)
    assert "failed/3" in store.keys


def test_where_all_report_no_one_is_accused():
    assert explain(LOST, 1, HOSTS, Store(0, 2, 3)).reason.startswith("rank 1 (host n0): Connection closed")


def test_a_rank_that_hears_of_no_one_accuses_no_one():
    # It is this rank that lost the others.
    assert explain(LOST, 3, HOSTS, Store()).reason.startswith("rank 3 (host n1): Connection closed")


def test_of_two_ranks_the_silent_one_is_named():
    assert explain(LOST, 0, ["n0", "n1"], Store()).reason.startswith("rank 1 (host n1) died or hangs")


def test_a_store_that_is_gone_is_no_second_error():
    verdict = explain(LOST, 2, HOSTS, Store(broken=True))
    assert verdict.exit_code == EXIT_JOB
    assert verdict.reason.startswith("rank 2 (host n1): Connection closed")
