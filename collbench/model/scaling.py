"""Laws over rank counts: what a collective takes on counts nobody measured. numpy alone.

With p ranks, N nodes (on one node N is p) and S bytes, from a curve measured at p1, N1:

    ring      c + steps(p)/steps(p1) · (t1(S·chunk(p)/chunk(p1)) − c), chunk(p) = sent_fraction(p)/steps(p): a step of
              so many bytes takes as long at any count, and so does what a call costs beside its steps, c
    tree      t1(S) · ((1 − r^k)·(u + log2 N)/(u + log2 N1) + r^k·sent_fraction(p)/sent_fraction(p1)): latency grows
              with the depth, bandwidth is held; r = d log t1/d log S, 0 where latency rules and 1 where bandwidth
              does. k = 1 of one α–β line; pipelines behave as latency does for longer, k = 3
    busbw     t1(S) · sent_fraction(p)/sent_fraction(p1): bandwidth is held at every size
    constant  t1(S): reduction in the switch

Which one a collective follows is found by leaving out the largest measured count. Of public sweeps, 8 to 32 nodes
predict 16 to 128: the tree is off by 2 to 10 % (median) for all_reduce of NCCL, rings by 6 to 14 % at 16 to 68 times
the ranks for all_gather and all_to_all, where the others are off by up to a factor of 20.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collbench.collectives import find_collective
from collbench.model.curve import Curve, sizes_of_both
from collbench.model.estimate import Floats
from collbench.model.laws import UNKNOWN_ERROR, Fit, HeldOutError, Scaling, network_of
from collbench.model.nccl_law import BASE_US

# Trees where libraries build trees; gloo's all_reduce is a ring.
TREES = {"all_reduce", "broadcast", "reduce"}
TREES_OF_GLOO = {"broadcast", "reduce"}
CONSTANT = {"send_recv"}

# u of a tree: on several nodes that of 2 to 512 nodes of two clusters; on one node of NVLink all_reduce.
OFFSET_NODES, OFFSET_ONE_NODE = 0.5, 2.0
OFFSETS = (0.0, *(2.0 ** (step / 4) for step in range(-8, 25)))
PIPELINED, ONE_LINE = 3.0, 1.0  # k

# c of a ring of NCCL's: the least of its own base latencies (2.30.7, src/graph/tuning.cc), for no more than one step's
# time. Public sweeps of all_gather at 16 to 64 times the ranks: 7.2 % off (median) without, 5.2 % with it.
NCCL_CALL_US = min(BASE_US["ring"])
MOST_CALL = 0.9  # of the fastest time: the steps take some of it
CALLS_US = tuple(2.0 ** (step / 2) for step in range(21))

MUCH_BETTER = 0.7  # of the usual law's error, for another one to take its place
BETTER = 0.85  # of the error of the laws that fit nothing, for a fitted one to be believed
GOOD_ENOUGH = 0.01  # a mean error that no other law needs to better

# Half of a 90 % interval per doubling of the ranks where nothing was held out, and the least it may be.
USUAL_SPREAD = {"ring": 0.20, "tree": 0.25, "busbw": 0.35, "constant": 0.35}
LEAST_SPREAD = 0.05
OTHER_NETWORK = math.log(3.0)  # between one node and several the links are others
FAR_COUNT = 4.0  # times the measured counts; past it a guess should be measured instead

LEAST_DEPTH = 0.25


def fit_law(family: Sequence[Fit]) -> Scaling:
    """The law of fits that differ in their counts (and in place or alone) only, all over one kind of links.

    The largest count is predicted from every smaller one by every law; the usual one of the collective is kept unless
    another is much nearer, and a tree of fitted depth or a ring of fitted call, which bend to noise, must be nearer
    than all the laws that fit nothing, and much nearer than the usual algorithm's own fitted law. With one count it is
    the usual one, as sure as usual.
    """
    largest = max(family, key=lambda fit: (fit.nranks, not fit.in_place, fit.concurrent is not False))
    members = like_it(largest, family)
    usual = _usual_law(largest)
    chosen, spread_log, error_pct = usual, USUAL_SPREAD[usual.algorithm], UNKNOWN_ERROR
    if len(members) > 1:
        smaller = members[:-1]
        doublings = np.array([math.log2(largest.nranks / fit.nranks) for fit in smaller])

        def off(law: Rule) -> float:
            means = [np.mean(np.abs(_residuals(law, fit, largest))) for fit in smaller]
            return float(np.mean(means / doublings))

        means = {law: off(law) for law in [*_plain_laws(usual), *FITTED_LAWS]}
        means |= {law: off(law) for law in _finer_calls(means)}
        chosen = _chosen(usual, means)
        errors = [np.abs(_residuals(chosen, fit, largest)) for fit in smaller]
        p90s = np.array([np.quantile(error, 0.9) for error in errors])
        spread_log = max(float(np.max(p90s / doublings)), LEAST_SPREAD)
        median, p90 = float(np.median(errors[-1])), float(p90s[-1])
        error_pct = HeldOutError(median=100 * math.expm1(median), p90=100 * math.expm1(p90), held_out=True)
    return Scaling(
        collective=largest.collective,
        group=largest.group,
        backend=largest.backend,
        dtype=largest.dtype,
        timing=largest.timing,
        algorithm=chosen.algorithm,
        nranks=tuple(sorted({fit.nranks for fit in family})),
        alpha_us_per_step=largest.alpha_us / find_collective(largest.collective).ring_steps(largest.nranks),
        link_GBps=largest.busbw_GBps,
        network=network_of(largest.nranks, largest.nnodes),
        offset=chosen.offset,
        exponent=chosen.exponent,
        call_us=chosen.call_us,
        spread_log=spread_log,
        error_pct=error_pct,
    )


def _chosen(usual: Rule, errors: Mapping[Rule, float]) -> Rule:
    """The law that these mean errors per doubling speak for."""
    plain = _plain_laws(usual)
    nearest_plain = min(errors[law] for law in plain)

    def nearest(laws: Iterable[Rule]) -> Rule:
        believed = (law for law in laws if law in plain or errors[law] < BETTER * nearest_plain)
        return min(believed, key=lambda law: errors[law])

    kept = nearest(law for law in plain if law.algorithm == usual.algorithm)
    if errors[kept] <= GOOD_ENOUGH:
        return kept
    best = nearest(errors)
    if errors[best] >= MUCH_BETTER * errors[kept]:
        return kept
    # Two counts are met by a ring of fitted call and by a tree of fitted depth: where both do, the usual one is kept.
    alike = nearest(law for law in errors if law.algorithm == usual.algorithm)
    return best if errors[best] < MUCH_BETTER * errors[alike] else alike


def _finer_calls(errors: Mapping[Rule, float]) -> list[Rule]:
    """Rings around the nearest one of fitted call, where the steps of CALLS_US are coarse."""
    call_us = min(CALLS_US, key=lambda call_us: errors[Rule("ring", call_us=call_us)])
    return [Rule("ring", call_us=call_us * 2.0 ** (step / 16)) for step in range(-7, 8) if step]


def like_it(fit: Fit, fits: Sequence[Fit]) -> list[Fit]:
    """The fits that differ from `fit` in nothing but their counts, over the same kind of links, by rank count."""

    def key(one: Fit) -> tuple[object, ...]:
        plain = (one.collective, one.group, one.backend, one.dtype, one.in_place, one.timing, one.concurrent)
        return (*plain, network_of(one.nranks, one.nnodes))

    found = {(one.nranks, one.nnodes): one for one in fits if key(one) == key(fit)}
    by_ranks = {one.nranks: one for one in sorted(found.values(), key=lambda one: one.nnodes)}
    by_ranks[fit.nranks] = fit
    return [by_ranks[nranks] for nranks in sorted(by_ranks)]


def scaled_curve(law: Scaling, members: Sequence[Fit], nranks: int, nnodes: int) -> Curve:
    """The curve on `nranks` ranks, from measured ones in order of rank count: from the nearest one where the count is
    beyond them all, and from the two around it, nearer ones counting more, where it is between."""
    rule = Rule(law.algorithm, law.offset, law.exponent, law.call_us)
    below = [fit for fit in members if fit.nranks <= nranks]
    above = [fit for fit in members if fit.nranks > nranks]
    if not below or not above:
        return _scaled(rule, (below or above)[-1 if below else 0], nranks, nnodes)
    low, high = below[-1], above[0]
    share = math.log(nranks / low.nranks) / math.log(high.nranks / low.nranks)
    return _blend(_scaled(rule, low, nranks, nnodes), _scaled(rule, high, nranks, nnodes), share)


def count_spread_log(law: Scaling, members: Sequence[Fit], nranks: int, nnodes: int, *, other_network: bool) -> float:
    """Half of a 90 % interval, in log units, for the way from the nearest measured counts: the doublings of the ranks
    or of the nodes, whichever are more."""
    doublings = min(max(abs(math.log2(nranks / fit.nranks)), abs(math.log2(nnodes / fit.nnodes))) for fit in members)
    per_doubling = USUAL_SPREAD[law.algorithm] if law.spread_log is None else law.spread_log
    return per_doubling * doublings + (OTHER_NETWORK if other_network else 0.0)


def is_far(members: Sequence[Fit], nranks: int, nnodes: int) -> bool:
    """Whether a count of ranks or of nodes is more than FAR_COUNT times outside the measured ones."""
    asked_and_measured = ((nranks, [fit.nranks for fit in members]), (nnodes, [fit.nnodes for fit in members]))
    return any(
        asked > FAR_COUNT * max(measured) or FAR_COUNT * asked < min(measured) for asked, measured in asked_and_measured
    )


@dataclass(frozen=True, slots=True)
class Rule:
    """One of the laws; offset (u) and exponent (k) are a tree's, call_us (c) is a ring's."""

    algorithm: str
    offset: float | None = None
    exponent: float | None = None
    call_us: float | None = None


FITTED_LAWS = (
    *(Rule("tree", offset=offset, exponent=exponent) for exponent in (PIPELINED, ONE_LINE) for offset in OFFSETS),
    *(Rule("ring", call_us=call_us) for call_us in CALLS_US),
)


def _usual_law(fit: Fit) -> Rule:
    if fit.collective in CONSTANT:
        return Rule("constant")
    if fit.collective in (TREES_OF_GLOO if fit.backend == "gloo" else TREES):
        return Rule("tree", offset=OFFSET_ONE_NODE if fit.nnodes == 1 else OFFSET_NODES, exponent=PIPELINED)
    if fit.backend != "nccl":
        return Rule("ring")
    steps = find_collective(fit.collective).ring_steps(fit.nranks)
    return Rule("ring", call_us=min(NCCL_CALL_US, float(fit.measured.times_us.min()) / (steps + 1)))


def _plain_laws(usual: Rule) -> list[Rule]:
    """The laws that fit nothing to the counts, the usual one among them."""
    return list(dict.fromkeys([usual, Rule("ring"), Rule("busbw"), Rule("constant")]))


def _residuals(rule: Rule, smaller: Fit, largest: Fit) -> Floats:
    """log(measured / predicted) at the largest count's sizes that the scaled curve reaches; at all if none."""
    curve, truth = _scaled(rule, smaller, largest.nranks, largest.nnodes), largest.measured
    reached = ~curve.is_outside(truth.sizes_bytes)
    at = reached if reached.any() else ~reached
    return np.log(truth.times_us[at] / curve.time_us(truth.sizes_bytes[at]))


def _scaled(rule: Rule, fit: Fit, nranks: int, nnodes: int) -> Curve:
    """A fit's curve at other counts by one law; the measured curve itself at its own."""
    collective, curve = find_collective(fit.collective), fit.measured
    sizes, times = curve.sizes_bytes, curve.times_us
    held = collective.sent_fraction(nranks) / collective.sent_fraction(fit.nranks)
    if rule.algorithm == "ring":
        steps = collective.ring_steps(nranks) / collective.ring_steps(fit.nranks)
        call_us = min(rule.call_us or 0.0, MOST_CALL * float(times.min()))
        return Curve(sizes * steps / held, call_us + (times - call_us) * steps, curve.spread_log)
    if rule.algorithm == "busbw":
        return Curve(sizes, times * held, curve.spread_log)
    if rule.algorithm == "tree":
        across = fit.nnodes > 1 and nnodes > 1
        asked, measured = (nnodes, fit.nnodes) if across else (nranks, fit.nranks)
        deeper = _depth(asked, rule.offset or 0.0) / _depth(measured, rule.offset or 0.0)
        rise = np.log(curve.time_us(2 * sizes) / curve.time_us(sizes / 2)) / math.log(4.0)
        bandwidth = np.clip(rise, 0.0, 1.0) ** (rule.exponent or PIPELINED)
        return Curve(sizes, times * ((1 - bandwidth) * deeper + bandwidth * held), curve.spread_log)
    return curve


def _depth(count: int, offset: float) -> float:
    """u + log2 of the count, never 0: a tree of two with u = 0 has a depth of 1."""
    return max(offset + math.log2(count), LEAST_DEPTH)


def _blend(low: Curve, high: Curve, share: float) -> Curve:
    """Between two curves in log time: all `low` at share 0, all `high` at 1."""
    sizes = sizes_of_both(low, high)
    times = low.time_us(sizes) ** (1 - share) * high.time_us(sizes) ** share
    widths = [np.maximum(*curve.half_widths_log(sizes)) for curve in (low, high)]
    return Curve(sizes, times, np.maximum(*widths))
