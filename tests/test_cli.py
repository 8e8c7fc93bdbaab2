"""The command line where it starts no ranks: words, exit codes, one line an error, `run --dry-run`, `show`, `env`."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from conftest import clean_environment
from sample_records import measurement, run_record, write_lines

import collbench.cli as cli
from collbench.sweep import load_sweep

COMMANDS = ["quickstart", "env", "run", "show", "fit", "estimate", "predict", "validate", "report"]
ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "COLLBENCH_VERDICT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch):
    """No test here may start ranks."""
    from collbench.measure import launch

    def refuse(*arguments):
        raise AssertionError(f"ranks would have been started: {arguments}")

    monkeypatch.setattr(launch, "launch", refuse)


@pytest.fixture
def run(capsys):
    """The program in this process: (exit code, stdout, stderr)."""

    def call(*arguments):
        code = cli.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def the_one_line(err):
    assert err.endswith("\n") and err.count("\n") == 1
    assert "Traceback" not in err
    return err


# --- the program itself ----------------------------------------------------------------------------------------------


def test_help_lists_every_command_with_what_it_does(run):
    for word in ("--help", "-h", "help"):
        code, out, err = run(word)
        assert (code, err) == (0, "")
        listed = {line.split()[0]: line.split(maxsplit=1)[1] for line in out.splitlines() if line.startswith("  ")}
        assert [name for name in COMMANDS if len(listed.get(name, "")) < 10] == []
        assert "130" in out and "--json" in out


def test_without_a_command_it_shows_the_help_and_says_no(run):
    code, out, err = run()
    assert code == 2
    assert out == run("--help")[1]
    assert err == ""


def test_version(run):
    import collbench

    for word in ("--version", "-V"):
        assert run(word) == (0, f"collbench {collbench.__version__}\n", "")


@pytest.mark.parametrize(("word", "near"), [("shwo", "show"), ("estmate", "estimate"), ("runn", "run")])
def test_an_unknown_command_is_refused_with_the_nearest(run, word, near):
    code, out, err = run(word, "x")
    assert (code, out) == (2, "")
    assert the_one_line(err).startswith(f"collbench: unknown command '{word}' (did you mean {near}?): one of ")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "--bogus"], "collbench run: unknown option --bogus (see 'collbench run --help')"),
        (["run", "--dry"], "unknown option --dry (did you mean --dry-run?)"),
        (["run", "--nproc", "two"], "--nproc: invalid int value: 'two'"),
        (["show"], "the following arguments are required: RESULTS"),
        (["show", "x", "--csv", "--nccl-tests"], "not allowed with argument"),
        (["env", "extra"], "unrecognized arguments: extra"),
        (["show", "r.jsonl", "-b"], "unknown option -b"),
    ],
)
def test_a_wrong_flag_is_one_line_and_code_2(run, arguments, complaint):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert complaint in the_one_line(err)


@pytest.mark.parametrize("command", ["run", "show", "env", "fit", "estimate", "predict"])
def test_every_command_explains_itself_and_takes_json_and_debug(run, command):
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: collbench {command} ")
    assert "--json" in out and "--debug" in out


def test_run_has_nccl_tests_words_and_letters(run):
    out = run("run", "--help")[1]
    for letter, word in [
        ("-b", "--minbytes"), ("-e", "--maxbytes"), ("-f", "--stepfactor"), ("-i", "--stepbytes"), ("-n", "--iters"),
        ("-w", "--warmup-iters"), ("-c", "--check"), ("-d", "--datatype"), ("-r", "--root"), ("-o", "--output"),
    ]:  # fmt: skip
        assert any(f"{letter} " in line and word in line for line in out.splitlines()), word
    for word in ("--redop", "--op", "--collective", "--group", "--timing", "--backend", "--nproc", "--one-at-a-time",
                 "--samples", "--precision", "--timeout", "--append", "--seed", "--dry-run"):  # fmt: skip
        assert word in out


def test_python_m_collbench_is_the_same_program(collbench):
    child = collbench("--version")
    assert (child.returncode, child.stderr) == (0, "")
    assert child.stdout.startswith("collbench ")
    assert collbench("nothing").returncode == 2
    assert collbench().returncode == 2


# --- errors ----------------------------------------------------------------------------------------------------------


def test_an_error_is_one_line_and_a_traceback_only_with_debug(collbench, tmp_path):
    child = collbench("show", tmp_path / "none.jsonl")
    assert (child.returncode, child.stdout) == (2, "")
    assert the_one_line(child.stderr).startswith(f"collbench: {tmp_path}/none.jsonl: cannot be read")
    child = collbench("show", tmp_path / "none.jsonl", "--debug")
    assert child.returncode != 0
    assert "Traceback" in child.stderr and "InputError" in child.stderr


def test_a_bug_is_one_line_too_and_never_the_answer_no(run, monkeypatch, tmp_path):
    from collbench.cli import show

    def broken(args):
        raise KeyError("size\nof it")

    monkeypatch.setattr(show, "run", broken)
    code, out, err = run("show", "x")
    assert (code, out) == (3, "")
    assert "KeyError" in the_one_line(err) and "--debug" in err
    with pytest.raises(KeyError):
        cli.main(["show", "x", "--debug"])


def test_an_interrupt_is_130(run, monkeypatch):
    from collbench.cli import show

    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(show, "run", interrupted)
    code, out, err = run("show", "x")
    assert (code, out) == (130, "")
    assert "interrupted" in the_one_line(err)


@pytest.mark.parametrize("unbuffered", [None, "1"])
@pytest.mark.parametrize("rows", [1, 3000])
def test_a_reader_that_goes_away_leaves_no_traceback(tmp_path, rows, unbuffered):
    path = write_lines(tmp_path / "r.jsonl", run_record(), *[measurement()] * rows)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment |= {"PYTHONPATH": str(ROOT)} | ({"PYTHONUNBUFFERED": unbuffered} if unbuffered else {})
    reading, writing = os.pipe()
    os.close(reading)
    child = subprocess.run(
        [sys.executable, "-m", "collbench", "show", str(path)], stdout=writing, stderr=subprocess.PIPE, text=True,
        env=environment, check=False,
    )  # fmt: skip
    os.close(writing)
    assert child.stderr == ""
    assert child.returncode != 1  # 1 is an answer


def test_a_torn_file_is_shown_with_one_line_of_warning(collbench, tmp_path):
    path = write_lines(tmp_path / "r.jsonl", run_record(), measurement())
    with path.open("a") as file:
        file.write('{"kind":"measu')
    child = collbench("show", path, "--json")
    assert child.returncode == 0
    assert len(json.loads(child.stdout)["measurements"]) == 1
    assert the_one_line(child.stderr).startswith(f"collbench: warning: {path}:3: the last line is torn")


# --- run --dry-run ---------------------------------------------------------------------------------------------------


def dry_run(run, *arguments, json_=True):
    code, out, err = run("run", "--dry-run", "--backend", "gloo", *arguments, *(["--json"] if json_ else []))
    assert code == 0, err
    return (json.loads(out) if json_ else out), err


def test_a_dry_run_counts_cells_memory_and_time(run):
    # 8 B to 1 KiB doubled: 8 sizes x 2 regimes x 2 halves
    plan, err = dry_run(run, "--collective", "all_reduce", "-b", "8", "-e", "1K")
    assert plan["cells"] == 32
    assert plan["ranks"] == 2
    assert plan["groups"] == {"world": 1}
    assert plan["memory_bytes_per_rank"] == 1024
    assert plan["estimated_s"] > 0
    assert plan["sweep"]["maxbytes"] == 1024
    assert err == ""


def test_a_dry_run_out_of_place_needs_both_buffers(run):
    plan, _ = dry_run(run, "--collective", "all_gather", "-b", "1M", "-e", "1M", "--nproc", "4")
    assert plan["cells"] == 4
    assert plan["ranks"] == 4
    assert 2**20 < plan["memory_bytes_per_rank"] <= 2 * 2**20


def test_a_dry_run_says_it_to_people_too(run):
    out, _ = dry_run(run, "--collective", "all_reduce,broadcast", "-b", "8", "-e", "64M", "-f", "4", json_=False)
    # 8 B, 32 B, ... 32 MiB: 12 sizes, x 2 regimes x 2 halves x 2 collectives
    assert "cells: 96 (all_reduce, broadcast; 8 B to 32 MiB)" in out
    assert "group world: 1 group, 2 ranks each" in out
    assert "memory: 32 MiB a rank" in out
    assert "time: about " in out


def test_a_dry_run_measures_nothing_and_writes_no_file(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dry_run(run)
    dry_run(run, "-o", "x.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_flags_reach_the_sweep_under_nccl_tests_names(run):
    plan, _ = dry_run(
        run, "-b", "1K", "-e", "4K", "-i", "1K", "-n", "7", "-w", "3", "-c", "0", "-d", "float,half", "--op", "max,avg",
        "-r", "1", "--timing", "isolated", "--timeout", "90", "--seed", "4", "--precision", "2%", "--samples",
        "--one-at-a-time", "--group", "world",
    )  # fmt: skip
    expected = load_sweep(
        flags={
            "minbytes": 1024,
            "maxbytes": 4096,
            "stepbytes": 1024,
            "iters": 7,
            "warmup_iters": 3,
            "check": 0,
            "datatype": ["float32", "float16"],
            "redop": ["max", "avg"],
            "root": 1,
            "timing": ["isolated"],
            "timeout": 90,
            "seed": 4,
            "precision": 0.02,
            "samples": True,
            "concurrent": False,
            "group": ["world"],
            "backend": "gloo",
        }
    )
    assert plan["sweep"] == expected.as_record()
    assert list(expected.sizes()) == [1024, 2048, 3072, 4096]


def test_flags_override_a_sweep_file(run, tmp_path):
    (tmp_path / "s.toml").write_text('collective = "broadcast"\nminbytes = "4K"\nmaxbytes = "4K"\nname = "mine"\n')
    plan, _ = dry_run(run, tmp_path / "s.toml", "-e", "8K")
    assert plan["sweep"]["name"] == "mine"
    assert (plan["sweep"]["minbytes"], plan["sweep"]["maxbytes"]) == (4096, 8192)
    assert plan["cells"] == 8


def test_a_group_the_job_cannot_form_is_skipped_with_its_reason(run):
    plan, err = dry_run(run, "--group", "world,inter")
    assert plan["groups"] == {"world": 1}
    assert "group inter would be skipped: this job runs on one node" in the_one_line(err)
    code, out, err = run("run", "--dry-run", "--backend", "gloo", "--group", "inter")
    assert code == 0 and "cells: 0" in out  # as the run itself: skips and no more
    assert "group inter would be skipped" in the_one_line(err)


def test_under_a_launcher_rank_0_alone_plans_its_layout(run, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "6")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    plan, _ = dry_run(run, "-b", "1K", "-e", "1K")
    assert plan["ranks"] == 6
    assert plan["groups"] == {"world": 1, "intra": 3, "inter": 2}
    monkeypatch.setenv("RANK", "1")
    assert run("run", "--dry-run") == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--collective", "allreduce"], "--collective: unknown collective 'allreduce' (did you mean all_reduce?)"),
        (["-d", "flaot"], "--datatype: unknown datatype 'flaot'"),
        (["--group", "intar"], "--group: unknown group 'intar' (did you mean intra?)"),
        (["-b", "1Q"], "--minbytes: size '1Q' has the unknown unit 'Q'"),
        (["-b", "1G", "-e", "1M"], "--minbytes: minbytes 1073741824 is above maxbytes 1048576"),
        (["-i", "0"], "--stepbytes: a step of 0 bytes never ends"),
        (["--backend", "mpi"], "--backend: unknown backend 'mpi'"),
        (["--nproc", "0"], "--nproc 0: expected at least 1"),
        (["none.toml"], "none.toml: cannot be read (No such file or directory): expected a sweep"),
    ],
)
@pytest.mark.parametrize("dry", [["--dry-run"], []], ids=["dry", "wet"])
def test_bad_input_is_refused_before_any_rank_is_started(run, tmp_path, monkeypatch, arguments, complaint, dry):
    monkeypatch.chdir(tmp_path)
    backend = [] if "--backend" in arguments else ["--backend", "gloo"]
    code, out, err = run("run", *arguments, *backend, *dry)
    assert (code, out) == (2, "")
    assert complaint in the_one_line(err)
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_knows_that_no_group_has_such_a_root(run):
    code, out, err = run("run", "--dry-run", "--backend", "gloo", "-r", "5")
    assert (code, out) == (2, "")
    assert "root 5: a group of kind world has 2 ranks" in the_one_line(err)


@pytest.mark.parametrize("name", ["README.md", "model.json", "folder"])
@pytest.mark.filterwarnings("ignore:.*torn")
def test_an_output_that_is_no_results_file_is_refused_and_left_alone(run, tmp_path, name):
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
    else:
        path.write_text('{"schema":"collbench.model/1"}' if name == "model.json" else "# Notes\n")
    before = path.read_bytes() if path.is_file() else None
    code, out, err = run("run", "--backend", "gloo", "-o", path)
    assert (code, out) == (2, "")
    assert str(path) in the_one_line(err)
    assert (path.read_bytes() if path.is_file() else None) == before


def test_a_file_of_another_sweep_is_refused_naming_append(run, tmp_path):
    other = load_sweep(flags={"maxbytes": "4K"})
    path = write_lines(tmp_path / "r.jsonl", run_record(sweep=other.as_record()), measurement())
    code, out, err = run("run", "--backend", "gloo", "-o", path)
    assert (code, out) == (2, "")
    assert "maxbytes 4096, now 33554432" in err and "--append" in the_one_line(err)


# --- show ------------------------------------------------------------------------------------------------------------

SKIP = {"kind": "skip", "run_id": "r1", "collective": "broadcast", "group": "inter", "size_bytes": None,
        "reason": "this job runs on one node"}  # fmt: skip
END = {"kind": "end", "run_id": "r1", "finished": "x", "measurements": 3, "skips": 1, "exit_code": 3,
       "reason": "rank 1 (host n0) was killed by SIGKILL"}  # fmt: skip
FIRST = measurement(time_us=20.48, **{"pass": 0})
SECOND = measurement(time_us=10.24, slowest_rank=0, **{"pass": 1})
ISOLATED = measurement(time_us=40.0, timing="isolated", wrong=None)


@pytest.fixture
def results(tmp_path):
    return write_lines(tmp_path / "r.jsonl", run_record(), FIRST, SECOND, ISOLATED, SKIP, END)


def test_show_as_json_is_the_files_records(run, results):
    code, out, err = run("show", results, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"runs": [run_record()], "measurements": [FIRST, SECOND, ISOLATED], "skips": [SKIP]}


def test_show_as_csv_is_a_line_a_measurement(run, results):
    code, out, err = run("show", results, "--csv")
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == 3
    assert rows[0]["collective"] == "all_reduce"
    assert [float(row["time_us"]) for row in rows] == [20.48, 10.24, 40.0]
    assert rows[0]["group_ranks"] == "0 1"
    assert (rows[0]["root"], rows[2]["wrong"], rows[0]["wrong"]) == ("", "", "0")
    names = set(measurement()) - {"kind"}
    assert names <= set(rows[0])


def test_show_in_nccl_tests_layout_equals_it_to_the_byte(run, results):
    code, out, err = run("show", results, "--nccl-tests")
    assert (code, err) == (0, "")
    assert out == (
        "# Collective test starting: all_reduce_perf\n"
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 "
        "validation: 1 graph: 0 unalign: 0\n"
        "#\n"
        "# Using devices\n"
        "#  Rank  0 Group  0 Pid    101 on         n0 device  0 [0000:00:00] cpu\n"
        "#  Rank  1 Group  0 Pid    102 on         n0 device  1 [0000:00:00] cpu\n"
        "#\n"
        "#                                                              out-of-place                       in-place"
        "          \n"
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
        "     time   algbw   busbw  #wrong \n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)        "
        "     (us)  (GB/s)  (GB/s)         \n"
        "        1024           256     float     sum      -1    20.48    0.05    0.05       0"
        "    10.24    0.10    0.10       0\n"
        "# Out of bounds values : 0 OK\n"
        "# Avg bus bandwidth    : 0.075 \n"
        "#\n"
        "# Collective test concluded: all_reduce_perf\n"
        "#\n"
        "\n"
    )


def test_show_as_a_table_has_skips_and_how_the_run_ended(run, results):
    code, out, err = run("show", results)
    assert (code, err) == (0, "")
    head, first, second, isolated, skip, end = out.splitlines()
    assert head.split()[:4] == ["collective", "group", "ranks", "timing"]
    assert first.split() == ["all_reduce", "world", "2", "pipelined", "yes", "1", "KiB", "20.48", "0.050", "0.050",
                             "0", "rank", "1"]  # fmt: skip
    assert second.split()[7:10] == ["10.24", "0.100", "0.100"]
    assert isolated.split()[-3:] == ["-", "rank", "1"]
    assert skip == "skipped: broadcast inter: this job runs on one node"
    assert end == "run r1 ended with exit code 3: rank 1 (host n0) was killed by SIGKILL"


def test_show_of_an_isolated_sweep_tables_what_there_is(run, tmp_path):
    halves = [measurement(time_us=40.0, timing="isolated", **{"pass": number}) for number in (0, 1)]
    _, out, err = run("show", write_lines(tmp_path / "r.jsonl", run_record(), *halves), "--nccl-tests")
    assert "isolated" in err and "collbench" not in out
    assert sum(line.startswith(" ") for line in out.splitlines()) == 1


def test_a_row_begun_by_a_killed_run_is_ended_by_the_next(run, tmp_path):
    sweep = load_sweep().as_record()
    path = write_lines(
        tmp_path / "r.jsonl",
        run_record("r1", sweep=sweep),
        measurement("r1", time_us=11.0, **{"pass": 0}),
        run_record("r2", sweep=sweep),
        measurement("r2", time_us=12.0, **{"pass": 1}),
    )
    out = run("show", path, "--nccl-tests")[1]
    rows = [line.split() for line in out.splitlines() if line.startswith(" ")]
    assert [(row[5], row[9]) for row in rows] == [("11.00", "12.00")]


def test_runs_of_different_sweeps_are_tables_of_their_own(run, tmp_path):
    path = write_lines(
        tmp_path / "r.jsonl",
        run_record("r1", sweep={"iters": 20}),
        *[measurement("r1", time_us=11.0, **{"pass": number}) for number in (0, 1)],
        run_record("r2", sweep={"iters": 5}),
        *[measurement("r2", time_us=12.0, **{"pass": number}) for number in (0, 1)],
    )
    out = run("show", path, "--nccl-tests")[1]
    assert out.count("# Collective test starting") == 2
    assert [line.split()[5] for line in out.splitlines() if line.startswith(" ")] == ["11.00", "12.00"]


def test_every_layout_shows_a_file_that_knows_little(run, tmp_path):
    # as a file imported from another tool's log may be
    bare = {"kind": "measurement", "run_id": "r1", "collective": "reduce", "size_bytes": 8, "time_us": 1.5,
            "timing": "pipelined"}  # fmt: skip
    also = {**bare, "collective": "all_reduce", "dtype": "complex64"}
    run_ = {"kind": "run", "schema": "collbench.results/1", "run_id": "r1"}
    path = write_lines(tmp_path / "r.jsonl", run_, bare, also)
    assert run("show", path)[0] == 0
    assert len(run("show", path, "--csv")[1].splitlines()) == 3
    assert len(json.loads(run("show", path, "--json")[1])["measurements"]) == 2
    code, out, err = run("show", path, "--nccl-tests")
    assert (code, out) == (0, "")
    assert "2 measurements" in the_one_line(err) and "--csv" in err


def test_a_row_needs_neither_devices_nor_a_sweep(run, tmp_path):
    run_ = {"kind": "run", "schema": "collbench.results/1", "run_id": "r1", "sweep": None}
    halves = [measurement(**{"pass": number}) for number in (0, 1)]
    for record in halves:
        for name in ("root", "redop", "group_ranks", "nranks", "group"):
            del record[name]
    code, out, err = run("show", write_lines(tmp_path / "r.jsonl", run_, *halves), "--nccl-tests")
    assert (code, err) == (0, "")
    [line] = [line for line in out.splitlines() if line.startswith(" ")]
    assert line.split()[3:5] == ["none", "-1"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "holds no records"),
        ("not json\n", ":1: not a record of a collbench.results/1 file"),
        ('{"schema":"collbench.model/1"}\n', ":1: not a collbench.results/1 file"),
        (json.dumps(run_record(schema="collbench.results/9")) + "\n", ":1: schema 'collbench.results/9'"),
        (json.dumps(run_record()) + "\n" + json.dumps(measurement())[:-1] + ',"x":NaN}\n', ":2: not a record"),
    ],
)
def test_show_refuses_what_is_no_results_file(run, tmp_path, text, complaint):
    (tmp_path / "r.jsonl").write_text(text)
    for layout in ([], ["--csv"], ["--json"], ["--nccl-tests"]):
        code, out, err = run("show", tmp_path / "r.jsonl", *layout)
        assert (code, out) == (2, "")
        assert f"r.jsonl{complaint}" in the_one_line(err) or complaint in err


# --- env -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch):
    from collbench.measure import environment

    facts = {"torch": "2.13.0", "distributed": True, "gpus": [], "backends": ["gloo"], "cuda": None, "nccl": None}
    monkeypatch.setattr(environment, "torch_facts", lambda: facts)
    return facts


def test_env_is_one_json_document_with_the_contracts_keys(run, machine, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    code, out, err = run("env", "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert {"hosts", "devices", "versions", "environment", "problems"} <= set(facts)
    assert facts["environment"]["NCCL_DEBUG"] == "WARN"
    assert facts["versions"]["torch"] == "2.13.0"
    assert facts["devices"] == ["cpu"]
    assert all(set(problem) == {"what", "fix"} for problem in facts["problems"])
    assert "hunter2" not in out


def test_env_speaks_to_people_and_works_without_torch(run, machine):
    machine.clear()
    machine["error"] = "No module named 'torch'"
    code, out, err = run("env")
    assert (code, err) == (0, "")
    assert "note: torch does not import: No module named 'torch'\n      -> pip install torch" in out
    assert "cpus" in out and "interfaces" in out


# --- an environment that is not quite a user's shell ------------------------------------------------------------


def test_a_stray_local_rank_silences_no_error(collbench):
    done = collbench("fit", "nosuch.jsonl", LOCAL_RANK="1")
    assert done.returncode == 2 and "nosuch.jsonl" in done.stderr


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RANK": "0", "WORLD_SIZE": "4"}, "MASTER_ADDR and MASTER_PORT are not set"),
        ({"RANK": "x", "WORLD_SIZE": "y"}, "no whole numbers"),
    ],
)
@pytest.mark.parametrize("command", [["run", "-o", "never.jsonl"], ["quickstart"]])
def test_a_launchers_variables_by_accident_are_named(collbench, command, variables, words):
    done = collbench(*command, **variables)
    assert done.returncode == 2 and words in done.stderr and "unset RANK" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_ascii_terminal_gets_its_table(collbench):
    done = collbench("--help", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "quickstart" in done.stdout


def test_nobody_reading_stderr_is_no_failure(tmp_path):
    command = [sys.executable, "-m", "collbench", "estimate", "all_reduce", "--size", "8", "--nranks", "1"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*command, "--bandwidth", "25"], env=clean_environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=writing,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    os.close(writing)
    assert done.returncode == 0 and "all_reduce" in done.stdout
