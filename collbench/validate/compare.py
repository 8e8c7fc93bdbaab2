"""Predicted against measured. No torch."""

from __future__ import annotations

from typing import Any

from collbench.errors import InputError

STRATEGIES = ("ddp", "fsdp", "hsdp")
QUANTITIES = ("step_ms", "compute_ms", "exposed_comm_ms", "exposed_tail_ms")
_NEGLIGIBLE = 0.01  # of the measured step: an error relative to less than this says nothing


def error_pct(predicted: dict[str, float], measured: dict[str, float]) -> dict[str, float | None]:
    """100 (predicted - measured) / measured of every quantity, signed; None where measured is under 1 % of the step."""
    errors: dict[str, float | None] = {}
    for name in QUANTITIES:
        negligible = measured[name] < _NEGLIGIBLE * measured["step_ms"]
        errors[name] = None if negligible else 100 * (predicted[name] - measured[name]) / measured[name]
    return errors


def within(document: dict[str, Any], tolerance: float) -> bool:
    """Whether the step's time is predicted within `tolerance` (a fraction)."""
    error = document["error_pct"]["step_ms"]
    return error is not None and abs(error) <= 100 * tolerance


def parse_tolerance(text: str) -> float:
    """A fraction from `10%`, `0.1`, or `10`: a bare number of 1 or more is per cent. Raises InputError for others."""
    try:
        per_cent = float(text.removesuffix("%"))
    except ValueError:
        per_cent = -1.0
    if not 0 < per_cent <= 1000:
        raise InputError(f"--tolerance {text!r}: expected per cent above zero, such as 10%, or a fraction such as 0.1")
    is_fraction = per_cent < 1 and not text.endswith("%")
    return per_cent if is_fraction else per_cent / 100


def check_strategy(strategy: str) -> str:
    """InputError where torch itself has no such step."""
    if strategy not in STRATEGIES:
        raise InputError(
            f"--strategy {strategy}: torch has no step of its own for it to be compared with: expected "
            f"{', '.join(STRATEGIES)} ('collbench predict' predicts the others)"
        )
    return strategy


def as_text(document: dict[str, Any]) -> str:
    """The comparison as a table."""
    lines = [
        f"{document['workload']}, {document['strategy']}: median of {document['steps']} real "
        f"step{'s' * (document['steps'] != 1)} on "
        f"{document['nodes']} x {document['ranks_per_node']} ranks (compute: {document['compute']})",
        f"{'':18}{'predicted ms':>14}{'measured ms':>14}{'p5..p95':>20}{'error':>10}",
    ]
    for name in QUANTITIES:
        error = document["error_pct"][name]
        low, high = document["spread_ms"][name]
        lines.append(
            f"{name.removesuffix('_ms'):18}{document['predicted'][name]:14.2f}{document['measured'][name]:14.2f}"
            f"{f'{low:.2f}..{high:.2f}':>20}{'-' if error is None else f'{error:+.1f} %':>10}"
        )
    if document.get("copy_GBps") is not None:
        host = f" and {document['host_us']:.0f} us of the host around each collective" if document["host_us"] else ""
        lines.append(f"torch's own work: {document['copy_GBps']:.4g} GB/s of copies{host}, as measured here")
    for when, peak in document.get("memory", {}).items():
        lines.append(
            f"memory of the {when.replace('_', ' ')}, the most of any rank, without optimizer and activations: "
            f"{peak['allocated_bytes'] / 1e9:.3g} GB allocated, {peak['reserved_bytes'] / 1e9:.3g} GB reserved"
        )
    return "\n".join([*lines, *(f"note: {note}" for note in document["notes"])])
