"""Whitening of sentence vectors (Su et al. 2021; Huang et al. 2021): mean 0, covariance the identity.

Vectors of a language model lie in a narrow cone, where all cosines are high. x → (x − μ) W, with W = U Λ^(-1/2) of the
covariance U Λ Uᵀ, gives each direction the same variance. Directions are sorted by variance, the largest first, so that
the last ones can be left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from contexture.data.errors import DataError

_LEAST = 1e-10
"""Directions whose variance is less than this share of the largest are left out: they hold only rounding errors."""


@dataclass(frozen=True)
class Whitening:
    """x → (x - mean_D) · kernel_DE, from the width D of the vectors to the E directions that are kept."""

    mean_D: NDArray[np.float64]
    kernel_DE: NDArray[np.float64]

    def __call__(self, vectors_ND: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns whitened vectors, f32 [N, E]."""
        return ((np.asarray(vectors_ND, np.float64) - self.mean_D) @ self.kernel_DE).astype(np.float32)


def fit_whitening(vectors: Iterable[NDArray[np.float32]], dimensions: int = 0) -> Whitening:
    """Returns the whitening of vectors, f32 [rows, D] in parts of any size; each is read once. Sums are float64.

    Args:
        vectors: the vectors.
        dimensions: how many directions to keep; 0: all that vary.

    Raises:
        DataError: when there are fewer than two vectors, all are the same, or more dimensions are to be kept than vary.
    """
    count, total_D, squares_DD, shift_D = 0, np.float64(0), np.float64(0), None
    for part in vectors:
        array = np.asarray(part, np.float64)
        # Centred on the first vector: squares of a large common part would swallow the digits of what varies.
        shift_D = array[0] if shift_D is None and len(array) else shift_D
        array = array if shift_D is None else array - shift_D
        count, total_D, squares_DD = count + len(array), total_D + array.sum(0), squares_DD + array.T @ array
    if count < 2 or shift_D is None:
        raise DataError(f"whitening takes two vectors or more, and there are {count}; leave it out")
    mean_D = total_D / count
    variance_E, directions_DE = np.linalg.eigh(squares_DD / count - np.outer(mean_D, mean_D))
    # eigh sorts the variances in ascending order.
    variance_E, directions_DE = variance_E[::-1], directions_DE[:, ::-1]
    kept = int((variance_E > _LEAST * max(variance_E[0], 0)).sum()) if variance_E[0] > 0 else 0
    if not kept:
        raise DataError("all vectors are the same, and nothing can be whitened; leave whitening out")
    if dimensions > kept:
        raise DataError(f"dimensions={dimensions}, and the vectors vary in {kept} directions; give at most {kept}")
    kept = dimensions or kept
    # mean_D was taken around the first vector.
    return Whitening(mean_D + shift_D, directions_DE[:, :kept] / np.sqrt(variance_E[:kept]))
