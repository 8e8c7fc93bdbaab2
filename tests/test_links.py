"""From measurements of pairs to matrices: what is read, pooled and named."""

from __future__ import annotations

import pytest
from pair_records import ALPHA_US, BUSBW_GBps, cluster, pair, pairs_of, results, sweep
from sample_records import measurement, run_record

from collbench.errors import InputError
from collbench.links import pair_tables


def _table(folder, *records):
    (table,) = pair_tables(results(folder, *records))
    return table


def _values(table):
    return [dict(matrix.values) for matrix in table.matrices]


def test_bandwidth_is_read_at_the_largest_size_and_latency_at_the_smallest(tmp_path):
    run = cluster(3, 2)
    table = _table(tmp_path, run, *sweep(run))
    bandwidth, latency = table.matrices
    assert (table.places, table.group, table.links) == (("n0", "n1", "n2"), "pairs", 3)
    assert (bandwidth.quantity, bandwidth.size_bytes, bandwidth.timing) == ("bandwidth", 1 << 30, "pipelined")
    assert (latency.quantity, latency.size_bytes, latency.timing) == ("latency", 8, "isolated")
    assert bandwidth.values.keys() == latency.values.keys() == {(0, 1), (0, 2), (1, 2)}
    assert all(0.99 * BUSBW_GBps < value < BUSBW_GBps for value in bandwidth.values.values())
    assert all(value == pytest.approx(ALPHA_US, rel=0.01) for value in latency.values.values())


@pytest.mark.parametrize("timing", ["isolated", "pipelined"])
def test_the_regime_that_was_not_measured_is_replaced_and_said(tmp_path, timing):
    run = cluster(2)
    table = _table(tmp_path, run, *sweep(run, timing=timing))
    assert [matrix.timing for matrix in table.matrices] == [timing, timing]
    assert [matrix.fell_back for matrix in table.matrices] == [timing == "isolated", timing == "pipelined"]


def test_passes_and_halves_are_pooled_by_the_median(tmp_path):
    run = cluster(2)
    times = [(True, 0, 10.0), (True, 1, 12.0), (False, 0, 30.0)]
    records = [pair(run, (0, 1), in_place=in_place, time_us=t, **{"pass": p}) for in_place, p, t in times]
    assert _values(_table(tmp_path, run, *records))[1] == {(0, 1): 12.0}


def test_size_zero_and_no_elements_are_no_latency(tmp_path):
    run = cluster(2)
    empty = [pair(run, (0, 1), size_bytes=0, time_us=1.0), pair(run, (0, 1), size_bytes=4, count=0, time_us=2.0)]
    assert _table(tmp_path, run, *empty, *sweep(run)).matrices[1].size_bytes == 8


def test_a_pair_without_the_largest_size_is_missing_rather_than_slow(tmp_path):
    run = cluster(3)
    records = [r for r in sweep(run) if r["group_ranks"] != [0, 2] or r["size_bytes"] == 8]
    bandwidth, latency = _values(_table(tmp_path, run, *records))
    assert set(bandwidth) == {(0, 1), (1, 2)}
    assert set(latency) == {(0, 1), (0, 2), (1, 2)}


def test_sizes_rounded_to_the_ranks_of_uneven_nodes_are_one_size(tmp_path):
    run = cluster(3, 4)
    run["nodes"][2]["ranks"] += [12, 13]
    run["world_size"] = 14
    sizes = {8: 1000000 // 128 * 128, 10: 1000000 // 160 * 160}  # 16 bytes for each rank
    gather = {"collective": "all_gather_into_tensor", "redop": None, "timing": "pipelined"}
    records = [pair(run, ranks, size_bytes=sizes[len(ranks)], **gather) for ranks in pairs_of(run)]
    assert len(set(sizes.values())) == 2
    assert set(_table(tmp_path, run, *records).matrices[0].values) == {(0, 1), (0, 2), (1, 2)}


def test_ranks_are_named_with_their_node(tmp_path):
    run = cluster(2, 2)
    table = _table(tmp_path, run, *sweep(run, group="pairs:rank"))
    assert table.places == ("n0 r0", "n0 r1", "n1 r2", "n1 r3")
    assert table.node_of == (0, 0, 1, 1)
    assert table.links == len(table.matrices[0].values) == 6


def test_nodes_of_one_host_are_told_apart_by_their_number(tmp_path):
    run = cluster(3)
    for node in run["nodes"]:
        node["host"] = "box"
    assert _table(tmp_path, run, *sweep(run)).places == ("box/0", "box/1", "box/2")


@pytest.mark.parametrize(
    ("hosts", "places"),
    [
        (("a.lab.org", "b.lab.org"), ("a", "b")),
        (("a.lab.org", "a.home.org"), ("a.lab.org", "a.home.org")),
        (("10.0.0.1", "11.0.0.1"), ("10.0.0.1", "11.0.0.1")),
    ],
)
def test_a_domain_that_all_hosts_share_is_left_out(tmp_path, hosts, places):
    run = cluster(2)
    for node, host in zip(run["nodes"], hosts, strict=True):
        node["host"] = host
    assert _table(tmp_path, run, *sweep(run)).places == places


def test_a_run_continued_on_the_hosts_in_another_order_is_one_table(tmp_path):
    first, second = cluster(3, run_id="r1"), cluster(3, run_id="r2")
    second["nodes"] = [node | {"ranks": [2 - index]} for index, node in enumerate(second["nodes"])]
    records = [pair(first, (0, 1), time_us=10.0), pair(second, (0, 1), time_us=30.0)]  # n0 - n1, then n2 - n1
    assert _values(_table(tmp_path, first, second, *records))[1] == {(0, 1): 10.0, (1, 2): 30.0}


def test_every_collective_has_a_table_and_the_most_asked_for_come_first(tmp_path):
    run = cluster(2, 2)
    records = [
        record
        for group in ("pairs:rank", "pairs")
        for name in ("broadcast", "all_reduce")
        for record in sweep(run, collective=name, group=group)
    ]
    tables = pair_tables(results(tmp_path, run, *records))
    names = [(table.group, table.collective) for table in tables]
    assert names == [(group, name) for group in ("pairs", "pairs:rank") for name in ("all_reduce", "broadcast")]
    assert {table.details for table in tables} == {""}


def test_datatypes_and_contention_are_not_pooled_and_are_said(tmp_path):
    run = cluster(2)
    records = [*sweep(run), *sweep(run, dtype="bfloat16"), *sweep(run, concurrent=False)]
    details = [table.details for table in pair_tables(results(tmp_path, run, *records))]
    assert details == [
        "float32, several pairs at a time",
        "bfloat16, several pairs at a time",
        "float32, one pair at a time",
    ]


def test_wrong_data_are_left_out_and_named(tmp_path):
    run = cluster(3)
    records = [record | {"wrong": 3 * (record["group_ranks"] == [0, 2])} for record in sweep(run)]
    table = _table(tmp_path, run, *records)
    assert set(table.matrices[0].values) == {(0, 1), (1, 2)}
    assert table.notes == ("wrong data on n0 – n2: these measurements are left out",)


@pytest.mark.parametrize(
    ("fields", "sigma"),
    [
        ({}, None),
        ({"time_us_interval": None, "time_p5_us": None}, None),
        ({"time_us_interval": [98.02, 102.02]}, 0.0102),  # 4 % wide, and 3.92 sigma
        ({"time_p5_us": 90.0, "time_p95_us": 110.0, "iterations": 25}, 0.0153),  # 20 % is 3.29 sigma, of 25 samples
        ({"time_p5_us": 90.0, "time_p95_us": 110.0, "timing": "pipelined"}, 0.0764),  # of one
    ],
)
def test_the_uncertainty_of_one_measurement(tmp_path, fields, sigma):
    run = cluster(2)
    table = _table(tmp_path, run, pair(run, (0, 1), **fields))
    assert table.matrices[1].sigma[0, 1] == (None if sigma is None else pytest.approx(sigma, rel=0.01))


def test_passes_that_differ_make_a_link_uncertain_but_in_place_or_not_does_not(tmp_path):
    run = cluster(2)
    interval = {"time_us_interval": [99.9, 100.1]}

    def sigma(*variants):
        records = [pair(run, (0, 1), time_us=t, in_place=i, **{"pass": p}, **interval) for i, p, t in variants]
        return _table(tmp_path, run, *records).matrices[1].sigma[0, 1]

    assert sigma((True, 0, 90.0), (True, 1, 110.0)) == pytest.approx(0.1, rel=0.01)  # half the difference
    assert sigma((True, 0, 90.0), (False, 0, 110.0)) < 0.001


def test_a_file_without_pairs_says_how_to_measure_them(tmp_path):
    with pytest.raises(InputError) as error:
        pair_tables(results(tmp_path, run_record(), measurement()))
    assert str(error.value) == (
        f"{tmp_path / 'pairs.jsonl'}: holds no pairs: measure them with 'collbench run --group pairs'"
    )


def test_pairs_that_tell_nothing_are_an_error(tmp_path):
    run = cluster(2)
    with pytest.raises(InputError, match="none of its pairs says how fast a link is"):
        pair_tables(results(tmp_path, run, pair(run, (0, 1), wrong=1), pair(run, (0, 1), size_bytes=0, time_us=1.0)))


def test_ranks_on_no_known_node_are_an_error(tmp_path):
    run = cluster(2)
    with pytest.raises(InputError, match="run r1 does not say which node rank 7 is on"):
        pair_tables(results(tmp_path, run, pair(run, (0, 7))))
