"""NCCL's own estimates: kept with the run, told as estimates, never a measurement."""

from __future__ import annotations

import json

import pytest

from collbench.importers.check import Asked
from collbench.importers.nccl_tuning import FORMAT
from collbench.importers.reading import read_log
from collbench.importers.registry import FORMATS
from collbench.importers.source import Log
from collbench.results import load_results


def log(*lines, source="n0:100:100 [0] NCCL INFO "):
    return Log.of_text("log", "\n".join(source + line for line in lines))


def block(algorithms, rows):
    """A block of the table as NCCL has printed it since 2.18: three protocols for each algorithm."""
    cells = [f" {protocol:>14} |" for _ in algorithms for protocol in ("LL", "LL128", "Simple")]
    return [
        "  Algorithm   |" + "".join(f" {'':14}   {name:>14}   {'':14} |" for name in algorithms),
        "  Protocol    |" + "".join(cells),
        " Max NThreads |" + "".join(f" {512:14d} |" for _ in cells),
        *(
            f"{name:>13} |" + "".join(f"{latency:8.1f}/{rate:6.1f} |" for latency, rate in pairs)
            for name, pairs in rows.items()
        ),
    ]


COMMUNICATOR = "comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0"
TABLE = [
    "NCCL version 2.27.3+cuda12.9",
    COMMUNICATOR,
    *block(["Tree", "Ring"], {"AllReduce": [(25.2, 11.3), (48.5, 0.0), (92.4, 220.8), (36.2, 12.0), (75.2, 235.5),
                                            (131.6, 256.0)]}),
    *block(["PAT"], {"AllGather": [(0.0, 0.0), (0.0, 0.0), (20.0, 13.0)]}),
]  # fmt: skip


def tables(*lines, **how):
    return list(FORMAT.read(log(*lines, **how)))


def test_the_table_of_a_communicator():
    [table] = tables(*TABLE)
    assert (table.nranks, table.nnodes, table.versions, table.backend) == (16, 2, {"nccl": "2.27.3"}, "nccl")
    assert table.rows == [] and "not measurements" in table.notes[0]
    costs = {(cost["collective"], cost["algorithm"], cost["protocol"]): cost for cost in table.estimates["costs"]}
    assert set(costs) == {
        ("all_reduce", "Tree", "LL"), ("all_reduce", "Tree", "Simple"), ("all_reduce", "Ring", "LL"),
        ("all_reduce", "Ring", "LL128"), ("all_reduce", "Ring", "Simple"), ("all_gather_into_tensor", "PAT", "Simple"),
    }  # fmt: skip
    cost = costs["all_reduce", "Ring", "LL128"]
    assert (cost["latency_us"], cost["bandwidth_GBps"], cost["max_threads"]) == (75.2, 235.5, 512)


def test_the_table_in_one_line_for_each_collective():
    [table] = tables(
        "Latency/AlgBw |    Tree/    LL |    Tree/ LL128 |    Tree/Simple |    Ring/    LL |    Ring/ LL128 |",
        "AllReduce |    14.5/   2.4 |    18.0/   0.0 |    90.0/  10.1 |    30.1/   3.0 |    40.2/  11.5 |",
    )
    assert [(cost["algorithm"], cost["protocol"], cost["latency_us"]) for cost in table.estimates["costs"]] == [
        ("Tree", "LL", 14.5), ("Tree", "Simple", 90.0), ("Ring", "LL", 30.1), ("Ring", "LL128", 40.2),
    ]  # fmt: skip


def test_an_elided_table_is_read_as_far_as_it_goes():
    [table] = tables(
        "  Algorithm   |     Tree     |     Ring     | …",
        "  Protocol    |  LL | LL128 | Simple | LL | LL128 | Simple | …",
        "    AllReduce |    25.2/ 11.3 |    48.5/225.0 | …",
    )
    assert [cost["protocol"] for cost in table.estimates["costs"]] == ["LL", "LL128"]


@pytest.mark.parametrize(
    ("line", "choice"),
    [
        ("AllReduce: 4096 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={2..5}",
         ("all_reduce", 4096, "Ring", "LL128", None, 4)),
        ("AllGather: 4096 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={0..0} cgaClusterSize 4",
         ("all_gather_into_tensor", 4096, "NVLSTree", "Simple", None, 1)),
        ("4096 Bytes -> Algo 1 proto 2 time 123.500000", (None, 4096, "Ring", "Simple", 123.5, None)),
        ("4096 Bytes -> Algo 99 proto 0 time -1.000000", (None, 4096, "99", "LL", None, None)),
    ],
)  # fmt: skip
def test_what_was_chosen_is_counted(line, choice):
    [table] = tables(*TABLE, line, line)
    [found] = table.estimates["choices"]
    assert tuple(found.values()) == (*choice, 2)


def test_equal_tables_are_one_and_others_are_apart():
    other = [COMMUNICATOR.replace("nRanks 16", "nRanks 8"), *block(["Ring"], {"AllReduce": [(1.0, 2.0)] * 3})]
    assert [table.nranks for table in tables(*TABLE, *TABLE[1:], *other)] == [16, 8]


def test_the_lines_of_several_processes_may_alternate():
    lines = [line for line in TABLE for line in (f"n0:1:1 [0] NCCL INFO {line}", f"n1:2:2 [0] NCCL INFO {line}")]
    [table] = tables(*lines, source="")
    assert len(table.estimates["costs"]) == 6


def test_it_is_in_the_run_record_and_nothing_is_measured(collbench, tmp_path):
    text = log(*TABLE).text()
    (tmp_path / "tuning.log").write_text(text)
    done = collbench("import", tmp_path / "tuning.log", "-o", tmp_path / "out.jsonl")
    assert done.returncode == 0 and "estimates" in done.stderr
    results = load_results(tmp_path / "out.jsonl")
    assert results.measurements == [] and len(results.runs[0]["estimates"]["costs"]) == 6
    fitted = collbench("fit", tmp_path / "out.jsonl", "-o", tmp_path / "model.json")
    assert fitted.returncode == 2 and "Traceback" not in fitted.stderr


def test_the_measurements_of_the_same_log_stay_measurements():
    rows = "#  size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong\n" + "".join(
        f"{size} {size // 4} float sum -1 {size / 1e4:.2f} 10.00 17.50 0 {size / 1e4:.2f} 10.00 17.50 0\n"
        for size in (1 << 20, 1 << 22)
    )
    text = "# Collective test starting: all_reduce_perf\n" + rows + log(*TABLE).text()
    imported = read_log(Log.of_text("log", text), FORMATS.values(), Asked())
    assert imported.rows == 2 and sorted(len(table.rows) for table in imported.tables) == [0, 4]
    assert json.dumps(imported.records())
