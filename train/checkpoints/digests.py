"""Digests of arrays: one 32-bit word per array, which changes with any of its numbers."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from contexture.models.shapes import path_of
from contexture.train.mesh import replicated

_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}
"""Bytes of an element → the type that its bits are read as; 8 bytes are two words."""
_BLOCK = 1 << 20
"""Elements that the host digests at once: its temporaries stay in the processor's cache."""


def _digest_one(x: jax.Array) -> jax.Array:
    """Σ (bits ^ bits >> 15) · (hash of the index | 1) mod 2^32: it changes with any element's value or place.

    A sum has no order, so the digest is the same however the array is sharded, and each device digests its own part.
    An odd factor is invertible mod 2^32: no change of a single element is lost.
    """
    # The digest is of bits, not of values: -0.0 and 0.0 differ, and two NaNs may.
    x = x.astype(jnp.uint8) if x.dtype == jnp.bool_ else x
    b = jax.lax.bitcast_convert_type(x, _WORDS[x.dtype.itemsize]).astype(jnp.uint32)
    # The row-major index of each element, computed from its coordinates, mixed by Knuth's multiplicative hash.
    place = jnp.zeros((1,) * b.ndim, jnp.uint32)
    for axis in range(b.ndim):
        place = place * jnp.uint32(b.shape[axis]) + jax.lax.broadcasted_iota(jnp.uint32, b.shape, axis)
    place = place * jnp.uint32(2654435761) + jnp.uint32(1)
    return jnp.sum((b ^ (b >> 15)) * (place | 1), dtype=jnp.uint32)


@functools.cache
def _examine(mesh: Mesh) -> Callable[[list[jax.Array]], jax.Array]:
    """Returns a jitted function: arrays → u32 [arrays, 2], the digest of each, and 1 if all its numbers are finite."""

    # Both in one pass over the array while it is in the device's memory.
    def one(x: jax.Array) -> jax.Array:
        finite = jnp.isfinite(x).all() if jnp.issubdtype(x.dtype, jnp.floating) else jnp.bool_(True)
        return jnp.stack([_digest_one(x), finite.astype(jnp.uint32)])

    return jax.jit(lambda leaves: jnp.stack([one(x) for x in leaves]), out_shardings=replicated(mesh))


def digests(tree: object, mesh: Mesh) -> tuple[dict[str, int], list[str]]:
    """Returns (path → digest of every array of a tree, the paths of those with numbers that are not finite).

    Each device examines the part of an array that it holds; only the results leave it. Where the devices are this
    process's CPU, the host does it: compiling a program for many arrays takes seconds.
    """
    # One program for all arrays, or the host; both give the same words.
    paths, leaves = zip(*jax.tree_util.tree_flatten_with_path(tree)[0], strict=True)
    if mesh.devices.flat[0].platform == "cpu" and jax.process_count() == 1:
        arrays = list(map(np.asarray, leaves))
        results = [(host_digest(x), _finite(x)) for x in arrays]
    else:
        # Whole arrays stay on the devices: 8 bytes for each come back.
        results = np.asarray(jax.device_get(_examine(mesh)(list(leaves))))
    words = {path_of(path): int(word) for path, (word, _) in zip(paths, results, strict=True)}
    return words, [path_of(path) for path, (_, finite) in zip(paths, results, strict=True) if not finite]


def host_digest(x: np.ndarray) -> int:
    """Returns the digest of an array as `_digest_one` counts it, computed on the host, a block at a time."""
    # An 8-byte element is two words: its two halves have places of their own, as in bitcast_convert_type's last dim.
    flat = np.ascontiguousarray(x).reshape(-1).view(f"u{min(x.dtype.itemsize, 4)}")
    total = 0
    for start in range(0, flat.size, _BLOCK):
        bits = flat[start : start + _BLOCK].astype(np.uint32, copy=False)
        # Indices modulo 2^32, as the device's u32 arithmetic wraps.
        place = (np.arange(start, start + bits.size, dtype=np.uint64) & 0xFFFFFFFF).astype(np.uint32)
        place = place * np.uint32(2654435761) + np.uint32(1)
        # Products wrap in u32; their sum is taken in u64 and cut at the end, which is the same modulo 2^32.
        total += int(((bits ^ (bits >> 15)) * (place | 1)).sum(dtype=np.uint64))
    return total & 0xFFFFFFFF


def _finite(x: np.ndarray) -> bool:
    flat = x.reshape(-1)
    blocks = (flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK))
    return not jnp.issubdtype(x.dtype, jnp.floating) or all(bool(np.isfinite(block).all()) for block in blocks)
