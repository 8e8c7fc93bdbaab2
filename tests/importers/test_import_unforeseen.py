"""Prefixes no one foresaw, wraps at any column, and other ways in which people's logs differ from what tools print."""

from __future__ import annotations

import json
import re

import pytest
from foreign_logs import measurements, read_text
from nccl_texts import FOOT, NEW, OPTIONS, log, row, rows

from collbench.importers.check import Asked
from collbench.importers.reading import read_log, why_nothing
from collbench.importers.registry import FORMATS
from collbench.importers.source import Log
from collbench.importers.wrap import unwrapped, width

WHOLE = log()
NCCL = "node01:1001:1042 [3] NCCL INFO comm 0x5581 rank 3 nranks 8"
SIZES = [2**power for power in range(4, 24)]
OSU_HEAD = ["# OSU MPI Allreduce Latency Test v7.0", "# Size       Avg Latency(us)"]
OSU = "\n".join([*OSU_HEAD, *(f"{size:<10}{20 + size / 1e4:>14.2f}" for size in SIZES)])


TOLD = ("collective", "nranks", "size_bytes", "time_us", "in_place", "busbw_GBps", "wrong")


def values(imported):
    return [tuple(record[name] for name in TOLD) for record in measurements(imported)]


def read_bytes(content):
    return read_log(Log("log.txt", content), FORMATS.values(), Asked())


def each_row(change):
    return log([change(line) for line in rows()])


# --- before every line ----------------------------------------------------------------------------------------------

PREFIXES = {
    "Hydra's host": lambda number, line: f"[node01] {line}",
    "a host and a rank": lambda number, line: f"[node01:0]{line}",
    "stern": lambda number, line: f"nccl-launcher-x7k2p main {line}",
    "a logger": lambda number, line: f"2026-01-02 03:04:05,123 - bench - INFO - {line}",
    "another logger": lambda number, line: f"2026-01-02 03:04:05.123 | INFO     | bench:run:{number} - {line}",
    "syslog": lambda number, line: f"Jan 02 03:04:{number % 60:02d} node01 nccl[{number}]: {line}",
    "a container runtime": lambda number, line: f"2026-01-02T03:04:05.{number:09d}Z stdout F {line}",
    "a stream": lambda number, line: f"node01 stdout: {line}",
    "a rank in words": lambda number, line: f"Rank 0: {line}",
    "seconds": lambda number, line: f"1767323045.{number:03d} {line}",
    "a file's name": lambda number, line: f"logs/run_1.log:{line}",
    "grep -n": lambda number, line: f"{number}:{line}",
    "grep -n of a file": lambda number, line: f"log.txt:{number}:{line}",
    "grep's context": lambda number, line: f"log.txt-{number}-{line}",
    "numbers and bars": lambda number, line: f"{number:4d} | {line}",
    "numbers and points": lambda number, line: f"{number}. {line}",
    "numbers and colons": lambda number, line: f"{number}: {line}",
    "a box": lambda number, line: f"\u2502 {line:<140} \u2502",
    "a list of strings": lambda number, line: f'        "{line}",',
    "back ticks": lambda number, line: f"`{line}`",
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize("text", [WHOLE, OSU], ids=["nccl-tests", "osu"])
def test_a_prefix_of_every_line(text, prefix):
    labelled = [prefix(number, line) for number, line in enumerate(text.splitlines(), start=1)]
    imported = read_text("\n".join(labelled) + "\n")
    assert values(imported) == values(read_text(text))
    assert not imported.refused


def test_a_numbered_line_is_known_by_its_own_number():
    bad = log([row(20), row(21).replace(f"{2**19:12d}", f"{2**19 + 4:12d}"), *rows(range(22, 25))])
    numbered = "\n".join(f"{number}:{line}" for number, line in enumerate(bad.splitlines(), start=1))
    assert [each.line for each in read_text(numbered).refused] == [each.line for each in read_text(bad).refused]


def test_ranks_that_label_their_lines_are_no_line_numbers():
    lines = [f"{rank}: {line}" for line in WHOLE.splitlines() for rank in (0, 1)]
    assert len(read_text("\n".join(lines)).tables) == 2


def test_words_of_a_format_are_no_prefix():
    """All lines of DeepSpeed's logger begin alike."""
    call = "[2026-01-02 01:39:55,722] [INFO] [logging.py:69:log_dist] [Rank 0] rank=0 | comm op: all_reduce | "
    lines = [f"{call}time (ms): 10.00 | msg size: 100.0 MB | algbw (Gbps): 167.77  | busbw (Gbps): 157.29"] * 8
    imported = read_text("\n".join(lines))
    assert [table.format for table in imported.tables] == ["deepspeed"]


@pytest.mark.parametrize("label", ["0: ", "[1,0]<stdout>:", "2026-01-02T03:04:05.123Z ", "> "])
def test_a_json_report_through_a_launcher(label):
    half = {"time": 100.0, "alg_bw": 10.48576, "bus_bw": 18.35008, "nwrong": 0.0}
    result = {"size": 2**20, "count": 2**18, "type": "float", "redop": "sum", "root": "    -1", "out_of_place": half,
              "in_place": half}  # fmt: skip
    report = json.dumps({"version": 3, "args": ["all_reduce_perf"], "results": [result]}, indent=2)
    imported = read_text("\n".join(f"{label}{line}" for line in report.splitlines()))
    assert [record["busbw_GBps"] for record in measurements(imported)] == [18.35008, 18.35008]


# --- wrapped --------------------------------------------------------------------------------------------------------


def wrapped(text, columns):
    return "\n".join(
        line[at : at + columns] for line in text.splitlines() for at in range(0, max(1, len(line)), columns)
    )


@pytest.mark.parametrize("columns", [40, 60, 64, 72, 80, 100, 120, 132])
@pytest.mark.parametrize("text", [WHOLE, "\n".join(rows(range(10, 25)))], ids=["a log", "rows alone"])
def test_lines_wrapped_at_a_column(text, columns):
    imported = read_text(wrapped(text, columns))
    assert values(imported) == values(read_text(text))
    assert not imported.refused


def test_lines_of_one_length_are_not_wrapped():
    assert width(enumerate(rows())) is None
    assert width(enumerate(["x" * 50, "y", "x" * 50, "y", "x" * 50, "y", "z" * 51])) is None


def test_a_wrapped_line_has_the_number_of_its_first_part():
    lines = list(enumerate(["x" * 50, "y", "# 1", "x" * 50, "x" * 50, "y", "x" * 50, "# 2"], start=1))
    assert width(lines) == 50
    assert list(unwrapped(lines, 50)) == [
        (1, "x" * 50 + "y"), (3, "# 1"), (4, "x" * 100 + "y"), (7, "x" * 50), (8, "# 2")
    ]  # fmt: skip


def test_titles_between_tables_are_no_rests_of_rows():
    text = "\n".join(line for n in (8, 16, 32, 64) for line in (f"== {n} ranks", *rows(range(20, 23), n=n)))
    assert [table.nranks for table in read_text(text).tables] == [8, 16, 32, 64]


def test_a_part_of_a_row_is_never_taken_for_another():
    """Without its operator, what follows the type is no root, and the second half is not the first."""
    lines = [f"{2**30:12d}  {2**28:12d}     float", "  10867.5   98.80  185.26       0"]
    imported = read_text("\n".join([OPTIONS, *NEW, *lines, *FOOT]))
    assert not measurements(imported)
    assert imported.refused


# --- broken into by others ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [41, 55, 57, 58, 59, 60, 62, 70, 80, 94])
def test_a_row_that_nccl_breaks_into_anywhere(at):
    """Also within a number: what is read is the whole number or none of it."""
    lines = [f"{row(20)[:at]}{NCCL}", row(20)[at:], *rows(range(21, 25))]
    there = values(read_text(WHOLE))
    assert set(values(read_text(log(lines)))) <= set(there)


def test_a_row_on_the_same_line_behind_nccl_s():
    assert values(read_text(each_row(lambda line: NCCL + line))) == values(read_text(WHOLE))


# --- characters -----------------------------------------------------------------------------------------------------

SAME = {
    "a wrong dash": each_row(lambda line: line.replace("-1", "\u20131")),
    "Markdown's escapes": WHOLE.replace("#", "\\#").replace("_", "\\_"),
    "bold": each_row(lambda line: line.replace("51.21", "**51.21**")),
    "escapes made visible": "\n".join(f"^[[32m{line}^[[0m" for line in WHOLE.splitlines()),
    "an HTML table": each_row(lambda line: "".join(f"<td>{cell}</td>" for cell in line.split())),
    "HTML, twice escaped": "\n".join(f"[1,0]&amp;lt;stdout&amp;gt;:{line}" for line in WHOLE.splitlines()),
    "apostrophes in thousands": each_row(lambda line: line.replace(f"{2**20:12d}", "1'048'576")),
    "thin blanks in thousands": each_row(lambda line: line.replace(f"{2**20:12d}", "1\u202f048\u202f576")),
    "blanks in thousands": each_row(
        lambda line: re.sub(r"(?<!\S)\d{4,10}(?= )", lambda match: f"{int(match[0]):,}".replace(",", " "), line)
    ),
    "decimal commas": each_row(lambda line: line.replace(".", ",")),
    "a hole in the file": WHOLE[:40] + "\0" * 20 + WHOLE[40:],
}  # fmt: skip


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_other_characters_for_the_same_numbers(text):
    assert values(read_text(text)) == values(read_text(WHOLE))


@pytest.mark.parametrize("label", ["2  ", "2 "])
def test_blanks_between_numbers_are_no_thousands(label):
    """`2 128 32 float`: a label, a size and a count."""
    lines = [
        f"{label}{size} {size // 4}  float  sum  -1  20.00  {bandwidths}  0"
        for size, bandwidths in ((128, "0.01  0.01"), (256, "0.01  0.02"), (512, "0.03  0.04"))
    ]
    text = "\n".join(["nodes size count type redop root time(us) algbw(GB/s) busbw(GB/s) #wrong", *lines])
    imported = read_text(text)
    assert [record["size_bytes"] for record in measurements(imported)] == [128, 256, 512]
    assert not imported.refused


def test_utf_32():
    assert values(read_bytes(WHOLE.encode("utf-32"))) == values(read_text(WHOLE))


def test_utf_16_added_to_another_text():
    """As a shell of Windows does with >>."""
    assert values(read_bytes(b"C:\\> bench\r\n" + WHOLE.encode("utf-16-le"))) == values(read_text(WHOLE))


@pytest.mark.parametrize("blank", ["\u00a0", "&nbsp;"])
def test_web_blanks_in_the_words_a_format_is_known_by(blank):
    text = "\n".join(["   elements   min (us)   p50 (us)   p99 (us)   max (us)    samples",
                      *(f"{n:11d}{195:11d}{263:11d}{342:11d}{437:11d}{3921:11d}" for n in (1, 2, 5))])  # fmt: skip
    assert len(measurements(read_text(text.replace(" ", blank)))) == 3


def test_points_in_thousands_are_refused_with_their_line():
    text = log([row(20).replace(f"{2**20:12d}", "1.048.576"), *rows(range(21, 25))])
    assert [(each.line, each.reason) for each in read_text(text).refused] == [(17, "'1.048.576' is no whole number")]


@pytest.mark.parametrize(("content", "reason"), [(b" \n\t\n", "is empty"), (b"x" * 5000, "no format"),
                                                 (bytes(range(1, 256)) * 40, "not text")])  # fmt: skip
def test_why_nothing_was_read(content, reason):
    assert reason in why_nothing(read_bytes(content), FORMATS)[0]


# --- tables ---------------------------------------------------------------------------------------------------------


def test_csv_with_both_halves_under_the_same_names():
    names = "size,count,type,redop,root,time,algbw,busbw,#wrong,time,algbw,busbw,#wrong"
    text = "\n".join([names, *(",".join(line.split()) for line in rows())])
    assert [each[2:] for each in values(read_text(text))] == [each[2:] for each in values(read_text(WHOLE))]


def test_one_unnamed_half_of_rccl_s_may_be_either():
    """Its -O 0 prints the in-place half alone."""
    listed = [f"#  Rank {rank:2d} Group  0 Pid {9 + rank:6d} on node00 device {rank:2d} [0x01] AMD Instinct MI300X"
              for rank in range(8)]  # fmt: skip
    head = [line[: 87 if line is not NEW[0] else 40] for line in NEW]
    imported = read_text(log([line[:87] for line in rows()], head=head, listed=listed))
    assert {record["in_place"] for record in measurements(imported)} == {None}
    assert any("does not say whether it is in place" in note for note in imported.tables[0].notes)


def test_hypercube_s_rows_without_a_header():
    lines = [row(power, collective="hypercube", redop="") for power in range(16, 25)]
    imported = read_text("\n".join([*lines, *FOOT]))
    assert {record["collective"] for record in measurements(imported)} == {"hypercube"}


def test_a_bandwidth_that_no_number_of_ranks_has_is_refused():
    """busbw of all_reduce is at least algbw."""
    lines = [f"{2**20:12d}  {2**18:12d}     float     sum      -1  100.00   10.49    5.00      0" for _ in range(1)]
    imported = read_text("\n".join(["all_reduce_perf", *lines]), collective="all_reduce")
    assert not measurements(imported)
    assert "no number of ranks" in imported.refused[0].reason


def test_a_name_that_columns_rule_out_is_told():
    imported = read_text("$ ./build/alltoall_perf\n" + log(program=None))
    (table,) = imported.tables
    assert table.collective == "all_reduce"
    assert any("would make it all_to_all_single" in note for note in table.notes)


def test_ranks_that_the_log_contradicts_are_told():
    (table,) = read_text(log(rows(range(2, 7))), nranks=4).tables  # too small for their busbw to tell
    assert "the log says 8 ranks, --nranks says 4" in table.notes


def test_a_number_beyond_all_numbers_is_none():
    imported = read_text(each_row(lambda line: line.replace("20.48", "0.0E576")))
    assert [(each.line, each.reason) for each in imported.refused] == [(17, "the row is torn")]


def test_a_training_log_of_even_lines_is_not_wrapped():
    lines = [*(["[2026-01-02 03:04:05] step 12 loss 1.234 lr 1e-5"] * 40), "0: saved"] * 5
    assert width(enumerate(lines)) is None
