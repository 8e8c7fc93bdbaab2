"""What is said before anything is measured: differences between hosts, the head of a run, who is refused."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

import collbench
from collbench.measure.device import Cpu
from collbench.measure.job import Job, RankFacts
from collbench.measure.names import few, rank_names, spans
from collbench.measure.preflight import Told, differences, head_lines, run_fields
from collbench.measure.rendezvous import Arrival, judge

# --- names -----------------------------------------------------------------------------------------------------------


def test_many_in_few_words():
    assert spans([7, 1, 0, 2]) == "0-2, 7"
    assert (rank_names([3]), rank_names([4, 2, 3, 7])) == ("rank 3", "ranks 2-4, 7")
    assert few(f"n{index // 2}" for index in range(20)) == "n0, n1, n2, n3, n4, n5, n6, n7 and 2 more"


# --- differences -----------------------------------------------------------------------------------------------------


def test_hosts_that_differ_are_a_diff():
    eth0 = {"torch": "2.13.0", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_DEBUG": "WARN"}
    ranks = [("n0", eth0), ("n1", eth0), ("n2", {"torch": "2.12.0", "NCCL_DEBUG": "WARN"})]
    assert differences(ranks) == [
        "torch: 2.13.0 on n0, n1; 2.12.0 on n2",
        "NCCL_SOCKET_IFNAME: eth0 on n0, n1; unset on n2",
    ]


def test_what_most_have_comes_first_and_a_host_is_named_once():
    ranks = [("n0", {"X": "1"}), ("n0", {"X": "1"}), *[(f"n{host}", {"X": "2"}) for host in range(1, 12)]]
    assert differences(ranks) == ["X: 2 on n1, n2, n3, n4, n5, n6, n7, n8 and 3 more; 1 on n0"]


def test_ranks_of_one_host_that_differ_are_named_themselves():
    ranks = [("n0", {"X": "1"}), ("n0", {}), ("n1", {"X": "1"}), ("n1", {"X": "1"})]
    assert differences(ranks) == ["X: 1 on ranks 0, 2-3; unset on rank 1"]


def test_equal_hosts_have_none():
    assert differences([("n0", {"X": "1"}), ("n1", {"X": "1"})]) == []
    assert differences([]) == []


# --- the head of a run -----------------------------------------------------------------------------------------------

FINE = {"names": ["eth0"], "address": "10.0.0.1", "reason": "host name", "problem": None, "fix": None}
HOST = {
    "host": "?", "cpu": "EPYC", "cpus": 4, "cpus_online": 4, "cpu_quota": None, "numa_nodes": 1, "shm_GB": 8.0,
    "governor": "performance", "load_1min": 0.25, "driver": None, "gloo": FINE, "nccl": FINE, "rdma": [], "gpus": [],
    "nics": [], "problems": [],
}  # fmt: skip
SETTINGS = {"python": "3.12.3", "torch": "2.13.0", "cuda": None, "nccl": None, "driver": None, "device": "cpu"}
SLOW_CLOCK = {"what": "CPU governor is powersave", "fix": "cpupower"}


def job(hosts, ranks_per_host=2, settings=None, device=None, **host_facts):
    """A job as rank 0 holds it: `hosts` by name, one machine each."""
    facts, told = [], []
    for node, host in enumerate(hosts):
        for local in range(ranks_per_host):
            name = (device or Cpu(0, 1)).name
            facts.append(RankFacts(host, node, local, name, 100 + len(facts), f"machine {node}", "0-3"))
            mine = {**SETTINGS, **(settings or {}).get(host, {})}
            told.append(Told.of(mine, {**HOST, **host_facts, "host": host} if local == 0 else None))
    return Job(0, len(facts), None, None, device or Cpu(0, 1), None, tuple(facts), tuple(told))


def test_the_head_is_a_line_for_all_and_a_line_a_node():
    settings = {host: {"GLOO_SOCKET_IFNAME": "eth0"} for host in ("n0", "n1")}
    assert head_lines(job(["n0", "n1"], settings=settings)) == [
        f"collbench {collbench.__version__}: 4 ranks on 2 nodes, gloo; torch 2.13.0, python 3.12.3",
        "collbench: n0: ranks 0-1 on EPYC, 4 CPUs, governor performance, /dev/shm 8 GB, load 0.25; "
        "gloo on eth0 (10.0.0.1)",
        "collbench: n1: ranks 2-3 on EPYC, 4 CPUs, governor performance, /dev/shm 8 GB, load 0.25; "
        "gloo on eth0 (10.0.0.1)",
        "collbench: variables: GLOO_SOCKET_IFNAME=eth0",
    ]


def test_of_many_nodes_the_rest_is_counted():
    lines = head_lines(job([f"n{index}" for index in range(600)], problems=[SLOW_CLOCK]))
    assert len(lines) == 1 + 8 + 1 + 1
    assert lines[9] == "collbench: and 592 nodes more, in the results file"
    assert lines[10] == (
        "collbench: warning: n0, n1, n2, n3, n4, n5, n6, n7 and 592 more: CPU governor is powersave (cpupower)"
    )


def test_ranks_that_outnumber_cpus_are_a_warning_and_pinned_ranks_are_not():
    [warning] = [line for line in head_lines(job(["n0"], ranks_per_host=5)) if "warning" in line]
    assert warning == ("collbench: warning: n0: 5 ranks share 4 CPUs: they take turns (start at most 4 there)")
    [quota] = [line for line in head_lines(job(["n0"], cpu_quota=1.5)) if "warning" in line]
    assert "2 ranks share 1 CPU: they take turns" in quota
    pinned = job(["n0"], ranks_per_host=4, cpus=1)
    object.__setattr__(pinned, "facts", tuple(
        RankFacts("n0", 0, rank, "cpu", rank, "machine", str(rank)) for rank in range(4)
    ))  # fmt: skip
    assert not any("warning" in line for line in head_lines(pinned))


def test_nodes_of_one_machine_share_its_cpus_and_its_name():
    two = job(["vm", "vm"], ranks_per_host=3)
    same = tuple(RankFacts(f.host, f.node, f.local_rank, f.device, f.pid, "one", f.cpus) for f in two.facts)
    object.__setattr__(two, "facts", same)
    lines = head_lines(two)
    assert any(line.startswith("collbench: vm (node 1): ranks 3-5") for line in lines)
    assert "collbench: warning: vm (node 0): 6 ranks share 4 CPUs: they take turns (start at most 4 there)" in lines


class Gpu:
    backend, name = "nccl", "NVIDIA H200"


def test_gpus_show_their_map_and_nccls_networks():
    gpus = [{"pci": "p", "model": "H200", "numa": 0, "nics": ["mlx5_0"], "distance": "PIX"}] * 2
    settings = {"n0": {"nccl": "2.27.3", "cuda": "12.8", "driver": "570.86.15", "NCCL_DEBUG": "WARN"}}
    lines = head_lines(job(["n0"], device=Gpu(), gpus=gpus, rdma=["mlx5_0", "mlx5_1"], settings=settings))
    assert lines[0].endswith("nccl; torch 2.13.0, cuda 12.8, nccl 2.27.3, driver 570.86.15, python 3.12.3")
    assert "ranks 0-1 on 2 x NVIDIA H200" in lines[1]
    assert lines[1].endswith("gloo on eth0 (10.0.0.1), NCCL on mlx5_0, mlx5_1, bootstrap on eth0 (10.0.0.1)")
    assert lines[2:] == ["collbench: GPU 0-1: NUMA 0, mlx5_0 (PIX)", "collbench: variables: NCCL_DEBUG=WARN"]


def test_torchruns_own_variable_of_nccl_is_not_shown_on_gloo():
    settings = {"n0": {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}}
    assert not any("variables" in line for line in head_lines(job(["n0"], settings=settings)))


def test_the_head_shows_differences_and_the_record_keeps_all():
    differing = job(["n0", "n1"], settings={"n1": {"torch": "2.12.0", **{f"UCX_{i}": "1" for i in range(9)}}})
    lines = [line for line in head_lines(differing) if "differs" in line]
    assert lines[0] == "collbench: differs: torch: 2.13.0 on n0; 2.12.0 on n1"
    assert lines[-1] == "collbench: differs: 2 settings more, in the results file" and len(lines) == 9
    fields = run_fields(differing)
    assert len(fields["differences"]) == 10
    assert [(host["node"], host["host"]) for host in fields["hosts"]] == [(0, "n0"), (1, "n1")]
    json.dumps(fields, allow_nan=False)


# --- who is refused --------------------------------------------------------------------------------------------------


def arrivals(**changed):
    """Three ranks on three hosts; `changed` as r1=dict(version=...)."""
    return {
        rank: Arrival(**{
            "host": f"n{rank}", "pid": rank, "version": "1.0", "machine": f"m{rank}", "gloo_address": f"10.0.0.{rank}",
            **changed.get(f"r{rank}", {}),
        })
        for rank in range(3)
    }  # fmt: skip


def test_those_who_agree_are_a_job():
    assert judge(arrivals(), []) == (0, None)


def test_another_version_is_refused_naming_rank_host_and_both_versions():
    code, reason = judge(arrivals(r2={"version": "0.9"}), [])
    assert code == 3
    assert reason.startswith("rank 2 (host n2) has collbench 0.9, ranks 0-1 (host n0, n1) 1.0: install one version")
    assert judge(arrivals(r1={"version": "0.9"}, r2={"version": "0.9"}), [])[1].startswith("rank 0 (host n0) has")


def test_a_rank_that_cannot_take_part_is_every_ranks_reason():
    assert judge(arrivals(r1={"refusal": "no GPU", "exit_code": 2}), [2]) == (2, "no GPU")


LONELY = {"gloo_address": "127.0.1.1", "gloo_is_loopback": True, "gloo_fix": "set GLOO_SOCKET_IFNAME (eth0?)"}


def test_a_loopback_address_among_several_machines_is_refused_before_anything_hangs():
    code, reason = judge(arrivals(r1=LONELY), [])
    assert code == 3
    assert reason == (
        "gloo would listen on the loopback of n1 (127.0.1.1), which the other hosts cannot reach: "
        "set GLOO_SOCKET_IFNAME (eth0?)"
    )


def test_a_loopback_address_is_fine_on_one_machine_or_where_machines_are_not_known():
    one = {f"r{rank}": {**LONELY, "machine": "m"} for rank in range(3)}
    assert judge(arrivals(**one), []) == (0, None)
    assert judge(arrivals(r0={**LONELY, "machine": None}), []) == (0, None)


def test_an_arrival_of_a_newer_version_reads():
    told = json.dumps({**asdict(arrivals()[0]), "version": "9.9", "something_new": 1})
    assert Arrival.read(told).version == "9.9"
    assert Arrival.read('{"host": "n", "pid": 1, "version": "0.1"}').machine is None


@pytest.mark.parametrize("text", ["", "x"])
def test_told_is_small_and_comes_back(text):
    told = Told.of({"NCCL_X": text}, None)
    assert told.settings == {"NCCL_X": text} and told.host is None
