"""The predictor against real steps over links of known rates, by a model that collbench measured on the same links.

Computation is a wait, which takes no CPU from gloo, as a GPU's kernels take none.
"""

from __future__ import annotations

import pytest

from cluster import missing, steps
from cluster.steps import Case, fit_model

pytestmark = [
    pytest.mark.workers,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]


def is_predicted(case: Case, cluster, model) -> dict[str, float]:
    """The measured step, right at the second try if need be: other work may have disturbed the first."""
    predicted, tries = case.predict(model), []
    for _ in range(2):
        measured = case.measure(cluster, model)
        tries.append(case.wrong(predicted, measured))
        if not tries[-1]:
            return measured
    return pytest.fail(f"{case.name}: {tries[0]}, then {tries[1]}")


def is_predicted_on_its_own(case: Case, folder) -> dict[str, float]:
    with case.links.cluster() as cluster:
        return is_predicted(case, cluster, fit_model(cluster, case.links, folder))


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory):
    links = steps.COMM_BOUND.links
    with links.cluster() as cluster:
        yield cluster, fit_model(cluster, links, tmp_path_factory.mktemp("two_hosts"))


def test_a_step_whose_communication_takes_longer_than_its_computation(two_hosts):
    measured = is_predicted(steps.COMM_BOUND, *two_hosts)
    assert measured["exposed_comm_ms"] > 2 * measured["compute_ms"]


def test_a_step_that_hides_all_but_its_last_bucket(two_hosts):
    measured = is_predicted(steps.COMPUTE_BOUND, *two_hosts)
    assert 0 < measured["exposed_comm_ms"] < 0.15 * measured["compute_ms"]


def test_a_big_embedding_in_front_is_exposed_whole(two_hosts):
    measured = is_predicted(steps.EMBEDDING_FIRST, *two_hosts)
    assert 0.5 < measured["exposed_comm_ms"] / measured["compute_ms"] < 1


def test_small_buckets_over_a_far_network_hide_each_others_latency(tmp_path):
    """gloo runs two at a time: one after another would take 1.8 times as long."""
    measured = is_predicted_on_its_own(steps.FAR, tmp_path)
    assert measured["exposed_comm_ms"] > measured["compute_ms"]


@pytest.mark.study
@pytest.mark.parametrize("case", [steps.TWO_LEVELS, steps.SLOW_HOST, steps.FOUR_HOSTS], ids=lambda case: case.name)
def test_a_step_on_other_clusters(case, tmp_path):
    is_predicted_on_its_own(case, tmp_path)


@pytest.mark.study
def test_fsdp_as_torch_runs_it_on_a_cpu_and_as_a_gpu_would(tmp_path):
    """torch's own `fully_shard` blocks; the schedule of a GPU is rolled by hand, with asynchronous collectives."""
    with steps.FULLY_SHARD.links.cluster() as cluster:
        model = fit_model(cluster, steps.FULLY_SHARD.links, tmp_path)
        blocking = is_predicted(steps.FULLY_SHARD, cluster, model)
        overlapping = is_predicted(steps.BY_HAND, cluster, model)
        is_predicted(steps.BY_HAND_BIG_ROOT, cluster, model)
    assert overlapping["step_ms"] < 0.9 * blocking["step_ms"]
