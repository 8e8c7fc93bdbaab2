"""How ranks meet, or learn why not: threads of one process as ranks, real stores."""

from __future__ import annotations

import re
import socket
import threading
from dataclasses import replace

import pytest

from collbench.errors import InputError
from collbench.measure import meeting_place, rendezvous
from collbench.measure.meeting_place import NotMet
from collbench.measure.rendezvous import Arrival, Meeting, arrive, meet


@pytest.fixture
def port(monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number = probe.getsockname()[1]
    for name in (
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_RUN_ID",
        "LOCAL_WORLD_SIZE",
        "LOCAL_RANK",
        "SLURM_NNODES",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(number))
    return number


def arrival(rank, **changed):
    return replace(Arrival(f"n{rank}", 100 + rank, "1.0", "machine"), **changed)


def all_meet(*ranks, world_size, timeout_s=20.0):
    """What became of each of (rank, arrival) or (rank, arrival, world size): a Meeting or the error."""
    outcomes = {}

    def one(place, rank, mine, world_size=world_size):
        try:
            outcomes[place] = meet(rank, world_size, mine, timeout_s)
        except (NotMet, InputError) as error:
            outcomes[place] = error

    threads = [threading.Thread(target=one, args=(place, *each)) for place, each in enumerate(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [outcomes[place] for place in range(len(ranks))]


def the_one_reason(outcomes):
    """The reason that all have, and that one of them says."""
    assert all(isinstance(outcome, NotMet) for outcome in outcomes), outcomes
    [reason] = {str(outcome) for outcome in outcomes}
    assert sum(outcome.speaks for outcome in outcomes) == 1
    return reason


def test_ranks_that_all_arrive_meet(port):
    met = all_meet(*[(rank, arrival(rank)) for rank in range(5)], world_size=5)
    assert all(isinstance(outcome, Meeting) for outcome in met), met
    assert [each.host for each in met[3].arrivals()] == ["n0", "n1", "n2", "n3", "n4"]
    assert met[1].holder == "rank 0 (host n0)"
    assert sorted(meeting.chooses(rank) for rank, meeting in enumerate(met)) == [False] * 4 + [True]


def test_this_process_arrives_with_its_own_facts():
    mine = arrive()
    assert (mine.host, mine.refusal) == (socket.gethostname(), None) and mine.gloo_address
    assert arrive(InputError("no GPU")).exit_code == 2


def test_ranks_that_do_not_arrive_are_named_and_where_the_others_are(port):
    present = [(rank, arrival(rank, host=f"n{rank // 4}")) for rank in (0, 1, 5, 6)]
    reason = the_one_reason(all_meet(*present, world_size=9, timeout_s=1.0))
    assert reason.startswith(
        f"ranks 2-4, 7-8 did not arrive at 127.0.0.1:{port} within 1 s (--join-timeout); "
        "arrived: ranks 0-1 on n0, ranks 5-6 on n1: check"
    )


def test_the_notice_names_who_is_missing_once(port, monkeypatch, capfd):
    monkeypatch.setattr(meeting_place, "NOTICE_S", 0.5)  # by when both have arrived
    all_meet((0, arrival(0)), (1, arrival(1)), world_size=4, timeout_s=1.0)
    [line] = [line for line in capfd.readouterr().err.splitlines() if "waits for the other ranks" in line]
    assert f"ranks 2-3 of 4 not yet at 127.0.0.1:{port}" in line
    assert "unset them to start ranks here" in line


def test_under_torchrun_the_notice_speaks_of_no_stray_variables(port, monkeypatch, capfd):
    monkeypatch.setattr(meeting_place, "NOTICE_S", 0.05)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-1")
    all_meet((0, arrival(0)), world_size=2, timeout_s=0.3)
    err = capfd.readouterr().err
    assert "rank 1 of 2 not yet" in err and "unset" not in err


def test_without_rank_0_there_is_nobody_at_the_address(port, monkeypatch, capfd):
    monkeypatch.setattr(meeting_place, "NOTICE_S", 0.05)
    [error] = all_meet((1, arrival(1)), world_size=2, timeout_s=0.4)
    assert f"finds nobody at 127.0.0.1:{port} (connection refused) within 0.4 s" in str(error)
    assert "rank 0 should listen there" in str(error) and error.speaks
    assert "rank 0 does not answer" in capfd.readouterr().err


def test_where_the_agent_holds_the_store_it_is_the_agent_that_does_not_answer(port, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("LOCAL_RANK", "1")
    [error] = all_meet((0, arrival(0)), world_size=2, timeout_s=0.2)
    assert "torchrun's agent should listen there" in str(error) and not error.speaks  # its neighbour does


def test_an_address_that_is_each_node_itself_is_hinted_at(port, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("127.0.1.1", port))])
    [error] = all_meet((1, arrival(1)), world_size=2, timeout_s=0.2)
    assert f"finds nobody at localhost:{port} (127.0.1.1)" in str(error)
    assert "localhost resolves to 127.0.1.1 on this host, which is this host itself" in str(error)


def test_an_address_that_does_not_resolve(port, monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setenv("MASTER_ADDR", "n0.cluster")
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    [error] = all_meet((1, arrival(1)), world_size=2, timeout_s=0.2)
    assert "MASTER_ADDR=n0.cluster does not resolve (Name or service not known) within 0.2 s" in str(error)


def test_a_name_that_resolves_late_is_waited_for(port, monkeypatch):
    real, asked = socket.getaddrinfo, []

    def late(*arguments, **keywords):
        asked.append(arguments)
        if len(asked) < 3:
            raise socket.gaierror(-2, "Name or service not known")
        return real(*arguments, **keywords)

    monkeypatch.setattr(socket, "getaddrinfo", late)
    [met] = all_meet((0, arrival(0)), world_size=1)
    assert isinstance(met, Meeting)


@pytest.mark.parametrize("number", ["abc", "0", "70000"])
def test_a_port_that_is_none(port, monkeypatch, number):
    monkeypatch.setenv("MASTER_PORT", number)
    [error] = all_meet((0, arrival(0)), world_size=1)
    assert isinstance(error, InputError) and f"MASTER_PORT={number}" in str(error)


def test_a_port_that_is_in_use(port):
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::", port))
        taken.listen()
        [error] = all_meet((0, arrival(0)), world_size=2, timeout_s=2)
    assert f"port {port} is in use on this host" in str(error) and "MASTER_PORT" in str(error)


def test_a_rank_above_the_world_size(port):
    [error] = all_meet((3, arrival(3)), world_size=2)
    assert isinstance(error, InputError) and "RANK=3 and WORLD_SIZE=2" in str(error)


def test_a_rank_that_is_started_twice(port, monkeypatch):
    monkeypatch.setattr(rendezvous, "_LINGER_S", 0.2)
    outcomes = all_meet((0, arrival(0)), (1, arrival(1, host="a", pid=7)), (1, arrival(1, host="b")), world_size=3)
    [reason] = {str(outcome) for outcome in outcomes}
    assert "rank 1 was started twice: on host" in reason and "host a (process 7)" in reason and "host b" in reason


def test_ranks_of_another_world_size(port):
    outcomes = all_meet((0, arrival(0)), (1, arrival(1)), (2, arrival(2), 4), world_size=3)
    reason = the_one_reason(outcomes)
    # Whoever comes second sees that they differ.
    assert re.search(r"WORLD_SIZE=4, rank \d \(host n\d\) 3:|WORLD_SIZE=3, rank 2 \(host n2\) 4:", reason)
    assert "host n2" in reason and "same number of nodes" in reason


def test_a_rank_that_cannot_take_part_ends_all_with_its_exit_code_at_once(port, monkeypatch):
    monkeypatch.setattr(rendezvous, "_LINGER_S", 0.2)
    refusing = arrival(1, refusal="backend nccl: rank 1 has no GPU of its own", exit_code=2)
    outcomes = all_meet((0, arrival(0)), (1, refusing), world_size=3)  # rank 2 is not waited for
    assert the_one_reason(outcomes) == "backend nccl: rank 1 has no GPU of its own"
    assert {outcome.exit_code for outcome in outcomes} == {2}


def test_another_version_is_refused_on_all_ranks(port):
    outcomes = all_meet((0, arrival(0)), (1, arrival(1, version="0.9")), (2, arrival(2)), world_size=3)
    assert the_one_reason(outcomes).startswith("rank 1 (host n1) has collbench 0.9, ranks 0, 2 (host n0, n2) 1.0")
    assert {outcome.exit_code for outcome in outcomes} == {3}
