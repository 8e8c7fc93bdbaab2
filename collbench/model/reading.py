"""A curve made ready to answer: for the counts asked about, with what its way there costs in certainty, and notes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collbench.collectives import find_collective
from collbench.model.choose import Choice
from collbench.model.curve import Curve
from collbench.model.estimate import Estimate, Floats, like
from collbench.model.laws import Fit, Scaling, counts
from collbench.model.levels import LEVELS_SPREAD, two_levels
from collbench.model.scaling import count_spread_log, is_far, like_it, scaled_curve
from collbench.units import format_size

FAR = 4.0  # times outside the measured sizes; past it a guess should be measured instead


@dataclass(frozen=True, kw_only=True)
class Reading:
    """curve: of the counts asked about.  measured: whether it was measured there, or is made from others.

    extra_log: half of a 90 % interval, in log units, that the way from the measured counts costs.
    latency_us: the part of each time that loads no link.  least_us_per_byte: what a stated link allows.
    regimes_from_bytes: where the fit's segments begin, but for the first; none where a law is off at all sizes alike.
    """

    curve: Curve
    measured: bool
    extra_log: float
    latency_us: float
    least_us_per_byte: float
    backend: str | None
    notes: tuple[str, ...]
    regimes_from_bytes: tuple[int, ...] = ()

    def estimate(self, sizes: Floats) -> Estimate:
        """The times of these sizes, of their shape. Size 0 costs what one byte does."""
        at = np.maximum(sizes, 1.0)
        least_us = self.least_us_per_byte * at
        time_us = np.maximum(self.curve.time_us(at), least_us)
        below, above = (np.hypot(width, self.extra_log) for width in self.curve.half_widths_log(at))
        outside = self.curve.is_outside(at)
        return Estimate(
            time_us=like(sizes, time_us),
            low_us=like(sizes, np.maximum(time_us * np.exp(-below), least_us)),
            high_us=like(sizes, time_us * np.exp(above)),
            source=self._source(bool(np.all(outside))),
            extrapolated=like(sizes, outside if self.measured else np.ones_like(outside)),
            notes=(*self.notes, *self._range_notes(at)),
            latency_us=like(sizes, np.minimum(self.latency_us, time_us)),
            backend=self.backend,
            regime=like(sizes, np.searchsorted(self.regimes_from_bytes, at, side="right")),
        )

    def _source(self, outside: bool) -> str:
        if not self.measured:
            return "scaling"
        return "prior" if outside and self.curve.measured_bytes is not None else "fit"

    def _range_notes(self, at: Floats) -> list[str]:
        """What to say about sizes outside the measured range."""
        if self.curve.measured_bytes is not None:
            count = len(self.curve.measured_bytes)
            near = f"{count} measured size{'s' * (count != 1)}"
            guessed = np.any(self.curve.is_outside(at))
            return [f"not measured: a prior's figure, corrected by {near}"] if guessed else []
        first, last = self.curve.sizes_bytes[0], self.curve.sizes_bytes[-1]
        here = "" if self.measured else " when scaled to these ranks"
        notes = []
        if np.any(at < first):
            further = _far(bool(np.any(FAR * at < first)), "smaller")
            notes.append(f"below the smallest measured size, {format_size(first)}{here}{further}: extrapolated")
        if np.any(at > last):
            further = _far(bool(np.any(at > FAR * last)), "larger")
            largest = format_size(last) + here
            notes.append(f"beyond the largest measured size, {largest}{further}: extrapolated from the last points")
        return notes


def measured_reading(choice: Choice) -> Reading:
    """The fit itself."""
    fit = choice.fit
    return Reading(
        curve=fit.measured,
        measured=True,
        extra_log=0.0,
        latency_us=fit.alpha_us,
        least_us_per_byte=_least_us_per_byte(fit, fit.nranks),
        backend=fit.backend,
        notes=choice.notes,
        regimes_from_bytes=tuple(segment.from_bytes for segment in fit.segments[1:]),
    )


def scaled_reading(choice: Choice, law: Scaling, fits: Sequence[Fit]) -> Reading:
    """The fits of a kind, scaled to the counts asked about."""
    fit, members = choice.fit, like_it(choice.fit, fits)
    curve = scaled_curve(law, members, choice.nranks, choice.nnodes)
    note = (
        f"{counts(choice.nranks, choice.nnodes)} not measured: scaled by the {law.algorithm} law "
        f"from {counts(fit.nranks, fit.nnodes)}"
    )
    further = (
        ", more than 4× outside the measured counts: measure more"
        if is_far(members, choice.nranks, choice.nnodes)
        else ""
    )
    return Reading(
        curve=curve,
        measured=False,
        extra_log=count_spread_log(law, members, choice.nranks, choice.nnodes, other_network=choice.other_network),
        latency_us=fit.alpha_us * float(curve.times_us[0] / fit.measured.times_us[0]),
        least_us_per_byte=_least_us_per_byte(fit, choice.nranks),
        backend=fit.backend,
        notes=(*choice.notes, note + further, *_of_prior(members)),
    )


def _of_prior(members: Sequence[Fit]) -> list[str]:
    kinds = sorted({fit.prior.kind for fit in members if fit.prior is not None})
    return [f"in part the {kind} prior's figures, not measured" for kind in kinds]


def two_level_reading(collective: str, inside: Reading, across: Reading, nranks: int, nnodes: int) -> Reading:
    """A world of both levels of links, where neither it nor one like it was measured."""
    sent = find_collective(collective).sent_fraction
    note = f"{counts(nranks, nnodes)} not measured: made of the groups intra and inter, level upon level"
    return Reading(
        curve=two_levels(collective, inside.curve, across.curve, math.ceil(nranks / nnodes)),
        measured=False,
        extra_log=math.hypot(LEVELS_SPREAD, inside.extra_log, across.extra_log),
        latency_us=inside.latency_us + across.latency_us,
        least_us_per_byte=inside.least_us_per_byte * sent(nranks) / sent(math.ceil(nranks / nnodes)),
        backend=inside.backend,
        notes=(*dict.fromkeys((*inside.notes, *across.notes)), note),
    )


def _least_us_per_byte(fit: Fit, nranks: int) -> float:
    """The inverse of the algbw at which the busbw is the stated link's rate; 0 where none was stated."""
    if fit.link_GBps is None:
        return 0.0
    return find_collective(fit.collective).sent_fraction(nranks) / (fit.link_GBps * 1e3)


def _far(yes: bool, wanted: str) -> str:
    return f", by more than {FAR:g}×: measure {wanted} sizes" if yes else ""
