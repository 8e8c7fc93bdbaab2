"""Progress on stderr: a bar with the time left on a terminal, a line a step in a log."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TextIO

_BAR_WIDTH = 30


class Progress:
    """Of `total` steps. On a terminal one line is redrawn; `clear` removes it before something else is printed."""

    def __init__(self, total: int, what: str, stream: TextIO | None = None) -> None:
        self._total, self._what = total, what
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._done = 0
        self._started = time.monotonic()
        self._step = ""

    def advance(self, step: str) -> None:
        """One more step is done; `step` says of what kind. In a log, a line whenever the kind changes."""
        if not self._terminal and step != self._step:
            print(f"[{self._done + 1}/{self._total}] {self._what}: {step}", file=self._stream, flush=True)
        self._done += 1
        self._step = step
        self._draw()

    def clear(self) -> None:
        if self._terminal:
            print("\r\x1b[K", end="", file=self._stream, flush=True)

    def _draw(self) -> None:
        if not self._terminal:
            return
        elapsed = time.monotonic() - self._started
        left = elapsed / self._done * (self._total - self._done)
        filled = _BAR_WIDTH * self._done // self._total
        bar = "#" * filled + "." * (_BAR_WIDTH - filled)
        line = f"[{bar}] {self._done}/{self._total} {self._step}  {left:.0f} s left"
        width = shutil.get_terminal_size().columns - 1  # a line that wraps cannot be redrawn
        print(f"\r\x1b[K{line[:width]}", end="", file=self._stream, flush=True)
