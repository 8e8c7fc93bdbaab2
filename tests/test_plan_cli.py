"""`collbench plan`, as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from collbench.cli import main
from collbench.cli.plan import parse_nodes
from collbench.errors import InputError
from collbench.model.link import LinkModel
from collbench.predict.plan import plan_step

SMALL = str(Path(__file__).parents[1] / "sweeps" / "workloads" / "small.toml")
LINKS = ["--bandwidth", "1GB/s", "--latency", "20us", "--ranks-per-node", "2"]
LAYOUT = [*LINKS, "--nodes", "1..4"]


def plan(capsys, *arguments):
    code = main(["plan", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_ranks_what_fits(capsys):
    code, out, _ = plan(capsys, SMALL, *LAYOUT, "--memory", "80GB", "--top", "4", "--json")
    document = json.loads(out)
    steps = document["steps"]
    assert (code, document["workload"], document["memory_GB"], document["nearest"]) == (0, "small", 80.0, None)
    assert document["tried"] == document["fitting"] > 20
    assert len(steps) == 3 * 4
    assert [step["rank"] for step in steps] == list(range(1, 13))
    times_ms = [step["step_ms"] for step in steps]
    assert times_ms == sorted(times_ms)
    assert set(steps[0]) >= {
        *("strategy", "nodes", "ranks_per_node", "step_ms", "step_ms_interval", "compute_ms", "comm_ms", "exposed"),
        *("exposed_comm_ms", "exposed_tail_ms", "waits", "tokens_per_s", "mfu", "memory", "changes", "notes"),
        *("extrapolated", "tflops_per_rank"),
    }
    assert [row["nodes"] for row in document["scaling"]] == [1, 2, 4]
    assert document["scaling"][0]["weak"] == document["scaling"][0]["strong"] == 1.0


def test_every_flag_reaches_the_plan(capsys):
    flags = "--bandwidth 80Gb/s --inter-bandwidth 1 --inter-latency 1ms --nodes 2 --ranks-per-node 4 --memory 1GiB "
    flags += "--activations-GB 0.5 --peak-tflops 9 --strategy ddp,hsdp --mesh 4x2,2x4 --bucket-cap-mb default,4 "
    flags += "--reshard-after-forward none,false,2 --layers-per-unit 1,3 --accumulate 2 --recompute --top 5 "
    flags += "--timing isolated"
    code, out, _ = plan(capsys, SMALL, *flags.split(), "--json")
    expected = plan_step(
        SMALL,
        LinkModel(bandwidth_GBps=10, inter_bandwidth_GBps=1, inter_latency_us=1000),
        memory_GB=1.073741824,
        nodes=[2],
        ranks_per_node=4,
        strategies=["ddp", "hsdp"],
        meshes=[(4, 2), (2, 4)],
        bucket_caps_mb=[None, 4.0],
        reshards=[None, False, 2],
        layers_per_unit=[1, 3],
        accumulate=2,
        recompute=True,
        activations_GB=0.5,
        peak_TFLOPS=9.0,
        top=5,
        timing="isolated",
    )
    assert code == 0 and json.loads(out) == expected.to_dict()


def test_the_report_a_person_reads(capsys):
    code, out, err = plan(capsys, SMALL, *LAYOUT, "--memory", "80GB")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("small: ") and lines[0].endswith("fit into 80 GB a rank")
    assert sum(line.lstrip()[:1].isdigit() and " ms " in line for line in lines) >= 3 * 3 + 3  # ranking and scaling
    for words in ("weak", "strong", "waits", "tail", "instead", "layers per unit", "activations", "GB a rank"):
        assert words in out
    assert "1 node, " in out and "4 nodes, " in out
    assert "tokens/s" not in lines[2]  # this workload does not say its tokens
    assert not any(line != line.rstrip() for line in lines)


def test_the_noise_of_sums_ranks_nothing_and_is_not_shown(capsys):
    """Steps that take equally long: fully_shard before the older FSDP, and a difference of 0 ms."""
    flags = ["--bandwidth", "25GB/s", "--ranks-per-node", "8", "--nodes", "1..4", "--memory", "80GB"]
    _, out, _ = plan(capsys, SMALL, *flags, "--strategy", "fsdp,fsdp1")
    first, second = (line.split()[1] for line in out.splitlines()[3:5])
    assert (first, second) == ("fsdp", "fsdp1")
    assert "+0.0000" not in out and "instead: +0 ms" in out


def test_nothing_fits_is_an_answer(capsys):
    code, out, err = plan(capsys, SMALL, *LAYOUT, "--memory", "1MB")
    assert (code, err) == (1, "")
    assert " 0 fit into 0.001 GB a rank" in out
    assert "nothing fits; the nearest needs 0.0" in out
    code, out, _ = plan(capsys, SMALL, *LAYOUT, "--memory", "1MB", "--json")
    document = json.loads(out)
    assert (code, document["fitting"], document["steps"]) == (1, 0, [])
    assert document["nearest"]["nodes"] == 4 and document["nearest"]["total_GB"] > 0.001


def test_a_model_of_one_collective_says_what_to_measure(capsys):
    exchanges = str(Path(__file__).parents[1] / "results" / "shaped" / "levels-2-500-2000.model.json")
    links = str(Path(__file__).parents[1] / "results" / "shaped" / "links-2-hosts-500-mbit-s.model.json")
    code, out, err = plan(capsys, SMALL, "--model", exchanges, "--memory", "80GB")
    assert (code, out) == (2, "") and "collbench run --collective" in err
    code, out, _ = plan(capsys, SMALL, "--model", links, "--memory", "80GB")
    assert code == 0 and "collbench run --collective" in out


def test_what_more_nodes_need_and_no_model_has_is_said(capsys):
    """The model is of one node's links."""
    words = ["--model", "public:h100-8x1-nvswitch", "--memory", "80GB", "--strategy", "fsdp"]
    _, out, _ = plan(capsys, SMALL, *words, "--nodes", "1,2")
    (line,) = [line for line in out.splitlines() if "network is not in the model" in line]
    assert line.startswith("note on 2 nodes: ")
    assert "network" not in plan(capsys, SMALL, *words, "--nodes", "1")[1]


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("8", [8]),
        ("1,2,4", [1, 2, 4]),
        ("1..32", [1, 2, 4, 8, 16, 32]),
        ("3..10,16", [3, 6, 10, 16]),
        ("4..4", [4]),
    ],
)
def test_nodes(text, nodes):
    assert parse_nodes(text) == nodes


@pytest.mark.parametrize("text", ["", "x", "0", "1..", "4..2", "1...4", "-1", "2.5"])
def test_nodes_that_are_not_understood(text):
    with pytest.raises(InputError, match="--nodes"):
        parse_nodes(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([SMALL, *LAYOUT], "--memory"),
        ([SMALL, *LAYOUT, "--memory", "80 furlongs"], "furlongs"),
        ([SMALL, *LAYOUT, "--memory", "80"], "--memory '80' is 80 bytes"),
        ([SMALL, *LINKS, "--nodes", "1-64", "--memory", "80GB"], "such as 8, 1,2,4 or 1..64"),
        ([SMALL, "--memory", "80GB"], "neither --model nor --bandwidth"),
        ([SMALL, "--bandwidth", "1", "--memory", "80GB"], "--ranks-per-node"),
        ([SMALL, *LAYOUT, "--memory", "80GB", "--strategy", "dpp"], "dpp"),
        ([SMALL, *LAYOUT, "--memory", "80GB", "--mesh", "3x3"], "mesh 3x3 has 9 ranks"),
        ([SMALL, *LAYOUT, "--memory", "80GB", "--mesh", "two"], "'two' is not understood"),
        ([SMALL, *LAYOUT, "--memory", "80GB", "--bucket-cap-mb", "big"], "'big' is not understood"),
        ([SMALL, *LAYOUT, "--memory", "80GB", "--reshard-after-forward", "maybe"], "'maybe' is not understood"),
        ([SMALL, *LAYOUT, "--memory", "80GB", "--layers-per-unit", "0"], "--layers-per-unit: '0'"),
        ([SMALL, *LAYOUT, "--memory", "80GB", "--top", "0"], "top = 0"),
        (["missing.toml", *LAYOUT, "--memory", "80GB"], "missing.toml"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_2(capsys, arguments, message):
    code, out, err = plan(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_planning_imports_neither_torch_nor_scipy_nor_pandas():
    program = (
        "import sys; from collbench.cli import main; code = main(sys.argv[1:]);"
        "print([m for m in ('torch', 'scipy', 'pandas', 'matplotlib') if m in sys.modules], file=sys.stderr)"
    )
    arguments = [sys.executable, "-c", program, "plan", SMALL, *LAYOUT, "--memory", "80GB", "--json"]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    json.loads(result.stdout)
    assert result.stderr.strip() == "[]"
