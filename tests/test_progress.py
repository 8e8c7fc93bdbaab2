from __future__ import annotations

import io
import time

import pytest

from collbench.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_log_gets_a_line_when_the_kind_of_step_changes():
    log = io.StringIO()
    progress = Progress(5, "measuring", log)
    for step in ("broadcast world", "broadcast world", "all_reduce world", "all_reduce world", "broadcast world"):
        progress.advance(step)
    progress.clear()
    assert log.getvalue().splitlines() == [
        "[1/5] measuring: broadcast world",
        "[3/5] measuring: all_reduce world",
        "[5/5] measuring: broadcast world",
    ]


def test_a_terminal_gets_one_line_redrawn_with_the_time_left(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    terminal = Terminal()
    progress = Progress(4, "measuring", terminal)
    now[0] += 5
    progress.advance("all_reduce world")
    assert terminal.getvalue().endswith("[#######.......................] 1/4 all_reduce world  15 s left")
    now[0] += 5
    progress.advance("all_reduce world")
    assert terminal.getvalue().endswith("[###############...............] 2/4 all_reduce world  10 s left")
    assert "\n" not in terminal.getvalue()
    now[0] += 10
    progress.advance("all_reduce world")
    progress.advance("all_reduce world")
    assert terminal.getvalue().endswith("[" + "#" * 30 + "] 4/4 all_reduce world  0 s left")


def test_clear_leaves_an_empty_line_on_a_terminal_and_nothing_in_a_log():
    terminal, log = Terminal(), io.StringIO()
    for stream in (terminal, log):
        progress = Progress(2, "measuring", stream)
        progress.clear()
    assert terminal.getvalue() == "\r\x1b[K"
    assert log.getvalue() == ""


@pytest.mark.parametrize("total", [1, 3, 31])
def test_the_bar_never_outgrows_its_frame(total):
    terminal = Terminal()
    progress = Progress(total, "measuring", terminal)
    for _ in range(total):
        progress.advance("x")
    for drawn in terminal.getvalue().split("\r\x1b[K")[1:]:
        assert drawn.index("]") == 31


def test_progress_goes_to_stderr(capsys):
    Progress(1, "measuring").advance("x")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "[1/1] measuring: x\n"
