"""Vectors as points of a plane."""

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from contexture.analysis.senses.clusters import are_same

Projection: TypeAlias = Literal["pca", "tsne"]
PROJECTIONS: dict[Projection, str] = {"pca": "two principal components", "tsne": "t-SNE"}
"""Descriptions of projections, for titles."""
_PERPLEXITY = 30.0


def project(
    unit_NLD: NDArray[np.float64], how: Projection = "pca", seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Returns (points of each layer, f64 [L, N, 2], centred at 0; for PCA the axes' shares of the variance, [L, 2]).

    Vectors that are all the same are one point.

    Args:
        unit_NLD: the vectors, of length 1.
        how: "pca": principal components of each layer's vectors; an axis is turned so that it correlates positively
            with the same axis of the layer before. "tsne": t-SNE (van der Maaten and Hinton 2008), started from the
            principal components, with perplexity 30, or a third of the points if these are few; distances between
            groups, and their sizes, mean nothing.
        seed: of t-SNE.
    """
    layers = unit_NLD.shape[1]
    points_LN2 = np.zeros((layers, len(unit_NLD), 2))
    shares_L2 = np.zeros((layers, 2))
    for layer in range(layers):
        unit_ND = unit_NLD[:, layer]
        if are_same(unit_ND):
            continue
        points_LN2[layer], shares_L2[layer] = _pca(unit_ND)
        if how == "tsne":
            points_LN2[layer] = _tsne(unit_ND, seed)
        # Turned to agree with the layer before, so that points can be followed from panel to panel.
        elif layer:
            turned = (points_LN2[layer] * points_LN2[layer - 1]).sum(0) < 0
            points_LN2[layer] *= np.where(turned, -1.0, 1.0)
    return points_LN2, shares_L2 if how == "pca" else None


def _pca(x_ND: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    centred_ND = x_ND - x_ND.mean(0)
    left_NK, values_K, right_KD = np.linalg.svd(centred_ND, full_matrices=False)
    # The sign of a component is arbitrary: its largest weight is made positive.
    signs_K = np.sign(right_KD[np.arange(len(right_KD)), np.abs(right_KD).argmax(1)])
    points = np.zeros((len(x_ND), 2))
    shares = np.zeros(2)
    count = min(2, len(values_K))
    points[:, :count] = (left_NK * values_K * signs_K)[:, :count]
    shares[:count] = (values_K**2 / (values_K**2).sum())[:count]
    return points, shares


def _tsne(x_ND: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    from sklearn.manifold import TSNE

    first_N2 = _pca(x_ND)[0]
    # Scaled to 1e-4 as sklearn's own "pca" start, which fails if the vectors have fewer than two directions.
    start_N2 = (first_N2 / np.std(first_N2[:, 0]) * 1e-4).astype(np.float32)
    perplexity = min(_PERPLEXITY, (len(x_ND) - 1) / 3)
    options: Any = {"perplexity": perplexity, "init": start_N2, "random_state": seed}
    points = TSNE(2, **options).fit_transform(x_ND.astype(np.float32))
    return points - points.mean(0)
