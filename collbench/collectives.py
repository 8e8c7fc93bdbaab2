"""The table of collectives: sizes as nccl-tests counts them, bandwidth factors, and what a ring sends.

Pure arithmetic. A new collective is one entry here and one in `measure/operations.py`.

Sizes (nccl-tests src/<name>.cu, `getCollByteCount`): `size_bytes` is the larger of one rank's send and receive
buffers, so the whole payload for the divided collectives (all_gather, reduce_scatter). `count` is the count argument
of the call: one rank's share for the divided ones, rounded down to 16 bytes.

Bandwidths (nccl-tests doc/PERFORMANCE.md): algbw = size / time (hypercube: without the own share); busbw = algbw x
bus_factor(nranks), which for a ring on a flat network is what one link carries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from collbench.errors import one_of

ALIGNMENT_BYTES = 16  # divided collectives, since nccl-tests 2.13.12


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective operation.

    sends_shares, receives_shares: a rank sends (receives) one share for each rank; size_bytes is all the shares.
    reduces: takes a reduction operator.  rooted: has a root.
    in_place, out_of_place: which forms torch has; the output is (part of) the input's memory, or another buffer.
    table_redop: what nccl-tests prints for the operator where the call takes none.
    algbw_factor(nranks): algbw x time / size_bytes, 1 for all but hypercube.
    bus_factor(nranks): busbw / algbw; 0 for one rank, which moves nothing.
    ring_steps(nranks): steps of a ring (pipelined chain for broadcast and reduce) that follow one another.
    refusal(nranks): why it cannot run on so many ranks, None where it can.
    """

    name: str
    program: str  # nccl-tests' binary, which log collectors key on
    aliases: tuple[str, ...] = ()
    sends_shares: bool = False
    receives_shares: bool = False
    reduces: bool = False
    rooted: bool = False
    in_place: bool = True
    out_of_place: bool = True
    table_redop: str = "none"
    algbw_factor: Callable[[int], float] = lambda nranks: 1.0
    bus_factor: Callable[[int], float]
    ring_steps: Callable[[int], int]
    refusal: Callable[[int], str | None] = lambda nranks: None

    @property
    def divided(self) -> bool:
        """Whether size_bytes is split over the ranks (`count` is then one rank's share)."""
        return self.sends_shares or self.receives_shares

    def elements(self, count: int, nranks: int) -> tuple[int, int]:
        """(sent, received) by one rank in a call whose count argument is `count`."""
        sent, received = (count * nranks if shares else count for shares in (self.sends_shares, self.receives_shares))
        return sent, received

    def halves(self, sweep_pass: int = 0) -> tuple[tuple[bool, int], tuple[bool, int]]:
        """(in place, the record's `pass`) of the two half-rows of nccl-tests' table in one pass over the sweep.

        Where torch has one form alone, both halves are of that form, told apart by their `pass`.
        """
        if self.in_place and self.out_of_place:
            return (False, sweep_pass), (True, sweep_pass)
        return (self.in_place, 2 * sweep_pass), (self.in_place, 2 * sweep_pass + 1)

    def half_of(self, in_place: bool, number: int) -> tuple[int, int]:
        """(pass over the sweep, half 0 or 1) of a record's `in_place` and `pass`: the inverse of `halves`."""
        return (number, int(in_place)) if self.in_place and self.out_of_place else divmod(number, 2)

    def sent_fraction(self, nranks: int) -> float:
        """Bytes one rank sends / size_bytes, ring algorithm: busbw x time / size_bytes."""
        return self.algbw_factor(nranks) * self.bus_factor(nranks)


def _moved_once(nranks: int) -> float:
    return 1.0 if nranks > 1 else 0.0


def _all_but_own_share(nranks: int) -> float:
    return (nranks - 1) / nranks


def _reduced_then_copied(nranks: int) -> float:
    return 2 * (nranks - 1) / nranks


def _not_a_power_of_two(nranks: int) -> str | None:
    return None if nranks & (nranks - 1) == 0 else f"{nranks} ranks are not a power of 2"


_ALL = (
    # The root's data crosses every link of the chain once, pipelined: t = S/B.
    Collective(
        name="broadcast",
        program="broadcast_perf",
        rooted=True,
        out_of_place=False,
        bus_factor=_moved_once,
        ring_steps=lambda nranks: 1,
    ),
    # Every element makes n-1 hops to be summed and n-1 to be copied, over n links: t = S/B * 2(n-1)/n.
    Collective(
        name="all_reduce",
        program="all_reduce_perf",
        reduces=True,
        out_of_place=False,
        bus_factor=_reduced_then_copied,
        ring_steps=lambda nranks: 2 * (nranks - 1),
    ),
    # Each rank's share (S/n) makes n-1 hops, over n links: t = S/B * (n-1)/n.
    Collective(
        name="all_gather_into_tensor",
        program="all_gather_perf",
        aliases=("all_gather", "all_gather_single"),
        receives_shares=True,
        bus_factor=_all_but_own_share,
        ring_steps=lambda nranks: nranks - 1,
    ),
    # The mirror image of all_gather: each share is summed over n-1 hops.
    Collective(
        name="reduce_scatter_tensor",
        program="reduce_scatter_perf",
        aliases=("reduce_scatter", "reduce_scatter_single"),
        sends_shares=True,
        reduces=True,
        bus_factor=_all_but_own_share,
        ring_steps=lambda nranks: nranks - 1,
    ),
    # Every rank sends a share to each of the others: t = S/B * (n-1)/n.
    Collective(
        name="all_to_all_single",
        program="alltoall_perf",
        aliases=("all_to_all", "alltoall"),
        sends_shares=True,
        receives_shares=True,
        in_place=False,
        bus_factor=_all_but_own_share,
        ring_steps=lambda nranks: nranks - 1,
    ),
    # A broadcast backwards: the chain sums on its way to the root.
    Collective(
        name="reduce",
        program="reduce_perf",
        reduces=True,
        rooted=True,
        out_of_place=False,
        bus_factor=_moved_once,
        ring_steps=lambda nranks: 1,
    ),
    # n-1 shares pass the root's link.
    Collective(
        name="gather",
        program="gather_perf",
        receives_shares=True,
        rooted=True,
        bus_factor=_all_but_own_share,
        ring_steps=lambda nranks: nranks - 1,
    ),
    Collective(
        name="scatter",
        program="scatter_perf",
        sends_shares=True,
        rooted=True,
        bus_factor=_all_but_own_share,
        ring_steps=lambda nranks: nranks - 1,
    ),
    # Every rank sends all it has to the next and receives from the one before.
    Collective(
        name="send_recv",
        program="sendrecv_perf",
        aliases=("sendrecv",),
        in_place=False,
        table_redop="sum",
        bus_factor=_moved_once,
        ring_steps=lambda nranks: 1,
    ),
    # all_gather in log2(n) pairwise exchanges of growing parts; nccl-tests leaves the own share out of algbw.
    Collective(
        name="hypercube",
        program="hypercube_perf",
        receives_shares=True,
        table_redop="",
        algbw_factor=_all_but_own_share,
        bus_factor=_moved_once,
        ring_steps=lambda nranks: (nranks - 1).bit_length(),
        refusal=_not_a_power_of_two,
    ),
)
COLLECTIVES = {collective.name: collective for collective in _ALL}
DEFAULT_COLLECTIVES = ("broadcast", "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
_BY_ANY_NAME = {name: collective for collective in _ALL for name in (collective.name, *collective.aliases)}

REDOPS = ("sum", "prod", "max", "min", "avg", "mulsum")


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
    algbw_GBps = size_bytes * collective.algbw_factor(nranks) / 1.0e9 / (time_us / 1.0e6)
    return algbw_GBps, algbw_GBps * collective.bus_factor(nranks)
