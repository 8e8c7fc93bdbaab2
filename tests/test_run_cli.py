"""`collbench run` before any rank is started: nccl-tests' habits, contradictions, what is there already."""

from __future__ import annotations

import json

import pytest
from sample_records import measurement, run_record, write_lines

from collbench.cli import main
from collbench.cli.nccl_flags import NOT_POSSIBLE, without_impossible
from collbench.errors import InputError
from collbench.results import close_run, load_results

END = {"kind": "end", "run_id": "r1", "finished": "2026-01-01T00:00:00+00:00", "exit_code": 0, "reason": None}


def complaint(capsys, *arguments):
    assert main(["run", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("letter", NOT_POSSIBLE)
def test_an_option_that_torch_has_no_way_to_is_named_with_what_to_do(letter, capsys):
    word, why = NOT_POSSIBLE[letter]
    for spelling in ([letter, "7"], [f"--{word}", "7"], [f"--{word}=7"], [f"{letter}7"]):
        line = complaint(capsys, *spelling)
        assert why in line and "run --help" in line


@pytest.mark.parametrize("habit", [["-g", "1"], ["-t1"], ["-p", "0", "-y", "0"], ["--ngpus=1"], ["-R", "0", "-D", "0"]])
def test_what_nccl_tests_does_anyway_may_be_said(habit):
    assert without_impossible(["-b", "8", *habit, "-e", "1M"]) == ["-b", "8", "-e", "1M"]


def test_a_value_that_looks_like_one_of_them_is_a_value():
    assert without_impossible(["-r", "-1", "-o", "out.jsonl"]) == ["-r", "-1", "-o", "out.jsonl"]
    with pytest.raises(InputError, match="-g of nccl-tests"):
        without_impossible(["-g", "-b", "8"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--itres", "3"], "unknown option --itres (did you mean --iters?)"),
        (["-o", "sum"], "-o is the results file: nccl-tests' -o is --redop here"),
        (["all_reduce_perf"], "--collective all_reduce measures what that program does"),
        (["-C", "2"], "expected 0 or 1"),
        (["--group", "mesh:3x3", "--nproc", "8"], "a mesh of 3x3 has 9 ranks, this job 8"),
        (["--group", "mesh:3"], "expected mesh:RxS"),
        (["--group", "pair"], "did you mean pairs?"),
        (["-G", "2", "--nproc", "2", "--backend", "gloo"], "records no CUDA graphs"),
        (["--contention", "--one-at-a-time"], "does not go with"),
        (["--passes", "-1"], "expected a whole number of at least 0"),
        (["-z", "4"], "expected a whole number from 0 to 3"),
        (["-a", "5"], "expected 0 (first rank)"),
        (["--nccl-tests=1.0"], "2.13.0"),
        (["-J", "report.txt"], "ends with .json"),
        (["--join-timeout", "soon"], "--join-timeout: is 'soon': expected seconds above zero"),
        (["--precision", "3"], "expected a fraction"),
        (["--budget", "0"], "--budget: is '0': expected seconds above zero"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(arguments, said, capsys):
    assert said in complaint(capsys, *arguments)


def test_a_json_report_that_cannot_be_written_is_refused_before_the_sweep(tmp_path, capsys):
    folder = tmp_path / "report.json"
    folder.mkdir()
    (tmp_path / "closed").write_text("")
    assert "there is no folder" in complaint(capsys, "-J", str(tmp_path / "closed" / "r.json"))


def test_a_dry_run_says_at_least_and_at_most(capsys):
    assert main(["run", "--dry-run", "--nproc", "4", "--group", "pairs:rank", "--passes", "3", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["groups"] == {"pairs:rank": 6} and plan["estimated_s"] < plan["estimated_most_s"]
    assert main(["run", "--dry-run", "--nproc", "4", "-n", "20", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["estimated_s"] == plan["estimated_most_s"]


def test_a_run_that_could_not_end_itself_is_ended_once(tmp_path):
    path = write_lines(tmp_path / "r.jsonl", run_record(), measurement())
    close_run(path, 3, "rank 0 (host n0) was killed by SIGKILL")
    close_run(path, 3, "again")
    [end] = load_results(path).ends
    assert (end["exit_code"], end["measurements"], end["skips"]) == (3, 1, 0) and "SIGKILL" in end["reason"]
    whole = write_lines(tmp_path / "whole.jsonl", run_record(), measurement(), END)
    before = whole.read_bytes()
    close_run(whole, 3, "late")
    assert whole.read_bytes() == before
