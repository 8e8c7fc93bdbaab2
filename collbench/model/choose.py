"""Which fit of a model answers a question, and what must be said about it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collbench.collectives import find_collective
from collbench.dtypes import DTYPES, find_dtype
from collbench.errors import InputError, one_of
from collbench.model.estimate import check_counts
from collbench.model.laws import Fit, network_of
from collbench.topology import contends, counts, measured_as

DEFAULT_DTYPE = "float32"
DEFAULT_TIMING = "isolated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Nodes and ranks per node of the job that was measured."""

    nodes: int
    ranks_per_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The fit that answers, the counts that were meant, and the notes to go with the answer."""

    fit: Fit
    nranks: int
    nnodes: int
    notes: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether the fit was measured at these counts."""
        return (self.fit.nranks, self.fit.nnodes) == (self.nranks, self.nnodes)

    @property
    def other_network(self) -> bool:
        """Whether the fit was measured over other links than those meant."""
        return network_of(self.fit.nranks, self.fit.nnodes) != network_of(self.nranks, self.nnodes)


def layout_of(fits: Sequence[Fit]) -> Layout:
    """The layout of the largest world group; without one, of the intra and inter groups; else of the largest."""
    world = max(((fit.nranks, fit.nnodes) for fit in fits if fit.group == "world"), default=None)
    if world is not None:
        return Layout(nodes=world[1], ranks_per_node=math.ceil(world[0] / world[1]))
    inside, across = ([fit for fit in fits if fit.group == group] for group in ("intra", "inter"))
    if inside or across:
        return Layout(
            nodes=max((fit.nnodes for fit in [*inside, *across]), default=1),
            ranks_per_node=max((fit.nranks for fit in inside), default=1),
        )
    largest = max(((fit.nranks, fit.nnodes) for fit in fits), default=(1, 1))
    return Layout(nodes=largest[1], ranks_per_node=math.ceil(largest[0] / largest[1]))


def choose(
    fits: Sequence[Fit],
    collective: str,
    group: str,
    nranks: int,
    nnodes: int,
    dtype: str | None,
    timing: str | None,
    backend: str | None,
) -> Choice:
    """The fit that knows most about the question, its collective by its own name and its counts from `resolve_counts`.

    Regimes and backends are never mixed. Among the rest, in this order: the counts asked for before others, the same
    kind of network, the group asked for, the nearest count, all groups of the kind at once (of kinds with several),
    the dtype, out of place, concurrent.

    Raises InputError where the model has nothing to say, naming what it has.
    """
    network = network_of(nranks, nnodes)
    candidates = [
        fit
        for fit in _of_collective(fits, collective)
        if fit.group == group or network_of(fit.nranks, fit.nnodes) == network
    ]
    if not candidates:
        raise _no_such_group(fits, collective, group, nranks, nnodes)
    candidates = _of_backend(candidates, backend)
    candidates, timing_notes = _of_timing(candidates, timing)
    wanted = find_dtype(dtype).name if dtype is not None else DEFAULT_DTYPE

    def distance(fit: Fit) -> tuple[object, ...]:
        return (
            (fit.nranks, fit.nnodes) != (nranks, nnodes),
            network_of(fit.nranks, fit.nnodes) != network,
            fit.group != group,
            abs(math.log2(fit.nranks / nranks)),
            -fit.nranks,
            abs(math.log2(fit.nnodes / nnodes)),
            contends(group) and fit.concurrent is False,
            _dtype_distance(fit.dtype, wanted),
            *plainness(fit),
        )

    fit = min(candidates, key=distance)
    choice = Choice(fit=fit, nranks=nranks, nnodes=nnodes, notes=())
    notes = [*timing_notes, *_notes(choice, group, dtype)]
    return Choice(fit=fit, nranks=nranks, nnodes=nnodes, notes=tuple(notes))


def measured_alone(choice: Choice, group: str) -> bool:
    """Whether the fit is of one group, where a step runs several of the kind `group` at once: a world stands in for one
    of many."""
    if not contends(group):
        return False
    return not choice.other_network if choice.fit.group == "world" else choice.fit.concurrent is False


def plainness(fit: Fit) -> tuple[int, int]:
    """Least where a fit is of what is meant if nobody says: out of place, all groups of a kind at once."""
    return (False, None, True).index(fit.in_place), (True, None, False).index(fit.concurrent)


def _of_collective(fits: Sequence[Fit], collective: str) -> list[Fit]:
    found = [fit for fit in fits if fit.collective == collective]
    if not found:
        raise InputError(
            f"the model has no {collective}, only {_listed(fit.collective for fit in fits)}: "
            f"measure it with 'collbench run --collective {collective}' and fit again"
        )
    return found


def resolve_counts(
    fits: Sequence[Fit], collective: str, group: str, nranks: int | None, nnodes: int | None
) -> tuple[int, int]:
    """(nranks, nnodes), filled in where not given.

    Ranks: the largest measured count of the group. Nodes: one for intra, as many as ranks for inter, else nranks over
    the layout's ranks per node, rounded up (where that was not measured but another number of nodes was: that one).

    Raises InputError for counts that cannot be, and where nothing measured tells the ranks.
    """
    if nranks is not None:
        nranks, nnodes = check_counts(group, nranks, nnodes)
    of_collective = _of_collective(fits, find_collective(collective).name)
    measured = [fit for fit in of_collective if fit.group == group]
    if not measured and group in ("intra", "inter"):
        network = "one node" if group == "intra" else "one rank per node"
        measured = [fit for fit in of_collective if network_of(fit.nranks, fit.nnodes) == network]
    pairs = {(fit.nranks, fit.nnodes) for fit in measured if nnodes in (None, fit.nnodes)}
    if nranks is None:
        if not pairs and nnodes is not None:
            raise InputError(f"group {group} on {nnodes} nodes was not measured: say how many ranks it has (nranks)")
        if not pairs:
            raise _no_such_group(fits, collective, group, nranks, nnodes)
        return max(pairs)
    if nnodes is None:
        nnodes = min(nranks, math.ceil(nranks / layout_of(fits).ranks_per_node))
        others = [nodes for ranks, nodes in pairs if ranks == nranks]
        nnodes = nnodes if nnodes in others or not others else max(others)
    return nranks, nnodes


def _of_backend(candidates: list[Fit], backend: str | None) -> list[Fit]:
    present = sorted({str(fit.backend) for fit in candidates})
    if backend is None:
        if len(present) > 1:
            raise InputError(
                f"the model holds fits of the backends {', '.join(present)}, which are never mixed: "
                "say which (backend), or fit the results of one"
            )
        return candidates
    if backend not in present:
        raise InputError(f"the model has no fit of the backend {backend!r} here, only {', '.join(present)}")
    return [fit for fit in candidates if str(fit.backend) == backend]


def _of_timing(candidates: list[Fit], timing: str | None) -> tuple[list[Fit], list[str]]:
    present = sorted({fit.timing for fit in candidates})
    notes = []
    if timing is None:
        timing = DEFAULT_TIMING
        if timing not in present:
            timing = present[0]
            notes.append(f"{DEFAULT_TIMING} was not measured: this is the {timing} time")
    if timing not in ("isolated", "pipelined"):
        raise one_of("timing", timing, ["isolated", "pipelined"])
    if timing not in present:
        raise InputError(
            f"the model has no {timing} fit here, only {present[0]}: measure with 'collbench run --timing {timing}'"
        )
    return [fit for fit in candidates if fit.timing == timing], notes


def _dtype_distance(dtype: str | None, wanted: str) -> tuple[bool, bool, bool]:
    """The wanted type first, then one of as many bytes, then float32."""
    same_size = dtype in DTYPES and DTYPES[dtype].itemsize == DTYPES[wanted].itemsize
    return (dtype != wanted, not same_size, dtype != DEFAULT_DTYPE)


def _notes(choice: Choice, group: str, dtype: str | None) -> list[str]:
    fit, notes = choice.fit, []
    if fit.group != group:
        measured = counts(fit.nranks, fit.nnodes)
        notes.append(f"group {group} was not measured at this count: group {fit.group} ({measured}) stands in")
    if dtype is not None and fit.dtype != find_dtype(dtype).name:
        notes.append(f"{dtype} was not measured: this is the time of as many bytes of {fit.dtype or 'another type'}")
    if choice.other_network:
        notes.append(
            f"only groups of the kind '{network_of(fit.nranks, fit.nnodes)}' were measured, and this one is "
            f"'{network_of(choice.nranks, choice.nnodes)}': its network is not in the model"
        )
    return notes


def _no_such_group(
    fits: Sequence[Fit], collective: str, group: str, nranks: int | None, nnodes: int | None
) -> InputError:
    meant = "" if nranks is None or nnodes is None else f" ({counts(nranks, nnodes)})"
    return InputError(
        f"the model has no {collective} on group {group}{meant} nor on one like it; it has the groups "
        f"{_listed(fit.group for fit in fits)} and the collectives {_listed(fit.collective for fit in fits)}: "
        f"measure it with 'collbench run --collective {collective} --group {measured_as(group)}' and fit again"
    )


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(set(words)))
