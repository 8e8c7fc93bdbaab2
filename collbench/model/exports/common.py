"""What the exports share: their result, and the one fit of several that speaks for a collective and its counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collbench.errors import InputError
from collbench.model.choose import DEFAULT_DTYPE, DEFAULT_TIMING, plainness
from collbench.model.laws import Fit
from collbench.topology import counts


@dataclass(frozen=True, kw_only=True)
class Export:
    """files: text by name. notes: what a user must know of what is not in them, one line each."""

    files: dict[str, str]
    notes: tuple[str, ...] = ()


def spokesmen(fits: Sequence[Fit], collectives: Iterable[str]) -> list[Fit]:
    """One fit per collective, group and counts, collectives in the order given.

    Of several the one `Model.time` would take: isolated before pipelined, float32, out of place, concurrent.
    Raises InputError for several backends, which are never mixed.
    """
    backends = sorted({str(fit.backend) for fit in fits})
    if len(backends) > 1:
        raise InputError(f"the model holds fits of {', '.join(backends)}: export the results of one backend")
    names = list(collectives)

    def distance(fit: Fit) -> tuple[object, ...]:
        return (
            fit.timing != DEFAULT_TIMING,
            fit.dtype != DEFAULT_DTYPE,
            *plainness(fit),
        )

    best: dict[tuple[object, ...], Fit] = {}
    for fit in sorted((fit for fit in fits if fit.collective in names), key=distance):
        best.setdefault((names.index(fit.collective), fit.group, fit.nranks, fit.nnodes), fit)
    return [best[key] for key in sorted(best, key=lambda key: (key[0], str(key[1]), key[2], key[3]))]


def described(fit: Fit) -> str:
    """`all_reduce, world, 8 ranks on 2 nodes, nccl float32 isolated`."""
    words = " ".join(word for word in (fit.backend, fit.dtype, fit.timing) if word)
    return f"{fit.collective}, {fit.group}, {counts(fit.nranks, fit.nnodes)}, {words}"
