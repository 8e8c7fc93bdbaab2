"""What `collbench run` measures and how, with real rank processes on gloo. Never an absolute time."""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations, pairwise
from statistics import median

import pytest

from collbench.collectives import COLLECTIVES
from collbench.results import load_results

pytestmark = pytest.mark.workers

ONE_SIZE = ["-b", "4K", "-e", "4K", "-n", "3", "-w", "1"]


def run(collbench, path, *arguments, code=0, **environment):
    done = collbench("run", *arguments, "-o", path, **environment)
    assert done.returncode == code, done.stderr
    return done, load_results(path)


def halves(results, collective):
    return {(r["in_place"], r["pass"]) for r in results.measurements if r["collective"] == collective}


@pytest.fixture(scope="module")
def swept(collbench, tmp_path_factory):
    """Every operation on four ranks, in groups of every make: its process and its file."""
    path = tmp_path_factory.mktemp("all") / "r.jsonl"
    arguments = [*ONE_SIZE, "--nproc", "4", "--collective", "all", "--group", "world,mesh:2x2,pairs:rank", "-r", "1"]
    return run(collbench, path, *arguments, "-d", "float,bfloat16", "--samples")


class TestAllOperationsOnFourRanks:
    def test_every_operation_gives_right_data_in_every_group(self, swept):
        measured = swept[1].measurements
        assert {r["wrong"] for r in measured} == {0}
        of = Counter((r["collective"], r["group"]) for r in measured)
        groups = {"world": 1, "mesh:2x2:shard": 2, "mesh:2x2:replicate": 2, "pairs:rank": 6}
        assert of == {(name, kind): 2 * 2 * 2 * n for name in COLLECTIVES for kind, n in groups.items()}

    def test_both_forms_where_torch_has_both_else_two_passes_of_one(self, swept):
        for name in ("broadcast", "all_reduce", "reduce"):
            assert halves(swept[1], name) == {(True, 0), (True, 1)}
        for name in ("all_to_all_single", "send_recv"):
            assert halves(swept[1], name) == {(False, 0), (False, 1)}
        for name in ("all_gather_into_tensor", "reduce_scatter_tensor", "gather", "scatter", "hypercube"):
            assert halves(swept[1], name) == {(False, 0), (True, 0)}

    def test_the_groups_are_the_mesh_and_all_pairs(self, swept):
        of = {kind: set() for kind in ("mesh:2x2:shard", "mesh:2x2:replicate", "pairs:rank")}
        for record in swept[1].measurements:
            if record["group"] in of:
                of[record["group"]].add(tuple(record["group_ranks"]))
        assert of["mesh:2x2:shard"] == {(0, 1), (2, 3)}
        assert of["mesh:2x2:replicate"] == {(0, 2), (1, 3)}
        assert of["pairs:rank"] == set(combinations(range(4), 2))

    def test_groups_that_ran_together_have_an_aggregate(self, swept):
        found = swept[1].aggregates
        assert {record["group"] for record in found} == {"mesh:2x2:shard", "mesh:2x2:replicate"}
        names = ("collective", "group", "dtype", "in_place", "pass", "timing")
        for aggregate in found:
            of_groups = [r for r in swept[1].measurements if all(r[name] == aggregate[name] for name in names)]
            slowest = max(of_groups, key=lambda record: record["time_us"])
            assert aggregate["groups"] == len(of_groups) == 2
            assert (aggregate["time_us"], aggregate["slowest_group"]) == (slowest["time_us"], slowest["group_ranks"])
            assert aggregate["busbw_GBps_sum"] == pytest.approx(sum(r["busbw_GBps"] for r in of_groups))
            assert 0 < aggregate["overlap"] <= 1

    def test_figures_are_made_of_the_samples_kept(self, swept):
        for record in swept[1].measurements:
            ranks = record["rank_samples_us"]
            assert len(ranks) == record["nranks"]
            if record["timing"] == "isolated":
                assert record["samples_us"] == [max(sample) for sample in zip(*ranks, strict=True)]
            assert record["time_us"] == pytest.approx(median(record["samples_us"]), rel=1e-12)
            assert record["iterations"] == 3 and record["precise"] is None

    def test_how_long_groups_took_to_create_is_kept_and_first_calls_are_no_samples(self, swept):
        assert {init["group"]: init["groups"] for init in swept[1].inits}["pairs:rank"] == 6
        assert all(init["create_us"] > 0 for init in swept[1].inits)
        assert all(record["first_call_us"] > 0 for record in swept[1].measurements)
        memory = swept[1].ends[-1]["memory_bytes"]
        assert set(memory) == {"initialization", "user_allocated", "collective", "total"} and memory["total"] > 0

    def test_cells_are_measured_in_shuffled_order_and_tabled_in_theirs(self, swept):
        kinds = [(record["collective"], record["group"]) for record in swept[1].measurements]
        changes = sum(one != other for one, other in pairwise(kinds))
        assert changes > 2 * len(set(kinds))
        programs = [line.split(": ")[1] for line in swept[0].stdout.splitlines() if "test starting" in line]
        order = [collective.program for collective in COLLECTIVES.values()]
        assert [order.index(program) for program in programs] == sorted(order.index(program) for program in programs)


def test_passes_go_on_from_one_another_and_are_tables_of_their_own(collbench, tmp_path):
    path = tmp_path / "r.jsonl"
    arguments = ["--collective", "all_gather,broadcast", *ONE_SIZE]
    run(collbench, path, *arguments)
    done, results = run(collbench, path, *arguments, "--passes", "3")
    assert halves(results, "all_gather_into_tensor") == {
        (form, number) for form in (False, True) for number in range(3)
    }
    assert halves(results, "broadcast") == {(True, number) for number in range(6)}
    assert len(results.measurements) == 2 * 2 * 2 * 3 and len(results.runs) == 2
    assert done.stdout.count("# Collective test starting: all_gather_perf") == 3
    # Six measurements have an interval together.
    together = done.stdout[done.stdout.index("what was measured 6 times or more") :].splitlines()
    assert [line.split()[2] for line in together if " world " in line] == ["broadcast", "broadcast"]


def test_contention_of_one_group_is_nothing_to_compare(collbench, tmp_path):
    done, _ = run(collbench, tmp_path / "r.jsonl", *ONE_SIZE, "--collective", "all_reduce", "--contention")
    assert "contention: no kind of group has two groups here: nothing to compare" in done.stdout


def test_together_and_alone_in_one_launch_and_what_it_costs(collbench, tmp_path):
    arguments = ["--nproc", "4", "--collective", "all_reduce", "--group", "world,mesh:2x2:shard", "--contention"]
    done, results = run(collbench, tmp_path / "r.jsonl", *ONE_SIZE, *arguments)
    of = Counter((r["group"], r["concurrent"]) for r in results.measurements)
    assert of == {("world", True): 4, ("mesh:2x2:shard", True): 8, ("mesh:2x2:shard", False): 8}
    assert "contention: " in done.stdout
    assert "contention: " in collbench("show", tmp_path / "r.jsonl").stdout


def test_a_size_beyond_memory_is_skipped_and_the_others_are_measured(collbench, tmp_path):
    arguments = ["--collective", "broadcast", "-b", "4K", "-e", "4T", "-f", str(2**30), "-n", "2"]
    done, results = run(collbench, tmp_path / "r.jsonl", *arguments)
    assert {record["size_bytes"] for record in results.measurements} == {4096}
    assert {skip["size_bytes"] for skip in results.skips} == {4 * 2**40}
    assert "out of memory" in results.skips[0]["reason"] and "out of memory" in done.stderr


def test_what_a_backend_refuses_is_one_skip_for_all_sizes(collbench, tmp_path):
    arguments = ["--nproc", "3", "--collective", "hypercube,all_reduce,send_recv", "--redop", "sum,mulsum"]
    _, results = run(collbench, tmp_path / "r.jsonl", *arguments, "-b", "64", "-e", "4K", "-f", "8", "-n", "2")
    reasons = {(skip["collective"], skip["redop"], skip["in_place"]): skip["reason"] for skip in results.skips}
    assert set(reasons) == {("hypercube", None, False), ("hypercube", None, True), ("all_reduce", "mulsum", True)}
    assert len(results.skips) == 3 and all(skip["size_bytes"] is None for skip in results.skips)
    assert "not a power of 2" in reasons["hypercube", None, True]
    assert {(r["collective"], r["redop"]) for r in results.measurements} == {("all_reduce", "sum"), ("send_recv", None)}


def test_nccl_tests_ways_to_time(collbench, tmp_path):
    """-m, -z, -I and -K: each leaves its own mark in the records."""
    path = tmp_path / "r.jsonl"
    arguments = ["--collective", "all_reduce", "-b", "64K", "-e", "64K", "-n", "6", "--timing", "pipelined"]
    _, results = run(collbench, path, *arguments, "-m", "3")
    assert {(r["mode"], r["iterations"]) for r in results.measurements} == {("agg_iters=3", 18)}
    _, results = run(collbench, path, *arguments, "-z", "3", "-I", "1", "-K", "2", "--append")
    last = results.measurements[-1]
    assert last["mode"] == "blocking=3"
    assert last["per_iter"]["skipped_iterations"] == 2 and len(last["per_iter"]["times_us"]) == 4
    _, results = run(collbench, path, *arguments, "-r", "all", "--hot", "-u", "1", "--append")
    assert results.measurements[-1]["mode"] == "unalign=1 hot" and results.measurements[-1]["rotation"] == 1
    assert {r["wrong"] for r in results.measurements} == {0}


def test_iterations_follow_the_precision_until_the_budget_is_spent(collbench, tmp_path):
    size = ["--collective", "broadcast", "-b", "4K", "-e", "4K", "--timing", "isolated"]
    _, loose = run(collbench, tmp_path / "loose.jsonl", *size, "--precision", "99%", "--budget", "20")
    _, tight = run(collbench, tmp_path / "tight.jsonl", *size, "--precision", "0.0001%", "--budget", "0.2")
    for record in loose.measurements:  # on a busy machine ranks may come late to every sample: no precision is claimed
        (low, high), time_us = record["time_us_interval"], record["time_us"]
        in_time = record["late_kept"] < record["iterations"]
        assert record["precise"] == (in_time and max(high - time_us, time_us - low) <= 0.99 * time_us)
        assert record["iterations"] >= 6
    assert [record["precise"] for record in tight.measurements] == [False, False]
    least = min(record["iterations"] for record in tight.measurements)
    assert least > 10
    low, high = tight.measurements[0]["time_us_interval"]
    assert low <= tight.measurements[0]["time_us"] <= high


def test_nccl_tests_table_and_nothing_else_and_its_json(collbench, tmp_path):
    report = tmp_path / "report.json"
    arguments = ["--collective", "all_reduce", "--timing", "pipelined", "--nccl-tests=2.17.2", "-J", report]
    done, _ = run(collbench, tmp_path / "r.jsonl", *ONE_SIZE, *arguments)
    rows = [line for line in done.stdout.splitlines() if line.startswith(" ")]
    assert len(rows) == 1 and len(rows[0].split()) == 13
    assert "collbench" not in done.stdout
    document = json.loads(report.read_text())
    assert [row["size"] for row in document["results"]] == [4096]
    assert not [entry for entry in document["env"] if entry.startswith(("PATH=", "HOME="))]


def test_beside_a_matrix_product_two_factors_a_size_and_group(collbench, tmp_path):
    arguments = ["--collective", "all_reduce,gather", "-b", "8", "-e", "64K", "-f", "8192", "--with-compute"]
    _, results = run(collbench, tmp_path / "r.jsonl", *arguments, "-n", "2", "--budget", "0.02")
    measured = {(r["collective"], r["size_bytes"], r["in_place"], r["pass"]) for r in results.measurements}
    assert {(r["collective"], r["size_bytes"], r["in_place"], r["pass"]) for r in results.overlaps} == measured
    for record in results.overlaps:
        assert record["group_ranks"] == [0, 1] and record["iterations"] >= 1
        assert record["comm_slowdown"] > 0 and (record["compute_slowdown"] is None or record["compute_slowdown"] > 0)
