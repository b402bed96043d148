"""One page of the occurrences of a word: a plane of points for each layer, with the sentence under a point."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contexture.analysis.cosines import unit_length
from contexture.analysis.pages.one_page import write_one_page
from contexture.analysis.senses.projections import Projection, project
from contexture.analysis.senses.static_vector import StaticSimilarities
from contexture.analysis.senses.word_senses import WordSenses
from contexture.data.visible import visible

_NEAREST = 4
"""Occurrences that the page lists as the nearest of one."""
_COLUMNS = (
    ("self_similarity", "all"),
    ("within", "within"),
    ("between", "between"),
    ("silhouette", "silhouette"),
    ("baseline", "baseline"),
)
_EXPLAINED = (
    "Figures are mean cosines of two occurrences: of any (self-similarity), of one {group} (within), of different ones "
    "(between)."
)
_BASELINE = " The baseline is that of two different words: what a layer's figures are above it adjusts for anisotropy."


def layer_name(layer: int) -> str:
    """Returns the name of a layer: layer 0 holds words without context."""
    return f"layer {layer}" if layer else "words (0)"


def groups_of(senses: WordSenses) -> tuple[NDArray[np.int64], list[str] | None]:
    """Returns (the group of each occurrence from 0, i64; the names of senses, or None for clusters).

    Clusters differ from layer to layer, [layers, n]; senses are the same in all, [1, n].
    """
    if senses["senses"] is None:
        assert senses["clusters"] is not None
        return senses["clusters"] - 1, None
    names, numbers = np.unique(senses["senses"], return_inverse=True)
    return numbers[None], names.tolist()


def write_senses_page(
    to: Path,
    title: str,
    senses: WordSenses,
    *,
    projection: Projection = "pca",
    seed: int = 0,
    static: StaticSimilarities | None = None,
) -> int:
    """Writes the page and returns its size in bytes.

    Args:
        to: the file, *.html.
        title: the page's title.
        senses: the occurrences and their vectors.
        projection: how vectors become points.
        seed: of t-SNE.
        static: the figures of the word's static vector, shown before the layers; None: none is shown.
    """
    unit_NLD = unit_length(senses["vectors"].astype(np.float64))
    points_LN2, shares_L2 = project(unit_NLD, projection, seed)
    groups, names = groups_of(senses)
    rows = senses["layers"]
    layers = [
        {
            **row,
            "name": layer_name(row["layer"]),
            "group": n if len(groups) > 1 else 0,
            # Scaled to [-1, 1], whatever the spread of a layer.
            "points": np.round(points_LN2[n] / max(float(np.abs(points_LN2[n]).max()), 1e-12), 4).tolist(),
            "nearest": _nearest(unit_NLD[:, n]),
            "note": _note(None if shares_L2 is None else shares_L2[n], points_LN2[n]),
        }
        for n, row in enumerate(rows)
    ]
    if static is not None:
        layers.insert(0, _static_layer(static, len(senses["texts"]), len(groups) - 1))
    columns = [column for column in _COLUMNS if column[0] in rows[0]]
    group = "cluster" if names is None else "sense"
    data: dict[str, Any] = {
        "title": visible(title),
        "word": visible(senses["word"]),
        "senses": None if names is None else [visible(name) for name in names],
        "texts": [
            _marked(text, split, place)
            for text, split, place in zip(senses["texts"], senses["split"], senses["places"], strict=True)
        ],
        "groups": groups.tolist(),
        "layers": layers,
        "columns": columns,
        "notes": _EXPLAINED.format(group=group) + (_BASELINE if "baseline" in rows[0] else ""),
    }
    return write_one_page(to, "contexture.analysis.senses", ("main",), data)


def _static_layer(static: StaticSimilarities, count: int, group: int) -> dict[str, Any]:
    """Returns the static vector as a layer of the page: all occurrences are one point, and equally near neighbours."""
    near = [[(m, 1.0) for m in range(count) if m != n][:_NEAREST] for n in range(count)]
    note = f"The vector of {static['word']!r} in {Path(static['file']).name} is the same in every sentence."
    return {
        **static,
        "name": "static",
        "group": group,
        "points": [[0.0, 0.0]] * count,
        "nearest": near,
        "note": visible(note),
    }


def _marked(text: str, split: list[str], place: int) -> dict[str, str]:
    """Returns a sentence in three parts: the text before the word, the word, the text after it."""
    # Word by word, since an equal word may occur before this one.
    start = 0
    for word in split[:place]:
        start = text.index(word, start) + len(word)
    start = text.index(split[place], start)
    end = start + len(split[place])
    return {"before": visible(text[:start]), "word": visible(text[start:end]), "after": visible(text[end:])}


def _nearest(unit_ND: NDArray[np.float64]) -> list[list[tuple[int, float]]]:
    cosines_NN = unit_ND @ unit_ND.T
    np.fill_diagonal(cosines_NN, -np.inf)
    order = np.argsort(-cosines_NN, axis=1, kind="stable")[:, : min(_NEAREST, len(unit_ND) - 1)]
    return [[(int(n), round(float(row[n]), 4)) for n in own] for row, own in zip(cosines_NN, order, strict=True)]


def _note(shares_2: NDArray[np.float64] | None, points_N2: NDArray[np.float64]) -> str:
    if not points_N2.any():
        return "All vectors are the same here: this layer knows no context."
    if shares_2 is None:
        return "t-SNE: neighbours are near, while distances between groups and their sizes mean nothing."
    first, second = shares_2
    return f"The two principal components of the vectors, of length 1: {first:.0%} and {second:.0%} of their variance."
