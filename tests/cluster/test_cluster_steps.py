"""The predictor against real steps over links of known rates, by a model that collbench measured on the same links.

Computation is a wait, which takes no CPU from gloo, as a GPU's kernels take none.
"""

from __future__ import annotations

import pytest

from cluster import Cluster, missing
from cluster.steps import Layers, Step, fit_model, real_step

pytestmark = [
    pytest.mark.workers,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]
STEP = 0.05
FSDP_STEP = 0.08
BUCKET = ["--bucket-cap-mb", "1"]  # a bucket a layer: all are larger

COMM_BOUND = [Layers(repeat=6, size_mib=3, forward_ms=3, backward_ms=7)]
COMPUTE_BOUND = [Layers(repeat=5, size_mib=1.5, forward_ms=10, backward_ms=45)]
# Its gradients are the last to be ready: they have nothing to hide behind.
BIG_EMBEDDING_FIRST = [
    Layers(repeat=1, size_mib=8, forward_ms=2, backward_ms=4),
    Layers(repeat=5, size_mib=1, forward_ms=8, backward_ms=22),
]


def is_predicted(cluster, folder, model, layers, *options, of_step=STEP, **how) -> Step:
    """The step, right at the second try if need be: other work may have disturbed the first."""
    tries = []
    for _ in range(2):
        step = real_step(cluster, folder, model, layers, *options, **how)
        tries.append(step.wrong(of_step))
        if not tries[-1]:
            return step
    return pytest.fail(f"{tries[0]}, then {tries[1]}")


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two_hosts")
    with Cluster(2, 500) as cluster:
        yield cluster, folder, fit_model(cluster, folder)


def test_a_step_whose_communication_takes_longer_than_its_computation(two_hosts):
    measured = is_predicted(*two_hosts, COMM_BOUND, *BUCKET).measured
    assert measured["exposed_comm_ms"] > 2 * measured["compute_ms"]


def test_a_step_that_hides_all_but_its_last_bucket(two_hosts):
    measured = is_predicted(*two_hosts, COMPUTE_BOUND, *BUCKET).measured
    assert 0 < measured["exposed_comm_ms"] < 0.15 * measured["compute_ms"]


def test_a_big_embedding_in_front_is_exposed_whole(two_hosts):
    measured = is_predicted(*two_hosts, BIG_EMBEDDING_FIRST, *BUCKET).measured
    assert 0.5 < measured["exposed_comm_ms"] / measured["compute_ms"] < 1


@pytest.mark.study
def test_a_step_over_two_levels(tmp_path):
    """Two hosts of two ranks: fast inside, slow between."""
    with Cluster(2, 500, intra_mbit=2000) as cluster:
        model = fit_model(cluster, tmp_path, ranks_per_host=2)
        is_predicted(cluster, tmp_path, model, BIG_EMBEDDING_FIRST, *BUCKET, ranks_per_host=2)


@pytest.mark.study
def test_a_step_that_waits_for_a_slow_host(tmp_path):
    with Cluster(3, 500, slow={1: 300}) as cluster:
        model = fit_model(cluster, tmp_path)
        is_predicted(cluster, tmp_path, model, BIG_EMBEDDING_FIRST, *BUCKET)


@pytest.mark.study
def test_a_step_on_four_hosts_with_buckets_of_several_layers(tmp_path):
    with Cluster(4, 400) as cluster:
        model = fit_model(cluster, tmp_path)
        is_predicted(cluster, tmp_path, model, COMM_BOUND, "--bucket-cap-mb", "6")


@pytest.mark.study
def test_torchs_fully_shard_as_it_comes_is_predicted_as_blocking(tmp_path):
    """Three hosts: an all_gather between two ranks takes either of two times, from call to call."""
    collectives = ["all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"]
    with Cluster(3, 500) as cluster:
        model = fit_model(cluster, tmp_path, collectives=collectives)
        layers = [Layers(repeat=4, size_mib=1.5, forward_ms=30, backward_ms=60)]
        is_predicted(cluster, tmp_path, model, layers, "--strategy", "fsdp", of_step=FSDP_STEP)


@pytest.mark.study
@pytest.mark.xfail(reason="gloo runs two collectives at a time, which hide each other's latency; predicted is one")
def test_a_step_of_small_buckets_over_a_far_network(tmp_path):
    """3 ms one way: an all_reduce of 128 KiB takes 13.7 ms, of which the link works for 2."""
    with Cluster(2, 500, delay_ms=3) as cluster:
        model = fit_model(cluster, tmp_path, largest="2M")
        small = [Layers(repeat=16, size_mib=0.125, forward_ms=1, backward_ms=2)]
        is_predicted(cluster, tmp_path, model, small, "--bucket-cap-mb", "0.1")
