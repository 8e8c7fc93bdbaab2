"""Results -> Model: what is pooled, what is kept apart, what is left out, what is refused."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import pandas
import pytest
from model_data import SIZES, frame, line_us, noisy, row, rows, sweep, write_results

from collbench.errors import InputError
from collbench.model.fit import fit_results
from collbench.model.laws import Fit
from collbench.model.store import load_model


def only(fits: tuple[Fit, ...]) -> Fit:
    (fit,) = fits
    return fit


def times_of(fit: Fit) -> list[float]:
    return [time for _, time in fit.curve]


def test_a_clean_sweep_gives_its_own_figures() -> None:
    model = fit_results(frame(rows(alpha_us=20, bandwidth_GBps=25)))
    fit = only(model.fits)
    assert (fit.collective, fit.nranks, fit.nnodes, fit.backend, fit.points) == ("all_reduce", 8, 2, "nccl", 28)
    assert fit.alpha_us == pytest.approx(20)
    assert fit.busbw_GBps == pytest.approx(25 * 14 / 8)
    assert fit.n_half_bytes == pytest.approx(20e-6 * 25e9)
    assert fit.alpha_us_interval[0] < 20 < fit.alpha_us_interval[1]
    assert fit.busbw_GBps_interval[0] < 25 * 14 / 8 < fit.busbw_GBps_interval[1]
    assert [size for size, _ in fit.curve] == SIZES.tolist()
    assert times_of(fit) == pytest.approx(list(line_us(SIZES, 20, 25)))
    assert fit.error_pct.held_out
    assert fit.error_pct.p90 is not None
    assert fit.error_pct.p90 < 1e-6  # a line is what interpolation is made for
    assert fit.interval_log[0] <= -0.01 < 0.01 <= fit.interval_log[1]
    assert model.sources == ({"run_id": "r1"},)
    assert model.notes == ()


def test_groups_of_a_kind_are_pooled_by_the_maximum_and_repeats_by_the_median() -> None:
    def inter(ranks: list[int], factor: float) -> list[dict]:
        return [record | {"time_us": factor * record["time_us"]} for record in rows(group="inter", group_ranks=ranks)]

    slow = [inter([1, 3], factor) for factor in (1.5, 2.0, 9.0)]  # median 2.0
    fast = [inter([0, 2], factor) for factor in (1.0, 1.0, 50.0)]  # median 1.0, one outlier
    fit = only(fit_results(frame(*slow, *fast)).fits)
    assert times_of(fit) == pytest.approx(list(2.0 * line_us(SIZES, 20, 25)))
    assert fit.points == 6 * len(SIZES)


@pytest.mark.parametrize(
    "change",
    [
        {"timing": "pipelined"},
        {"backend": "gloo"},
        {"concurrent": False},
        {"in_place": True},
        {"dtype": "bfloat16"},
        {"group": "intra"},
        {"nranks": 4},
        {"nnodes": 4},
        {"collective": "broadcast"},
    ],
)
def test_nothing_else_is_mixed(change: dict) -> None:
    fits = fit_results(frame(rows(alpha_us=20), rows(alpha_us=90, **change))).fits
    assert sorted(round(fit.alpha_us) for fit in fits) == [20, 90]
    name, value = next(iter(change.items()))
    assert {getattr(fit, name) for fit in fits} == {value, row(8, 1)[name]}


def test_of_several_operators_sum_is_kept_with_a_note() -> None:
    fit = only(fit_results(frame(rows(alpha_us=20), rows(alpha_us=90, redop="max"))).fits)
    assert fit.alpha_us == pytest.approx(20)
    assert fit.notes == ("redop sum alone; left out: max",)
    assert only(fit_results(frame(rows(redop="max"))).fits).notes == ()


def test_rows_that_say_nothing_are_left_out_and_counted() -> None:
    bad = [
        row(1024, 1e6, wrong=3),
        row(2048, 1e6, wrong=1),
        row(0, 5.0),
        row(1024, 5.0, nranks=1),
        row(1024, math.nan),
        row(1024, -5.0),
        row(1024, math.inf),
    ]
    model = fit_results(frame(rows(), bad))
    assert only(model.fits).points == 28
    assert [note.split(" of ")[0] for note in model.notes] == ["2", "1", "3"]  # size 0 is no news
    assert "wrong data" in model.notes[0]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("size_bytes", -8, "size is no whole number of bytes"),
        ("size_bytes", 0.5, "size is no whole number of bytes"),
        ("size_bytes", math.inf, "size is no whole number of bytes"),
        ("size_bytes", 2**64, "size is no whole number of bytes"),
        ("time_us", 1e-300, "no possible time"),
        ("time_us", 1e300, "no possible time"),
        ("nranks", 2.5, "ranks or nodes are no whole number above zero"),
        ("nranks", math.inf, "ranks or nodes are no whole number above zero"),
        ("nnodes", 0, "ranks or nodes are no whole number above zero"),
        ("timing", None, "timing is neither isolated nor pipelined"),
        ("timing", "both", "timing is neither isolated nor pipelined"),
        ("in_place", "yes", "in_place or concurrent is neither true nor false"),
        ("concurrent", 5, "in_place or concurrent is neither true nor false"),
    ],
)
def test_values_that_cannot_be_are_left_out_and_named(name: str, value: object, reason: str) -> None:
    bad = [record | {name: value} for record in rows()]
    model = fit_results(frame(rows(), bad[:1]))
    assert only(model.fits).points == 28
    assert model.notes == (f"1 of 29 measurements not used: {reason}",)
    with pytest.raises(InputError, match=f"nothing to fit.*{reason}"):
        fit_results(frame(bad))


def test_words_of_other_types_are_words_in_the_model_file(tmp_path: Path) -> None:
    model = fit_results(frame(rows(dtype=5, group=3, backend=7, in_place=0)))
    model.save(tmp_path / "model.json")
    fit = only(load_model(tmp_path / "model.json").fits)
    assert (fit.dtype, fit.group, fit.backend, fit.in_place) == ("5", "3", "7", False)


def test_a_small_key_is_left_out_with_a_note() -> None:
    model = fit_results(frame(rows(), rows(SIZES[:2], collective="broadcast")))
    assert only(model.fits).collective == "all_reduce"
    assert model.notes == ("left out: broadcast world, 8 ranks nccl float32 isolated: 2 of the 3 sizes a line needs",)


def test_imports_may_lack_fields() -> None:
    lacking = frame(rows())[["collective", "size_bytes", "time_us", "timing", "nranks"]]
    model = fit_results(lacking)
    fit = only(model.fits)
    assert (fit.group, fit.nnodes, fit.backend, fit.dtype, fit.in_place, fit.concurrent) == ("world", 1, *[None] * 4)
    assert "do not say their nodes" in model.notes[0]
    assert model.time("all_reduce", 8).time_us == pytest.approx(20, rel=1e-3)


def test_short_names_of_collectives_are_understood() -> None:
    assert only(fit_results(frame(rows(collective="all_gather"))).fits).collective == "all_gather_into_tensor"


def test_files_and_lists_of_files_and_frames(tmp_path: Path) -> None:
    one = write_results(tmp_path / "one.jsonl", rows())
    two = write_results(tmp_path / "two.jsonl", rows(collective="broadcast", run_id="r2"), run_id="r2")
    assert only(fit_results(one).fits) == only(fit_results(str(one)).fits) == only(fit_results([one]).fits)
    model = fit_results([one, str(two), frame(rows(timing="pipelined"))])
    assert len(model.fits) == 3
    assert model.sources == ({"run_id": "r1"}, {"run_id": "r2"})


def test_few_sizes_have_no_held_out_error_and_a_wide_interval() -> None:
    fit = only(fit_results(frame(rows(SIZES[::7]))).fits)
    assert (fit.error_pct.median, fit.error_pct.p90, fit.error_pct.held_out) == (None, None, False)
    assert fit.interval_log == (-0.2, 0.2)
    assert only(fit_results(frame(rows(SIZES[::5]))).fits).error_pct.held_out


def test_with_few_sizes_the_interval_grows_with_the_step_between_them() -> None:
    near, far, uneven = (
        only(fit_results(frame(rows(np.array(sizes)))).fits).spread_log
        for sizes in ([8, 16, 32], [8, 2**9, 2**15], [8, 16, 2**10])
    )
    assert near == pytest.approx([0.2] * 3)
    assert far == pytest.approx([0.45] * 3)
    assert uneven == pytest.approx([0.2, 0.45, 0.45])


def test_noise_of_repeats_widens_the_interval() -> None:
    def spread(noise: float) -> float:
        repeats = [[r | {"time_us": float(noisy(r["time_us"], noise, seed * 100 + i))} for i, r in enumerate(rows())]
                   for seed in range(9)]  # fmt: skip
        low, high = only(fit_results(frame(*repeats)).fits).interval_log
        return high - low

    assert spread(0.001) < spread(0.1)
    assert 0.2 < spread(0.1) < 0.5  # 90 % of 10 % noise is ±16 %


def test_runs_that_differ_at_all_sizes_widen_alpha_and_bandwidth() -> None:
    """Their medians lie on one line, which tells nothing of how far the next run will be off it."""
    apart = only(fit_results(frame(rows(), rows(alpha_us=40, bandwidth_GBps=12.5))).fits)
    assert apart.alpha_us_interval[0] < 20 and apart.alpha_us_interval[1] > 40
    assert apart.busbw_GBps_interval[0] < 12.5 * 7 / 4 and apart.busbw_GBps_interval[1] > 25 * 7 / 4
    assert [note.split(":")[0] for note in apart.notes] == ["repeats differ at all sizes alike, as of unlike runs"]
    for runs in (2, 6):  # noise of each size's own is in the scatter already
        repeats = [sweep(noisy(line_us(SIZES, 20, 25), 0.1, seed)) for seed in range(runs)]
        fit = only(fit_results(frame(*repeats)).fits)
        assert not fit.notes and fit.alpha_us_interval[1] < 1.1 * fit.alpha_us


def test_what_a_sweep_cannot_tell_is_noted() -> None:
    large = only(fit_results(frame(rows(SIZES[20:]))).fits)  # n½ is 500 kB
    small = only(fit_results(frame(rows(SIZES[:14]))).fits)
    assert [note.split(":")[0] for note in large.notes] == ["α not identified"]
    assert [note.split(":")[0] for note in small.notes] == ["bandwidth not identified"]


def test_n_half_lies_where_half_of_the_bandwidth_is_reached() -> None:
    times = np.where(SIZES <= 65536, line_us(SIZES, 10, 2), line_us(SIZES, 60, 25))
    fit = only(fit_results(frame(sweep(times))).fits)
    assert len(fit.segments) == 2
    assert fit.n_half_bytes == pytest.approx(60e-6 * 25e9)


def test_a_law_is_summed_up_at_the_largest_count() -> None:
    model = fit_results(frame(rows(nranks=4, nnodes=2), rows(alpha_us=28, nranks=8)))
    (law,) = model.scaling
    assert (law.collective, law.group, law.nranks) == ("all_reduce", "world", (4, 8))
    assert law.network == "several ranks on several nodes"
    assert law.alpha_us_per_step == pytest.approx(28 / 14)
    assert law.link_GBps == pytest.approx(25 * 14 / 8)


def test_an_interval_follows_its_point() -> None:
    """Where a curve is known well its interval is narrow, however noisy it is elsewhere."""
    times = line_us(SIZES, 20, 25)
    times[:14] = noisy(times[:14], 0.2, seed=4)
    quiet, loud = (only(fit_results(frame([row(s, t) for s, t in zip(SIZES, each, strict=True)])).fits)
                   for each in (line_us(SIZES, 20, 25), times))  # fmt: skip
    assert len(loud.spread_log) == len(loud.curve)
    assert np.mean(loud.spread_log[:12]) > 2 * np.mean(loud.spread_log[-8:])
    assert max(quiet.spread_log) < 0.02


def test_a_link_of_no_rate_is_refused() -> None:
    for rate in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="expected a finite rate above zero"):
            fit_results(frame(rows()), link_GBps=rate)


def test_two_hundred_curves_in_five_seconds() -> None:
    records = [row(s, t, nranks=2 * n) for n in range(1, 201)
               for s, t in zip(SIZES, noisy(line_us(SIZES, 20, 25), 0.05, n), strict=True)]  # fmt: skip
    table = frame(records)
    started = time.process_time()
    assert len(fit_results(table).fits) == 200
    assert time.process_time() - started < 5.0


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([row(2**k, 10, wrong=1) for k in range(3, 20)], "nothing to fit .17 of 17 measurements not used: wrong data"),
        ([row(2**k, 10, nranks=1) for k in range(3, 20)], "one rank only"),
        ([row(0, 10)] * 4, "size 0"),
        ([row(1024, 10), row(1024, 11), row(1024, 12)], "all 3 usable measurements are of one size, 1 KiB"),
        (rows(SIZES[:2]), "too few sizes to fit: all_reduce world, 8 ranks .* 2 of the 3 sizes"),
        (rows(SIZES[:2]) + rows(SIZES[2:4], dtype="int32"), "and 1 like it"),
        ([], "no measurements"),
        (rows(collective="all_redcue"), r"not a collective of this version \(all_redcue\)"),
    ],
)
def test_refusals_are_one_line_that_says_what_to_do(records: list[dict], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says) as refusal:
        fit_results(frame(records))
    assert "\n" not in str(refusal.value)


def test_refusals_name_the_file(tmp_path: Path) -> None:
    path = write_results(tmp_path / "small.jsonl", rows(SIZES[:2]))
    with pytest.raises(InputError, match=r"small\.jsonl: too few sizes"):
        fit_results(path)
    with pytest.raises(InputError, match=r"empty\.jsonl: holds no measurements"):
        fit_results(write_results(tmp_path / "empty.jsonl", []))
    with pytest.raises(InputError, match="no results"):
        fit_results([])


def test_a_frame_without_the_needed_columns_is_refused() -> None:
    with pytest.raises(InputError, match="has no column time_us"):
        fit_results(frame(rows()).drop(columns="time_us"))


def test_a_frame_with_a_column_twice_is_refused() -> None:
    table = frame(rows())
    with pytest.raises(InputError, match="has the column time_us more than once"):
        fit_results(pandas.concat([table, table[["time_us"]]], axis=1))


def test_a_file_named_twice_is_fitted_once(tmp_path: Path) -> None:
    path = write_results(tmp_path / "r.jsonl", rows())
    once, twice = fit_results(path), fit_results([path, str(path)], path)
    assert [fit.points for fit in twice.fits] == [fit.points for fit in once.fits]
