"""Cosines of vectors."""

import numpy as np
from numpy.typing import NDArray


def unit_length(vectors: np.ndarray) -> np.ndarray:
    """[…, D] → the same directions with length 1; a vector of zeros stays."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(norms == 0, 1, norms)


def mean_cosines(unit_ND: NDArray[np.float64], groups_N: NDArray[np.integer]) -> tuple[float | None, float | None]:
    """Returns the mean cosine of pairs of vectors (within one group, between groups); None where there is no pair.

    Σ over i ≠ j of u_i·u_j = |Σ u|² - Σ |u|², so the time is linear in N and no N × N matrix is built.

    Args:
        unit_ND: vectors of length 1, or 0.
        groups_N: the group of each.
    """
    whole, pairs = _sum_of_pairs(unit_ND)
    within, within_pairs = 0.0, 0
    # Pairs between groups are all pairs without the pairs within one.
    for group in np.unique(groups_N):
        total, count = _sum_of_pairs(unit_ND[groups_N == group])
        within, within_pairs = within + total, within_pairs + count
    between_pairs = pairs - within_pairs
    return (
        within / within_pairs if within_pairs else None,
        (whole - within) / between_pairs if between_pairs else None,
    )


def _sum_of_pairs(unit_ND: NDArray[np.float64]) -> tuple[float, int]:
    """Returns (Σ over i ≠ j of u_i·u_j, the number of these pairs)."""
    total_D = unit_ND.sum(0)
    return float(total_D @ total_D - np.square(unit_ND).sum()), len(unit_ND) * (len(unit_ND) - 1)
