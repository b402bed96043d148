"""Figures of probes: a row of bars for each task (Tenney et al. 2019b, figures 1 and 2), and layers over training."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contexture.analysis.probing.probe_rows import ProbeRow
from contexture.train.run.plots import COLOURS, Theme, add_legend_below, add_title, new_figure, save_pictures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEAST_GAIN = 0.01
"""The F1 that layers must add to the embeddings for shares of it to be drawn."""
_MOST_ROWS = 16
"""Tasks that a picture has room for, the last ones."""


def draw_probes(rows: Sequence[ProbeRow], folder: Path, theme: Theme = "light") -> list[Path]:
    """Draws probe.png, probe.svg and probe.pdf of the newest step of each run, and steps.png, … if a task has several
    runs or steps.

    Args:
        rows: the figures of probes.
        folder: where the files are written.
        theme: the colours of PNG and PDF; an SVG follows its reader's theme.

    Returns:
        The files.
    """
    newest: dict[tuple[str, str, str, str], ProbeRow] = {}
    for row in rows:
        # Of several checkpoints of a run the figure shows the newest.
        key = row["run"], row["task"], row["probes"], str(row["layers"])
        if key not in newest or row["step"] >= newest[key]["step"]:
            newest[key] = row
    drawn = sorted(newest.values(), key=lambda row: (row["run"], _depth(row)))[-_MOST_ROWS:]
    files = save_pictures(lambda theme: tasks_figure(drawn, theme), folder, "probe", theme)
    groups: dict[tuple[str, str], list[ProbeRow]] = {}
    for row in rows:
        groups.setdefault((row["task"], row["probes"]), []).append(row)
    several = {key: group for key, group in groups.items() if len({(row["run"], row["step"]) for row in group}) > 1}
    if several:
        files += save_pictures(lambda theme: steps_figure(several, theme), folder, "steps", theme)
    return files


def _depth(row: ProbeRow) -> float:
    return row["centre_of_gravity"] if "centre_of_gravity" in row else float(row.get("best_layer", 0))


def tasks_figure(rows: Sequence[ProbeRow], theme: Theme = "light") -> "Figure":
    """Returns a figure with a panel of bars for each task. All panels of F1 have one y scale, and all of shares."""
    figure, axes_of = new_figure(8.4, 0.6 + 1.9 * len(rows), len(rows), theme)
    top = max(layer for row in rows for layer in row["layers"])
    labelled: set[str] = set()

    # All panels share one legend: each label is given once.
    def once(label: str) -> str:
        new = label not in labelled
        labelled.add(label)
        return label if new else ""

    for axes, row in zip(axes_of, rows, strict=True):
        draw = _draw_f1 if row["probes"] == "each" else _draw_shares
        draw(axes, row, theme, once)
        axes.set_ylim(*_limits(rows, row["probes"] == "each"))
        axes.set_xlim(-0.6, top + 0.6)
        axes.set_xticks(range(top + 1), ["words", *map(str, range(1, top + 1))])
        name = f"{row['task']}, {Path(row['run']).name} at step {row['step']:,}"
        add_title(axes, f"{name}: {_summary(row)}", theme)
    axes_of[-1].set_xlabel("layer")
    add_legend_below(figure, theme)
    return figure


def _draw_f1(axes: "Axes", row: ProbeRow, theme: Theme, once: Callable[[str], str]) -> None:
    layers, colours = np.array(row["layers"]), COLOURS[theme]
    axes.bar(layers - 0.2, row["layer_f1"], 0.38, color=colours[2], label=once("F1 of the layer alone"))
    if "layer_selectivity" in row:
        axes.bar(layers + 0.2, row["layer_selectivity"], 0.38, color=colours[3], label=once("its selectivity"))
    axes.set_ylabel("F1", fontsize=9)


def _draw_shares(axes: "Axes", row: ProbeRow, theme: Theme, once: Callable[[str], str]) -> None:
    layers, colours = np.array(row["layers"]), COLOURS[theme]
    axes.bar(layers - 0.2, row["weights"], 0.38, color=colours[0], label=once("weight in the mix"))
    _mark(axes, row["centre_of_gravity"], colours[5], once("centre of gravity"), "-")
    if _gains(row):
        axes.bar(layers[1:] + 0.2, _shares(row), 0.38, color=colours[1], label=once("share of the gain in F1"))
        _mark(axes, row["expected_layer"], colours[4], once("expected layer"), "--")
    axes.set_ylabel("share", fontsize=9)


def _limits(rows: Sequence[ProbeRow], each: bool) -> tuple[float, float]:
    """Returns the ends of the y scale that all panels of F1 (each) or of shares have."""
    drawn = [row for row in rows if (row["probes"] == "each") == each]
    if each:
        return min([0.0, *(low for row in drawn for low in row.get("layer_selectivity", ()))]), 1.0
    shares = [0.0, *(share for row in drawn for share in (*row["weights"], *(_shares(row) if _gains(row) else ())))]
    return min(shares), 1.05 * max(shares)


def _shares(row: ProbeRow) -> list[float]:
    """Returns each layer's share of the total gain in F1."""
    return (np.array(row["differentials"]) / sum(row["differentials"])).tolist()


def _mark(axes: "Axes", place: float, colour: str, label: str, style: str) -> None:
    # With negative differentials an expected layer may lie outside the layers; the axes keep their limits.
    axes.axvline(place, color=colour, linestyle=style, linewidth=1.6, label=label)


def _gains(row: ProbeRow) -> bool:
    """Returns whether the layers add enough to the embeddings: shares of a gain that is near nothing are noise."""
    return row.get("expected_layer") is not None and sum(row["differentials"]) > _LEAST_GAIN


def _summary(row: ProbeRow) -> str:
    """Returns the figures of a row; of several seeds their mean and deviation, as tables have them."""
    over_seeds = row.get("over_seeds", {})

    def shown(name: str, digits: int = 3) -> str:
        mean, deviation = (over_seeds.get(name, {}).get(part) for part in ("mean", "deviation"))
        if mean is None or deviation is None:
            return f"{row[name]:.{digits}f}"
        return f"{mean:.{digits}f} ± {deviation:.{digits}f}"

    parts = [f"F1 {shown('f1')}"]
    if "lexical_f1" in row:
        parts.append(f"words alone {shown('lexical_f1')}")
    if "centre_of_gravity" in row:
        parts.append(f"centre {shown('centre_of_gravity', 2)}")
    if _gains(row):
        parts.append(f"expected layer {shown('expected_layer', 2)}")
    if "best_layer" in row:
        parts.append(f"best layer {row['best_layer']}")
    if "selectivity" in row:
        parts.append(f"selectivity {shown('selectivity')}")
    if over_seeds:
        parts.append(f"bars of the first of {row['seeds']} seeds")
    return ", ".join(parts)


def steps_figure(groups: dict[tuple[str, str], list[ProbeRow]], theme: Theme = "light") -> "Figure":
    """Returns a figure with a map for each task: layers upwards; steps of training, or runs, to the right."""
    columns = max(len(group) for group in groups.values())
    figure, axes_of = new_figure(max(5.6, 2.6 + 0.9 * columns), 0.6 + 2.4 * len(groups), len(groups), theme)
    for axes, ((task, probes), group) in zip(axes_of, groups.items(), strict=True):
        group = sorted(group, key=lambda row: (row["run"], row["step"]))
        top = max(layer for row in group for layer in row["layers"])
        values = np.full((top + 1, len(group)), np.nan)
        for column, row in enumerate(group):
            values[row["layers"], column] = row["layer_f1"] if probes == "each" else row["weights"]
        # Both scales begin at 0, so that equal differences of colour are equal differences of the figure: a scale from
        # the least to the largest one would paint 0.32 and 0.36 as far apart as 0 and 1.
        end = 1.0 if probes == "each" else float(np.nanmax(values))
        image = axes.imshow(
            values, aspect="auto", origin="lower", cmap="cividis", interpolation="nearest", vmin=0.0, vmax=end
        )
        if values.size <= 400:  # figures in larger maps cannot be read
            for (layer, column), value in np.ndenumerate(values):
                if np.isfinite(value):
                    colour = "black" if value > end / 2 else "white"
                    axes.text(column, layer, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)
        axes.set_yticks(range(top + 1), ["words", *map(str, range(1, top + 1))])
        axes.grid(visible=False)
        axes.set_ylabel("layer")
        _name_columns(axes, group)
        what = "F1 of each layer alone" if probes == "each" else "weight of each layer in the mix"
        run = "" if len({row["run"] for row in group}) > 1 else f", {Path(group[0]['run']).name}"
        add_title(axes, f"{task}{run}: {what}", theme)
        ink = axes.xaxis.label.get_color()
        bar = figure.colorbar(image, ax=axes, pad=0.02)
        bar.set_label("F1, from 0 to 1" if probes == "each" else "weight, from 0 to the largest", color=ink, fontsize=8)
        bar.ax.tick_params(colors=ink, labelsize=8)
    return figure


def _name_columns(axes: "Axes", group: Sequence[ProbeRow]) -> None:
    """Names the columns of a map: by step of one run; by run and step of several, which are parted by a gap, since a
    step of one is not a step of another."""
    runs = [row["run"] for row in group]
    one = len(set(runs)) == 1
    names = [f"{row['step']:,}" if one else f"{Path(row['run']).name}\nstep {row['step']:,}" for row in group]
    axes.set_xticks(range(len(group)), names, fontsize=8, parse_math=False)
    axes.set_xlabel("step of training" if one else "run, and its step of training")
    for column in range(1, len(group)):
        if runs[column] != runs[column - 1]:
            axes.axvline(column - 0.5, color=axes.get_facecolor(), linewidth=6)
