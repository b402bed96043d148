"""Attention by the kernels, interpreted on a CPU, against the reference: results, gradients and dropout masks."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from contexture.models.layers.attention import flash, gpu_kernel, module, tpu_kernel
from contexture.models.layers.attention.mask import AttentionMask
from contexture.models.layers.attention.tiles import Inputs, visited
from contexture.models.layers.dropout import DropoutKey, WeightDropout, dropout_key
from tests.helpers.attention_cases import (
    KERNELS,
    NAMES,
    Case,
    Tiled,
    bias_of,
    by_kernel,
    by_reference,
    draw_arrays,
    draw_key,
    draw_mask,
    draw_tokens,
    gradients,
)
from tests.helpers.long import long
from tests.helpers.parity_rule import close, off

# Lengths that tiles do not divide, and one that they do.
CASES = {
    "padded": Case("padded", 37, 80, "float32", 0.3),
    "packed_banded": Case("packed_banded", 41, 128, "float32", 0.1),
    "padded_16_bit": Case("padded", 45, 64, "bfloat16", 0.0),
    "causal_16_bit": Case("causal", 64, 96, "bfloat16", 0.1),
}
QUICK = [("tpu", "padded_16_bit"), ("tpu_long", "packed_banded"), ("gpu", "causal_16_bit"), ("gpu", "packed_banded")]
TILES = {"tpu": (32, 16), "gpu": (16, 16), "tpu_long": (16, 32)}


def tiled(kernel: str, name: str) -> Tiled:
    """A kernel with small tiles. Of one case it sees whole rows, which have another backward pass on TPUs."""
    return Tiled(kernel, *((16, 64) if (kernel, name) == ("tpu", "causal_16_bit") else TILES[kernel]))


def assert_alike(kernel: Tiled, case: Case, seed: int, offset: int, times: int) -> None:
    """The kernel gives what the reference gives.

    In bfloat16 both are measured against the reference in float32, of the same numbers: the kernel may be so many times
    as far off as the reference, and by the result's own rounding.
    """
    mask, key = draw_mask(case, seed), draw_key(case.rows, seed)
    arrays = draw_arrays(case.shape, case.dtype, seed, offset)
    actual, same = by_kernel(kernel, case, arrays, mask, key), by_reference(case, arrays, mask, key)
    if case.dtype == "float32":
        for name, a, b in zip(NAMES, actual, same, strict=True):
            near(a, b, name, 1e-5)
        return
    q, k, v, dy = (x.astype(jnp.float32) for x in arrays)
    exact = by_reference(case._replace(dtype="float32"), (q, k, v, dy), mask, key)
    for name, a, b, c in zip(NAMES, actual, same, exact, strict=True):
        near(a, c, name, 2**-8 + (times * off(b, c, name) if c.any() else 0.0))


def near(a: np.ndarray, b: np.ndarray, name: str, tolerance: float) -> None:
    """The parity rule, and for zeros the same of terms that are about one: where each query sees one key it has no
    gradient, and dropout may drop all of a few weights."""
    if b.any():
        close(a, b, name, tolerance)
    else:
        assert np.abs(a).max() <= tolerance, name


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        *QUICK,
        *long(*((kernel, name) for kernel in KERNELS for name in CASES if (kernel, name) not in QUICK)),
    ],
)
@settings(max_examples=6, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), offset=st.sampled_from([4, 0]))
def test_a_kernel_is_the_reference(kernel: str, name: str, seed: int, offset: int):
    """Whatever the arrays, the padding, the documents, the window and the dropout's key."""
    # In float32 the reference's own rounding grows with the offset.
    assert_alike(tiled(kernel, name), CASES[name], seed, offset if "16_bit" in name else 0, times=1)


@pytest.mark.parametrize("kernel", ["gpu", *long(*(kernel for kernel in KERNELS if kernel != "gpu"))])
def test_equal_values_leave_queries_without_gradient(kernel: str):
    """Also in bfloat16, where weights and the result are rounded, and keys have an offset that errors grow with."""
    case = CASES["padded_16_bit"]
    q, k, v, dy = draw_arrays(case.shape, case.dtype, 1, offset=4)
    v = jnp.broadcast_to(v[:, :1], v.shape)
    mask, key = draw_mask(case, 1), draw_key(case.rows, 1)
    dq = by_kernel(tiled(kernel, "padded_16_bit"), case, (q, k, v, dy), mask, key)[1]
    dweights_BLH = (v * dy).astype(jnp.float32).sum(-1)
    largest = float(jnp.abs(dweights_BLH).max() * jnp.abs(k).max()) * case.width**-0.5
    assert np.abs(dq).max() <= 2**-14 * largest


@pytest.mark.long
@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])  # smaller cases take as long
@given(data=st.data())
def test_a_kernel_is_the_reference_whatever_its_tiles(kernel: str, data: st.DataObject):
    kind = data.draw(st.sampled_from(["padded", "causal", "banded", "packed", "packed_banded"]), label="kind")
    length = data.draw(st.integers(1, 150), label="length")
    width = data.draw(st.sampled_from([8, 64, 80, 96, 128]), label="width")
    dtype = data.draw(st.sampled_from(["float32", "bfloat16"]), label="dtype")
    rate = data.draw(st.sampled_from([0.0, 0.1, 0.5]), label="rate")
    rows, heads = data.draw(st.integers(1, 3), label="rows"), data.draw(st.integers(1, 3), label="heads")
    tiles = data.draw(st.sampled_from([(16, 16), (32, 16), (16, 64), (128, 128)]), label="tiles")
    seed, offset = data.draw(st.integers(0, 10**6), label="seed"), data.draw(st.sampled_from([0, 4]), label="offset")
    case = Case(kind, length, width, dtype, rate, rows, heads)
    assert_alike(Tiled(kernel, *tiles), case, seed, offset if dtype == "bfloat16" else 0, times=2)


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        *(("tpu", "padded"), ("gpu", "packed_banded"), ("tpu_long", "packed_banded")),
        *long(("gpu", "padded"), ("tpu", "packed_banded")),
    ],
)
def test_tiles_in_which_nothing_is_seen_are_not_computed(kernel: str, name: str):
    """NaN in a block of keys, or of queries, reaches none of the blocks that see nothing of it."""
    case, (queries, keys) = CASES[name], TILES[kernel]
    seed = {"padded": 3, "packed_banded": 2}[name]
    mask, key, length = draw_mask(case, seed), draw_key(case.rows, seed), case.length
    if mask.tokens_BM is not None:  # where all keys are padding all are seen
        mask = AttentionMask(tokens_BM=mask.tokens_BM.at[:, :10].set(1))
    q, k, v, dy = arrays = draw_arrays(case.shape, case.dtype, seed)
    y, dq, dk, dv = by_reference(case, arrays, mask, key)
    seen_BLM = np.broadcast_to(np.asarray(bias_of(mask, length))[:, 0] > -1e3, (case.rows, length, length))
    tested = 0
    for row in range(case.rows):
        for start in range(0, length, keys):
            block = (row, slice(start, start + keys))
            unseen = _unseen(seen_BLM[row, :, start : start + keys].any(1), queries)
            poisoned = (q, k.at[block].set(jnp.nan), v.at[block].set(jnp.nan), dy)
            actual = by_kernel(tiled(kernel, name), case, poisoned, mask, key)
            for a, b in zip(actual[:2], (y, dq), strict=True):
                assert np.isfinite(a[row, unseen]).all() and np.abs(a - b)[row, unseen].max(initial=0) <= 1e-5
            tested += unseen.sum()
        for start in range(0, length, queries):
            block = (row, slice(start, start + queries))
            unseen = _unseen(seen_BLM[row, start : start + queries].any(0), keys)
            poisoned = (q.at[block].set(jnp.nan), k, v, dy.at[block].set(jnp.nan))
            actual = by_kernel(tiled(kernel, name), case, poisoned, mask, key)
            for a, b in zip(actual[2:], (dk, dv), strict=True):
                assert np.isfinite(a[row, unseen]).all() and np.abs(a - b)[row, unseen].max(initial=0) <= 1e-5
            tested += unseen.sum()
    assert tested > length


def _unseen(seen: Any, size: int) -> np.ndarray:
    """Returns which places stand in blocks of this size without any that is seen."""
    starts = np.arange(0, len(seen), size)
    return np.repeat(~np.logical_or.reduceat(seen, starts), size)[: len(seen)]


@pytest.mark.parametrize("kernel", ["tpu", "gpu"])
def test_evaluation_computes_the_same_and_keeps_nothing(kernel: str):
    case = CASES["padded_16_bit"]
    arrays, mask, key = draw_arrays(case.shape, case.dtype, 2), draw_mask(case, 2), draw_key(case.rows, 2)
    module: Any = tiled(kernel, "padded_16_bit")
    attend = jax.jit(partial(flash.attend, mask=mask, kernel=module, interpret=True))
    y = by_kernel(tiled(kernel, "padded_16_bit"), case, arrays, mask, key)[0]
    assert np.array_equal(y, np.asarray(attend(*arrays[:3]), np.float32))
    (read,), (written, *_) = (
        _costs(jax.make_jaxpr(of)(*arrays).jaxpr)
        for of in (lambda q, k, v, dy: attend(q, k, v), lambda *x: gradients(attend, x))
    )
    length = -(-case.length // max(TILES[kernel])) * max(TILES[kernel])
    assert written.bytes_accessed - read.bytes_accessed == 2 * case.rows * case.heads * length * case.width


SEVERAL = Case("banded", 650, 16, "float32", 0.1, rows=1, heads=1)


def test_a_text_is_cut_in_tiles_that_are_shorter_than_it():
    """Of the kernel for TPUs, with the tiles that it chooses."""
    assert tpu_kernel.blocks(SEVERAL.length, SEVERAL.width, SEVERAL.dtype) == (384, 384)


@pytest.mark.long
def test_a_text_of_several_tiles_is_the_reference():
    case = SEVERAL
    queries, keys = tpu_kernel.blocks(case.length, case.width, case.dtype)
    assert_alike(Tiled("tpu", queries, keys), case, 5, 0, times=1)


def kept_by(attend: Any, length: int, key: DropoutKey, longest: int = 0) -> np.ndarray:
    """The dropout mask that attention uses, BHLM: of equal logits, and values that show one key each."""
    zeros = jnp.zeros((2, length, 3, length))
    v_BMHK = jnp.broadcast_to(jnp.eye(length)[None, :, None], zeros.shape)
    dropped = WeightDropout(0.4, key, 9, longest)
    y_BLHK = jax.jit(lambda q, k, v: attend(q, k, v, dropped))(zeros, zeros, v_BMHK)
    kept = np.asarray(y_BLHK.swapaxes(1, 2) != 0)
    assert 0.5 < kept.mean() < 0.7
    return kept


@pytest.mark.parametrize("length", [131, *long(64)])
def test_masks_are_the_references_bit_for_bit(length: int):
    """Whatever the size of the tiles: 131 is cut in three by one kernel and is one padded tile for the other."""
    key = dropout_key(11, jnp.int32(2), jnp.arange(2) + 30)
    nothing = AttentionMask(tokens_BM=jnp.ones((2, length), jnp.int32))
    bias = jnp.zeros((1, 1, 1, 1))
    expected = kept_by(lambda q, k, v, dropped: module.reference_attend(q, k, v, bias, dropped), length, key)
    for kernel in (tpu_kernel, gpu_kernel):
        assert np.array_equal(kept_by(_by(kernel, nothing), length, key), expected)


def _by(kernel: Any, mask: AttentionMask) -> Any:
    return lambda q, k, v, dropped: flash.attend(q, k, v, mask, dropped, kernel=kernel, interpret=True)


@pytest.mark.long
def test_masks_of_a_shorter_sequence_are_those_of_the_longest():
    """However far a batch is padded, its tokens lose the same weights."""
    key = dropout_key(11, jnp.int32(2), jnp.arange(2) + 30)
    bias = jnp.zeros((1, 1, 1, 1))

    def drawn(length: int) -> np.ndarray:
        return kept_by(lambda q, k, v, dropped: module.reference_attend(q, k, v, bias, dropped), length, key, 96)

    whole = drawn(96)
    for length in (40, 64):
        assert np.array_equal(drawn(length), whole[:, :, :length, :length])
        nothing = AttentionMask(tokens_BM=jnp.ones((2, length), jnp.int32))
        for kernel in (tpu_kernel, gpu_kernel):
            actual = kept_by(_by(kernel, nothing), length, key, 96)
            assert np.array_equal(actual, whole[:, :, :length, :length])


MESH = ("data", "fsdp", "tensor")


@pytest.mark.parametrize(("kernel", "rows", "heads"), [("tpu", 2, 3), *long(("tpu", 4, 2), ("gpu", 4, 2))])
def test_devices_have_their_own_sequences_and_heads(kernel: str, rows: int, heads: int):
    """On eight devices the same results and masks as on one. Where four of them hold the same sequences and heads,
    each computes the whole of their gradients, and none are summed."""
    mesh = jax.make_mesh((2, 2, 2), MESH, axis_types=(jax.sharding.AxisType.Auto,) * 3)
    mask = AttentionMask(tokens_BM=draw_tokens(np.random.default_rng(2), rows, 24))
    arrays = draw_arrays((rows, 24, heads, 16), "float32")
    key = dropout_key(3, jnp.int32(5), jnp.arange(rows))

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        dropped = WeightDropout(0.2, key, jnp.int32(3))
        return flash.attend(q, k, v, mask, dropped, kernel=KERNELS[kernel], interpret=True)

    alone = jax.jit(partial(gradients, attend))(arrays)
    with jax.set_mesh(mesh):
        compiled = jax.jit(partial(gradients, attend)).lower(arrays).compile()
        shared = compiled(arrays)
    for a, b in zip(shared, alone, strict=True):
        close(a, b, tolerance=1e-6)
    assert "all-reduce" not in str(compiled.as_text())


@pytest.mark.parametrize("kernel", ["tpu", "gpu"])
def test_no_array_has_all_weights(kernel: str):
    """Not in the program, forward or backward, at a length of many tiles."""
    length = 2048
    x = jax.ShapeDtypeStruct((1, length, 2, 64), jnp.bfloat16)

    def gradients(q: Any, k: Any, v: Any, dy: Any) -> Any:
        mask = AttentionMask(causal=True)
        return jax.vjp(lambda *x: flash.attend(x[0], x[1], x[2], mask, kernel=KERNELS[kernel]), q, k, v)[1](dy)

    text = str(jax.make_jaxpr(gradients)(x, x, x, x))
    assert "pallas_call" in text and f"{length},{length}" not in text


def test_of_a_causal_text_tiles_behind_the_diagonal_are_not_visited():
    s = flash.sizes_of(AttentionMask(causal=True, window=jnp.int32(64)), 1024, 64, jnp.bfloat16, gpu_kernel, 0.0)
    nothing = jnp.zeros((1, 1024), jnp.int32)
    inputs = Inputs(nothing, nothing, nothing, nothing, nothing, nothing)
    first_BI, end_BI, first_BJ, end_BJ = visited(s, 0, jnp.int32(64), inputs)
    assert (np.asarray(end_BI)[0] == np.arange(16) + 1).all()
    assert (np.asarray(end_BI - first_BI)[0] <= 2).all() and (np.asarray(end_BJ - first_BJ)[0] <= 2).all()


def test_of_packed_documents_padding_makes_no_block_visit_all():
    packs_BL = jnp.asarray(np.r_[np.repeat(np.arange(1, 9), 124), np.zeros(8)][None], jnp.int32)
    s = flash.sizes_of(AttentionMask(causal=True, packs_BL=packs_BL), 1000, 64, jnp.bfloat16, gpu_kernel, 0.0)
    padded_BL = jnp.pad(packs_BL, ((0, 0), (0, 24)))
    inputs = Inputs(padded_BL, padded_BL, padded_BL, jnp.zeros_like(padded_BL), padded_BL, padded_BL)
    first_BI, end_BI, first_BJ, end_BJ = visited(s, 0, jnp.int32(0), inputs)
    assert np.asarray(end_BI - first_BI).max() <= 3 and np.asarray(end_BJ - first_BJ).max() <= 3


def test_a_kernels_cost_is_that_of_its_products():
    """Of the forward pass 4·B·H·L·M·K FLOPs, of the backward pass 10, or 14 by two kernels; half where causal."""
    B, L, H, K = 2, 1024, 3, 64
    x = jax.ShapeDtypeStruct((B, L, H, K), jnp.bfloat16)
    product, array = 2 * B * H * L * L * K, 2 * B * H * L * K
    masks, norm = 4 * B * L, 8 * B * H * L
    for kernel, causal, expected in [("tpu", False, (2, 5)), ("tpu", True, (1, 2.5)), ("gpu", False, (2, 3, 4)),
                                     ("tpu_long", False, (2, 3, 4))]:  # fmt: skip
        module: Any = Tiled(kernel, 512, 512)
        mask = AttentionMask(causal=True) if causal else AttentionMask(tokens_BM=jnp.ones((B, L), jnp.int32))
        attend = partial(flash.attend, mask=mask, kernel=module)
        costs = _costs(jax.make_jaxpr(partial(gradients, attend))((x, x, x, x)).jaxpr)
        assert [cost.flops for cost in costs] == [n * product for n in expected]
        assert {cost.transcendentals for cost in costs} == {B * H * L * L // (2 if causal else 1)}
        # q, k, v, tokens, packs of keys and of queries; y, what rounding took from it, and norm.
        assert costs[0].bytes_accessed == 5 * array + 3 * masks + norm


def _costs(jaxpr: Any) -> list[Any]:
    """The costs of a program's kernels, in their order."""
    costs = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            costs.append(equation.params["cost_estimate"])
            continue
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            costs += _costs(inner) if hasattr(inner, "eqns") else []
    return costs


def test_where_nothing_is_visited_a_block_of_the_array_is_read():
    """Not the one before it, which a device has not got."""
    assert [int(tpu_kernel.nearest(block, 2, 5)) for block in range(7)] == [2, 2, 2, 3, 4, 4, 4]
    assert [int(tpu_kernel.nearest(block, 0, 0)) for block in range(3)] == [0, 0, 0]
