"""Sizes whose errors go together: those of one segment of a fit."""

from __future__ import annotations

import numpy as np
from model_data import SIZES, frame, line_us, rows

from collbench.model.fit import fit_results
from collbench.model.link import LinkModel


def test_a_regime_is_a_segment_of_the_fit() -> None:
    measured = rows()
    for record in measured:
        if record["size_bytes"] > 2**17:
            record["time_us"] = float(line_us(record["size_bytes"], 200.0, 50.0))
    model = fit_results(frame(measured))
    (fit,) = model.fits
    assert len(fit.segments) > 1
    regimes = model.time("all_reduce", SIZES).regime
    for regime, segment in enumerate(fit.segments):
        inside = (segment.from_bytes <= SIZES) & (segment.to_bytes >= SIZES)
        assert set(regimes[inside]) == {regime}
    assert model.time("all_reduce", 1).regime == 0
    assert model.time("all_reduce", 2**40).regime == len(fit.segments) - 1


def test_a_law_over_rank_counts_is_off_at_all_sizes_alike() -> None:
    model = fit_results(frame(rows(), rows(alpha_us=30.0, nranks=16, nnodes=4, group_ranks=list(range(16)))))
    assert set(np.atleast_1d(model.time("all_reduce", SIZES, nranks=64, nnodes=16).regime)) == {0}


def test_link_figures_have_none() -> None:
    assert LinkModel(bandwidth_GBps=1).time("all_reduce", 8, nranks=2).regime is None
