"""A figure of the occurrences of a word: a panel for each layer."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from contexture.analysis.cosines import unit_length
from contexture.analysis.senses.projections import Projection, project
from contexture.analysis.senses.senses_page import groups_of, layer_name
from contexture.analysis.senses.static_vector import StaticSimilarities
from contexture.analysis.senses.word_senses import WordSenses
from contexture.data.visible import visible
from contexture.train.run.plots import (
    COLOURS,
    Theme,
    add_figure_title,
    add_legend_below,
    add_title,
    new_figure,
    save_figure,
    unknown_letters_as_boxes,
)

_MARKERS = ("o", "s", "^", "D")
_COLUMNS = 3


def draw_senses(
    senses: WordSenses,
    to: Path,
    title: str,
    *,
    layers: Sequence[int] | None = None,
    projection: Projection = "pca",
    seed: int = 0,
    theme: Theme = "light",
    static: StaticSimilarities | None = None,
) -> None:
    """Draws a panel of points for each layer.

    Args:
        senses: the occurrences and their vectors.
        to: *.png, *.svg or *.pdf.
        title: above all panels.
        layers: the numbers of the layers to draw; None: all.
        projection: how vectors become points, with the seed of t-SNE.
        static: the figures of the word's static vector, which has the first panel; None: no such panel.
    """
    points_LN2, _ = project(unit_length(senses["vectors"].astype(np.float64)), projection, seed)
    groups, names = groups_of(senses)
    chosen: list[int | None] = list(range(len(points_LN2))) if layers is None else list(layers)
    chosen = chosen if static is None else [None, *chosen]
    columns = min(_COLUMNS, len(chosen))
    rows = -(-len(chosen) // columns)
    figure, axes_of = new_figure(max(3.2 * columns, 5.2), 3.1 * rows + 0.5, rows, theme, columns)
    for axes in axes_of[len(chosen) :]:
        axes.set_visible(False)
    labelled: set[int] = set()
    colours = COLOURS[theme]
    for axes, layer in zip(axes_of, chosen, strict=False):
        own = groups[-1 if layer is None else layer if len(groups) > 1 else 0]
        points_N2 = np.zeros((len(own), 2)) if layer is None else points_LN2[layer]
        for group in np.unique(own):
            name = f"cluster {group + 1}" if names is None else names[group]
            label = "" if int(group) in labelled else name
            labelled.add(int(group))
            axes.scatter(
                *points_N2[own == group].T,
                s=22,
                alpha=0.85,
                linewidths=0,
                label=label,
                color=colours[group % len(colours)],
                marker=_MARKERS[group % len(_MARKERS)],
            )
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_aspect("equal", adjustable="datalim")
        row = static if layer is None else senses["layers"][layer]
        assert row is not None
        add_title(axes, "static" if layer is None else layer_name(layer), theme)
        figures = [f"{name} {row[name]:.2f}" for name in ("within", "between") if row[name] is not None]
        axes.set_xlabel(", ".join(figures), fontsize=9)
    add_figure_title(figure, visible(title), theme)
    add_legend_below(figure, theme)
    with unknown_letters_as_boxes():
        save_figure(figure, to)
