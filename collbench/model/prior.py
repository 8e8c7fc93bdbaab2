"""What answers for the sizes that a curve of few points does not speak for. numpy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collbench.model.curve import UNKNOWN_LOG, Curve, is_unmeasured

KINDS = ("nccl", "datasheet")  # how `model.prior_laws` makes them


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What a fit answers with where it was not measured.

    kind: one of KINDS.  points: (size_bytes, time_us, half of the 90 % interval in log units), sizes increasing.
    """

    kind: str
    points: tuple[tuple[int, float, float], ...]

    def fill(self, curve: Curve) -> Curve:
        """The measured curve, and this prior's points where none was measured."""
        sizes, times_us, halves = np.array(self.points, dtype=np.float64).T
        own = is_unmeasured(sizes, curve.sizes_bytes)
        spread = np.full(len(curve.sizes_bytes), UNKNOWN_LOG) if curve.spread_log is None else curve.spread_log
        merged = np.concatenate([curve.sizes_bytes, sizes[own]])
        order = np.argsort(merged)
        return Curve(
            sizes_bytes=merged[order],
            times_us=np.concatenate([curve.times_us, times_us[own]])[order],
            spread_log=np.concatenate([spread, halves[own]])[order],
            measured_bytes=curve.sizes_bytes,
        )
