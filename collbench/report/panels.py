"""Measurements and fits, sorted into panels: one collective on one kind of group, its regimes side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from collbench.collectives import COLLECTIVES, bandwidths_GBps, find_collective, known_collective
from collbench.model.laws import Fit
from collbench.results import Record, ResultsFile
from collbench.topology import counts

TIMINGS = ("isolated", "pipelined")


class Kind(NamedTuple):
    """What a panel is of. Regimes share a panel; nothing else does."""

    collective: str
    group: str
    nranks: int | None
    nnodes: int
    backend: str | None
    dtype: str | None
    in_place: bool | None
    concurrent: bool | None
    mode: str | None = None  # of a sweep that times otherwise than training does

    @property
    def details(self) -> str:
        """`world, 8 ranks on 2 nodes, nccl float32, in place`: all but the collective."""
        ranks = "" if self.nranks is None else counts(self.nranks, self.nnodes)
        data = " ".join(word for word in (self.backend, self.dtype) if word)
        place = {True: "in place", False: "out of place"}.get(self.in_place, "")  # type: ignore[arg-type]
        alone = "one group at a time" if self.concurrent is False else ""
        return ", ".join(text for text in (self.group, ranks, data, place, alone, self.mode) if text)


class Point(NamedTuple):
    """One size: the median over repeats, of the slowest group. Bandwidths are None where the ranks are not known."""

    size_bytes: int
    time_us: float
    algbw_GBps: float | None
    busbw_GBps: float | None
    repeats: int
    wrong: int | None


@dataclass
class Panel:
    """All that is known of one kind: measurements by regime, in file order, and fits by regime."""

    kind: Kind
    redop: str | None
    records: dict[str, list[Record]] = field(default_factory=dict)
    fits: dict[str, Fit] = field(default_factory=dict)

    @property
    def title(self) -> str:
        redop = "" if self.redop in (None, "sum") else f", {self.redop}"
        return f"{self.kind.collective}, {self.kind.details}{redop}"

    def points(self, timing: str) -> list[Point]:
        """One point per size, sizes increasing; pooled as a fit pools: repeats by the median, groups by the maximum."""
        by_size: dict[int, list[Record]] = {}
        for record in self.records.get(timing, []):
            by_size.setdefault(record["size_bytes"], []).append(record)
        return [self._point(size_bytes, by_size[size_bytes]) for size_bytes in sorted(by_size)]

    def busbw_GBps(self, size_bytes: float, time_us: float) -> float | None:
        """None where the number of ranks is not known."""
        return self._bandwidths_GBps(size_bytes, time_us)[1]

    def _point(self, size_bytes: int, records: list[Record]) -> Point:
        by_group: dict[tuple[int, ...], list[float]] = {}
        for record in records:
            by_group.setdefault(tuple(record.get("group_ranks") or ()), []).append(record["time_us"])
        time_us = max(median(times) for times in by_group.values())
        checked = [record["wrong"] for record in records if record.get("wrong") is not None]
        repeats = max(map(len, by_group.values()))
        return Point(
            size_bytes,
            time_us,
            *self._bandwidths_GBps(size_bytes, time_us),
            repeats=repeats,
            wrong=sum(checked) if checked else None,
        )

    def _bandwidths_GBps(self, size_bytes: float, time_us: float) -> tuple[float | None, float | None]:
        if self.kind.nranks is None:
            return None, None
        return bandwidths_GBps(find_collective(self.kind.collective), size_bytes, time_us, self.kind.nranks)


def panels_of(results: Iterable[ResultsFile], fits: Sequence[Fit] = ()) -> list[Panel]:
    """Panels of these measurements and fits: by group in order of appearance, then in the collectives' own order."""
    found: dict[tuple[Kind, str | None], Panel] = {}
    for file in results:
        backends = {run["run_id"]: run.get("backend") for run in file.runs}
        for record in file.measurements:
            if known_collective(record["collective"]) is None:
                continue  # of another version's; the fit's notes say how many
            key = _kind_of_record(record, backends[record["run_id"]]), record.get("redop")
            panel = found.setdefault(key, Panel(*key))
            panel.records.setdefault(record["timing"], []).append(record)
    for fit in fits:
        kind = kind_of_fit(fit)
        # A fit is of one operator: sum where it was measured.
        redops = sorted((redop for known, redop in found if known == kind), key=lambda redop: (redop != "sum", redop))
        key = kind, redops[0] if redops else None
        found.setdefault(key, Panel(*key)).fits[fit.timing] = fit
    groups = list(dict.fromkeys(kind.group for kind, _ in found))
    names = list(COLLECTIVES)
    return sorted(found.values(), key=lambda p: (groups.index(p.kind.group), names.index(p.kind.collective)))


def plotted(panels: Iterable[Panel]) -> list[Panel]:
    """One panel of those that differ only in place: out of place where it was measured, as a model answers."""
    best: dict[tuple[object, ...], Panel] = {}
    for panel in sorted(panels, key=lambda panel: (False, None, True).index(panel.kind.in_place)):
        best.setdefault((panel.kind._replace(in_place=None), panel.redop), panel)
    kept = {id(panel) for panel in best.values()}
    return [panel for panel in panels if id(panel) in kept]


def kind_of_fit(fit: Fit) -> Kind:
    """The kind of the measurements that a fit was made of."""
    return Kind(**{name: getattr(fit, name) for name in Kind._fields if name != "mode"})


def _kind_of_record(record: Record, backend: str | None) -> Kind:
    """The kind whose fit a measurement goes into: names and defaults as the fit takes them."""
    return Kind(
        collective=find_collective(record["collective"]).name,
        group=record.get("group") or "world",
        nranks=record.get("nranks"),
        nnodes=record.get("nnodes") or 1,
        backend=backend,
        dtype=record.get("dtype"),
        in_place=record.get("in_place"),
        concurrent=record.get("concurrent"),
        mode=record.get("mode"),
    )
