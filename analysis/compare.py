"""Compares runs: their losses and metrics, and the settings in which they differ, as a table, a picture, or a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from contexture.analysis.pages.html_page import html_figure, html_page, html_table
from contexture.data.storage import atomic_file
from contexture.train.errors import ConfigError
from contexture.train.metric_directions import BETTER, rank
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
)
from contexture.train.run.report import read_metrics
from contexture.train.settings.run import Run, fields
from contexture.train.settings.run_file import read

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".html", *PICTURES)
METRICS = ("accuracy", "f1", "f1_macro", "matthews", "entity_f1", "exact_match", "pearson", "spearman")
"""The metrics of tasks that are compared, in this order. `f1_macro` is left out where there is the F1 of one label."""
_LINES = ("-", "--", ":")
"""Runs that have to share a colour have lines of other kinds."""
_MEANS = 100
"""Points of a training curve, each the mean of its part of the run: single steps of several runs hide each other."""
_WIDEST = 40
"""Letters of a setting that a table shows."""


class ComparedRun(TypedDict):
    """A run's figures; None where there is none.

    Attributes:
        run: the run's folder.
        steps: steps done.
        loss: the newest training loss in nats, the mean of the last hundredth of the run.
        held_out_loss: the newest one, in nats.
        best_held_out_loss: the lowest one, in nats.
        best_step: the step of the lowest one.
        tokens_per_second: the median.
    """

    run: str
    steps: int
    loss: float | None
    held_out_loss: float | None
    best_held_out_loss: float | None
    best_step: int | None
    tokens_per_second: float | None


class ComparedMetric(TypedDict):
    """A metric of a run's held-out examples: the newest and the best value, and the step of the best one."""

    run: str
    metric: str
    newest: float
    best: float
    best_step: int


class Comparison(TypedDict):
    """What `compare` returns.

    Attributes:
        runs: a row for each run.
        metrics: a row for each metric and run of a task.
        differences: {"setting": name, run: value, …}, a row for each setting that differs.
    """

    runs: list[ComparedRun]
    metrics: list[ComparedMetric]
    differences: list[dict[str, str]]


@dataclass(frozen=True)
class _Drawn:
    """What is drawn of one run: [points, 2] of step and loss in nats, and of step and metric by its name."""

    name: str
    unit: str
    train: np.ndarray
    held_out: np.ndarray
    metrics: Mapping[str, np.ndarray]


def check_target(to: Path) -> None:
    """Raises: ConfigError for a path where no comparison can be written."""
    if to.suffix not in SUFFIXES:
        raise ConfigError(f"--to {to}: not one of *{', *'.join(SUFFIXES)}; give such a name")
    if not to.parent.is_dir():
        raise ConfigError(f"--to {to}: its folder is not there; make it, or give another name")


def compare(folders: Sequence[Path], to: Path | None = None, theme: Theme = "light") -> Comparison:
    """Returns figures and differing settings of runs, and draws their curves if `to` is given.

    Args:
        folders: the runs' folders.
        to: *.html, a page with curves and tables that follows its reader's theme; *.png, *.svg or *.pdf, a picture.
        theme: the colours of a *.png or a *.pdf.

    Raises:
        ConfigError: when a folder is no run or given twice, or `to` has another suffix.
    """
    if len(set(map(Path.resolve, folders))) < len(folders):
        raise ConfigError("a run is given twice; give each once")
    if to is not None:
        check_target(to)
    runs = [read(folder).run for folder in folders]
    curves = [
        read_curves(read_metrics(folder / "metrics.jsonl"), _metric_names(run))
        for folder, run in zip(folders, runs, strict=True)
    ]
    names = _short_names(folders)
    differences = _differences(names, runs)
    result: Comparison = {
        "runs": [_figures(str(folder), each) for folder, each in zip(folders, curves, strict=True)],
        "metrics": _metrics(list(map(str, folders)), curves),
        "differences": differences,
    }
    if to is not None:
        drawn = [_drawn(name, run, each) for name, run, each in zip(names, runs, curves, strict=True)]
        if to.suffix == ".html":
            with atomic_file(to) as part:
                part.write_text(_page(names, drawn, result), "utf-8")
        else:
            tables = [_table(_metric_cells(_metrics(names, curves))), _table(differences)]
            save_figure(_draw(drawn, theme, [line for table in tables for line in (*table, "")][:-1]), to)
    return result


def _metric_names(run: Run) -> list[str]:
    """Returns the metrics that a run may have to compare, and the one that its best checkpoint is chosen by."""
    names = dict.fromkeys((*METRICS, run.evaluate.metric))
    return [name for name in names if not name.endswith("loss")]


def _metrics(runs: Sequence[str], curves: Sequence[Curves]) -> list[ComparedMetric]:
    rows: list[ComparedMetric] = []
    for metric in dict.fromkeys(name for each in curves for name in _drawn_metrics(each)):
        for run, each in zip(runs, curves, strict=True):
            if metric in _drawn_metrics(each):
                values = each.metrics[metric]
                step, best = min(values.tolist(), key=lambda point: rank(metric, point[1]))
                newest = float(values[-1, 1])
                rows.append({"run": run, "metric": metric, "newest": newest, "best": best, "best_step": int(step)})
    return rows


def _drawn_metrics(curves: Curves) -> dict[str, np.ndarray]:
    return {name: x for name, x in curves.metrics.items() if name != "f1_macro" or "f1" not in curves.metrics}


def _metric_cells(rows: Sequence[ComparedMetric]) -> list[dict[str, str]]:
    """Returns rows as texts, by the heads of their columns."""
    return [
        {
            "metric": row["metric"],
            "run": row["run"],
            "newest": f"{row['newest']:.4f}",
            "best": f"{row['best']:.4f}",
            "at step": f"{row['best_step']:,}",
        }
        for row in rows
    ]


def _differences(names: Sequence[str], runs: Sequence[Run]) -> list[dict[str, str]]:
    flat = [{"model.family": run.family, **fields(run)} for run in runs]
    for each in flat:  # steps and epochs both set a run's length: the one without effect is no difference
        del each["epochs" if each["steps"] else "steps"]
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
    # At least the last part of each path stays.
    while all(len(each) > shared + 1 for each in parts) and len({each[shared] for each in parts}) == 1:
        shared += 1
    return ["/".join(each[shared:]) for each in parts]


def _figures(run: str, curves: Curves) -> ComparedRun:
    # The loss of a single step is noisy: the last hundredth of the steps is averaged below.
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
    # A sampled softmax's loss is far below the loss over the whole vocabulary, which held-out figures are: left out.
    parts = [] if curves.sampled and len(held) else np.array_split(train, max(min(_MEANS, len(train)), 1))
    means = np.array([(part[-1, 0], part[:, 1].mean()) for part in parts if len(part)]).reshape(-1, 2)
    return _Drawn(name, f"{of.get(run.objective, 'loss')} (nats)", means, held, _drawn_metrics(curves))


def _draw(curves: Sequence[_Drawn], theme: Theme, lines: Sequence[str] = ()) -> "Figure":
    """Returns a figure: losses of one kind and each metric on axes of their own, and lines of text below them."""
    units = list(dict.fromkeys(each.unit for each in curves))
    metrics = list(dict.fromkeys(name for each in curves for name in each.metrics))
    height = 4.2 * len(units) + 3.2 * len(metrics) + 0.19 * len(lines)
    figure, axes = new_figure(9, height, len(units) + len(metrics), theme)
    for unit, each_axes in zip(units, axes, strict=False):
        for number, each in enumerate(curves):
            if each.unit != unit:
                continue
            held, style = len(each.held_out) > 0, _style(number, theme)
            if len(each.train):
                label = "" if held else f"{each.name}, training"
                each_axes.plot(*each.train.T, **style, linewidth=0.7, label=label or None)
            if held:
                _plot_held_out(each_axes, each.held_out, style, each.name)
        each_axes.set_ylabel(unit)
    for metric, each_axes in zip(metrics, axes[len(units) :], strict=True):
        for number, each in enumerate(curves):
            if metric in each.metrics:
                _plot_held_out(each_axes, each.metrics[metric], _style(number, theme), each.name)
        each_axes.set_ylabel(metric)
        add_title(each_axes, f"{metric} of the held-out examples: {BETTER[metric]} is better", theme)
    # All axes get one range of steps, so that they can be compared by eye.
    limits = np.array([each_axes.get_xlim() for each_axes in axes])
    for each_axes in axes:
        each_axes.set(xlabel="step", xlim=(limits[:, 0].min(), limits[:, 1].max()))
        add_legend(each_axes, theme)
    add_title(axes[0], "held-out loss, and training loss (thin)", theme)
    if lines:
        add_lines_below(figure, lines, theme)
    return figure


def _style(number: int, theme: Theme) -> dict[str, Any]:
    """Returns colour and line of a run by its number."""
    colours = COLOURS[theme]
    return {"color": colours[number % len(colours)], "linestyle": _LINES[number // len(colours) % len(_LINES)]}


def _plot_held_out(axes: "Axes", points: np.ndarray, style: Mapping[str, Any], name: str) -> None:
    axes.plot(*points.T, **style, marker="o" if len(points) < 50 else "", markersize=4, label=name)


def _table(rows: Sequence[dict[str, str]]) -> list[str]:
    """Returns rows as lines of equal letters, with their names above."""
    lines = [list(rows[0]), *(list(row.values()) for row in rows)] if rows else []
    cells = [[cell if len(cell) <= _WIDEST else cell[: _WIDEST - 1] + "…" for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _page(names: Sequence[str], curves: Sequence[_Drawn], result: Comparison) -> str:
    heads = ("run", "steps", "training loss", "held-out loss", "best", "at step", "tokens/s")
    forms = ("{}", "{:,}", "{:.4f}", "{:.4f}", "{:.4f}", "{:,}", "{:,.0f}")
    rows = []
    for name, each in zip(names, result["runs"], strict=True):
        values = [name, *list(each.values())[1:]]
        rows.append(["–" if value is None else form.format(value) for form, value in zip(forms, values, strict=True)])
    title = "Comparison of " + ", ".join(names)
    settings = [list(row.values()) for row in result["differences"]]
    body = (
        f"{html_figure(_draw(curves, 'light'))}\n"
        f"<p>Losses are in nats. The training loss is the mean of the last hundredth of the steps.</p>\n"
        f"{html_table(heads, rows, numbers=True)}\n{_html_metrics(names, result)}<h2>Settings that differ</h2>\n"
        + (html_table(("setting", *names), settings) if settings else "<p>None.</p>\n")
    )
    return html_page(title, body)


def _html_metrics(names: Sequence[str], result: Comparison) -> str:
    short = {each["run"]: name for name, each in zip(names, result["runs"], strict=True)}
    rows = _metric_cells([{**row, "run": short[row["run"]]} for row in result["metrics"]])
    if not rows:
        return ""
    table = html_table(list(rows[0]), [list(row.values()) for row in rows], numbers=True)
    return f"<h2>Metrics of the held-out examples</h2>\n{table}\n"
