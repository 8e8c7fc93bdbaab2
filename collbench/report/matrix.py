"""What every pair gave: as tables of text and as a heat map, with the links that are slower than the others."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import Normal, Stroke
from matplotlib.ticker import FuncFormatter, LogLocator

from collbench.columns import aligned
from collbench.errors import InputError
from collbench.links import BANDWIDTH, Link, Matrix, PairTable, pair_tables
from collbench.numbers import digits
from collbench.report.canvas import GREY, GRID, INK, SOFT, VERMILLION, new_figure, png_of
from collbench.report.files import write_file
from collbench.results import ResultsFile
from collbench.slow_links import Comparison, Slow, compare_links
from collbench.units import format_size

_MOST_PLACES = 16  # of which every value is written out
_WORST = 8  # lines of a table that leaves some out
_MOST_TABLES = 12  # on one picture
_WIDEST_LABEL = 8  # above a column of text

_CELL_IN = 0.52
_SMALLEST_IN, _LARGEST_IN = 3.4, 7.0  # sides of one heat map
_LETTER_IN = 0.07
_LETTERS_PER_IN = 16  # of a caption
_FEWEST_COLOURS = 1.15  # the scale spans at least this on both sides of the median: noise stays pale
_LOG_FROM, _DECADE = 4, 10  # largest over smallest value: above, colours are logarithmic; below, ticks are close
_MOST_LABELS = 64
_MOST_FINDINGS = 3  # beneath one heat map

_MISSING, _SELF, _MARK = "?", "-", "*"


def show_matrix(results: ResultsFile, png: Path, write: Callable[[str], object]) -> None:
    """Draw what the pairs of a results file gave into `png`, and write tables and slow links as text, line by line.

    `write` takes text with its line ends, as `sys.stdout.write` does. Raises InputError, before anything is written,
    where the file holds no pairs or the picture cannot be written.
    """
    if png.suffix.lower() != ".png":
        raise InputError(f"{png}: a picture of the pairs is a PNG: name a file that ends in .png")
    tables = pair_tables(results)
    write_file(png, png_of(matrix_figure(tables[:_MOST_TABLES])), "--matrix")
    for table in tables:
        for line in matrix_lines(table):
            write(f"{line}\n")
        write("\n")
    left_out = f" (the first {_MOST_TABLES} of {len(tables)} tables)" if len(tables) > _MOST_TABLES else ""
    write(f"heat map: {png}{left_out}\n")


def matrix_lines(table: PairTable) -> Iterator[str]:
    """One table as text: both matrices, each with its slow links; of many places only those with the worst links."""
    details = f", {table.details}" if table.details else ""
    yield f"{table.collective}, {table.group}{details}: {len(table.places)} {_places_word(table)}"
    yield from table.notes
    for matrix in table.matrices:
        yield ""
        compared = compare_links(table, matrix)
        measured = len(matrix.values)
        missing = f"; {measured} of {table.links} links measured" if measured < table.links else ""
        yield f"{_what(matrix)}{missing}"
        slow = {link for comparison in compared for each in comparison.slow for link in each.links}
        yield from _full(table, matrix, slow) if len(table.places) <= _MOST_PLACES else _worst(table, matrix)
        for comparison in compared:
            yield from _findings(table, matrix, comparison)


def _places_word(table: PairTable) -> str:
    return "nodes" if table.group == "pairs" else "ranks"


def _what(matrix: Matrix) -> str:
    figure = "busbw in GB/s" if matrix.quantity == BANDWIDTH else "time in us"
    other = "isolated" if matrix.timing == "pipelined" else "pipelined"
    fell_back = f" ({other} was not measured)" if matrix.fell_back else ""
    return f"{matrix.quantity}: {figure} at {format_size(matrix.size_bytes)}, {matrix.timing}{fell_back}"


def _full(table: PairTable, matrix: Matrix, slow: Collection[Link]) -> list[str]:
    places = range(len(table.places))
    numbered = max(map(len, table.places)) > _WIDEST_LABEL
    names = [f"{place} {name}" if numbered else name for place, name in enumerate(table.places)]
    heads = [str(place) for place in places] if numbered else names
    text = _formatter(matrix)

    def cell(row: int, column: int) -> str:
        link = min(row, column), max(row, column)
        if row == column or link not in matrix.values:
            return f"{_SELF if row == column else _MISSING} "
        return text(matrix.values[link]) + (_MARK if link in slow else " ")

    rows = [["", *(f"{head} " for head in heads)]]
    rows += [[names[row], *(cell(row, column) for column in places)] for row in places]
    legend = {_MARK: "slower than the others by more than the noise", _MISSING: "not measured"}
    drawn = "".join(text for row in rows[1:] for text in row[1:])
    said = [f"{sign} {meaning}" for sign, meaning in legend.items() if sign in drawn]
    return [*aligned(rows, left=[0]), *([f"({'; '.join(said)})"] if said else [])]


def _worst(table: PairTable, matrix: Matrix) -> list[str]:
    """The places whose links are worst by their median, with the worst link of each."""
    text = _formatter(matrix)
    links_of: dict[int, list[Link]] = {}
    for link in matrix.values:
        for place in link:
            links_of.setdefault(place, []).append(link)
    badness = -1 if matrix.quantity == BANDWIDTH else 1
    rows = []
    for place, links in links_of.items():
        median = statistics.median(matrix.values[link] for link in links)
        worst = max(links, key=lambda link: badness * matrix.values[link])
        to = table.places[worst[1] if worst[0] == place else worst[0]]
        cells = [table.places[place], text(median), text(matrix.values[worst]), f"to {to}"]
        rows.append((badness * median, cells))
    rows.sort(key=lambda row: -row[0])
    head = [f"the worst {_WORST} of {len(table.places)} (the PNG has all)", "median", "worst", "link"]
    return aligned([head, *(cells for _, cells in rows[:_WORST])], left=[0, 3])


def _formatter(matrix: Matrix) -> Callable[[float], str]:
    """Three digits of the median, as many places for all: columns are read from top to bottom."""
    median = statistics.median(matrix.values.values())
    decimals = max(0, 2 - math.floor(math.log10(median)))
    return lambda value: f"{value:.{decimals}f}"


def _findings(table: PairTable, matrix: Matrix, comparison: Comparison) -> Iterator[str]:
    """What is slow among these links, or from what on it would have been seen."""
    among = f" {comparison.among}" if comparison.among else ""
    links = f"{comparison.links} links{among}"
    usual = _with_unit(matrix, comparison.usual)
    noise = f"noise {_percent(comparison.noise)}" if comparison.noise is not None else "noise not known"
    if comparison.links == 1:
        yield f"slow links: one link{among}, nothing to compare it with"
    elif comparison.slow:
        yield f"slow among {links} (the others' median is {usual}, {noise}):"
        yield from (f"  {_describe(matrix, each, among)}" for each in comparison.slow)
    elif comparison.visible is None:
        yield f"slow links: not known among so few ({links}) that were not repeated: measure with --passes 3"
    else:
        visible = _off(matrix, comparison.visible)
        yield f"slow links: none of {links} (their median is {usual}, {noise}: {visible} would be listed)"


def _describe(matrix: Matrix, slow: Slow, among: str) -> str:
    figure = f"{_with_unit(matrix, slow.value)}, {_off(matrix, slow.slowdown)}"
    if slow.kind == "link":
        return f"{slow.name}: {figure}"
    every = "all" if slow.slow_links == len(slow.links) else "nearly all"
    cause = "the node" if slow.kind == "node" else "the rank, its device or its interface"
    return (
        f"{every} links{among} of {slow.kind} {slow.name} are slow ({slow.slow_links} of {len(slow.links)}): "
        f"{figure}: {cause}, not a link"
    )


def _with_unit(matrix: Matrix, value: float) -> str:
    return f"{digits(value)} {'GB/s' if matrix.quantity == BANDWIDTH else 'us'}"


def _off(matrix: Matrix, slowdown: float) -> str:
    if matrix.quantity == BANDWIDTH:
        return f"{_percent(1 - 1 / slowdown)} below"
    return f"{_percent(slowdown - 1)} above" if slowdown < 10 else f"{slowdown:.0f} times that"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %" if fraction >= 0.0995 else f"{100 * fraction:.1f} %"


def matrix_figure(tables: Sequence[PairTable]) -> Figure:
    """One row a table: bandwidth on the left, latency on the right, a colour bar to each."""
    places = max(len(table.places) for table in tables)
    side = min(max(_CELL_IN * places, _SMALLEST_IN), _LARGEST_IN)
    names = _LETTER_IN * max(len(place) for table in tables for place in table.places)
    figure = new_figure(2 * (side + names + 1.6), len(tables) * (side + names + 1.7))
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)  # type: ignore[union-attr, call-arg]
    for row, table in enumerate(tables):
        for column, matrix in enumerate(table.matrices, start=1):
            _draw(figure.add_subplot(len(tables), 2, 2 * row + column), table, matrix, int(_LETTERS_PER_IN * side))
    return figure


def _draw(axes: Axes, table: PairTable, matrix: Matrix, letters: int) -> None:
    count = len(table.places)
    grid = np.full((count, count), np.nan)
    for (low, high), value in matrix.values.items():
        grid[low, high] = grid[high, low] = value
    _missing(axes, count)
    # Dark is bad in both: little bandwidth, much time.
    colours = "viridis" if matrix.quantity == BANDWIDTH else "viridis_r"
    image = axes.imshow(np.ma.masked_invalid(grid), cmap=colours, norm=_scale(matrix), interpolation="nearest")
    unit = "bus bandwidth (GB/s)" if matrix.quantity == BANDWIDTH else "time (us)"
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03)
    if isinstance(image.norm, LogNorm):
        bar.locator = LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if _ratio(matrix) < _DECADE else (1, 2, 5))
        bar.formatter = FuncFormatter(lambda value, _: f"{value:g}")
        bar.minorticks_off()
    bar.set_label(unit, fontsize=8.5, color=INK)
    bar.ax.tick_params(labelsize=8, colors=SOFT)
    bar.outline.set_visible(False)
    if count <= _MOST_PLACES:
        _write_values(axes, matrix, image)
    compared = compare_links(table, matrix)
    for each in (each for comparison in compared for each in comparison.slow):
        _frame(axes, each, count)
    _label(axes, table, matrix)
    caption = [textwrap.fill(line, letters) for line in _caption(table, matrix, compared)]
    axes.set_xlabel("\n".join(caption), fontsize=8, color=INK, loc="left", labelpad=8)


def _missing(axes: Axes, count: int) -> None:
    """What shows through where there is no value: hatched for a pair not measured, plain for a place and itself."""
    axes.add_patch(
        Rectangle((-0.5, -0.5), count, count, facecolor=GRID, edgecolor=GREY, hatch="////", linewidth=0, zorder=-2)
    )
    for place in range(count):
        axes.add_patch(Rectangle((place - 0.5, place - 0.5), 1, 1, facecolor="white", linewidth=0, zorder=-1))


def _scale(matrix: Matrix) -> Normalize:
    values = list(matrix.values.values())
    median = statistics.median(values)
    low, high = min(*values, median / _FEWEST_COLOURS), max(*values, median * _FEWEST_COLOURS)
    return LogNorm(low, high) if _ratio(matrix) > _LOG_FROM else Normalize(low, high)


def _ratio(matrix: Matrix) -> float:
    return max(matrix.values.values()) / min(matrix.values.values())


def _write_values(axes: Axes, matrix: Matrix, image: ScalarMappable) -> None:
    text = _formatter(matrix)
    for (low, high), value in matrix.values.items():
        red, green, blue, _ = image.to_rgba(np.asarray(value))
        ink = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else INK
        for x, y in ((low, high), (high, low)):
            axes.text(x, y, text(value), ha="center", va="center", fontsize=7.5, color=ink)


def _frame(axes: Axes, slow: Slow, count: int) -> None:
    """An outline around the cells of what is slow: two cells of a link, a row and a column of a node."""
    inside: npt.NDArray[np.bool_] = np.zeros((count + 2, count + 2), dtype=bool)  # a margin ends every outline
    for low, high in slow.links:
        inside[low + 1, high + 1] = inside[high + 1, low + 1] = True
    if slow.kind != "link":
        for place in slow.places:
            inside[place + 1, place + 1] = True
    edges = []
    for row, column in np.argwhere(inside[:, 1:] != inside[:, :-1]):  # between a column and the next
        edges.append([(column - 0.5, row - 1.5), (column - 0.5, row - 0.5)])
    for row, column in np.argwhere(inside[1:] != inside[:-1]):
        edges.append([(column - 1.5, row - 0.5), (column - 0.5, row - 0.5)])
    width = min(2.0, _LARGEST_IN * 72 / count / 8)  # an eighth of a cell, in points: a frame hides nothing
    frame = LineCollection(edges, colors=VERMILLION, linewidths=width, capstyle="projecting", gid=slow.name)
    frame.set_path_effects([Stroke(linewidth=2 * width, foreground="white"), Normal()])
    frame.set_clip_on(False)
    axes.add_collection(frame, autolim=False)


def _label(axes: Axes, table: PairTable, matrix: Matrix) -> None:
    count = len(table.places)
    step = -(-count // _MOST_LABELS)
    shown = range(0, count, step)
    names = [table.places[place] for place in shown]
    size = 8 if count <= _MOST_PLACES else 6.5
    long = max(map(len, names)) > 3 or count > _MOST_PLACES
    axes.set_xticks(shown, names, rotation=90 if long else 0, fontsize=size)
    axes.set_yticks(shown, names, fontsize=size)
    axes.tick_params(length=0, colors=SOFT)
    for spine in axes.spines.values():
        spine.set_visible(False)
    title = f"{table.collective}: {matrix.quantity} of every pair of {_places_word(table)}"
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK, pad=19)
    details = _what(matrix).partition(": ")[2]
    details = f"{details}; {table.details}" if table.details else details
    axes.text(0, 1.012, details, transform=axes.transAxes, fontsize=8, color=SOFT, va="bottom")


def _caption(table: PairTable, matrix: Matrix, compared: Sequence[Comparison]) -> Iterator[str]:
    """What the signs of the picture mean, and the worst findings in words."""
    if len(matrix.values) < table.links:
        yield "hatched: not measured"
    slow = [(each, f" {each_of.among}" if each_of.among else "") for each_of in compared for each in each_of.slow]
    if not slow:
        yield "no link is known to be slower than the others by more than the noise"
        return
    yield "framed: slower than the others by more than the noise"
    yield from (_describe(matrix, each, among) for each, among in slow[:_MOST_FINDINGS])
    if len(slow) > _MOST_FINDINGS:
        yield f"and {len(slow) - _MOST_FINDINGS} more"
