"""`collbench show --matrix`: the tables as a user reads them, and what the picture holds."""

from __future__ import annotations

import re

import numpy as np
import pytest
from matplotlib.colors import LogNorm
from pair_records import cluster, pair, pairs_of, results, sweep

from collbench.errors import InputError
from collbench.links import Matrix, pair_tables
from collbench.report.matrix import _off, matrix_figure, matrix_lines, show_matrix


def _shown(folder, *records):
    lines = []
    show_matrix(results(folder, *records), folder / "pairs.png", lines.append)
    return "".join(lines)


def _axes(folder, *records):
    """The heat maps, without their colour bars."""
    figure = matrix_figure(pair_tables(results(folder, *records)))
    figure.draw_without_rendering()
    return [axes for axes in figure.axes if axes.images]


def _slow_pair(*nodes):
    return lambda ranks: 2 if set(ranks) == set(nodes) else 1


def test_both_tables_and_the_slow_link_in_words(tmp_path):
    run = cluster(5)
    text = _shown(tmp_path, run, *sweep(run, _slow_pair(1, 3)))
    bandwidth, latency = text.split("\n\n")[1:3]
    assert text.startswith("all_reduce, pairs: 5 nodes\n\nbandwidth: busbw in GB/s at 1 GiB, pipelined\n")
    assert bandwidth.splitlines()[1:7] == [
        "      n0     n1     n2     n3     n4",
        "n0     -   40.0   40.0   40.0   40.0",
        "n1  40.0      -   40.0   20.0*  40.0",
        "n2  40.0   40.0      -   40.0   40.0",
        "n3  40.0   20.0*  40.0      -   40.0",
        "n4  40.0   40.0   40.0   40.0      -",
    ]
    assert bandwidth.splitlines()[7:] == [
        "(* slower than the others by more than the noise)",
        "slow among 10 links (the others' median is 40.0 GB/s, noise 0.0 %):",
        "  n1 – n3: 20.0 GB/s, 50 % below",
    ]
    assert latency.splitlines()[0] == "latency: time in us at 8 B, isolated"
    assert latency.splitlines()[-1] == "  n1 – n3: 40.0 us, 100 % above"
    assert text.endswith(f"heat map: {tmp_path / 'pairs.png'}\n")
    assert (tmp_path / "pairs.png").read_bytes().startswith(b"\x89PNG")


def test_a_slow_node_is_one_line(tmp_path):
    run = cluster(8)
    text = _shown(tmp_path, run, *sweep(run, lambda ranks: 2 if 3 in ranks else 1))
    assert "  all links of node n3 are slow (7 of 7): 20.0 GB/s, 50 % below: the node, not a link\n" in text
    assert text.count("% below") == text.count("% above") == 1


def test_a_slow_rank_is_told_from_its_node(tmp_path):
    run = cluster(3, 4)
    text = _shown(tmp_path, run, *sweep(run, lambda ranks: 2 if 6 in ranks else 1, group="pairs:rank"))
    assert text.startswith("all_reduce, pairs:rank: 12 ranks\n")
    assert "slow among 48 links between nodes (" in text
    assert "all links between nodes of rank n1 r6 are slow (8 of 8): " in text
    assert "the rank, its device or its interface, not a link" in text


def test_a_latency_too_noisy_for_per_cent_is_told_in_times():
    latency = Matrix(quantity="latency", size_bytes=8, timing="isolated", values={}, sigma={})
    assert (_off(latency, 1.5), _off(latency, 1878.6)) == ("50 % above", "1879 times that")


def test_where_nothing_is_slow_it_says_what_would_be(tmp_path):
    run = cluster(6)
    text = _shown(tmp_path, run, *sweep(run))
    assert "slow links: none of 15 links (their median is 40.0 GB/s, noise 0.0 %: 4.8 % below would be listed)" in text
    assert "*" not in text


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (2, "slow links: one link, nothing to compare it with"),
        (3, "slow links: not known among so few (3 links) that were not repeated: measure with --passes 3"),
    ],
)
def test_too_few_links_are_said(tmp_path, nodes, said):
    run = cluster(nodes)
    assert said in _shown(tmp_path, run, *sweep(run))


def test_what_is_missing_and_what_stands_in_is_said(tmp_path):
    run = cluster(5)
    records = [record for record in sweep(run, timing="isolated") if record["group_ranks"] != [0, 4]]
    text = _shown(tmp_path, run, *records)
    head = "bandwidth: busbw in GB/s at 1 GiB, isolated (pipelined was not measured); 9 of 10 links measured"
    assert head in text
    assert re.search(r"^n0 +- +40\.0 +40\.0 +40\.0 +\?$", text, re.MULTILINE)
    assert "(? not measured)" in text


def test_long_names_are_numbered(tmp_path):
    run = cluster(3)
    for index, node in enumerate(run["nodes"]):
        node["host"] = f"gpu-rack7-{index:03d}"
    text = _shown(tmp_path, run, *sweep(run))
    assert re.search(r"^ +0 +1 +2$", text, re.MULTILINE)
    assert re.search(r"^1 gpu-rack7-001 +40\.0 +- +40\.0$", text, re.MULTILINE)


def test_of_many_nodes_the_worst_are_printed_and_all_are_drawn(tmp_path):
    run = cluster(20)
    records = sweep(run, lambda ranks: {True: 2, False: 1 + 0.001 * sum(ranks)}[7 in ranks])
    text = _shown(tmp_path, run, *records)
    bandwidth = text.split("\n\n")[1].splitlines()
    assert bandwidth[1].split("  ")[0] == "the worst 8 of 20 (the PNG has all)"
    assert len(bandwidth) == 12  # its title, the heads, eight nodes, two lines on what is slow
    assert bandwidth[2].split() == ["n7", "20.0", "20.0", "to", "n0"]
    assert bandwidth[3].split()[0] == "n19"
    axes = _axes(tmp_path, run, *records)[0]
    assert axes.images[0].get_array().shape == (20, 20)
    assert axes.texts[1:] == [], "no room for values"


def test_the_picture_holds_the_values_twice(tmp_path):
    run = cluster(4)
    bandwidth, latency = _axes(tmp_path, run, *sweep(run, _slow_pair(0, 2)))
    grid = bandwidth.images[0].get_array()
    assert np.array_equal(grid.mask, np.eye(4, dtype=bool))
    assert np.allclose(grid, grid.T)
    assert grid[0, 2] == pytest.approx(20, rel=0.01) and grid[0, 1] == pytest.approx(40, rel=0.01)
    assert latency.images[0].get_array()[0, 2] == pytest.approx(40, rel=0.01)
    values = [text.get_text() for text in bandwidth.texts if re.fullmatch(r"[\d.]+", text.get_text())]
    assert sorted(values) == ["20.0"] * 2 + ["40.0"] * 10


def test_the_picture_says_what_it_shows(tmp_path):
    run = cluster(6)
    records = [record for record in sweep(run, _slow_pair(1, 3)) if record["group_ranks"] != [0, 4]]
    bandwidth, latency = _axes(tmp_path, run, *records)
    assert bandwidth.get_title(loc="left") == "all_reduce: bandwidth of every pair of nodes"
    assert latency.get_title(loc="left") == "all_reduce: latency of every pair of nodes"
    assert "busbw in GB/s at 1 GiB, pipelined" in [text.get_text() for text in bandwidth.texts]
    assert bandwidth.get_xlabel().splitlines() == [
        "hatched: not measured",
        "framed: slower than the others by more than the noise",
        "n1 – n3: 20.0 GB/s, 50 % below",
    ]
    assert [label.get_text() for label in bandwidth.get_yticklabels()] == [f"n{node}" for node in range(6)]
    bars = [axes.get_ylabel() for axes in bandwidth.figure.axes if not axes.images]
    assert bars == ["bus bandwidth (GB/s)", "time (us)"]


def test_slow_links_are_framed(tmp_path):
    run = cluster(6)
    axes = _axes(tmp_path, run, *sweep(run, _slow_pair(1, 3)))[0]
    (frame,) = axes.collections
    corners = {tuple(map(float, corner)) for edge in frame.get_segments() for corner in edge}
    squares = [(1, 3), (3, 1)]
    assert corners == {(x + dx, y + dy) for x, y in squares for dx in (-0.5, 0.5) for dy in (-0.5, 0.5)}


def test_dark_is_slow_in_both_panels(tmp_path):
    run = cluster(6)
    for axes in _axes(tmp_path, run, *sweep(run, _slow_pair(1, 3))):
        image = axes.images[0]
        colours = image.to_rgba(image.get_array())[..., :3].sum(axis=-1)
        assert colours[1, 3] < colours[0, 1]


def test_noise_does_not_fill_the_colour_scale(tmp_path):
    run = cluster(4)
    image = _axes(tmp_path, run, *sweep(run, lambda ranks: 1 + 0.001 * sum(ranks)))[0].images[0]
    low, high = image.get_clim()
    assert low < 36 and high > 44


def test_very_unlike_links_have_logarithmic_colours(tmp_path):
    run = cluster(2, 4)

    def within_is_faster(ranks):
        return 0.1 if ranks[0] // 4 == ranks[1] // 4 else 1

    for axes in _axes(tmp_path, run, *sweep(run, within_is_faster, group="pairs:rank")):
        assert isinstance(axes.images[0].norm, LogNorm)


def test_every_collective_has_a_row(tmp_path):
    run = cluster(3)
    records = [*sweep(run, collective="broadcast", redop=None), *sweep(run)]
    titles = [axes.get_title(loc="left").split(":")[0] for axes in _axes(tmp_path, run, *records)]
    assert titles == ["all_reduce", "all_reduce", "broadcast", "broadcast"]
    text = _shown(tmp_path, run, *records)
    assert text.index("all_reduce, pairs: 3 nodes") < text.index("broadcast, pairs: 3 nodes")


def test_a_picture_of_very_many_tables_is_cut_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("collbench.report.matrix._MOST_TABLES", 2)
    run = cluster(2)
    text = _shown(tmp_path, run, *(pair(run, (0, 1), dtype=f"float{n}") for n in range(3)))
    assert text.count("all_reduce, pairs, float") == 3
    assert text.endswith(f"heat map: {tmp_path / 'pairs.png'} (the first 2 of 3 tables)\n")


def test_one_quantity_alone_is_drawn(tmp_path):
    run = cluster(3)
    records = [pair(run, ranks, busbw_GBps=None) for ranks in pairs_of(run)]
    assert [axes.get_title(loc="left").split(": ")[1][:7] for axes in _axes(tmp_path, run, *records)] == ["latency"]
    (table,) = pair_tables(results(tmp_path, run, *records))
    assert not any(line.startswith("bandwidth") for line in matrix_lines(table))


def test_equal_results_give_equal_pictures(tmp_path):
    run = cluster(3)
    records = sweep(run)
    _shown(tmp_path, run, *records)
    first = (tmp_path / "pairs.png").read_bytes()
    _shown(tmp_path, run, *records)
    assert (tmp_path / "pairs.png").read_bytes() == first


def test_a_picture_that_cannot_be_written_is_an_error_and_nothing_is_printed(tmp_path):
    run = cluster(3)
    file = results(tmp_path, run, *sweep(run))
    (tmp_path / "taken").write_text("")
    printed = []
    for png, message in (
        (tmp_path / "taken" / "x.png", "cannot be written .*: name another file after --matrix"),
        (tmp_path / "pairs.jsonl", "a picture of the pairs is a PNG: name a file that ends in .png"),
    ):
        with pytest.raises(InputError, match=message):
            show_matrix(file, png, printed.append)
    assert printed == []
    assert (tmp_path / "pairs.jsonl").read_text().startswith("{"), "the results are still there"


def test_a_file_without_pairs_is_an_error_and_draws_nothing(tmp_path):
    with pytest.raises(InputError, match="holds no pairs: measure them with 'collbench run --group pairs'"):
        show_matrix(results(tmp_path, cluster(3)), tmp_path / "pairs.png", print)
    assert not (tmp_path / "pairs.png").exists()
