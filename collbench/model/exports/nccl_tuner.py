"""NCCL's example tuner plugin: a CSV that says which algorithm and protocol to take, by size, nodes and ranks.

Format: NVIDIA/nccl plugins/tuner/example, `collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks`
(-1: any, or NCCL's own); the first row that matches wins, and where none does NCCL decides. Bytes are nccl-tests' size.
A choice needs alternatives: models of runs that were forced to one algorithm and protocol each (NCCL_ALGO, NCCL_PROTO).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from collbench.errors import InputError
from collbench.model.exports.common import Export, spokesmen
from collbench.model.laws import Fit
from collbench.model.store import Model
from collbench.numbers import digits
from collbench.units import format_size

_NAMES = {
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_gather_into_tensor": "allgather",
    "reduce_scatter_tensor": "reducescatter",
    "all_reduce": "allreduce",
}
# What NCCL_ALGO and NCCL_PROTO are given, in lower case -> the plugin's word.
_ALGORITHMS = {
    **{name: name for name in ("tree", "ring", "nvls", "pat")},
    "collnetdirect": "collnet_direct",
    "collnetchain": "collnet_chain",
    "nvlstree": "nvls_tree",
}
_PROTOCOLS = ("ll", "ll128", "simple")
_GAIN = 1.03  # a change of less is not worth a row: sweeps repeat within 1–3 %
Choice = tuple[str, str]  # (algorithm, protocol) in the plugin's words
OWN: Choice = ("", "")  # NCCL's own choice: no row


def forced_choice(environment: Mapping[str, object]) -> Choice | None:
    """What a run was forced to, in the plugin's words; OWN where it was not, None where it was to more than one."""
    algorithm, protocol = (str(environment.get(name) or "").lower() for name in ("NCCL_ALGO", "NCCL_PROTO"))
    if not algorithm and not protocol:
        return OWN
    if algorithm in _ALGORITHMS and protocol in _PROTOCOLS:
        return _ALGORITHMS[algorithm], protocol
    return None


def export(model: Model, forced: Mapping[Choice, Model]) -> Export:
    """nccl_tuner.conf: rows of what was fastest; ranges without a choice, as comments, where nothing was forced."""
    fits = spokesmen(model.fits, _NAMES)
    if not fits:
        raise InputError(f"nothing to export to NCCL's tuner, which knows {', '.join(_NAMES)} alone")
    head = [
        "# collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks: NCCL's example tuner plugin.",
        "# Exact: at each measured size the fastest of the algorithms and protocols that runs were forced to.",
        "# Lost: times and intervals. channels -1: NCCL's own. Where no row matches NCCL decides as it would.",
    ]
    notes = []
    if len(forced) > 1:
        body = [row for key, curves in _curves(forced).items() for row in _rows(key, curves)]
        notes.append(
            f"nccl-tuner: the model file pools the runs of {len(forced)} choices; for predictions fit those alone that "
            "training will run"
        )
    else:
        body = ["# No run was forced to an algorithm and protocol: ranges alone, for you to fill in."]
        body += [line for fit in fits for line in _ranges(fit)]
        notes.append(
            "nccl-tuner: nothing to choose between, so the file's ranges are comments: measure with NCCL_ALGO and "
            "NCCL_PROTO set to one word each (Ring and Simple, Tree and LL, …), a results file per pair, and give them "
            "all"
        )
    return Export(files={"nccl_tuner.conf": "\n".join([*head, *body]) + "\n"}, notes=tuple(notes))


Key = tuple[str, int, int]  # plugin's collective, nodes, ranks


def _curves(forced: Mapping[Choice, Model]) -> dict[Key, dict[Choice, Fit]]:
    """Of each collective and counts the fits by choice; of groups of equal counts world, else the first."""
    found: dict[Key, dict[Choice, Fit]] = {}
    for choice, model in sorted(forced.items()):
        for fit in sorted(spokesmen(model.fits, _NAMES), key=lambda fit: fit.group != "world"):
            found.setdefault((_NAMES[fit.collective], fit.nnodes, fit.nranks), {}).setdefault(choice, fit)
    return found


def _rows(key: Key, fits: Mapping[Choice, Fit]) -> Iterator[str]:
    """Ranges of measured sizes with one choice each, where there is more than one and NCCL's own is not the best."""
    if len(fits) < 2:
        return
    name, nnodes, nranks = key
    sizes = sorted({size for fit in fits.values() for size, _ in fit.curve})
    for choice, first, last in _runs(sizes, fits):
        if choice != OWN:
            yield f"{name},{first},{last},{choice[0]},{choice[1]},-1,{nnodes},{nranks}"


def _runs(sizes: Sequence[int], fits: Mapping[Choice, Fit]) -> list[tuple[Choice, int, int]]:
    """(choice, first byte, last byte), each up to the next; a choice changes only for a gain above _GAIN."""
    choices = list(fits)
    at = np.array(sizes, dtype=np.float64)
    times_us = np.array(
        [np.where(fit.measured.is_outside(at), np.inf, fit.measured.time_us(at)) for fit in fits.values()]
    )
    runs: list[tuple[Choice, int, int]] = []
    held = int(np.argmin(times_us[:, 0]))
    start = sizes[0]
    for column, size in enumerate(sizes):
        best = int(np.argmin(times_us[:, column]))
        if times_us[held, column] > _GAIN * times_us[best, column]:
            runs.append((choices[held], start, size - 1))
            held, start = best, size
    return [*runs, (choices[held], start, sizes[-1])]


def _ranges(fit: Fit) -> Iterator[str]:
    """A fit's segments as rows to be filled in, with what NCCL's own choice takes there."""
    for segment in fit.segments:
        range_ = f"{_NAMES[fit.collective]},{segment.from_bytes},{segment.to_bytes}"
        line = f"{digits(segment.alpha_us)} us + size / {digits(segment.bandwidth_GBps)} GB/s"
        yield (
            f"# {range_},ALGORITHM,PROTOCOL,-1,{fit.nnodes},{fit.nranks}"
            f"    NCCL's own: {line}, {format_size(segment.from_bytes)} to {format_size(segment.to_bytes)}"
        )
