"""The full report of a fit, in words."""

from __future__ import annotations

from dataclasses import replace

from collbench.model.laws import Breakpoint, Fit, HeldOutError, Segment
from collbench.report.fit_text import full_text


def segment(first: int, last: int, alpha_us: float, bandwidth_GBps: float) -> Segment:
    return Segment(
        from_bytes=first,
        to_bytes=last,
        alpha_us=alpha_us,
        alpha_us_interval=(0.9 * alpha_us, 1.1 * alpha_us),
        bandwidth_GBps=bandwidth_GBps,
        bandwidth_GBps_interval=(0.98 * bandwidth_GBps, 1.02 * bandwidth_GBps),
    )


FIT = Fit(
    collective="all_reduce",
    group="world",
    nranks=8,
    nnodes=2,
    backend="nccl",
    dtype="float32",
    in_place=True,
    timing="isolated",
    concurrent=True,
    curve=((8, 20.0), (2**16, 40.0), (2**17, 65.0), (2**30, 43_000.0)),
    segments=(segment(8, 2**16, 20.0, 3.2), segment(2**17, 2**30, 60.0, 25.0)),
    alpha_us=20.0,
    alpha_us_interval=(18.0, 22.0),
    busbw_GBps=43.75,
    busbw_GBps_interval=(42.9, 44.6),
    n_half_bytes=1.5 * 2**20,
    n_half_bytes_interval=(2**20, 2 * 2**20),
    size_90_bytes=13 * 2**20,
    size_90_bytes_interval=(12 * 2**20, 15 * 2**20),
    error_pct=HeldOutError(median=1.23, p90=4.56, held_out=True),
    points=112,
    spread_log=(0.0953, 0.0198, 0.0198, 0.01),
    breakpoints=(Breakpoint(size_bytes=2**16.5, interval=(2**16, 2**17)),),
    notes=("redop sum alone; left out: max",),
)


def lines_of(fit: Fit) -> dict[str, str]:
    """The lines of a block by their first word."""
    return {line.split()[0]: " ".join(line.split()) for line in full_text([fit]).splitlines()}


def test_a_block_says_data_error_figures_segments_and_notes() -> None:
    lines = lines_of(FIT)
    assert lines["[[all_reduce,"] == ("[[all_reduce, world, 8 ranks on 2 nodes, nccl float32, in place, isolated]]")
    assert lines["data"] == "data 112 measurements, 4 sizes, 8 B to 1 GiB"
    assert lines["held-out"] == "held-out error median 1.2 %, 90th percentile 4.6 %, at sizes it was not shown"
    assert "± 2.0 % (median over sizes), at most 10.0 %" in lines["interval,"]
    assert lines["busbw"] == "busbw 43.8 GB/s [42.9, 44.6] 1.9 %"
    assert lines["n½,"] == "n½, half of algbw 1.5 MiB [1 MiB, 2 MiB]"
    assert lines["90"] == "90 % of algbw 13 MiB [12 MiB, 15 MiB]"
    assert lines["break"] == "break 90.51 KiB [64 KiB, 128 KiB]"
    assert lines["algbw"] == "algbw 25.0 GB/s [24.5, 25.5] 2.0 %"
    assert lines["note:"] == "note: redop sum alone; left out: max"


def test_what_is_not_known_is_said() -> None:
    bare = replace(
        FIT,
        n_half_bytes_interval=None,
        size_90_bytes=None,
        spread_log=(),
        error_pct=HeldOutError(median=None, p90=None, held_out=False),
        segments=FIT.segments[1:],
    )
    lines = lines_of(bare)
    assert lines["held-out"] == "held-out error – (too few sizes to hold any out)"
    assert lines["n½,"] == "n½, half of algbw 1.5 MiB –"
    assert not {"90", "interval,", "break", "algbw"} & set(lines)


def test_a_bandwidth_that_the_sweep_does_not_show_has_a_low_end_alone() -> None:
    lines = lines_of(replace(FIT, curve=FIT.curve[:3]))
    assert lines["busbw"] == "busbw > 42.9 GB/s [42.9, –] –"
    assert lines["n½,"] == "n½, half of algbw > 1 MiB [1 MiB, –]"
    assert lines["90"] == "90 % of algbw > 12 MiB [12 MiB, –]"
    unknown = replace(FIT, curve=FIT.curve[:3], n_half_bytes_interval=None)
    assert lines_of(unknown)["n½,"] == "n½, half of algbw – –"


def test_what_is_hardly_known_has_no_percentage() -> None:
    nothing = replace(FIT, alpha_us=0.0, alpha_us_interval=(0.0, 3.0), segments=FIT.segments[1:])
    assert lines_of(nothing)["α"] == "α 0 us [0, 3.00] > 100 %"


def test_blocks_are_apart() -> None:
    assert full_text([FIT, FIT]).count("\n\n[[") == 1
