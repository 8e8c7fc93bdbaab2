"""Laws over rank counts: each is found where it holds, says how sure it is, and joins what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from model_data import SIZES, frame, noisy, row, rows

from collbench.errors import InputError
from collbench.model.fit import fit_results
from collbench.model.laws import Scaling
from collbench.model.store import Model

Law = Callable[[int, np.ndarray], np.ndarray]  # (ranks, sizes in bytes) -> us


def measured(law: Law, counts: list[int], collective: str, **changes: object) -> list[dict]:
    """Sweeps of a law over networks with one rank on each node."""
    return [
        row(size, us, collective=collective, nranks=n, nnodes=n, **changes)
        for n in counts
        for size, us in zip(SIZES, law(n, SIZES.astype(float)), strict=True)
    ]


def law_of(model: Model) -> Scaling:
    (law,) = model.scaling
    return law


def ring(steps: int) -> Law:
    return lambda n, sizes: steps * (n - 1) * (3.0 + sizes / n / 10e3)


def tree(n: int, sizes: np.ndarray) -> np.ndarray:
    return 10 + 20 * np.log2(n) + sizes * 2 * (n - 1) / n / 10e3


def bandwidth(n: int, sizes: np.ndarray) -> np.ndarray:
    return (15 + sizes / 10e3) * 2 * (n - 1) / n


def constant(n: int, sizes: np.ndarray) -> np.ndarray:
    return 15 + sizes / 10e3


@pytest.mark.parametrize(
    ("algorithm", "law", "collective"),
    [
        ("ring", ring(1), "all_gather_into_tensor"),
        ("ring", ring(1), "all_to_all_single"),
        ("ring", ring(2), "all_reduce"),
        ("tree", tree, "all_reduce"),
        ("busbw", bandwidth, "all_gather_into_tensor"),
        ("constant", constant, "reduce_scatter_tensor"),
    ],
)
def test_the_law_that_holds_is_found_and_answers_for_eight_times_the_ranks(
    algorithm: str, law: Law, collective: str
) -> None:
    if algorithm == "busbw":
        law = lambda n, sizes: (15 + sizes / 10e3) * (n - 1) / n  # noqa: E731  all_gather's factor
    model = fit_results(frame(measured(law, [2, 4, 8, 16], collective)))
    assert law_of(model).algorithm == algorithm
    assert law_of(model).error_pct.held_out
    asked = np.geomspace(100, 1e9, 50)
    answer = model.time(collective, asked, nranks=128, nnodes=128)
    assert answer.time_us == pytest.approx(law(128, asked), rel=0.05)
    assert answer.source == "scaling"
    assert np.all(answer.extrapolated)
    note = f"128 ranks on 128 nodes not measured: scaled by the {algorithm} law from 16 ranks on 16 nodes"
    assert answer.notes[0] == note + ", more than 4× outside the measured counts: measure more"


@pytest.mark.parametrize(("algorithm", "law"), [("ring", ring(2)), ("constant", constant)])
def test_noise_does_not_make_a_tree_of_another_law(algorithm: str, law: Law) -> None:
    """From 2 nodes to 4 a tree of the right depth doubles as a ring does, and with its depth free it bends to noise."""
    for seed in range(5):
        records = measured(law, [2, 4], "all_reduce")
        times = noisy(np.array([record["time_us"] for record in records]), 0.05, seed)
        noisily = [record | {"time_us": time_us} for record, time_us in zip(records, times.tolist(), strict=True)]
        model = fit_results(frame(noisily))
        answer = model.time("all_reduce", np.array([8.0, 1e5, 1e9]), nranks=32, nnodes=32)
        assert answer.time_us == pytest.approx(law(32, np.array([8.0, 1e5, 1e9])), rel=0.4), (algorithm, seed)


def test_every_smaller_count_speaks_for_the_law_and_its_certainty() -> None:
    """The two largest counts alone agree with held bandwidth; the smallest says that it does not go on so."""
    stepped: Law = lambda n, sizes: constant(n, sizes) * (3 if n == 2 else 1)  # noqa: E731
    all_of_them = fit_results(frame(measured(stepped, [2, 8, 16], "all_reduce")))
    without = fit_results(frame(measured(stepped, [8, 16], "all_reduce")))
    assert law_of(all_of_them).spread_log > 2 * law_of(without).spread_log  # type: ignore[operator]


def test_other_nodes_for_as_many_ranks_cost_certainty_and_are_warned_of() -> None:
    model = fit_results(frame(rows(nranks=32, nnodes=4), rows(nranks=64, nnodes=8)))
    widths = []
    for nnodes in (8, 16, 32):
        answer = model.time("all_reduce", 1e6, nranks=64, nnodes=nnodes)
        widths.append(math.log(answer.high_us / answer.low_us))  # type: ignore[arg-type, operator]
    assert widths[0] < widths[1] < widths[2]
    far, near = (model.time("all_reduce", 1e6, nranks=128, nnodes=nnodes) for nnodes in (64, 16))
    assert "more than 4× outside the measured counts" in far.notes[0]
    assert "more than 4×" not in near.notes[0]


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_to_all"])
def test_one_count_of_a_divided_collective_scales_by_chunks_and_steps(collective: str) -> None:
    model = fit_results(frame(measured(ring(1), [4], collective, backend="gloo")))
    asked = np.array([1e4, 1e6, 1e8])
    answer = model.time(collective, asked, nranks=16, nnodes=16)
    assert answer.time_us == pytest.approx(ring(1)(16, asked), rel=1e-6)
    assert not law_of(model).error_pct.held_out


def calling(call_us: float) -> Law:
    """A ring of 10 us a step whose call costs something beside its steps."""
    return lambda n, sizes: call_us + (n - 1) * (10.0 + sizes / n / 10e3)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_a_ring_of_nccl_pays_for_its_call_once(collective: str) -> None:
    """One count does not tell the call from the steps: NCCL's own base latency of a ring, 6.6 us, does."""
    model = fit_results(frame(measured(calling(6.6), [4], collective)))
    asked = np.array([1e3, 1e6, 1e8])
    answer = model.time(collective, asked, nranks=64, nnodes=64)
    assert answer.time_us == pytest.approx(calling(6.6)(64, asked), rel=1e-6)
    short = fit_results(frame(measured(lambda n, sizes: (n - 1) * (1 + sizes / n / 10e3), [4], collective)))
    assert law_of(short).call_us == pytest.approx(3 / 4, rel=0.01)  # no more than a step's: a fourth of the time


@pytest.mark.parametrize(("call_us", "backend"), [(0.0, "nccl"), (6.6, "nccl"), (64.0, "nccl"), (64.0, "gloo")])
def test_several_counts_tell_what_a_call_costs(call_us: float, backend: str) -> None:
    model = fit_results(frame(measured(calling(call_us), [2, 4, 8], "all_gather", backend=backend)))
    assert (law_of(model).algorithm, law_of(model).call_us or 0.0) == ("ring", call_us)
    asked = np.array([1e3, 1e6, 1e8])
    answer = model.time("all_gather", asked, nranks=64, nnodes=64)
    assert answer.time_us == pytest.approx(calling(call_us)(64, asked), rel=0.01)


@pytest.mark.parametrize("counts", [[4, 8], [2, 4, 8]])
@pytest.mark.parametrize("seed", range(3))
def test_noise_does_not_turn_an_all_to_all_into_a_tree(counts: list[int], seed: int) -> None:
    """A ring of fitted call and a tree of fitted depth both meet two counts; rings are what all_to_all usually is."""

    def law(n: int, sizes: np.ndarray) -> np.ndarray:
        return 10.0 + (n - 1) * (2.0 + sizes / n / 20e3)

    def with_noise(n: int, sizes: np.ndarray) -> np.ndarray:
        return np.asarray(noisy(law(n, sizes), 0.02, 99 * seed + n))

    model = fit_results(frame(measured(with_noise, counts, "all_to_all")))
    assert law_of(model).algorithm == "ring"
    assert law_of(model).call_us == pytest.approx(10, rel=0.2)  # 8 and 11.3 are the steps it is looked for in first
    asked = np.array([1e3, 1e6, 1e8])
    answer = model.time("all_to_all", asked, nranks=64, nnodes=64)
    assert answer.time_us == pytest.approx(law(64, asked), rel=0.08)


def test_one_count_of_all_reduce_is_a_tree_of_nccl_and_a_ring_of_gloo() -> None:
    for backend, algorithm in (("nccl", "tree"), ("gloo", "ring")):
        model = fit_results(frame(measured(ring(2), [4], "all_reduce", backend=backend)))
        assert law_of(model).algorithm == algorithm
    small, large = (model.time("all_reduce", size, nranks=8, nnodes=8).time_us for size in (8, 1e9))
    assert small == pytest.approx(float(ring(2)(8, np.array(8.0))), rel=1e-3)
    assert large == pytest.approx(float(ring(2)(8, np.array(1e9))), rel=1e-3)


def test_certainty_falls_with_every_doubling_and_with_less_to_go_by() -> None:
    def width(model: Model, nranks: int) -> float:
        answer = model.time("all_gather", 1e6, nranks=nranks, nnodes=nranks)
        return float(np.log(answer.high_us / answer.low_us))  # type: ignore[operator]

    one, three = (fit_results(frame(measured(ring(1), counts, "all_gather"))) for counts in ([8], [2, 4, 8]))
    for model in (one, three):
        widths = [width(model, n) for n in (8, 16, 32, 64)]
        assert widths == sorted(widths)
        assert widths[3] > 2.5 * widths[1] - 2 * widths[0]
    assert width(three, 64) < width(one, 64)


def test_between_two_counts_both_answer_and_at_them_the_measured_curve_does() -> None:
    model = fit_results(frame(measured(tree, [4, 16], "all_reduce")))
    low, middle, high = (float(model.time("all_reduce", 1e3, nranks=n, nnodes=n).time_us) for n in (4, 9, 16))
    assert low < middle < high
    assert model.time("all_reduce", 1e3, nranks=16, nnodes=16).source == "fit"
    near = [float(model.time("all_reduce", 1e3, nranks=n, nnodes=n).time_us) for n in (5, 15)]
    assert near == pytest.approx([float(tree(n, np.array(1e3))) for n in (5, 15)], rel=0.1)


def test_kinds_of_links_have_laws_of_their_own() -> None:
    model = fit_results(
        frame(
            rows(alpha_us=5, nranks=2, nnodes=1),
            rows(alpha_us=7, nranks=4, nnodes=1),
            rows(alpha_us=40, nranks=16, nnodes=4),
            rows(alpha_us=50, nranks=32, nnodes=8),
        )
    )
    assert {(law.network, law.nranks) for law in model.scaling} == {
        ("one node", (2, 4)),
        ("several ranks on several nodes", (16, 32)),
    }
    assert "from 32 ranks on 8 nodes" in model.time("all_reduce", 8, nranks=64, nnodes=16).notes[0]
    assert "from 4 ranks on 1 node" in model.time("all_reduce", 8, nranks=8, nnodes=1).notes[0]


def test_a_measured_count_is_never_scaled() -> None:
    model = fit_results(frame(*(rows(alpha_us=alpha, nranks=n, nnodes=1) for n, alpha in ((2, 2), (4, 40), (16, 160)))))
    for nranks, alpha_us in ((2, 2), (4, 40), (16, 160)):
        answer = model.time("all_reduce", 8, nranks=nranks, nnodes=1)
        assert (answer.source, answer.time_us) == ("fit", pytest.approx(alpha_us, rel=1e-3))
    assert "from 16 ranks" in model.time("all_reduce", 8, nranks=32, nnodes=1).notes[0]


def test_a_network_never_measured_is_said_and_widens() -> None:
    model = fit_results(frame(rows(nranks=4, nnodes=1, collective="broadcast")))
    same, other = (model.time("broadcast", 10**6, nranks=8, nnodes=nnodes) for nnodes in (1, 2))
    assert any("its network is not in the model" in note for note in other.notes)
    ratio = float(other.high_us) / float(other.time_us) / (float(same.high_us) / float(same.time_us))  # type: ignore[arg-type]
    assert ratio > 2.5


def test_a_law_of_an_older_file_answers_as_it_did() -> None:
    model = fit_results(frame(measured(tree, [4], "all_reduce")))
    old = replace(law_of(model), algorithm="ring", network=None, offset=None, exponent=None, spread_log=None)
    answer = replace(model, scaling=(old,)).time("all_reduce", 1e6, nranks=8, nnodes=8)
    assert "scaled by the ring law" in answer.notes[0]
    assert answer.low_us < answer.time_us < answer.high_us  # type: ignore[operator]


def test_without_a_law_other_counts_are_refused() -> None:
    model = fit_results(frame(rows()))
    with pytest.raises(InputError, match="no law for other counts than the measured 8"):
        replace(model, scaling=()).time("all_reduce", 8, nranks=64)
