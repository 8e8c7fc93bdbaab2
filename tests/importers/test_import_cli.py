"""`collbench import` as a user meets it, and what the other commands make of its results."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import sys

import pytest
from nccl_texts import NEW, POWERS, devices, log, row, rows

from collbench.cli import main
from collbench.results import load_results


@pytest.fixture
def imported(tmp_path, capsys):
    """Run the command on texts; (exit code, results or None, stdout, stderr)."""

    def run(*arguments, out="r.jsonl", **texts):
        for name, text in texts.items():
            path = tmp_path / f"{name}.log"
            path.write_bytes(text) if isinstance(text, bytes) else path.write_text(text)
        files = [str(tmp_path / f"{name}.log") for name in texts]
        code = main(["import", *files, *map(str, arguments), "-o", str(tmp_path / out)])
        output = capsys.readouterr()
        results = load_results(tmp_path / out) if (tmp_path / out).exists() else None
        return code, results, output.out, output.err

    return run


def test_one_log(imported):
    code, results, out, err = imported(a=log())
    assert (code, out) == (0, "")
    assert (len(results.runs), len(results.measurements), len(results.ends)) == (1, 10, 1)
    assert "a.log:15: nccl-tests: all_reduce, 8 ranks on 2 nodes: 5 rows" in err
    assert "r.jsonl" in err.splitlines()[-1]


def test_what_was_inferred_refused_and_wrong_is_said(imported):
    text = log([*rows(range(20, 23)), row(23, wrong=("3", "0")), row(24)[52:]], listed=["..."], program=None)
    code, _, _, err = imported(a=text)
    assert code == 0
    assert "inferred nranks: busbw / algbw" in err
    assert "inferred collective: the only one" in err
    assert "wrong data in 1 row: kept and marked" in err
    assert "a.log:13: the first part of this row is lost" in err


def test_strict_makes_a_refusal_exit_1(imported):
    text = log([*rows(), row(24)[52:]])
    assert imported("--strict", a=text)[0] == 1
    assert imported("--strict", out="s.jsonl", a=log())[0] == 0


def test_many_refusals_are_counted(imported):
    err = imported(a=log([*rows(), *[row(24)[52:]] * 40]))[3]
    assert err.count("is lost") == 10
    assert "and 30 more (40 refused in all)" in err


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        ("", ("is empty", "no format was recognised")),
        ("node01:1:1 [0] NCCL INFO Bootstrap\n" * 9, ("debug lines", "no format was recognised")),
        ("bash: all_reduce_perf: command not found\n", ("'command not found'", "no format")),
        ("\n".join(NEW), ("--format", "no line in it is a whole row")),
        ('{"kind":"run","schema":"collbench.results/1","run_id":"a"}\n', ("results file already", "no format")),
        (bytes(range(256)) * 40, ("not text", "no format")),
    ],
)
def test_a_file_with_nothing_to_read_is_2_with_two_reasons(imported, text, reasons):
    code, results, _, err = imported(a=text)
    assert (code, results) == (2, None)
    assert err.count("; or ") == 1
    for reason in reasons:
        assert reason in err


def test_what_can_be_read_is_kept_beside_what_cannot(imported):
    code, results, _, err = imported(a=log(), b="nothing")
    assert (code, len(results.runs)) == (2, 1)
    assert "b.log: nothing to read" in err


def test_a_directory_may_hold_other_files(tmp_path, capsys):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.log").write_text(log())
    (tmp_path / "logs" / "b.log.gz").write_bytes(gzip.compress(log(program="broadcast_perf", body=rows(
        collective="broadcast", redop="none", root=0)).encode()))  # fmt: skip
    (tmp_path / "logs" / "hosts").write_text("node00\nnode01\n")
    assert main(["import", str(tmp_path / "logs"), "-o", str(tmp_path / "r.jsonl")]) == 0
    assert {record["collective"] for record in load_results(tmp_path / "r.jsonl").measurements} == {
        "all_reduce", "broadcast"}  # fmt: skip
    (tmp_path / "logs" / "a.log").unlink()
    (tmp_path / "logs" / "b.log.gz").unlink()
    assert main(["import", str(tmp_path / "logs"), "-o", str(tmp_path / "s.jsonl")]) == 2
    capsys.readouterr()


def test_the_same_log_twice_is_one_run(imported):
    code, results, _, _ = imported(a=log(), b=log())
    assert (code, len(results.runs)) == (0, 1)
    code, results, _, err = imported(c=log())
    assert (code, len(results.runs)) == (0, 1)
    assert "in it already" in err


def test_other_runs_are_added_only_when_asked(imported):
    imported(a=log())
    other = log(rows(n=4), listed=devices(4, 1))
    code, results, _, err = imported(b=other)
    assert code == 2
    assert "--append" in err
    assert len(results.runs) == 1
    code, results, _, _ = imported("--append", b=other)
    assert (code, len(results.runs), len(results.measurements)) == (0, 2, 20)


def test_what_the_user_says_of_a_log_makes_another_run(imported):
    unknown = log(rows(range(20, 22), n=4096), listed=["..."])
    assert imported(a=unknown)[1].measurements[0]["nranks"] is None
    results = imported("--append", "--nranks", 4096, "--nnodes", 512, a=unknown)[1]
    assert [(each["nranks"], each["nnodes"]) for each in results.measurements[-1:]] == [(4096, 512)]
    assert len(results.runs) == 2


def test_standard_input_and_output(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(log().encode())))
    assert main(["import", "-", "-o", "-"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["kind"] for record in records] == ["run", *["measurement"] * 10, "end"]
    assert records[0]["imported"]["file"] == "-"


def test_json_is_one_document(imported):
    code, _, out, _ = imported("--json", a=log([*rows(), row(24)[52:]]), b="nothing")
    document = json.loads(out)
    assert code == 2
    assert [file["rows"] for file in document["files"]] == [5, 0]
    first, second = document["files"]
    assert first["tables"][0]["nranks"] == 8
    assert first["refused"] == [{"line": 22, "reason": "the first part of this row is lost"}]
    assert len(second["reasons"]) == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--format", "nccl"], "did you mean nccl"),
        (["--nranks", "0"], "--nranks '0'"),
        (["--nnodes", "two"], "--nnodes 'two'"),
        (["--collective", "allreduc"], "allreduc"),
        (["--dtype", "float31"], "float31"),
        (["--json", "-o", "-"], "--json and -o -"),
        (["-o", "."], "not a regular file"),
        (["nowhere.log"], "nowhere.log: cannot be read"),
    ],
)
def test_a_bad_request_is_one_line_and_2(tmp_path, capsys, arguments, says):
    path = tmp_path / "a.log"
    path.write_text(log())
    assert main(["import", str(path), *arguments]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.strip().splitlines()) == 1


def test_a_format_can_be_forced(imported):
    assert imported("--format", "osu", a=log())[0] == 2
    assert imported("--format", "nccl-tests", a=log())[0] == 0


def test_a_results_file_of_something_else_is_not_written_to(imported, tmp_path):
    (tmp_path / "r.jsonl").write_text("my notes\n")
    assert main(["import", str(tmp_path / "r.jsonl"), "-o", str(tmp_path / "r.jsonl")]) == 2
    assert (tmp_path / "r.jsonl").read_text() == "my notes\n"


def test_help_names_every_format(capsys):
    from collbench.importers.registry import FORMATS

    assert main(["import", "--help"]) == 0
    out = capsys.readouterr().out
    for name in FORMATS:
        assert name in out


@pytest.mark.parametrize("shown", [[], ["--nccl-tests"], ["--csv"], ["--json"]])
def test_results_are_shown(imported, tmp_path, capsys, shown):
    imported(a=log() + log(rows(collective="all_gather_into_tensor", redop="none"), program="all_gather_perf"))
    assert main(["show", str(tmp_path / "r.jsonl"), *shown]) == 0
    out = capsys.readouterr().out
    assert "51.21" in out or "51.2" in out


def test_shown_as_nccl_tests_has_it_and_read_again_it_is_the_same(imported, tmp_path, capsys):
    first = imported(a=log())[1]
    assert main(["show", str(tmp_path / "r.jsonl"), "--nccl-tests"]) == 0
    again = imported(out="again.jsonl", a=capsys.readouterr().out)[1]
    same = (
        "collective",
        "nranks",
        "size_bytes",
        "count",
        "in_place",
        "pass",
        "time_us",
        "algbw_GBps",
        "busbw_GBps",
        "wrong",
    )
    assert [[each[name] for name in same] for each in again.measurements] == [
        [each[name] for name in same] for each in first.measurements
    ]


def test_results_are_fitted_and_reported(imported, tmp_path, capsys):
    imported(a=log(rows(range(3, 28))))
    model, page = tmp_path / "m.json", tmp_path / "r.html"
    assert main(["fit", str(tmp_path / "r.jsonl"), "-o", str(model), "--json"]) == 0
    fits = json.loads(capsys.readouterr().out)["fits"]
    assert {(fit["collective"], fit["nranks"], fit["nnodes"], fit["in_place"]) for fit in fits} == {
        ("all_reduce", 8, 2, False), ("all_reduce", 8, 2, True)}  # fmt: skip
    assert fits[0]["busbw_GBps"] == pytest.approx(40 * 1.75, rel=0.05)
    assert main(["report", str(tmp_path / "r.jsonl"), "-o", str(page)]) == 0
    assert page.stat().st_size > 1000


def test_wrong_data_and_unknown_collectives_are_no_fit_s(imported, tmp_path, capsys):
    body = [row(power, wrong=("1", "1")) for power in POWERS]
    imported(a=log(body))
    assert main(["fit", str(tmp_path / "r.jsonl"), "-o", str(tmp_path / "m.json")]) == 2
    assert "wrong data" in capsys.readouterr().err


def test_the_command_s_module_imports_nothing_heavy():
    """It starts fast: neither torch nor the packages of the fit."""
    import subprocess

    code = "import importlib, sys; importlib.import_module('collbench.cli.import'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "scipy", "pandas", "matplotlib"} & set(loaded)
    assert importlib.import_module("collbench.cli.import").EPILOG
