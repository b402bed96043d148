"""Attention by the kernels, interpreted on a CPU, against the reference: results, gradients and dropout masks."""

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contexture.models.config import GptConfig
from contexture.models.gpt import causal_biases
from contexture.models.layers.attention import flash, gpu_kernel, reference, tpu_kernel
from contexture.models.layers.attention.mask import PADDED, AttentionMask
from contexture.models.layers.attention.tiles import visited
from contexture.models.layers.dropout import DropoutKey, dropout_key
from tests.helpers.parity_rule import close

KERNELS = {"tpu": tpu_kernel, "gpu": gpu_kernel}
Drawn = tuple[Any, Any, Any, Any]


def bias_of(mask: AttentionMask, length: int) -> jax.Array:
    """The rule as an array, by the models' own formulas."""
    if not mask.causal:
        assert mask.tokens_BM is not None
        return (1.0 - mask.tokens_BM.astype(jnp.float32))[:, None, None, :] * PADDED
    packs, window = mask.packs_BL, 0 if mask.window is None else int(mask.window)
    visible_BLM = jnp.ones((1, 1, 1), bool) if packs is None else packs[:, :, None] == packs[:, None, :]
    column_BL = jnp.arange(length)[None]
    return causal_biases(GptConfig(local_window=window), column_BL, column_BL, visible_BLM)[-1]


def drawn(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Drawn:
    """q, k, v and the result's gradient, BLHK. Quarters: their products are exact, and so is what -10000 leaves of a
    logit where all keys are padding; else its rounding would decide."""
    rng = np.random.default_rng(seed)
    q, k, v, dy = (jnp.asarray(rng.integers(-6, 7, shape) / 4, dtype) for _ in range(4))
    return q, k, v, dy


def results(attend: Any, arrays: Drawn) -> list[np.ndarray]:
    """The result and the gradients of q, k and v."""
    *qkv, dy = arrays

    @jax.jit
    def both(qkv: Any, dy: Any) -> Any:
        y, pull = jax.vjp(attend, *qkv)
        return y, *pull(dy)

    return [np.asarray(x, np.float32) for x in both(tuple(qkv), dy)]


def assert_alike(kernel: ModuleType, arrays: Drawn, mask: AttentionMask, rate: float) -> None:
    B, length = arrays[0].shape[:2]
    made: dict[str, Any] = {"rate": rate, "site": 4, "dropout_key": None}
    if rate:
        made["dropout_key"] = dropout_key(3, jnp.int32(5), jnp.arange(B) + 7)
    bias_BHLM = bias_of(mask, length)
    actual = results(lambda q, k, v: flash.attend(q, k, v, mask, kernel=kernel, interpret=True, **made), arrays)
    expected = results(lambda q, k, v: reference.attend(q, k, v, bias_BHLM, **made), arrays)
    # bfloat16 has 8 bits: the reference rounds each weight, the kernels round sums of them.
    limit = 1e-5 if arrays[0].dtype == jnp.float32 else 2**-7
    for name, a, b in zip(("y", "dq", "dk", "dv"), actual, expected, strict=True):
        close(a, b, name, limit)


def tokens(rng: np.random.Generator, B: int, length: int) -> jax.Array:
    """Padding: one sequence of tokens alone, one of padding alone, others of any length."""
    ends = np.array([length, 0, *rng.integers(1, length + 1, B)])[:B]
    return jnp.asarray(np.arange(length) < ends[:, None], jnp.int32)


def documents(rng: np.random.Generator, B: int, length: int) -> jax.Array:
    return jnp.asarray(np.sort(rng.integers(1, 5, (B, length))), jnp.int32)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("length", "width", "dtype", "rate", "kind"),
    [
        (67, 80, "float32", 0.3, "padded"),
        (130, 64, "float32", 0.1, "packed"),
        (200, 16, "float32", 0.1, "banded"),
        (96, 96, "bfloat16", 0.1, "causal"),
    ],
)
def test_a_kernel_is_the_reference(kernel: str, length: int, width: int, dtype: str, rate: float, kind: str):
    rng = np.random.default_rng(1)
    mask = {
        "padded": AttentionMask(tokens_BM=tokens(rng, 3, length)),
        "packed": AttentionMask(packs_BL=documents(rng, 3, length), causal=True),
        "banded": AttentionMask(causal=True, window=jnp.int32(length // 3)),
        "causal": AttentionMask(causal=True),
    }[kind]
    assert_alike(KERNELS[kernel], drawn((3, length, 2, width), dtype), mask, rate)


def test_a_text_of_several_tiles_is_the_reference():
    """Of the kernel for TPUs, whose tiles are larger than the lengths above."""
    mask = AttentionMask(causal=True, window=jnp.int32(400))
    assert_alike(tpu_kernel, drawn((1, 650, 1, 16), "float32"), mask, 0.1)


def kept_by(attend: Any, length: int, heads: int, B: int, key: DropoutKey) -> np.ndarray:
    """The dropout mask that attention uses, BHLM: of equal logits, and values that show one key each."""
    zeros = jnp.zeros((B, length, heads, length))
    v_BMHK = jnp.broadcast_to(jnp.eye(length)[None, :, None], zeros.shape)
    y_BLHK = attend(zeros, zeros, v_BMHK, rate=0.4, dropout_key=key, site=9)
    kept = np.asarray(y_BLHK.swapaxes(1, 2) != 0)
    assert 0.5 < kept.mean() < 0.7
    return kept


@pytest.mark.parametrize("length", [64, 131])
def test_masks_are_the_reference_s_bit_for_bit(length: int):
    """Whatever the size of the tiles: 131 is cut in three by one kernel and is one padded tile for the other."""
    key = dropout_key(11, jnp.int32(2), jnp.arange(2) + 30)
    nothing = AttentionMask(tokens_BM=jnp.ones((2, length), jnp.int32))
    expected = kept_by(
        lambda q, k, v, **more: reference.attend(q, k, v, jnp.zeros((1, 1, 1, 1)), **more), length, 3, 2, key
    )  # fmt: skip
    for kernel in KERNELS.values():
        actual = kept_by(
            lambda q, k, v, of=kernel, **more: flash.attend(q, k, v, nothing, kernel=of, interpret=True, **more),
            length, 3, 2, key,
        )  # fmt: skip
        assert np.array_equal(actual, expected)


@pytest.mark.parametrize("kernel", KERNELS)
def test_devices_have_their_own_sequences_and_heads(kernel: str):
    """On eight devices, with heads shared by two of them, the same results and masks as on one."""
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    mask = AttentionMask(tokens_BM=tokens(np.random.default_rng(2), 4, 24))
    arrays = drawn((4, 24, 2, 16), "float32")
    key = dropout_key(3, jnp.int32(5), jnp.arange(4))

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return flash.attend(
            q, k, v, mask, kernel=KERNELS[kernel], interpret=True, rate=0.2, dropout_key=key, site=jnp.int32(3)
        )

    alone = results(attend, arrays)
    with jax.set_mesh(mesh):
        shared = results(attend, arrays)
    for a, b in zip(shared, alone, strict=True):
        close(a, b, tolerance=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
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
    first_BI, end_BI, first_BJ, end_BJ = visited(s, jnp.int32(64), nothing, nothing)
    assert (np.asarray(end_BI)[0] == np.arange(16) + 1).all()
    assert (np.asarray(end_BI - first_BI)[0] <= 2).all() and (np.asarray(end_BJ - first_BJ)[0] <= 2).all()


def test_of_packed_documents_padding_makes_no_block_visit_all():
    packs_BL = jnp.asarray(np.r_[np.repeat(np.arange(1, 9), 124), np.zeros(8)][None], jnp.int32)
    s = flash.sizes_of(AttentionMask(causal=True, packs_BL=packs_BL), 1000, 64, jnp.bfloat16, gpu_kernel, 0.0)
    padded_BL = jnp.pad(packs_BL, ((0, 0), (0, 24)))
    first_BI, end_BI, first_BJ, end_BJ = visited(s, jnp.int32(0), jnp.zeros_like(padded_BL), padded_BL)
    assert np.asarray(end_BI - first_BI).max() <= 3 and np.asarray(end_BJ - first_BJ).max() <= 3
