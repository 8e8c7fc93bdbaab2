"""A cell across which the link's rate changed is told from noise, of whatever shape."""

from __future__ import annotations

import random

import pytest

from collbench.measure.samples import is_unstable

NOISE = {
    "normal": lambda r: 100 * (1 + 0.05 * r.gauss(0, 1)),
    "wide": lambda r: 100 * (1 + 0.2 * r.gauss(0, 1)),
    "skewed": lambda r: 100 + r.expovariate(0.01),
    "heavy tail": lambda r: 100 * r.paretovariate(1.5),
    "uniform": lambda r: r.uniform(100, 200),
}


@pytest.mark.parametrize("count", [6, 7, 10, 20, 60])
@pytest.mark.parametrize("noise", NOISE)
def test_less_than_1_percent_of_independent_noise_looks_unstable(noise, count):
    r, cells = random.Random(1), 1000
    alarms = sum(bool(is_unstable([NOISE[noise](r) for _ in range(count)])) for _ in range(cells))
    assert alarms < 0.01 * cells


@pytest.mark.parametrize("count", [6, 9, 12, 40, 200])
@pytest.mark.parametrize("factor", [2.0, 0.5, 1.4])
def test_a_change_of_the_rate_in_the_middle_is_found(count, factor):
    r, cells = random.Random(2), 300
    found = 0
    for _ in range(cells):
        levels = [1.0] * (count // 2) + [factor] * (count - count // 2)
        found += bool(is_unstable([100 * level * (1 + 0.02 * r.gauss(0, 1)) for level in levels]))
    assert found > 0.99 * cells


def test_an_early_and_a_late_change_are_found_with_the_sample_in_which_it_fell():
    fast, slow = ([level + 0.1 * (7 * i % 10) for i in range(14)] for level in (52, 104))
    assert is_unstable([20.9, 20.7, 20.8, 33.9, 41.6, 41.4, 41.5])
    assert is_unstable([*fast[:3], 90, *slow])
    assert is_unstable([*fast, 60, *slow[:3]])


def test_outliers_and_a_slow_drift_and_few_samples_are_not_levels():
    assert is_unstable([100, 100, 101, 100, 100, 300]) is False
    assert is_unstable([300, 200, 100, 100, 101, 100, 100, 102, 100]) is False
    assert is_unstable([100 + i for i in range(60)]) is False
    assert is_unstable([100.0] * 8) is False
    assert is_unstable([100, 100, 104, 104, 104, 104]) is False  # less than a tenth
    assert is_unstable([100, 100, 100, 200, 200]) is None
