"""Attention as Pallas kernels for TPUs, forward and backward. The weights BHLM exist in fast memory alone, a tile at a
time (Dao et al. 2022): an online softmax over the keys, and weights computed again in the backward pass.

Everything is transposed: arrays are BHKL, and a tile of weights is (keys, queries). Queries then lie along the lanes,
128 abreast, so that heads of 64 fill registers and memory without padding; what belongs to a query (its maximum, its
sum) is one row of lanes; and no product's result needs transposing.

The backward pass is one kernel where fast memory holds the gradient of all queries of a head, which computes each tile
once: five products. Longer texts have a kernel for the queries' gradient and one for keys and values: seven.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
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

ORDER, NORM = "BHKL", "BH2L"
"""The order of the arrays' dims, and of `Saved.norm`'s."""
Refs: TypeAlias = dict[str, Ref]
"""A kernel's blocks of arrays, results and scratch memory, by name."""


class Tile(NamedTuple):
    """Which tile a step of the grid computes: sequence, head, block of queries, block of keys."""

    b: Index
    h: Index
    i: Index
    j: Index


_SCALARS = len(Scalars._fields)
_VMEM_BYTES = 64 << 20
DQ_BYTES = 8 << 20
"""Fast memory for the gradient of a head's queries: half of a v4's, the smallest. It holds the float32 sum and two
copies of the result, since the last head's is still being written."""


def blocks(length: int, width: int, dtype: DTypeLike) -> tuple[int, int]:
    """Returns the queries and keys of a tile: the most that cut the length, rounded up to 128 lanes, evenly."""
    lanes = -(-length // 128)
    block = 128 * next(n for n in (4, 3, 2, 1) if lanes % n == 0)
    return block, block


def padded_width(width: int) -> int:
    """Returns the width of a head in the arrays: unchanged."""
    return width


def _dot(a: jax.Array, b: jax.Array, contract: tuple[int, int]) -> jax.Array:
    dims = (((contract[0],), (contract[1],)), ((), ()))
    # Given here, because a user's jax_default_matmul_precision may be one that the compiler has for float32 alone.
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
    return jax.lax.dot_general(a, b, dims, precision=precision, preferred_element_type=jnp.float32)


def _tile(by_keys: bool) -> Tile:
    # The last axis of a grid varies fastest: along it a kernel's sums stay in scratch memory.
    b, h, outer, inner = (pl.program_id(axis) for axis in range(4))
    return Tile(b, h, inner, outer) if by_keys else Tile(b, h, outer, inner)


def _places(s: Sizes, first_query: jax.Array, tile: Tile) -> tuple[jax.Array, jax.Array]:
    """Returns the numbers of a tile's queries and keys, (keys, queries) each."""
    shape = (s.keys, s.queries)
    query_ML = first_query + tile.i * s.queries + jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    return query_ML, tile.j * s.keys + jax.lax.broadcasted_iota(jnp.int32, shape, 0)


def _logits(s: Sizes, at: Scalars, tile: Tile, refs: Refs) -> jax.Array:
    """Returns a tile of logits with the mask applied, (keys, queries), float32."""
    # Keys are K×M and queries K×L: contracting K leaves (keys, queries), and nothing is transposed.
    logits_ML = _dot(refs["k"][0, 0], refs["q"][0, 0], (0, 0)) * s.scale
    # What belongs to keys is turned from a row of lanes into a column.
    tokens_M1, packs_1L, packs_M1 = refs["tokens"][0].T, refs["query_packs"][0], refs["key_packs"][0].T
    places = _places(s, at.first_query[0], tile)
    return masked(s, logits_ML, *places, at.window[0], tokens_M1, packs_1L, packs_M1)


def _dropped(s: Sizes, at: Scalars, tile: Tile, refs: Refs, *arrays_ML: jax.Array) -> tuple[jax.Array, ...]:
    """Returns arrays of a tile with dropout, by one mask."""
    if not s.rate:
        return arrays_ML
    b, h, *_ = tile
    # One sequence a row has its words as scalars; of several in a row each query has its own, as rows of lanes.
    words = (refs["starts"][0], refs["strides"][0]) if s.by_token else (at.start_B[b], at.stride_B[b])
    kept_ML = kept(s, *words, at.first_head[0] + h, *_places(s, at.first_query[0], tile))
    return tuple(jnp.where(kept_ML, x * (1.0 / (1.0 - s.rate)), 0.0) for x in arrays_ML)


def _forward(s: Sizes, at: Scalars, refs: Refs) -> None:
    tile = _tile(by_keys=False)
    b, i, j = tile.b, tile.i, tile.j
    high, total, sum_, kept_sums = refs["high"], refs["total"], refs["sum"], refs.get("kept_sums")

    # A new block of queries: scratch memory still holds the sums of the one before.
    @pl.when(j == 0)
    def _() -> None:
        high[...] = jnp.full_like(high, LOWEST)
        total[...] = jnp.zeros_like(total)
        sum_[...] = jnp.zeros_like(sum_)
        if kept_sums is not None:
            kept_sums[...] = jnp.zeros_like(kept_sums)

    # Blocks of keys that none of these queries sees are skipped.
    @pl.when((at.first_key_BI[b, i] <= j) & (j < at.end_key_BI[b, i]))
    def _() -> None:
        logits_ML = _logits(s, at, tile, refs)
        # The online softmax: what was summed before shrinks with each new maximum.
        high_1L = jnp.maximum(high[...], logits_ML.max(0, keepdims=True))
        weights_ML, shrink_1L = jnp.exp(logits_ML - high_1L), jnp.exp(high[...] - high_1L)
        total[...] = total[...] * shrink_1L + weights_ML.sum(0, keepdims=True)
        # After the total: dropout falls on normalised weights, so dropped ones still count in the softmax's sum.
        (weights_ML,) = _dropped(s, at, tile, refs, weights_ML)
        rounded_ML = weights_ML.astype(refs["v"].dtype)
        sum_[...] = sum_[...] * shrink_1L + _dot(refs["v"][0, 0], rounded_ML, (1, 0))
        # The kept weights' sums before and after rounding, for `unrounded`.
        if kept_sums is not None:
            sums = [x_ML.astype(jnp.float32).sum(0, keepdims=True) for x_ML in (weights_ML, rounded_ML)]
            kept_sums[...] = kept_sums[...] * shrink_1L + jnp.concatenate(sums)
        high[...] = high_1L

    # The last step of these queries, whether its keys were visited or not: the result is written once.
    @pl.when(j == s.key_blocks - 1)
    def _() -> None:
        y_KL = sum_[...] / total[...]
        if kept_sums is not None:
            y_KL *= unrounded(kept_sums[:1], kept_sums[1:])
        refs["y"][0, 0] = y_KL.astype(refs["y"].dtype)
        # What rounding takes away, in 16 bits again: the backward pass adds it to y.
        if "rounding" in refs:
            rounded_KL = y_KL.astype(refs["y"].dtype).astype(jnp.float32)
            refs["rounding"][0, 0] = (y_KL - rounded_KL).astype(refs["rounding"].dtype)
        # Apart: the maximum plus the sum's logarithm would round where all keys are padding, and it is near PADDED.
        refs["norm"][0, 0] = jnp.concatenate([high[...], total[...]])


def _saved_mean(refs: Refs) -> jax.Array:
    """Returns Σ weights·dweights of each query, (1, queries): it is Σ y·dy, under dropout too."""
    y_KL = refs["y"][0, 0].astype(jnp.float32)
    if "rounding" in refs:
        y_KL += refs["rounding"][0, 0].astype(jnp.float32)
    return (y_KL * refs["dy"][0, 0].astype(jnp.float32)).sum(0, keepdims=True)


def _gradients(
    s: Sizes, at: Scalars, tile: Tile, refs: Refs, mean: Callable[[], jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Returns a tile's weights with dropout, and the gradient of its logits, in the arrays' dtype."""
    dy_KL, norm_2L = refs["dy"][0, 0], refs["norm"][0, 0]
    # The forward pass's weights once more, from its maxima and sums.
    weights_ML = jnp.exp(_logits(s, at, tile, refs) - norm_2L[:1]) / norm_2L[1:]
    dropped_ML, dweights_ML = _dropped(s, at, tile, refs, weights_ML, _dot(refs["v"][0, 0], dy_KL, (0, 0)))
    # A tile with all keys forms the mean itself; otherwise it comes from y (`Saved`).
    mean_1L = (weights_ML * dweights_ML).sum(0, keepdims=True) if s.whole_rows else mean()
    dlogits_ML = weights_ML * (dweights_ML - mean_1L) * s.scale
    return dropped_ML.astype(dy_KL.dtype), dlogits_ML.astype(dy_KL.dtype)


def _backward(s: Sizes, at: Scalars, refs: Refs) -> None:
    """All gradients: tiles go by keys, and within these by queries."""
    tile = _tile(by_keys=True)
    i, j = tile.i, tile.j
    dq_sum = refs["dq_sum"]

    # The first block of keys meets each block of queries first: here its gradient starts, and its mean is kept.
    @pl.when(j == 0)
    def _() -> None:
        dq_sum[i] = jnp.zeros(dq_sum.shape[1:], dq_sum.dtype)
        if not s.whole_rows:
            refs["means"][i] = _saved_mean(refs)

    def add_to_dq(dlogits_ML: jax.Array) -> None:
        dq_sum[i] += _dot(refs["k"][0, 0], dlogits_ML, (1, 0))

    _sum_over_queries(s, at, refs, lambda: refs["means"][i], add_to_dq)

    # The queries' gradient stays in fast memory until the last block of keys has added to it.
    @pl.when((i == s.query_blocks - 1) & (j == s.key_blocks - 1))
    def _() -> None:
        dq = refs["dq"]
        for block in range(s.query_blocks):
            dq[0, 0, :, block * s.queries : (block + 1) * s.queries] = dq_sum[block].astype(dq.dtype)


def _backward_keys(s: Sizes, at: Scalars, refs: Refs) -> None:
    """The gradients of keys and values: tiles go by keys, and within these by queries."""
    _sum_over_queries(s, at, refs, lambda: refs["mean"][0, 0], lambda dlogits_ML: None)


def _sum_over_queries(
    s: Sizes, at: Scalars, refs: Refs, mean: Callable[[], jax.Array], use: Callable[[jax.Array], None]
) -> None:
    """Adds a tile to the gradients of its keys and values; `use` gets the gradient of its logits."""
    tile = _tile(by_keys=True)
    b, i, j = tile.b, tile.i, tile.j
    dk_sum, dv_sum = refs["dk_sum"], refs["dv_sum"]

    # A new block of keys: its sums start at 0, ...
    @pl.when(i == 0)
    def _() -> None:
        dk_sum[...] = jnp.zeros_like(dk_sum)
        dv_sum[...] = jnp.zeros_like(dv_sum)

    # ... take every block of queries that sees it, ...
    @pl.when((at.first_query_BJ[b, j] <= i) & (i < at.end_query_BJ[b, j]))
    def _() -> None:
        dropped_ML, dlogits_ML = _gradients(s, at, tile, refs, mean)
        dv_sum[...] += _dot(refs["dy"][0, 0], dropped_ML, (1, 1))
        dk_sum[...] += _dot(refs["q"][0, 0], dlogits_ML, (1, 1))
        use(dlogits_ML)

    # ... and are rounded and written once, after the last one.
    @pl.when(i == s.query_blocks - 1)
    def _() -> None:
        refs["dk"][0, 0] = dk_sum[...].astype(refs["dk"].dtype)
        refs["dv"][0, 0] = dv_sum[...].astype(refs["dv"].dtype)


def _backward_queries(s: Sizes, at: Scalars, refs: Refs) -> None:
    """The queries' gradient, and the mean that `_backward_keys` reads: tiles go by queries, within these by keys."""
    tile = _tile(by_keys=False)
    b, i, j = tile.b, tile.i, tile.j
    dq_sum, mean = refs["dq_sum"], refs["mean"]

    @pl.when(j == 0)
    def _() -> None:
        dq_sum[...] = jnp.zeros_like(dq_sum)
        # A result as well as a value of this kernel: `_backward_keys` reads it.
        mean[0, 0] = _saved_mean(refs)

    @pl.when((at.first_key_BI[b, i] <= j) & (j < at.end_key_BI[b, i]))
    def _() -> None:
        _, dlogits_ML = _gradients(s, at, tile, refs, lambda: mean[0, 0])
        dq_sum[...] += _dot(refs["k"][0, 0], dlogits_ML, (1, 0))

    @pl.when(j == s.key_blocks - 1)
    def _() -> None:
        refs["dq"][0, 0] = dq_sum[...].astype(refs["dq"].dtype)


def nearest(block: Index, first: Index, end: Index) -> jax.Array:
    """Returns the nearest block of a range; block 0 where the range is empty."""
    return jnp.clip(block, first, jnp.maximum(end, 1) - 1)


class _Pass(NamedTuple):
    """A kernel, and how it goes over the blocks.

    Args:
        kernel: what computes a tile.
        by: the blocks that the outer loop goes over: queries or keys.
        products: the number of matrix products of a tile.
    """

    kernel: Callable[[Sizes, Scalars, Refs], None]
    by: str
    products: int


def _block(name: str, s: Sizes, width: int, by_keys: bool) -> pl.BlockSpec:
    """Returns which part of an array a tile has, by the array's dims."""
    dims, size = name.split()[1], {"B": 1, "H": 1, "1": 1, "2": 2, "K": width, "L": s.queries, "M": s.keys}

    def index(b: Index, h: Index, outer: Index, inner: Index, *numbers: Ref) -> tuple[Index, ...]:
        at = Scalars(*numbers)
        # A tile that is not visited gets the blocks of a visited one: nothing is fetched for it.
        if by_keys:
            j, i = outer, nearest(inner, at.first_query_BJ[b, outer], at.end_query_BJ[b, outer])
            # The first keys' turn forms the mean of all queries.
            i = jnp.where(outer == 0, inner, i)
        else:
            i, j = outer, nearest(inner, at.first_key_BI[b, outer], at.end_key_BI[b, outer])
        once = jnp.where(outer == 0, inner, s.query_blocks - 1)
        place = {"B": b, "H": h, "L": i, "M": j, "O": once}
        return tuple(place.get(letter, 0) for letter in dims)

    # One block for all steps of a head: it is written back when the grid moves on to the next head.
    if dims.endswith("W"):  # all queries of a head
        shape = (1, 1, width, s.queries * s.query_blocks)
        return pl.BlockSpec(shape, lambda b, h, *_: (b, h, 0, 0))
    size["O"] = s.queries  # queries that are read in the first keys' turn alone
    return pl.BlockSpec(tuple(size[letter] for letter in dims), index)


def _call(
    of: _Pass,
    s: Sizes,
    scalars: Scalars,
    arrays: dict[str, jax.Array],
    results: dict[str, jax.ShapeDtypeStruct],
    scratch: dict[str, tuple[int, ...]],
    interpret: bool,
) -> Sequence[jax.Array]:
    """Runs a kernel over (sequences, heads, blocks, blocks). Arrays are named with their dims: M keys, L queries."""
    q = arrays["q BHKL"]
    width, by_keys = q.shape[2], of.by == "keys"

    def run(*refs: Ref) -> None:
        # The kernel knows its blocks by name; the dims are for `_block` alone.
        names = [name.split()[0] for name in (*arrays, *results, *scratch)]
        of.kernel(s, Scalars(*refs[:_SCALARS]), dict(zip(names, refs[_SCALARS:], strict=True)))

    grid = (s.key_blocks, s.query_blocks) if by_keys else (s.query_blocks, s.key_blocks)
    # The fused kernel adds to one dq over all blocks of keys, so these may not be shared among cores.
    outer = "arbitrary" if of.kernel is _backward else "parallel"
    return pl.pallas_call(
        run,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=_SCALARS,
            grid=(*q.shape[:2], *grid),
            in_specs=[_block(name, s, width, by_keys) for name in arrays],
            out_specs=[_block(name, s, width, by_keys) for name in results],
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch.values()],
        ),
        out_shape=list(results.values()),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", outer, "arbitrary"), vmem_limit_bytes=_VMEM_BYTES
        ),
        cost_estimate=cost(s, q.shape[:2], width, of.products, (*arrays.values(), *results.values())),
        interpret=interpret,
        name=f"attention{of.kernel.__name__}",
    )(*scalars, *arrays.values())


def _named(inputs: Inputs) -> dict[str, jax.Array]:
    # Masks get a dim of one in place of the sublanes.
    q, k, v, tokens = *inputs[:3], inputs.tokens_BM[:, None]
    words = {"starts B1L": inputs.start_BL, "strides B1L": inputs.stride_BL}
    return {name: x[:, None] for name, x in words.items() if x is not None} | {
        "q BHKL": q,
        "k BHKM": k,
        "v BHKM": v,
        "tokens B1M": tokens,
        "query_packs B1L": inputs.packs_BL[:, None],
        "key_packs B1M": inputs.packs_BM[:, None],
    }


def forward(s: Sizes, scalars: Scalars, inputs: Inputs, interpret: bool) -> tuple[jax.Array, Saved]:
    """Returns y (BHKL), and what the backward pass reads."""
    B, H, K, L = inputs.q.shape
    results = {"y BHKL": like(inputs.q), "norm BH2L": jax.ShapeDtypeStruct((B, H, 2, L), jnp.float32)}
    scratch = {"high": (1, s.queries), "total": (1, s.queries), "sum": (K, s.queries)}
    # Tiles with whole rows need neither: they form the mean without y.
    if s.rounds and not s.whole_rows:
        scratch["kept_sums"] = (2, s.queries)
        if s.saves:
            results["rounding BHKL"] = like(inputs.q)
    y, norm, *rounding = _call(_Pass(_forward, "queries", 2), s, scalars, _named(inputs), results, scratch, interpret)
    return y, Saved(norm, None if s.whole_rows else y, rounding[0] if rounding else None)


def backward(
    s: Sizes, scalars: Scalars, inputs: Inputs, saved: Saved, dy: jax.Array, interpret: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns dq, dk, dv (BHKL)."""
    B, H, K, L = inputs.q.shape
    # A sum of 4 bytes and two results, one of them still being written (DQ_BYTES).
    fused = s.whole_rows or K * L * (4 + 2 * inputs.q.dtype.itemsize) <= DQ_BYTES
    arrays = _named(inputs) | {"dy BHKL": dy, "norm BH2L": saved.norm}
    # The fused kernel reads y in the first keys' turn only (O); otherwise y goes with the blocks of queries (L).
    rows = "O" if fused else "L"
    outputs = {f"y BHK{rows}": saved.y, f"rounding BHK{rows}": saved.rounding}
    outputs = {name: x for name, x in outputs.items() if x is not None}
    keys = {"dk BHKM": like(inputs.k), "dv BHKM": like(inputs.v)}
    sums = {"dk_sum": (K, s.keys), "dv_sum": (K, s.keys)}
    call = partial(_call, s=s, scalars=scalars, interpret=interpret)
    if fused:
        scratch = sums | {"dq_sum": (s.query_blocks, K, s.queries), "means": (s.query_blocks, 1, s.queries)}
        results = {"dq BHKW": like(inputs.q)} | keys
        dq, dk, dv = call(_Pass(_backward, "keys", 5), arrays=arrays | outputs, results=results, scratch=scratch)
        return dq, dk, dv
    # Two kernels, the queries' first: the keys' kernel reads its means.
    results = {"dq BHKL": like(inputs.q), "mean BH1L": jax.ShapeDtypeStruct((B, H, 1, L), jnp.float32)}
    scratch = {"dq_sum": (K, s.queries)}
    of = _Pass(_backward_queries, "queries", 3)
    dq, mean = call(of, arrays=arrays | outputs, results=results, scratch=scratch)
    arrays["mean BH1L"] = mean
    dk, dv = call(_Pass(_backward_keys, "keys", 4), arrays=arrays, results=keys, scratch=sums)
    return dq, dk, dv
