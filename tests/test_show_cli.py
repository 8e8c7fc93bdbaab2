"""`collbench show`: nccl-tests' flags, what they show, and what a table says at its end."""

from __future__ import annotations

import argparse
import csv
import io
import json

import pytest
from nccl_samples import half, halves
from sample_records import measurement, run_record, write_lines

from collbench import cli
from collbench.cli.table_flags import add_table_flags, normalize, table_style
from collbench.errors import InputError

AR, AG = "all_reduce", "all_gather_into_tensor"


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def show(capsys):
    """`collbench show` in this process: (exit code, stdout, stderr)."""

    def call(*arguments):
        code = cli.main(["show", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def refused(answer):
    code, out, err = answer
    assert (code, out) == (2, "") and err.endswith("\n") and err.count("\n") == 1
    return err


MORE = {
    "time_p5_us": 19.0, "time_p95_us": 33.256, "time_p99_us": 40.0, "time_us_interval": [20.4, 20.6], "precise": True,
    "late": 2, "late_ranks": [1], "first_call_us": 900.0, "cpu_time_us": 3.5, "time_rank0_us": 18.0,
    "time_rank_min_us": 17.0, "time_rank_max_us": 24.0, "measured": "2026-01-02T03:04:05+00:00", "rotation": 4,
    "per_iter": {"skipped_iterations": 0, "min_us": 12.0, "max_us": 140.25, "p99_us": 139.5, "cv_pct": 25.0},
}  # fmt: skip
PAIR = [measurement(time_us=time_us, **{**MORE, "pass": number}) for number, time_us in enumerate((20.48, 10.24))]
END = {"kind": "end", "run_id": "r1", "finished": "2026-01-02T03:05:05+00:00", "exit_code": 0, "reason": None,
       "memory_bytes": {"initialization": 2**20, "user_allocated": 2**20, "collective": 0, "total": 2**21}}  # fmt: skip


@pytest.fixture
def results(tmp_path):
    return write_lines(tmp_path / "r.jsonl", run_record(), *PAIR, END)


def rows(out):
    return [line.split() for line in out.splitlines() if line.startswith(" ")]


# --- flags -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "spelt"),
    [
        (["--nccl-tests", "r.jsonl"], ["--nccl-tests=2.19.6", "r.jsonl"]),
        (["--nccl-tests", "2.17.2", "r.jsonl"], ["--nccl-tests=2.17.2", "r.jsonl"]),
        (["--nccl-tests=2.13.0", "r.jsonl"], ["--nccl-tests=2.13.0", "r.jsonl"]),
        (["r.jsonl", "-C"], ["r.jsonl", "--report-cputime=1"]),
        (["-C", "1", "-S", "0", "r.jsonl"], ["--report-cputime=1", "--report-timestamps=0", "r.jsonl"]),
        (["-M", "-I", "r.jsonl"], ["--memory=1", "--per-iter-timing=1", "r.jsonl"]),
        (["--report_cputime", "r.jsonl"], ["--report-cputime=1", "r.jsonl"]),
        (["-C", "./1"], ["--report-cputime=1", "./1"]),
        (["-C1", "-a", "3"], ["-C1", "-a", "3"]),
        (["--", "-C", "1"], ["--", "-C", "1"]),
        ([], []),
    ],
)
def test_a_switch_takes_a_value_only_where_it_is_one(given, spelt):
    assert normalize(given) == spelt


def parsed(*words):
    parser = argparse.ArgumentParser()
    parser.add_argument("results", nargs="?")
    add_table_flags(parser.add_argument_group(), per_iter=True)
    return parser.parse_args(normalize(list(words)))


def test_the_flags_make_a_style():
    ordinary = table_style(parsed("r.jsonl"))
    assert (ordinary.plain, ordinary.average, ordinary.generation.name) == (False, 1, "2.19.6")
    assert not (ordinary.cpu_time or ordinary.timestamps or ordinary.memory or ordinary.per_iter)
    args = parsed("--nccl-tests", "-a", "3", "-C", "1", "-S", "1", "-M", "1", "-I", "1", "-J", "x.json", "r.jsonl")
    asked = table_style(args)
    assert (args.results, args.output_file) == ("r.jsonl", "x.json")
    assert asked.plain and asked.average == 3
    assert asked.cpu_time and asked.timestamps and asked.memory and asked.per_iter
    assert table_style(parsed("--nccl-tests=2.17.2")).generation.name == "2.17.2"
    assert not table_style(parsed("-C", "0")).cpu_time and table_style(parsed("-C1")).cpu_time
    assert table_style(parsed(), per_iter=True).per_iter


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-a", "4"], r"--average '4': expected 0 \(first rank\), 1 \(mean\), 2 \(fastest\) or 3"),
        (["-a", "max"], "--average 'max'"),
        (["--report-cputime=2"], "--report-cputime '2': expected 0 or 1"),
        (["--nccl-tests=2.9"], r"--nccl-tests=2\.9: not a known version of nccl-tests: expected 2\.13\.0 to 2\.19\.6"),
        (["--nccl-tests="], "--nccl-tests=: not a known version"),
        (["--nccl-tests=2.17.2", "-S"], r"-S: nccl-tests 2\.17\.2 .* came with 2\.17\.6"),
        (["--nccl-tests", "2.19.1", "-I", "1"], r"-I: nccl-tests 2\.19\.1"),
    ],
)
def test_a_value_that_is_none_is_refused(words, complaint):
    with pytest.raises(InputError, match=complaint):
        table_style(parsed(*words))


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--csv", "--json"], "argument --json: not allowed with argument --csv"),
        (["--csv", "--nccl-tests"], "argument --csv: not allowed with argument --nccl-tests"),
        (["--nccl-tests", "--json"], "argument --json: not allowed with argument --nccl-tests"),
        (["-S"], "--report-timestamps is about nccl-tests' table: add --nccl-tests"),
        (["-a", "3"], "--average is about nccl-tests' table"),
        (["-M", "1", "--csv"], "--memory is about nccl-tests' table"),
        (["-J", "out.txt"], "expected a name that ends with .json"),
        (["-J", "/none/there.json"], "there is no folder /none"),
        (["--nccl-tests=2.99"], "expected 2.13.0 to 2.19.6"),
    ],
)
def test_flags_that_contradict_are_refused_before_the_file_is_read(show, flags, complaint):
    assert complaint in refused(show(*flags, "none.jsonl"))


@pytest.mark.parametrize(
    ("flags", "field"),
    [(["-a", "0"], "time_rank0_us"), (["-a", "2"], "time_rank_min_us"), (["-C"], "cpu_time_us"), (["-S"], "measured"),
     (["-I"], "per_iter")],
)  # fmt: skip
def test_a_column_of_which_the_file_knows_nothing_is_refused(show, tmp_path, flags, field):
    path = write_lines(tmp_path / "r.jsonl", run_record(), *(measurement(**{"pass": number}) for number in (0, 1)))
    assert f"no measurement in {path} has {field}" in refused(show("--nccl-tests", *flags, path))


# --- nccl-tests' table -----------------------------------------------------------------------------------------------


def test_nccl_tests_table_and_nothing_else(show, results):
    code, out, err = show("--nccl-tests", results)
    assert (code, err) == (0, "") and "collbench" not in out
    assert rows(out) == [
        ["1024", "256", "float", "sum", "-1", "20.48", "0.05", "0.05", "0", "10.24", "0.10", "0.10", "0"]
    ]
    assert out.endswith("# Collective test concluded: all_reduce_perf\n#\n\n")
    assert show("--nccl-tests", "2.19.6", results)[1] == out
    old = show("--nccl-tests=2.13.0", results)[1]
    assert "concluded" not in old and old.endswith("# Avg bus bandwidth    : 0.075 \n#\n")


def test_the_flags_choose_its_columns(show, results):
    assert rows(show("--nccl-tests", "-a", "3", results)[1])[0][5:8] == ["24.00", "0.04", "0.04"]
    out = show("--nccl-tests", "-C", "1", "-S", "1", "-M", "1", "-I", "1", results)[1]
    [row] = rows(out)
    assert row[5:13] == ["3.50", "0.05", "0.05", "0", "12.00", "140.25", "139.50", "25.00"] and len(row) == 23
    assert (
        "# GPU memory usage     : Initialization 1.00 MB | User-Allocated 1.00 MB | Collective 0.00 B | Total  2.00 MB"
        in out
    )
    assert " cputime " in out and "timestamp" in out and "i_cv%" in out
    assert "GPU memory" not in show("--nccl-tests", "-M", "0", results)[1]


def test_memory_that_the_file_does_not_know_is_said(show, tmp_path):
    path = write_lines(tmp_path / "r.jsonl", run_record(), *PAIR)
    code, out, err = show("--nccl-tests", "-M", path)
    assert code == 0 and "GPU memory" not in out and "does not say how much" in err


def test_isolated_calls_in_nccl_tests_layout_are_told_of(show, tmp_path):
    path = write_lines(tmp_path / "r.jsonl", run_record(), *({**record, "timing": "isolated"} for record in PAIR))
    code, out, err = show("--nccl-tests", path)
    assert code == 0 and len(rows(out)) == 1 and err.count("\n") == 1 and "isolated calls" in err


def test_shuffled_cells_of_two_passes_are_tables_in_order(show, tmp_path):
    sweep = {"collective": [AG, AR], "passes": 2}
    records = []
    for size in (64, 8):
        for number in (1, 0):
            records += [half(AR, size, size // 4, "float32", 10.0 + number, side, **{"pass": 2 * number + side})
                        for side in (True, False)]  # fmt: skip
            records += [half(AG, size, size // 4, "float32", 20.0 + number, side, **{"pass": number})
                        for side in (True, False)]  # fmt: skip
    out = show("--nccl-tests", write_lines(tmp_path / "r.jsonl", run_record(sweep=sweep), *records))[1]
    shown = [(row[0], row[3], row[5]) for row in rows(out)]
    assert shown == [
        ("8", "none", "20.00"), ("64", "none", "20.00"), ("8", "sum", "10.00"), ("64", "sum", "10.00"),
        ("8", "none", "21.00"), ("64", "none", "21.00"), ("8", "sum", "11.00"), ("64", "sum", "11.00"),
    ]  # fmt: skip
    assert out.count("# Using devices") == 4


# --- JSON report -----------------------------------------------------------------------------------------------------


def test_a_report_is_written_beside_the_table_and_never_over_another(show, results, tmp_path):
    path = tmp_path / "out.json"
    for number, name in enumerate(["out.json", "out.json.0"]):
        code, out, err = show("-J", path, "--nccl-tests", "-a", "3", results)
        assert code == 0 and len(rows(out)) == 1
        assert err == f"collbench: nccl-tests' JSON is in {tmp_path / name}\n", number
        document = json.loads((tmp_path / name).read_text())
        assert document["results"][0]["in_place"]["time"] == 24.0 and document["end_time"] is not None


def test_each_sweep_of_a_file_has_its_report(show, tmp_path):
    path = write_lines(
        tmp_path / "r.jsonl",
        run_record("r1", sweep={"iters": 20}), *({**record, "run_id": "r1"} for record in PAIR),
        run_record("r2", sweep={"iters": 5}), *({**record, "run_id": "r2"} for record in PAIR),
    )  # fmt: skip
    show("-J", tmp_path / "out.json", path)
    documents = [json.loads((tmp_path / name).read_text()) for name in ("out.json", "out.json.0")]
    assert [document["config"]["iterations"] for document in documents] == [20, 5]
    assert all(len(document["results"]) == 1 for document in documents)


def test_nothing_is_written_for_a_file_that_cannot_be_read(show, tmp_path):
    refused(show("-J", tmp_path / "out.json", tmp_path / "none.jsonl"))
    assert list(tmp_path.iterdir()) == []


# --- CSV and collbench's own table -----------------------------------------------------------------------------------


def test_csv_has_the_contracts_columns_first_and_the_new_ones_after(show, results):
    out = show("--csv", results)[1]
    contract = (
        "run_id,collective,group,group_ranks,nranks,nnodes,dtype,redop,root,in_place,pass,size_bytes,count,timing,"
        "concurrent,iterations,time_us,time_min_us,time_p50_us,time_p95_us,time_max_us,time_rank_max_us,"
        "slowest_rank,algbw_GBps,busbw_GBps,wrong,"
    )
    assert out.startswith(contract)
    first = next(csv.DictReader(io.StringIO(out)))
    assert set(MORE) - {"per_iter"} <= set(first)
    assert (first["time_us_interval"], first["late_ranks"], first["cpu_time_us"]) == ("20.4 20.6", "1", "3.5")


def test_the_table_shows_how_well_a_time_is_known(show, tmp_path):
    rough = {**PAIR[1], "time_us_interval": [10.0, 11.0], "precise": False, "late": 0}
    fixed = measurement(timing="isolated", size_bytes=2048)
    out = show(write_lines(tmp_path / "r.jsonl", run_record(), PAIR[0], rough, fixed))[1].splitlines()
    names = (
        out[0].replace(" us", "_us").replace(" GB/s", "_GB/s").replace("± %", "±").replace("in place", "form").split()
    )
    assert names[6:] == ["time_us", "±", "p95_us", "algbw_GB/s", "busbw_GB/s", "wrong", "late", "slowest"]
    assert [line.split()[7:10] + line.split()[-4:] for line in out[1:4]] == [
        ["20.48", "0.6", "33.26", "0", "2", "rank", "1"],
        ["10.24", "7.4*", "33.26", "0", "-", "rank", "1"],
        ["100.00", "-", "-", "0", "-", "rank", "1"],
    ]
    assert out[4].startswith("* the cell's time was up") and len(out) == 5
    assert len({line.index("rank ") for line in out[1:4]}) == 1


def test_the_table_is_in_the_sweeps_order_whatever_the_order_of_measuring(show, tmp_path):
    run = run_record(sweep={"collective": [AG, AR], "timing": ["pipelined", "isolated"]})
    records = [
        half(name, size, size // 4, "float32", 9.0, side, timing=timing)
        for timing in ("isolated", "pipelined") for side in (False, True) for size in (2048, 64) for name in (AR, AG)
    ]  # fmt: skip
    imported = {"kind": "measurement", "run_id": "r1", "collective": "barrier", "size_bytes": 0, "time_us": 1.5,
                "timing": "pipelined"}  # fmt: skip
    lines = show(write_lines(tmp_path / "r.jsonl", run, imported, *records))[1].splitlines()[1:]
    # "in place" tells two lines of one size apart, and they stay as they were measured
    assert [" ".join(line.split()[index] for index in (0, 3, 4, 5)) for line in lines[:-1]] == [
        f"{name} {timing} {form} {'64' if size == 64 else '2'}"
        for name in (AG, AR) for timing in ("pipelined", "isolated") for size in (64, 2048)
        for form in (("yes", "yes") if name == AR else ("no", "yes"))
    ]  # fmt: skip
    assert lines[-1].split()[0] == "barrier"


def test_the_table_ends_with_what_the_groups_make_together_and_cost_one_another(show, tmp_path):
    records = [
        half(AR, 1024, 256, "float32", time_us, False, group="inter", group_ranks=ranks, nranks=2, concurrent=together)
        for together, times in ((True, (50.0, 100.0)), (False, (40.0, 50.0)))
        for ranks, time_us in zip(([0, 2], [1, 3]), times, strict=True)
    ]
    total = {"kind": "aggregate", "run_id": "r1", "collective": AR, "group": "inter", "dtype": "float32",
             "redop": "sum", "size_bytes": 1024, "timing": "pipelined", "concurrent": True, "groups": 2,
             "time_us": 100.0, "slowest_group": [1, 3], "busbw_GBps_sum": 0.031, "overlap": 0.5}  # fmt: skip
    code, out, err = show(write_lines(tmp_path / "r.jsonl", run_record(), *records, total))
    assert (code, err) == (0, "")
    _, of_groups, cost = out.split("\n\n")
    assert of_groups.splitlines()[2].split()[-7:] == ["100.00", "0.031", "50", "%", "ranks", "1", "3"]
    assert cost.splitlines()[2].split()[-6:] == ["100.00", "50.00", "2.00", "ranks", "1", "3"]


def test_a_size_in_every_collective_is_shown(show, tmp_path):
    pairs = [halves(name, 64, 16, "float32", 9.0, 9.0) for name in ("reduce", "send_recv", "hypercube", "gather")]
    path = write_lines(
        tmp_path / "r.jsonl", run_record(), *(record for pair in pairs for side in pair for record in side)
    )
    assert len(rows(show("--nccl-tests", path)[1])) == 4 and len(show(path)[1].splitlines()) == 9
