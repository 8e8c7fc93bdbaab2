"""Element types: torch's name, nccl-tests' name, bytes, and how large an integer each holds exactly."""

from __future__ import annotations

from dataclasses import dataclass

from collbench.errors import one_of


@dataclass(frozen=True, slots=True)
class Dtype:
    """One element type. `exact_integers`: every integer from 0 to this one has an exact value in the type."""

    name: str
    nccl_name: str
    itemsize: int
    exact_integers: int
    aliases: tuple[str, ...] = ()
    is_float: bool = True


_ALL = (
    Dtype("float32", "float", 4, 2**24, ("fp32",)),
    Dtype("float64", "double", 8, 2**53, ("fp64",)),
    Dtype("float16", "half", 2, 2**11, ("fp16",)),
    Dtype("bfloat16", "bfloat16", 2, 2**8, ("bf16",)),
    Dtype("float8_e4m3fn", "f8e4m3", 1, 2**4, ("fp8_e4m3",)),
    Dtype("float8_e5m2", "f8e5m2", 1, 2**3, ("fp8_e5m2",)),
    Dtype("int8", "int8", 1, 2**7 - 1, ("char",), is_float=False),
    Dtype("uint8", "uint8", 1, 2**8 - 1, (), is_float=False),
    Dtype("int32", "int32", 4, 2**31 - 1, ("int",), is_float=False),
    Dtype("uint32", "uint32", 4, 2**32 - 1, (), is_float=False),
    Dtype("int64", "int64", 8, 2**63 - 1, (), is_float=False),
    Dtype("uint64", "uint64", 8, 2**64 - 1, (), is_float=False),
)
DTYPES = {dtype.name: dtype for dtype in _ALL}
_BY_ANY_NAME = {name: dtype for dtype in _ALL for name in (dtype.name, dtype.nccl_name, *dtype.aliases)}


def find_dtype(text: object) -> Dtype:
    """The type called `text` by torch (`float32`) or by nccl-tests (`float`); InputError for an unknown one."""
    name = str(text).removeprefix("torch.")
    if name not in _BY_ANY_NAME:
        raise one_of("datatype", text, [*DTYPES, "float", "half", "double"])
    return _BY_ANY_NAME[name]
