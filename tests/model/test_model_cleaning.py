"""Warm-ups, dips, peaks, unstable and contradictory measurements: set aside or kept, and always said."""

from __future__ import annotations

import numpy as np
import pytest
from model_data import SIZES, frame, line_us, noisy, row, rows, sweep

from collbench.model.fit import fit_results
from collbench.model.laws import Fit
from collbench.model.store import Model


def only(model: Model) -> Fit:
    (fit,) = model.fits
    return fit


def test_a_first_row_that_warmed_up_is_set_aside_and_said() -> None:
    times = line_us(SIZES, 60, 25)
    times[0] = 85.0
    fit = only(fit_results(frame(sweep(times))))
    assert fit.curve[0] == (16, pytest.approx(60, rel=1e-3))
    assert fit.notes == ("first row set aside as warm-up: 8 B took 85 us, 16 B 60 us",)
    assert fit.alpha_us == pytest.approx(60, rel=1e-3)


def test_a_first_row_that_repeats_confirm_stays() -> None:
    times = line_us(SIZES, 60, 25)
    times[0] = 85.0
    fit = only(fit_results(frame(sweep(times), sweep(times * 1.01))))
    assert fit.curve[0][0] == 8


@pytest.mark.parametrize(("factor", "kept"), [(1.6, True), (10.0, False)])
def test_a_dip_is_said_leaves_the_segments_alone_and_stays_unless_it_is_absurd(factor: float, kept: bool) -> None:
    times = noisy(line_us(SIZES, 20, 25), 0.02, seed=1)
    times[23] *= 1 if factor < 2 else factor
    times[9] *= factor
    fit = only(fit_results(frame(sweep(times))))
    assert (4096 in dict(fit.curve)) == kept
    (note,) = [note for note in fit.notes if note.startswith("dip at 4 KiB")]
    assert note.endswith("kept, left out of the segments" if kept else "set aside")
    assert len(fit.segments) == 1
    assert fit.alpha_us == pytest.approx(20, rel=0.03)
    assert fit.busbw_GBps == pytest.approx(25 * 14 / 8, rel=0.03)


def test_a_dip_that_repeats_confirm_stays_in_the_curve() -> None:
    times = line_us(SIZES, 20, 25)
    times[23] *= 8
    fit = only(fit_results(frame(sweep(times), sweep(times * 1.02))))
    assert dict(fit.curve)[2**26] == pytest.approx(1.01 * times[23])


@pytest.mark.parametrize(("factor", "kept"), [(0.37, True), (0.2, False)])
def test_a_peak_is_said_and_leaves_the_segments_alone(factor: float, kept: bool) -> None:
    """No α–β line more than doubles the time at twice the size, nor falls."""
    times = noisy(line_us(SIZES, 20, 25), 0.02, seed=1)
    times[[9, 16]] *= factor, 0.25  # at 512 KiB time grows with the size
    fit = only(fit_results(frame(sweep(times))))
    assert (4096 in dict(fit.curve)) == kept
    (note,) = [note for note in fit.notes if note.startswith("peak at 4 KiB")]
    assert note.endswith("kept, left out of the segments" if kept else "set aside")
    assert any(note.startswith("peak at 512 KiB") for note in fit.notes) and len(fit.notes) == 2
    assert len(fit.segments) == 1
    assert fit.alpha_us == pytest.approx(20, rel=0.03)
    assert fit.busbw_GBps == pytest.approx(25 * 14 / 8, rel=0.03)


def test_a_peak_that_repeats_confirm_stays_in_the_curve() -> None:
    times = line_us(SIZES, 20, 25)
    times[9] /= 8
    fit = only(fit_results(frame(sweep(times), sweep(times * 1.02))))
    assert dict(fit.curve)[4096] == pytest.approx(1.01 * times[9])


def test_steps_down_and_noise_are_neither_dips_nor_peaks() -> None:
    step = np.where(SIZES <= 4096, 600.0, line_us(SIZES, 280, 1))
    assert only(fit_results(frame(sweep(step)))).notes == ()
    found = 0
    for seed in range(50):
        fit = only(fit_results(frame(sweep(noisy(line_us(SIZES, 20, 25), 0.1, seed)))))
        found += sum(note.startswith(("dip", "peak")) for note in fit.notes)
    assert found <= 5


@pytest.mark.parametrize(("small_us", "dip", "called"), [(40.0, 10, "8 KiB"), (5.0, 7, "1 KiB")])
def test_between_a_dip_and_a_step_nothing_is_a_peak(small_us: float, dip: int, called: str) -> None:
    times = np.where(SIZES <= 2048, small_us, line_us(SIZES, 20, 25))
    times[dip] *= 6  # after a step down's first fast size; before a step up's last one
    assert [note.split(":")[0] for note in only(fit_results(frame(sweep(times)))).notes] == [f"dip at {called}"]


def test_unstable_measurements_are_left_out_where_others_of_the_size_remain() -> None:
    calm, shaken = rows(alpha_us=20), rows(alpha_us=90, unstable=True)
    fit = only(fit_results(frame(calm, shaken[:10])))
    assert fit.alpha_us == pytest.approx(20)
    assert (fit.points, fit.notes) == (len(SIZES), ("10 unstable measurements left out",))


def test_no_size_is_lost_for_being_unstable() -> None:
    records = rows()
    records[5]["unstable"] = True
    records[6]["unstable"] = False
    fit = only(fit_results(frame(records)))
    assert len(fit.curve) == len(SIZES)
    assert fit.notes == ("measured unstable only: 256 B",)


def test_duplicates_with_different_times_are_repeats() -> None:
    fit = only(fit_results(frame(rows(), [row(1024, 30.0), row(1024, 50.0)])))
    assert dict(fit.curve)[1024] == 30.0  # the median of 20.04, 30 and 50
    assert fit.points == len(SIZES) + 2


def test_another_unit_of_time_is_noticed_by_the_bandwidth() -> None:
    good = [record | {"algbw_GBps": record["size_bytes"] / record["time_us"] / 1e3} for record in rows()]
    in_ms = [record | {"time_us": record["time_us"] / 1e3} for record in good[20:]]
    model = fit_results(frame(good[:20], in_ms))
    assert len(only(model).curve) == 20
    assert model.notes == ("8 of 28 measurements not used: time and algbw contradict each other (another unit?)",)


def test_counts_that_contradict_each_other_are_said() -> None:
    model = fit_results(frame(rows(), rows(nranks=2, nnodes=4)))
    assert model.notes == ("28 of 56 measurements not used: more nodes than ranks",)
    model = fit_results(frame(rows(group="intra", nranks=4, nnodes=2)))
    assert model.notes[0].startswith("28 measurements contradict themselves: intra is one node")
    model = fit_results(frame(rows(nranks=16, group_ranks=[*range(8)])))
    assert model.notes[0].startswith("28 measurements contradict themselves") and only(model).nranks == 16


def test_a_curve_in_another_unit_is_left_out_with_its_small_sizes() -> None:
    """Where a table rounds bandwidths away nothing shows the unit, and the rest of the curve does."""
    records = [record | {"algbw_GBps": round(record["size_bytes"] / record["time_us"] / 1e3, 2)} for record in rows()]
    in_ms = [record | {"collective": "broadcast", "time_us": record["time_us"] / 1e3} for record in records]
    model = fit_results(frame(records, in_ms))
    assert only(model).collective == "all_reduce"
    assert model.notes == ("28 of 56 measurements not used: time and algbw contradict each other (another unit?)",)


def test_units_that_change_within_a_curve_are_asked_about() -> None:
    def in_ms(records: list[dict], one_of: int) -> list[dict]:
        return [
            record | {"time_us": record["time_us"] / (1e3 if number % one_of == 0 else 1)}
            for number, record in enumerate(records)
        ]

    question = "more than 300× from their repeats or the size before: are all in us?"
    for records in (in_ms(rows(), 2), rows()[:14] + in_ms(rows()[14:], 1), rows() + in_ms(rows(), 1)):
        assert any(question in note for note in only(fit_results(frame(records))).notes)
    protocols = line_us(SIZES, 20, 25) * np.where(SIZES < 2**16, 1, 30)
    assert not any(question in note for note in only(fit_results(frame(sweep(protocols)))).notes)
