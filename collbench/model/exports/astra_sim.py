"""ASTRA-sim's analytical network: one level of switches per kind of group, a bandwidth and a latency each.

Format: astra-network-analytical's NetworkParser (topology, npus_count, bandwidth in GB/s, latency in ns, one entry per
level, innermost first). Its GB are 2^30 bytes (`bw_GBps_to_Bpns`), and a message through a Switch makes two hops, each
of that latency. So a ring step takes 2 · latency + chunk / bandwidth, and `steps` of them α + sent bytes / busbw.
"""

from __future__ import annotations

from collections.abc import Mapping

from collbench.collectives import DEFAULT_COLLECTIVES, find_collective
from collbench.errors import InputError
from collbench.model.exports.common import Export, described, spokesmen
from collbench.model.laws import Fit
from collbench.model.store import Model
from collbench.units import format_size

_HOPS = 2  # to the switch and from it
_GB_BYTES = 2**30
# Which collective's figures are a link's: those whose ring moves every byte over every link.
_COLLECTIVES = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", *DEFAULT_COLLECTIVES, "send_recv")


def export(model: Model, forced: Mapping[tuple[str, str], Model]) -> Export:
    """network.yml: the levels intra and inter where both were measured, else the largest group as one level."""
    levels = _levels(spokesmen(model.fits, dict.fromkeys(_COLLECTIVES)))
    values: dict[str, list[object]] = {
        "topology": ["Switch" for _ in levels],
        "npus_count": [fit.nranks for fit in levels],
        "bandwidth": [f"{fit.busbw_GBps * 1e9 / _GB_BYTES:.6g}" for fit in levels],
        "latency": [f"{_latency_ns(fit):.6g}" for fit in levels],
    }
    units = {"bandwidth": "  # GB/s, a GB of 2^30 bytes", "latency": "  # ns per hop; a switch is two hops"}
    lines = [
        "# Network of ASTRA-sim's analytical backend, from fits of collbench.",
        "# Exact: with ring collectives in one chunk (preferred-dataset-splits 1, endpoint-delay 0) a collective on",
        "# one level takes that level's α + bytes / bandwidth:",
        *(f"#   {_figures(fit)}" for fit in levels),
        "# Lost: everything between the first segment's α and the last one's bandwidth, intervals, other collectives.",
        *(f"{name}: [ {', '.join(map(str, row))} ]{units.get(name, '')}" for name, row in values.items()),
    ]
    return Export(files={"network.yml": "\n".join(lines) + "\n"}, notes=tuple(map(_bent, filter(_is_bent, levels))))


def _levels(fits: list[Fit]) -> list[Fit]:
    """Innermost first."""

    def largest(group: str) -> Fit | None:
        """Of the collective that comes first; of its counts the largest."""
        of_group = [fit for fit in fits if fit.group == group]
        return max((fit for fit in of_group if fit.collective == of_group[0].collective), key=_ranks, default=None)

    if not fits:
        raise InputError(f"nothing to export to ASTRA-sim: the model has none of {', '.join(_COLLECTIVES)}")
    intra, inter = largest("intra"), largest("inter")
    if intra is not None and inter is not None:
        return [intra, inter]
    one = largest("world") or intra or inter or max(fits, key=_ranks)
    return [one]


def _ranks(fit: Fit) -> int:
    return fit.nranks


def _latency_ns(fit: Fit) -> float:
    return fit.alpha_us * 1e3 / find_collective(fit.collective).ring_steps(fit.nranks) / _HOPS


def _figures(fit: Fit) -> str:
    return f"{described(fit)}: α {fit.alpha_us:.6g} us, busbw {fit.busbw_GBps:.6g} GB/s (10^9 bytes)"


def _is_bent(fit: Fit) -> bool:
    return len(fit.segments) > 1


def _bent(fit: Fit) -> str:
    """By how much the one line that ASTRA-sim knows is off in between."""
    bandwidth = fit.segments[-1].bandwidth_GBps * 1e3  # bytes per us
    ratios = [((fit.alpha_us + size / bandwidth) / time_us, size) for size, time_us in fit.curve]
    ratio, size = min(ratios)
    return (
        f"astra-sim: {fit.collective} {fit.group} has {len(fit.segments)} segments and ASTRA-sim takes one line: at "
        f"{format_size(size)} it answers {ratio:.2f} of the measured time"
    )
