"""A curve made ready to answer: for the counts asked about, with what its way there costs in certainty, and notes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collbench.collectives import find_collective
from collbench.model.choose import Choice
from collbench.model.curve import Curve
from collbench.model.estimate import Estimate, Floats, like
from collbench.model.laws import Fit
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
        least_us_per_byte=least_us_per_byte(fit, fit.nranks),
        backend=fit.backend,
        notes=choice.notes,
        regimes_from_bytes=tuple(segment.from_bytes for segment in fit.segments[1:]),
    )


def least_us_per_byte(fit: Fit, nranks: int) -> float:
    """The inverse of the algbw at which the busbw is the stated link's rate; 0 where none was stated."""
    if fit.link_GBps is None:
        return 0.0
    return find_collective(fit.collective).sent_fraction(nranks) / (fit.link_GBps * 1e3)


def _far(yes: bool, wanted: str) -> str:
    return f", by more than {FAR:g}×: measure {wanted} sizes" if yes else ""
