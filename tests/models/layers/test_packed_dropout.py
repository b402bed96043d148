"""Dropout where sequences share rows: masks are the ones of sequences with a row each, and kernels draw them too."""

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contexture.models.bert import packed_bias
from contexture.models.layers.attention import flash, gpu_kernel, tpu_kernel
from contexture.models.layers.attention.mask import HIDDEN, AttentionMask
from contexture.models.layers.attention.module import reference_attend
from contexture.models.layers.dropout import DropoutKey, WeightDropout, dropout, dropout_key
from tests.helpers.parity_rule import assert_close

LENGTHS = ((70, 30, 28), (128,), (1, 2, 3, 90))
NUMBERS = ((1, 2, 3), (4,), (5, 6, 7, 8))
X, Y, H, K, LONGEST = len(LENGTHS), 160, 2, 16, 128


def rows() -> tuple[np.ndarray, np.ndarray]:
    """packs and positions of the rows, i32 XY."""
    packs, positions = np.zeros((X, Y), np.int32), np.zeros((X, Y), np.int32)
    for row, lengths in enumerate(LENGTHS):
        begin = 0
        for number, length in zip(NUMBERS[row], lengths, strict=True):
            packs[row, begin : begin + length] = number
            positions[row, begin : begin + length] = range(length)
            begin += length
    return packs, positions


def keys() -> tuple[DropoutKey, DropoutKey]:
    """The key of packed rows, and of the same sequences with a row each."""
    packs, positions = map(jnp.asarray, rows())
    alone = dropout_key(7, jnp.asarray(3), jnp.arange(8))
    return DropoutKey(alone.key, alone.row_B, packs, positions), alone


def test_a_sequence_has_the_masks_of_a_row_of_its_own():
    (key, alone), (packs, positions) = keys(), rows()
    tokens = np.asarray(dropout(jnp.ones((X, Y, 12)), 0.3, key, 5)) > 0
    own_tokens = np.asarray(dropout(jnp.ones((8, LONGEST, 12)), 0.3, alone, 5)) > 0
    whole = (H, LONGEST, LONGEST)
    weights = np.asarray(dropout(jnp.ones((X, H, Y, Y)), 0.3, key, 5, whole)) > 0
    own_weights = np.asarray(dropout(jnp.ones((8, *whole)), 0.3, alone, 5, whole)) > 0
    for row in range(X):
        for number in NUMBERS[row]:
            at = np.flatnonzero(packs[row] == number)
            of = positions[row, at]
            assert (tokens[row, at] == own_tokens[number - 1, of]).all()
            expected = own_weights[number - 1][:, of[:, None], of]
            assert (weights[row][:, at[:, None], at] == expected).all()


@pytest.mark.parametrize("causal", [False, True], ids=["bert", "gpt"])
@pytest.mark.parametrize("kernel", [tpu_kernel, gpu_kernel], ids=["tpu", "gpu"])
def test_a_kernel_draws_the_masks_of_the_reference(kernel: ModuleType, causal: bool):
    key, packs = keys()[0], jnp.asarray(rows()[0])
    rng = np.random.default_rng(0)
    q, k, v, dy = (jnp.asarray(rng.normal(size=(X, Y, H, K)), jnp.float32) for _ in range(4))
    dropped = WeightDropout(0.2, key, jnp.asarray(4), LONGEST)
    bias = packed_bias(packs)
    if causal:
        place = jnp.arange(Y)
        bias = jnp.minimum(bias, jnp.where(place[:, None] >= place[None], 0.0, HIDDEN)[None, None])
    inside = (packs > 0)[:, :, None, None]

    def of_kernel(q: Any, k: Any, v: Any) -> jax.Array:
        mask = AttentionMask(packs_BL=packs, causal=causal)
        return flash.attend(q, k, v, mask, dropped, kernel=kernel, interpret=True)

    def of_reference(q: Any, k: Any, v: Any) -> jax.Array:
        return reference_attend(q, k, v, bias, dropped)

    for function in (lambda f: f(q, k, v) * inside, lambda f: jax.vjp(f, q, k, v)[1](dy * inside)):
        pairs = zip(*map(jax.tree.leaves, (function(of_kernel), function(of_reference))), strict=True)
        for one, other in pairs:
            assert_close(one, other, rtol=2e-5, atol=2e-5)
