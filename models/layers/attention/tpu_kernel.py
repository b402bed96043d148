"""Attention as two Pallas kernels for TPUs, forward and backward. The weights BHLM exist in fast memory alone, a tile
at a time (Dao et al. 2022): an online softmax over the keys, and weights computed again in the backward pass.

Everything is transposed: arrays are BHKL, and a tile of weights is (keys, queries). Queries then lie along the lanes,
128 abreast, so that heads of 64 fill registers and memory without padding; what belongs to a query (its maximum, its
sum) is one row of lanes; and no product's result needs transposing.
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from contexture.models.layers.attention.tiles import LOWEST, Index, Inputs, Ref, Scalars, Sizes, kept, masked

ORDER = "BHKL"
"""The order of the arrays' dims."""
_SCALARS = len(Scalars._fields)
_VMEM_BYTES = 64 << 20


def blocks(length: int, width: int, dtype: DTypeLike) -> tuple[int, int]:
    """Returns the queries and keys of a tile: the most that cut the length, rounded up to 128 lanes, evenly."""
    lanes = -(-length // 128)
    block = 128 * next(n for n in (4, 3, 2, 1) if lanes % n == 0)
    return block, block


def padded_width(width: int) -> int:
    """Returns the width of a head in the arrays: as it is."""
    return width


def _dot(a: jax.Array, b: jax.Array, contract: tuple[int, int]) -> jax.Array:
    dims = (((contract[0],), (contract[1],)), ((), ()))
    # Said here, because a user's jax_default_matmul_precision may be one that the compiler has for float32 alone.
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
    return jax.lax.dot_general(a, b, dims, precision=precision, preferred_element_type=jnp.float32)


def _places(s: Sizes, i: Index, j: Index) -> tuple[jax.Array, jax.Array]:
    """Returns the numbers of a tile's queries and keys, (keys, queries) each."""
    shape = (s.keys, s.queries)
    query_ML = i * s.queries + jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    return query_ML, j * s.keys + jax.lax.broadcasted_iota(jnp.int32, shape, 0)


def _logits(s: Sizes, at: Scalars, i: Index, j: Index, q: Ref, k: Ref, masks: Sequence[Ref]) -> jax.Array:
    """Returns a tile of logits with the mask applied, (keys, queries), float32."""
    logits_ML = _dot(k[0, 0], q[0, 0], (0, 0)) * s.scale
    tokens, query_packs, key_packs = masks
    window = at.window[0]
    return masked(s, logits_ML, *_places(s, i, j), window, tokens[0].T, query_packs[0], key_packs[0].T)


def _forward(s: Sizes, *refs: Ref) -> None:
    at, (q, k, v, *masks, out, norm, high, total, sum_) = Scalars(*refs[:_SCALARS]), refs[_SCALARS:]
    b, h, i, j = (pl.program_id(axis) for axis in range(4))

    @pl.when(j == 0)
    def _() -> None:
        high[...] = jnp.full_like(high, LOWEST)
        total[...] = jnp.zeros_like(total)
        sum_[...] = jnp.zeros_like(sum_)

    @pl.when((at.first_key_BI[b, i] <= j) & (j < at.end_key_BI[b, i]))
    def _() -> None:
        logits_ML = _logits(s, at, i, j, q, k, masks)
        # The online softmax: what was summed before shrinks with each new maximum.
        high_1L = jnp.maximum(high[...], logits_ML.max(0, keepdims=True))
        weights_ML, shrink_1L = jnp.exp(logits_ML - high_1L), jnp.exp(high[...] - high_1L)
        total[...] = total[...] * shrink_1L + weights_ML.sum(0, keepdims=True)
        if s.rate:
            kept_ML = kept(s, at.start_B[b], at.stride_B[b], at.first_head[0] + h, *_places(s, i, j))
            weights_ML = jnp.where(kept_ML, weights_ML * (1.0 / (1.0 - s.rate)), 0.0)
        sum_[...] = sum_[...] * shrink_1L + _dot(v[0, 0], weights_ML.astype(v.dtype), (1, 0))
        high[...] = high_1L

    @pl.when(j == s.key_blocks - 1)
    def _() -> None:
        out[0, 0] = (sum_[...] / total[...]).astype(out.dtype)
        # Apart: the maximum plus the sum's logarithm would round where all keys are padding, and it is near PADDED.
        norm[0, 0] = jnp.concatenate([high[...], total[...]])


def _backward(s: Sizes, *refs: Ref) -> None:
    at, (q, k, v, *masks, dy, norm, mean, dq, dk, dv, dq_sum, dk_sum, dv_sum) = (
        Scalars(*refs[:_SCALARS]), refs[_SCALARS:],
    )  # fmt: skip
    b, h, j, i = (pl.program_id(axis) for axis in range(4))

    @pl.when(j == 0)
    def _() -> None:
        dq_sum[i] = jnp.zeros(dq_sum.shape[1:], dq_sum.dtype)

    @pl.when(i == 0)
    def _() -> None:
        dk_sum[...] = jnp.zeros_like(dk_sum)
        dv_sum[...] = jnp.zeros_like(dv_sum)

    @pl.when((at.first_query_BJ[b, j] <= i) & (i < at.end_query_BJ[b, j]))
    def _() -> None:
        dy_KL = dy[0, 0]
        weights_ML = jnp.exp(_logits(s, at, i, j, q, k, masks) - norm[0, 0, :1]) / norm[0, 0, 1:]
        dweights_ML, dropped_ML = _dot(v[0, 0], dy_KL, (0, 0)), weights_ML
        if s.rate:
            kept_ML = kept(s, at.start_B[b], at.stride_B[b], at.first_head[0] + h, *_places(s, i, j))
            dropped_ML, dweights_ML = (
                jnp.where(kept_ML, x * (1.0 / (1.0 - s.rate)), 0.0) for x in (weights_ML, dweights_ML)
            )
        dv_sum[...] += _dot(dy_KL, dropped_ML.astype(dy_KL.dtype), (1, 1))
        dlogits_ML = (weights_ML * (dweights_ML - mean[0, 0]) * s.scale).astype(dy_KL.dtype)
        dk_sum[...] += _dot(q[0, 0], dlogits_ML, (1, 1))
        dq_sum[i] += _dot(k[0, 0], dlogits_ML, (1, 0))

    @pl.when(i == s.query_blocks - 1)
    def _() -> None:
        dk[0, 0] = dk_sum[...].astype(dk.dtype)
        dv[0, 0] = dv_sum[...].astype(dv.dtype)

    # The queries' gradient stays in fast memory until the last block of keys has added to it: one kernel forms all
    # three gradients, and computes each tile once.
    @pl.when((i == s.query_blocks - 1) & (j == s.key_blocks - 1))
    def _() -> None:
        for block in range(s.query_blocks):
            dq[0, 0, :, block * s.queries : (block + 1) * s.queries] = dq_sum[block].astype(dq.dtype)


def _call(
    kernel: Callable[..., None], s: Sizes, scalars: Scalars, arrays: dict[str, jax.Array],
    results: dict[str, jax.ShapeDtypeStruct], scratch: list[tuple[int, ...]], backward: bool, interpret: bool,
) -> Sequence[jax.Array]:  # fmt: skip
    """Runs a kernel over (sequences, heads, blocks, blocks). An array is named by its dims; M are keys, L queries."""
    width = arrays["q BHKL"].shape[2]

    def block(name: str) -> pl.BlockSpec:
        dims, size = name.split()[1], {"B": 1, "H": 1, "1": 1, "2": 2, "K": width, "L": s.queries, "M": s.keys}

        def index(b: Index, h: Index, outer: Index, inner: Index, *numbers: Ref) -> tuple[Index, ...]:
            at = Scalars(*numbers)
            # Of a tile that is not visited the blocks of a visited one stand: nothing is fetched for it.
            if backward:
                j, i = outer, jnp.clip(inner, at.first_query_BJ[b, outer], at.end_query_BJ[b, outer] - 1)
            else:
                i, j = outer, jnp.clip(inner, at.first_key_BI[b, outer], at.end_key_BI[b, outer] - 1)
            place = {"B": b, "H": h, "L": i, "M": j}
            return tuple(place.get(letter, 0) for letter in dims)

        if dims.endswith("W"):  # all queries of a head
            shape = (1, 1, width, s.queries * s.query_blocks)
            return pl.BlockSpec(shape, lambda b, h, *_: (b, h, 0, 0))
        return pl.BlockSpec(tuple(size[letter] for letter in dims), index)

    grid = (s.key_blocks, s.query_blocks) if backward else (s.query_blocks, s.key_blocks)
    kind = "arbitrary" if backward else "parallel"
    q = arrays["q BHKL"]
    return pl.pallas_call(
        partial(kernel, s),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=_SCALARS,
            grid=(*q.shape[:2], *grid),
            in_specs=[block(name) for name in arrays],
            out_specs=[block(name) for name in results],
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
        ),
        out_shape=list(results.values()),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", kind, "arbitrary"), vmem_limit_bytes=_VMEM_BYTES
        ),
        interpret=interpret,
        name="attention_backward" if backward else "attention_forward",
    )(*scalars, *arrays.values())


def _named(inputs: Inputs) -> dict[str, jax.Array]:
    # Masks get a dim of one, which stands for the sublanes.
    q, k, v, tokens, packs = *inputs[:3], inputs.tokens_BM[:, None], inputs.packs_BM[:, None]
    return {"q BHKL": q, "k BHKM": k, "v BHKM": v, "tokens B1M": tokens, "packs B1L": packs, "packs B1M": packs}


def forward(s: Sizes, scalars: Scalars, inputs: Inputs, interpret: bool) -> tuple[jax.Array, jax.Array]:
    """Returns y (BHKL) and norm (BH2L, float32): each query's largest logit, and its sum of exponentials less that."""
    B, H, K, L = inputs.q.shape
    results = {"y BHKL": _like(inputs.q), "norm BH2L": jax.ShapeDtypeStruct((B, H, 2, L), jnp.float32)}
    scratch = [(1, s.queries), (1, s.queries), (K, s.queries)]
    y, norm = _call(_forward, s, scalars, _named(inputs), results, scratch, backward=False, interpret=interpret)
    return y, norm


def backward(
    s: Sizes, scalars: Scalars, inputs: Inputs, y: jax.Array, norm: jax.Array, dy: jax.Array, interpret: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns dq, dk, dv (BHKL)."""
    K = inputs.q.shape[2]
    # Σ weights·dweights of a query is Σ y·dy, under dropout too.
    mean_BH1L = (y.astype(jnp.float32) * dy.astype(jnp.float32)).sum(2, keepdims=True)
    arrays = _named(inputs) | {"dy BHKL": dy, "norm BH2L": norm, "mean BH1L": mean_BH1L}
    results = {"dq BHKW": _like(inputs.q), "dk BHKM": _like(inputs.k), "dv BHKM": _like(inputs.v)}
    scratch = [(s.query_blocks, K, s.queries), (K, s.keys), (K, s.keys)]
    dq, dk, dv = _call(_backward, s, scalars, arrays, results, scratch, backward=True, interpret=interpret)
    return dq, dk, dv


def _like(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)
