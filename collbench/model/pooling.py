"""Measurements -> one curve per key: rows that can be used, pooled over repeats and over groups of one kind.

The one place where the model meets pandas.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas

from collbench.collectives import Collective, known_collective
from collbench.errors import InputError
from collbench.model.estimate import Floats
from collbench.model.laws import KEY
from collbench.model.spread import SIGMA_OF_MEDIAN
from collbench.units import format_size

_NEEDED = ("collective", "size_bytes", "time_us", "timing", "nranks")
_MISSING = "?"  # stands for null while grouping: pandas' own nulls are not equal to themselves

MIN_SIZES = 3  # a line through two points explains anything

OTHER_UNIT = 100.0  # ms for us, or MB/s for GB/s, are a thousand; conventions of algbw differ by less
JUMP = 300.0  # between repeats, or neighbours in size; stragglers and protocols are less
LEAST_ALGBW_GBPS = 0.1  # tables round to 0.01

LEAST_US, MOST_US = 1e-6, 1e15  # a picosecond and thirty years: no time of a collective
MOST_BYTES, MOST_RANKS = 2.0**60, 2.0**31


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """The measured curve of one key.

    key: KEY's values.  sizes_bytes, times_us: shape [n], sizes increasing.
    repeats_log: [n] arrays of log(measurement / its group's median), zeros where nothing was repeated.
    groups: size -> median time in us of each group of ranks, where the kind has several.
    points: how many measurements it is made of.  notes: what was left out.
    """

    key: dict[str, object]
    sizes_bytes: Floats
    times_us: Floats
    repeats_log: tuple[Floats, ...]
    points: int
    groups: dict[tuple[int, ...], dict[float, float]]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        return _describe(self.key)

    @property
    def noise(self) -> float:
        """Relative noise of one pooled median, from repeats; 0 where nothing was repeated."""
        repeated = [logs for logs in self.repeats_log if len(logs) > 1]
        if not repeated:
            return 0.0
        spread = SIGMA_OF_MEDIAN * float(np.median(np.abs(np.concatenate(repeated))))
        return spread / float(np.sqrt(np.median([len(logs) for logs in repeated])))


def pool(frame: pandas.DataFrame, where: str, least_sizes: int = MIN_SIZES) -> tuple[list[Pooled], list[str]]:
    """(one curve per key, notes on what could not be used); `where` names the data in errors.

    At each size the repeats of one group of ranks (its runs, passes and roots) are pooled by the median, and the groups
    of a kind by the maximum: they work at the same time, and a step waits for the slowest.

    Curves of fewer than `least_sizes` sizes are left out.

    Raises InputError where nothing can be fitted, saying why.
    """
    missing = [name for name in _NEEDED if name not in frame.columns]
    if frame.empty or missing:
        what = "holds no measurements" if frame.empty else f"has no column {', '.join(missing)}"
        raise InputError(f"{where}{what}: expected measurements as 'collbench run -o' writes them")
    if twice := sorted({str(name) for name in frame.columns[frame.columns.duplicated()]}):
        raise InputError(f"{where}has the column {', '.join(twice)} more than once: which of them is meant?")
    table, notes = _usable(_normalised(frame), where)
    curves, small = [], []
    for key, rows in _by_key(table):
        sizes = rows["size_bytes"].nunique()
        if sizes < least_sizes:
            small.append(f"{_describe(key)}: {sizes} of the {least_sizes} sizes a line needs")
        else:
            curves.append(_pooled(key, rows))
    if not curves:
        raise InputError(f"{where}{_too_few(table, small)}")
    return curves, notes + [f"left out: {text}" for text in small]


def _normalised(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The columns a fit reads, all present; words in their canonical form, nulls as _MISSING, numbers as floats."""
    table = pandas.DataFrame(index=range(len(frame)))
    for name in (*KEY, "redop", "group_ranks", "mode", "unstable"):
        column = frame[name].to_numpy(dtype=object) if name in frame.columns else np.full(len(frame), None, object)
        table[name] = column
    for name in ("size_bytes", "time_us", "wrong", "nranks", "nnodes", "algbw_GBps"):
        column = frame[name] if name in frame.columns else pandas.Series(np.nan, index=frame.index)
        table[name] = pandas.to_numeric(column, errors="coerce").to_numpy(dtype=float)
    table["named"] = table["collective"]
    table["collective"] = table["collective"].map({name: known and known.name for name, known in _known(table)})
    named = [len(ranks) if isinstance(ranks, (list, tuple)) and ranks else np.nan for ranks in table["group_ranks"]]
    table["nranks"] = table["nranks"].fillna(pandas.Series(named, index=table.index, dtype=float))
    table["group"] = table["group"].where(table["group"].notna(), "world")
    table["group_ranks"] = [tuple(ranks) if isinstance(ranks, (list, tuple)) else () for ranks in table["group_ranks"]]
    for name in ("backend", "dtype", "in_place", "concurrent", "redop", "mode", "timing"):
        table[name] = table[name].where(table[name].notna(), _MISSING)
    for name in ("group", "backend", "dtype", "redop", "mode"):
        table[name] = table[name].map({value: str(value) for value in table[name].unique()})
    for name in ("in_place", "concurrent"):
        table[name] = table[name].map({value: _flag(value) for value in table[name].unique()})
    return table


def _flag(value: object) -> object:
    """True, False or _MISSING; None for what is none of them."""
    return value if value == _MISSING else {True: True, False: False}.get(value)  # type: ignore[call-overload]


def _known(table: pandas.DataFrame) -> Iterator[tuple[object, Collective | None]]:
    return ((name, known_collective(name)) for name in table["named"].unique())


def _usable(table: pandas.DataFrame, where: str) -> tuple[pandas.DataFrame, list[str]]:
    """The rows that say something about a collective's time, and what the others were."""
    unknown = table["collective"].isna()
    # Coalesced, unaligned ... times are not those of training's calls; they are fitted where there are no others.
    mode = _MISSING if (table["mode"] == _MISSING).any() else table["mode"].iloc[0]
    reasons = {
        f"not a collective of this version ({', '.join(sorted(set(map(str, table['named'][unknown]))))})": unknown,
        f"measured in another way ({', '.join(sorted(set(table['mode']) - {mode, _MISSING}))})": table["mode"] != mode,
        "wrong data": table["wrong"] > 0,
        "timing is neither isolated nor pipelined": ~table["timing"].isin(["isolated", "pipelined"]),
        "in_place or concurrent is neither true nor false": table["in_place"].isna() | table["concurrent"].isna(),
        "no rank count": table["nranks"].isna(),
        "one rank only": table["nranks"] == 1,
        "ranks or nodes are no whole number above zero": ~_whole(table["nranks"], MOST_RANKS)
        | ~(_whole(table["nnodes"], MOST_RANKS) | table["nnodes"].isna()),
        "size 0": table["size_bytes"] == 0,
        "size is no whole number of bytes": ~_whole(table["size_bytes"], MOST_BYTES),
        "no time above zero": ~((table["time_us"] > 0) & np.isfinite(table["time_us"])),
        "no possible time": ~table["time_us"].between(LEAST_US, MOST_US),
        "more nodes than ranks": table["nnodes"] > table["nranks"],
        "time and algbw contradict each other (another unit?)": _in_other_units(table),
    }
    usable = pandas.Series(True, index=table.index)
    notes = []
    for reason, bad in reasons.items():
        count = int((bad & usable).sum())
        usable &= ~bad
        if count and not (reason == "size 0" and usable.any()):  # a message too small for its ranks is no news
            notes.append(f"{count} of {len(table)} measurements not used: {reason}")
    if not usable.any():
        advice = "measure at least 3 sizes on at least 2 ranks, such as 'collbench run -b 8 -e 64M -f 2'"
        if bool((table["wrong"] > 0).all()):
            advice = (
                "find out why the backend's data are wrong ('collbench show', 'collbench env'); no time of it counts"
            )
        raise InputError(f"{where}nothing to fit ({'; '.join(notes)}): {advice}")
    table = table[usable].copy()
    if table["nnodes"].isna().any():
        notes.append(f"{int(table['nnodes'].isna().sum())} measurements do not say their nodes: taken as one node")
    if contradictory := int(_contradictory(table).sum()):
        notes.append(
            f"{contradictory} measurements contradict themselves: intra is one node, inter one rank a node, "
            "group_ranks are nranks ranks; taken at their nranks and nnodes"
        )
    table["nnodes"] = table["nnodes"].fillna(1).astype(int)
    table["nranks"] = table["nranks"].astype(int)
    table["size_bytes"] = table["size_bytes"].astype(int)
    return table, notes


def _contradictory(table: pandas.DataFrame) -> pandas.Series:
    """An intra group on several nodes, an inter group with two ranks on one, a list of other ranks than there are."""
    inside = (table["group"] == "intra") & (table["nnodes"] > 1)
    across = (table["group"] == "inter") & table["nnodes"].notna() & (table["nnodes"] != table["nranks"])
    listed = table["group_ranks"].map(len)
    return inside | across | ((listed > 0) & (listed != table["nranks"]))


def _whole(values: pandas.Series, most: float) -> pandas.Series:
    """Where there is a whole number from 1 to `most`."""
    return values.between(1, most) & (values == np.floor(values))


def _in_other_units(table: pandas.DataFrame) -> pandas.Series:
    """Where a bandwidth that is not lost in rounding is more than a factor of OTHER_UNIT from size / time; all of a
    curve where most of those of it are, for its small sizes are in that unit too."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = table["algbw_GBps"] * 1e3 * table["time_us"] / table["size_bytes"]
    told = table["algbw_GBps"] >= LEAST_ALGBW_GBPS
    other = told & ((ratio > OTHER_UNIT) | (ratio < 1 / OTHER_UNIT))
    if not other.any():
        return other
    share = other.astype(float).where(told).groupby([table[name] for name in KEY], dropna=False).transform("mean")
    return other | (share > 0.5)


def _by_key(table: pandas.DataFrame) -> Iterator[tuple[dict[str, object], pandas.DataFrame]]:
    """(key, its rows), in the order of the collectives' names, groups and counts."""
    groups = sorted(table.groupby(list(KEY), sort=False), key=lambda item: tuple(map(_sortable, item[0])))
    for values, rows in groups:
        yield (
            {
                name: None if isinstance(value, str) and value == _MISSING else value
                for name, value in zip(KEY, values, strict=True)
            },
            rows,
        )


def _sortable(value: object) -> tuple[bool, object]:
    """Numbers in their order, all else by its text."""
    number = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return (not number, value if number else str(value))


def _pooled(key: dict[str, object], rows: pandas.DataFrame) -> Pooled:
    rows, notes = _one_redop(rows)
    rows, unstable = _stable(rows)
    notes += unstable
    medians = rows.groupby(["size_bytes", "group_ranks"], sort=True)["time_us"].median()
    curve = medians.groupby(level="size_bytes").max()
    own_median = rows.groupby(["size_bytes", "group_ranks"], sort=False)["time_us"].transform("median")
    ratios = np.log(rows["time_us"] / own_median)
    logs = ratios.groupby(rows["size_bytes"])
    notes += _jumps(curve, rows["size_bytes"][ratios.abs() > math.log(JUMP)])
    return Pooled(
        key={name: value.item() if isinstance(value, np.generic) else value for name, value in key.items()},
        sizes_bytes=curve.index.to_numpy(dtype=float),
        times_us=curve.to_numpy(dtype=float),
        repeats_log=tuple(values.to_numpy(dtype=float) for _, values in logs),
        points=len(rows),
        groups={} if str(key["group"]).startswith("pairs") else _groups(medians),  # `show --matrix` compares pairs
        notes=tuple(notes),
    )


def _jumps(curve: pandas.Series, torn: pandas.Series) -> list[str]:
    """Times that no one unit explains: more than JUMP from the size before, or (`torn`: their sizes) from repeats."""
    sizes, times = curve.index.to_numpy(dtype=float), curve.to_numpy(dtype=float)
    rises = times[1:] * sizes[:-1] > JUMP * times[:-1] * sizes[1:]
    falls = JUMP * times[1:] < times[:-1]
    places = sorted({*torn.astype(float), *sizes[1:][rises | falls]})
    if not places:
        return []
    listed = ", ".join(map(format_size, places[:4])) + " …" * (len(places) > 4)
    return [f"times at {listed} are more than {JUMP:g}× from their repeats or the size before: are all in us?"]


def _groups(medians: pandas.Series) -> dict[tuple[int, ...], dict[float, float]]:
    """The medians by group of ranks and size; empty for one group."""
    found: dict[tuple[int, ...], dict[float, float]] = {}
    for (size, ranks), time_us in medians.items():
        found.setdefault(ranks, {})[float(size)] = float(time_us)
    return found if len(found) > 1 else {}


def _one_redop(rows: pandas.DataFrame) -> tuple[pandas.DataFrame, list[str]]:
    """Operators take different times and a model does not ask for one: where there are several, sum, else the first."""
    present = sorted(map(str, rows["redop"].unique()))
    if len(present) == 1:
        return rows, []
    kept = "sum" if "sum" in present else present[0]
    others = ", ".join(name for name in present if name != kept)
    return rows[rows["redop"] == kept], [f"redop {kept} alone; left out: {others}"]


def _stable(rows: pandas.DataFrame) -> tuple[pandas.DataFrame, list[str]]:
    """Without the measurements that went over to another level half-way, where the same ranks have others of the size:
    with few samples that finding is a false alarm now and then, and no size is lost to it."""
    unstable = rows["unstable"].to_numpy(dtype=object) == True  # noqa: E712  null and "?" are not
    if not unstable.any():
        return rows, []
    calm = pandas.Series(~unstable, index=rows.index).groupby([rows["size_bytes"], rows["group_ranks"]])
    left_out = unstable & calm.transform("any").to_numpy(dtype=bool)
    sizes = ", ".join(map(format_size, sorted(rows["size_bytes"][unstable & ~left_out].unique())))
    count = int(left_out.sum())
    notes = [f"{count} unstable measurement{'s' * (count > 1)} left out"] if count else []
    if sizes:
        notes.append(f"measured unstable only: {sizes}")
    return rows[~left_out], notes


def _too_few(table: pandas.DataFrame, small: list[str]) -> str:
    advice = "measure more sizes, such as 'collbench run -b 8 -e 64M -f 2'"
    sizes = table["size_bytes"].unique()
    if len(sizes) == 1:
        return f"all {len(table)} usable measurements are of one size, {format_size(sizes[0])}: {advice}"
    more = f" (and {len(small) - 1} like it)" if len(small) > 1 else ""
    return f"too few sizes to fit: {small[0]}{more}: {advice}"


def _describe(key: dict[str, object]) -> str:
    words = [f"{key['collective']} {key['group']}, {key['nranks']} ranks", key["backend"], key["dtype"], key["timing"]]
    return " ".join(str(word) for word in words if word is not None)
