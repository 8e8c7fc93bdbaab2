"""The table of collectives: sizes as nccl-tests counts them, bandwidth factors, and what a ring sends.

Pure arithmetic. A new collective is one entry here and one in `measure/operations.py`.

Sizes (nccl-tests src/<name>.cu, `getCollByteCount`): `size_bytes` is the larger of one rank's send and receive
buffers, so the whole payload for the divided collectives (all_gather, reduce_scatter). `count` is the count argument
of the call: one rank's share for the divided ones, rounded down to 16 bytes.

Bandwidths (nccl-tests doc/PERFORMANCE.md): algbw = size / time; busbw = algbw x bus_factor(nranks), which for a ring
on a flat network is what one link carries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from collbench.errors import one_of

ALIGNMENT_BYTES = 16  # divided collectives, since nccl-tests 2.13.12


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective operation.

    divided: size_bytes is split over the ranks (count is one rank's share).
    reduces: takes a reduction operator.  rooted: has a root.
    out_of_place: torch has a form whose output is another buffer than its input.
    bus_factor(nranks): busbw / algbw; 0 for one rank, which moves nothing.
    ring_steps(nranks), sent_fraction(nranks): steps of a ring (pipelined chain for broadcast), and the bytes one
    rank sends as a fraction of size_bytes.
    """

    name: str
    program: str  # nccl-tests' binary, which log collectors key on
    aliases: tuple[str, ...] = ()
    divided: bool = False
    reduces: bool = False
    rooted: bool = False
    out_of_place: bool = False
    bus_factor: Callable[[int], float]
    ring_steps: Callable[[int], int]

    @property
    def halves(self) -> tuple[tuple[bool, int], tuple[bool, int]]:
        """(in place, pass) of the two half-rows of nccl-tests' table: two passes where torch works in place only."""
        return ((False, 0), (True, 0)) if self.out_of_place else ((True, 0), (True, 1))

    def sent_fraction(self, nranks: int) -> float:
        """Bytes one rank sends / size_bytes, ring algorithm. This is what the bus factor counts."""
        return self.bus_factor(nranks)


def _moved_once(nranks: int) -> float:
    return 1.0 if nranks > 1 else 0.0


def _all_but_own_share(nranks: int) -> float:
    return (nranks - 1) / nranks


def _reduced_then_copied(nranks: int) -> float:
    return 2 * (nranks - 1) / nranks


_ALL = (
    # The root's data crosses every link of the chain once, pipelined: t = S/B.
    Collective(
        name="broadcast", program="broadcast_perf", rooted=True, bus_factor=_moved_once, ring_steps=lambda nranks: 1
    ),
    # Every element makes n-1 hops to be summed and n-1 to be copied, over n links: t = S/B * 2(n-1)/n.
    Collective(
        name="all_reduce",
        program="all_reduce_perf",
        reduces=True,
        bus_factor=_reduced_then_copied,
        ring_steps=lambda nranks: 2 * (nranks - 1),
    ),
    # Each rank's share (S/n) makes n-1 hops, over n links: t = S/B * (n-1)/n.
    Collective(
        name="all_gather_into_tensor",
        program="all_gather_perf",
        aliases=("all_gather", "all_gather_single"),
        divided=True,
        out_of_place=True,
        bus_factor=_all_but_own_share,
        ring_steps=lambda nranks: nranks - 1,
    ),
    # The mirror image of all_gather: each share is summed over n-1 hops.
    Collective(
        name="reduce_scatter_tensor",
        program="reduce_scatter_perf",
        aliases=("reduce_scatter", "reduce_scatter_single"),
        divided=True,
        reduces=True,
        out_of_place=True,
        bus_factor=_all_but_own_share,
        ring_steps=lambda nranks: nranks - 1,
    ),
)
COLLECTIVES = {collective.name: collective for collective in _ALL}
_BY_ANY_NAME = {name: collective for collective in _ALL for name in (collective.name, *collective.aliases)}

REDOPS = ("sum", "prod", "max", "min", "avg")


def find_collective(text: object) -> Collective:
    """The collective called `text` (torch.distributed's name, or its short form); InputError for an unknown one."""
    collective = known_collective(text)
    if collective is None:
        raise one_of("collective", text, list(COLLECTIVES))
    return collective


def known_collective(text: object) -> Collective | None:
    """As `find_collective`; None for an unknown one, as a file of another version may hold."""
    return _BY_ANY_NAME.get(str(text))


def check_redop(text: object) -> str:
    """A reduction operator of nccl-tests; InputError for an unknown one."""
    if text not in REDOPS:
        raise one_of("reduction operator", text, list(REDOPS))
    return str(text)


@dataclass(frozen=True, slots=True)
class Message:
    """What one call moves: `count` elements (nccl-tests' column) and `size_bytes` (its size column)."""

    count: int
    size_bytes: int


def message(collective: Collective, requested_bytes: int, nranks: int, itemsize: int) -> Message:
    """The message nccl-tests would send for a requested size: rounded, and 0 where it is too small for the ranks."""
    count = requested_bytes // itemsize
    if not collective.divided:
        return Message(count, count * itemsize)
    elements_per_block = max(1, ALIGNMENT_BYTES // itemsize)
    share = count // nranks // elements_per_block * elements_per_block
    return Message(share, share * nranks * itemsize)


def bandwidths_GBps(collective: Collective, size_bytes: float, time_us: float, nranks: int) -> tuple[float, float]:
    """(algbw, busbw) in GB/s for one operation of `time_us`, as nccl-tests computes them (common.cu, GetBw)."""
    algbw_GBps = size_bytes / 1.0e9 / (time_us / 1.0e6)
    return algbw_GBps, algbw_GBps * collective.bus_factor(nranks)
