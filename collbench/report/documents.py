"""Reads what `predict --json` and `validate --json` print, as far as the page shows it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from collbench.errors import InputError
from collbench.report.steps import QUANTITIES

Json = dict[str, Any]

_STEP = (*QUANTITIES, "comm_ms")


def load_predictions(path: str) -> list[Json]:
    """The prediction in a file, or the list of them.

    Raises InputError, naming file and key, for a file that is missing, not JSON or not a prediction.
    """
    expected = "a prediction as 'collbench predict --json' prints it"
    document = _read(path, expected)
    documents = document if isinstance(document, list) else [document]
    for index, prediction in enumerate(documents):
        where = f"{path}: [{index}]." if isinstance(document, list) else f"{path}: "
        _check_object(prediction, where, expected)
        _check_text(prediction, ("workload", "strategy"), where, expected)
        _check_times(prediction, _STEP, where, expected)
        bars = prediction.get("timeline")
        if not isinstance(bars, list):
            raise InputError(f"{where}timeline is not a list: expected {expected}")
        for number, bar in enumerate(bars):
            of_bar = f"{where}timeline[{number}]."
            _check_object(bar, of_bar, expected)
            _check_text(bar, ("stream", "name"), of_bar, expected)
            _check_times(bar, ("start_ms", "end_ms"), of_bar, expected)
            if bar["stream"] not in ("compute", "comm"):
                raise InputError(f"{of_bar}stream is {bar['stream']!r}: expected compute or comm")
    return documents


def load_validation(path: str) -> Json:
    """The validation in a file. Raises InputError as `load_predictions` does."""
    expected = "a validation as 'collbench validate --json' prints it"
    document = _read(path, expected)
    _check_object(document, f"{path}: ", expected)
    for part in ("measured", "predicted", "error_pct"):
        _check_object(document.get(part), f"{path}: {part}.", expected)
    for part in ("measured", "predicted"):
        _check_times(document[part], tuple(QUANTITIES), f"{path}: {part}.", expected)
    for key, error in document["error_pct"].items():
        if error is not None and not _is_number(error):
            raise InputError(f"{path}: error_pct.{key} is {error!r}: expected a number or null")
    return dict(document)


def _read(path: str, expected: str) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): expected {expected}") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not JSON ({error.msg}): expected {expected}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error}): expected {expected}") from None


def _check_object(value: Any, where: str, expected: str) -> None:
    if not isinstance(value, dict):
        raise InputError(f"{where.rstrip(':. ')}: is not an object: expected {expected}")


def _check_text(record: Json, keys: tuple[str, ...], where: str, expected: str) -> None:
    for key in keys:
        if not isinstance(record.get(key), str):
            raise InputError(f"{where}{key} is {record.get(key)!r}, not text: expected {expected}")


def _check_times(record: Json, keys: tuple[str, ...], where: str, expected: str) -> None:
    for key in keys:
        if not _is_number(record.get(key)):
            raise InputError(f"{where}{key} is {record.get(key)!r}, not a number: expected {expected}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
