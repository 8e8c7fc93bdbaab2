"""The page's sections on groups together, computation beside, and pairs."""

from __future__ import annotations

import pytest
from report_data import Page, measurement, results_file

from collbench.report.factors import Line, factor_figure
from collbench.report.page import write_page
from collbench.results import load_results

HEADINGS = ("Groups together", "Communication beside computation", "Pairs")


def _page(tmp_path, records, **run):
    path = results_file(tmp_path / "r.jsonl", records, **run)
    write_page(tmp_path / "page.html", load_results(path))
    return Page(tmp_path / "page.html")


def _inter(size_bytes, ranks, concurrent, time_us):
    return measurement(
        group="inter", nnodes=2, group_ranks=ranks, size_bytes=size_bytes, concurrent=concurrent, time_us=time_us
    )


def _aggregate(**changes):
    return {
        "kind": "aggregate", "run_id": "r1", "collective": "all_reduce", "group": "inter", "dtype": "float32",
        "redop": "sum", "in_place": True, "pass": 0, "size_bytes": 1 << 20, "timing": "isolated", "concurrent": True,
        "groups": 2, "time_us": 400.0, "slowest_group": [1, 3], "busbw_GBps_sum": 5.0, "overlap": 0.625,
    } | changes  # fmt: skip


def _overlap(**changes):
    return {
        "kind": "overlap", "run_id": "r1", "collective": "all_reduce", "group": "world", "group_ranks": [0, 1],
        "nranks": 2, "nnodes": 1, "dtype": "float32", "redop": "sum", "in_place": True, "size_bytes": 1 << 20,
        "comm_alone_us": 100.0, "comm_with_compute_us": 130.0, "comm_slowdown": 1.3,
        "comm_slowdown_interval": [1.25, 1.35], "compute_slowdown": 1.12, "compute_slowdown_interval": [1.1, 1.2],
        "product": "128x128x128 float32",
    } | changes  # fmt: skip


def test_a_file_of_measurements_alone_has_none_of_them(tmp_path):
    page = _page(tmp_path, [measurement()])
    assert not any(heading in page.text for heading in HEADINGS)


def test_groups_together_are_set_against_alone_and_drawn(tmp_path):
    records = [
        _inter(size, ranks, concurrent, time_us)
        for size, together_us in ((1024, 55.0), (1 << 20, 180.0))
        for ranks in ([0, 2], [1, 3])
        for concurrent, time_us in ((True, together_us), (False, 50.0 if size == 1024 else 100.0))
    ]
    page = _page(tmp_path, records)
    assert "all_reduce inter float32 isolated 1 3 1 MiB 180.0 100.0 1.80" in page.text
    assert "all_reduce inter float32 isolated 1 3 1 KiB 55.00 50.00 1.10" in page.text
    assert "Time of a group while the others run, against alone" in page.descriptions


def test_of_aggregates_the_slowest_half_counts_and_the_largest_size_is_told(tmp_path):
    page = _page(
        tmp_path,
        [
            measurement(),
            _aggregate(),
            _aggregate(in_place=False, time_us=300.0, busbw_GBps_sum=6.0),
            _aggregate(size_bytes=1024, time_us=60.0, busbw_GBps_sum=0.1),
            _aggregate(concurrent=False, overlap=None, busbw_GBps_sum=7.5),
        ],
    )
    assert "all_reduce, inter, float32, isolated: 2 groups, 5.00 GB/s at 1 MiB" in page.text
    assert "1 KiB 2 60.00 0.100 62 % 1 3 1 MiB 2 400.0 5.00 62 % 1 3" in page.text
    assert "isolated, one at a time: 2 groups, 7.50 GB/s at 1 MiB" in page.text
    assert "1 MiB 2 400.0 7.50 – 1 3" in page.text


def test_overlaps_show_both_factors_with_their_intervals(tmp_path):
    unknown = {"compute_slowdown": None, "compute_slowdown_interval": None}
    page = _page(tmp_path, [measurement(), _overlap(), _overlap(size_bytes=1024, in_place=False, **unknown)])
    row = "all_reduce world float32 in 0 1 128x128x128 float32 1 MiB 100.0 130.0 1.30 [1.25, 1.35] 1.12 [1.10, 1.20]"
    assert row in page.text
    assert "float32 out 0 1 128x128x128 float32 1 KiB 100.0 130.0 1.30 [1.25, 1.35] – –" in page.text
    assert any("a collective and a product" in text for text in page.descriptions)


def test_what_was_measured_over_different_networks_is_told_apart(tmp_path):
    first = results_file(tmp_path / "a.jsonl", [measurement(), _overlap()])
    second = results_file(tmp_path / "b.jsonl", [measurement(), _overlap()], backend="nccl", world_size=8)
    write_page(tmp_path / "page.html", [load_results(first), load_results(second)])
    text = Page(tmp_path / "page.html").text
    assert "matrix product: gloo, 2 ranks" in text and "matrix product: nccl, 8 ranks" in text


def _pairs(slow=1.0):
    nodes = [{"host": f"n{node}", "ranks": [node], "devices": ["cpu"]} for node in range(4)]
    records = [
        measurement(group="pairs", nnodes=2, group_ranks=[low, high], size_bytes=1 << 20, busbw_GBps=1 / factor,
                    time_us=1000.0 * factor, **{"pass": number})
        for low in range(4)
        for high in range(low + 1, 4)
        for number in range(3)
        for factor in [slow if (low, high) == (1, 2) else 1.0]
    ]  # fmt: skip
    return records, {"nodes": nodes, "world_size": 4}


def test_pairs_are_a_picture_and_its_text(tmp_path):
    records, run = _pairs(slow=3.0)
    page = _page(tmp_path, records, **run)
    assert "Bandwidth and latency of every pair: all_reduce, pairs" in page.descriptions
    assert "all_reduce, pairs as text" in page.text
    assert "n1 – n2: 0.333 GB/s" in page.text
    assert "slow among 6 links" in page.text


def test_pairs_that_say_nothing_are_told_of(tmp_path):
    records, run = _pairs()
    page = _page(tmp_path, [record | {"wrong": 5} for record in records], **run)
    assert "Pairs" in page.text and "none of its pairs says how fast a link is" in page.text


@pytest.mark.parametrize("factors", [[1.0, 1.02], [1.0, 3.0]])
def test_a_factor_of_one_is_ruled_and_the_axis_begins_at_nothing(factors):
    line = Line("a", list(zip([1024, 4096], factors, strict=True)), of="a")
    axes = factor_figure([line, line._replace(name="b", dashed=True)], "title", "details").axes[0]
    drawn = [each for each in axes.lines if each.get_gid() == "factors"]
    assert [list(each.get_ydata()) for each in drawn] == [factors, factors]
    assert drawn[0].get_color() == drawn[1].get_color() and drawn[1].get_linestyle() == "--"
    low, high = axes.get_ylim()
    assert low == 0 and high >= max(1.25, max(factors))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
