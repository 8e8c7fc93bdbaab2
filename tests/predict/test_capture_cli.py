"""`collbench capture`, as a user types it."""

from __future__ import annotations

import json

import pytest

from collbench.cli import main
from collbench.predict.workload import Workload

TRAIN = """
import torch
from torch import nn

print("the user's own words")

def build():
    print("more of them")
    return nn.Sequential(nn.Embedding(100, 16), nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)), nn.Linear(16, 4))
"""


@pytest.fixture
def train(tmp_path, monkeypatch):
    (tmp_path / "users_training.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def capture(capsys, *arguments):
    code = main(["capture", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_module_becomes_a_workload_that_predict_takes(train, capsys):
    words = ["users_training:build", "--input", "4x8:int64", "--strategy", "fsdp", "--nranks", "4"]
    times = ["--mfu", "40%", "--peak-tflops", "1", "--param-dtype", "bf16", "-o", "w.toml"]
    code, out, _ = capture(capsys, *words, *times)
    assert code == 0
    for text in (
        *("build: 2,212 parameters", "4 layers, 2 of them FSDP units", "times: from FLOPs: 40 % of 1 TFLOP/s"),
        *("collectives of one fsdp step on 4 ranks", "all_gather_into_tensor", "planned by predict: as issued"),
    ):
        assert text in out
    workload = Workload.from_toml("w.toml")
    assert (workload.tokens_per_micro_batch, workload.param_dtype) == (32, "bfloat16")
    links = ["--bandwidth", "1", "--latency", "1us", "--nodes", "1", "--ranks-per-node", "4"]
    assert main(["predict", "w.toml", "--strategy", "fsdp", *links]) == 0
    assert "build: fsdp on 1 x 4 ranks" in capsys.readouterr().out


def test_json_is_one_document_whatever_the_user_prints(train, capsys):
    code, out, err = capture(capsys, "users_training.py:build", "--input", "4x8:int64", "--json")
    document = json.loads(out)
    assert code == 0 and "more of them" in err
    assert (document["parameters"], document["strategy"], document["times"]) == (2212, "ddp", None)
    assert document["collectives"] == [
        {"collective": "all_reduce", "nranks": 8, "dtype": "float32", "size_bytes": 4 * 2212, "count": 1}
    ]
    assert Workload.from_toml("workload.toml").name == "build"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["users_training:build"], "--input 8x2048:int64"),
        (["users_training:biuld"], "did you mean build?"),
        (["users_training"], "expected MODULE:FUNCTION"),
        (["users_training:build", "--input", "4x8:int64", "--wrap", "Liner"], "did you mean Linear?"),
        (["users_training:build", "--input", "4xe"], "--input '4xe'"),
        (["users_training:build", "--input", "4x8"], "forward fails"),
        (["users_training:build", "--strategy", "zero3"], "one of ddp, fsdp, hsdp"),
        (["users_training:build", "--mfu", "40%"], "need both"),
        (["users_training:build", "--reshard-after-forward", "perhaps"], "is not understood"),
        (["users_training:build", "--input", "4x8:int64", "--trace", "none.json"], "none.json: cannot be read"),
        (["users_training:build", "--input", "4x8:int64", "-o", "none/w.toml"], "none/w.toml: cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(train, capsys, arguments, message):
    code, out, err = capture(capsys, *arguments)
    complaints = [line for line in err.splitlines() if line.startswith("collbench: ")]
    assert (code, out, len(complaints)) == (2, "", 1)
    assert message in complaints[0]
