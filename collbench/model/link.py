"""Closed forms from link figures: what a ring takes on links of a given bandwidth and latency."""

from __future__ import annotations

import math
from dataclasses import dataclass

from numpy.typing import ArrayLike

from collbench.collectives import Collective, find_collective
from collbench.errors import InputError
from collbench.model.estimate import Estimate, check_counts, check_group, check_sizes, like, nothing_to_send


@dataclass(frozen=True, kw_only=True)
class LinkModel:
    """One rank's one-way link rate and the latency of one algorithm step, inside a node and between nodes.

    The `inter_` figures default to the plain ones. Raises InputError for a bandwidth not above zero or a negative
    latency.
    """

    bandwidth_GBps: float
    latency_us: float = 0.0
    inter_bandwidth_GBps: float | None = None
    inter_latency_us: float | None = None

    def __post_init__(self) -> None:
        for name in ("bandwidth_GBps", "inter_bandwidth_GBps"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} is {value}: expected a finite rate above zero")
        for name in ("latency_us", "inter_latency_us"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name} is {value}: expected a finite time, not below zero")

    @property
    def nodes(self) -> int | None:
        """None: link figures know no layout."""
        return None

    @property
    def ranks_per_node(self) -> int | None:
        """None: link figures know no layout."""
        return None

    def time(
        self,
        collective: str,
        size_bytes: ArrayLike,
        group: str = "world",
        nranks: int | None = None,
        nnodes: int | None = None,
        dtype: str | None = None,
        timing: str | None = None,
    ) -> Estimate:
        """time = steps · latency + sent_fraction · size / bandwidth, of a ring (broadcast: a pipelined chain).

        `group` "intra" uses the plain figures, "inter" the inter ones; any other the plain ones on one node (nnodes 1,
        the default), the inter ones with one rank per node, and in between both: the smaller bandwidth, and as many
        steps across nodes as a ring of the nodes has (NCCL's count: 2(N−1) for all_reduce, N−1 for gathers), the
        others inside. `dtype` and `timing` make no difference to a link.

        Raises InputError without nranks, for impossible counts, and for an unknown collective.
        """
        sizes = check_sizes(size_bytes)
        operation = find_collective(collective)
        nranks, nnodes = self.counts(collective, group, nranks, nnodes)
        if nranks == 1:
            return nothing_to_send(sizes, "link")
        latency_us, bandwidth_GBps = self._path(operation, nranks, nnodes)
        time_us = latency_us + operation.sent_fraction(nranks) * sizes / (bandwidth_GBps * 1e3)  # 1 GB/s = 1e3 B/us
        return Estimate(time_us=like(sizes, time_us), low_us=None, high_us=None, source="link")

    def counts(self, collective: str, group: str, nranks: int | None, nnodes: int | None) -> tuple[int, int]:
        """The (nranks, nnodes) that `time` takes a question to mean; InputError as `time` raises it."""
        check_group(group)
        if nranks is None:
            raise InputError("link figures do not say how many ranks take part: give their number, nranks (--nranks)")
        nranks, nnodes = check_counts(group, nranks, nnodes)
        return nranks, nnodes or 1

    def _path(self, operation: Collective, nranks: int, nnodes: int) -> tuple[float, float]:
        """(latency of all steps in us, bandwidth of the slowest link in GB/s)."""
        inter_bandwidth_GBps = self.inter_bandwidth_GBps or self.bandwidth_GBps
        inter_latency_us = self.latency_us if self.inter_latency_us is None else self.inter_latency_us
        steps = operation.ring_steps(nranks)
        if nnodes == 1:
            return steps * self.latency_us, self.bandwidth_GBps
        if nnodes == nranks:
            return steps * inter_latency_us, inter_bandwidth_GBps
        inter_steps = operation.ring_steps(nnodes)
        latency_us = inter_steps * inter_latency_us + (steps - inter_steps) * self.latency_us
        return latency_us, min(self.bandwidth_GBps, inter_bandwidth_GBps)
