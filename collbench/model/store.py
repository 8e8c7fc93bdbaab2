"""The model file, `collbench.model/1`, and the one question it answers: how long does this collective take?

numpy alone: answering needs neither scipy nor pandas. Format history: 1 first version.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from collbench.collectives import find_collective
from collbench.errors import InputError
from collbench.model.choose import Choice, choose, layout_of, measured_alone, resolve_counts
from collbench.model.document import (
    contention_from_json,
    fit_from_json,
    overlap_from_json,
    scaling_from_json,
    to_json,
)
from collbench.model.estimate import OPEN_KINDS, Estimate, check_counts, check_group, check_sizes, nothing_to_send
from collbench.model.laws import Fit, Scaling, network_of
from collbench.model.public import PREFIX, is_public, model_file
from collbench.model.reading import Reading, measured_reading
from collbench.topology import counts

if TYPE_CHECKING:
    from collbench.model.contention import Contention
    from collbench.model.slowdown import Overlap, Slowdown

SCHEMA = "collbench.model/1"


@dataclass(frozen=True, kw_only=True)
class Model:
    """Fits and the laws over rank counts. `sources` are the runs it was made of, `notes` what was left out.

    overlaps: what collectives and computation cost one another at the same time, where that was measured.
    contention: what the groups of a kind cost one another, where they were measured together and one at a time.
    """

    fits: tuple[Fit, ...]
    scaling: tuple[Scaling, ...] = ()
    sources: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    contention: tuple[Contention, ...] = ()

    @property
    def nodes(self) -> int:
        """Nodes of the job that was measured."""
        return layout_of(self.fits).nodes

    @property
    def ranks_per_node(self) -> int:
        """Ranks per node of the job that was measured, rounded up."""
        return layout_of(self.fits).ranks_per_node

    def time(
        self,
        collective: str,
        size_bytes: ArrayLike,
        group: str = "world",
        nranks: int | None = None,
        nnodes: int | None = None,
        dtype: str | None = None,
        timing: str | None = None,
        backend: str | None = None,
    ) -> Estimate:
        """The time of one collective of `size_bytes` (nccl-tests' size; a number or an array) with a 90 % interval.

        In range it is the measured curve, linear between medians; beyond it the curve's ends carry on, at other rank
        counts a scaling law answers, and both say `extrapolated` and widen the interval. A group that was not measured
        is answered by another of the same kind of network. One that was measured alone, where a step runs several at
        once, is slowed by the contention measured, and the answer says so where none was. Counts default to the largest
        measured ones of the group, the regime to isolated. Size 0 costs what the smallest message does.

        Raises InputError where the model has nothing to say, naming what it has.
        """
        sizes = check_sizes(size_bytes)
        if nranks == 1:
            find_collective(collective)
            check_group(group, (fit.group for fit in self.fits))
            check_counts(group, 1, nnodes)
            return nothing_to_send(sizes, "fit")
        reading = self._reading(collective, group, nranks, nnodes, dtype, timing, backend)
        return reading.estimate(sizes)

    def slowdown(
        self, collective: str, size_bytes: float, group: str, nranks: int, nnodes: int, backend: str | None = None
    ) -> Slowdown | None:
        """What a collective and computation cost one another at the same time; None where it was not measured."""
        from collbench.model.slowdown import find_slowdown

        name = find_collective(collective).name
        return find_slowdown(self.overlaps, name, size_bytes, group, nranks, nnodes, backend)

    def counts(self, collective: str, group: str, nranks: int | None, nnodes: int | None) -> tuple[int, int]:
        """The (nranks, nnodes) that `time` takes a question to mean; InputError as `time` raises it."""
        check_group(group, (fit.group for fit in self.fits))
        return resolve_counts(self.fits, collective, group, nranks, nnodes)

    def _reading(
        self,
        collective: str,
        group: str,
        nranks: int | None,
        nnodes: int | None,
        dtype: str | None,
        timing: str | None,
        backend: str | None,
    ) -> Reading:
        """The curve that answers: measured at these counts, scaled from others, or made of two levels of links."""
        collective = find_collective(collective).name
        nranks, nnodes = self.counts(collective, group, nranks, nnodes)
        if self._needs_levels(collective, group, nranks, nnodes):
            from collbench.model.other_readings import two_level_reading

            per_node = math.ceil(nranks / nnodes)
            inside = self._reading(collective, "intra", per_node, 1, dtype, timing, backend)
            across = self._reading(collective, "inter", nnodes, nnodes, dtype, timing, backend)
            return two_level_reading(collective, inside, across, nranks, nnodes)
        choice = choose(self.fits, collective, group, nranks, nnodes, dtype, timing, backend)
        reading = measured_reading(choice) if choice.exact else self._scaled(choice)
        if not measured_alone(choice, group):
            return reading
        from collbench.model.other_readings import contended_reading

        return contended_reading(reading, choice, group, self.contention)

    def _scaled(self, choice: Choice) -> Reading:
        """The fits of a kind, at counts that were not measured; InputError where no law is known."""
        from collbench.model.other_readings import scaled_reading

        law = next((law for law in self.scaling if law.covers(choice.fit)), None)
        if law is None:
            fit = choice.fit
            measured = sorted({f.nranks for f in self.fits if f.collective == fit.collective and f.group == fit.group})
            raise InputError(
                f"the model has no {fit.collective} on {counts(choice.nranks, choice.nnodes)} and no law for other "
                f"counts than the measured {', '.join(map(str, measured))}: measure that count"
            )
        return scaled_reading(choice, law, self.fits)

    def _needs_levels(self, collective: str, group: str, nranks: int, nnodes: int) -> bool:
        """Whether several ranks on several nodes are asked for, and only each of the two levels was measured."""
        several = network_of(nranks, nnodes)
        known = {network_of(fit.nranks, fit.nnodes) for fit in self.fits if fit.collective == collective}
        levels = {network_of(2, 1), network_of(2, 2)}
        return several not in levels and several not in known and levels <= known and not group.startswith(OPEN_KINDS)

    def to_dict(self) -> dict[str, Any]:
        """The model file's document."""
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "sources": list(self.sources),
            "fits": [to_json(fit) for fit in self.fits],
            "scaling": [to_json(law) for law in self.scaling],
        }
        if self.overlaps:
            document["overlaps"] = [to_json(overlap) for overlap in self.overlaps]
        if self.contention:
            document["contention"] = [to_json(each) for each in self.contention]
        return document | ({"notes": list(self.notes)} if self.notes else {})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model file; InputError where it cannot be written."""
        text = json.dumps(self.to_dict(), allow_nan=False, separators=(",", ":"))
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror}): name another file with -o") from None


def load_model(path: str | os.PathLike[str]) -> Model:
    """Read and check a model file; `public:NAME` is one that comes with collbench.

    Raises InputError, naming the file and the line or the key, for one that is missing, empty, damaged, of another
    schema, without fits, or with a value that is missing, negative or not a number.
    """
    try:
        text = model_file(path).read_text(encoding="utf-8")
    except OSError as error:
        named = f" (did you mean {PREFIX}{path}?)" if is_public(os.fspath(path)) else ""
        raise InputError(f"{path}: cannot be read ({error.strerror}): expected a {SCHEMA} file{named}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a {SCHEMA} file: it holds no text") from None
    if not text.strip():
        raise InputError(f"{path}: is empty: expected a {SCHEMA} file as 'collbench fit -o' writes it")
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        if text.startswith('{"kind":"run"'):
            raise InputError(f"{path}: is a results file: make a model of it with 'collbench fit -o'") from None
        raise InputError(f"{path}:{error.lineno}: not JSON ({error.msg}): expected a {SCHEMA} file") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error}): expected a {SCHEMA} file") from None
    return _model_of(document, str(path))


def _model_of(document: Any, path: str) -> Model:
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        found = f"schema {schema!r}" if schema is not None else "no schema"
        raise InputError(f"{path}: {found}: this collbench reads {SCHEMA} files, as 'collbench fit -o' writes them")
    lists: dict[str, list[Any]] = {}
    for name in ("fits", "scaling", "sources", "notes", "overlaps", "contention"):
        value = document.get(name, [])
        if not isinstance(value, list):
            raise InputError(f"{path}: {name} is not a list")
        lists[name] = value
    try:
        json.dumps(lists["sources"], allow_nan=False)
    except ValueError:
        raise InputError(f"{path}: sources hold a number that is not finite: expected run ids") from None
    if not lists["fits"]:
        raise InputError(f"{path}: holds no fits: fit results again with 'collbench fit'")
    return Model(
        fits=tuple(_numbered(lists["fits"], fit_from_json, f"{path}: fits")),
        scaling=tuple(_numbered(lists["scaling"], scaling_from_json, f"{path}: scaling")),
        sources=tuple(source for source in lists["sources"] if isinstance(source, dict)),
        notes=tuple(map(str, lists["notes"])),
        overlaps=tuple(_numbered(lists["overlaps"], overlap_from_json, f"{path}: overlaps")),
        contention=tuple(_numbered(lists["contention"], contention_from_json, f"{path}: contention")),
    )


def _numbered(records: list[Any], read: Any, where: str) -> Iterable[Any]:
    return (read(record, f"{where}[{index}]") for index, record in enumerate(records))
