"""Counter-based dropout: a mask is a function of (seed, step, site, row, column) and of nothing else.

No state is carried, and nothing depends on the mesh, the microbatch or the process: `row` is the number of the
sequence in the whole batch, `column` the number of the element within that sequence. Nor does it matter which
sequences share a row of a packed batch.

This is many times cheaper than threefry, and as sound as dropout needs. Each step has a threefry key. Mixing it gives
each (site, row) 64 bits of its own, a start and a stride. A row's counter is start + column · stride, so the counters
of two rows meet at single places, never in a run. Each count is mixed in two multiply-xorshift rounds, with the stride
once more between them.
"""

from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

# The multipliers of a 32-bit integer hash with little bias, and 2^32 divided by the golden ratio (odd), whose multiples
# spread small counters such as site and row over all 32 bits.
_MULTIPLIER_1, _MULTIPLIER_2, _GOLDEN = 0x7FEB352D, 0x846CA68B, 0x9E3779B9


@flax.struct.dataclass
class DropoutKey:
    """The key of one step's masks.

    Args:
        key: two words, u32.
        row_B: each sequence's number in the whole batch.
        packs_XY: where sequences share rows, each token's place in row_B, from 1 on, 0 at padding; else None.
        positions_XY: with packs_XY: each token's place in its sequence.
    """

    key: jax.Array
    row_B: jax.Array
    packs_XY: jax.Array | None = None
    positions_XY: jax.Array | None = None


def dropout_key(seed: int | jax.Array, step: jax.Array, row_B: jax.Array) -> DropoutKey:
    """Returns the key of one step: `dropout_key(7, step, jnp.arange(B))`. The seed may be traced, as u32."""
    key = jax.random.key_data(jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), step))
    return DropoutKey(key=key.astype(jnp.uint32), row_B=row_B.astype(jnp.uint32))


def repeat_for_choices(dropout_key: DropoutKey | None, choices: int) -> DropoutKey | None:
    """Returns the key for a batch whose examples have `choices` consecutive rows each; every row has its own masks."""
    if dropout_key is None or choices == 1:
        return dropout_key
    row_BA = dropout_key.row_B[:, None] * choices + jnp.arange(choices, dtype=dropout_key.row_B.dtype)[None]
    return DropoutKey(dropout_key.key, row_BA.reshape(-1))


def mix(x: jax.Array) -> jax.Array:
    """A bijection of 32-bit words in which every input bit reaches every output bit."""
    x = (x ^ (x >> 16)) * jnp.uint32(_MULTIPLIER_1)
    x = (x ^ (x >> 15)) * jnp.uint32(_MULTIPLIER_2)
    return x ^ (x >> 16)


def row_words(dropout_key: DropoutKey, site: jax.Array | int) -> tuple[jax.Array, jax.Array]:
    """Returns two independent words for each row (start, stride), from (seed, step), site and row."""
    site = jnp.asarray(site).astype(jnp.uint32)
    words = []
    for half, other in ((0, 1), (1, 0)):
        # Both halves of the step's key enter each word: with one half alone, two steps that share it would share masks.
        site_key = mix(mix(dropout_key.key[half] + site * jnp.uint32(_GOLDEN)) ^ dropout_key.key[other])
        # The row enters twice, by xor and by addition. Entering once, row r at one site could equal row r' at another
        # for many pairs at once, since xor alone only permutes the rows.
        row_B, salt = dropout_key.row_B, jnp.uint32(half + 1)
        words.append(mix(mix(site_key ^ row_B) + jnp.uint32(_GOLDEN) * (row_B + salt)))
    return words[0], words[1]


def random_word(start: jax.Array, stride: jax.Array, column: jax.Array) -> jax.Array:
    """Returns the random word of a column, u32: the row's counter, mixed in two rounds."""
    # An odd stride is invertible modulo 2^32: the counter visits each value once, so no two columns share one.
    return mixed_word(column * (stride | jnp.uint32(1)) + start, stride)


def mixed_word(x: jax.Array, stride: jax.Array) -> jax.Array:
    """Returns the random word of a row's counter x, u32."""
    x = (x ^ (x >> 16)) * jnp.uint32(_MULTIPLIER_1)
    # Where two rows' counters meet, their strides differ: this xor parts them again.
    x = x ^ stride
    x = (x ^ (x >> 15)) * jnp.uint32(_MULTIPLIER_2)
    return x ^ (x >> 16)


def bits(
    dropout_key: DropoutKey, site: jax.Array | int, shape: tuple[int, ...], whole: tuple[int, ...] = ()
) -> jax.Array:
    """Returns random words, u32, of shape (B, …): as drawn for an array (B, *whole), cut to this shape."""
    # column = the row-major index of an element within its sequence, built from iotas so that a sharded array counts
    # its own part without communication.
    column = jnp.zeros((1,) + shape[1:], jnp.uint32)
    for axis in range(1, len(shape)):
        column = column * jnp.uint32((0, *(whole or shape[1:]))[axis]) + jax.lax.broadcasted_iota(
            jnp.uint32, column.shape, axis
        )
    if dropout_key.packs_XY is None:
        words = row_words(dropout_key, site)
        start, stride = (word_B.reshape(-1, *(1,) * (len(shape) - 1)) for word_B in words)
    else:
        # Tokens are the second dim of activations, and the third of attention weights, whose keys are the fourth.
        sizes = whole or shape[1:]
        words = token_words(dropout_key, site, sizes[1] if len(shape) == 3 else sizes[2] + 1)
        start, stride = (word_XY[:, :, None] if len(shape) == 3 else word_XY[:, None, :, None] for word_XY in words)
    return random_word(start, stride, column)


def token_words(dropout_key: DropoutKey, site: jax.Array | int, step: int) -> tuple[jax.Array, jax.Array]:
    """Returns the two words of each token's sequence, XY, where sequences share rows.

    Columns may then be counted in the row: `start` is moved back by as much as the sequence begins later.

    Args:
        dropout_key: the key of the step's masks.
        site: which of the model's dropouts this is.
        step: by how much a column is greater for a token one place later in its row; of attention weights, for a query
            and a key one place later.
    """
    packs_XY, positions_XY = dropout_key.packs_XY, dropout_key.positions_XY
    assert packs_XY is not None and positions_XY is not None
    start_B, stride_B = row_words(dropout_key, site)
    # Padding reads the first sequence's: nothing reads what comes of it.
    number_XY = jnp.maximum(packs_XY - 1, 0)
    start_XY, stride_XY = start_B[number_XY], stride_B[number_XY]
    begin_XY = (jnp.arange(packs_XY.shape[1])[None] - positions_XY).astype(jnp.uint32)
    # The counter of `random_word`, whose stride is odd, modulo 2^32.
    return start_XY - (stride_XY | jnp.uint32(1)) * begin_XY * jnp.uint32(step), stride_XY


def is_kept(word: jax.Array, rate: float) -> jax.Array:
    """Returns which elements dropout keeps, by their random words."""
    # P(word < rate · 2^32) = rate. The threshold is clipped because a rate next to 1 rounds to 2^32, which is no u32.
    return word >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))


def dropout(
    x: jax.Array,
    rate: float,
    dropout_key: DropoutKey | None,
    site: jax.Array | int,
    whole: tuple[int, ...] = (),
) -> jax.Array:
    """Zeroes each element of x (B, …) with probability rate and scales the others by 1/(1 - rate).

    Returns x itself for dropout_key=None (evaluation) or rate 0.

    Args:
        x: the array; its first dim is the sequences.
        rate: the probability that an element becomes 0.
        dropout_key: the key of the step's masks.
        site: the number of this place in the model, so that no two places share a mask.
        whole: the dims after the first of a larger array that x is the beginning of. Its mask is drawn and cut to x,
            so that a sequence has the same mask however far it is padded.
    """
    if dropout_key is None or rate == 0.0:
        return x
    keep = is_kept(bits(dropout_key, site, x.shape, whole), rate)
    # Scaled in float32: 1/(1 - rate) rounded to bfloat16 would bias the mean.
    kept = (x.astype(jnp.float32) * (1.0 / (1.0 - rate))).astype(x.dtype)
    return jnp.where(keep, kept, jnp.zeros((), x.dtype))


class WeightDropout(NamedTuple):
    """The dropout of attention weights.

    Args:
        rate: the share of weights that become 0.
        key: the key of the step's masks; None: no dropout.
        site: which of the model's dropouts this is.
        longest: the longest sequence of the model, in which weights are numbered; 0: the length of the array.
    """

    rate: float = 0.0
    key: DropoutKey | None = None
    site: jax.Array | int = 0
    longest: int = 0


NO_DROPOUT = WeightDropout()
