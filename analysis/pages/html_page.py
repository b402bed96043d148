"""Pages of figures and tables: one HTML file without scripts, light or dark as its reader prefers."""

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from contexture.train.run.plots import svg_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root{color-scheme:light dark;--ink:#1f1f1f;--paper:#fdfdfd;--rule:#d9d9d9}
@media(prefers-color-scheme:dark){:root{--ink:#e6e6e6;--paper:#181a1b;--rule:#3c3f41}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:62rem;
margin:auto;padding:1rem}
svg{width:100%;height:auto}
div{overflow-x:auto}
pre{white-space:pre-wrap;overflow-wrap:anywhere}
table{border-collapse:collapse;font-size:.9rem}
th,td{text-align:left;padding:.25rem .8rem .25rem 0;border-bottom:1px solid var(--rule);vertical-align:top}
td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}
"""


def html_page(title: str, body: str) -> str:
    """Returns a page. title: text; body: HTML."""
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{html.escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n<h1>{html.escape(title)}</h1>\n{body}</html>\n"
    )


def html_figure(figure: "Figure") -> str:
    """Returns a figure within a page."""
    drawing = svg_text(figure)
    # Without the XML declaration, which has no place within HTML.
    return drawing[drawing.index("<svg") :]


def html_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = False) -> str:
    """Returns a table. numbers: whether all columns but the first hold numbers."""
    kind = ' class="number"' if numbers else ""
    top = f"<th>{html.escape(heads[0])}" + "".join(f"<th{kind}>{html.escape(head)}" for head in heads[1:])
    body = "".join(
        "<tr><td>" + html.escape(row[0]) + "".join(f"<td{kind}>{html.escape(cell)}" for cell in row[1:]) for row in rows
    )
    return f"<div><table><tr>{top}{body}</table></div>\n"
