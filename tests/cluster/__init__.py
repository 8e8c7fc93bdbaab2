"""A shaped cluster on one machine: hosts are network namespaces, each with one NIC of a known rate, so that what gloo
does between them has a known answer. Needs root and iproute2; `python -m tests.cluster --help` is the same by hand.

    with Cluster(hosts=2, rate_mbit=500) as cluster:
        outcome = cluster.run([sys.executable, "-m", "collbench", "run", ...], timeout_s=60)
"""

from __future__ import annotations

from .names import clean, missing
from .network import Cluster
from .probes import ping_s, stream_bytes_per_s
from .ranks import Job, Outcome
from .shaping import payload_bytes_per_s
from .system import ClusterError

__all__ = [
    "Cluster",
    "ClusterError",
    "Job",
    "Outcome",
    "clean",
    "missing",
    "payload_bytes_per_s",
    "ping_s",
    "stream_bytes_per_s",
]
