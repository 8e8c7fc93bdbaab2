"""`collbench fit` as a user types it: its report, plot, exports, prior, warnings, and one line for each bad input."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from sample_records import measurement, run_record

from collbench.cli import main

SIZES = [2**power for power in range(3, 29)]


def sweep(alpha_us: float = 20.0, rate_GBps: float = 25.0, sizes: list[int] = SIZES, **changes: Any) -> list[Any]:
    """A noise-free sweep of 8 ranks on one node."""
    made = []
    for size in sizes:
        time_us = alpha_us + size / rate_GBps / 1e3
        own = {"nranks": 8, "group_ranks": list(range(8)), "timing": "isolated", "size_bytes": size, "time_us": time_us}
        made.append(measurement(**own) | {"algbw_GBps": size / time_us / 1e3} | changes)
    return made


def write(path: Path, records: list[Any], **run: Any) -> str:
    head = run_record(backend="nccl", world_size=8, **run)
    path.write_text("".join(json.dumps(record) + "\n" for record in [head, *records]))
    return str(path)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return write(tmp_path / "results.jsonl", sweep())


def fitted(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[str, str]:
    assert main(["fit", *argv]) == 0
    out, err = capsys.readouterr()
    return out, err


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1, (out, err)
    return err


def test_the_full_report_is_in_place_of_the_table(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = fitted(capsys, results, "--full")
    assert out.startswith("[[all_reduce, world, 8 ranks on 1 node, nccl float32, in place, isolated]]\n    data ")
    assert "n½, half of algbw" in out and "90 % of algbw" in out and "collective " not in out


def test_contention_stands_beneath_the_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    groups = [sweep(group="intra", nranks=4, group_ranks=list(range(first, first + 4))) for first in (0, 4)]
    alone = [record | {"concurrent": False} for group in groups for record in group]
    together = [
        record | {"time_us": 3 * record["time_us"], "algbw_GBps": record["algbw_GBps"] / 3}
        for group in groups
        for record in group
    ]
    path = write(tmp_path / "both.jsonl", [*together, *alone])
    for more in ([], ["--full"]):
        out, _ = fitted(capsys, path, "-o", str(tmp_path / "model.json"), *more)
        *_, title, head, line = out.splitlines()
        assert title == "contention: how many times as long the groups of a kind take together"
        assert head.split()[5:] == ["latency", "[90", "%]", "transfer", "[90", "%]"]
        assert line.split()[:6] == ["all_reduce", "intra", "4", "1", "isolated", "x3.00"]
    out, _ = fitted(capsys, path, "-o", str(tmp_path / "model.json"), "--json")
    assert json.loads(out)["contention"][0]["transfer_factor"] == pytest.approx(3, rel=1e-3)
    out, _ = fitted(capsys, write(tmp_path / "alone.jsonl", alone), "-o", str(tmp_path / "model.json"))
    assert "contention" not in out


def test_json_is_the_model_document_alone(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = fitted(capsys, results, "--json", "--full", "--plot", "p.svg", "--export", "csv")
    assert json.loads(out) == json.loads(Path("model.json").read_text())


def test_a_plot_and_exports_are_written_and_named(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = fitted(capsys, results, "--plot", "p.png", "--export", "csv=t.csv", "--export", "astra-sim")
    assert err.splitlines() == ["model: model.json", "plot: p.png", "csv: t.csv", "astra-sim: network.yml"]
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")
    with Path("t.csv").open() as file:
        assert [int(line["size_bytes"]) for line in csv.DictReader(file)] == SIZES


def test_help_says_what_each_export_keeps_and_loses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--help"]) == 0
    out = capsys.readouterr().out
    for kind in ("csv", "nccl-tuner", "astra-sim", "galvatron"):
        assert f"\n  {kind}: " in out
    assert out.count("exact: ") == out.count("lost:  ") == 4


def test_a_tuner_file_of_forced_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ring = write(tmp_path / "ring.jsonl", sweep(), environment={"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"})
    tree = write(
        tmp_path / "tree.jsonl", sweep(10, 10), run_id="r1", environment={"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}
    )
    fitted(capsys, ring, tree, "--export", "nccl-tuner")
    lines = [line for line in Path("nccl_tuner.conf").read_text().splitlines() if not line.startswith("#")]
    assert lines == ["allreduce,8,262143,tree,ll,-1,1,8", f"allreduce,262144,{2**28},ring,simple,-1,1,8"]
    mixed = write(tmp_path / "mixed.jsonl", sweep(), environment={"NCCL_ALGO": "Ring,Tree"})
    assert main(["fit", ring, mixed, "--export", "nccl-tuner"]) == 2
    assert "mixed.jsonl: its runs do not have one NCCL_ALGO" in capsys.readouterr().err


def test_a_prior_for_two_sizes(tmp_path: Path, results: str, capsys: pytest.CaptureFixture[str]) -> None:
    few = write(tmp_path / "few.jsonl", sweep(sizes=[1024, 2**20]))
    assert "too few sizes" in refusal(capsys, "fit", few)
    out, _ = fitted(capsys, few, "--prior", "nccl", "--bandwidth", "50GB/s")
    assert "note: nccl prior: 2 sizes measured" in out and "the stated link's rate" in out
    (fit,) = json.loads(Path("model.json").read_text())["fits"]
    assert [size for size, _ in fit["curve"]] == [1024, 2**20]
    assert fit["prior"]["kind"] == "nccl"
    assert main(["estimate", "all_reduce", "--size", "1K,64M", "--model", "model.json", "--json"]) == 0
    near, far = json.loads(capsys.readouterr().out)
    assert (near["source"], near["extrapolated"], near["time_us"]) == ("fit", False, pytest.approx(20.04096))
    assert (far["source"], far["extrapolated"]) == ("prior", True)
    assert far["low_us"] < 20 + 2**26 / 25e3 < far["high_us"]
    assert "not measured: a prior's figure, corrected by 2 measured sizes" in far["notes"]
    assert far["high_us"] / far["low_us"] > 1.5 * near["high_us"] / near["low_us"]


def test_a_prior_changes_nothing_where_enough_was_measured(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    plain, _ = fitted(capsys, results)
    out, err = fitted(capsys, results, "--prior", "nccl")
    assert out == plain
    assert "collbench: warning: the nccl prior changed nothing: every fit has 8 sizes or more" in err


def test_broken_guidelines_are_warnings_and_notes_of_the_model(
    tmp_path: Path, results: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [
        record
        for name in ("reduce_scatter_tensor", "all_gather_into_tensor")
        for record in sweep(5.0, 60.0, collective=name)
    ]
    _, err = fitted(capsys, write(tmp_path / "r.jsonl", [*sweep(), *parts]))
    (line,) = err.splitlines()[:-1]
    assert line.startswith("collbench: warning: guideline: all_reduce world (8 ranks on 1 node, isolated): slower than")
    assert json.loads(Path("model.json").read_text())["notes"] == [line.removeprefix("collbench: warning: ")]


def test_a_slow_group_of_a_kind_is_a_warning(tmp_path: Path, results: str, capsys: pytest.CaptureFixture[str]) -> None:
    groups = {(0, 1): 1.0, (2, 3): 1.0, (4, 5): 1.4}
    records = [
        record
        for ranks, factor in groups.items()
        for record in sweep(20 * factor, 25 / factor, group="intra", nranks=2, group_ranks=list(ranks))
    ]
    _, err = fitted(capsys, write(tmp_path / "r.jsonl", records))
    assert "warning: groups unlike: all_reduce intra, 2 ranks nccl float32 isolated: group [4, 5] takes 1.40×" in err


def test_a_stated_link_is_never_exceeded(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = fitted(capsys, results, "--link-GBps", "160Gb/s")
    assert "faster than the stated link of 20 GB/s" in out
    assert main(["estimate", "all_reduce", "--size", "1G", "--model", "model.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["busbw_GBps"] <= 20.0000001


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--export", "cvs"], "unknown export 'cvs' (did you mean csv?)"),
        (["--export", "csv="], "no file after '='"),
        (["--export", "csv=results.jsonl"], "is one of the results files: name another file with --export"),
        (["--plot", "results.jsonl"], "is one of the results files: name another file with --plot"),
        (["--plot", "p.jpg"], "expected a file that ends in .png or .svg"),
        (["--prior", "guess"], "invalid choice"),
        (["--prior", "datasheet"], "--prior datasheet needs --bandwidth"),
        (["--prior", "nccl", "--latency", "3us"], "needs --bandwidth"),
        (["--bandwidth", "25"], "--bandwidth is for --prior"),
        (["--prior", "nccl", "--bandwidth", "0"], "above zero"),
        (["--link-GBps", "fast"], "--link-GBps"),
        (["--link-GBps", "0"], "above zero"),
    ],
)
def test_bad_flags_are_one_line(flags: list[str], says: str, results: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path(results).read_bytes()
    assert says in refusal(capsys, "fit", results, *flags)
    assert Path(results).read_bytes() == before and not Path("model.json").exists()


BAD_DATA = {
    "too few sizes": (sweep(sizes=SIZES[:2]), "too few sizes to fit: all_reduce world, 8 ranks"),
    "one size": (sweep(sizes=[1024]) * 5, "are of one size, 1 KiB"),
    "no time": (sweep(time_us=0.0), "bad.jsonl:2: time_us is 0.0: expected a time above zero"),
    "a negative time": (sweep(time_us=-3.0), "bad.jsonl:2: time_us is -3.0"),
    "no size": (sweep(size_bytes=0), "size 0"),
    "a negative size": (sweep(size_bytes=-8), "bad.jsonl:2: size_bytes is -8"),
    "one rank": (sweep(nranks=1, group_ranks=[0]), "one rank only"),
    "wrong data": (sweep(wrong=3), "wrong data"),
    "more nodes than ranks": (sweep(nnodes=9), "more nodes than ranks"),
    "another unit": (sweep(algbw_GBps=25e3), "another unit?"),
    "an unknown collective": (sweep(collective="all_reduze"), "not a collective of this version (all_reduze)"),
}


@pytest.mark.parametrize(("records", "says"), BAD_DATA.values(), ids=BAD_DATA)
def test_data_that_cannot_be_fitted_is_one_line(
    records: list[Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "bad.jsonl", records)
    said = refusal(capsys, "fit", path, "-o", str(tmp_path / "m.json"))
    assert says in said and "bad.jsonl:" in said


def test_a_time_that_is_no_number_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(write(tmp_path / "bad.jsonl", sweep()))
    lines = path.read_text().splitlines()
    lines[3] = lines[3].replace('"time_us": ', '"time_us": NaN, "other": ')
    path.write_text("\n".join(lines) + "\n")
    assert "bad.jsonl:4: not a record" in refusal(capsys, "fit", str(path), "-o", str(tmp_path / "m.json"))


def test_what_is_bad_beside_good_data_is_told_and_left_out(
    tmp_path: Path, results: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, err = fitted(capsys, write(tmp_path / "r.jsonl", [*sweep(), *sweep(wrong=2, sizes=SIZES[:4])]))
    assert "warning: 4 of 30 measurements not used: wrong data" in err


def test_duplicates_are_repeats(tmp_path: Path, results: str, capsys: pytest.CaptureFixture[str]) -> None:
    records = [one for factor in (0.9, 1.0, 1.3) for one in sweep(20 * factor, 25 / factor)]
    fitted(capsys, write(tmp_path / "r.jsonl", records))
    (fit,) = json.loads(Path("model.json").read_text())["fits"]
    assert fit["points"] == 3 * len(SIZES)
    assert fit["alpha_us"] == pytest.approx(20, rel=0.01)


def test_regimes_are_never_mixed(tmp_path: Path, results: str, capsys: pytest.CaptureFixture[str]) -> None:
    both = [*sweep(), *sweep(10.0, timing="pipelined")]
    fitted(capsys, write(tmp_path / "r.jsonl", both))
    fits = json.loads(Path("model.json").read_text())["fits"]
    assert {fit["timing"]: round(fit["alpha_us"]) for fit in fits} == {"isolated": 20, "pipelined": 10}


def test_groups_that_contradict_themselves_are_told(
    tmp_path: Path, results: str, capsys: pytest.CaptureFixture[str]
) -> None:
    records = sweep(group="inter", nranks=8, nnodes=2)
    _, err = fitted(capsys, write(tmp_path / "r.jsonl", records), "--plot", "p.svg", "--export", "csv")
    assert "measurements contradict themselves: intra is one node, inter one rank a node" in err


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("schema", "collbench.model/2", "schema 'collbench.model/2': this collbench reads collbench.model/1"),
        ("schema", None, "no schema"),
        ("fits", [], "holds no fits"),
        ("scaling", [{}], "scaling[0].collective is missing"),
    ],
)
def test_model_files_of_another_kind(
    key: str, value: Any, says: str, results: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted(capsys, results)
    document = json.loads(Path("model.json").read_text()) | {key: value}
    Path("other.json").write_text(json.dumps(document))
    assert says in refusal(capsys, "estimate", "all_reduce", "--size", "1K", "--model", "other.json")


def test_an_unknown_law_is_one_line(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    fitted(capsys, results)
    document = json.loads(Path("model.json").read_text())
    document["scaling"][0]["algorithm"] = "butterfly"
    Path("other.json").write_text(json.dumps(document))
    said = refusal(capsys, "estimate", "all_reduce", "--size", "1K", "--model", "other.json")
    assert "scaling[0].algorithm is 'butterfly': expected ring or" in said


def test_a_model_file_of_the_first_version_still_answers(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its fits have the contract's keys alone."""
    fitted(capsys, results)
    document = json.loads(Path("model.json").read_text())
    kept = {
        *("collective", "group", "nranks", "nnodes", "backend", "dtype", "in_place", "timing", "concurrent", "curve"),
        *("segments", "alpha_us", "alpha_us_interval", "busbw_GBps", "busbw_GBps_interval", "n_half_bytes"),
        *("error_pct", "points"),
    }
    document["fits"] = [{name: fit[name] for name in kept} for fit in document["fits"]]
    document["scaling"] = []
    Path("first.json").write_text(json.dumps(document))
    assert main(["estimate", "all_reduce", "--size", "8,64K,1M", "--model", "first.json", "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert [one["time_us"] for one in answers] == pytest.approx([20 + size / 25e3 for size in (8, 2**16, 2**20)])


def test_nccls_prior_for_another_backend_is_warned_of(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    records = [run_record(backend="gloo", world_size=8), *sweep(sizes=[1024, 2**20])]
    Path("gloo.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    _, err = fitted(capsys, "gloo.jsonl", "--prior", "nccl")
    assert "warning: the nccl prior is NCCL's own thinking, and of gloo it knows nothing" in err
    _, err = fitted(capsys, "gloo.jsonl", "--prior", "datasheet", "--bandwidth", "1GB/s", "--latency", "50us")
    assert err == "model: model.json\n"
