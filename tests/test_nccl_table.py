from __future__ import annotations

import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_samples import COLLECTIVES, VERSIONS, half, halves, style, table
from sample_records import measurement, run_record

from collbench.errors import InputError
from collbench.nccl_style import NEWEST, OLDEST, TableStyle, find_generation
from collbench.nccl_table import Printer, foot, head, is_left, row, rows_of, table_key

AR, AG, RS, A2A = "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"

# nccl-tests' lines, byte for byte; trailing blanks are real
ABOVE = "#                                                              out-of-place                       in-place          "  # noqa: E501
HEADERS = {
    "2.19.6": [
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong ",  # noqa: E501
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         ",  # noqa: E501
    ],
    "2.17.6": [
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong                     ",  # noqa: E501
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)                             ",  # noqa: E501
    ],
    "2.17.5": [
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong",  # noqa: E501
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       ",  # noqa: E501
    ],
    "2.17.2": [
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong",  # noqa: E501
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       ",  # noqa: E501
    ],
}  # fmt: skip
HEADERS |= {
    same: HEADERS[version]
    for same, version in (
        ("2.17.7", "2.19.6"),
        ("2.18.2", "2.19.6"),
        ("2.17.3", "2.17.5"),
        ("2.13.0", "2.17.2"),
        ("2.16.7", "2.17.2"),
    )
}

NEW_ROWS = [
    (AR, 8, 2, "float32", 14.21, 14.11,
     "           8             2     float     sum      -1    14.21    0.00    0.00       0    14.11    0.00    0.00       0"),  # noqa: E501
    (AR, 1048576, 262144, "float32", 35.46, 34.90,
     "     1048576        262144     float     sum      -1    35.46   29.57   51.75       0    34.90   30.05   52.58       0"),  # noqa: E501
    (AR, 8589934592, 2147483648, "float32", 32011.4, 31987.2,
     "  8589934592    2147483648     float     sum      -1  32011.4  268.34  469.59       0  31987.2  268.54  469.95       0"),  # noqa: E501
    (AG, 1048576, 32768, "float32", 28.10, 27.90,
     "     1048576         32768     float    none      -1    28.10   37.32   32.65       0    27.90   37.58   32.89       0"),  # noqa: E501
    (AG, 999936, 31248, "float32", 28.00, 27.70,
     "      999936         31248     float    none      -1    28.00   35.71   31.25       0    27.70   36.10   31.59       0"),  # noqa: E501
    (RS, 1048576, 65536, "bfloat16", 29.50, 29.90,
     "     1048576         65536  bfloat16     sum      -1    29.50   35.54   31.10       0    29.90   35.07   30.69       0"),  # noqa: E501
    (A2A, 1048576, 32768, "float32", 40.50, 40.10,
     "     1048576         32768     float    none      -1    40.50   25.89   22.65       0    40.10   26.15   22.88    N/A"),  # noqa: E501
]  # fmt: skip
OLD_ROWS = [
    (AR, 1048576, 262144, "float32", 35.46, 34.90,
     "     1048576        262144     float     sum      -1    35.46   29.57   51.75      0    34.90   30.05   52.58      0"),  # noqa: E501
    (AR, 8589934592, 2147483648, "float32", 32011.4, 31987.2,
     "  8589934592    2147483648     float     sum      -1    32011  268.34  469.59      0    31987  268.54  469.95      0"),  # noqa: E501
]  # fmt: skip

GOLDEN = [
    *(("2.19.6", *golden) for golden in NEW_ROWS),
    *(("2.17.3", *golden) for golden in NEW_ROWS),
    *(("2.17.2", *golden) for golden in OLD_ROWS),
    *(("2.13.0", *golden) for golden in OLD_ROWS),
]


@pytest.mark.parametrize(("version", "collective", "size", "count", "dtype", "left_us", "right_us", "line"), GOLDEN)
def test_a_row_equals_nccl_tests_to_the_byte(version, collective, size, count, dtype, left_us, right_us, line):
    assert row(halves(collective, size, count, dtype, left_us, right_us), style(version)) == line
    assert len(line.split()) == 13


def test_a_broadcast_row_has_its_root_and_no_operator():
    line = row(halves("broadcast", 1048576, 262144, "float16", 35.46, 34.90, root=3))
    assert line == (
        "     1048576        262144      half    none       3"
        "    35.46   29.57   29.57       0    34.90   30.05   30.05       0"
    )


@pytest.mark.parametrize(
    ("collective", "words"),
    [
        ("broadcast", ["none", "0"]), (AR, ["sum", "-1"]), (AG, ["none", "-1"]), (RS, ["sum", "-1"]),
        (A2A, ["none", "-1"]), ("reduce", ["sum", "0"]), ("gather", ["none", "0"]), ("scatter", ["none", "0"]),
        ("send_recv", ["sum", "-1"]), ("hypercube", ["-1"]),
    ],
)  # fmt: skip
def test_operator_and_root_are_nccl_tests_own(collective, words):
    line = row(halves(collective, 1048576, 32768, "float32", 40.5, 40.1))
    assert line.split()[2:-8] == ["float", *words]
    assert line[36:44] == f"{words[0] if len(words) == 2 else '':>8s}" and len(line) == 118


def test_an_unchecked_half_says_na_after_four_blanks():
    line = row(halves(AR, 1048576, 262144, "float32", 35.46, 34.90, wrong=None))
    assert line == (
        "     1048576        262144     float     sum      -1"
        "    35.46   29.57   51.75    N/A    34.90   30.05   52.58    N/A"
    )
    assert len(line.split()) == 13
    mixed = row((
        [half(AR, 8, 2, "float32", 14.21, False)],
        [half(AR, 8, 2, "float32", 14.11, True, wrong=None)],
    ))  # fmt: skip
    assert mixed.endswith("    0.00       0    14.11    0.00    0.00    N/A")
    old = row(halves(A2A, 1048576, 32768, "float32", 40.5, 40.1, wrong=None), style("2.17.2"))
    assert old.endswith("    40.50   25.89   22.65    N/A    40.10   26.15   22.88    N/A")


def test_wrong_elements_are_counted_in_the_row_of_all_groups():
    line = row(halves(AR, 1048576, 262144, "float32", 35.46, 34.90, wrong=262144))
    assert line.split()[8] == line.split()[12] == "262144"
    slow, fast = (half(AR, 8, 2, "float32", time_us, False, wrong=wrong) for time_us, wrong in ((90.0, 0), (10.0, 3)))
    assert row(([slow, fast], [slow])).split()[5:9] == ["90.00", "0.00", "0.00", "3"]


def test_a_size_too_small_for_the_ranks_is_zero_with_a_real_time():
    line = row(halves(AG, 0, 0, "float32", 7.89, 7.12))
    assert line == (
        "           0             0     float    none      -1"
        "     7.89    0.00    0.00       0     7.12    0.00    0.00       0"
    )


@pytest.mark.parametrize("version", HEADERS)
def test_the_three_header_lines_equal_nccl_tests_to_the_byte(version):
    lines = head(run_record(), half(AR, 8, 2, "float32", 14.21, False), style(version))
    assert lines[-4:] == ["#", ABOVE, *HEADERS[version]]


def test_without_a_style_it_is_the_newest_generation():
    record = half(AR, 8, 2, "float32", 14.21, False)
    assert head(run_record(), record)[-3:] == [ABOVE, *HEADERS["2.19.6"]]
    assert NEWEST == "2.19.6" and OLDEST == "2.13.0"


# --- versions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["2.12.0", "2.11", "1.0.0", "2.19.7", "2.20", "3.0", "newest", "", "2", "2.17.x", "²"])
def test_an_unknown_version_is_refused_with_the_known_range(text):
    with pytest.raises(InputError, match=r"not a known version of nccl-tests: expected 2\.13\.0 to 2\.19\.6"):
        find_generation(text)


def test_a_version_may_be_short_and_stands_for_what_it_prints():
    assert find_generation("v2.17").version == (2, 17, 0)
    assert find_generation("2.15.4").device == find_generation("2.14.1").device != find_generation("2.14.0").device


@pytest.mark.parametrize(
    ("flag", "wanted", "since", "before"),
    [("-C", {"cpu_time": True}, "2.13.10", "2.13.9"), ("-S", {"timestamps": True}, "2.17.6", "2.17.5"),
     ("-M", {"memory": True}, "2.17.7", "2.17.6"), ("-I", {"per_iter": True}, "2.19.2", "2.19.1")],
)  # fmt: skip
def test_a_column_the_version_did_not_have_is_refused(flag, wanted, since, before):
    assert TableStyle(generation=find_generation(since), **wanted)
    with pytest.raises(InputError, match=f"^{flag}: nccl-tests {before} .* came with {since}"):
        TableStyle(generation=find_generation(before), **wanted)


# --- number strings --------------------------------------------------------------------------------------------------

TIMES = [
    # value, <= 2.17.2, 2.17.3 ... 2.19.5, 2.19.6
    (0.0, "0.00", "0.00", "0.00"),
    (0.996, "1.00", "1.00", "1.00"),
    (14.21, "14.21", "14.21", "14.21"),
    (99.994, "99.99", "99.99", "99.99"),
    (100.0, "100.0", "100.00", "100.00"),
    (999.99, "1000.0", "999.99", "999.99"),
    (9999.94, "9999.9", "9999.94", "9999.94"),
    (9999.996, "10000.0", "10000.00", "10000.0"),
    (10000.0, "10000", "10000.0", "10000.0"),
    (32011.4, "32011", "32011.4", "32011.4"),
    (99999.96, "100000", "100000.0", "100000"),
    (123456.7, "123457", "123457", "123457"),
    (9999999.0, "9999999", "9999999", "9999999"),
    (9999999.6, "10000000", "10000000", "1.0e+07"),
    (12345678.0, "12345678", "1.2e+07", "1.2e+07"),
]
BANDWIDTHS = [
    (0.004, "0.00", "0.00", "0.00"),
    (29.57, "29.57", "29.57", "29.57"),
    (999.994, "999.99", "999.99", "999.99"),
    (999.996, "1000.00", "1000.00", "1000.0"),
    (1234.5, "1234.50", "1234.5", "1234.5"),
    (9999.96, "9999.96", "10000.0", "10000"),
    (12345.6, "12345.60", "12346", "12346"),
    (999999.4, "999999.40", "999999", "999999"),
    (12345678.0, "12345678.00", "1e+07", "1e+07"),
]


@pytest.mark.parametrize("versions", [("2.13.0", "2.17.3", "2.19.6"), ("2.17.2", "2.19.5", "2.19.6")])
@pytest.mark.parametrize(("width", "value", "texts"), [(7, value, texts) for value, *texts in TIMES] +
                         [(6, value, texts) for value, *texts in BANDWIDTHS])  # fmt: skip
def test_a_number_is_written_as_its_generation_wrote_it(versions, width, value, texts):
    assert [find_generation(version).number(value, width) for version in versions] == texts


@settings(deadline=None, max_examples=200)
@given(st.floats(0, 1e15), st.sampled_from([6, 7]))
def test_a_number_never_outgrows_its_column(value, width):
    text = find_generation().number(value, width)
    assert len(text) <= width
    assert float(text) == pytest.approx(value, rel=0.5, abs=0.005)


# --- head and foot ---------------------------------------------------------------------------------------------------

TWO_NODES = run_record(
    world_size=4,
    nodes=[
        {"host": "n0", "ranks": [0, 1], "devices": ["NVIDIA H200", "NVIDIA H200"], "pids": [101, 123456]},
        {"host": "a-long-host-name", "ranks": [2, 3], "devices": ["NVIDIA H200", "NVIDIA H200"], "pids": [7, 8]},
    ],
    groups={"world": [[0, 1, 2, 3]], "inter": [[0, 2], [1, 3]]},
    sweep={"minbytes": 8, "maxbytes": 1024, "stepfactor": 2, "warmup_iters": 5, "iters": 20, "check": 1},
)
PARAMETERS = "# nThread 1 nGpus 1 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0"  # noqa: E501


def test_the_head_says_what_runs_and_where():
    record = half(AG, 1024, 128, "float32", 9.0, False, group="inter", group_ranks=[0, 2], nranks=2)
    assert head(TWO_NODES, record) == [
        "# Collective test starting: all_gather_perf",
        f"{PARAMETERS} unalign: 0",
        "# collbench all_gather_into_tensor, group inter, 2 ranks, pipelined",
        "# collbench: 2 groups: each row is the slowest one's; 'collbench show' has a row for each",
        "#",
        "# Using devices",
        "#  Rank  0 Group  0 Pid    101 on         n0 device  0 [0000:00:00] NVIDIA H200",
        "#  Rank  1 Group  1 Pid 123456 on         n0 device  1 [0000:00:00] NVIDIA H200",
        "#  Rank  2 Group  0 Pid      7 on a-long-host-name device  0 [0000:00:00] NVIDIA H200",
        "#  Rank  3 Group  1 Pid      8 on a-long-host-name device  1 [0000:00:00] NVIDIA H200",
        "#",
        ABOVE,
        *HEADERS["2.19.6"],
    ]


@pytest.mark.parametrize(
    ("version", "first", "parameters", "device"),
    [
        ("2.13.0", [], PARAMETERS, "#   Rank  0 Pid    101 on         n0 device  0 [0x00] NVIDIA H200"),
        ("2.13.4", [], PARAMETERS, "#  Rank  0 Group  0 Pid    101 on         n0 device  0 [0x00] NVIDIA H200"),
        ("2.14.1", [], PARAMETERS, "#  Rank  0 Group  0 Pid    101 on         n0 device  0 [0000:00:00] NVIDIA H200"),
        ("2.16.7", ["# Collective test starting: all_reduce_perf"], PARAMETERS,
         "#  Rank  0 Group  0 Pid    101 on         n0 device  0 [0000:00:00] NVIDIA H200"),
        ("2.18.2", ["# Collective test starting: all_reduce_perf"], f"{PARAMETERS} unalign: 0",
         "#  Rank  0 Group  0 Pid    101 on         n0 device  0 [0000:00:00] NVIDIA H200"),
    ],
)  # fmt: skip
def test_a_plain_head_has_the_lines_of_its_version_and_no_other(version, first, parameters, device):
    lines = head(TWO_NODES, half(AR, 8, 2, "float32", 14.21, False), style(version))
    rest = [line.replace("#  Rank", "#   Rank") if version == "2.13.0" else line for line in lines[-8:-4]]
    assert lines == [*first, parameters, "#", "# Using devices", *rest, "#", ABOVE, *lines[-2:]]
    assert lines[-8] == device and all("Rank" in line for line in lines[-8:-4])
    assert not any("collbench" in line for line in lines)


def test_an_additive_step_is_said_in_bytes():
    run = run_record(sweep={"minbytes": 8, "maxbytes": 64, "stepfactor": 1, "stepbytes": 8})
    assert " step: 8(bytes) " in head(run, half(AR, 8, 2, "float32", 14.21, False))[1]


def test_the_head_says_how_the_sweep_differs_from_the_usual():
    sweep = {"agg_iters": 4, "cudagraph": 2, "unalign": 1, "blocking": 2, "passes": 2, "precision": 0.02}
    record = half(AR, 8, 2, "float32", 14.21, False, **{"pass": 2, "mode": "agg_iters=4"})
    text = "\n".join(head(run_record(sweep=sweep), record))
    assert " agg iters: 4 validation: 0 graph: 2 unalign: 1\n" in text
    assert "\n# Blocking Enabled: wait after each inner iteration (-m), no barrier \n" in text
    assert "# collbench all_reduce, group world, 8 ranks, pipelined, pass 2, agg_iters=4\n" in text
    assert "# collbench: iterations until the median is known to 2 %\n" in text
    alone = half(AR, 8, 2, "float32", 14.21, False, concurrent=False)
    assert "8 ranks, pipelined, one group at a time" in head(run_record(), alone)[2]


@pytest.mark.parametrize(
    ("version", "blocking", "text"),
    [
        ("2.13.0", 1, "wait for completion and barrier after each collective "),
        ("2.18.0", 2, "wait for completion and barrier after each collective "),
        ("2.18.1", 2, "wait for completion after each collective (no barrier) "),
        ("2.19.2", 1, "wait and barrier after each inner iteration (-m) "),
        ("2.19.6", 3, "wait and barrier after each outer iteration (-n); time excludes barrier "),
    ],
)
def test_blocking_is_said_in_the_words_of_the_version(version, blocking, text):
    lines = head(run_record(sweep={"blocking": blocking}), half(AR, 8, 2, "float32", 1.0, False), style(version))
    assert f"# Blocking Enabled: {text}" in lines


@pytest.mark.parametrize(("collective", "said"), [
    ("broadcast", "in place only"), (AR, "in place only"), ("reduce", "in place only"),
    (A2A, "between two buffers only"), ("send_recv", "between two buffers only"),
    (AG, None), (RS, None), ("gather", None), ("scatter", None), ("hypercube", None),
])  # fmt: skip
def test_two_passes_of_one_form_are_said_before_the_header_and_not_in_a_plain_table(collective, said):
    record = half(collective, 8, 2, "float32", 14.21, False)
    lines = head(run_record(), record)
    about = [line for line in lines[:-3] if "torch runs" in line]
    assert [said in line for line in about] == ([True] if said else [])
    assert not any("out-of-place" in line for line in lines[:-3])
    assert not any("collbench" in line for line in head(run_record(), record, style()))


def test_both_footers_follow_the_rows():
    rows = [halves(AR, 1048576, 262144, "float32", 35.46, 34.90), halves(AR, 8, 2, "float32", 14.21, 14.11)]
    busbw = [1.75 * size / time_us / 1e3 for size, time_us in
             ((1048576, 35.46), (1048576, 34.90), (8, 14.21), (8, 14.11))]  # fmt: skip
    assert foot(rows) == [
        "# Out of bounds values : 0 OK",
        f"# Avg bus bandwidth    : {sum(busbw) / 4:g} ",
        "#",
        "# Collective test concluded: all_reduce_perf",
    ]


@pytest.mark.parametrize(
    ("version", "last"),
    [
        ("2.13.0", ["#"]),
        ("2.13.4", ["#", ""]),
        ("2.16.7", ["#", "# Collective test concluded: all_reduce_perf", ""]),
        ("2.17.7", ["#", "# Collective test concluded: all_reduce_perf", "#", ""]),
        ("2.19.6", ["#", "# Collective test concluded: all_reduce_perf", "#", ""]),
    ],
)
def test_a_plain_foot_ends_as_its_version_does(version, last):
    lines = foot([halves(AR, 8, 2, "float32", 14.0, 14.0)], style(version))
    assert lines[2:] == last and lines[0] == "# Out of bounds values : 0 OK"


def test_failed_checks_are_counted_not_elements():
    rows = [
        halves(AR, 8, 2, "float32", 14.0, 14.0, wrong=5),
        halves(AR, 16, 4, "float32", 14.0, 14.0),
        halves(AR, 32, 8, "float32", 14.0, 14.0, wrong=None),
    ]
    assert foot(rows)[0] == "# Out of bounds values : 2 FAILED"


def test_memory_is_said_after_the_conclusion_in_powers_of_1024():
    memory = {"initialization": 1536, "user_allocated": 96 * 2**20, "collective": 0, "total": 1.5 * 2**30}
    rows = [halves(AR, 8, 2, "float32", 14.0, 14.0)]
    line = (
        "# GPU memory usage     : Initialization 1.50 KB | User-Allocated 96.0 MB | Collective 0.00 B | Total  1.50 GB"
    )
    assert foot(rows, style(memory=True), memory)[3:] == [
        "# Collective test concluded: all_reduce_perf", line, "#", "",
    ]  # fmt: skip
    assert foot(rows, style(), memory) == foot(rows, style())
    unknown = foot(rows, style(memory=True), {"total": 123 * 2**20})[4]
    assert unknown.endswith(": Initialization N/A | User-Allocated N/A | Collective N/A | Total  123 MB")


# --- what -a, -C, -S and -I show -------------------------------------------------------------------------------------

RANKS = {"time_rank0_us": 20.0, "time_rank_min_us": 10.0, "time_rank_max_us": 80.0}


@pytest.mark.parametrize(("average", "time_us"), [(0, 20.0), (1, 40.0), (2, 10.0), (3, 80.0)])
def test_an_average_picks_the_time_and_the_bandwidths_follow(average, time_us):
    pair = halves(AR, 1048576, 262144, "float32", 40.0, 40.0, **RANKS)
    algbw = 1048576 / time_us / 1e3
    shown = [f"{time_us:.2f}", f"{algbw:.2f}", f"{algbw * 1.75:.2f}", "0"]
    assert row(pair, style(average=average)).split()[5:] == shown * 2
    mean = foot([pair], style(average=average))[1]
    assert mean == f"# Avg bus bandwidth    : {algbw * 1.75:g} "
    remarks = [line for line in head(run_record(), pair[0][0], TableStyle(average=average)) if "times and band" in line]
    assert len(remarks) == (average != 1)


def test_isolated_times_have_no_average_over_ranks():
    pair = halves(AR, 1048576, 262144, "float32", 40.0, 40.0, timing="isolated")
    assert row(pair, style(average=3)) == row(pair, style())


def test_what_a_record_does_not_know_is_na_not_another_figure():
    pair = halves(AR, 1048576, 262144, "float32", 40.0, 40.0)
    shown = row(pair, style(average=3, timestamps=True))
    assert shown.split()[5:] == ["N/A", "N/A", "N/A", "0"] * 2 + ["N/A"]
    assert len(shown) == len(row(pair)) + 21
    assert row(pair, style(cpu_time=True)).split()[5:8] == ["N/A", "26.21", "45.88"]
    assert row(pair, style(per_iter=True)).split()[9:13] == ["N/A"] * 4


def test_the_hosts_time_stands_in_the_time_column_and_bandwidths_stay():
    pair = halves(AR, 1048576, 262144, "float32", 40.0, 40.0, cpu_time_us=3.25)
    assert row(pair, style(cpu_time=True)).split()[5:8] == ["3.25", "26.21", "45.88"]
    lines = head(run_record(), pair[0][0], style("2.13.10", cpu_time=True))
    assert lines[-2] == HEADERS["2.17.2"][0].replace("   time", "cputime")


def test_timestamps_are_local_time_after_the_row(monkeypatch):
    monkeypatch.setenv("TZ", "UTC-2")  # two hours east
    time.tzset()
    try:
        pair = halves(AR, 8, 2, "float32", 14.21, 14.11, measured="2026-11-29T23:22:33+00:00")
        assert row(pair, style(timestamps=True)) == f"{NEW_ROWS[0][-1]}  2026-11-30 01:22:33"
    finally:
        monkeypatch.undo()
        time.tzset()
    name, unit = head(run_record(), pair[0][0], style(timestamps=True))[-2:]
    assert name == f"{HEADERS['2.19.6'][0]}          timestamp"
    assert unit == f"{HEADERS['2.19.6'][1]}  %Y-%m-%d %H:%M:%S"
    name, unit = head(run_record(), pair[0][0], style("2.17.6", timestamps=True))[-2:]
    assert name.endswith("#wrong            timestamp") and unit.endswith(f"(GB/s){'':12}%Y-%m-%d %H:%M:%S")


PER_ITER = {"skipped_iterations": 1, "min_us": 12.0, "max_us": 140.25, "avg_us": 20.0, "p50_us": 15.0, "p95_us": 99.0,
            "p99_us": 139.5, "stdev_us": 5.0, "cv_pct": 25.125, "times_us": [12.0, 15.0, 140.25]}  # fmt: skip


def test_iterations_are_four_columns_of_each_half():
    pair = halves(AR, 8, 2, "float32", 14.21, 14.11, per_iter=PER_ITER)
    four = "    12.00   140.25   139.50    25.12"
    cut = len(NEW_ROWS[0][-1]) - 33
    assert row(pair, style(per_iter=True)) == f"{NEW_ROWS[0][-1][:cut]}{four}{NEW_ROWS[0][-1][cut:]}{four}"
    run = run_record(backend="nccl", sweep={"per_iter": 1, "per_iter_skip": 1})
    lines = head(run, pair[0][0], style(per_iter=True))
    assert (
        "# Per-Iteration Report: CUDA event timing; i_* uses max over process rows; summary skips first 1 iterations "
        in lines
    )
    assert lines[-3] == (
        "#                                                                 out-of-place (+ per-iteration)"
        "                                in-place (+ per-iteration)"
    )
    columns = "     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%"
    assert lines[-2] == f"#       size         count      type   redop    root{columns}{columns} "
    units = "     (us)  (GB/s)  (GB/s)             (us)     (us)     (us)      (%)"
    assert lines[-1] == f"#        (B)    (elements)                          {units}{units} "
    on_cpu = head(run_record(sweep={}), pair[0][0], style(per_iter=True))
    assert "# Per-Iteration Report: host clock timing; i_* uses max over process rows " in on_cpu


# --- whole tables ----------------------------------------------------------------------------------------------------


def test_a_plain_table_is_nccl_tests_own_to_the_byte():
    # but for the line "# nccl-tests version", which would be untrue
    rows = [halves(*golden[:-1]) for golden in NEW_ROWS[:2]]
    assert table(*rows, like=style(), comments=["collbench: a note"]) == "\n".join([
        "# Collective test starting: all_reduce_perf",
        f"{PARAMETERS} unalign: 0",
        "#",
        "# Using devices",
        "#  Rank  0 Group  0 Pid    101 on         n0 device  0 [0000:00:00] cpu",
        "#  Rank  1 Group  0 Pid    102 on         n0 device  1 [0000:00:00] cpu",
        "#",
        ABOVE,
        *HEADERS["2.19.6"],
        *(golden[-1] for golden in NEW_ROWS[:2]),
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 26.0824 ",
        "#",
        "# Collective test concluded: all_reduce_perf",
        "#",
        "", "",
    ])  # fmt: skip


def test_comments_of_a_plain_table_go_aside():
    written, aside = [], []
    printer = Printer(run_record(), written.append, style(), aside.append)
    printer.comment("collbench: 8 bytes skipped")
    assert (written, aside) == ([], ["collbench: 8 bytes skipped\n"])


def test_a_new_table_begins_where_the_header_would_change():
    text = table(
        halves(AR, 8, 2, "float32", 14.0, 14.0),
        halves(AR, 16, 4, "float32", 14.0, 14.0),
        halves(AR, 16, 8, "float16", 14.0, 14.0),
        halves(AG, 128, 4, "float32", 14.0, 14.0),
    )
    starts = re.findall(r"^# Collective test starting: (\S+)$", text, re.MULTILINE)
    ends = re.findall(r"^# Collective test concluded: (\S+)$", text, re.MULTILINE)
    assert starts == ends == ["all_reduce_perf", "all_reduce_perf", "all_gather_perf"]
    assert [len(block.split("# Using devices")) for block in text.split("concluded")] == [2, 2, 2, 1]
    assert text.count("# Avg bus bandwidth    : ") == 3


def test_a_plain_table_holds_all_types_operators_and_roots_as_nccl_tests_does():
    rows = [halves(AR, 16, 8, "float16", 14.0, 14.0, redop=redop) for redop in ("sum", "max")]
    rows += [halves(AR, 16, 4, "float32", 14.0, 14.0), halves("broadcast", 16, 4, "float32", 14.0, 14.0)]
    text = table(*rows, like=style())
    assert re.findall(r"^# Collective test starting: (\S+)$", text, re.MULTILINE) == [
        "all_reduce_perf",
        "broadcast_perf",
    ]
    assert text.count("\n#\n# Collective test concluded") == 2


def test_passes_over_the_sweep_are_tables_of_their_own():
    def in_pass(collective, number):
        pair = halves(collective, 8, 2, "float32", 10.0 + number, 20.0 + number)
        one_form = COLLECTIVES[collective][0] != "both"
        return [{**pair[side][0], "pass": 2 * number + side if one_form else number} for side in (0, 1)]

    for collective in COLLECTIVES:
        records = [record for number in (1, 0) for record in in_pass(collective, number)]
        rows = list(rows_of(records))
        assert [(left[0]["time_us"], right[0]["time_us"]) for left, right in rows] == [(10.0, 20.0), (11.0, 21.0)]
        assert table(*rows).count("# Using devices") == table(*rows, like=style()).count("# Using devices") == 2


def test_no_row_no_table():
    assert table() == ""
    assert table(comments=["collbench: nothing"]) == "# collbench: nothing\n"


def test_a_row_of_several_groups_is_that_of_the_slowest():
    slow = half(AG, 1024, 128, "float32", 90.0, False, group="inter", group_ranks=[1, 3], nranks=2)
    fast = half(AG, 1024, 128, "float32", 10.0, False, group="inter", group_ranks=[0, 2], nranks=2)
    right = half(AG, 1024, 128, "float32", 20.0, True, group="inter", group_ranks=[0, 2], nranks=2)
    tokens = row(([fast, slow], [right])).split()
    assert (tokens[5], tokens[9]) == ("90.00", "20.00")


def test_rows_are_made_of_whole_ones_and_the_last_of_a_repeated_measurement_counts():
    first = halves(AR, 8, 2, "float32", 1.0, 2.0)
    second = halves(AR, 16, 4, "float32", 3.0, 4.0)
    lone = half(AR, 32, 8, "float32", 5.0, False)
    again = half(AR, 8, 2, "float32", 9.0, False)
    records = [*first[0], *first[1], *second[0], *second[1], lone, again]
    rows = list(rows_of(records))
    assert [(left[0]["time_us"], right[0]["time_us"]) for left, right in rows] == [(9.0, 2.0), (3.0, 4.0)]


def test_cells_measured_in_shuffled_order_are_tabled_in_the_sweeps():
    run = run_record(
        groups={"world": [[0]], "intra": [[0]]},
        sweep={
            "collective": [AG, AR],
            "datatype": ["float16", "float32"],
            "redop": ["max", "sum"],
            "timing": ["pipelined"],
        },
    )
    wanted = [
        (collective, group, dtype, size)
        for collective in (AG, AR) for group in ("world", "intra")
        for dtype in ("float16", "float32") for size in (8, 64)
    ]  # fmt: skip
    shuffled = random.Random(1).sample(wanted, len(wanted))
    records = [
        half(collective, size, 2, dtype, 1.0, right, group=group)
        for collective, group, dtype, size in shuffled for right in (True, False)
    ]  # fmt: skip
    rows = [left[0] for left, _ in rows_of(records, run)]
    assert [(each["collective"], each["group"], each["dtype"], each["size_bytes"]) for each in rows] == wanted
    keys = [table_key(record) for record in rows]
    assert len(set(keys)) == sum(one != other for one, other in zip(keys, [None, *keys], strict=False))


@pytest.mark.parametrize(
    ("collective", "in_place", "repeat", "left"),
    [(AR, True, 0, True), (AR, True, 1, False), ("broadcast", True, 1, False), (AG, False, 0, True),
     (AG, True, 0, False), (RS, True, 0, False), (A2A, False, 0, True), (A2A, False, 1, False), (A2A, False, 2, True),
     ("send_recv", False, 3, False), (AR, True, 2, True), (AG, False, 1, True), (AG, True, 1, False)],
)  # fmt: skip
def test_which_half_a_record_fills(collective, in_place, repeat, left):
    assert is_left(half(collective, 8, 2, "float32", 1.0, False, in_place=in_place, **{"pass": repeat})) is left


def test_a_record_without_a_pass_is_of_the_first():
    record = measurement()
    del record["pass"]
    assert is_left(record)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_has_its_own_widths_throughout(version):
    lines = table(halves(AR, 1048576, 262144, "float32", 35.46, 34.9), like=style(version)).splitlines()
    [values] = [line for line in lines if line.startswith(" ")]
    names = next(line for line in lines if "busbw" in line)
    # each name ends where its figures do, but for the last of a version's trailing blanks
    ends = [match.end() for match in re.finditer(r"\S+", names[1:])]
    assert [match.end() - 1 for match in re.finditer(r"\S+", values)] == ends
