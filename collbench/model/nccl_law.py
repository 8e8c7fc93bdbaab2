"""What NCCL itself thinks a collective takes: its constants and its formula, for link rates that it is told.

A prior, never a measurement: against public tables it is 10 to 40 % off on one node and up to a factor of 5 low on
several.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from collbench.collectives import find_collective
from collbench.model.estimate import Floats

if TYPE_CHECKING:
    from collbench.model.link import LinkModel

# NCCL 2.30.7, src/graph/tuning.cc. Latencies in us per protocol: of the call, and per step inside a node (NVLink) and
# between nodes (network).
PROTOCOLS = ("LL", "LL128", "Simple")
BASE_US = {"ring": (6.6, 14.0, 8.4), "tree": (6.8, 14.0, 8.4)}
INTRA_US = {"ring": (0.6, 1.9, 3.4), "tree": (0.6, 1.25, 4.0)}
INTER_US = {"ring": (2.7, 4.0, 14.0), "tree": (5.0, 8.5, 14.0)}
NET_OVERHEAD_US = (1.0, 1.0, 3.0)  # least latency of a step inside a node, where a ring also crosses the network
RING_RATE = (0.5, 0.92, 1.0)  # of the link's rate
TREE_RATE = (0.92 / 3.8, 0.92 * 7 / 9, 0.92)


def nccl_time_us(link: LinkModel, collective: str, nranks: int, nnodes: int, sizes_bytes: Floats) -> Floats:
    """The fastest of NCCL's rings and (all_reduce) trees in its three protocols, by its own latencies.

    Rates are the link's: one rank's inside a node, and on several nodes the smaller of that and the one between them.
    A tree moves each byte up and down, so that its rate in algbw is half the link's. What NCCL has no model of
    (all_to_all, send_recv, …) goes by its ring's step latencies.
    """
    operation = find_collective(collective)
    rate = link.bandwidth_GBps
    if nnodes > 1:
        rate = min(rate, link.inter_bandwidth_GBps or rate) if nranks > nnodes else link.inter_bandwidth_GBps or rate
    steps, across = operation.ring_steps(nranks), operation.ring_steps(nnodes) if nnodes > 1 else 0
    per_node = math.ceil(nranks / nnodes)
    times = []
    for number in range(len(PROTOCOLS)):
        intra = INTRA_US["ring"][number] if nnodes == 1 else max(INTRA_US["ring"][number], NET_OVERHEAD_US[number])
        latency = BASE_US["ring"][number] + (steps - across) * intra + across * INTER_US["ring"][number]
        bytes_per_us = RING_RATE[number] * rate * 1e3
        times.append(latency + operation.sent_fraction(nranks) * sizes_bytes / bytes_per_us)
        if operation.name == "all_reduce":
            hops = (per_node - 1) * INTRA_US["tree"][number] + math.log2(nnodes) * INTER_US["tree"][number]
            times.append(BASE_US["tree"][number] + 2 * hops + 2 * sizes_bytes / (TREE_RATE[number] * rate * 1e3))
    fastest: Floats = np.min(times, axis=0)
    return fastest
