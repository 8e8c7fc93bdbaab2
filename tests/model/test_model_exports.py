"""Exports, read back by the rules of the programs they are for."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from model_data import SIZES, frame, line_us, rows, sweep

from collbench.collectives import find_collective
from collbench.errors import InputError
from collbench.model.exports import FORMATS, export, split_kind, write
from collbench.model.exports.nccl_tuner import OWN, forced_choice
from collbench.model.fit import fit_results
from collbench.model.store import Model

INTRA = {"group": "intra", "group_ranks": [0, 1, 2, 3], "nranks": 4, "nnodes": 1}
INTER = {"group": "inter", "group_ranks": [0, 4], "nranks": 2, "nnodes": 2}


@pytest.fixture(scope="module")
def model() -> Model:
    """8 ranks on 2 nodes: world, intra, inter of all_reduce; all_to_all and send_recv of the world."""
    return fit_results(
        frame(
            rows(),
            rows(alpha_us=40, bandwidth_GBps=100, **INTRA),
            rows(alpha_us=30, bandwidth_GBps=20, **INTER),
            rows(alpha_us=50, collective="all_to_all_single"),
            rows(alpha_us=10, collective="send_recv"),
        )
    )


def only_file(kind: str, model: Model, **forced: Model) -> str:
    (text,) = export(kind, model, **forced).files.values()
    return text


def test_csv_has_a_row_per_measured_size_with_its_segment_and_its_interval(model: Model) -> None:
    table = list(csv.DictReader(io.StringIO(only_file("csv", model))))
    assert len(table) == sum(len(fit.curve) for fit in model.fits)
    world = [line for line in table if (line["collective"], line["group"]) == ("all_reduce", "world")]
    assert [int(line["size_bytes"]) for line in world] == SIZES.tolist()
    for line in world:
        figures = {name: float(line[name]) for name in line if name.endswith(("_us", "_GBps", "_bytes"))}
        size, time_us = figures["size_bytes"], figures["time_us"]
        assert time_us == pytest.approx(line_us(size, 20, 25))
        assert figures["low_us"] < time_us < figures["high_us"]
        assert figures["segment_alpha_us"] + size / figures["segment_bandwidth_GBps"] / 1e3 == pytest.approx(time_us)
        assert figures["busbw_GBps"] == pytest.approx(1.75 * size / time_us / 1e3)
        assert figures["n_half_low_bytes"] < figures["n_half_bytes"] < figures["n_half_high_bytes"]
        assert figures["size_90_low_bytes"] < figures["size_90_bytes"] < figures["size_90_high_bytes"]
        assert figures["fit_busbw_GBps"] == pytest.approx(43.75, rel=1e-3)


def test_csv_says_nothing_where_nothing_is_known() -> None:
    line = next(csv.DictReader(io.StringIO(only_file("csv", fit_results(frame(rows(SIZES[:3], backend=None)))))))
    assert (line["backend"], line["error_median_pct"]) == ("", "")


def astra(text: str) -> dict[str, list[str]]:
    lines = [line.partition("#")[0] for line in text.splitlines()]
    pairs = (line.split(":") for line in lines if line.strip())
    return {name: [word.strip() for word in values.strip(" []").split(",")] for name, values in pairs}


def test_astra_sims_ring_on_the_exported_network_takes_what_the_fit_does(model: Model) -> None:
    network = astra(only_file("astra-sim", model))
    assert network["topology"] == ["Switch", "Switch"]
    assert network["npus_count"] == ["4", "2"]  # inside first
    for level, (nranks, alpha_us, algbw_GBps) in enumerate([(4, 40, 100), (2, 30, 20)]):
        steps, sent = find_collective("all_reduce").ring_steps(nranks), 2 * (nranks - 1) / nranks * 2**20
        bytes_per_ns = float(network["bandwidth"][level]) * 2**30 / 1e9
        ring_ns = steps * 2 * float(network["latency"][level]) + sent / bytes_per_ns
        assert ring_ns / 1e3 == pytest.approx(line_us(2**20, alpha_us, algbw_GBps), rel=1e-4)


def test_astra_sim_gets_one_level_where_one_was_measured() -> None:
    assert astra(only_file("astra-sim", fit_results(frame(rows()))))["npus_count"] == ["8"]
    assert astra(only_file("astra-sim", fit_results(frame(rows(**INTRA)))))["npus_count"] == ["4"]


def test_astra_sim_is_told_to_be_wrong_where_the_fit_bends() -> None:
    times = np.where(SIZES <= 2**16, line_us(SIZES, 10, 1), line_us(SIZES, 200, 25))
    bent = export("astra-sim", fit_results(frame(sweep(times))))
    (note,) = bent.notes
    assert "2 segments" in note and "of the measured time" in note


def test_galvatron_reads_its_own_keys(model: Model) -> None:
    exported = export("galvatron", model)
    place = "2nodes_4gpus_per_node.json"
    files = {name: json.loads(text) for name, text in exported.files.items()}
    assert sorted(files) == [f"allreduce_bandwidth_{place}", f"p2p_bandwidth_{place}", f"sp_time_{place}"]
    assert files[f"allreduce_bandwidth_{place}"] == {
        "allreduce_size_8_consec_1": pytest.approx(25 * 1.75, rel=1e-3),
        "allreduce_size_4_consec_1": pytest.approx(100 * 1.5, rel=1e-3),
        "allreduce_size_2_consec_0": pytest.approx(20, rel=1e-3),
    }
    assert files[f"p2p_bandwidth_{place}"] == {"pp_size_8": pytest.approx(25, rel=1e-3)}
    times_ms = files[f"sp_time_{place}"]
    assert times_ms["allreduce_size_8_64MB_time"] == pytest.approx(line_us(2**26, 20, 25) / 1e3)
    assert times_ms["all2all_size_8_1MB_time"] == pytest.approx(line_us(2**20, 50, 25) / 1e3)
    assert "allreduce_size_2_1MB_time" not in times_ms  # strided: its times are of neighbours
    assert len(times_ms) == 3 * 11
    assert any("2 more keys (allreduce_size_2_consec_1, allreduce_size_4_consec_0)" in note for note in exported.notes)


def test_galvatron_gets_no_time_that_was_not_measured() -> None:
    exported = export("galvatron", fit_results(frame(rows(2 ** np.arange(21, 25)))))
    times_ms = json.loads(exported.files["sp_time_2nodes_4gpus_per_node.json"])
    assert [key.split("_")[3] for key in times_ms] == ["2MB", "4MB", "8MB", "16MB"]
    assert any("fewer than the 8 sizes" in note for note in exported.notes)


def tuner_rows(text: str) -> list[tuple[str, ...]]:
    """As the plugin reads it: no comments, lines shorter than 256, eight to ten fields, known words."""
    assert all(len(line) < 255 for line in text.splitlines())
    lines = [tuple(line.split(",")) for line in text.splitlines() if line and not line.startswith("#")]
    for line in lines:
        assert len(line) == 8
        assert line[0] in ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
        assert line[3] in ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
        assert line[4] in ("ll", "ll128", "simple")
        assert all(int(number) >= -1 for number in (*line[1:3], *line[5:]))
    return lines


def test_the_tuner_takes_the_fastest_of_what_was_forced(model: Model) -> None:
    tree = fit_results(frame(rows(alpha_us=10, bandwidth_GBps=10)))  # as fast as the ring at (20 − 10) / (1/10 − 1/25)
    forced = {("ring", "simple"): model, ("tree", "ll"): tree}
    lines = tuner_rows(only_file("nccl-tuner", model, forced=forced))
    assert lines == [
        ("allreduce", "8", "262143", "tree", "ll", "-1", "2", "8"),
        ("allreduce", "262144", str(2**30), "ring", "simple", "-1", "2", "8"),
    ]


def test_the_tuner_leaves_to_nccl_what_nccl_does_best(model: Model) -> None:
    tree = fit_results(frame(rows(alpha_us=10, bandwidth_GBps=10)))
    (line,) = tuner_rows(only_file("nccl-tuner", model, forced={OWN: model, ("tree", "ll"): tree}))
    assert line[:4] == ("allreduce", "8", "262143", "tree")


def test_a_gain_within_the_noise_is_no_row(model: Model) -> None:
    near = fit_results(frame(rows(alpha_us=19.5)))
    assert tuner_rows(only_file("nccl-tuner", model, forced={OWN: near, ("ring", "ll"): model})) == []


def test_without_forced_runs_the_tuner_file_chooses_nothing_and_says_so(model: Model) -> None:
    exported = export("nccl-tuner", model)
    (text,) = exported.files.values()
    assert tuner_rows(text) == []
    assert "# allreduce,8,1073741824,ALGORITHM,PROTOCOL,-1,2,8" in text
    assert "nothing to choose between" in exported.notes[0]


@pytest.mark.parametrize(
    ("environment", "choice"),
    [
        ({}, OWN),
        ({"NCCL_ALGO": "NVLSTree", "NCCL_PROTO": "Simple"}, ("nvls_tree", "simple")),
        ({"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL128"}, ("ring", "ll128")),
        ({"NCCL_ALGO": "Ring"}, None),
        ({"NCCL_ALGO": "ring,tree", "NCCL_PROTO": "LL"}, None),
        ({"NCCL_ALGO": "^tree", "NCCL_PROTO": "LL"}, None),
    ],
)
def test_what_a_run_was_forced_to(environment: dict[str, str], choice: tuple[str, str] | None) -> None:
    assert forced_choice(environment) == choice


def test_every_format_says_what_it_keeps_and_loses(model: Model) -> None:
    for kind, format in FORMATS.items():
        assert format.keeps and format.loses
        assert export(kind, model).files


@pytest.mark.parametrize("kind", ["nccl-tuner", "astra-sim", "galvatron"])
def test_a_model_with_nothing_to_say_is_refused(kind: str) -> None:
    with pytest.raises(InputError, match="nothing to export"):
        export(kind, fit_results(frame(rows(collective="hypercube"))))
    with pytest.raises(InputError, match="gloo, nccl: export the results of one backend"):
        export(kind, fit_results(frame(rows(), rows(backend="gloo"))))


@pytest.mark.parametrize(
    ("text", "kind", "path"), [("csv", "csv", None), ("astra-sim=a=b.yml", "astra-sim", "a=b.yml")]
)
def test_kind_and_file(text: str, kind: str, path: str | None) -> None:
    assert split_kind(text) == (kind, path)


@pytest.mark.parametrize(("text", "says"), [("cvs", "did you mean csv"), ("csv=", "no file after '='")])
def test_bad_kinds(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        split_kind(text)


def test_where_files_go(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert write(export("csv", model), "csv", None) == [Path("fits.csv")]
    assert write(export("csv", model), "csv", "a/b.csv") == [Path("a/b.csv")]
    assert Path("a/b.csv").read_text() == Path("fits.csv").read_text()
    folder = write(export("galvatron", model), "galvatron", "g")
    assert len(folder) == 3 and all(path.parent == Path("g") and path.exists() for path in folder)
    with pytest.raises(InputError, match="cannot be written"):
        write(export("csv", model), "csv", "fits.csv/x")
