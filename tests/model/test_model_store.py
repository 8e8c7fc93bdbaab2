"""The model file: it reads back as it was written, and damage is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_data import frame, rows

from collbench.collectives import COLLECTIVES
from collbench.errors import InputError
from collbench.model.document import fit_from_json, scaling_from_json, to_json
from collbench.model.fit import fit_results
from collbench.model.laws import Breakpoint, Fit, HeldOutError, Scaling, Segment
from collbench.model.store import Model, load_model

CONTRACT = {
    *("collective", "group", "nranks", "nnodes", "backend", "dtype", "in_place", "timing", "concurrent"),
    *("curve", "segments", "alpha_us", "alpha_us_interval", "busbw_GBps", "busbw_GBps_interval"),
    *("n_half_bytes", "error_pct", "points"),
}


@pytest.fixture(scope="module")
def model() -> Model:
    return fit_results(frame(rows(), rows(collective="broadcast", timing="pipelined"), rows(alpha_us=9, nranks=4)))


def test_a_saved_model_reads_back_the_same(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "new" / "model.json"
    model.save(path)
    again = load_model(path)
    assert again == model
    assert again.to_dict() == model.to_dict() == json.loads(path.read_text())


def test_the_document_has_the_contracts_keys(model: Model) -> None:
    document = model.to_dict()
    assert document["schema"] == "collbench.model/1"
    assert document["sources"] == [{"run_id": "r1"}]
    for fit in document["fits"]:
        assert set(fit) >= CONTRACT
        assert set(fit["error_pct"]) == {"median", "p90", "held_out"}
        for segment in fit["segments"]:
            assert {"from_bytes", "to_bytes", "alpha_us", "bandwidth_GBps"} <= set(segment)
    for law in document["scaling"]:
        assert {"collective", "group", "algorithm", "alpha_us_per_step", "link_GBps"} <= set(law)


positive = st.floats(1e-9, 1e12)
words = st.none() | st.text(max_size=5)
flags = st.none() | st.booleans()


def intervals(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[tuple[float, float]]:
    return st.tuples(numbers, numbers).map(lambda pair: (min(pair), max(pair)))


segments = st.builds(
    Segment,
    from_bytes=st.integers(1, 2**40),
    to_bytes=st.integers(1, 2**40),
    alpha_us=positive,
    alpha_us_interval=intervals(positive),
    bandwidth_GBps=positive,
    bandwidth_GBps_interval=intervals(positive),
)
curves = st.dictionaries(st.integers(1, 2**40), positive, min_size=1, max_size=8).map(
    lambda points: tuple(sorted(points.items()))
)
fits = st.builds(
    Fit,
    collective=st.sampled_from(sorted(COLLECTIVES)),
    group=st.text(max_size=8),
    nranks=st.integers(8, 10_000),
    nnodes=st.integers(1, 8),
    backend=words,
    dtype=words,
    in_place=flags,
    timing=st.sampled_from(["isolated", "pipelined"]),
    concurrent=flags,
    curve=curves,
    segments=st.lists(segments, min_size=1, max_size=4).map(tuple),
    alpha_us=positive,
    alpha_us_interval=intervals(positive),
    busbw_GBps=positive,
    busbw_GBps_interval=intervals(positive),
    n_half_bytes=positive,
    error_pct=st.builds(HeldOutError, median=st.none() | positive, p90=st.none() | positive, held_out=st.booleans()),
    points=st.integers(1, 10**9),
    interval_log=st.tuples(st.floats(-3, 0), st.floats(0, 3)),
    n_half_bytes_interval=st.none() | intervals(positive),
    size_90_bytes=st.none() | positive,
    size_90_bytes_interval=st.none() | intervals(positive),
    breakpoints=st.lists(st.builds(Breakpoint, size_bytes=positive, interval=intervals(positive)), max_size=3).map(
        tuple
    ),
    link_GBps=st.none() | positive,
    notes=st.lists(st.text(max_size=5), max_size=2).map(tuple),
)


@settings(max_examples=60, deadline=None)
@given(fits)
def test_any_fit_goes_through_json_unchanged(fit: Fit) -> None:
    text = json.dumps(to_json(fit), allow_nan=False)
    assert fit_from_json(json.loads(text), "fits[0]") == fit


def test_a_scaling_law_goes_through_json_unchanged(model: Model) -> None:
    for law in model.scaling:
        assert scaling_from_json(json.loads(json.dumps(to_json(law))), "scaling[0]") == law
        assert isinstance(law, Scaling)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("\n", "is empty"),
        ('{"schema":\n"collbench.model/1",', ":2: not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no schema"),
        ("{}", "no schema"),
        ('{"kind":"run","schema":"collbench.results/1"}', "schema 'collbench.results/1': this collbench reads"),
        ('{"schema":"collbench.model/2","fits":[]}', "schema 'collbench.model/2'"),
        ('{"schema":"collbench.model/1","fits":[]}', "holds no fits"),
        ('{"schema":"collbench.model/1"}', "holds no fits"),
        ('{"schema":"collbench.model/1","fits":{}}', "fits is not a list"),
        ('{"schema":"collbench.model/1","fits":[7]}', "fits.0. is 7: expected an object"),
    ],
)
def test_a_damaged_file_is_one_line(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InputError, match=says) as refusal:
        load_model(path)
    assert "bad.json" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_model(tmp_path / "missing.json")
    with pytest.raises(InputError, match="cannot be read"):
        load_model(tmp_path)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="holds no text"):
        load_model(tmp_path / "binary.json")


def test_a_place_that_cannot_be_written(model: Model, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        model.save(tmp_path)


NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize("value", [NAN, INFINITE, -INFINITE, -1.0, "12", None, True])
@pytest.mark.parametrize("name", ["alpha_us", "busbw_GBps", "n_half_bytes", "nranks", "points"])
def test_a_number_that_is_none_is_named_by_fit_and_key(model: Model, name: str, value: object, tmp_path: Path) -> None:
    refused(model, tmp_path, lambda fits: fits[1].update({name: value}), rf"fits\[1\]\.{name} is .*expected")


def refused(model: Model, tmp_path: Path, damage: Callable[[list[Any]], None], says: str) -> None:
    document = model.to_dict()
    damage(document["fits"])
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=says) as refusal:
        load_model(path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("curve", [], "a list of .size_bytes, time_us."),
        ("curve", [[8, 1.0], [16, NAN]], "above zero in point 1"),
        ("curve", [[8, 1.0], [16, 0.0]], "above zero in point 1"),
        ("curve", [[16, 1.0], [8, 2.0]], "increasing sizes at point 1"),
        ("curve", [[8, 1.0, 2.0]], "as point 0"),
        ("segments", [], "a list of at least 1"),
        ("segments", [{"from_bytes": 8}], "the key to_bytes"),
        ("alpha_us_interval", [2.0, 1.0], "the lower one first"),
        ("alpha_us_interval", [1.0], "two numbers"),
        ("error_pct", {"median": -1.0, "p90": None, "held_out": True}, "median to be"),
        ("interval_log", [0.1, 0.2], "around zero"),
        ("spread_log", [-0.1], "not below zero"),
        ("link_GBps", 0.0, "above zero"),
        ("breakpoints", [{"size_bytes": 8.0}], "the key interval"),
        ("collective", "all_redcue", "did you mean all_reduce"),
        ("timing", "fast", "isolated or pipelined"),
        ("in_place", 1, "true, false or null"),
        ("nranks", 1, "a whole number of at least 2"),
        ("nnodes", 99, "at most nranks, 4"),
    ],
)
def test_every_value_is_checked(model: Model, name: str, value: object, says: str, tmp_path: Path) -> None:
    refused(model, tmp_path, lambda fits: fits[0].update({name: value}), rf"fits\[0\]\.{name} is .*{says}")


def test_every_key_of_the_contract_is_needed(model: Model, tmp_path: Path) -> None:
    for name in CONTRACT:
        refused(model, tmp_path, lambda fits, name=name: fits[2].pop(name), rf"fits\[2\]\.{name} is missing")


def test_other_programs_need_not_write_our_own_keys(model: Model, tmp_path: Path) -> None:
    document = model.to_dict()
    del document["scaling"]
    for fit in document["fits"]:
        for name in set(fit) - CONTRACT:
            del fit[name]
        for segment in fit["segments"]:
            del segment["alpha_us_interval"], segment["bandwidth_GBps_interval"]
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(document))
    estimate = load_model(path).time("all_reduce", 1024)
    assert estimate.low_us is not None
    assert estimate.low_us < estimate.time_us < estimate.high_us  # type: ignore[operator]


def test_a_law_of_another_kind_is_refused(model: Model, tmp_path: Path) -> None:
    document = model.to_dict()
    document["scaling"][0]["algorithm"] = "star"
    (tmp_path / "model.json").write_text(json.dumps(document))
    with pytest.raises(
        InputError, match=r"scaling\[0\]\.algorithm is 'star': expected ring or tree or busbw or constant"
    ):
        load_model(tmp_path / "model.json")


def test_sources_hold_no_nan(model: Model, tmp_path: Path) -> None:
    document = model.to_dict() | {"sources": [{"run_id": NAN}]}
    (tmp_path / "model.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match="sources hold"):
        load_model(tmp_path / "model.json")
