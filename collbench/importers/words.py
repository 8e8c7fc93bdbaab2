"""The names other tools have for collectives, element types and operators, in this program's words."""

from __future__ import annotations

from functools import lru_cache

from collbench.collectives import COLLECTIVES, REDOPS
from collbench.dtypes import DTYPES

# Beside this program's own names: MPI's, NCCL's functions, and what torch calls them inside (`_allgather_base`).
_OTHER_NAMES = {
    "bcast": "broadcast",
    "broadcastoop": "broadcast",
    "allreducecoalesced": "all_reduce",
    "allgatherbase": "all_gather_into_tensor",
    "allgathercoalesced": "all_gather_into_tensor",
    "allgatherintotensorcoalesced": "all_gather_into_tensor",
    "reducescatterbase": "reduce_scatter_tensor",
    "reducescattertensorcoalesced": "reduce_scatter_tensor",
    "alltoallv": "all_to_all_single",
    "alltoallbase": "all_to_all_single",
    "alltoallvsingle": "all_to_all_single",
    "reduceoop": "reduce",
}


def _bare(text: str) -> str:
    return "".join(letter for letter in text.lower() if letter.isalnum())


_COLLECTIVES = {
    _bare(name): collective.name
    for collective in COLLECTIVES.values()
    for name in (collective.name, *collective.aliases)
} | _OTHER_NAMES
_DTYPES = {
    _bare(name): dtype.name for dtype in DTYPES.values() for name in (dtype.name, dtype.nccl_name, *dtype.aliases)
} | {"long": "int64", "byte": "uint8", "float8e4m3fn": "float8_e4m3fn"}

_LONGEST_WORD = 64


def _operation(text: object) -> str:
    """`ncclAllReduce`, `./build/all_reduce_perf_mpi` -> `allreduce`."""
    word = str(text).rpartition("/")[2]
    if len(word) > _LONGEST_WORD:
        return ""
    for ending in ("_mpi", "_perf"):
        word = word.removesuffix(ending)
    return _bare(word.removeprefix("nccl").removeprefix("rccl"))


def collective_named(text: object) -> str | None:
    """`AllReduce`, `ncclAllReduce`, `./build/all_reduce_perf_mpi`, `_allgather_base` -> this program's name."""
    return _COLLECTIVES.get(_operation(text))


def is_uneven(text: object) -> bool:
    """Whether this name says that ranks send each other different amounts."""
    return _operation(text) in ("alltoallv", "alltoallvsingle")


def dtype_named(text: object) -> str | None:
    """`float`, `Float`, `BFloat16`, `fp8_e4m3` -> torch's name; None for an unknown one."""
    word = str(text)
    return _dtype_of(word) if len(word) <= _LONGEST_WORD else None


@lru_cache(maxsize=2**10)
def _dtype_of(word: str) -> str | None:
    return _DTYPES.get(_bare(word.removeprefix("torch.")))


def redop_named(text: object) -> str | None:
    """The operator; None for `none`, an empty one, and one nccl-tests does not have."""
    return word if (word := str(text).strip().lower()) in REDOPS else None
