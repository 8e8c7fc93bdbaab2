"""A TOML file with its line numbers, so that every complaint about it can say where."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from collbench.errors import InputError


class TomlFile:
    """A parsed TOML file: `.data`, and `where(key)` for messages."""

    def __init__(self, path: str | Path, what: str) -> None:
        """Read `path`; `what` names the kind of file it should be ("a sweep"). Raises InputError with file and line."""
        self.path = Path(path)
        try:
            self.text = self.path.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}): expected {what} (TOML)") from None
        except UnicodeDecodeError:
            raise InputError(f"{path}: is not text: expected {what} (TOML)") from None
        try:
            self.data: dict[str, Any] = tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            reason = str(error)
            line = re.search(r"\(at line (\d+)", reason)
            number = line[1] if line else str(self.text.count("\n") + 1)
            raise InputError(f"{path}:{number}: not TOML: {reason.split(' (at')[0]}: expected {what}") from None

    def where(self, key: str, table: str | None = None, occurrence: int = 0) -> str:
        """`file:line: key`, for a key at the top or in the `occurrence`-th [[table]] (from 0)."""
        return f"{self.path}:{self._line(key, table, occurrence)}: {key}"

    def _line(self, key: str, table: str | None, occurrence: int) -> int:
        seen, current, header = -1, None, 1
        for number, line in enumerate(self.text.splitlines(), start=1):
            heading = re.match(r"\s*\[\[?\s*([\w.\-\"]+)\s*\]\]?", line)
            if heading:
                current = heading[1].strip('"')
                if current == table:
                    seen += 1
                    header = number if seen == occurrence else header
                if table is None and current == key:
                    return number
                continue
            inside = current is None if table is None else current == table and seen == occurrence
            if inside and re.match(rf"\s*\"?{re.escape(key)}\"?\s*=", line):
                return number
        return header
