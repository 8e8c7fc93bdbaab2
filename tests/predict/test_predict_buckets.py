"""DDP's buckets; torch's own reducer is asked in test_predict_torch.py."""

from __future__ import annotations

import pytest

from collbench.errors import InputError
from collbench.predict.buckets import bucket_limits_bytes, ddp_buckets
from collbench.predict.workload import Workload

LINEARS = {"layers": [{"tensors": [[1024, 1024], 1024], "repeat": 20}]}


def sizes_MB(workload, **caps):
    return [round(bucket.size_bytes / 1e6, 2) for bucket in ddp_buckets(Workload.from_dict(workload), **caps)]


def test_twenty_linears():
    assert sizes_MB(LINEARS) == [4.20, 29.39, 29.39, 20.99]
    assert sizes_MB(LINEARS, bucket_cap_mb=25) == [29.39, 29.39, 25.19]
    assert sizes_MB(LINEARS, bucket_cap_mb=10) == [12.6] * 6 + [8.4]
    assert sizes_MB(LINEARS, bucket_cap_mb=25, first_bucket_mb=1) == sizes_MB(LINEARS)


def test_several_caps_are_one_a_bucket_and_the_last_for_all_further_ones():
    assert sizes_MB(LINEARS, bucket_cap_mb=(4, 10, 20)) == [4.2, 12.6, 20.99, 20.99, 20.99, 4.2]
    with pytest.raises(InputError, match="first_bucket_mb = 1: the first of several"):
        bucket_limits_bytes((4, 10), 1)
    with pytest.raises(InputError, match="bucket_cap_mb = -2"):
        bucket_limits_bytes((4, -2), None)


def test_a_bucket_is_ready_with_the_layer_of_its_last_gradient():
    first, *_, last = ddp_buckets(Workload.from_dict(LINEARS))
    assert (first.layer, last.layer) == (19, 0)


def test_gradients_come_in_reverse_registration_order():
    layers = [{"tensors": [100, 200, 300]}]
    assert [b.numel for b in ddp_buckets(Workload.from_dict({"layers": layers}), bucket_cap_mb=0)] == [300, 200, 100]


def test_frozen_layers_take_no_part():
    layers = [{"tensors": [100]}, {"tensors": [200], "trainable": False}, {"tensors": [300]}]
    (bucket,) = ddp_buckets(Workload.from_dict({"layers": layers}))
    assert bucket.numel == 400


def test_bytes_are_the_gradients():
    workload = {"layers": [{"tensors": [100]}], "param_dtype": "float32", "grad_dtype": "bfloat16"}
    (bucket,) = ddp_buckets(Workload.from_dict(workload))
    assert bucket.size_bytes == 200


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_impossible_caps(value):
    with pytest.raises(InputError, match="bucket_cap_mb"):
        bucket_limits_bytes(value, None)
    with pytest.raises(InputError, match="first_bucket_mb"):
        bucket_limits_bytes(None, value)
