"""`collbench run` with real rank processes on gloo. Never an absolute time: this machine may be busy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from collbench.collectives import COLLECTIVES, bandwidths_GBps, message
from collbench.dtypes import DTYPES
from collbench.results import CELL_FIELDS, load_results

pytestmark = pytest.mark.workers

ROOT = Path(__file__).parents[2]
FAULTS = str(ROOT / "tests" / "faults")
QUICK = ["-b", "8", "-e", "4K", "-f", "8", "-n", "4", "-w", "1"]


def key(record):
    return json.dumps([record.get(name) for name in CELL_FIELDS])


@pytest.fixture(scope="module")
def sweep(collbench, tmp_path_factory):
    """One sweep of everything small: its process, its file."""
    path = tmp_path_factory.mktemp("sweep") / "results.jsonl"
    done = collbench(
        "run", *QUICK, "-d", "float,bfloat16,int8", "--redop", "sum,max", "--group", "world,inter", "-o", path
    )
    assert done.returncode == 0, done.stderr
    return done, path


class TestSweep:
    def test_every_cell_is_measured_once_and_right(self, sweep):
        results = load_results(sweep[1])
        assert all(record["wrong"] == 0 for record in results.measurements)
        assert max(Counter(map(key, results.measurements)).values()) == 1
        by_collective = Counter(record["collective"] for record in results.measurements)
        # 4 sizes (8, 64, 512, 4096), 3 types, 2 regimes, 2 halves; 2 operators where it reduces. 8 bytes and, where a
        # 16-byte share of 2 ranks does not fit, no size rounds to another's.
        assert by_collective["broadcast"] == 4 * 3 * 2 * 2
        assert by_collective["all_reduce"] == 4 * 3 * 2 * 2 * 2
        assert by_collective["all_gather_into_tensor"] == 4 * 3 * 2 * 2
        assert by_collective["reduce_scatter_tensor"] == 4 * 3 * 2 * 2 * 2

    def test_sizes_and_bandwidths_are_nccl_tests(self, sweep):
        for record in load_results(sweep[1]).measurements:
            collective = COLLECTIVES[record["collective"]]
            asked = [message(collective, size, 2, DTYPES[record["dtype"]].itemsize) for size in (8, 64, 512, 4096)]
            assert (record["count"], record["size_bytes"]) in [(m.count, m.size_bytes) for m in asked]
            algbw, busbw = bandwidths_GBps(collective, record["size_bytes"], record["time_us"], 2)
            assert (record["algbw_GBps"], record["busbw_GBps"]) == (algbw, busbw)

    def test_a_group_that_cannot_be_formed_is_a_skip_with_its_reason(self, sweep):
        skips = load_results(sweep[1]).skips
        assert {skip["group"] for skip in skips} == {"inter"} and len(skips) == 4
        assert "one node" in skips[0]["reason"]

    def test_the_table_has_13_tokens_a_row_and_both_footers_a_table(self, sweep):
        lines = sweep[0].stdout.splitlines()
        rows = [line for line in lines if line[:1].isspace()]
        assert rows and all(len(row.split()) == 13 for row in rows)
        tables = sum(line.startswith("#       size") for line in lines)
        assert tables == 3 + 6 + 3 + 6
        assert sum(line.startswith("# Out of bounds values : 0 OK") for line in lines) == tables
        assert sum(line.startswith("# Avg bus bandwidth    : ") for line in lines) == tables
        assert [line for line in lines if not line.startswith("#") and line not in rows] == []

    def test_show_prints_the_very_rows_of_the_live_table(self, sweep, collbench):
        shown = collbench("show", sweep[1], "--nccl-tests").stdout.splitlines()
        live = sweep[0].stdout.splitlines()
        assert [line for line in shown if line[:1] == " "] == [line for line in live if line[:1] == " "]

    def test_a_size_too_small_for_the_ranks_is_a_row_of_zeros_with_a_real_time(self, sweep):
        row = next(line for line in sweep[0].stdout.splitlines() if re.match(r"\s+0\s+0\s+float\s+none", line))
        assert row.split()[5] != "0.00" and row.split()[6:9] == ["0.00", "0.00", "0"]

    def test_the_file_begins_with_the_run_and_ends_with_the_verdict(self, sweep):
        lines = [json.loads(line) for line in sweep[1].read_text().splitlines()]
        assert lines[0]["kind"] == "run" and lines[0]["nodes"][0]["ranks"] == [0, 1]
        assert lines[-1]["kind"] == "end" and lines[-1]["exit_code"] == 0
        assert lines[-1]["measurements"] == len([line for line in lines if line["kind"] == "measurement"])

    def test_regimes_hold_the_statistics_they_have(self, sweep):
        for record in load_results(sweep[1]).measurements:
            repeats = [record[f"time_{name}_us"] for name in ("min", "p50", "p95", "max")]
            if record["timing"] == "pipelined":
                assert repeats == [None] * 4
            else:
                assert record["time_us"] == record["time_p50_us"] and repeats == sorted(repeats)
            assert record["slowest_rank"] in (0, 1)

    def test_the_same_command_again_measures_nothing(self, sweep, collbench):
        before = sweep[1].read_bytes()
        arguments = [*QUICK, "-d", "float32,bf16,char", "--redop", "sum,max", "--group", "world,inter", "-o", sweep[1]]
        again = collbench("run", *arguments)
        assert again.returncode == 0 and sweep[1].read_bytes() == before
        assert "nothing to measure" in again.stderr and again.stdout.count("\n") > 20  # the table of what is there

    def test_another_sweep_in_the_same_file_is_refused_before_ranks_start(self, sweep, collbench):
        other = collbench("run", *QUICK, "-o", sweep[1])
        assert other.returncode == 2 and "--append" in other.stderr and len(other.stderr.splitlines()) == 1

    def test_read_results_is_a_frame_of_them(self, sweep):
        import collbench

        frame = collbench.read_results(sweep[1])
        assert len(frame) == len(load_results(sweep[1]).measurements)
        assert {"collective", "size_bytes", "time_us", "busbw_GBps", "wrong", "backend"} <= set(frame.columns)


def test_json_is_the_only_thing_on_stdout_and_wrong_types_are_skips(collbench, tmp_path):
    arguments = ["--collective", "all_reduce", "-b", "64", "-e", "64", "-n", "2", "-d", "float8_e4m3fn,float32"]
    done = collbench("run", *arguments, "--samples", "--json", "-o", tmp_path / "r.jsonl")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert set(document) == {"runs", "measurements", "skips"}
    assert {record["dtype"] for record in document["measurements"]} == {"float32"}
    [skip] = document["skips"]  # one for all sizes, halves and regimes
    assert skip["dtype"] == "float8_e4m3fn" and "Invalid scalar type" in skip["reason"]
    isolated = [record for record in document["measurements"] if record["timing"] == "isolated"]
    assert all(len(record["samples_us"]) == 2 for record in isolated)


def test_faults_show(collbench, tmp_path):
    """A late rank is in the time and is named; a wrong element and an ignored operator are seen; exit code 1."""
    path = tmp_path / "r.jsonl"
    arguments = ["--collective", "all_reduce,broadcast,reduce_scatter", "-b", "64K", "-e", "64K", "-n", "7"]
    faults = {"COLLBENCH_TEST_FAULTS": "late,corrupt,sum", "PYTHONPATH": os.pathsep.join([str(ROOT), FAULTS])}
    done = collbench("run", *arguments, "-w", "1", "--redop", "avg", "-o", path, **faults)
    assert done.returncode == 1 and "wrong data" in done.stderr, done.stderr
    results = load_results(path)
    of = {name: [r for r in results.measurements if r["collective"] == name] for name in COLLECTIVES}
    isolated = [record for record in of["all_reduce"] if record["timing"] == "isolated"]
    assert all(record["time_us"] > 20_000 and record["slowest_rank"] == 1 for record in isolated)
    assert all(record["wrong"] == 0 for record in of["all_reduce"])
    assert all(record["wrong"] == 1 for record in of["broadcast"])  # one element, on one rank
    assert all(record["wrong"] > 1000 for record in of["reduce_scatter_tensor"])
    assert results.ends[-1]["exit_code"] == 1
    assert "FAILED" in done.stdout


def test_two_nodes_form_every_group_and_root_is_the_rank_inside_the_group(tmp_path):
    """2 nodes of 2 ranks on this machine; broadcast from rank 1 of each group, so from global rank 3 in [2, 3]."""
    path = tmp_path / "r.jsonl"
    arguments = ["--collective", "broadcast,all_reduce", "-r", "1", "-b", "1K", "-e", "1K", "-n", "3", "-o", str(path)]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(_free_port())]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    nodes = [
        subprocess.Popen(
            [*command, "--node-rank", str(node), "-m", "collbench", "run", *arguments],
            env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for node in (0, 1)
    ]  # fmt: skip
    answers = [node.communicate(timeout=120) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], answers
    assert answers[1][0] == ""  # rank 0 alone prints
    results = load_results(path)
    groups = {(r["group"], tuple(r["group_ranks"]), r["nnodes"]) for r in results.measurements}
    assert groups == {
        ("world", (0, 1, 2, 3), 2),
        ("intra", (0, 1), 1), ("intra", (2, 3), 1),
        ("inter", (0, 2), 2), ("inter", (1, 3), 2),
    }  # fmt: skip
    assert all(record["wrong"] == 0 for record in results.measurements)
    assert {r["root"] for r in results.measurements if r["collective"] == "broadcast"} == {1}
    assert [node["ranks"] for node in results.runs[0]["nodes"]] == [[0, 1], [2, 3]]


def _free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_torn_last_line_is_overwritten(tmp_path, collbench):
    path = tmp_path / "r.jsonl"
    arguments = ["run", "--collective", "broadcast", "-b", "64", "-e", "64", "-n", "2", "-o", path]
    assert collbench(*arguments).returncode == 0
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[:3]) + whole[3][:57])
    again = collbench(*arguments)
    assert again.returncode == 0 and "torn" in again.stderr
    assert len({key(record) for record in load_results(path).measurements}) == 4
