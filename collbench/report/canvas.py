"""What all figures share: colours, axes in bytes and in time, and how a figure becomes a file."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from collbench.units import format_size, format_time_us

# Okabe & Ito's palette: told apart by colour-blind readers, and in grey by lightness.
BLUE, VERMILLION, SKY, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#56B4E9", "#E69F00", "#009E73", "#8A8A8A"
INK, SOFT, GRID = "#1B1F24", "#57606A", "#E4E7EB"

_DPI = 150  # of a PNG
_MOST_SIZE_TICKS = 8
_LEGEND_BELOW_IN = 0.55  # tick labels and the axis' own label come first


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty white figure that makes room for what stands outside its axes."""
    return Figure(figsize=(width_in, height_in), layout="constrained", facecolor="white")


def dress(axes: Axes, title: str, details: str = "") -> None:
    """A light grid beneath the data, two open sides, a title with its details in a line of their own."""
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK, pad=19 if details else 7)
    if details:
        axes.text(0, 1.025, details, transform=axes.transAxes, fontsize=8, color=SOFT, va="bottom")
    axes.set_axisbelow(True)
    axes.grid(True, color=GRID, linewidth=0.8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GREY)
    axes.tick_params(labelsize=8, colors=SOFT)
    axes.xaxis.label.set(fontsize=8.5, color=INK)
    axes.yaxis.label.set(fontsize=8.5, color=INK)


def size_axis(axes: Axes, smallest: float, largest: float) -> None:
    """Logarithmic in bytes, with ticks at powers of two that are written 1 KiB, 32 KiB, 1 MiB."""
    axes.set_xscale("log", base=2)
    low, high = math.log2(smallest), math.log2(largest)
    margin = max(0.04 * (high - low), 0.5)
    axes.set_xlim(2 ** (low - margin), 2 ** (high + margin))
    for step in (1, 2, 5, 10):
        exponents = [n for n in range(math.floor(low - margin) + 1, math.ceil(high + margin)) if n % step == 0]
        if len(exponents) <= _MOST_SIZE_TICKS:
            break
    axes.xaxis.set_major_locator(FixedLocator([2.0**n for n in exponents]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: format_size(size)))
    axes.set_xlabel("message size (the larger buffer of one rank)")


def time_axis(axes: Axes) -> None:
    """Logarithmic in us, with ticks that are written 20 us, 1 ms; finer ones where the data span little."""
    axes.set_yscale("log")
    bottom, top = axes.get_ylim()
    decades = math.log10(top / bottom)
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if decades < 2.5 else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda time_us, _: format_time_us(time_us)))
    axes.set_ylabel("time of one operation")


def legend_below(axes: Axes, handles: Sequence[Line2D | Patch], columns: int = 1) -> None:
    """The legend beneath the axes and their label, where it covers no data."""
    beneath = axes.transAxes + ScaledTranslation(0, -_LEGEND_BELOW_IN, axes.figure.dpi_scale_trans)
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=beneath, ncols=columns, fontsize=8,
        frameon=False, borderaxespad=0, labelcolor=INK, handlelength=2.2,
    )  # fmt: skip


def svg_of(figure: Figure) -> bytes:
    """The figure as SVG; equal figures give equal bytes.

    Text stays text, a quarter of the size of outlines: matplotlib's own font is wider than what stands in for it.
    """
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "collbench", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def png_of(figure: Figure) -> bytes:
    """The figure as PNG; equal figures give equal bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
    return buffer.getvalue()


PICTURES = {".png": png_of, ".svg": svg_of}  # by the suffix of a file
