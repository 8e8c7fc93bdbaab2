"""OSU micro-benchmarks: what is a collective of nccl-tests becomes one, with its size; what is none keeps its name."""

from __future__ import annotations

import pytest
from foreign_logs import expected, measurements, n_rows, read_handed, read_text


def table(title, rows, header="# Size       Avg Latency(us)", above=""):
    lines = "\n".join("".join(f"{cell:<12}" for cell in row) for row in rows)
    return f"{above}# OSU MPI {title} v7.4\n{header}\n{lines}\n"


ROWS = [(8, 3.25), (16, 3.5), (1048576, 420.75)]


def test_an_allreduce_is_one_of_float32_sums_timed_call_by_call():
    imported = read_text(table("Allreduce Latency Test", ROWS), nranks=4)
    first, *_, last = measurements(imported)
    assert (last["collective"], last["size_bytes"], last["time_us"], last["timing"]) == (
        *("all_reduce", 1048576, 420.75),
        "isolated",
    )
    assert (first["count"], first["dtype"], first["redop"], first["nranks"]) == (2, "float32", "sum", 4)
    assert last["busbw_GBps"] == pytest.approx(1048576 / 420.75e3 * 1.5)
    assert imported.tables[0].versions == {"osu": "7.4"}
    assert imported.tables[0].backend == "mpi"


@pytest.mark.parametrize(
    ("title", "collective", "size_bytes"),
    [
        ("Allgather Latency Test", "all_gather_into_tensor", 32),
        ("All-to-All Personalized Exchange Latency Test", "all_to_all_single", 32),
        ("Gather Latency Test", "gather", 32),
        ("Scatter Latency Test", "scatter", 32),
        ("Reduce_scatter Latency Test", "reduce_scatter_tensor", 8),
        ("Broadcast Latency Test", "broadcast", 8),
        ("Reduce Latency Test", "reduce", 8),
    ],
)
def test_sizes_count_all_shares_as_nccl_tests_has_it(title, collective, size_bytes):
    """Four ranks: what a rank contributes, or sends to each other, is a quarter."""
    first = measurements(read_text(table(title, ROWS), nranks=4))[0]
    assert (first["collective"], first["size_bytes"]) == (collective, size_bytes)


def test_per_rank_sizes_without_ranks_keep_the_tools_name_until_somebody_says_them():
    imported = read_text(table("Allgather Latency Test", ROWS))
    assert {record["collective"] for record in measurements(imported)} == {"osu_allgather"}
    assert any("--nranks" in note for note in imported.tables[0].notes)


@pytest.mark.parametrize(
    ("command", "nranks", "nnodes"),
    [
        ("$ mpirun -np 16 -npernode 8 ./osu_allgather -f", 16, 2),
        ("srun -N2 --ntasks-per-node=4 ./collective/osu_allgather", 8, 2),
        ("srun --ntasks=8 --nodes 4 osu_allgather", 8, 4),
        ("flux run -N 2 -n 6 /opt/omb/osu_allgather", 6, 2),
        ("mpiexec -n 3 osu_allgather 'a quote that is not closed", 3, None),
    ],
)
def test_ranks_come_from_the_command_line_above(command, nranks, nnodes):
    imported = read_text(table("Allgather Latency Test", ROWS, above=f"{command}\n\n"))
    first = measurements(imported)[0]
    assert (first["nranks"], first["nnodes"], first["size_bytes"]) == (nranks, nnodes, 8 * nranks)
    assert "line 1" in imported.tables[0].inferred["nranks"]


def test_ranks_come_from_greetings_and_task_maps():
    greeting = "".join(f"I am {rank} of 4: {rank % 2} on node{rank // 2}\n" for rank in (2, 0, 3, 1))
    imported = read_text(table("Broadcast Latency Test", ROWS, above=greeting))
    assert (imported.tables[0].nranks, imported.tables[0].nnodes) == (4, 2)
    assert imported.tables[0].nodes == [{"host": "node0", "ranks": [0, 1]}, {"host": "node1", "ranks": [2, 3]}]
    event = '{"timestamp":1.5,"name":"shell.start","context":{"taskmap":{"version":1,"map":[[0,4,8,1]]}}}\n'
    below = read_text(table("Broadcast Latency Test", ROWS) + event)
    assert (below.tables[0].nranks, below.tables[0].nnodes) == (32, 4)


def test_all_columns_of_f_are_kept():
    header = "# Size   Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations"
    rows = [(4, 30.08, 29.91, 30.22, 1000), (8, 30.5, 31.0, 32.0, 1000)]
    imported = read_text(table("Allreduce Latency Test", rows, header))
    (row,) = measurements(imported)
    assert (row["time_us"], row["time_rank_min_us"], row["time_rank_max_us"], row["iterations"]) == (
        *(30.08, 29.91, 30.22),
        1000,
    )
    assert [(refusal.line, "not between" in refusal.reason) for refusal in imported.refused] == [(4, True)]


def test_validation_is_what_wrong_says():
    header = "# Size       Avg Latency(us)        Validation"
    rows = [(4, 30.08, "Pass"), (8, 31.0, "Fail")]
    assert [row["wrong"] for row in measurements(read_text(table("Allreduce Latency Test", rows, header)))] == [0, 1]


def test_point_to_point_tests_are_no_collectives_and_flags_do_not_make_them_such():
    text = (
        table("Latency Test", [(0, 1.5), (8, 1.75)], "# Size          Latency (us)")
        + table("Bandwidth Test", [(1024, 2048.0)], "# Size      Bandwidth (MB/s)")
        + table("Allreduce Latency Test", ROWS)
    )
    imported = read_text(text, collective="all_reduce", nranks=8, nnodes=4)
    assert [(each.collective, each.nranks) for each in imported.tables] == [
        ("osu_latency", 2),
        ("osu_bw", 2),
        ("all_reduce", 8),
    ]
    bandwidth = measurements(imported)[2]
    assert bandwidth["time_us"] == pytest.approx(0.5)  # 1024 B at 2048 MB/s of 10^6
    assert (bandwidth["timing"], bandwidth["mode"]) == ("pipelined", "window")


def test_bibw_is_a_send_recv_of_two_ranks_by_half_its_sum():
    """What is measured with a window in flight is of a mode of its own: it is fitted only where there is no other."""
    (row,) = measurements(
        read_text(table("Bi-Directional Bandwidth Test", [(1048576, 40000.0)], "# Size      Bandwidth (MB/s)"))
    )
    assert (row["collective"], row["nranks"], row["mode"]) == ("send_recv", 2, "window")
    assert row["busbw_GBps"] == pytest.approx(20.0)


def test_mbw_mr_is_shared_among_its_pairs_and_checked_against_its_rate():
    header = "# [ pairs: 4 ] [ window size: 64 ]\n# Size                  MB/s        Messages/s"
    rows = [(1000, 4000.0, 4000000.0), (2000, 4000.0, 4000000.0)]
    imported = read_text(table("Multiple Bandwidth / Message Rate Test", rows, header))
    (row,) = measurements(imported)
    assert (row["collective"], row["nranks"], row["time_us"]) == ("osu_mbw_mr", 8, pytest.approx(1.0))
    assert [refusal.line for refusal in imported.refused] == [5]


def test_fit_leaves_point_to_point_out_and_says_so(tmp_path):
    from collbench.model.fit import fit_results
    from collbench.results import ResultsWriter

    text = table("Latency Test", [(8, 1.5), (16, 1.75), (32, 2.0)], "# Size          Latency (us)")
    imported = read_text(text + table("Allreduce Latency Test", ROWS), nranks=4)
    path = tmp_path / "r.jsonl"
    writer = ResultsWriter(path)
    for records in imported.records():
        for record in records:
            writer.append(record)
    writer.close()
    model = fit_results(path)
    assert {fit.collective for fit in model.fits} == {"all_reduce"}
    assert any("osu_latency" in note for note in model.notes)


def test_noise_between_rows_is_passed_over_and_torn_rows_are_refused():
    text = (
        "# OSU MPI-CUDA Allreduce Latency Test v7.0\n# Size       Avg Latency(us)\n"
        "[1678205653.808236] [node:903  :0]  ucc_coll.c:255  UCC_COLL INFO  coll_init\n"
        "8                     3.25\n[...]\n16                    3.50  [16782] UCX  WARN x\n32                 3.75\n"
        "24                    3.80\n64                    nan\n12 monkeys\n"
    )
    imported = read_text(text, nranks=2)
    assert [row["size_bytes"] for row in measurements(imported)] == [8, 32]
    assert [refusal.line for refusal in imported.refused] == [6, 8]


def test_tests_that_are_not_read_say_so():
    nonblocking = "# Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)"
    imported = read_text(table("Non-blocking Allreduce Latency Test", [(8, 1.5, 1.0, 1.0, 50.0)], nonblocking))
    assert not imported.tables
    assert "Non-blocking Allreduce" in imported.refused[0].reason


def test_a_table_without_its_title_is_told_by_the_command_above():
    text = "mpirun -n 4 ./osu_alltoall\nSize       Avg Latency(us)\n8           3.25\n16          3.5\n"
    assert [row["collective"] for row in measurements(read_text(text))] == ["all_to_all_single"] * 2
    bare = read_text("# Size      Bandwidth (MB/s)\n8           3.25\n" + "osu_bw and osu_bibw\n")
    assert not bare.tables


def test_prefixes_and_a_lost_hash_do_no_harm():
    text = "".join(f"[1,0]<stdout>:{line}\r\n" for line in table("Broadcast Latency Test", ROWS).splitlines())
    text = text.replace("# ", "")
    assert len(measurements(read_text(text, nranks=2))) == 3


@pytest.mark.parametrize(
    "line", ["999999999999999 3.25", "8 1e400", "8 0.00", "8 -1", f"8 {'9' * 5000}", "٣ 3.25", "8 3.25\x00", "8\t3,25"]
)
def test_hostile_rows_are_never_taken(line):
    imported = read_text(table("Allreduce Latency Test", []) + line + "\n")
    assert all(0 < row["time_us"] < 1e300 and row["size_bytes"] < 2**62 for row in measurements(imported))
    assert len(measurements(imported)) <= 1


HANDED = [
    *("drv013", "drv023", "osu002", "osu006", "osu007", "osu008", "osu010", "osu011", "osu012", "osu013", "osu014"),
    *("osu016", "osu017", "osu018", "osu019", "osu020", "osu021", "osu022", "osu023", "osu024", "osu025", "osu026"),
    *("osu027", "osu028", "osu029", "osu034", "osu035", "osu036"),
]


@pytest.mark.parametrize("name", HANDED)
def test_handed_logs_have_the_rows_of_the_index(logs, name):
    imported = read_handed(logs, name)
    assert imported.rows == n_rows(logs, name)
    assert not imported.refused


@pytest.mark.parametrize("name", ["osu002", "osu010", "osu012", "osu013", "osu016", "osu019", "osu020"])
def test_handed_logs_have_the_expected_values(logs, name):
    imported = read_handed(logs, name)
    want = expected(logs, name)
    assert len(imported.tables) == want["n_tables"]
    shown = [(imported.tables[0], want["tables"][0]), (imported.tables[-1], want["tables"][-1])]
    for got, table_wanted in shown:
        assert len(got.rows) == table_wanted["n_rows"]
        for row, cells in ((got.rows[0], table_wanted["first"]), (got.rows[-1], table_wanted["last"])):
            shares = got.nranks if got.collective == "all_to_all_single" else 1
            assert row.size_bytes == int(cells[0]) * shares
            if "Bandwidth" in table_wanted["title"]:
                assert int(cells[0]) / row.time_us.value == pytest.approx(float(cells[1]))
            else:
                assert row.time_us.value == float(cells[1])
