"""The page: what stands on it, that it stands alone, and that it is HTML."""

from __future__ import annotations

import pytest
from report_data import Page, measurement, prediction, results_file, sweep, validation

from collbench.errors import InputError
from collbench.model.fit import fit_results
from collbench.numbers import digits
from collbench.report.page import write_page
from collbench.results import load_results

FEW = sweep("all_reduce")  # a page of two pictures


def _page(tmp_path, records, *, fit=True, predictions=(), validated=None, notes=(), title="collbench report", **file):
    path = results_file(tmp_path / "r.jsonl", records, **file)
    model = fit_results([path]) if fit else None
    write_page(tmp_path / "page.html", load_results(path), model, predictions, validated, title=title, notes=notes)
    return Page(tmp_path / "page.html"), model


def test_it_shows_each_fits_figures(tmp_path):
    page, model = _page(tmp_path, sweep())
    assert len(model.fits) == 8
    for fit in model.fits:
        low, high = fit.alpha_us_interval
        assert f"{fit.timing} {digits(fit.alpha_us)} [{digits(low)}, {digits(high)}]" in page.text
        low, high = fit.busbw_GBps_interval
        assert f"{digits(fit.busbw_GBps)} [{digits(low)}, {digits(high)}]" in page.text
        assert fit.collective in page.text


def test_it_says_what_was_run(tmp_path):
    page, _ = _page(tmp_path, FEW)
    for text in ("n0 (ranks 0, 1)", "2 on 1 node", "gloo", "torch 2.13.0", "2026-05-01T10:00:00+00:00",
                 "What does this machine give?", "30 cells", "GLOO_SOCKET_IFNAME lo"):  # fmt: skip
        assert text in page.text


def test_it_stands_alone_and_is_html(tmp_path):
    page, _ = _page(tmp_path, FEW, predictions=[prediction()], validated=validation())
    text = (tmp_path / "page.html").read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert page.addresses and all(address.startswith("data:") for address in page.addresses)
    assert "@import" not in text and "url(" not in text
    assert "script" not in page.tags and "link" not in page.tags
    assert page.tags.count("img") == len(page.descriptions) == 2 + 1 + 1 and all(page.descriptions)


def test_what_users_wrote_is_text(tmp_path):
    evil = '<script>alert("1")</script>'
    run = {
        "nodes": [{"host": evil, "ranks": [0, 1], "devices": [evil]}],
        "environment": {"NCCL_X": evil},
        "sweep": {"name": evil, "question": evil},
        "versions": {"torch": evil},
    }
    predicted = prediction(workload=evil, strategy="ddp", notes=[evil])
    page, _ = _page(tmp_path, FEW, predictions=[predicted], title=evil, notes=[evil], **run)
    assert "script" not in page.tags
    assert page.text.count(evil) >= 8


def test_wrong_data_come_first(tmp_path):
    records = [{**record, "wrong": 7 * (index == 0)} for index, record in enumerate(FEW)]
    page, _ = _page(tmp_path, records)
    warning = "wrong data: all_reduce world at 256 B: 7 wrong elements in 1 of 30 measurements; no fit uses them"
    assert page.text.index(warning) < page.text.index("The fit")
    assert '<ul class="bad">' in (tmp_path / "page.html").read_text()


def test_skips_of_one_reason_are_one_line(tmp_path):
    skips = tuple(
        {"collective": "all_reduce", "group": "world", "size_bytes": size, "reason": "out of memory on rank 1"}
        for size in (2**30, 2**31)
    )
    page, _ = _page(tmp_path, FEW, skips=skips)
    assert page.text.count("out of memory on rank 1") == 1
    assert "skipped: all_reduce world at 1 GiB to 2 GiB: out of memory on rank 1" in page.text


def test_a_group_that_could_not_be_formed_is_told_of(tmp_path):
    skips = tuple({"collective": name, "group": "inter", "reason": "one node"} for name in ("broadcast", "all_reduce"))
    page, _ = _page(tmp_path, FEW, skips=skips)
    assert "skipped: broadcast, all_reduce inter: one node" in page.text


def test_a_run_that_did_not_end_is_told_of(tmp_path):
    page, _ = _page(tmp_path, FEW, ended=False)
    assert "run r1 did not end" in page.text


def test_one_rank_and_no_fit(tmp_path):
    records = sweep("all_reduce", nranks=1, group_ranks=[0])
    page, _ = _page(tmp_path, records, fit=False, notes=["no fit: one rank only"], world_size=1)
    assert "run r1 had one rank" in page.text and "no fit: one rank only" in page.text
    assert "There is no fit" in page.text
    assert page.tags.count("img") == 2, "the points are still drawn"


def test_extrapolated_predictions_are_told_of(tmp_path):
    page, _ = _page(tmp_path, FEW, predictions=[prediction(extrapolated=True)])
    assert "prediction tiny, ddp: extrapolated" in page.text


def test_nothing_to_warn_of_is_said(tmp_path):
    page, _ = _page(tmp_path, FEW)
    assert "None: all runs ended and all data were right." in page.text


def test_predictions_have_their_units_and_interval(tmp_path):
    page, _ = _page(tmp_path, FEW, predictions=[prediction(), prediction(strategy="fsdp", step_ms_interval=None)])
    row = "tiny ddp 1 × 2 14.00 ms [13.00, 15.50] ms 10.00 ms 4.000 ms 4.000 ms 4.000 ms 1.25 GB"
    assert row in page.text
    assert "tiny fsdp 1 × 2 14.00 ms – 10.00 ms" in page.text
    assert "all_reduce world 1 MiB 1 4.000 ms" in page.text


def test_a_validation_shows_its_errors(tmp_path):
    page, _ = _page(tmp_path, FEW, validated=validation())
    assert "step 14.50 ms – 14.00 ms – -3.5 %" in page.text
    assert "exposed tail 0.01000 ms – 0 ms – –" in page.text
    assert "reserved" not in page.text


def test_a_validation_shows_spread_interval_and_memory_where_it_has_them(tmp_path):
    peak = {"allocated_bytes": 1_500_000_000, "reserved_bytes": 2_000_000_000}
    known = {
        "spread_ms": {"step_ms": [14.25, 15.0]},
        "predicted_step_ms_interval": [13.5, 14.75],
        "memory": {"first_step": peak, "steady_state": peak | {"reserved_bytes": 2_500_000_000}},
    }
    page, _ = _page(tmp_path, FEW, validated=validation() | known)
    assert "step 14.50 ms [14.25, 15.00] 14.00 ms [13.50, 14.75] -3.5 %" in page.text
    assert "first step 1.50 GB 2.00 GB steady state 1.50 GB 2.50 GB" in page.text


def test_measurements_stand_by_size(tmp_path):
    page, _ = _page(tmp_path, FEW)
    assert "1 KiB 50.26 0.0204 0.0204 1 0 30.20 0.0339 0.0339 1 0" in page.text


def test_records_of_a_foreign_log_may_lack_much(tmp_path):
    records = [
        {name: value for name, value in record.items()
         if name not in ("group", "group_ranks", "nnodes", "nranks", "in_place", "concurrent", "dtype", "wrong")}
        for record in (measurement(size_bytes=size) for size in (0, 1024, 4096))
    ]  # fmt: skip
    empty = {"nodes": None, "versions": None, "environment": None, "sweep": None, "world_size": None, "backend": None}
    page, _ = _page(tmp_path, records, fit=False, **empty)
    assert "all_reduce, world: 3 sizes, 0 B to 4 KiB" in page.text
    assert "3 of 3 measurements were not checked for wrong data" in page.text


def test_a_run_killed_before_its_first_cell_has_a_page(tmp_path):
    page, _ = _page(tmp_path, [], fit=False, ended=False)
    assert "Nothing was measured." in page.text and "run r1 did not end" in page.text


def test_sizes_too_small_for_the_ranks_are_rows_and_no_points(tmp_path):
    page, _ = _page(tmp_path, [measurement(collective="all_gather_into_tensor", size_bytes=0)], fit=False)
    assert "0 B 50.00 0 0 1 0" in page.text


def test_several_files_are_one_page(tmp_path):
    first = results_file(tmp_path / "a.jsonl", FEW)
    second = results_file(
        tmp_path / "b.jsonl", sweep("all_reduce", dtype="bfloat16"), environment={"GLOO_SOCKET_IFNAME": "eth0"}
    )
    write_page(tmp_path / "page.html", [load_results(first), load_results(second)])
    page = Page(tmp_path / "page.html")
    assert "in a.jsonl" in page.text and "in b.jsonl" in page.text
    assert "GLOO_SOCKET_IFNAME lo" in page.text and "GLOO_SOCKET_IFNAME eth0" in page.text
    assert page.tags.count("img") == 4


def test_a_page_that_cannot_be_written(tmp_path):
    path = results_file(tmp_path / "r.jsonl", FEW)
    with pytest.raises(InputError, match="cannot be written"):
        write_page(tmp_path, load_results(path))


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (3.0, "3.00"), (100.4, "100"), (2490.2, "2490"), (1.01e-5, "0.0000101"), (-0.5, "-0.500")],
)
def test_numbers_are_written_without_exponents(value, text):
    assert digits(value) == text
