"""Exact nearest neighbours by cosine, computed in blocks, in memory that does not grow with the number of vectors.

Q queries   N vectors of a block   D their width   K neighbours of each query
"""

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError

BLOCK = 1 << 15
"""Vectors that are compared at a time. Their scores are the largest array: 32,768 × 512 queries are 64 MB."""
_QUERIES = 512


class Neighbours(NamedTuple):
    """The nearest vectors of each query, the nearest first; ties go to the vector that comes first.

    Args:
        numbers: i64 [Q, K], positions of the vectors from 0; K is less than what was asked for if there are fewer.
        cosines: f32 [Q, K].
    """

    numbers: NDArray[np.int64]
    cosines: NDArray[np.float32]


def nearest(
    vectors: Iterable[NDArray[np.float32]], queries_QD: NDArray[np.float32], top: int = 10, cancel: CancelToken = NEVER
) -> Neighbours:
    """Returns the `top` vectors with the largest cosine to each query. A vector of zeros has the cosine 0 with all.

    Args:
        vectors: f32 [rows, D], in parts of any size; each is read once, and not kept.
        queries_QD: the queries.
        top: neighbours of each query.

    Raises:
        DataError: when there are no vectors, their width is not the queries', or a number is not finite.
    """
    if top < 1:
        raise DataError(f"top={top} is not a positive number of neighbours")
    queries_QD = np.asarray(queries_QD, np.float32)
    count, width = queries_QD.shape
    _check_finite(queries_QD, 0, "query")
    # All parts of the queries are padded to one shape, and all blocks too: one program is compiled.
    rows = min(_QUERIES, max(count, 1))
    parts = [_filled(queries_QD[first : first + rows], rows) for first in range(0, max(count, 1), rows)]
    # -inf: any vector takes the place of an empty one.
    best = [(jnp.full((rows, top), -jnp.inf), jnp.full((rows, top), -1, jnp.int32)) for _ in parts]
    seen = 0
    for block_ND in _blocks(vectors, width):
        cancel.check()
        _check_finite(block_ND, seen, "vector")
        block = jnp.asarray(_filled(block_ND, BLOCK))
        best = [_merged(*each, part, block, seen, len(block_ND)) for each, part in zip(best, parts, strict=True)]
        seen += len(block_ND)
    if not seen:
        raise DataError("there are no vectors to search in")
    cosines, numbers = (
        np.concatenate([np.asarray(each[n]) for each in best])[:count, : min(top, seen)] for n in (0, 1)
    )
    return Neighbours(numbers.astype(np.int64), cosines)


def _blocks(vectors: Iterable[NDArray[np.float32]], width: int) -> Iterable[NDArray[np.float32]]:
    """Yields vectors in blocks of BLOCK, the last one of fewer."""
    waiting: list[NDArray[np.float32]] = []
    for part in vectors:
        array = np.asarray(part, np.float32)
        if array.ndim != 2 or array.shape[1] != width:
            raise DataError(f"vectors of shape {list(array.shape)} where the queries have the width {width}")
        for first in range(0, len(array), BLOCK):
            waiting.append(array[first : first + BLOCK])
            if sum(map(len, waiting)) >= BLOCK:
                joined = np.concatenate(waiting)
                yield joined[:BLOCK]
                waiting = [joined[BLOCK:]]
    if rest := [each for each in waiting if len(each)]:
        yield np.concatenate(rest)


def _check_finite(array_ND: NDArray[np.float32], first: int, what: str) -> None:
    if not np.isfinite(array_ND).all():
        number = first + int(np.flatnonzero(~np.isfinite(array_ND).all(1))[0])
        raise DataError(f"{what} {number} has a number that is not finite")


def _filled(array_ND: NDArray[np.float32], rows: int) -> NDArray[np.float32]:
    return np.concatenate([array_ND, np.zeros((rows - len(array_ND), array_ND.shape[1]), np.float32)])


def _unit(array_ND: jax.Array) -> jax.Array:
    largest_N1 = jnp.abs(array_ND).max(-1, keepdims=True)
    array_ND = array_ND / jnp.where(largest_N1 == 0, 1.0, largest_N1)  # squares of any float32 are finite
    norm_N1 = jnp.linalg.norm(array_ND, axis=-1, keepdims=True)
    return array_ND / jnp.where(norm_N1 == 0, 1.0, norm_N1)


@partial(jax.jit, donate_argnums=(0, 1))
def _merged(
    cosines_QK: jax.Array, numbers_QK: jax.Array, queries_QD: jax.Array, block_ND: jax.Array, seen: int, own: int
) -> tuple[jax.Array, jax.Array]:
    """Returns the nearest of those before and of a block, whose first `own` vectors count from `seen` on."""
    # float32 on every device: by default some round the factors of a matrix product to 16 bits.
    cosines_QN = jnp.matmul(_unit(queries_QD), _unit(block_ND).T, precision=jax.lax.Precision.HIGHEST)
    # Rows that only fill up the block are never neighbours.
    cosines_QN = jnp.where(jnp.arange(len(block_ND)) < own, cosines_QN, -jnp.inf)
    top = cosines_QK.shape[1]
    block_QK, places_QK = jax.lax.top_k(cosines_QN, min(top, len(block_ND)))
    # Earlier vectors come first, since top_k resolves ties in favour of the first.
    both = jnp.concatenate([cosines_QK, block_QK], 1)
    numbers = jnp.concatenate([numbers_QK, places_QK.astype(jnp.int32) + seen], 1)
    cosines_QK, chosen_QK = jax.lax.top_k(both, top)
    return cosines_QK, jnp.take_along_axis(numbers, chosen_QK, 1)
