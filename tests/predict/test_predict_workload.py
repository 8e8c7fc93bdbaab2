"""Reading a workload: defaults, shapes, and complaints that say where."""

from __future__ import annotations

import pytest

from collbench.errors import InputError
from collbench.predict.workload import Layer, Workload

GOOD = """\
name = "gpt"
param_dtype = "bf16"
optimizer_bytes = 12
forward_ms = 0.5

[[layers]]
name = "embedding"
tensors = [[100, 8]]
wrap = false

[[layers]]
name = "block"
repeat = 2
tensors = [[8, 8], 8]
forward_ms = 1
backward_ms = 2.0
"""


def read(tmp_path, text):
    path = tmp_path / "w.toml"
    path.write_text(text)
    return Workload.from_toml(path)


def test_a_file_is_read_with_its_defaults(tmp_path):
    workload = read(tmp_path, GOOD)
    assert workload.layers[1].tensors == ((8, 8), (8,))
    assert [name for name, _ in workload.expanded] == ["embedding", "block.0", "block.1"]
    assert workload.numel == workload.trainable_numel == 800 + 2 * 72
    types = (workload.storage_dtype, workload.param_dtype, workload.grad_dtype, workload.reduce_dtype)
    assert types == ("bfloat16",) * 4


def test_dtypes_default_along_the_chain():
    layers = [{"tensors": [8]}]
    workload = Workload.from_dict({"layers": layers, "param_dtype": "bfloat16", "grad_dtype": "float32"})
    assert (workload.storage_dtype, workload.reduce_dtype) == ("bfloat16", "float32")
    assert Workload.from_dict({"layers": layers}).reduce_dtype == "float32"


@pytest.mark.parametrize(("storage", "expected"), [("float32", 8), ("bfloat16", 12)])
def test_optimizer_bytes_default_to_adams(storage, expected):
    workload = Workload(storage_dtype=storage, layers=(Layer(tensors=((8,),)),))
    assert workload.optimizer_bytes_per_parameter == expected
    none = Workload(optimizer_bytes=0, layers=(Layer(tensors=((8,),)),))
    assert none.optimizer_bytes_per_parameter == 0


def test_the_name_defaults_to_the_files(tmp_path):
    assert read(tmp_path, "[[layers]]\ntensors = [8]\n").name == "w"


def test_a_layer_may_only_compute(tmp_path):
    assert read(tmp_path, "[[layers]]\nforward_ms = 1.0\n").numel == 0


def test_large_workloads_are_cheap():
    workload = Workload.from_dict({"layers": [{"tensors": [10**9], "repeat": 1000}]})
    assert workload.numel == 10**12 and len(workload.expanded) == 1000


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("", "w.toml:1: layers", "no layers"),
        ("layers = []\n", "w.toml:1: layers", "no layers"),
        ("layers = 3\n", "w.toml:1: layers", "list of layers"),
        ("name = 'x'\nlayer = 3\n", "w.toml:2: layer", "did you mean layers?"),
        ("[[layers]]\ntensors = [8]\nforwards_ms = 1\n", "w.toml:3: forwards_ms", "did you mean forward_ms?"),
        ("[[layers]]\ntensors = [8]\noptimizer_ms = 1\n", "w.toml:3: optimizer_ms", "above the first [[layers]]"),
        ("optimizer_ms = -1\n[[layers]]\ntensors = [8]\n", "w.toml:1: optimizer_ms", "0 or more"),
        ("[[layers]]\ntensors = [8]\n\n[[layers]]\nforward_ms = nan\n", "w.toml:5: forward_ms", "finite"),
        ("[[layers]]\nbackward_ms = inf\n", "w.toml:2: backward_ms", "finite"),
        ("[[layers]]\nforward_ms = '1ms'\n", "w.toml:2: forward_ms", "number"),
        ("[[layers]]\nforward_ms = true\n", "w.toml:2: forward_ms", "number"),
        ("[[layers]]\ntensors = [8]\nrepeat = 0\n", "w.toml:3: repeat", "whole number from 1"),
        ("[[layers]]\ntensors = [8]\nrepeat = 1.5\n", "w.toml:3: repeat", "whole number from 1"),
        ("[[layers]]\ntensors = 8\n", "w.toml:2: tensors", "list of shapes"),
        ("[[layers]]\ntensors = [8, [4, -4]]\n", "w.toml:2: tensors", "[4, -4]"),
        ("[[layers]]\ntensors = [[]]\n", "w.toml:2: tensors", "[]"),
        ("[[layers]]\ntensors = [0]\n", "w.toml:2: tensors", "0"),
        ("[[layers]]\nname = 'x'\ntensors = []\n", "w.toml:3: tensors", "neither tensors nor times"),
        ("[[layers]]\nname = 'x'\n", "w.toml:1: tensors", "neither tensors nor times"),
        ("[[layers]]\ntensors = [8]\nwrap = 1\n", "w.toml:3: wrap", "true or false"),
        ("param_dtype = 'float33'\n[[layers]]\ntensors = [8]\n", "w.toml:1: param_dtype", "did you mean float32?"),
        ("grad_dtype = 4\n[[layers]]\ntensors = [8]\n", "w.toml:1: grad_dtype", "unknown datatype"),
        ("name = \n", "w.toml:1", "not TOML"),
        ("a = 1\na = 2\n", "w.toml:2", "not TOML"),
    ],
)
def test_bad_files_are_refused_in_one_line_that_says_where(tmp_path, text, where, what):
    with pytest.raises(InputError) as error:
        read(tmp_path, text)
    assert where in str(error.value)
    assert what in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"missing\.toml"):
        Workload.from_toml(tmp_path / "missing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"binary\.toml"):
        Workload.from_toml(tmp_path / "binary.toml")


def test_in_python_the_key_and_the_layer_are_named():
    with pytest.raises(InputError, match=r"mine: layers\[1\]: forward_ms = -1"):
        Workload.from_dict({"layers": [{"tensors": [8]}, {"forward_ms": -1}]}, where="mine")
    with pytest.raises(InputError, match="repeat"):
        Layer(tensors=((8,),), repeat=0)
