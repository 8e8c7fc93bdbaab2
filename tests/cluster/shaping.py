"""The numbers of the shaping: packets, buckets and what a link of a rate carries."""

from __future__ import annotations

MTU = 9000
_FRAME = MTU + 14  # what the shaper counts
_SEGMENT = MTU - 20 - 32  # of it TCP's payload: less the headers of IP, of TCP and its time stamps
_LO_BUCKET = 128 * 1024  # lo's packets are 64 KiB
_LIMIT = "32mb"  # deep enough that nothing is dropped: then TCP's losses do not blur the rate


def payload_bytes_per_s(rate_mbit: float) -> float:
    """What TCP carries over a NIC of this rate: 0.9927 of it."""
    return rate_mbit * 1e6 / 8 * _SEGMENT / _FRAME


def largest_packet(rate_mbit: float) -> int:
    """gso_max_size of a NIC in bytes: half a millisecond of its rate, which is the grain of the shaping."""
    return round(min(max(rate_mbit * 1e6 / 8 * 0.5e-3, 16384), 65536))


def bucket(rate_mbit: float, before_mbit: float | None = None) -> int:
    """Bytes of a NIC's token bucket: little more than its largest packet. A smaller one splits packets, a larger one
    lets more through for free after a pause.

    before_mbit: the rate the NIC was made with. Its packets keep their size when the rate changes, and one that is
    larger than the bucket would block the queue for good.
    """
    return max(round(largest_packet(rate) * 1.03) + 9200 for rate in (rate_mbit, before_mbit or rate_mbit))


def tbf(verb: str, device: str, rate_mbit: float, burst: int) -> str:
    """A command of `tc`, `add` or `change`."""
    return f"qdisc {verb} dev {device} root tbf rate {round(rate_mbit * 1e6)}bit burst {burst} limit {_LIMIT}"


def tbf_on_lo(verb: str, rate_mbit: float) -> str:
    """The same for all that a host's ranks send each other: one queue for both directions and all pairs."""
    return tbf(verb, "lo", rate_mbit, _LO_BUCKET)
