"""`collbench fit` and `collbench estimate` as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from model_data import SIZES, rows, write_results

from collbench.cli import main

LINK = ["estimate", "all_reduce", "--size", "2GB", "--nranks", "8", "--bandwidth", "25GB/s"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("results") / "results.jsonl"
    return write_results(path, [*rows(), *rows(alpha_us=40, nranks=4, nnodes=1, group="intra")])


@pytest.fixture(scope="module")
def model(results: Path) -> str:
    path = str(results.with_name("model.json"))
    assert main(["fit", str(results), "-o", path]) == 0
    return path


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_fit_prints_a_table_and_writes_the_model(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.json"
    assert main(["fit", str(results), "-o", str(path), "--segments"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].split()[:2] == ["collective", "group"]
    assert "all_reduce  intra  4      1      nccl     float32  out    isolated" in out
    assert "8 B to 1 GiB: 20.0 us [" in out
    assert err == f"model: {path}\n"
    assert json.loads(path.read_text())["schema"] == "collbench.model/1"


def test_fit_writes_model_json_unless_told(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    document = answer(capsys, "fit", str(results))
    assert document == json.loads((tmp_path / "model.json").read_text())


def test_fit_warns_of_what_it_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_results(tmp_path / "r.jsonl", [*rows(), *rows(SIZES[:2], collective="broadcast")])
    assert main(["fit", str(path), "-o", str(tmp_path / "m.json")]) == 0
    assert "collbench: warning: left out: broadcast world" in capsys.readouterr().err


def test_fit_refusals(tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = write_results(tmp_path / "small.jsonl", rows(SIZES[:2]))
    output = ["-o", str(tmp_path / "m.json")]
    assert "small.jsonl: too few sizes" in refusal(capsys, "fit", str(small), *output)
    assert "missing.jsonl: cannot be read" in refusal(capsys, "fit", str(tmp_path / "missing.jsonl"), *output)
    before = results.read_bytes()
    assert "is one of the results files" in refusal(capsys, "fit", str(results), "-o", str(results))
    assert results.read_bytes() == before
    assert not (tmp_path / "m.json").exists()


def test_estimate_of_the_contracts_example(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *LINK)
    assert found.pop("algbw_GBps") == pytest.approx(14.286, abs=1e-3)
    assert found.pop("busbw_GBps") == pytest.approx(25.0)
    assert found.pop("time_us") == pytest.approx(140_000.0)
    assert found == {
        "collective": "all_reduce",
        "group": "world",
        "nranks": 8,
        "nnodes": 1,
        "size_bytes": 2_000_000_000,
        "low_us": None,
        "high_us": None,
        "sent_bytes_per_rank": 3_500_000_000,
        "source": "link",
        "extrapolated": False,
        "notes": [],
    }


def test_bits_are_an_eighth_of_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    bits = answer(capsys, *LINK[:-1], "200Gb/s")
    assert bits == answer(capsys, *LINK) == answer(capsys, *LINK[:-1], "25")


def test_latency_and_inter_figures(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--latency", "5us", "--inter-latency", "0.1ms", "--inter-bandwidth", "100Gb/s", "--nodes", "2"]
    found = answer(capsys, *LINK, *flags)
    assert found["time_us"] == pytest.approx(2 * 100 + 12 * 5 + 2e9 * 1.75 / 12.5e3)
    assert found["nnodes"] == 2
    assert main([*LINK, *flags[:-2]]) == 0
    assert "--nnodes" in capsys.readouterr().err  # the inter figures play no part on one node


def test_estimate_from_a_model(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    several = answer(capsys, "estimate", "all_reduce", "--size", "8,64K,1M", "--model", model)
    assert [one["size_bytes"] for one in several] == [8, 65536, 2**20]
    assert [one["time_us"] for one in several] == pytest.approx([20 + size / 25e3 for size in (8, 65536, 2**20)])
    for one in several:
        assert (one["nranks"], one["nnodes"], one["source"], one["extrapolated"]) == (8, 2, "fit", False)
        assert one["low_us"] < one["time_us"] < one["high_us"]
        assert one["algbw_GBps"] == pytest.approx(one["size_bytes"] / one["time_us"] / 1e3)
        assert one["busbw_GBps"] == pytest.approx(one["algbw_GBps"] * 1.75)


@pytest.mark.parametrize(
    ("flags", "nranks", "nnodes", "source"),
    [
        (["--nranks", "16"], 16, 4, "scaling"),
        (["--nranks", "9"], 9, 3, "scaling"),
        (["--nranks", "8", "--nodes", "4"], 8, 4, "scaling"),
        (["--group", "intra"], 4, 1, "fit"),
        (["--group", "intra", "--nranks", "2"], 2, 1, "scaling"),
        (["--nranks", "1"], 1, 1, "fit"),
    ],
)
def test_counts_not_given(
    flags: list[str], nranks: int, nnodes: int, source: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(capsys, "estimate", "all_reduce", "--size", "1M", "--model", model, *flags)
    assert (found["nranks"], found["nnodes"], found["source"]) == (nranks, nnodes, source)


@pytest.mark.parametrize("linked", [False, True])
def test_one_rank_has_no_bandwidth_and_a_warning(linked: bool, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = ["--bandwidth", "25"] if linked else ["--model", model]
    assert main(["estimate", "all_reduce", "--size", "1M", "--nranks", "1", "--json", *source]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["time_us"], found["algbw_GBps"], found["busbw_GBps"]) == (0.0, None, 0.0)
    assert found["sent_bytes_per_rank"] == 0
    assert "one rank moves nothing" in err


def test_the_table_for_people(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "all_reduce", "--size", "1M,16G", "--model", model]) == 0
    out, err = capsys.readouterr()
    assert "all_reduce, group world: 8 ranks on 2 nodes" in out
    assert "fit (extrapolated)" in out
    assert err.startswith("collbench: note: beyond the largest measured size, 1 GiB")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (LINK[:-2], "neither --model nor --bandwidth"),
        ([*LINK, "--model", "m.json"], "--model and --bandwidth exclude each other"),
        (["estimate", "all_reduce", "--size", "1M", "--bandwidth", "25"], "--nranks"),
        (["estimate", "all_redcue", *LINK[2:]], "did you mean all_reduce"),
        ([*LINK, "--group", "wrold"], "did you mean world"),
        ([*LINK, "--nranks", "0"], "0 ranks"),
        ([*LINK, "--nnodes", "9"], "8 ranks cannot be on 9 nodes"),
        ([*LINK, "--bandwidth", "25GB/h"], "unknown unit 'GB/h'"),
        ([*LINK, "--bandwidth", "0"], "above zero"),
        ([*LINK, "--latency", "-5us"], "latency"),
        ([*LINK, "--latency", "5parsec"], "unknown unit 'parsec'"),
        ([*LINK, "--size", "1X"], "unknown unit 'X'"),
        ([*LINK, "--size", "8,,16"], "size '' is not understood"),
        ([*LINK, "--dtype", "float33"], "unknown datatype"),
        ([*LINK, "--timing", "fast"], "invalid choice"),
        ([*LINK[:-2], "--model", "missing.json"], "missing.json: cannot be read"),
        ([*LINK[:-2], "--model", "h100-8x10-ib"], "did you mean public:h100-8x10-ib?"),
    ],
)
def test_bad_questions_are_one_line_and_exit_2(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refusal(capsys, *argv)


def test_results_in_place_of_a_model_are_told_from_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "r.jsonl"
    results.write_text('{"kind":"run","schema":"collbench.results/1"}\n{"kind":"measurement"}\n')
    assert "is a results file: make a model of it with 'collbench fit" in refusal(
        capsys, "estimate", "all_reduce", "--size", "1M", "--model", str(results)
    )


def test_of_several_sizes_out_of_range_the_furthest_speaks(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "all_reduce", "--size", "1,3G,16G", "--model", model]) == 0
    notes = capsys.readouterr().err.splitlines()
    assert [note.split(",")[0] for note in notes] == [
        "collbench: note: below the smallest measured size",
        "collbench: note: beyond the largest measured size",
    ]
    assert all("by more than 4×" in note for note in notes)


def test_help_explains_the_two_bandwidths(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--help"]) == 0
    out = capsys.readouterr().out
    assert "2·7/8 · 2 GB = 3.5 GB" in out
    assert "busbw = 14.29 · 2·7/8 = 25 GB/s" in out


def modules_after(argv: list[str]) -> set[str]:
    code = f"import sys; from collbench.cli import main; main({argv!r}); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stderr.splitlines()[-1].split()}


def test_estimate_imports_neither_scipy_nor_pandas_nor_torch(model: str) -> None:
    asked = ["estimate", "all_reduce", "--size", "1M", "--nranks", "64", "--model", model]
    assert not modules_after(asked) & {"scipy", "pandas", "torch", "matplotlib"}
    assert not modules_after(["estimate", "--help"]) & {"numpy", "scipy", "pandas", "torch"}


def test_fit_never_imports_torch(results: Path, tmp_path: Path) -> None:
    assert not modules_after(["fit", str(results), "-o", str(tmp_path / "m.json")]) & {"torch", "matplotlib"}
    assert not modules_after(["fit", "--help"]) & {"numpy", "scipy", "pandas", "torch"}
