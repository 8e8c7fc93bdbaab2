"""The few HTML elements a page is made of. Text is escaped here and nowhere else: what goes in is text, not markup."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from collbench.report.canvas import svg_of


def element(tag: str, text: str, css: str = "") -> str:
    """<tag class=css>text</tag>"""
    attribute = f' class="{css}"' if css else ""
    return f"<{tag}{attribute}>{escape(text)}</{tag}>"


def section(title: str, *parts: str) -> str:
    """A heading and what belongs under it; parts are markup."""
    body = "\n".join(part for part in parts if part)
    return f"<section>\n{element('h2', title)}\n{body}\n</section>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """A table that scrolls by itself where the window is narrow; the first `text_columns` are set left."""

    def line(tag: str, cells: Sequence[str]) -> str:
        marked = [element(tag, cell, "text" if index < text_columns else "") for index, cell in enumerate(cells)]
        return f"<tr>{''.join(marked)}</tr>"

    body = "\n".join(line("td", row) for row in rows)
    return f'<div class="scroll"><table>\n<thead>{line("th", head)}</thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of names and values; a pair without a value is left out."""
    items = [element("dt", name) + element("dd", value) for name, value in pairs if value]
    return f"<dl>{''.join(items)}</dl>" if items else ""


def bullets(items: Iterable[str], css: str) -> str:
    lines = [element("li", item) for item in items]
    return f'<ul class="{css}">{"".join(lines)}</ul>' if lines else ""


def folded(summary: str, *parts: str) -> str:
    """Parts that open at a click."""
    return f"<details>\n{element('summary', summary)}\n{''.join(parts)}\n</details>"


def picture(figure: Figure, description: str, css: str = "") -> str:
    """The figure inline. As an image, not as elements: the ids inside one SVG must not meet those of another."""
    data = base64.b64encode(svg_of(figure)).decode()
    return (
        f'<div class="card {css}"><img alt="{escape(description, quote=True)}" '
        f'src="data:image/svg+xml;base64,{data}"></div>'
    )


def document(title: str, *parts: str) -> str:
    """A whole HTML5 page with its style sheet inside."""
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    body = "\n".join(part for part in parts if part)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{element("title", title)}
<style>
{style}</style>
</head>
<body>
<main>
{element("h1", title)}
{body}
</main>
</body>
</html>
"""
