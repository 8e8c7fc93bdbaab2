"""Logs as files keep them, and lines without what stands around them."""

from __future__ import annotations

import gzip

import pytest

from collbench.errors import InputError
from collbench.importers.clean import NCCL_LINE, cells, clean, is_of_nccl
from collbench.importers.source import Log, read_sources


def texts(line):
    return [piece.text for piece in clean(line)]


def test_lines_are_numbered_from_one_without_their_ends():
    log = Log.of_text("x", "one\r\n\ntwo\nthree")
    assert list(log.raw_lines()) == [(1, "one"), (2, ""), (3, "two"), (4, "three")]
    assert list(log.lines()) == list(log.raw_lines())
    assert list(Log.of_text("x", "one\n").raw_lines()) == [(1, "one")]
    assert list(Log.of_text("x", "").raw_lines()) == []


def test_what_a_terminal_overwrote_is_a_line_of_the_same_number():
    assert list(Log.of_text("x", "50 %\r100 %\r\ndone").lines()) == [(1, "50 %"), (1, "100 %"), (2, "done")]


def test_a_line_overwritten_for_megabytes_is_read_in_parts():
    parts = [f"step {step} of 200000, and a bar" for step in range(100_000)]
    log = Log.of_text("x", "\n".join(["first", "\r".join(parts), "last"]))
    assert list(log.lines()) == [(1, "first"), *((2, part) for part in parts), (3, "last")]
    assert len(list(log.raw_lines())) < 10


def test_a_mark_that_turns_is_not_read_at_every_turn():
    log = Log.of_text("x", "|\r/\r-\r\\\r" * 500_000 + "# a line\nlast")
    pieces = list(log.lines())
    assert len(pieces) < 50
    assert pieces[-2:] == [(1, "# a line"), (2, "last")]


def test_blocks_do_not_show():
    lines = [f"line {number} " + "x" * 97 for number in range(30_000)]
    log = Log.of_text("x", "\n".join(lines))
    assert [text for _, text in log.raw_lines()] == lines
    assert [number for number, _ in log.raw_lines()] == list(range(1, 30_001))


def test_marks_are_found_in_the_raw_text():
    log = Log.of_text("x", "> \x1b[1mbusbw\x1b[0m\n")
    assert log.holds("nothing", "busbw")
    assert not log.holds("algbw")


def test_marks_are_found_in_a_large_log_beside_nccl_s_lines():
    noise = "node01:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P\n" * 30_000
    log = Log.of_text("x", f"{noise}# busbw\n{noise}")
    assert log.holds("busbw")
    assert log.holds("NCCL INFO")
    assert not log.holds("via P2P/IPC", "algbw")


def test_gzip_whole_several_and_cut(tmp_path):
    packed = gzip.compress(b"one\n") + gzip.compress(b"two\n" * 1000)
    assert Log("x", packed).text() == "one\n" + "two\n" * 1000
    assert Log("x", packed[:-9]).text().startswith("one\n")
    with pytest.raises(InputError, match=r"x\.gz: damaged gzip"):
        Log("x.gz", packed[:4] + b"\xff" * 30)


def test_a_bad_byte_spoils_its_line_alone():
    log = Log("x", "µs\n".encode() + b"caf\xe9\xa0!\n" + "µs".encode())
    assert [text for _, text in log.raw_lines()] == ["µs", "café\u00a0!", "µs"]


def test_the_digest_is_the_content_s(tmp_path):
    packed = gzip.compress(b"one\n", mtime=0)
    assert Log("a", b"one\n").digest == Log("b", packed).digest != Log("a", b"two\n").digest


def test_files_directories_and_what_is_not_there(tmp_path):
    (tmp_path / "runs" / "n2").mkdir(parents=True)
    for name in ("runs/b.log", "runs/n2/a.log", "runs/.hidden"):
        (tmp_path / name).write_text(name)
    names = [log.name.removeprefix(f"{tmp_path}/") for log in read_sources([str(tmp_path / "runs")])]
    assert names == ["runs/b.log", "runs/n2/a.log"]
    with pytest.raises(InputError, match="cannot be read"):
        list(read_sources([str(tmp_path / "nowhere.log")]))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no files"):
        list(read_sources([str(tmp_path / "empty")]))


@pytest.mark.parametrize(
    "line",
    [
        "           8             2     float     sum      -1    14.21    0.00    0.00",
        "#       size         count      type",
        "",
        "Started: 2026-04-19T03:05:27+00:00",
        "key: value",
        "busbw: 450.2 GBps",
        "time 10:00:00",
        "[INFO] [logging.py:69:log_dist] [Rank 0] rank=0 | comm op: reduce",
        "a | b | c",
    ],
)
def test_a_line_of_its_own_is_left_alone(line):
    assert texts(line) == [line]


def test_who_wrote_a_line_is_known_by_its_prefix():
    assert clean("2026-01-02T03:04:05Z [1,3]<stdout>:# x") == [("1,3", "# x")]
    assert clean("12: # x") == [("12", "# x")]
    assert clean("[1,0]<stdout>:a[1,3]<stderr>:b[1,0]<stdout>:c") == [("1,0", "ac"), ("1,3", "b")]


def test_a_fence_is_an_empty_line():
    assert texts("```bash") == [""]


def test_cells_of_a_pipe_table():
    assert cells("| **1,024** | `float` |  |") == ["1,024", "float", ""]
    assert cells("a | b") == ["a", "b"]


def test_nccl_s_own_lines():
    line = "node01:1905512:1905512 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>"
    assert is_of_nccl(line)
    assert is_of_nccl(f"[1,3]<stdout>:{line}")
    assert NCCL_LINE.match(line)
    assert not is_of_nccl(f"   8   2 float sum -1 {line}")
    assert not is_of_nccl(f"[1,3]<stdout>:{line}[1,0]<stdout>:   8   2 float")
    assert not is_of_nccl("node01:1:1 [0] NCCL INFO NCCL version 2.27.5+cuda12.9")
