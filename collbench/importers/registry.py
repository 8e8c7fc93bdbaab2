"""The formats there are. A new one is a file of this package and one line here; each reads what it recognises."""

from __future__ import annotations

from collbench.importers import (
    all_reduce_bench,
    bandwidth_csv,
    bandwidth_json,
    bigscience_bench,
    busbw_columns,
    comms_logger,
    ds_bench,
    gloo_benchmark,
    kineto,
    nccl_json,
    nccl_tests,
    nccl_tuning,
    nccom,
    osu,
    param,
    size_columns,
    superbench,
)
from collbench.importers.table import Format

FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        nccl_json.FORMAT,
        bandwidth_json.RCCL,
        bandwidth_json.MSCCLPP,
        bandwidth_csv.FORMAT,
        bandwidth_csv.AVERAGES,
        superbench.FORMAT,
        kineto.FORMAT,
        nccom.FORMAT,  # before nccl-tests, whose rows without their header look like it
        nccl_tests.FORMAT,
        osu.FORMAT,
        ds_bench.FORMAT,
        comms_logger.FORMAT,
        param.FORMAT,
        all_reduce_bench.FORMAT,
        bigscience_bench.FORMAT,
        gloo_benchmark.FORMAT,
        size_columns.FORMAT,
        busbw_columns.FORMAT,
        nccl_tuning.FORMAT,
    )
}  # fmt: skip
