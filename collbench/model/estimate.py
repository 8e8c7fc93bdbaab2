"""The answer to "how long does this collective take, and how sure are you?", and the checks of the question."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from collbench.errors import InputError, one_of
from collbench.topology import GROUP_KINDS

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

OPEN_KINDS = ("pairs", "mesh:")  # kinds of group whose names go on


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One collective's time. Every field but `source`, `notes` and `backend` has the shape of the sizes asked about.

    low_us, high_us: a 90 % prediction interval; None for link figures, which carry no measurement.
    source: "fit" (measured at this rank count), "prior" (at none of these sizes, a prior's figures), "scaling" (from
    another rank count) or "link" (closed form).
    extrapolated: the size or the rank count lies outside what was measured.
    notes: what a reader should know, one line each.
    latency_us: the part of the time that loads no link, as a fit's α says (0 where nobody asks: link figures).
    backend: torch's name of what was measured.
    regime: which of the fit's segments, whose errors go together; None where nobody knows.
    """

    time_us: float | Floats
    low_us: float | Floats | None
    high_us: float | Floats | None
    source: str
    extrapolated: bool | Flags = False
    notes: tuple[str, ...] = ()
    latency_us: float | Floats = 0.0
    backend: str | None = None
    regime: int | NDArray[np.int64] | None = None


def check_sizes(size_bytes: ArrayLike) -> Floats:
    """The sizes as an array of float64 (0-d for one number); InputError for a negative or non-finite one."""
    try:
        sizes = np.asarray(size_bytes, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"size {size_bytes!r} is not a number of bytes") from None
    if not np.all(np.isfinite(sizes) & (sizes >= 0)):
        raise InputError("size must be a finite number of bytes, not below zero")
    return sizes


def check_counts(group: str, nranks: int, nnodes: int | None) -> tuple[int, int | None]:
    """(nranks, nnodes) of a group, with nnodes filled in where the kind of group fixes it.

    Raises InputError for counts below one, for more nodes than ranks, and for an `intra` group on several nodes or an
    `inter` group with several ranks on one.
    """
    fixed = {"intra": 1, "inter": nranks}.get(group)
    nnodes = fixed if nnodes is None else nnodes
    for name, count in (("ranks", nranks), ("nodes", nnodes)):
        if count is not None and not (count >= 1 and math.isfinite(count) and count == int(count)):
            raise InputError(f"{count} {name}: expected a whole number of at least 1")
    if nnodes is not None and nnodes > nranks:
        raise InputError(f"{nranks} ranks cannot be on {nnodes} nodes: a node has at least one rank")
    if fixed is not None and nnodes != fixed:
        meaning = "the ranks of one node" if group == "intra" else "one rank per node"
        raise InputError(f"group {group} is {meaning}: {nranks} ranks of it are on {fixed} nodes, not {nnodes}")
    return nranks, nnodes


def check_group(group: str, measured: Iterable[str] = ()) -> None:
    """InputError for a group that is neither a known kind nor among the `measured` ones."""
    known = {*GROUP_KINDS, *measured}
    if group not in known and not group.startswith(OPEN_KINDS):
        raise one_of("group", group, sorted(known))


def nothing_to_send(sizes: Floats, source: str) -> Estimate:
    """The estimate for a group of one rank: it moves nothing, in no time."""
    zero: Any = like(sizes, np.zeros_like(sizes))
    bound = None if source == "link" else zero
    nothing: Any = like(sizes, np.zeros(sizes.shape, dtype=bool))
    return Estimate(
        time_us=zero,
        low_us=bound,
        high_us=bound,
        source=source,
        extrapolated=nothing,
        notes=("one rank moves nothing: no time, busbw 0",),
    )


def like(sizes: Floats, values: NDArray[Any]) -> Any:
    """`values` as the caller asked: a plain number for one size, the array for an array."""
    return values.item() if sizes.ndim == 0 else values
