"""`collbench predict`, as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.cli import main
from collbench.model.link import LinkModel
from collbench.predict.captured import Captured
from collbench.predict.step import predict_step
from collbench.predict.workload import Layer, Workload

SMALL = str(Path(__file__).parents[2] / "sweeps" / "workloads" / "small.toml")
LINKS = ["--bandwidth", "1GB/s", "--latency", "20us", "--nodes", "2", "--ranks-per-node", "2"]


def predict(capsys, *arguments):
    code = main(["predict", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_is_the_contracts_object(capsys):
    code, out, _ = predict(capsys, SMALL, "--strategy", "ddp", *LINKS, "--json")
    document = json.loads(out)
    assert code == 0
    assert set(document) >= {
        *("workload", "strategy", "nodes", "ranks_per_node", "step_ms", "step_ms_interval", "compute_ms", "comm_ms"),
        *("exposed_comm_ms", "exposed_tail_ms", "collectives", "memory", "timeline"),
    }
    assert set(document["collectives"][0]) >= {"collective", "group", "size_bytes", "count", "time_ms"}
    assert set(document["memory"]) >= {
        *("parameters_GB", "gradients_GB", "optimizer_GB", "persistent_GB", "gathered_peak_GB"),
    }
    assert {bar["stream"] for bar in document["timeline"]} == {"compute", "comm"}
    assert (document["workload"], document["nodes"], document["ranks_per_node"]) == ("small", 2, 2)
    assert document["step_ms_interval"] is None
    # 8 layers of (512 x 1024 + 512) fp32: 4 ranks send 2 * 3/4 of it at 1 GB/s, and wait 2 * 6 * 20 us
    payload_ms = 8 * (512 * 1024 + 512) * 4 * 1.5 / 1e6
    assert document["comm_ms"] == pytest.approx(payload_ms + 2 * 6 * 0.02)


def test_a_peak_above_the_memory_is_warned_of_and_said_in_the_document(capsys):
    arguments = [SMALL, "--strategy", "ddp", *LINKS]
    _, out, err = predict(capsys, *arguments, "--json")
    plain = json.loads(out)
    peak_GB = plain["memory"]["peak_GB"]
    assert err == "" and not {"limit_GB", "peak_exceeds_limit"} & set(plain["memory"])
    for limit_GB, above in ((peak_GB * 0.99, True), (peak_GB * 1.01, False)):
        limit = f"{round(limit_GB * 1e9)}B"
        code, out, err = predict(capsys, *arguments, "--memory", limit, "--json")
        document = json.loads(out)
        said = document["memory"].pop("limit_GB"), document["memory"].pop("peak_exceeds_limit")
        assert code == 0
        assert said == (pytest.approx(limit_GB), above)
        assert document == plain
        assert (f"peak of {peak_GB:.5f} GB a rank is above --memory {limit}" in err) is above
        assert err.count("\n") == above
        code, out, err = predict(capsys, *arguments, "--memory", limit)
        assert code == 0 and ("collbench: warning: memory: " in err) is above
    code, _, err = predict(capsys, *arguments, "--memory", "80")
    assert code == 2 and "--memory '80' is 80 bytes: expected a rank's memory, such as 80GB" in err


def test_every_flag_reaches_the_prediction(capsys):
    flags = "--bandwidth 80Gb/s --inter-bandwidth 1 --inter-latency 1ms --nnodes 2 --ranks-per-node 4 --mesh 4x2"
    flags += " --accumulate 2 --micro-batches 5 --reshard-after-forward 2 --no-prefetch --no-overlap --timing isolated"
    code, out, _ = predict(capsys, SMALL, "--strategy", "hsdp", *flags.split(), "--json")
    expected = predict_step(
        Workload.from_toml(SMALL),
        LinkModel(bandwidth_GBps=10, inter_bandwidth_GBps=1, inter_latency_us=1000),
        "hsdp",
        nodes=2,
        ranks_per_node=4,
        mesh=(4, 2),
        accumulate=2,
        micro_batches=5,
        reshard_after_forward=2,
        prefetch=False,
        overlap=False,
        timing="isolated",
    )
    assert code == 0 and json.loads(out) == expected.to_dict()
    flags = "--nodes 2 --ranks-per-node 2 --bandwidth 1 --accumulate 3 --no-grad-sync --recompute"
    code, out, _ = predict(capsys, SMALL, "--strategy", "fsdp", *flags.split(), "--json")
    layout = {"nodes": 2, "ranks_per_node": 2, "accumulate": 3, "grad_sync": False, "recompute": True}
    assert json.loads(out) == predict_step(SMALL, LinkModel(bandwidth_GBps=1), "fsdp", **layout).to_dict()
    flags = "--nodes 2 --ranks-per-node 2 --bandwidth 1 --backward-prefetch none --forward-prefetch"
    code, out, _ = predict(capsys, SMALL, "--strategy", "fsdp1", *flags.split(), "--no-limit-all-gathers", "--json")
    layout = {"nodes": 2, "ranks_per_node": 2, "backward_prefetch": "none", "forward_prefetch": True}
    expected = predict_step(SMALL, LinkModel(bandwidth_GBps=1), "fsdp1", limit_all_gathers=False, **layout)
    assert json.loads(out) == expected.to_dict()
    flags = "--nodes 2 --ranks-per-node 2 --bandwidth 1 --prefetch-ahead 3"
    code, out, _ = predict(capsys, SMALL, "--strategy", "fsdp", *flags.split(), "--json")
    layout = {"nodes": 2, "ranks_per_node": 2, "prefetch_ahead": 3}
    assert json.loads(out) == predict_step(SMALL, LinkModel(bandwidth_GBps=1), "fsdp", **layout).to_dict()
    code, out, _ = predict(capsys, SMALL, *LINKS, "--bucket-cap-mb", "4,8", "--comm-hook", "fp16", "--json")
    compressed = json.loads(out)["collectives"]  # 2, 4 and 2 layers
    assert [(entry["count"], entry["dtype"]) for entry in compressed] == [(2, "float16"), (1, "float16")]
    code, out, _ = predict(capsys, SMALL, *LINKS, "--find-unused-parameters", "--static-graph", "--json")
    assert json.loads(out)["collectives"] == json.loads(predict(capsys, SMALL, *LINKS, "--json")[1])["collectives"]
    code, out, _ = predict(capsys, SMALL, *LINKS, "--bucket-cap-mb", "4", "--first-bucket-mb", "2", "--json")
    assert [entry["count"] for entry in json.loads(out)["collectives"]] == [2, 3]  # 1, 2, 2, 2 and 1 layers


def test_the_report_a_person_reads(capsys):
    code, out, err = predict(capsys, SMALL, *LINKS, "--micro-batches", "10", "--accumulate", "4")
    assert (code, err) == (0, "")
    assert out.startswith("small: ddp on 2 x 2 ranks")
    for words in (
        "exposed tail",
        "all_reduce",
        "memory per rank",
        "GB (10^9 bytes)",
        "GiB (2^30 bytes)",
        "10 micro-batches, 3 gradient syncs",
    ):
        assert words in out
    assert not any(line != line.rstrip() for line in out.splitlines())


def test_the_report_says_where_times_and_order_come_from(capsys, tmp_path):
    plain = Workload.from_dict({"layers": [{"tensors": [8], "forward_ms": 1}]})
    path = tmp_path / "w.toml"

    def said(workload, *flags):
        workload.save(path)
        code, out, _ = predict(capsys, str(path), *LINKS, *flags)
        assert code == 0
        lines = dict(line.split(": ", 1) for line in out.splitlines() if line.startswith(("times of", "order of")))
        return lines["times of the layers"], lines["order of the collectives"]

    assert said(plain) == ("as the workload has them, which does not say where from", "planned, by the rules of torch")
    table = {"strategy": "fsdp", "nranks": 4, "source": "recorded", "plan": "as issued", "calls": []}
    whole = replace(plain, times="measured on an A100", captured=Captured.from_dict(table))
    assert said(whole, "--strategy", "fsdp") == ("measured on an A100", "captured: recorded")
    for flags in (["--strategy", "ddp"], ["--strategy", "fsdp1"], ["--strategy", "fsdp", "--prefetch-ahead", "2"]):
        assert said(whole, *flags)[1].startswith("planned")
    assert said(replace(plain, layers=(Layer(tensors=((8,),)),)))[0] == "none"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([SMALL], "neither --model nor --bandwidth"),
        ([SMALL, "--model", "m.json", "--bandwidth", "1"], "--model and --bandwidth exclude"),
        ([SMALL, "--model", "m.json", "--latency", "1us"], "--model and --latency exclude"),
        ([SMALL, "--model", "missing.json"], "missing.json"),
        ([SMALL, "--bandwidth", "1"], "--ranks-per-node"),
        ([SMALL, "--bandwidth", "0", "--ranks-per-node", "2"], "above zero"),
        ([SMALL, "--bandwidth", "1 furlong", "--ranks-per-node", "2"], "furlong"),
        ([SMALL, *LINKS, "--strategy", "fsdp", "--bucket-cap-mb", "25"], "bucket_cap_mb = 25.0 does not belong"),
        ([SMALL, *LINKS, "--bucket-cap-mb", "nan"], "bucket_cap_mb = nan"),
        ([SMALL, *LINKS, "--strategy", "fsdp", "--reshard-after-forward", "maybe"], "'maybe' is not understood"),
        ([SMALL, *LINKS, "--timing", "fast"], "fast"),
        (["missing.toml", *LINKS], "missing.toml"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_2(capsys, arguments, message):
    code, out, err = predict(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_predicting_imports_neither_torch_nor_scipy_nor_pandas():
    program = (
        "import sys; from collbench.cli import main; code = main(sys.argv[1:]);"
        "print([m for m in ('torch', 'scipy', 'pandas', 'matplotlib') if m in sys.modules], file=sys.stderr)"
    )
    arguments = [sys.executable, "-c", program, "predict", SMALL, *LINKS, "--json"]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    json.loads(result.stdout)
    assert result.stderr.strip() == "[]"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_a_thousand_layers_on_16384_ranks_take_no_time(strategy):
    workload = Workload.from_dict(
        {"layers": [{"tensors": [[8192, 8192], 8192], "repeat": 1000, "forward_ms": 1, "backward_ms": 2}]}
    )
    started = time.process_time()
    predict_step(workload, LinkModel(bandwidth_GBps=50), strategy, nodes=2048, ranks_per_node=8)
    assert time.process_time() - started < 2  # takes 0.05 s; generous for a busy machine
