"""Warnings of times that contradict each other, and silence where they only differ by noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from model_data import SIZES, frame, line_us, noisy, rows, sweep

from collbench.model.fit import fit_results
from collbench.model.guidelines import broken_guidelines, unlike_groups

PARTS = ("reduce_scatter_tensor", "all_gather_into_tensor")


def broken(*lists: list[dict[str, Any]]) -> list[str]:
    return broken_guidelines(fit_results(frame(*lists)).fits)


def test_a_sane_library_is_not_warned_of() -> None:
    assert broken(rows(), *(rows(alpha_us=11, bandwidth_GBps=49, collective=name) for name in PARTS)) == []


def test_an_all_reduce_slower_than_its_parts() -> None:
    times_us = line_us(SIZES, 20, 25) * np.where(SIZES == 2**20, 3.0, 1.0)
    (line,) = broken(
        sweep(times_us), *(rows(alpha_us=10, bandwidth_GBps=50, collective=name) for name in PARTS), rows(dtype="int8")
    )[:1]
    assert "all_reduce world (8 ranks on 2 nodes, isolated): slower than reduce_scatter_tensor + " in line
    assert "at 1 of 28 sizes, most at 1 MiB: 186 us against 31 us + 31 us (3.00×)" in line


@pytest.mark.parametrize("change", [{"nranks": 4}, {"group": "intra", "nnodes": 1}, {"timing": "pipelined"}])
def test_only_the_same_ranks_and_regime_are_compared(change: dict[str, Any]) -> None:
    slow = rows(alpha_us=200)
    assert broken(slow, *(rows(alpha_us=1, collective=name, **change) for name in PARTS)) == []
    assert broken(slow, *(rows(alpha_us=1, collective=name) for name in PARTS))


def test_sizes_that_only_one_has_are_not_compared() -> None:
    assert broken(rows(alpha_us=200), *(rows(SIZES[-3:] * 4, collective=name) for name in PARTS)) == []


@pytest.mark.parametrize(
    ("slow", "fast"),
    [("reduce_scatter_tensor", "all_reduce"), ("scatter", "broadcast"), ("gather", "all_gather_into_tensor")],
)
def test_a_part_slower_than_the_whole(slow: str, fast: str) -> None:
    (line,) = broken(rows(alpha_us=60, bandwidth_GBps=10, collective=slow), rows(collective=fast))
    assert f"{slow} world" in line and f"slower than {fast} at 28 of 28 sizes" in line


def test_a_larger_message_that_is_faster() -> None:
    times_us = np.where(SIZES <= 512, 600.0, line_us(SIZES, 280, 5))
    (line,) = broken(sweep(times_us, collective="all_to_all_single"))
    assert "all_to_all_single world (8 ranks on 2 nodes, isolated): 8 B takes 600 us, longer than" in line
    assert "such as 1 KiB with 280 us" in line


def test_noise_breaks_no_guideline() -> None:
    found = 0
    for seed in range(100):
        parts = [
            sweep(noisy(line_us(SIZES, 10, 50), 0.05, 3 * seed + number), collective=name)
            for number, name in enumerate(PARTS, start=1)
        ]
        found += len(broken(sweep(noisy(line_us(SIZES, 20, 25), 0.05, 3 * seed)), *parts))
    assert found <= 3


def groups(*factors: float) -> dict[tuple[int, ...], dict[float, float]]:
    return {
        (index, index + 8): {float(size): factor * line_us(size, 20, 25) for size in SIZES}
        for index, factor in enumerate(factors)
    }


def test_a_slow_group_is_named() -> None:
    (line,) = unlike_groups("all_reduce inter", groups(1.0, 1.02, 1.5, 0.99), 0.01)
    assert line == (
        "groups unlike: all_reduce inter: group [2, 10] takes 1.50× the time of the other 3 (median over 28 sizes); "
        "a fit takes the slowest group"
    )


def test_groups_that_differ_by_noise_or_little_are_alike() -> None:
    assert unlike_groups("x", groups(1.0, 1.05, 0.98), 0.0) == []
    assert unlike_groups("x", groups(1.0, 1.3), 0.2) == []
    assert unlike_groups("x", groups(1.0), 0.0) == []
    assert unlike_groups("x", {}, 0.0) == []


def test_one_slow_size_is_no_slow_group() -> None:
    of_group = groups(1.0, 1.0)
    of_group[(0, 8)][8.0] = 500.0
    assert unlike_groups("x", of_group, 0.0) == []
    few = {ranks: {8.0: times[8.0]} for ranks, times in groups(1.0, 2.0).items()}
    assert unlike_groups("x", few, 0.0) == []
