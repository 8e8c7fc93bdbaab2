"""PyTorch profiler traces: from the last arrival to the last completion, and what one rank alone can say."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys

import pytest

from collbench.importers.check import Asked
from collbench.importers.kineto import FORMAT
from collbench.importers.reading import read_log, read_together
from collbench.importers.source import Log, read_sources

BASE = 1_700_000_000_000_000_000


def call(
    ts, dur, named="allreduce", sent=1024, received=1024, size=4, seq=1, group="0", cat="kernel", ranks=None, **args
):
    """A communication kernel as Kineto writes it, with what torch knows of its call."""
    told = {"Collective name": named, "dtype": "Float", "In msg nelems": sent, "Out msg nelems": received,
            "Group size": size, "Process Group Name": group, "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(size)) if ranks is None else ranks), "In split size": "[]",
            "Out split size": "[]", "Seq": seq, "External id": int(ts * 1000) + seq} | args  # fmt: skip
    told = {name: value for name, value in told.items() if value is not None}
    return {"ph": "X", "cat": cat, "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "pid": 0, "tid": 20, "ts": ts, "dur": dur, "args": told}  # fmt: skip


NOISE = [
    {"ph": "X", "cat": "kernel", "name": "sgemm", "ts": 1.0, "dur": 2.0, "args": {"External id": 1}},
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
    {"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "ts": 1.0},
]


def trace(rank, *events, world=4, host="n0", backend="nccl", base=BASE, **members):
    document = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": backend, "rank": rank, "world_size": world, "pg_count": 1, "pg_config": [
            {"pg_name": "0", "pg_desc": "default_pg", "pg_size": world, "ranks": list(range(world))}]},
        "host_name": host, "baseTimeNanoseconds": base, "traceEvents": [*NOISE, *events], "traceName": "t.json",
    }  # fmt: skip
    return json.dumps(document | members, indent=1)


def together(*texts, asked=None):
    """What `collbench import` makes of these traces given at once."""
    logs = [Log.of_text(f"job/rank{index}.json", text) for index, text in enumerate(texts)]
    results = [read_log(log, [FORMAT], asked or Asked()) for log in logs]
    read_together(results, [FORMAT])
    return results


def tables(*texts):
    return [table for result in together(*texts) for table in result.tables]


def times(table):
    return [row.time_us.value for row in table.rows]


# --- several ranks ---------------------------------------------------------------------------------------------------


def test_a_call_lasts_from_the_last_arrival_to_the_last_completion():
    arrivals = (100.0, 103.5, 160.25, 120.0)
    results = together(*(trace(rank, call(ts, 200.5 + rank - ts)) for rank, ts in enumerate(arrivals)))
    [table] = results[0].tables
    assert times(table) == [203.5 - 160.25]
    assert (table.collective, table.nranks, table.nnodes, table.timing) == ("all_reduce", 4, 1, "isolated")
    [row] = table.rows
    assert (row.size_bytes, row.count, row.dtype, row.redop, row.in_place) == (4096, 1024, "float32", "sum", True)
    assert row.more == {"iterations": 1, "group": "world", "group_ranks": [0, 1, 2, 3]}
    assert [result.told_by for result in results] == 4 * ["job/rank0.json"]
    assert all(not result.tables for result in results[1:])
    measurement = next(record for record in results[0].records()[0] if record["kind"] == "measurement")
    assert measurement["busbw_GBps"] == pytest.approx(4096 / 43.25 / 1e3 * 1.5)


def test_the_traces_times_have_their_own_base():
    [table] = tables(trace(0, call(100.0, 50.0), world=2), trace(1, call(20.0, 30.0), world=2, base=BASE + 100_000))
    assert times(table) == [30.0]


def test_calls_are_matched_by_their_number_in_the_group():
    first = trace(0, call(0.0, 10.0, seq=6), call(100.0, 50.0, seq=7), call(200.0, 60.0, seq=8), world=2)
    second = trace(1, call(110.0, 40.0, seq=7), call(205.0, 55.0, seq=8), call(300.0, 9.0, seq=9), world=2)
    [table] = tables(first, second)
    [row] = table.rows
    assert (row.time_us.value, row.more["iterations"]) == (47.5, 2)
    assert (row.more["time_min_us"], row.more["time_p50_us"], row.more["time_max_us"]) == (40.0, 47.5, 55.0)
    assert any("1 calls left out" in note for note in table.notes)


def test_without_numbers_the_order_tells_if_all_have_as_many():
    def unnumbered(rank, *starts):
        return trace(rank, *(call(ts, 10.0, seq=index, Seq=None) for index, ts in enumerate(starts)), world=2)

    [table] = tables(unnumbered(0, 0.0, 100.0), unnumbered(1, 4.0, 108.0))
    assert sorted((table.rows[0].more["time_min_us"], table.rows[0].more["time_max_us"])) == [10.0, 10.0]
    first, _ = together(unnumbered(0, 0.0, 100.0), unnumbered(1, 4.0))
    assert first.tables == [] and "cannot be matched" in first.refused[0].reason


def test_clocks_that_cannot_be_one_are_told_and_not_used():
    one, other = call(0.0, 100.0, size=2), call(5000.0, 60.0, size=2)
    [table] = tables(trace(0, one, world=2), trace(1, other, world=2, host="n1"))
    assert times(table) == [60.0] and table.nnodes == 2
    assert any("4900 us" in note and "clocks differ" in note for note in table.notes)


def test_the_clocks_of_several_hosts_are_taken_as_one_and_that_is_said():
    [table] = tables(trace(0, call(0.0, 100.0), world=2), trace(1, call(50.0, 60.0), world=2, host="n1"))
    assert times(table) == [60.0] and any("2 hosts" in note for note in table.notes)


def test_a_broadcasts_root_may_be_done_before_the_others_come():
    [table] = tables(trace(0, call(0.0, 5.0, "broadcast"), world=2), trace(1, call(50.0, 20.0, "broadcast"), world=2))
    assert times(table) == [20.0] and not any("clocks differ" in note for note in table.notes)


def test_ranks_without_a_trace_are_told():
    [table] = tables(trace(0, call(0.0, 100.0)), trace(1, call(50.0, 50.0)))
    assert times(table) == [50.0] and table.nranks == 4 and table.nnodes is None
    assert any("2 of 4 ranks" in note for note in table.notes)


def test_groups_are_kept_apart():
    def of(rank, *events):
        return trace(rank, *events)

    shard = [of(rank, call(10.0 * rank, 100.0, group="1" if rank < 2 else "2", size=2,
                           ranks=[0, 1] if rank < 2 else [2, 3])) for rank in range(4)]  # fmt: skip
    found = tables(*shard)
    assert [row.more["group_ranks"] for table in found for row in table.rows] == [[0, 1], [2, 3]]
    assert {row.more["group"] for table in found for row in table.rows} == {"intra"}
    assert [table.nranks for table in found] == [2, 2] and found[0].more["world_size"] == 4


def test_several_kernels_of_one_call_are_one_span():
    events = [call(0.0, 10.0, **{"External id": 7}), call(15.0, 5.0, **{"External id": 7})]
    [table] = tables(trace(0, *events, world=2), trace(1, call(2.0, 18.0), world=2))
    assert times(table) == [18.0]


def test_a_trace_given_twice_counts_once():
    text = trace(0, call(0.0, 10.0), call(50.0, 10.0, seq=2))
    [table] = tables(text, text)
    assert table.rows[0].more["iterations"] == 2


@pytest.mark.parametrize(
    ("names", "jobs"),
    [
        (["a/rank0", "b/rank0", "a/rank1", "b/rank1"], 2),
        (["runs/a/0/t", "runs/b/0/t", "runs/a/1/t", "runs/b/1/t"], 2),
        (["a/0/t", "a/0/u", "a/1/t", "a/1/u"], 1),
        (["/x/0", "/x/00", "/x/1", "/x/11"], 1),
    ],
)
def test_traces_are_told_apart_by_the_folders_of_a_job(names, jobs):
    starts = (0.0, 1000.0, 5.0, 1005.0)
    logs = [
        Log.of_text(name, trace(index // 2, call(ts, 20.0, size=2, seq=index % 2 + 1), world=2))
        for index, (name, ts) in enumerate(zip(names, starts, strict=True))
    ]
    results = [read_log(log, [FORMAT], Asked()) for log in logs]
    read_together(results, [FORMAT])
    found = [table for result in results for table in result.tables]
    assert len(found) == jobs and {row.time_us.value for table in found for row in table.rows} == {20.0}
    assert sum(row.more["iterations"] for table in found for row in table.rows) == 2


def test_the_program_reads_the_traces_it_is_given_together(collbench, tmp_path):
    for rank, ts in enumerate((0.0, 60.0)):
        (tmp_path / f"rank{rank}.json").write_text(trace(rank, call(ts, 100.0 - ts, size=2), world=2))
    done = collbench("import", tmp_path, "-o", tmp_path / "out.jsonl", "--strict")
    assert done.returncode == 0 and "read together with" in done.stderr
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    [record] = [record for record in map(json.loads, lines) if "time_us" in record]
    assert record["time_us"] == 40.0 and record["timing"] == "isolated"
    one = collbench("import", tmp_path / "rank0.json", "-o", "-")
    [record] = [record for record in map(json.loads, one.stdout.splitlines()) if "time_us" in record]
    assert record["time_us"] == 100.0 and "waits" in one.stderr


# --- one rank, and what a call is ------------------------------------------------------------------------------------


def alone(*events, **members):
    [result] = together(trace(0, *events, **members))
    return result


def test_one_ranks_own_times_are_said_to_hold_its_waits():
    result = alone(call(0.0, 100.0), call(200.0, 300.0, seq=2), call(600.0, 140.0, seq=3))
    [table] = result.tables
    assert times(table) == [140.0] and table.rows[0].more["mode"] == "waits included"
    assert any("waits for the others included" in note for note in table.notes) and table.nnodes is None


@pytest.mark.parametrize(
    ("named", "sent", "received", "collective", "size", "count"),
    [
        ("allreduce", 1024, 1024, "all_reduce", 4096, 1024),
        ("allreduce_coalesced", 1024, 1024, "all_reduce", 4096, 1024),
        ("_allgather_base", 256, 1024, "all_gather_into_tensor", 4096, 256),
        ("all_gather_single", 256, 1024, "all_gather_into_tensor", 4096, 256),
        ("_reduce_scatter_base", 1024, 256, "reduce_scatter_tensor", 4096, 256),
        ("reduce_scatter", 1024, 256, "reduce_scatter_tensor", 4096, 256),
        ("all_to_all", 1024, 1024, "all_to_all_single", 4096, 256),
        ("all_to_allv", 1024, 1024, "all_to_all_single", 4096, 256),
        ("_broadcast_oop", 1024, 1024, "broadcast", 4096, 1024),
        ("reduce", 1024, 0, "reduce", 4096, 1024),
        ("gather", 256, 0, "gather", 4096, 256),
        ("scatter", 1024, 256, "scatter", 4096, 256),
    ],
)
def test_sizes_are_those_of_nccl_tests(named, sent, received, collective, size, count):
    [table] = alone(call(0.0, 10.0, named, sent, received)).tables
    [row] = table.rows
    assert (table.collective, row.size_bytes, row.count) == (collective, size, count)


def test_an_uneven_exchange_is_marked():
    [table] = alone(call(0.0, 10.0, "all_to_allv", 1000, 1200, **{"In split size": "[100, 300, 300, 300]"})).tables
    assert (table.rows[0].size_bytes, table.rows[0].more["mode"]) == (4800, "uneven waits included")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"named": "_allgather_base"}, "do not fit a group of 4"),
        ({"sent": 1024, "received": 512}, "do not fit"),
        ({"dtype": "ComplexFloat"}, "dtype"),
        ({"In msg nelems": None}, "no message sizes"),
        ({"Group size": None, "group": "unknown"}, "no group size"),
        ({"Collective name": None}, "do not say which collective"),
    ],
)
def test_a_call_that_contradicts_itself_or_says_too_little_is_refused(changes, reason):
    result = alone(call(0.0, 10.0, **changes))
    assert result.tables == [] and reason in result.refused[0].reason and result.refused[0].line > 1


def test_what_is_no_collective_is_counted():
    [table] = alone(
        call(0.0, 10.0), call(20.0, 1.0, "send"), call(30.0, 1.0, "send"), call(40.0, 1.0, "barrier")
    ).tables
    assert len(table.rows) == 1 and any("1 barrier, 2 send" in note for note in table.notes)


def test_the_ranks_of_a_large_group_come_from_where_they_are_whole():
    cut = f"[{', '.join(map(str, range(29)))}, ..., 63]"
    [table] = alone(call(0.0, 10.0, size=64, **{"Process Group Ranks": cut}), world=64).tables
    assert table.rows[0].more["group_ranks"] == list(range(64))
    strided = {"Global rank start": 1, "Global rank stride": 2}
    [table] = alone(call(0.0, 10.0, size=40, group="7", **{"Process Group Ranks": cut}, **strided), world=80).tables
    assert table.rows[0].more["group_ranks"] == list(range(1, 81, 2))


def test_a_kernel_knows_what_its_call_on_the_cpu_says():
    bare = call(10.0, 50.0)
    bare["args"] = {"External id": 9, "stream": 20}
    [table] = alone(call(0.0, 3.0, cat="cpu_op", **{"External id": 9}) | {"name": "record_param_comms"}, bare).tables
    assert times(table) == [50.0] and table.rows[0].size_bytes == 4096


def test_the_cpus_time_of_starting_a_kernel_is_not_the_calls_time():
    event = call(0.0, 3.0, cat="cpu_op") | {"name": "record_param_comms"}
    result = alone(event)
    assert result.tables == [] and "ProfilerActivity.CUDA" in result.refused[0].reason
    [table] = alone(event, backend="mpi").tables
    assert times(table) == [3.0] and any("on the CPU" in note for note in table.notes)


def test_a_trace_that_is_cut_is_read_as_far_as_it_is_whole():
    text = trace(0, call(0.0, 10.0), call(20.0, 12.0, seq=2), call(40.0, 999.0, seq=3))
    [result] = together(text[: text.index("999")])
    assert result.tables[0].rows[0].more["iterations"] == 2
    assert any("no end" in note for note in result.tables[0].notes)


def test_gzip_and_the_bare_list_of_events(tmp_path):
    path = tmp_path / "rank0.pt.trace.json.gz"
    path.write_bytes(gzip.compress(trace(0, call(0.0, 10.0)).encode()))
    [log] = read_sources([str(path)])
    assert FORMAT.recognises(log) and [times(table) for table in FORMAT.read(log)] == [[10.0]]
    [table] = FORMAT.read(Log.of_text("list.json", json.dumps([*NOISE, call(0.0, 10.0, Rank=3)])))
    assert times(table) == [10.0] and table.rows[0].more["group"] == "world"


# --- gloo ------------------------------------------------------------------------------------------------------------


def span(ts, dur, named="all_reduce", dims=((1024,),), kind="float"):
    args = {"External id": int(ts), "Input type": [kind for _ in dims], "Input Dims": [list(each) for each in dims]}
    return {"ph": "X", "cat": "user_annotation", "name": f"gloo:{named}", "ts": ts, "dur": dur, "args": args}


def test_gloos_spans_are_calls_of_the_only_group():
    [table] = tables(
        trace(0, span(0.0, 90.0), backend="gloo", world=2), trace(1, span(50.0, 45.0), backend="gloo", world=2)
    )
    assert times(table) == [45.0] and (table.backend, table.nranks) == ("gloo", 2)
    assert any("on the CPU" in note for note in table.notes)


@pytest.mark.parametrize(
    ("named", "dims", "kind", "size"),
    [("all_gather", ((256,),), "c10::BFloat16", 2048), ("all_to_all", ((8, 128),), "double", 8192),
     ("all_reduce", ((100,), (28,)), "long int", 1024), ("broadcast", ((),), "int", 4)],
)  # fmt: skip
def test_gloos_sizes_are_those_of_nccl_tests(named, dims, kind, size):
    [table] = alone(span(0.0, 10.0, named, dims, kind), backend="gloo").tables
    assert table.rows[0].size_bytes == size


def test_gloos_spans_do_not_tell_among_several_groups_nor_without_shapes():
    groups = {"backend": "gloo", "rank": 0, "world_size": 4, "pg_config": [
        {"pg_name": "0", "pg_size": 4, "ranks": [0, 1, 2, 3]}, {"pg_name": "1", "pg_size": 2, "ranks": [0, 1]},
    ]}  # fmt: skip
    result = alone(span(0.0, 10.0), distributedInfo=groups)
    assert result.tables == [] and "several" in result.refused[0].reason
    bare = span(0.0, 10.0)
    del bare["args"]["Input Dims"]
    result = alone(bare, backend="gloo")
    assert result.tables == [] and "record_shapes=True" in result.refused[0].reason


WORKER = """
import sys, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{folder}/store")
one, all = torch.ones(1024), torch.zeros(2048)
dist.all_reduce(one)
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as traced:
    for _ in range(3):
        dist.all_reduce(one)
    dist.all_gather_into_tensor(all, one)
traced.export_chrome_trace(f"{folder}/rank{rank}.json")
dist.destroy_process_group()
"""


@pytest.mark.workers
def test_the_traces_of_a_real_job(tmp_path):
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(rank), str(tmp_path)], env=environment, **quiet)
        for rank in range(2)
    ]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    results = [read_log(log, [FORMAT], Asked()) for log in read_sources([f"{tmp_path}/rank{n}.json" for n in range(2)])]
    read_together(results, [FORMAT])
    found = {table.collective: table for table in results[0].tables}
    assert set(found) == {"all_reduce", "all_gather_into_tensor"} and results[0].refused == []
    [reduced], [gathered] = (found[name].rows for name in ("all_reduce", "all_gather_into_tensor"))
    assert (reduced.size_bytes, reduced.more["iterations"], gathered.size_bytes) == (4096, 3, 8192)
    assert all(table.nranks == 2 and table.nnodes == 1 and table.backend == "gloo" for table in found.values())
    assert all(0 < row.time_us.value < 60e6 for row in (reduced, gathered))
