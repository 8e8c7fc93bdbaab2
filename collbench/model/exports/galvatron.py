"""Galvatron's hardware profile: bus bandwidths of all_reduce and point-to-point, and times of all_reduce, all_to_all.

Format: the keys its hardware profiler writes and its search engine reads, in files named after nodes and GPUs per node.
`consec_1`: groups of neighbouring ranks, `consec_0`: strided ones; `pp_size_P`: strided groups of P ranks. Bandwidths
are nccl-tests' busbw in GB/s (10^9), times are ms, a MB is 2^20 bytes of nccl-tests' size.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

import numpy as np

from collbench.errors import InputError
from collbench.model.band import band
from collbench.model.exports.common import Export, spokesmen
from collbench.model.laws import Fit
from collbench.model.store import Model

_MIB = 2**20
_SIZES_MB = [2**power for power in range(11)]  # 1 to 1024, the profiler's own
_LEAST_SIZES = 8  # with fewer its reader of times stops
_TIMES = {"all_reduce": "allreduce", "all_to_all_single": "all2all"}


def export(model: Model, forced: Mapping[tuple[str, str], Model]) -> Export:
    """allreduce_bandwidth, p2p_bandwidth and sp_time JSON, each where the model has something to say."""
    fits = spokesmen(model.fits, ("all_reduce", "send_recv", "all_to_all_single"))
    world = model.nodes * model.ranks_per_node
    bandwidths = {
        f"allreduce_size_{fit.nranks}_consec_{int(consecutive)}": fit.busbw_GBps
        for fit in fits
        if fit.collective == "all_reduce"
        and _is_power(fit.nranks)
        and (consecutive := _consecutive(fit, world)) is not None
    }
    p2p = {
        f"pp_size_{fit.nranks}": fit.busbw_GBps
        for fit in fits
        if fit.collective == "send_recv" and (fit.nranks == world or _consecutive(fit, world) is False)
    }
    times = _times(fits, world)
    place = f"{model.nodes}nodes_{model.ranks_per_node}gpus_per_node.json"
    contents = {"allreduce_bandwidth": bandwidths, "p2p_bandwidth": p2p, "sp_time": times}
    if not any(contents.values()):
        raise InputError(
            "nothing to export to Galvatron: it wants all_reduce, all_to_all_single or send_recv on groups world, "
            "intra, inter or mesh:RxS"
        )
    files = {f"{name}_{place}": json.dumps(keys, indent=4) + "\n" for name, keys in contents.items() if keys}
    return Export(files=files, notes=tuple(_notes(bandwidths, p2p, times, world)))


def _is_power(count: int) -> bool:
    return count & (count - 1) == 0


def _consecutive(fit: Fit, world: int) -> bool | None:
    """Whether the group's ranks are neighbours; None where Galvatron has no such groups."""
    if fit.nranks == world or fit.group in ("world", "intra") or fit.group.endswith(":shard"):
        return True
    return False if fit.group == "inter" or fit.group.endswith(":replicate") else None


def _times(fits: list[Fit], world: int) -> dict[str, float]:
    """Times in ms, read off the curve at whole MB within the measured sizes."""
    found: dict[str, float] = {}
    for fit in fits:
        if fit.collective not in _TIMES or not _consecutive(fit, world):
            continue
        first, last = fit.curve[0][0], fit.curve[-1][0]
        sizes = [size for size in _SIZES_MB if first <= size * _MIB <= last]
        times_us = band(fit, np.array(sizes, dtype=np.float64) * _MIB).time_us.tolist()
        for size, time_us in zip(sizes, times_us, strict=True):
            found[f"{_TIMES[fit.collective]}_size_{fit.nranks}_{size}MB_time"] = time_us / 1e3
    return found


def _notes(bandwidths: dict[str, float], p2p: dict[str, float], times: dict[str, float], world: int) -> list[str]:
    notes = [
        "galvatron: a bandwidth is the fitted bus bandwidth of large messages; its own profiler averages over sizes"
    ]
    wanted = [
        f"allreduce_size_{count}_consec_{consecutive}"
        for count in (2**power for power in range(1, world.bit_length()))
        for consecutive in ((1,) if count == world else (1, 0))
    ]
    missing = [key for key in wanted if key not in bandwidths]
    if missing:
        notes.append(
            f"galvatron: its search reads {len(missing)} more keys ({', '.join(missing[:3])}"
            f"{', …' if len(missing) > 3 else ''}): measure them with '--group mesh:RxS'"
        )
    if not p2p:
        notes.append("galvatron: no p2p_bandwidth: measure '--collective send_recv --group inter,world'")
    for name in _TIMES.values():
        by_count = Counter(key.split("_")[2] for key in times if key.startswith(name))
        short = [count for count, sizes in by_count.items() if sizes < _LEAST_SIZES]
        if short:
            notes.append(
                f"galvatron: {name} of {', '.join(short)} ranks has fewer than the {_LEAST_SIZES} sizes of 1 to 1024 "
                "MiB its reader wants: measure up to 1G"
            )
    return notes
