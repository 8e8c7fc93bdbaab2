"""Progress on stderr: a bar with the time left on a terminal, a line a tenth in a log."""

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
        """One more step is done; `step` says which. In a log, a line for the first and then every tenth of all."""
        self._done += 1
        self._step = step
        if self._terminal:
            self._draw()
        elif self._done == 1 or self._done * 10 // self._total > (self._done - 1) * 10 // self._total:
            print(f"[{self._done}/{self._total}] {self._what}: {self._left()}", file=self._stream, flush=True)

    def clear(self) -> None:
        if self._terminal:
            print("\r\x1b[K", end="", file=self._stream, flush=True)

    def _left(self) -> str:
        elapsed = time.monotonic() - self._started
        return f"{elapsed / self._done * (self._total - self._done):.0f} s left"

    def _draw(self) -> None:
        filled = _BAR_WIDTH * self._done // self._total
        bar = "#" * filled + "." * (_BAR_WIDTH - filled)
        line = f"[{bar}] {self._done}/{self._total} {self._step}  {self._left()}"
        width = shutil.get_terminal_size().columns - 1  # a line that wraps cannot be redrawn
        print(f"\r\x1b[K{line[:width]}", end="", file=self._stream, flush=True)
