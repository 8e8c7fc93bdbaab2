"""The models that come with collbench, fitted from what others published: `public:NAME` in place of a model's path.

Their files lie in `results/public/` of the repository, and a wheel carries them as `collbench/public/`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from collbench.errors import InputError, one_of

PREFIX = "public:"
_PACKAGE = Path(__file__).parents[1]
_HOMES = (_PACKAGE / "public", _PACKAGE.parent / "results" / "public")


def public_files() -> dict[str, Path]:
    """Name -> model file, in the order of the names; InputError where this installation has none."""
    for home in _HOMES:
        found = {path.stem: path for path in home.glob("*.json")}
        if found:
            return {name: found[name] for name in sorted(found, key=_by_numbers)}
    raise InputError("the public models are not in this installation: install collbench again from its repository")


def _by_numbers(name: str) -> list[tuple[int, str]]:
    """8x2 before 8x16."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def is_public(name: str) -> bool:
    """Whether a model of this name comes with collbench."""
    return any((home / f"{name}.json").is_file() for home in _HOMES)


def model_file(path: str | os.PathLike[str]) -> Path:
    """The file of a model: of a public one for `public:NAME`, else the path itself.

    Raises InputError for a name that is not there, with the nearest one.
    """
    text = os.fspath(path)
    if not text.startswith(PREFIX):
        return Path(path)
    known, name = public_files(), text.removeprefix(PREFIX)
    if name not in known:
        raise one_of("public model", name, list(known))
    return known[name]
