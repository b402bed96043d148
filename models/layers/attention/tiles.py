"""What both kernels compute of a tile, a block of queries against a block of keys: its mask and its dropout; and which
tiles they visit at all."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from contexture.models.layers.attention.mask import HIDDEN, PADDED
from contexture.models.layers.dropout import is_kept, mixed_word

Ref: TypeAlias = Any
"""An array in a kernel's memory, which is read and written by its indices."""
Index: TypeAlias = jax.Array | int
"""The number of a block, a head or a sequence."""
LOWEST = -1e30
"""In place of minus infinity: below every logit, and exp of a difference with it is 0, never NaN."""


class Sizes(NamedTuple):
    """What a kernel is compiled for."""

    length: int
    """Keys of a sequence; the arrays are padded to whole blocks."""
    longest: int
    """The longest sequence of the model, by which dropout numbers weights."""
    queries: int
    """Queries of a tile."""
    keys: int
    """Keys of a tile."""
    query_blocks: int
    """Of a device, which may have the queries of a part of the sequence (`Scalars.first_query`)."""
    key_blocks: int
    scale: float
    """1/sqrt(K)."""
    rate: float
    """The dropout's; 0: none."""
    causal: bool
    windowed: bool
    padded: bool
    packed: bool
    by_token: bool
    """Whether each query has dropout words of its own, since sequences share rows."""
    rounds: bool
    """Whether the result is rounded to 16 bits."""
    saves: bool
    """Whether the forward pass returns what a backward pass reads of its rounding."""
    interpreted: bool = False
    """Whether a kernel runs as plain operations, in place of instructions of its device."""

    @property
    def is_cut(self) -> bool:
        """Whether a device has the queries of a part of the sequence, and all of its keys."""
        return self.queries * self.query_blocks < self.length

    @property
    def whole_rows(self) -> bool:
        """Whether a tile has all keys."""
        return self.key_blocks == 1


class Inputs(NamedTuple):
    """The arrays of a device: q, k and v in the kernel's order of dims, with each sequence's tokens and documents."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    tokens_BM: jax.Array
    packs_BM: jax.Array
    packs_BL: jax.Array
    """The documents of the queries."""
    start_BL: jax.Array | None = None
    """The dropout words of each query, where sequences share rows (`dropout.token_words`)."""
    stride_BL: jax.Array | None = None


class Scalars(NamedTuple):
    """Numbers that a kernel reads, i32 and u32. The first three are of shape (1,); the others begin with B.

    Queries of block i see keys of the blocks from first_key_BI[b, i] on, before end_key_BI[b, i]; keys of block j are
    seen by queries of the blocks from first_query_BJ[b, j] on, before end_query_BJ[b, j].
    """

    first_head: jax.Array
    """The number of a device's first head, for the dropout's counters."""
    first_query: jax.Array
    """The place of a device's first query in the sequence."""
    window: jax.Array
    start_B: jax.Array
    stride_B: jax.Array
    """The two words of each row (`dropout.row_words`)."""
    first_key_BI: jax.Array
    end_key_BI: jax.Array
    first_query_BJ: jax.Array
    end_query_BJ: jax.Array


class Saved(NamedTuple):
    """What the backward pass reads of the forward pass, in addition to its inputs; in the kernel's order of dims.

    The gradient of a row's logits is weights · (dweights - mean), with mean = Σ weights · dweights = Σ y · dy. An error
    of the mean reaches dq multiplied by Σ weights · k. Taken from y in bfloat16, where values and keys have offsets of
    four deviations, it made dq wrong by a quarter. So the mean is formed in float32:

    - A tile that has whole rows (TPUs, up to 512 tokens) takes the first sum. It costs nothing, and y is not read.
    - Others take the second from y and `rounding`, two arrays of 16 bits. Of width 64 these are 128 bytes more to write
      and to read again for each token and head, where forward and backward pass together move about 1,700. y in
      float32 in addition to the result would be 256. The first sum would need the products q·k and v·dy twice.
    """

    norm: jax.Array
    """float32: each query's largest logit, and its sum of exp(logit - largest); BH2L. On GPUs 1 over that sum; B2HL."""
    y: jax.Array | None
    rounding: jax.Array | None
    """The result before it was rounded, less y."""


def cost(s: Sizes, rows: tuple[int, ...], width: int, products: int, arrays: Iterable[Any]) -> pl.CostEstimate:
    """Returns what a kernel computes and reads, for the compiler and for counting FLOPs: a forward pass 4·B·H·L·M·K, a
    backward pass 10·B·H·L·M·K, and about half of these where causal.

    Args:
        s: what the kernel is compiled for.
        rows: B and H.
        width: K.
        products: the number of matrix products of a tile.
        arrays: what is read and written, each once.
    """
    # All tiles, as if none were skipped; of causal attention about half are.
    pairs = math.prod(rows) * s.queries * s.query_blocks * s.keys * s.key_blocks
    if s.causal:
        pairs //= 2
    return pl.CostEstimate(
        flops=2 * products * pairs * width,
        transcendentals=pairs,
        bytes_accessed=sum(math.prod(x.shape) * x.dtype.itemsize for x in arrays),
    )


def like(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def visited(
    s: Sizes, first_query: jax.Array | int, window: jax.Array, inputs: Inputs
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Returns the last four of `Scalars`: each block's range of blocks, outside which nothing is seen."""
    tokens_BM = inputs.tokens_BM
    first_1I1 = (first_query + jnp.arange(s.query_blocks) * s.queries)[None, :, None]
    first_11J = (jnp.arange(s.key_blocks) * s.keys)[None, None]
    # The distance back of a tile's last query to its first key, and of its first query to its last key.
    longest_1IJ, shortest_1IJ = (first_1I1 + s.queries - 1) - first_11J, first_1I1 - (first_11J + s.keys - 1)
    # All tiles, from which each rule of the mask takes some away.
    seen_BIJ = jnp.ones((len(tokens_BM), s.query_blocks, s.key_blocks), bool)
    # A tile is seen if its last query may see its first key ...
    if s.causal:
        seen_BIJ &= longest_1IJ >= 0
    # ... and if the window reaches back from its first query to its last key.
    if s.windowed:
        seen_BIJ &= shortest_1IJ < window
    if s.padded:
        key_1M = jnp.arange(1, tokens_BM.shape[1] + 1)[None]
        # How many positions a sequence has up to its last token: all keys from there on are padding.
        last_B = jnp.where(tokens_BM != 0, key_1M, 0).max(1)
        # Where all keys are padding all are seen, each as far below.
        seen_BIJ &= first_11J < jnp.where(last_B == 0, s.length, last_B)[:, None, None]
    if s.packed:
        # Documents are numbered upwards in a row: blocks whose numbers do not overlap share none.
        low_BI, high_BI = _extent(inputs.packs_BL, s.queries)
        low_BJ, high_BJ = _extent(inputs.packs_BM, s.keys)
        seen_BIJ &= (low_BI[:, :, None] <= high_BJ[:, None]) & (low_BJ[:, None] <= high_BI[:, :, None])
    # A range may include a block that is hidden: the mask hides its weights all the same.
    return *_range(seen_BIJ), *_range(seen_BIJ.swapaxes(1, 2))


def _extent(packs_BM: jax.Array, block: int) -> tuple[jax.Array, jax.Array]:
    """Returns the smallest and the largest document of each block. Padding, document 0, counts as the last document,
    since it comes after all others; as 0 its block would overlap all of them."""
    packs_BM = jnp.where(packs_BM == 0, jnp.iinfo(jnp.int32).max, packs_BM)
    blocks = packs_BM.reshape(len(packs_BM), -1, block)
    return blocks.min(-1), blocks.max(-1)


def _range(seen: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the first true place of the last dim and the one behind the last; 0 and 0 where none is true."""
    # argmax finds the first true place; in reverse order, the last.
    some, places = seen.any(-1), seen.shape[-1]
    end = places - jnp.argmax(seen[..., ::-1], -1)
    return jnp.argmax(seen, -1).astype(jnp.int32), jnp.where(some, end, 0).astype(jnp.int32)


def masked(
    s: Sizes,
    logits: jax.Array,
    query: jax.Array,
    key: jax.Array,
    window: jax.Array,
    tokens: jax.Array,
    query_packs: jax.Array,
    key_packs: jax.Array,
) -> jax.Array:
    """Returns a tile's logits with the mask applied. Whatever belongs to queries or keys broadcasts to the tile, so
    that either may be its rows: `query` and `key` are their numbers in the sequence."""
    # BERT's padding is added to the logit; what GPT must not see is replaced.
    if s.padded:
        logits += jnp.where(tokens != 0, 0.0, PADDED)
    if s.causal:
        logits = jnp.where(query >= key, logits, HIDDEN)
    if s.windowed:
        logits = jnp.where(query - key < window, logits, HIDDEN)
    if s.packed:
        logits = jnp.where(query_packs == key_packs, logits, HIDDEN)
    # What pads the arrays to whole blocks is no key at all: LOWEST is below PADDED and HIDDEN, so that its weight is 0
    # in every row.
    if s.keys * s.key_blocks != s.length:
        logits = jnp.where(key < s.length, logits, LOWEST)
    return logits


def unrounded(kept_sum: jax.Array, rounded_sum: jax.Array) -> jax.Array:
    """Returns the factor that takes the rounding of a row's weights out of their sum: the sum of the weights that
    dropout keeps, divided by the sum of the same weights rounded.

    The product with v rounds weights to 16 bits. The sum of their errors, multiplied by what values have in common,
    would be part of y and so of Σ y·dy (`Saved`), but not of the weights of the backward pass.
    """
    # Where dropout kept no weight, or all round to 0, there is nothing to correct: 1 instead of 0/0.
    return jnp.where(rounded_sum > 0.0, kept_sum, 1.0) / jnp.where(rounded_sum > 0.0, rounded_sum, 1.0)


def kept(s: Sizes, start: jax.Array, stride: jax.Array, head: jax.Array, query: jax.Array, key: jax.Array) -> jax.Array:
    """Returns a tile's dropout mask, the one that `dropout` draws for an array HLM of the greatest length: a weight's
    column is its place there, row by row."""
    # The row-major place in HLM, as u32 that wraps, is the counter's column (`dropout.bits`). The query's and the key's
    # part are multiplied apart, so that a weight takes one addition.
    length, odd = jnp.uint32(s.longest), stride | jnp.uint32(1)
    row = head.astype(jnp.uint32) * length + query.astype(jnp.uint32)
    return is_kept(mixed_word((row * length * odd + start) + key.astype(jnp.uint32) * odd, stride), s.rate)
