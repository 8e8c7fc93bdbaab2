"""nccl-tests' JSON report (-J) made from records."""

from __future__ import annotations

import io
import json
import math
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from nccl_samples import COLLECTIVES, half, halves, style
from sample_records import run_record

from collbench.errors import InputError
from collbench.nccl_json import check_json_path, write_json

AR, AG = "all_reduce", "all_gather_into_tensor"

RUN = run_record(
    environment={"NCCL_DEBUG": "WARN", "CUDA_VISIBLE_DEVICES": "0,1"},
    versions={"torch": "2.13.0", "nccl": "2.27.3"},
    sweep={
        "minbytes": 8,
        "maxbytes": 1048576,
        "stepfactor": 2,
        "warmup_iters": 5,
        "iters": 20,
        "check": 1,
        "agg_iters": 4,
    },
)
END = {"kind": "end", "run_id": "r1", "finished": "2026-01-02T03:05:06+00:00", "exit_code": 0, "reason": None}
PER_ITER = {"skipped_iterations": 1, "min_us": 12.0, "max_us": 140.25, "avg_us": 20.0, "p50_us": 15.0, "p95_us": 99.0,
            "p99_us": 139.5, "stdev_us": 5.0, "cv_pct": 25.125, "times_us": [12.0, 15.0, 140.25]}  # fmt: skip


def records(*pairs):
    return [record for pair in pairs for side in pair for record in side]


def written(path, *pairs, run=RUN, ends=(END,), like=None, argv=("collbench", "run")):
    made = write_json(path, [run], records(*pairs), ends, *(() if like is None else (like,)), argv=argv)
    return json.loads(made.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


PAIR = halves(AR, 1048576, 262144, "float32", 35.46, 34.90)


def test_the_report_has_nccl_tests_keys_in_their_order(tmp_path):
    document = written(tmp_path / "out.json", PAIR)
    assert list(document) == ["version", "start_time", "args", "env", "nccl_version", "config", "results",
                              "out_of_bounds", "average_bus_bandwidth", "errors", "end_time"]  # fmt: skip
    assert list(document["config"]) == [
        "nthreads", "ngpus", "minimum_bytes", "maximum_bytes", "step_factor", "warmup_iters", "iterations",
        "aggregated_iterations", "validation", "graph", "blocking_collectives", "per_iter_timing", "per_iter_skip",
        "parallel_init", "devices",
    ]  # fmt: skip
    assert list(document["config"]["devices"][0]) == [
        "rank", "group", "pid", "hostname", "device", "device_hex", "device_info",
    ]  # fmt: skip
    [result] = document["results"]
    assert list(result) == ["size", "count", "type", "redop", "root", "out_of_place", "in_place", "actual_iterations",
                            "experiment_name"]  # fmt: skip
    assert list(result["in_place"]) == ["time", "alg_bw", "bus_bw", "nwrong"]


def test_the_values_are_those_of_the_table(tmp_path):
    document = written(tmp_path / "out.json", PAIR)
    assert document["version"] == 3
    for name in ("start_time", "end_time"):
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", document[name])
    assert document["args"] == ["collbench", "run"]
    assert document["nccl_version"] == 22703
    config = document["config"]
    assert (config["minimum_bytes"], config["maximum_bytes"], config["step_factor"]) == (8, 1048576, 2)
    assert (config["aggregated_iterations"], config["graph"], config["per_iter_skip"]) == (4, 0, 0)
    assert (config["blocking_collectives"], config["parallel_init"], config["per_iter_timing"]) == 3 * ("false",)
    assert config["devices"][1] == {"rank": 1, "group": 0, "pid": 102, "hostname": "n0", "device": 1,
                                    "device_hex": "0000:00:00", "device_info": "cpu"}  # fmt: skip
    [result] = document["results"]
    [[left], [right]] = PAIR
    assert result == {
        "size": 1048576, "count": 262144, "type": "float", "redop": "sum", "root": "    -1",
        "out_of_place": {"time": 35.46, "alg_bw": left["algbw_GBps"], "bus_bw": left["busbw_GBps"], "nwrong": 0},
        "in_place": {"time": 34.9, "alg_bw": right["algbw_GBps"], "bus_bw": right["busbw_GBps"], "nwrong": 0},
        "actual_iterations": 20, "experiment_name": "all_reduce/world/pipelined",
    }  # fmt: skip
    assert isinstance(result["in_place"]["nwrong"], float)
    assert document["out_of_bounds"] == {"count": 0, "okay": "true"}
    mean = (PAIR[0][0]["busbw_GBps"] + PAIR[1][0]["busbw_GBps"]) / 2
    assert document["average_bus_bandwidth"] == {"bandwidth": pytest.approx(mean), "okay": "unchecked"}
    assert document["errors"] == []


def test_the_environment_is_the_records_allow_listed_one(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "a-secret")
    document = written(tmp_path / "out.json", PAIR)
    assert document["env"] == ["NCCL_DEBUG=WARN", "CUDA_VISIBLE_DEVICES=0,1"]
    assert "a-secret" not in (tmp_path / "out.json").read_text()


def test_all_tables_of_a_run_are_in_one_report_and_named(tmp_path):
    pairs = [
        PAIR,
        halves(AR, 1048576, 262144, "float32", 40.0, 40.0, timing="isolated"),
        halves(AG, 64, 2, "float16", 9.0, 9.0, group="inter"),
        halves(AR, 8, 2, "float32", 9.0, 9.0, concurrent=False, mode="hot"),
        tuple([{**side[0], "pass": 2 + side[0]["pass"]}] for side in PAIR),
    ]
    document = written(tmp_path / "out.json", *pairs)
    assert {result["experiment_name"] for result in document["results"]} == {
        "all_reduce/world/pipelined", "all_reduce/world/isolated", "all_gather_into_tensor/inter/pipelined",
        "all_reduce/world/pipelined/one-at-a-time/hot", "all_reduce/world/pipelined/pass-2",
    }  # fmt: skip
    pipelined = [side[0]["busbw_GBps"] for pair in pairs if pair[0][0]["timing"] == "pipelined" for side in pair]
    assert document["average_bus_bandwidth"]["bandwidth"] == pytest.approx(sum(pipelined) / len(pipelined))


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_has_its_operator_and_root(tmp_path, collective):
    [result] = written(tmp_path / "out.json", halves(collective, 64, 2, "bfloat16", 9.0, 9.0))["results"]
    rooted = collective in ("broadcast", "reduce", "gather", "scatter")
    assert (result["type"], result["root"]) == ("bfloat16", "     0" if rooted else "    -1")
    sums = ("all_reduce", "reduce_scatter_tensor", "reduce", "send_recv")
    assert result["redop"] == ("sum" if collective in sums else "" if collective == "hypercube" else "none")


def test_failed_checks_and_what_ended_the_run_are_told(tmp_path):
    wrong = halves(AR, 8, 2, "float32", 9.0, 9.0, wrong=7)
    unchecked = halves(AR, 16, 4, "float32", 9.0, 9.0, wrong=None)
    end = {**END, "exit_code": 3, "reason": "rank 1 (host n0) was killed by SIGKILL"}
    document = written(tmp_path / "out.json", wrong, unchecked, ends=[end])
    assert document["out_of_bounds"] == {"count": 2, "okay": "false"}
    assert [result["in_place"]["nwrong"] for result in document["results"]] == [7, None]
    assert document["errors"] == ["rank 1 (host n0) was killed by SIGKILL"]


def test_a_run_that_was_killed_has_no_end_time(tmp_path):
    assert written(tmp_path / "out.json", PAIR, ends=[])["end_time"] is None


def test_what_the_style_shows_is_in_the_report(tmp_path):
    pair = halves(
        AR, 1048576, 262144, "float32", 35.46, 34.90, cpu_time_us=3.5, per_iter=PER_ITER, time_rank_max_us=70.92
    )
    [result] = written(tmp_path / "a.json", pair, like=style(cpu_time=True))["results"]
    assert (
        list(result["in_place"]) == ["cpu_time", "alg_bw", "bus_bw", "nwrong"] and result["in_place"]["cpu_time"] == 3.5
    )
    [result] = written(tmp_path / "b.json", pair, like=style(average=3))["results"]
    assert result["out_of_place"]["time"] == 70.92
    assert result["out_of_place"]["alg_bw"] == pytest.approx(PAIR[0][0]["algbw_GBps"] / 2)
    document = written(tmp_path / "c.json", pair, like=style(per_iter=True))
    [result] = document["results"]
    assert list(result)[5:9] == ["out_of_place", "out_of_place_per_iter", "in_place", "in_place_per_iter"]
    assert result["in_place_per_iter"] == PER_ITER and list(result["in_place_per_iter"]) == list(PER_ITER)
    assert document["config"]["per_iter_timing"] == "true"


def test_an_additive_step_and_a_gloo_run(tmp_path):
    run = run_record(sweep={"minbytes": 8, "maxbytes": 64, "stepfactor": 1, "stepbytes": 8, "blocking": 3}, versions={})
    document = written(tmp_path / "out.json", PAIR, run=run)
    assert document["config"]["step_bytes"] == 8 and "step_factor" not in document["config"]
    assert document["config"]["blocking_collectives"] == "true" and document["nccl_version"] is None


def test_a_result_for_every_size_that_was_asked_for(tmp_path):
    document = written(tmp_path / "out.json", halves(AG, 0, 0, "float32", 9.0, 9.0, requests=3))
    assert [result["size"] for result in document["results"]] == [0, 0, 0]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_it_is_valid_json_whatever_a_record_holds(tmp_path, value):
    document = written(
        tmp_path / "out.json", halves(AR, 8, 2, "float32", 9.0, 9.0, algbw_GBps=value, cpu_time_us=value)
    )
    assert document["results"][0]["in_place"]["alg_bw"] is None


def test_a_record_of_another_tool_that_knows_little_is_left_out(tmp_path):
    bare = half(AR, 8, 2, "complex64", 9.0, False)
    path = write_json(tmp_path / "out.json", [{"kind": "run", "run_id": "r1"}], [bare])
    document = json.loads(path.read_text())
    assert document["results"] == [] and document["config"]["minimum_bytes"] is None


# --- the file --------------------------------------------------------------------------------------------------------


def test_nothing_is_overwritten(tmp_path):
    paths = [write_json(tmp_path / "out.json", [RUN], records(PAIR)) for _ in range(3)]
    assert [path.name for path in paths] == ["out.json", "out.json.0", "out.json.1"]
    assert len({path.read_text() for path in paths}) == 1 and sorted(tmp_path.iterdir()) == paths


@pytest.mark.parametrize("name", ["out.txt", "out", "out.json.gz", ".json", "json"])
def test_a_name_that_is_not_json_is_refused_before_anything_is_measured(tmp_path, name):
    for refuse in (check_json_path, lambda path: write_json(path, [RUN], [])):
        with pytest.raises(InputError, match=r"--output-file .*: expected a name that ends with \.json"):
            refuse(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no folder"):
        check_json_path(tmp_path / "none" / "out.json")


def test_every_rank_of_a_job_may_check_the_name_at_once(tmp_path):
    with ThreadPoolExecutor(8) as ranks:
        checked = list(ranks.map(check_json_path, [tmp_path / "out.json"] * 400))
    assert set(checked) == {tmp_path / "out.json"} and list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_in_one_line_and_leaves_no_half_report(tmp_path, monkeypatch):
    class Full(io.StringIO):
        name = str(tmp_path / "out.json")

        def write(self, text):
            raise OSError(28, "No space left on device")

    (tmp_path / "out.json").touch()
    monkeypatch.setattr("collbench.nccl_json._new_file", lambda path: Full())
    with pytest.raises(InputError, match=r"out\.json: cannot write \(No space left on device\)"):
        write_json(tmp_path / "out.json", [RUN], records(PAIR))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_may_not_be_written_is_said_in_one_line(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(InputError, match=r"out\.json: cannot be written \(Permission denied\)"):
        write_json(tmp_path / "out.json", [RUN], records(PAIR))
