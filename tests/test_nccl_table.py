from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_records import measurement, run_record

from collbench.nccl_table import Printer, foot, head, is_left, number, row, rows_of

# nccl-tests >= 2.17.7, byte for byte; the trailing blanks are real
HEADER = [
    "#                                                              out-of-place                       in-place          ",  # noqa: E501
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong ",  # noqa: E501
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         ",  # noqa: E501
]  # fmt: skip

AR, AG, RS = "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"

GOLDEN = [
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
]  # fmt: skip


def half(collective, size, count, dtype, time_us, right, **changes):
    in_place_only = collective in (AR, "broadcast")
    fields = {
        "redop": "sum" if "reduce" in collective else None,
        "root": 0 if collective == "broadcast" else None,
        "in_place": right or in_place_only,
        "pass": int(right and in_place_only),
        "nranks": 8,
        "group_ranks": list(range(8)),
    }
    named = {"collective": collective, "size_bytes": size, "count": count, "dtype": dtype, "time_us": time_us}
    return measurement(**{**named, **fields, **changes})


def halves(collective, size, count, dtype, left_us, right_us, **changes):
    sides = ((left_us, False), (right_us, True))
    return tuple([half(collective, size, count, dtype, time_us, right, **changes)] for time_us, right in sides)


def table(*rows, run=None, comments=()):
    written = []
    printer = Printer(run or run_record(), written.append)
    for comment in comments:
        printer.comment(comment)
    for row_ in rows:
        printer.add(row_)
    printer.close()
    return "".join(written)


@pytest.mark.parametrize(("collective", "size", "count", "dtype", "left_us", "right_us", "line"), GOLDEN)
def test_a_row_equals_nccl_tests_to_the_byte(collective, size, count, dtype, left_us, right_us, line):
    assert row(halves(collective, size, count, dtype, left_us, right_us)) == line
    assert len(line.split()) == 13


def test_a_broadcast_row_has_its_root_and_no_operator():
    line = row(halves("broadcast", 1048576, 262144, "float16", 35.46, 34.90, root=3))
    assert line == (
        "     1048576        262144      half    none       3"
        "    35.46   29.57   29.57       0    34.90   30.05   30.05       0"
    )


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


def test_wrong_elements_are_counted_in_the_row():
    line = row(halves(AR, 1048576, 262144, "float32", 35.46, 34.90, wrong=262144))
    assert line.split()[8] == line.split()[12] == "262144"


def test_a_size_too_small_for_the_ranks_is_zero_with_a_real_time():
    line = row(halves(AG, 0, 0, "float32", 7.89, 7.12))
    assert line == (
        "           0             0     float    none      -1"
        "     7.89    0.00    0.00       0     7.12    0.00    0.00       0"
    )


def test_the_three_header_lines_equal_nccl_tests_to_the_byte():
    lines = head(run_record(), half(AR, 8, 2, "float32", 14.21, False))
    assert lines[-3:] == HEADER
    assert [len(line) for line in HEADER[1:]] == [119, 119]


# --- number strings of 2.19.6 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00"),
        (14.21, "14.21"),
        (999.99, "999.99"),
        (9999.99, "9999.99"),
        (9999.994, "9999.99"),
        (9999.996, "10000.0"),
        (32011.4, "32011.4"),
        (99999.94, "99999.9"),
        (99999.96, "100000"),
        (123456.7, "123457"),
        (9999999.0, "9999999"),
        (9999999.6, "1.0e+07"),
        (12345678.0, "1.2e+07"),
    ],
)
def test_a_time_takes_the_most_decimals_that_fit_seven_places(value, text):
    assert number(value, 7) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.004, "0.00"),
        (29.57, "29.57"),
        (999.994, "999.99"),
        (999.996, "1000.0"),
        (9999.94, "9999.9"),
        (9999.96, "10000"),
        (999999.4, "999999"),
        (999999.6, "1e+06"),
        (12345678.0, "1e+07"),
    ],
)
def test_a_bandwidth_takes_the_most_decimals_that_fit_six_places(value, text):
    assert number(value, 6) == text


@settings(deadline=None, max_examples=200)
@given(st.floats(0, 1e15), st.sampled_from([6, 7]))
def test_a_number_never_outgrows_its_column(value, width):
    text = number(value, width)
    assert len(text) <= width
    assert float(text) == pytest.approx(value, rel=0.5, abs=0.005)


# --- head and foot ---------------------------------------------------------------------------------------------------


def test_the_head_says_what_runs_and_where():
    run = run_record(
        world_size=4,
        nodes=[
            {"host": "n0", "ranks": [0, 1], "devices": ["NVIDIA H200", "NVIDIA H200"], "pids": [101, 123456]},
            {"host": "a-long-host-name", "ranks": [2, 3], "devices": ["NVIDIA H200", "NVIDIA H200"], "pids": [7, 8]},
        ],
        groups={"world": [[0, 1, 2, 3]], "inter": [[0, 2], [1, 3]]},
        sweep={"minbytes": 8, "maxbytes": 1024, "stepfactor": 2, "warmup_iters": 5, "iters": 20, "check": 1},
    )
    record = half(AG, 1024, 128, "float32", 9.0, False, group="inter", group_ranks=[0, 2], nranks=2)
    assert head(run, record) == [
        "# Collective test starting: all_gather_perf",
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 "
        "validation: 1 graph: 0 unalign: 0",
        "# collbench all_gather_into_tensor, group inter, 2 ranks, pipelined",
        "#",
        "# Using devices",
        "#  Rank  0 Group  0 Pid    101 on         n0 device  0 [0000:00:00] NVIDIA H200",
        "#  Rank  1 Group  1 Pid 123456 on         n0 device  1 [0000:00:00] NVIDIA H200",
        "#  Rank  2 Group  0 Pid      7 on a-long-host-name device  0 [0000:00:00] NVIDIA H200",
        "#  Rank  3 Group  1 Pid      8 on a-long-host-name device  1 [0000:00:00] NVIDIA H200",
        "#",
        *HEADER,
    ]


def test_an_additive_step_is_said_in_bytes():
    run = run_record(sweep={"minbytes": 8, "maxbytes": 64, "stepfactor": 1, "stepbytes": 8})
    assert " step: 8(bytes) " in head(run, half(AR, 8, 2, "float32", 14.21, False))[1]


@pytest.mark.parametrize("collective", ["broadcast", AR])
def test_two_passes_in_place_are_said_before_the_header(collective):
    lines = head(run_record(), half(collective, 8, 2, "float32", 14.21, False))
    said = [index for index, line in enumerate(lines) if "in place only" in line]
    assert len(said) == 1 and said[0] < len(lines) - 3
    assert not any("out-of-place" in line for line in lines[:-3])


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


def test_failed_checks_are_counted_not_elements():
    rows = [
        halves(AR, 8, 2, "float32", 14.0, 14.0, wrong=5),
        halves(AR, 16, 4, "float32", 14.0, 14.0),
        halves(AR, 32, 8, "float32", 14.0, 14.0, wrong=None),
    ]
    assert foot(rows)[0] == "# Out of bounds values : 2 FAILED"


# --- whole tables ----------------------------------------------------------------------------------------------------

BIG = [
    halves(AR, 134217728, 33554432, "float32", 650.5, 640.25),
    halves(AR, 1073741824, 268435456, "float32", 5000.0, 4800.0),
]


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


def test_no_row_no_table():
    assert table() == ""
    assert table(comments=["collbench: nothing"]) == "# collbench: nothing\n"


def test_a_row_of_several_groups_is_that_of_the_slowest():
    slow = half(AG, 1024, 128, "float32", 90.0, False, group="inter", group_ranks=[1, 3], nranks=2)
    fast = half(AG, 1024, 128, "float32", 10.0, False, group="inter", group_ranks=[0, 2], nranks=2)
    right = half(AG, 1024, 128, "float32", 20.0, True, group="inter", group_ranks=[0, 2], nranks=2)
    tokens = row(([fast, slow], [right])).split()
    assert (tokens[5], tokens[9]) == ("90.00", "20.00")


def test_rows_are_made_of_records_in_file_order_and_only_whole_ones():
    first = halves(AR, 8, 2, "float32", 1.0, 2.0)
    second = halves(AR, 16, 4, "float32", 3.0, 4.0)
    lone = half(AR, 32, 8, "float32", 5.0, False)
    again = half(AR, 8, 2, "float32", 9.0, False)
    records = [*first[0], *first[1], *second[0], *second[1], lone, again]
    rows = list(rows_of(records))
    assert [(left[0]["time_us"], right[0]["time_us"]) for left, right in rows] == [(9.0, 2.0), (3.0, 4.0)]


@pytest.mark.parametrize(
    ("collective", "in_place", "repeat", "left"),
    [(AR, True, 0, True), (AR, True, 1, False), ("broadcast", True, 1, False), (AG, False, 0, True),
     (AG, True, 0, False), (RS, True, 0, False)],
)  # fmt: skip
def test_which_half_a_record_fills(collective, in_place, repeat, left):
    assert is_left(measurement(collective=collective, in_place=in_place, **{"pass": repeat})) is left


# --- parsers in the wild (facts/measuring.md, 1.7), written here from what they need ----------------------------------


def cloudai(text):
    """Rows begin with a digit and have exactly 13 tokens; both footers mean success."""
    rows = [line.split() for line in text.splitlines() if re.match(r"\s*\d", line)]
    assert all(len(tokens) == 13 for tokens in rows)
    assert "# Out of bounds values" in text and "# Avg bus bandwidth" in text
    return [(int(tokens[0]), float(tokens[7]), float(tokens[11])) for tokens in rows]


def superbenchmark(text, in_place):
    """The lines between the last with out-of-place and the footer; columns of the header counted from its end."""
    lines = text.splitlines()
    begin = max(index for index, line in enumerate(lines) if "out-of-place" in line)
    end = next(index for index, line in enumerate(lines) if index > begin and "Out of bounds values" in line)
    body = lines[begin + 1 : end]
    headers = [line.split() for line in body if "time" in line and "busbw" in line]
    assert len(headers) == 1
    columns = [index - len(headers[0]) for index, word in enumerate(headers[0]) if word == "busbw"]
    rows = [line.split() for line in body if re.match(r"\s*\d", line)]
    return [float(tokens[columns[in_place]]) for tokens in rows]


def lumi(text, size):
    return float(re.search(rf"^\s+{size}.+\s+(?P<busbw>\S+)\s+\S+$", text, re.MULTILINE)["busbw"])


def awsome(text):
    """`$(NF-1)` of lines with a leading blank and a digit; the largest."""
    return max(float(line.split()[-2]) for line in text.splitlines() if re.match(r"\s+[0-9]", line))


def nccl_to_csv(text):
    """awslabs' own expression: types, operators and plain decimals only."""
    figure = r"(\d+\.?\d*)"
    half_row = rf"\s+{figure}\s+{figure}\s+{figure}\s+(?:\d+|N/A)"
    pattern = (
        rf"^\s*(\d+)\s+(\d+)\s+(?:float|double|int|half)\s+(?:sum|prod|max|min|none)\s+(-?\d+){half_row}{half_row}"
    )
    return [int(found[1]) for found in re.finditer(pattern, text, re.MULTILINE)]


def test_cloudai_reads_the_table():
    assert [(size, round(left), round(right)) for size, left, right in cloudai(table(*BIG))] == [
        (134217728, 361, 367),
        (1073741824, 376, 391),
    ]


def test_superbenchmark_reads_either_half_of_the_last_table():
    text = table(halves(AR, 8, 2, "float32", 1.0, 1.0), *[halves(AG, 1048576, 32768, "float32", 28.10, 27.90)])
    assert superbenchmark(text, in_place=False) == [32.65]
    assert superbenchmark(text, in_place=True) == [32.89]


def test_lumi_awsome_and_parallelcluster_read_the_in_place_busbw():
    text = table(*BIG)
    assert lumi(text, 134217728) == 366.86
    assert awsome(text) == 391.47
    gigabyte = [line.split() for line in text.splitlines() if "1073741824 268435456" in " ".join(line.split())]
    assert [tokens[11] for tokens in gigabyte] == ["391.47"]
    assert nccl_to_csv(text) == [134217728, 1073741824]


def test_simumax_and_cluster_health_scanner_find_numbers_where_they_look():
    rows = [line.split() for line in table(*BIG).splitlines() if re.match(r"\s+\d", line)]
    for tokens in rows:
        assert len(tokens) == 13 and tokens[2] == "float"
        assert all(float(tokens[index]) > 0 for index in (5, 6, 7, 9, 11))


def test_device_lines_follow_the_grammar():
    lines = [line for line in table(*BIG).splitlines() if "Rank" in line]
    address = r"\[[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\]"
    grammar = rf"#  Rank [ \d]\d Group [ \d]\d Pid [ \d]{{5}}\d on +\S+ device [ \d]\d {address} .+"
    assert len(lines) == 2 and all(re.fullmatch(grammar, line) for line in lines)


@pytest.mark.parametrize("collective", ["broadcast", AR, AG, RS])
def test_nothing_after_the_header_misleads_a_parser(collective):
    comment = "collbench: all_reduce world 8 bytes skipped: out of memory on rank 0 (host n0)"
    written = []
    printer = Printer(run_record(), written.append)
    printer.add(halves(collective, 1048576, 262144, "float32", 35.46, 34.90))
    printer.comment(comment)
    printer.add(halves(collective, 2097152, 524288, "float32", 35.46, 34.90))
    printer.close()
    lines = "".join(written).splitlines()
    assert sum("out-of-place" in line for line in lines) == 1
    after = lines[lines.index(HEADER[2]) + 1 :]
    assert after[1] == f"# {comment}"
    for line in after:
        assert "out-of-place" not in line and not ("time" in line and "busbw" in line)
        assert line.startswith("#") or len(line.split()) == 13
        assert line == line.rstrip() or line.startswith("# Avg bus bandwidth")
    assert len(superbenchmark("".join(written), in_place=True)) == 2
