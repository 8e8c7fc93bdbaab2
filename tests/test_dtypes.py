from __future__ import annotations

import pytest

from collbench.dtypes import DTYPES, find_dtype
from collbench.errors import InputError


@pytest.mark.parametrize(
    ("either_name", "torch_name", "nccl_name", "itemsize"),
    [
        ("float", "float32", "float", 4),
        ("float32", "float32", "float", 4),
        ("double", "float64", "double", 8),
        ("half", "float16", "half", 2),
        ("float16", "float16", "half", 2),
        ("bfloat16", "bfloat16", "bfloat16", 2),
        ("f8e4m3", "float8_e4m3fn", "f8e4m3", 1),
        ("float8_e5m2", "float8_e5m2", "f8e5m2", 1),
        ("int8", "int8", "int8", 1),
        ("uint8", "uint8", "uint8", 1),
        ("int32", "int32", "int32", 4),
        ("uint32", "uint32", "uint32", 4),
        ("int64", "int64", "int64", 8),
        ("uint64", "uint64", "uint64", 8),
        ("torch.bfloat16", "bfloat16", "bfloat16", 2),
    ],
)
def test_a_type_is_found_under_both_tools_names(either_name, torch_name, nccl_name, itemsize):
    dtype = find_dtype(either_name)
    assert (dtype.name, dtype.nccl_name, dtype.itemsize) == (torch_name, nccl_name, itemsize)


@pytest.mark.parametrize("name", list(DTYPES))
def test_torch_has_the_type_with_that_size(name):
    torch = pytest.importorskip("torch")
    assert getattr(torch, name).itemsize == DTYPES[name].itemsize
    assert getattr(torch, name).is_floating_point == DTYPES[name].is_float


@pytest.mark.parametrize("name", list(DTYPES))
def test_exact_integers_are_exact_and_the_next_is_not(name):
    torch = pytest.importorskip("torch")
    limit, kind = DTYPES[name].exact_integers, getattr(torch, name)
    for integer in {0, 1, limit // 2, limit // 2 + 1, limit - 1, limit}:
        assert int(torch.tensor(integer, dtype=kind).item()) == integer
    if not DTYPES[name].is_float:
        assert limit == torch.iinfo(kind).max
    elif limit < 2**53:
        assert int(torch.tensor(limit + 1).to(kind).to(torch.int64)) != limit + 1


@pytest.mark.parametrize(("text", "near"), [("flaot32", "float32"), ("bfloat6", "bfloat16"), ("dubble", "double")])
def test_an_unknown_type_is_refused_with_the_nearest(text, near):
    with pytest.raises(
        InputError, match=rf"unknown datatype '{text}' \(did you mean {near}\?\): one of .*float32.*half"
    ):
        find_dtype(text)


@pytest.mark.parametrize("text", ["", "FLOAT", None, 4, "complex64"])
def test_what_is_no_type_is_refused(text):
    with pytest.raises(InputError, match="unknown datatype"):
        find_dtype(text)


def test_the_twelve_types_are_those_of_nccl_tests():
    assert {dtype.nccl_name for dtype in DTYPES.values()} == {
        *("int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16"),
        *("f8e4m3", "f8e5m2"),
    }
    assert len(DTYPES) == 12
