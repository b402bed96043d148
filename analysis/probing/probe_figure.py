"""Figures of probes: a row of bars for each task (Tenney et al. 2019b, figures 1 and 2), and layers over training."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contexture.analysis.probing.probe_rows import ProbeRow
from contexture.train.run.plots import COLOURS, PICTURES, Theme, add_legend_below, add_title, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEAST_GAIN = 0.01
"""The F1 that layers must add to the embeddings for shares of it to be drawn."""
_MOST_ROWS = 16
"""Tasks that a picture has room for, the last ones."""


def draw_probes(rows: Sequence[ProbeRow], folder: Path, theme: Theme = "light") -> list[Path]:
    """Draws probe.png, probe.svg and probe.pdf of the newest step of each run, and steps.png, … where there are several
    runs or steps of a task; returns the files."""
    newest: dict[tuple[str, str, str, str], ProbeRow] = {}
    for row in rows:
        key = row["run"], row["task"], row["probes"], str(row["layers"])
        if key not in newest or row["step"] >= newest[key]["step"]:
            newest[key] = row
    drawn = sorted(newest.values(), key=lambda row: (row["run"], _depth(row)))[-_MOST_ROWS:]
    files = _draw_tasks(drawn, folder, theme)
    groups: dict[tuple[str, str], list[ProbeRow]] = {}
    for row in rows:
        groups.setdefault((row["task"], row["probes"]), []).append(row)
    several = {key: group for key, group in groups.items() if len({(row["run"], row["step"]) for row in group}) > 1}
    return files + (_draw_steps(several, folder, theme) if several else [])


def _depth(row: ProbeRow) -> float:
    return row["centre_of_gravity"] if "centre_of_gravity" in row else float(row.get("best_layer", 0))


def _draw_tasks(rows: Sequence[ProbeRow], folder: Path, theme: Theme) -> list[Path]:
    figure, axes_of = new_figure(8.4, 0.6 + 1.75 * len(rows), len(rows), theme)
    several = len({row["run"] for row in rows}) > 1
    top = max(layer for row in rows for layer in row["layers"])
    labelled: set[str] = set()

    def once(label: str) -> str:
        new = label not in labelled
        labelled.add(label)
        return label if new else ""

    for axes, row in zip(axes_of, rows, strict=True):
        layers = np.array(row["layers"])
        if row["probes"] == "each":
            axes.bar(layers - 0.2, row["layer_f1"], 0.38, color=COLOURS[2], label=once("F1 of the layer alone"))
            if "layer_selectivity" in row:
                label = once("its selectivity")
                axes.bar(layers + 0.2, row["layer_selectivity"], 0.38, color=COLOURS[3], label=label)
            axes.set_ylabel("F1", fontsize=9)
        else:
            label = once("weight in the mix")
            axes.bar(layers - 0.2, row["weights"], 0.38, color=COLOURS[0], label=label)
            _mark(axes, row["centre_of_gravity"], COLOURS[5], once("centre of gravity"), "-")
            if _gains(row):
                gains = np.array(row["differentials"])
                label = once("share of the gain in F1")
                axes.bar(layers[1:] + 0.2, gains / gains.sum(), 0.38, color=COLOURS[1], label=label)
                _mark(axes, row["expected_layer"], COLOURS[4], once("expected layer"), "--")
            axes.set_ylabel("share", fontsize=9)
        axes.set_xlim(-0.6, top + 0.6)
        axes.set_xticks(range(top + 1), ["words", *map(str, range(1, top + 1))])
        name = f"{row['task']}, {Path(row['run']).name} at step {row['step']:,}" if several else row["task"]
        add_title(axes, f"{name}: {_summary(row)}", theme)
    axes_of[-1].set_xlabel("layer")
    add_legend_below(figure, theme)
    return _save(figure, folder, "probe")


def _mark(axes: "Axes", place: float, colour: str, label: str, style: str) -> None:
    # An expected layer may lie outside where a layer takes away what another has added; the axes keep their limits.
    axes.axvline(place, color=colour, linestyle=style, linewidth=1.6, label=label)


def _gains(row: ProbeRow) -> bool:
    """Returns whether the layers add enough to the embeddings: shares of a gain that is near nothing are noise."""
    return row.get("expected_layer") is not None and sum(row["differentials"]) > _LEAST_GAIN


def _summary(row: ProbeRow) -> str:
    parts = [f"F1 {row['f1']:.3f}"]
    if "lexical_f1" in row:
        parts.append(f"words alone {row['lexical_f1']:.3f}")
    if "centre_of_gravity" in row:
        parts.append(f"centre {row['centre_of_gravity']:.2f}")
    if _gains(row):
        parts.append(f"expected layer {row['expected_layer']:.2f}")
    if "best_layer" in row:
        parts.append(f"best layer {row['best_layer']}")
    if "selectivity" in row:
        parts.append(f"selectivity {row['selectivity']:.3f}")
    return ", ".join(parts)


def _draw_steps(groups: dict[tuple[str, str], list[ProbeRow]], folder: Path, theme: Theme) -> list[Path]:
    """A map for each task: layers from bottom to top, steps of training (or runs) from left to right."""
    columns = max(len(group) for group in groups.values())
    figure, axes_of = new_figure(max(5.6, 2.6 + 0.75 * columns), 0.6 + 2.4 * len(groups), len(groups), theme)
    for axes, ((task, probes), group) in zip(axes_of, groups.items(), strict=True):
        group = sorted(group, key=lambda row: (row["run"], row["step"]))
        top = max(layer for row in group for layer in row["layers"])
        values = np.full((top + 1, len(group)), np.nan)
        for column, row in enumerate(group):
            values[row["layers"], column] = row["layer_f1"] if probes == "each" else row["weights"]
        image = axes.imshow(values, aspect="auto", origin="lower", cmap="cividis", interpolation="nearest")
        middle = (np.nanmin(values) + np.nanmax(values)) / 2
        if values.size <= 400:  # figures in larger maps cannot be read
            for (layer, column), value in np.ndenumerate(values):
                if np.isfinite(value):
                    colour = "black" if value > middle else "white"
                    axes.text(column, layer, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)
        runs = {row["run"] for row in group}
        names = [f"{Path(row['run']).name}\n" * (len(runs) > 1) + f"{row['step']:,}" for row in group]
        axes.set_xticks(range(len(group)), names, fontsize=8)
        axes.set_yticks(range(top + 1), ["words", *map(str, range(1, top + 1))])
        axes.grid(visible=False)
        axes.set_ylabel("layer")
        what = "F1 of each layer alone" if probes == "each" else "weight of each layer in the mix"
        add_title(axes, f"{task}: {what}", theme)
        bar = figure.colorbar(image, ax=axes, pad=0.02)
        bar.ax.tick_params(colors=axes.xaxis.label.get_color(), labelsize=8)
    axes_of[-1].set_xlabel("step of training")
    return _save(figure, folder, "steps")


def _save(figure: "Figure", folder: Path, name: str) -> list[Path]:
    files = [folder / f"{name}{suffix}" for suffix in PICTURES]
    for file in files:
        save_figure(figure, file)
    return files
