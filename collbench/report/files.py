"""How what this package makes becomes a file."""

from __future__ import annotations

import os
from pathlib import Path

from collbench.errors import InputError


def write_file(path: str | os.PathLike[str], data: bytes, flag: str) -> None:
    """Write a file, and the folders it is in. InputError, which says what follows `flag`, where that cannot be."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(data)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}): name another file after {flag}") from None
