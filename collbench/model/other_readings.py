"""Readings that no fit gives as it stands: of other counts, of two levels of links, of groups measured alone.

Imported where one is asked for: most questions are answered by a fit itself, and these laws take long to import.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from collbench.collectives import find_collective
from collbench.model.choose import Choice
from collbench.model.contention import Contention, find_contention, together, together_note
from collbench.model.laws import Fit, Scaling
from collbench.model.levels import LEVELS_SPREAD, two_levels
from collbench.model.reading import Reading, least_us_per_byte
from collbench.model.scaling import count_spread_log, is_far, like_it, scaled_curve
from collbench.topology import counts, measured_as


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
        least_us_per_byte=least_us_per_byte(fit, choice.nranks),
        backend=fit.backend,
        notes=(*choice.notes, note + further, *_of_prior(members)),
    )


def _of_prior(members: Sequence[Fit]) -> list[str]:
    kinds = sorted({fit.prior.kind for fit in members if fit.prior is not None})
    return [f"in part the {kind} prior's figures, not measured" for kind in kinds]


def contended_reading(reading: Reading, choice: Choice, group: str, contention: Sequence[Contention]) -> Reading:
    """Of all groups of the kind `group` at once, as a step runs them, from a reading of one (`measured_alone`)."""
    fit = choice.fit
    known = find_contention(contention, fit, group, choice.nranks)
    if known:
        curve, latency_us = together(reading.curve, reading.latency_us, fit.collective, known)
        notes = (*reading.notes, together_note(group, fit.collective, known))
        return replace(reading, curve=curve, latency_us=latency_us, notes=notes)
    # Groups inside a node have its links to themselves; what stands in for them is as good as they are.
    if fit.group == "world" and not _share_links(group):
        return reading
    return replace(reading, notes=(*reading.notes, _alone(group)))


def _share_links(group: str) -> bool:
    """Whether several groups of the kind always use one node's links."""
    return group == "inter" or group.endswith(":replicate")


def _alone(group: str) -> str:
    return (
        f"this is one group of kind {group}, measured alone: too fast for a step, which runs all of them at once, "
        f"where they share links; measure them together with 'collbench run --group {measured_as(group)}' without "
        "--one-at-a-time (sweep key: concurrent = true)"
    )


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
