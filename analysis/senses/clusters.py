"""Groups of a word's vectors if its senses are not given: k-means, the number of groups by silhouette."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

SAME = 1e-9
"""Vectors whose cosines are all above 1 - SAME differ only by rounding."""
MOST = 10
"""The most clusters that are tried."""


def are_same(unit_ND: NDArray[np.float64]) -> bool:
    """Returns whether all vectors have one direction, up to rounding: such a layer knows no context."""
    return bool((unit_ND @ unit_ND[0]).min() > 1 - SAME)


def silhouette(unit_ND: NDArray[np.float64], groups_N: NDArray[np.integer]) -> float | None:
    """Returns the mean silhouette of groups by cosine (Rousseeuw 1987); 0 if all vectors are the same.

    It is None where it is undefined: for one group, and for groups of one vector each.
    """
    from sklearn.metrics import silhouette_score

    if not 2 <= len(np.unique(groups_N)) < len(groups_N):
        return None
    return 0.0 if are_same(unit_ND) else float(silhouette_score(unit_ND, groups_N, metric="cosine"))


def cluster(unit_ND: NDArray[np.float64], clusters: int = 0, seed: int = 0) -> NDArray[np.int64]:
    """Returns the cluster of each vector, numbered from 1 in the order of first occurrence.

    Vectors that are all the same are one cluster, and so are two vectors.

    Args:
        unit_ND: the vectors, of length 1.
        clusters: how many; 0: the number from 2 to MOST with the largest silhouette.
        seed: of k-means.
    """
    count = len(unit_ND)
    if are_same(unit_ND) or (not clusters and count < 3):
        return np.ones(count, np.int64)
    if clusters:
        return _ordered(_k_means(unit_ND, clusters, seed))
    tried = [_k_means(unit_ND, number, seed) for number in range(2, min(MOST, count - 1) + 1)]
    # Equal vectors give fewer clusters than asked for; among equal silhouettes `max` takes the smallest number.
    return _ordered(max(tried, key=lambda groups_N: _rank(silhouette(unit_ND, groups_N))))


def _rank(value: float | None) -> float:
    # Below all defined silhouettes, which are at least -1.
    return -2.0 if value is None else value


def _k_means(unit_ND: NDArray[np.float64], clusters: int, seed: int) -> NDArray[np.int64]:
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    options: Any = {"n_init": 10, "random_state": seed}
    with warnings.catch_warnings():
        # Fewer clusters than were asked for, where vectors are the same.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return KMeans(clusters, **options).fit_predict(unit_ND)


def _ordered(groups_N: NDArray[np.integer]) -> NDArray[np.int64]:
    first = {group: number for number, group in enumerate(dict.fromkeys(groups_N.tolist()), 1)}
    return np.array([first[group] for group in groups_N.tolist()], np.int64)
