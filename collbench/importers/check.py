"""Whether the rows of a table agree with themselves, and what follows from them that the log does not say.

algbw = size / time and busbw = algbw x factor(ranks) hold for every row within what its digits leave open. A table in
which they hold only under another reading (GiB/s called GB/s, sizes of one rank, all_gather's older algbw) is
converted, and says so; a row in which they do not hold is refused. Collective and ranks are taken from the numbers
where these leave one possibility, and win over a label that contradicts them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from collbench.collectives import COLLECTIVES, Collective
from collbench.importers.evidence import ANY, Evidence, Ranks, share_of
from collbench.importers.per_rank import settle_sizes
from collbench.importers.readings import Reading, read_as, readings
from collbench.importers.spans import Span, rate_GBps
from collbench.importers.table import Refusal, Row, Table
from collbench.importers.words import collective_named

_EITHER = "/"
_FEW = 4  # collectives that a table may be of, for all to be named
_MANY = 6  # half-rows must agree to overrule what a log says of itself
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user says about the logs, which counts for more than anything in them."""

    collective: str | None = None
    nranks: int | None = None
    nnodes: int | None = None
    dtype: str | None = None


def judge(table: Table, asked: Asked, name: str) -> list[Refusal]:
    """Settle what a table is of and drop its rows that contradict themselves; the refusals. name: of its log."""
    if asked.dtype is not None:
        table.rows = [row if row.dtype else replace(row, dtype=asked.dtype) for row in table.rows]
    if table.is_point_to_point:
        asked = Asked(dtype=asked.dtype)
    refused = [Refusal(row.line, "its time is 0") for row in table.rows if row.time_us.value <= 0]
    table.rows = [row for row in table.rows if row.time_us.value > 0]
    evidence = Evidence(table.rows)
    reading = _reading(table, asked, evidence.shares)
    if isinstance(reading, Refusal):
        table.rows = []
        return [*refused, reading]
    if reading.note:
        table.rows = [read_as(row, reading) for row in table.rows]
        table.notes.append(reading.note)
        evidence = Evidence(table.rows)
    _settle_collective(table, asked, name, evidence)
    collective = _arithmetic_of(table)
    _settle_ranks(table, asked, ANY if collective is None else evidence.ranks(collective))
    _settle_nodes(table, asked)
    settle_sizes(table)
    kept = []
    for row in table.rows:
        reason = _impossible(row)
        if reason is None and collective is not None:
            reason = _contradiction(row, collective, table.nranks, evidence.shares)
        elif reason is None and "hypercube" not in table.possible:
            reason = _contradicting_rate(row, 1.0)
        if reason is None:
            kept.append(row)
        else:
            refused.append(Refusal(row.line, reason))
    table.rows = kept
    return refused


# --- one row --------------------------------------------------------------------------------------------------------


def _impossible(row: Row) -> str | None:
    for name, rate in (("algbw", row.algbw_GBps), ("busbw", row.busbw_GBps)):
        if rate is not None and rate.value < 0:
            return f"{name} {rate.value:g} is below 0"
    return None


def _contradicting_rate(row: Row, moved: float) -> str | None:
    """Whether algbw is not what size and time make. moved: the part of the size that algbw counts."""
    expected = rate_GBps(row).times(moved)
    if row.algbw_GBps is None or expected.meets(Span.of(row.algbw_GBps)):
        return None
    return f"size / time is {expected.middle:.4g} GB/s, but algbw says {row.algbw_GBps.value:g}"


def _contradiction(row: Row, collective: Collective, nranks: int | None, shares: set[float]) -> str | None:
    """Why a row cannot be right; None for one that can."""
    share = share_of(row)
    is_no_share = share is not None and (share < 1 or share != int(share))
    if is_no_share or (share is not None and len(shares) > 1 and not _fits_share(share, collective, nranks)):
        return f"size {row.size_bytes} is not count {row.count} x {row.dtype}"
    moved = collective.algbw_factor(nranks) if nranks else 1.0
    if not nranks and collective.algbw_factor(2) != 1:
        return None
    reason = _contradicting_rate(row, moved)
    if reason is not None or row.busbw_GBps is None:
        return reason
    if nranks is None:
        possible = Evidence([row]).ranks(collective) is not None
        return None if possible else f"no number of ranks has busbw {row.busbw_GBps.value:g} at this algbw"
    expected = rate_GBps(row).times(moved)
    algbw = expected if row.algbw_GBps is None else expected.meet(Span.of(row.algbw_GBps))
    factors = {collective.bus_factor(nranks)} | ({1.0} if nranks == 1 else set())
    if not any(algbw.times(factor).meets(Span.of(row.busbw_GBps)) for factor in factors):
        return (
            f"busbw says {row.busbw_GBps.value:g} GB/s: {collective.name} of {nranks} ranks at "
            f"{algbw.middle:.4g} GB/s has {algbw.middle * max(factors):.4g}"
        )
    return None


def _fits_share(share: float, collective: Collective, nranks: int | None) -> bool:
    if not collective.divided:
        return share == 1
    return share == nranks if nranks else share >= 1 and share == int(share)


# --- the table's reading --------------------------------------------------------------------------------------------


def _reading(table: Table, asked: Asked, shares: set[float]) -> Reading | Refusal:
    """How this table's numbers are to be read; a refusal where no known reading makes its rows agree."""
    hinted = [value for value, _ in table.hints.get("nranks", [])]
    counts = [asked.nranks, table.nranks, *(int(share) for share in shares if share > 1), *reversed(hinted)]
    name = asked.collective or table.collective
    found = readings(table.rows, [n for n in counts if n], COLLECTIVES.get(name or ""), table.possible)
    if found is not None:
        return found
    row = next(row for row in table.rows if row.algbw_GBps is not None and row.algbw_GBps.value > 0)
    return Refusal(
        table.line,
        f"no one reading of its units makes size, time and algbw agree (line {row.line}: {row.size_bytes} B in "
        f"{row.time_us.value:g} us is {rate_GBps(row).middle:.4g} GB/s, algbw says {row.algbw_GBps.value:g})",  # type: ignore[union-attr]
    )


# --- collective -----------------------------------------------------------------------------------------------------


def _settle_collective(table: Table, asked: Asked, name: str, evidence: Evidence) -> None:
    """Set the collective. Where nothing tells which of several it is, all are named, and the user is asked: no fit
    uses rows of no known collective."""
    if asked.collective is not None:
        if table.collective not in (None, asked.collective):
            table.notes.append(f"the log says {table.collective}, --collective says {asked.collective}")
        table.collective = asked.collective
        return
    stated = table.collective
    if stated is not None and stated not in COLLECTIVES:
        return
    possible = [
        collective.name
        for collective in COLLECTIVES.values()
        if (not table.possible or collective.name in table.possible) and _allows(collective, table, evidence)
    ]
    if stated is not None:
        if table.possible and stated not in possible and len(possible) == 1 and len(table.rows) >= _MANY:
            table.collective = possible[0]
            table.notes.append(f"the log says {stated}, but columns and numbers are those of {possible[0]}")
        return
    hints = [*reversed(table.hints.get("collective", [])), *_named_in(name)]
    if len(possible) == 1:
        table.collective = possible[0]
        table.inferred["collective"] = "the only one that has these columns and this busbw / algbw"
        if hints and hints[0][0] != possible[0]:
            table.notes.append(f"{hints[0][1]} would make it {hints[0][0]}: columns and numbers are not its")
        return
    for collective, where in hints:
        if collective in (possible or COLLECTIVES):
            table.collective = collective
            table.inferred["collective"] = where
            return
    table.collective = _EITHER.join(possible) if 0 < len(possible) <= _FEW else UNKNOWN
    which = " or ".join(possible) if 0 < len(possible) <= _FEW else "any collective"
    table.notes.append(f"the log does not say whether this is {which}: no fit uses these rows: add --collective")


def _arithmetic_of(table: Table) -> Collective | None:
    """The collective by whose factors to check a table: of several that it may be of, if they have the same."""
    names = (table.collective or "").split(_EITHER)
    known = [COLLECTIVES[name] for name in names if name in COLLECTIVES]
    if not known or len(known) < len(names):
        return None
    same = len({(each.divided, each.bus_factor(3), each.algbw_factor(3)) for each in known}) == 1
    return known[0] if same else None


def _allows(collective: Collective, table: Table, evidence: Evidence) -> bool:
    ranks = evidence.ranks(collective)
    return ranks is not None and (table.nranks is None or table.nranks in ranks)


def _named_in(name: str) -> list[tuple[str, str]]:
    """The collective that a file's name names, the longest word first."""
    stem = PurePath(name).name.lower().replace("-", "_").split(".")[0]
    words = stem.split("_")
    for length in (3, 2, 1):
        for start in range(len(words) - length + 1):
            word = "_".join(words[start : start + length])
            collective = collective_named(word) if len(word) > 5 else None
            if collective is not None:
                return [(collective, f"the file's name, {PurePath(name).name}")]
    return []


# --- ranks and nodes ------------------------------------------------------------------------------------------------


def _settle_ranks(table: Table, asked: Asked, ranks: Ranks | None) -> None:
    """Set the ranks: as asked, as stated where the rows allow it, as the rows say, as the log hints."""
    if asked.nranks is not None:
        if table.nranks not in (None, asked.nranks):
            table.notes.append(f"the log says {table.nranks} ranks, --nranks says {asked.nranks}")
            table.nodes, table.nnodes = [], None
        table.nranks = asked.nranks
        return
    if ranks is None:
        return
    if table.nranks is not None:
        if table.nranks not in ranks and ranks.rows >= _MANY:
            table.notes.append(f"the log says {table.nranks} ranks, but {ranks.source} is that of {ranks}")
            table.nranks, table.nodes, table.nnodes = ranks.one, [], None
        return
    hints = table.hints.get("nranks", [])
    if ranks.one is not None:
        table.nranks = ranks.one
        table.inferred["nranks"] = ranks.source
        table.notes += [
            f"{where} would make it {value} ranks: {ranks.source} is that of {ranks.one}"
            for value, where in hints
            if value != ranks.one
        ]
        return
    for value, where in reversed(hints):
        if value in ranks:
            table.nranks = value
            table.inferred["nranks"] = where
            return
    span = f" ({ranks} by the rows)" if ranks.source else ""
    table.notes.append(f"the number of ranks is not stated{span}: no fit uses these rows: import again with --nranks")


def _settle_nodes(table: Table, asked: Asked) -> None:
    each: Any = table.more.pop("ranks_per_node", None)
    if asked.nnodes is not None:
        table.nnodes = asked.nnodes
    if table.nnodes is not None:
        return
    if table.nranks == 1:
        table.nnodes = 1
        return
    if each and table.nranks and table.nranks % each == 0:
        table.nnodes = table.nranks // each
        table.inferred["nnodes"] = f"{each} devices a node, as the device numbers shown have it"
        return
    for value, where in reversed(table.hints.get("nnodes", [])):
        if table.nranks is None or value <= table.nranks:
            table.nnodes = value
            table.inferred["nnodes"] = where
            return
