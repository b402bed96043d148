"""Attention as three Pallas kernels for GPUs, by Triton. The weights BHLM exist in registers alone, a tile at a time
(Dao et al. 2022): an online softmax over the keys, and weights computed again in the backward pass.

A program of the forward kernel has a block of queries, and goes over the keys that these may see. The backward pass has
a kernel for the gradient of the queries, and one for the gradients of keys and values, whose programs have a block of
keys.
Each sum is formed by one program, in one order, so that the results are the same in every run.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.typing import DTypeLike

from contexture.models.layers.attention.tiles import (
    LOWEST,
    Index,
    Inputs,
    Ref,
    Saved,
    Scalars,
    Sizes,
    cost,
    kept,
    like,
    masked,
    unrounded,
)

ORDER, NORM = "BLHK", "B2HL"
"""The order of the arrays' dims: the model's own, so that nothing is transposed. A tile's rows then lie H·K apart. And
of `Saved.norm`'s."""
_SCALARS = len(Scalars._fields)
_WARPS = 4
"""Of a program. Measured on an H200: eight take twice as long, and tiles larger than 64 × 64 a fifth longer."""


def _stages(width: int) -> int:
    """Returns the stages of a program's pipeline of loads: on an H200 two take 7 to 18 % longer than three."""
    # Three of wider heads do not fit the 99 KiB that the programs of an L4 or an RTX 4090 share.
    return 3 if width <= 64 else 2


def blocks(length: int, width: int, dtype: DTypeLike) -> tuple[int, int]:
    """Returns the queries and keys of a tile: what fits registers and shared memory."""
    # Wider heads and float32 have tiles of twice the bytes or more.
    block = 64 if width <= 128 and jnp.dtype(dtype).itemsize <= 2 else 32
    return block, block


def padded_width(width: int) -> int:
    """Returns the width of a head in the arrays: Triton's tiles have powers of two, of at least 16."""
    return max(16, 1 << (width - 1).bit_length())


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    # In float32 by the plain units: Triton's usual TF32 has ten bits.
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
    return jnp.dot(a, b, precision=precision, preferred_element_type=jnp.float32)


def _exp2(x: jax.Array) -> jax.Array:
    """2^x by one instruction, to 2 units in the last place; 0 for what float32 has no normal number for. jnp.exp takes
    eight: the kernels are bound by instructions."""
    result = [jax.ShapeDtypeStruct(x.shape, x.dtype)]
    asm, constraints = "ex2.approx.ftz.f32 $0, $1;", "=f,f"
    return plgpu.elementwise_inline_asm(asm, args=[x], constraints=constraints, pack=1, result_shape_dtypes=result)[0]


class _Tiles:
    """The tiles of one sequence and head, which a program's place in the grid gives it.

    A tile's rows are its queries, or its keys (`by_keys`): what is summed over the columns is then the left factor of a
    product as it lies in registers.
    """

    def __init__(self, s: Sizes, at: Scalars, masks: Sequence[Ref], by_keys: bool) -> None:
        self.s, self.at, self.by_keys = s, at, by_keys
        self.tokens, self.key_packs, self.query_packs, *self.words = masks
        self.block, self.head, self.row = (pl.program_id(axis) for axis in range(3))

    def of_queries(self, x_L: jax.Array) -> jax.Array:
        """Returns a number of each query as a tile of one row or one column."""
        return x_L[None] if self.by_keys else x_L[:, None]

    def of_keys(self, x_M: jax.Array) -> jax.Array:
        return x_M[:, None] if self.by_keys else x_M[None]

    def product(self, queries_LK: jax.Array, keys_MK: jax.Array) -> jax.Array:
        """Returns a tile of products of queries and keys, float32."""
        return _dot(keys_MK, queries_LK.T) if self.by_keys else _dot(queries_LK, keys_MK.T)

    def _places(self, i: Index, j: Index) -> tuple[jax.Array, jax.Array]:
        """Returns the numbers of a tile's queries and of its keys: what is computed of one of them alone is no work of
        each weight."""
        query_L, key_M = (jax.lax.broadcasted_iota(jnp.int32, (n,), 0) for n in (self.s.queries, self.s.keys))
        first = self.at.first_query[0] + i * self.s.queries
        return self.of_queries(first + query_L), self.of_keys(j * self.s.keys + key_M)

    def logits(self, i: Index, j: Index, q_LK: jax.Array, k_MK: jax.Array) -> jax.Array:
        """Returns a tile of logits with the mask applied, float32."""
        s, queries, keys = self.s, self.queries(i), self.keys(j)
        # What the mask does not read is not loaded: a single zero takes its place, which broadcasts.
        tokens = query_packs = key_packs = jnp.zeros((1, 1), jnp.int32)
        if s.padded:
            tokens = self.of_keys(self.tokens[keys])
        if s.packed:
            query_packs = self.of_queries(self.query_packs[queries])
            key_packs = self.of_keys(self.key_packs[keys])
        logits = self.product(q_LK, k_MK) * s.scale
        return masked(s, logits, *self._places(i, j), self.at.window[0], tokens, query_packs, key_packs)

    def dropped(self, i: Index, j: Index, *tiles: jax.Array) -> tuple[jax.Array, ...]:
        """Returns tiles of weights with dropout, by one mask. What it keeps is left as it is: the factor 1/(1 - rate)
        is one of whole sums (`rescale`)."""
        if not self.s.rate:
            return tiles
        at, b = self.at, self.row
        # A function of each weight's place alone: forward and backward pass draw the same mask.
        # One sequence a row has its words as scalars; of several in a row each query has its own.
        start, stride = at.start_B[b], at.stride_B[b]
        if self.s.by_token:
            start, stride = (self.of_queries(word[self.queries(i)]) for word in self.words)
        keeps = kept(self.s, start, stride, at.first_head[0] + self.head, *self._places(i, j))
        return tuple(jnp.where(keeps, x, 0.0) for x in tiles)

    def exp(self, x: jax.Array) -> jax.Array:
        # exp(x) = 2^(x·log2 e).
        x *= math.log2(math.e)
        return jnp.exp2(x) if self.s.interpreted else _exp2(x)

    @property
    def rescale(self) -> float:
        """The factor of what dropout keeps."""
        return 1.0 / (1.0 - self.s.rate)

    def queries(self, i: Index) -> pl.Slice | slice:
        return pl.ds(i * self.s.queries, self.s.queries)

    def keys(self, j: Index) -> pl.Slice | slice:
        return pl.ds(j * self.s.keys, self.s.keys)


def _opened(s: Sizes, refs: Sequence[Ref], by_keys: bool = False) -> tuple[_Tiles, Sequence[Ref], Sequence[Ref]]:
    """Returns the tiles of a program, its q, k and v, and what follows the inputs."""
    # Words come with the inputs where they belong to queries.
    at, inputs = Scalars(*refs[:_SCALARS]), refs[_SCALARS : _SCALARS + 6 + 2 * s.by_token]
    return _Tiles(s, at, inputs[3:], by_keys), inputs[:3], refs[_SCALARS + len(inputs) :]


def _forward(s: Sizes, *refs: Ref) -> None:
    # `rounding` is there only where the result is rounded and a backward pass will read it.
    tiles, (q, k, v), (out, norm, *rounding) = _opened(s, refs)
    at = tiles.at
    b, i = tiles.row, tiles.block
    # The program keeps its queries, and keys and values go by.
    q_LK = q[tiles.queries(i)]

    def add(j: Index, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        before_L, total_L, sum_LK, *kept_sums = sums
        logits_LM = tiles.logits(i, j, q_LK, k[tiles.keys(j)])
        # The online softmax: what was summed before shrinks with each new maximum.
        high_L = jnp.maximum(before_L, logits_LM.max(1))
        weights_LM, shrink_L = tiles.exp(logits_LM - high_L[:, None]), tiles.exp(before_L - high_L)
        total_L = total_L * shrink_L + weights_LM.sum(1)
        # After the total: dropout falls on normalised weights, so dropped ones still count in the softmax's sum.
        (weights_LM,) = tiles.dropped(i, j, weights_LM)
        rounded_LM = weights_LM.astype(v.dtype)
        # The kept weights' sums before and after rounding (`unrounded`); none where nothing is rounded.
        kept_sums = [
            x_L * shrink_L + x_LM.astype(jnp.float32).sum(1)
            for x_L, x_LM in zip(kept_sums, (weights_LM, rounded_LM), strict=False)
        ]
        return high_L, total_L, sum_LK * shrink_L[:, None] + _dot(rounded_LM, v[tiles.keys(j)]), *kept_sums

    zero_L = jnp.zeros((s.queries,), jnp.float32)
    # LOWEST is below any logit: the first tile's maximum replaces it.
    initial = (zero_L + LOWEST, zero_L, jnp.zeros(q_LK.shape, jnp.float32), *[zero_L] * (2 * s.rounds))
    high_L, total_L, sum_LK, *kept_sums = jax.lax.fori_loop(at.first_key_BI[b, i], at.end_key_BI[b, i], add, initial)
    factor_L = tiles.rescale / total_L
    # y as if the weights had not been rounded before the product with v.
    if kept_sums:
        factor_L *= unrounded(*kept_sums)
    # One factor a query, after the loop: the softmax's sum, dropout's rescaling and that correction.
    y_LK = sum_LK * factor_L[:, None]
    rounded_LK = y_LK.astype(out.dtype)
    out[tiles.queries(i)] = rounded_LK
    # What this rounding takes away, in 16 bits again: the backward pass adds it to y.
    for ref in rounding:
        ref[tiles.queries(i)] = (y_LK - rounded_LK.astype(jnp.float32)).astype(out.dtype)
    # Apart: the maximum plus the sum's logarithm would round where all keys are padding, and it is near PADDED.
    norm[0, tiles.queries(i)], norm[1, tiles.queries(i)] = high_L, 1.0 / total_L


def _gradients(
    tiles: _Tiles,
    place: tuple[Index, Index],
    of_queries: tuple[jax.Array, jax.Array],
    of_keys: tuple[jax.Array, jax.Array],
    norm: Ref,
    mean_L: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Returns a tile's weights with dropout over `rescale`, and the gradient of its logits over `rescale` and the
    scale, in the arrays' dtype.

    Args:
        tiles: the sequence and head.
        place: the numbers of the blocks of queries and keys.
        of_queries: q and dy, LK.
        of_keys: k and v, MK.
        norm: each query's maximum, and 1 over its sum.
        mean_L: Σ weights·dweights of each query, over `rescale`.
    """
    (i, j), (q_LK, dy_LK), (k_MK, v_MK) = place, of_queries, of_keys
    rows = tiles.queries(i)
    high, inverse, mean = map(tiles.of_queries, (norm[0, rows], norm[1, rows], mean_L))
    # The forward pass's weights once more, from its maxima and sums.
    weights = tiles.exp(tiles.logits(i, j, q_LK, k_MK) - high) * inverse
    dropped, dweights = tiles.dropped(i, j, weights, tiles.product(dy_LK, v_MK))
    # The gradient of softmax.
    dlogits = weights * (dweights - mean)
    return dropped.astype(q_LK.dtype), dlogits.astype(q_LK.dtype)


def _backward_keys(s: Sizes, *refs: Ref) -> None:
    tiles, (q, k, v), (dy, norm, mean, dk, dv) = _opened(s, refs, by_keys=True)
    at = tiles.at
    b, j = tiles.row, tiles.block
    # The program keeps its keys and values, and the queries that see them go by.
    k_MK, v_MK = k[tiles.keys(j)], v[tiles.keys(j)]

    def add(i: Index, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        q_LK, dy_LK = q[tiles.queries(i)], dy[tiles.queries(i)]
        mean_L = mean[0, tiles.queries(i)]
        dropped_ML, dlogits_ML = _gradients(tiles, (i, j), (q_LK, dy_LK), (k_MK, v_MK), norm, mean_L)
        return sums[0] + _dot(dlogits_ML, q_LK), sums[1] + _dot(dropped_ML, dy_LK)

    zero_MK = jnp.zeros(k_MK.shape, jnp.float32)
    sums = jax.lax.fori_loop(at.first_query_BJ[b, j], at.end_query_BJ[b, j], add, (zero_MK, zero_MK))
    # dk = scale · Σ dlogitsᵀ·q and dv = Σ weightsᵀ·dy, both with the rescaling that `_gradients` leaves out.
    factors = (tiles.rescale * s.scale, tiles.rescale)
    dk[tiles.keys(j)], dv[tiles.keys(j)] = ((x * c).astype(dk.dtype) for x, c in zip(sums, factors, strict=True))


def _backward_queries(s: Sizes, *refs: Ref) -> None:
    tiles, (q, k, v), (dy, norm, *outputs, dq, mean) = _opened(s, refs)
    at = tiles.at
    b, i = tiles.row, tiles.block
    q_LK, dy_LK = q[tiles.queries(i)], dy[tiles.queries(i)]
    # Σ weights·dweights of a query is Σ y·dy, under dropout too: y, and what rounding took from it.
    y_LK = sum(x[tiles.queries(i)].astype(jnp.float32) for x in outputs)
    mean_L = (y_LK * dy_LK.astype(jnp.float32)).sum(1) / tiles.rescale
    # Written for `_backward_keys`, which would else form it once for each block of keys.
    mean[0, tiles.queries(i)] = mean_L

    def add(j: Index, sum_LK: jax.Array) -> jax.Array:
        k_MK, v_MK = k[tiles.keys(j)], v[tiles.keys(j)]
        _, dlogits_LM = _gradients(tiles, (i, j), (q_LK, dy_LK), (k_MK, v_MK), norm, mean_L)
        return sum_LK + _dot(dlogits_LM, k_MK)

    sum_LK = jax.lax.fori_loop(at.first_key_BI[b, i], at.end_key_BI[b, i], add, jnp.zeros(q_LK.shape, jnp.float32))
    # Summed in float32, rounded once.
    dq[tiles.queries(i)] = (sum_LK * (tiles.rescale * s.scale)).astype(dq.dtype)


def _call(
    kernel: Callable[..., None],
    s: Sizes,
    blocks: int,
    scalars: Scalars,
    arrays: tuple[jax.Array, ...],
    results: list[jax.ShapeDtypeStruct],
    products: int,
    interpret: bool,
) -> Sequence[jax.Array]:
    """Runs a kernel over (blocks, heads, sequences). It sees whole arrays of one sequence and head, which Triton reads
    a tile at a time.

    Args:
        kernel: the function that a program runs.
        s: what it is compiled for.
        blocks: the number of blocks of queries, or of keys.
        scalars: the numbers that it reads.
        arrays: the arrays that it reads.
        results: shapes and dtypes of the arrays that it writes.
        products: the number of matrix products of a tile.
        interpret: runs it as plain operations.
    """

    def whole(x: jax.Array | jax.ShapeDtypeStruct) -> pl.BlockSpec:
        if x.ndim == 2:  # of a sequence
            return pl.BlockSpec((None, x.shape[1]), lambda block, head, row: (row, 0))
        return pl.BlockSpec((None, x.shape[1], None, x.shape[3]), lambda block, head, row: (row, 0, head, 0))

    # Every program sees all of the scalars.
    numbers = [pl.BlockSpec(x.shape, lambda *_, n=x.ndim: (0,) * n) for x in scalars]
    q = arrays[0]
    return pl.pallas_call(
        partial(kernel, s._replace(interpreted=interpret)),
        grid=(blocks, q.shape[2], q.shape[0]),
        in_specs=[*numbers, *map(whole, arrays)],
        out_specs=[whole(x) for x in results],
        out_shape=results,
        compiler_params=plgpu.CompilerParams(num_warps=_WARPS, num_stages=_stages(q.shape[3])),
        cost_estimate=cost(s, q.shape[::2], q.shape[3], products, (*arrays, *results)),
        interpret=interpret,
        name=f"attention{kernel.__name__}",
    )(*scalars, *arrays)


def _given(inputs: Inputs) -> tuple[jax.Array, ...]:
    return tuple(x for x in inputs if x is not None)


def forward(s: Sizes, scalars: Scalars, inputs: Inputs, interpret: bool) -> tuple[jax.Array, Saved]:
    """Returns y (BLHK), and what the backward pass reads."""
    B, L, H, _ = inputs.q.shape
    results = [
        like(inputs.q),
        jax.ShapeDtypeStruct((B, 2, H, L), jnp.float32),
        *[like(inputs.q)] * (s.rounds and s.saves),
    ]
    y, norm, *rounding = _call(_forward, s, s.query_blocks, scalars, _given(inputs), results, 2, interpret)
    return y, Saved(norm, y, rounding[0] if rounding else None)


def backward(
    s: Sizes, scalars: Scalars, inputs: Inputs, saved: Saved, dy: jax.Array, interpret: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns dq, dk, dv (BLHK)."""
    B, L, H, _ = inputs.q.shape
    outputs = [x for x in (saved.y, saved.rounding) if x is not None]
    results = [like(inputs.q), jax.ShapeDtypeStruct((B, 1, H, L), jnp.float32)]
    arrays = (*_given(inputs), dy, saved.norm, *outputs)
    # The queries' kernel runs first: the other one reads its means.
    dq, mean = _call(_backward_queries, s, s.query_blocks, scalars, arrays, results, 3, interpret)
    arrays = (*_given(inputs), dy, saved.norm, mean)
    dk, dv = _call(_backward_keys, s, s.key_blocks, scalars, arrays, [like(inputs.k), like(inputs.v)], 4, interpret)
    return dq, dk, dv
