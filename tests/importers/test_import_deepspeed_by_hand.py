"""DeepSpeed's benchmark and comms logger: specimens whose every figure was worked out by hand, as the comments have it.

Both tools' Gbps are 10^9 bits a second, and their KB, MB and GB powers of 1024.
"""

from __future__ import annotations

import pytest
from foreign_logs import measurements, read_text

BENCH = """
---- Performance of all_reduce on 8 devices ---------------------------------------------------------
Size (Bytes)         Description               Duration             Throughput (Gbps)    BusBW (Gbps)
----------------------------------------------------------------------------------------------------
8.0 B                2x4                       40.000 us            0.003                0.003
64.0 MB              16777216x4                2.000 ms             536.871              469.762

---- Performance of all_gather on 8 devices ---------------------------------------------------------
Size (Bytes)         Description               Duration             Throughput (Gbps)    BusBW (Gbps)
----------------------------------------------------------------------------------------------------
2.0 MB               1048576x2                 500.000 us           268.435              234.881

---- Performance of all_to_all on 8 devices ---------------------------------------------------------
Size (Bytes)         Description               Duration             Throughput (Gbps)    BusBW (Gbps)
----------------------------------------------------------------------------------------------------
16.0 MB              4194304x4                 1.000 ms             134.218              117.441

---- Performance of broadcast on 8 devices ---------------------------------------------------------
Size (Bytes)         Description               Duration             Throughput (Gbps)    BusBW (Gbps)
----------------------------------------------------------------------------------------------------
1.0 GB               268435456x4               25.000 ms            343.597              343.597

---- Performance of pt2pt on 2 devices ---------------------------------------------------------
Size (Bytes)         Description               Duration             Throughput (Gbps)    BusBW (Gbps)
----------------------------------------------------------------------------------------------------
4.0 KB               1024x4                    5.000 us             6.554                6.554
"""
# (collective, ranks, bytes as nccl-tests counts, us, algbw, busbw in GB/s)
BENCH_BY_HAND = [
    ("all_reduce", 8, 8, 40.0, 0.0002, 0.00035),  # 8 B / 40 us; x 2 x 7/8
    ("all_reduce", 8, 67108864, 2000.0, 33.554432, 58.720256),  # 64 x 1048576 B / 2 ms; x 2 x 7/8
    ("all_gather_into_tensor", 8, 16777216, 500.0, 33.554432, 29.360128),  # 8 x 2 MiB / 500 us; x 7/8
    ("all_to_all_single", 8, 16777216, 1000.0, 16.777216, 14.680064),  # 16 MiB / 1 ms; x 7/8
    ("broadcast", 8, 1073741824, 25000.0, 42.94967296, 42.94967296),  # 1 GiB / 25 ms; x 1
    ("ds_bench_pt2pt", 2, 4096, 5.0, None, None),
]


def test_every_operation_of_the_benchmark():
    imported = read_text(BENCH)
    assert imported.refused == [] and {table.format for table in imported.tables} == {"ds-bench"}
    rows = measurements(imported)
    for row, (collective, nranks, size_bytes, time_us, algbw, busbw) in zip(rows, BENCH_BY_HAND, strict=True):
        assert (row["collective"], row["nranks"], row["size_bytes"]) == (collective, nranks, size_bytes)
        assert row["time_us"] == time_us
        assert row["algbw_GBps"] == pytest.approx(algbw, abs=0.0001)
        assert row["busbw_GBps"] == pytest.approx(busbw, abs=0.0001)


# Of 4 ranks. all_reduce: 268435456 B in 8 ms are 33.554 GB/s, 268.435 Gbps, printed twice that, and 3/4 of that as
# busbw. all_gather: 4 x 33554432 B in 4 ms, reduce_scatter: 134217728 B in 4 ms, both 268.435 Gbps, and 3/4 of it.
# broadcast: 2048 B in 20 us are 0.1024 GB/s, 0.8192 Gbps.
CALLS = [
    ("all_reduce", "8.00", "256.0 MB", "536.87", "402.65"),
    ("all_gather_into_tensor", "4.00", "32.0 MB", "268.44", "201.33"),
    ("reduce_scatter_tensor", "4.00", "128.0 MB", "268.44", "201.33"),
    ("broadcast", "0.02", "2.0 KB", "0.82", "0.82"),
]
# (collective, bytes as nccl-tests counts, us, algbw, busbw in GB/s)
CALLS_BY_HAND = [
    ("all_reduce", 268435456, 8000.0, 33.554432, 50.331648),
    ("all_gather_into_tensor", 134217728, 4000.0, 33.554432, 25.165824),
    ("reduce_scatter_tensor", 134217728, 4000.0, 33.554432, 25.165824),
    ("broadcast", 2048, 20.0, 0.1024, 0.1024),
]


def verbose(calls):
    return "".join(
        f"[2025-03-04 05:06:07,089] [INFO] [logging.py:107:log_dist] [Rank 0] comm op: {operation} | time (ms): {time} "
        f"| msg size: {size} | algbw (Gbps): {algbw} | busbw (Gbps): {busbw}\n"
        for operation, time, size, algbw, busbw in calls
    )


def summary(calls, count=3):
    words = ("Comm. Op", "Message Size", "Count", "Total Latency(ms)", "Avg Latency(ms)", "tput_avg (Gbps)")
    lines = ["".join(f"{word:<20}" for word in words) + "busbw_avg (Gbps)    "]
    for operation, time, size, algbw, busbw in calls:
        total = f"{count * float(time):.2f}"
        lines += [operation, f"{'':20}" + "".join(f"{word:<20}" for word in (size, count, total, time, algbw, busbw))]
    return "\n".join(lines) + "\n"


def check(imported, by_hand):
    assert imported.refused == [] and {table.format for table in imported.tables} == {"deepspeed"}
    for row, (collective, size_bytes, time_us, algbw, busbw) in zip(measurements(imported), by_hand, strict=True):
        assert (row["collective"], row["nranks"], row["size_bytes"]) == (collective, 4, size_bytes)
        assert row["time_us"] == time_us
        assert row["algbw_GBps"] == pytest.approx(algbw) and row["busbw_GBps"] == pytest.approx(busbw)


@pytest.mark.parametrize("layout", [verbose, summary])
def test_the_comms_logger_of_today(layout):
    check(read_text(layout(CALLS)), CALLS_BY_HAND)


def test_a_logger_that_multiplies_reduce_scatter_s_whole_message():
    """As versions between did: 4 x 268.435 Gbps and 3/4 of that are printed for the same call."""
    calls = list(CALLS)
    calls[2] = ("reduce_scatter_tensor", "4.00", "128.0 MB", "1073.74", "805.31")
    check(read_text(verbose(calls)), CALLS_BY_HAND)


def test_the_logger_of_2022_doubles_them_all_and_its_sizes_are_whole_messages():
    """all_gather: 134217728 B in 4 ms are 268.435 Gbps, printed twice that; broadcast likewise, with 3/4 as busbw."""
    calls = [
        ("all_gather_into_tensor", "4.00", "128.0 MB", "536.87", "402.65"),
        ("broadcast", "8.00", "256.0 MB", "536.87", "402.65"),
    ]
    by_hand = [
        ("all_gather_into_tensor", 134217728, 4000.0, 33.554432, 25.165824),
        ("broadcast", 268435456, 8000.0, 33.554432, 33.554432),
    ]
    check(read_text(verbose(calls)), by_hand)
