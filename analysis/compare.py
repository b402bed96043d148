"""Compares runs: their losses, and the settings in which they differ, as a table, a picture, or a page."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from contexture.data.storage import atomic_file
from contexture.train.config import Run, fields
from contexture.train.errors import ConfigError
from contexture.train.run.plots import (
    COLOURS,
    PICTURES,
    Curves,
    Theme,
    add_legend,
    add_lines_below,
    add_title,
    new_figure,
    read_curves,
    save_figure,
    svg_text,
)
from contexture.train.run.report import read_metrics
from contexture.train.run_file import read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".html", *PICTURES)
_LINES = ("-", "--", ":")
"""Runs that have to share a colour have lines of other kinds."""
_MEANS = 100
"""Points of a training curve, each the mean of its part of the run: single steps of several runs hide each other."""
_WIDEST = 40
"""Letters of a setting that a table shows."""


class ComparedRun(TypedDict):
    """A run's figures: steps done, the newest training loss (mean of a hundredth of the run), the newest and the best
    held-out loss, the middle speed. Losses in nats; None where there is none."""

    run: str
    steps: int
    loss: float | None
    held_out_loss: float | None
    best_held_out_loss: float | None
    best_step: int | None
    tokens_per_second: float | None


class Comparison(TypedDict):
    """What `compare` returns. differences: {"setting": name, run: value, …}, a row for each setting that differs."""

    runs: list[ComparedRun]
    differences: list[dict[str, str]]


@dataclass(frozen=True)
class _Drawn:
    """What is drawn of one run: [points, 2] of step and loss in nats."""

    name: str
    unit: str
    train: np.ndarray
    held_out: np.ndarray


def check_target(to: Path) -> None:
    """Raises: ConfigError for a path where no comparison can be written."""
    if to.suffix not in SUFFIXES:
        raise ConfigError(f"--to {to}: not one of *{', *'.join(SUFFIXES)}; give such a name")
    if not to.parent.is_dir():
        raise ConfigError(f"--to {to}: its folder is not there; make it, or give another name")


def compare(folders: Sequence[Path], to: Path | None = None, theme: Theme = "light") -> Comparison:
    """Returns figures and differing settings of runs; writes their curves too where `to` is given.

    to: *.html, a page of its own with curves and tables, in its reader's theme; *.png, *.svg or *.pdf, a picture.
    theme: of a *.png or a *.pdf.

    Raises: ConfigError for a folder that is no run, the same folder twice, and a name that is none of these.
    """
    if len(set(map(Path.resolve, folders))) < len(folders):
        raise ConfigError("a run is given twice; give each once")
    if to is not None:
        check_target(to)
    runs = [read(folder).run for folder in folders]
    curves = [read_curves(read_metrics(folder / "metrics.jsonl")) for folder in folders]
    names = _short_names(folders)
    differences = _differences(names, runs)
    result: Comparison = {
        "runs": [_figures(str(folder), each) for folder, each in zip(folders, curves, strict=True)],
        "differences": differences,
    }
    if to is not None:
        drawn = [_drawn(name, run, each) for name, run, each in zip(names, runs, curves, strict=True)]
        if to.suffix == ".html":
            with atomic_file(to) as part:
                part.write_text(_page(names, drawn, result), "utf-8")
        else:
            save_figure(_draw(drawn, theme, _table(differences)), to)
    return result


def _differences(names: Sequence[str], runs: Sequence[Run]) -> list[dict[str, str]]:
    flat = [{"model.family": run.family, **fields(run)} for run in runs]
    rows = []
    for setting in dict.fromkeys(name for each in flat for name in each if name != "dir"):
        values = [_shown(each.get(setting, "–")) for each in flat]
        if len(set(values)) > 1:
            rows.append({"setting": setting.replace("_", "-"), **dict(zip(names, values, strict=True))})
    return rows


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _short_names(folders: Sequence[Path]) -> list[str]:
    """Returns the runs' names without the folders that all of them share: runs/a, runs/b → a, b."""
    parts = [folder.resolve().parts for folder in folders]
    shared = 0
    while all(len(each) > shared + 1 for each in parts) and len({each[shared] for each in parts}) == 1:
        shared += 1
    return ["/".join(each[shared:]) for each in parts]


def _figures(run: str, curves: Curves) -> ComparedRun:
    train, held = curves.of("train", "loss"), curves.of("dev", "loss")
    best = held[held[:, 1].argmin()] if len(held) else None
    return {
        "run": run,
        "steps": int(train[-1, 0]) if len(train) else 0,
        "loss": float(train[-max(len(train) // _MEANS, 1) :, 1].mean()) if len(train) else None,
        "held_out_loss": float(held[-1, 1]) if len(held) else None,
        "best_held_out_loss": float(best[1]) if best is not None else None,
        "best_step": int(best[0]) if best is not None else None,
        "tokens_per_second": float(np.median(curves.speeds)) if len(curves.speeds) else None,
    }


def _drawn(name: str, run: Run, curves: Curves) -> _Drawn:
    of = {"mlm_nsp": "loss of masked tokens", "lm": "loss of next tokens", "bilm": "loss of both directions"}
    train, held = curves.of("train", curves.name), curves.of("dev", curves.name)
    # A sampled loss is far below that of the whole vocabulary, and no figure to compare with it.
    parts = [] if curves.sampled and len(held) else np.array_split(train, max(min(_MEANS, len(train)), 1))
    means = np.array([(part[-1, 0], part[:, 1].mean()) for part in parts if len(part)]).reshape(-1, 2)
    return _Drawn(name, f"{of.get(run.objective, 'loss')} (nats)", means, held)


def _draw(curves: Sequence[_Drawn], theme: Theme, lines: Sequence[str] = ()) -> "Figure":
    """Returns a figure: losses of one kind on axes of their own, and lines of text below them."""
    units = list(dict.fromkeys(each.unit for each in curves))
    figure, axes = new_figure(9, 4.2 * len(units) + 0.19 * len(lines), len(units), theme)
    for unit, each_axes in zip(units, axes, strict=True):
        for number, each in enumerate(curves):
            if each.unit != unit:
                continue
            colour, line = COLOURS[number % len(COLOURS)], _LINES[number // len(COLOURS) % len(_LINES)]
            held, name = len(each.held_out) > 0, each.name
            if len(each.train):
                label = "" if held else f"{name}, training"
                each_axes.plot(*each.train.T, line, color=colour, linewidth=0.9, alpha=0.6, label=label or None)
            if held:
                mark = "o" if len(each.held_out) < 50 else ""
                each_axes.plot(*each.held_out.T, line, color=colour, marker=mark, markersize=4, label=name)
        each_axes.set(xlabel="step", ylabel=unit)
        add_legend(each_axes, theme)
    add_title(axes[0], "held-out loss, and training loss (thin)", theme)
    if lines:
        add_lines_below(figure, lines, theme)
    return figure


def _table(rows: Sequence[dict[str, str]]) -> list[str]:
    """Returns rows as lines of equal letters, with their names above."""
    lines = [list(rows[0]), *(list(row.values()) for row in rows)] if rows else []
    cells = [[cell if len(cell) <= _WIDEST else cell[: _WIDEST - 1] + "…" for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


_STYLE = """
:root{color-scheme:light dark;--ink:#1f1f1f;--paper:#fdfdfd;--rule:#d9d9d9}
@media(prefers-color-scheme:dark){:root{--ink:#e6e6e6;--paper:#181a1b;--rule:#3c3f41}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:62rem;
margin:auto;padding:1rem}
svg{width:100%;height:auto}
div{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem}
th,td{text-align:left;padding:.25rem .8rem .25rem 0;border-bottom:1px solid var(--rule);vertical-align:top}
td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}
"""


def _page(names: Sequence[str], curves: Sequence[_Drawn], result: Comparison) -> str:
    heads = ("run", "steps", "training loss", "held-out loss", "best", "at step", "tokens/s")
    forms = ("{}", "{:,}", "{:.4f}", "{:.4f}", "{:.4f}", "{:,}", "{:,.0f}")
    rows = []
    for name, each in zip(names, result["runs"], strict=True):
        values = [name, *list(each.values())[1:]]
        rows.append(["–" if value is None else form.format(value) for form, value in zip(forms, values, strict=True)])
    title = "Comparison of " + ", ".join(names)
    settings = [list(row.values()) for row in result["differences"]]
    drawing = svg_text(_draw(curves, "light"))
    drawing = drawing[drawing.index("<svg") :]
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{html.escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n<h1>{html.escape(title)}</h1>\n{drawing}\n"
        f"<p>Losses are in nats. The training loss is the mean of the last hundredth of the steps.</p>\n"
        f"{_html_table(heads, rows, numbers=True)}\n<h2>Settings that differ</h2>\n"
        + (_html_table(("setting", *names), settings) if settings else "<p>None.</p>\n")
        + "</html>\n"
    )


def _html_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = False) -> str:
    kind = ' class="number"' if numbers else ""
    top = f"<th>{html.escape(heads[0])}" + "".join(f"<th{kind}>{html.escape(head)}" for head in heads[1:])
    body = "".join(
        "<tr><td>" + html.escape(row[0]) + "".join(f"<td{kind}>{html.escape(cell)}" for cell in row[1:]) for row in rows
    )
    return f"<div><table><tr>{top}{body}</table></div>\n"
