"""Dropout from a counter: a mask is a function of (seed, step, site, row, column), of nothing else.

No state is carried and nothing depends on the mesh, the microbatch or the process: `row` is the line's number in
the whole batch, `column` the element's place in that line. Many times cheaper than threefry, and as sound as dropout
needs: each step has a threefry key, and mixes of it give each (site, row) 64 bits of its own: a start and a stride. A
row counts its columns from its start by its stride, so that two rows' counters meet at single places, never in a run,
and each count is mixed in two multiply-xorshift rounds with the stride once more between them.
"""

import flax.struct
import jax
import jax.numpy as jnp

_M1, _M2, _M3 = 0x7FEB352D, 0x846CA68B, 0x9E3779B9


@flax.struct.dataclass
class DropoutKey:
    """What makes this step's masks: key (2 words, u32), and row_B, the number of each line in the whole batch."""

    key: jax.Array
    row_B: jax.Array


def dropout_key(seed: int, step: jax.Array, row_B: jax.Array) -> DropoutKey:
    """The key of one step: `dropout_key(7, step, jnp.arange(B))`."""
    key = jax.random.key_data(jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), step))
    return DropoutKey(key=key.astype(jnp.uint32), row_B=row_B.astype(jnp.uint32))


def repeat_for_choices(dropout_key: DropoutKey | None, many: int) -> DropoutKey | None:
    """Where each line of the batch stands as so many rows, one behind the other: each has masks of its own."""
    if dropout_key is None or many == 1:
        return dropout_key
    row_BA = dropout_key.row_B[:, None] * many + jnp.arange(many, dtype=dropout_key.row_B.dtype)[None]
    return DropoutKey(dropout_key.key, row_BA.reshape(-1))


def _mix(x: jax.Array) -> jax.Array:
    """A bijection of 32-bit words in which every input bit reaches every output bit."""
    x = (x ^ (x >> 16)) * jnp.uint32(_M1)
    x = (x ^ (x >> 15)) * jnp.uint32(_M2)
    return x ^ (x >> 16)


def _row_keys(dropout_key: DropoutKey, site: jax.Array | int) -> tuple[jax.Array, jax.Array]:
    """Two independent words for each row, from (seed, step), site and row."""
    site = jnp.asarray(site).astype(jnp.uint32)
    words = []
    for half, other in ((0, 1), (1, 0)):
        site_key = _mix(_mix(dropout_key.key[half] + site * jnp.uint32(_M3)) ^ dropout_key.key[other])
        words.append(
            _mix(_mix(site_key ^ dropout_key.row_B) + jnp.uint32(_M3) * (dropout_key.row_B + jnp.uint32(half + 1)))
        )
    return words[0], words[1]


def _element(start: jax.Array, stride: jax.Array, column: jax.Array) -> jax.Array:
    """The word of a column: the row's counter, mixed in two rounds."""
    x = column * (stride | jnp.uint32(1)) + start
    x = (x ^ (x >> 16)) * jnp.uint32(_M1)
    x = x ^ stride
    x = (x ^ (x >> 15)) * jnp.uint32(_M2)
    return x ^ (x >> 16)


def bits(dropout_key: DropoutKey, site: jax.Array | int, shape: tuple[int, ...]) -> jax.Array:
    """Random words, u32, of shape (B, …)."""
    start_B, stride_B = _row_keys(dropout_key, site)
    column = jnp.zeros((1,) + shape[1:], jnp.uint32)
    for axis in range(1, len(shape)):
        column = column * jnp.uint32(shape[axis]) + jax.lax.broadcasted_iota(jnp.uint32, column.shape, axis)
    tail = (1,) * (len(shape) - 1)
    return _element(start_B.reshape(-1, *tail), stride_B.reshape(-1, *tail), column)


def dropout(x: jax.Array, rate: float, dropout_key: DropoutKey | None, site: jax.Array | int) -> jax.Array:
    """x (B, …) with each element zeroed with probability rate and the others scaled by 1/(1-rate).

    dropout_key=None (evaluation) or rate 0 gives x itself. site tells the places of a model apart.
    """
    if dropout_key is None or rate == 0.0:
        return x
    keep = bits(dropout_key, site, x.shape) >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))
    kept = (x.astype(jnp.float32) * (1.0 / (1.0 - rate))).astype(x.dtype)
    return jnp.where(keep, kept, jnp.zeros((), x.dtype))
