"""What one fit answers at its own counts, whatever else a model holds: its times and their 90 % interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collbench.model.choose import Choice
from collbench.model.estimate import Floats
from collbench.model.laws import Fit
from collbench.model.reading import measured_reading


@dataclass(frozen=True, slots=True)
class Band:
    """Times and interval in us, of the shape of the sizes asked about."""

    time_us: Floats
    low_us: Floats
    high_us: Floats


def band(fit: Fit, sizes_bytes: Floats) -> Band:
    """The fit at these sizes, also beyond its own."""
    choice = Choice(fit=fit, nranks=fit.nranks, nnodes=fit.nnodes, notes=())
    answer = measured_reading(choice).estimate(sizes_bytes)
    times = (answer.time_us, answer.low_us, answer.high_us)
    return Band(*(np.asarray(values, dtype=np.float64) for values in times))
