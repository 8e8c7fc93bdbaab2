from __future__ import annotations

import io
import time
from itertools import pairwise

import pytest

from collbench.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def now(monkeypatch):
    moment = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])
    return moment


def test_a_log_gets_a_line_for_the_first_step_and_for_each_tenth_with_the_time_left(now):
    log = io.StringIO()
    progress = Progress(40, "measuring", log)
    for _ in range(40):
        now[0] += 2
        progress.advance("all_reduce world")
    progress.clear()
    assert log.getvalue().splitlines() == [
        "[1/40] measuring: 78 s left",
        *(f"[{done}/40] measuring: {2 * (40 - done)} s left" for done in range(4, 41, 4)),
    ]


@pytest.mark.parametrize("total", [1, 2, 3, 7, 9, 10, 11, 15, 19, 97, 1000, 12345])
def test_a_log_gets_at_most_eleven_lines_and_always_the_last(total):
    log = io.StringIO()
    progress = Progress(total, "measuring", log)
    for _ in range(total):
        progress.advance("x")
    lines = [line.split("/")[0] for line in log.getvalue().splitlines()]
    steps = [int(line.removeprefix("[")) for line in lines]
    assert steps[0] == 1 and steps[-1] == total
    assert len(steps) == len(set(steps)) <= 11
    assert len(steps) >= min(total, 10)
    # No stretch of more than a tenth, rounded up, is silent.
    assert all(later - earlier <= -(-total // 10) for earlier, later in pairwise(steps))


def test_a_terminal_gets_one_line_redrawn_with_the_time_left(now):
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
    assert captured.err == "[1/1] measuring: 0 s left\n"
