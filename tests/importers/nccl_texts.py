"""Small tables of nccl-tests, written here: rows whose numbers agree, under the header of a generation."""

from __future__ import annotations

from collbench.collectives import COLLECTIVES
from collbench.dtypes import DTYPES

ABOVE = "#                                                              out-of-place                       in-place"
_NAMES = "     time   algbw   busbw #wrong"
_UNITS = "     (us)  (GB/s)  (GB/s)       "
NEW = [
    ABOVE,
    f"#       size         count      type   redop    root{_NAMES}{_NAMES}",
    f"#        (B)    (elements)                          {_UNITS}{_UNITS}",
]
OLD = [
    ABOVE[:54] + ABOVE[63:],
    f"#       size         count    type   redop{2 * _NAMES.replace('#wrong', ' error')}",
    f"#        (B)    (elements)                {_UNITS}{_UNITS}",
]
OPTIONS = (
    "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 16777216 step: 2(factor) warmup iters: 5 iters: 20 "
    "agg iters: 1 validation: 1 graph: 0"
)
FOOT = ["# Out of bounds values : 0 OK", "#"]
POWERS = range(20, 25)


def time_us(size, n=8):
    """Of an imaginary network of 40 GB/s and 25 us."""
    return 25 + size / 40e3


def rates(collective, size, time, n):
    own = COLLECTIVES[collective]
    algbw = size * own.algbw_factor(n) / time / 1e3
    return algbw, algbw * own.bus_factor(n)


def number(time):
    return f"{time:.2f}" if time < 100 else f"{time:.1f}" if time < 10_000 else f"{time:.0f}"


def half(collective, size, time, n, wrong="0"):
    time = float(number(time))
    algbw, busbw = rates(collective, size, time, n)
    return f"  {number(time):>7}  {algbw:6.2f}  {busbw:6.2f}  {wrong:>5}"


def row(power=20, collective="all_reduce", n=8, dtype="float32", redop="sum", root=-1, wrong=("0", "0"), slower=1.0):
    size = 2**power
    count = size // DTYPES[dtype].itemsize // (n if COLLECTIVES[collective].divided else 1)
    times = (time_us(size) * slower, time_us(size) * slower * 1.01)
    halves = "".join(half(collective, size, time, n, bad) for time, bad in zip(times, wrong, strict=True))
    return f"{size:12d}  {count:12d}  {DTYPES[dtype].nccl_name:>8}  {redop:>6}  {root:>6}{halves}"


def rows(powers=POWERS, **of):
    return [row(power, **of) for power in powers]


def old_row(power=20, n=8, error="5e-07"):
    size = 2**power
    halves = half("all_reduce", size, time_us(size), n, error) + half("all_reduce", size, time_us(size), n, "N/A")
    return f"{size:12d}  {size // 4:12d}   float     sum{halves}"


def devices(n=8, nodes=2, group=lambda rank: 0):
    each = n // nodes
    return [
        f"#  Rank {rank:2d} Group {group(rank):2d} Pid {1000 + rank:6d} on     node{rank // each:02d} device "
        f"{rank % each:2d} [0000:0{rank % each}:00] NVIDIA H100"
        for rank in range(n)
    ]


def log(body=None, head=NEW, listed=None, program="all_reduce_perf"):
    """A whole log: of 8 ranks on 2 nodes, unless it is told otherwise."""
    starting = [f"# Collective test starting: {program}"] if program else []
    listed = devices() if listed is None else listed
    body = rows() if body is None else body
    return "\n".join([*starting, OPTIONS, "#", "# Using devices", *listed, "#", *head, *body, *FOOT]) + "\n"
