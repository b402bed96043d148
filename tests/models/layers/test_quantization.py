"""Products with 8-bit factors: their numbers, their gradients, and what is kept for these."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax.ad_checkpoint import print_saved_residuals

from contexture.models.config import Quantization
from contexture.models.layers.blocks import Linear
from contexture.models.layers.matmul import matmul, quantized_matmul
from contexture.models.layers.remat import POLICIES
from tests.helpers.jaxprs import equations
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close, assert_differs, close

KINDS: tuple[Quantization, ...] = ("int8", "fp8")
LARGEST = {"int8": 127.0, "e4m3": 448.0, "e5m2": 57344.0}


def scaled(x: np.ndarray, kind: str, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """(x in steps of its scale, the scale of each row (axis 1) or column (axis 0))."""
    scale = np.abs(x).max(axis, keepdims=True).astype(np.float32) / np.float32(LARGEST[kind])
    scale = np.where(scale == 0, np.float32(1), scale)
    return x / scale, scale


def is_clear(x: np.ndarray, kind: str, axis: int) -> bool:
    """Whether no number is as near to one number of 8 bits as to the next, so that its last bit would decide."""
    below, above = (rounded(x, kind, axis, nudge) for nudge in (1 - 2e-6, 1 + 2e-6))
    return bool((below == above).all())


def rounded(x: np.ndarray, kind: str, axis: int, nudge: float = 1.0) -> np.ndarray:
    """x as 8 bits hold it. nudge: multiplies what is rounded."""
    steps, scale = scaled(x, kind, axis)
    steps = (steps * nudge).astype(np.float32)
    if kind == "int8":
        return np.round(steps) * scale.astype(np.float64)
    # Rounded by XLA, which on some versions and devices goes to 8 bits by way of 16.
    dtype = jnp.float8_e4m3fn if kind == "e4m3" else jnp.float8_e5m2
    return np.asarray(_convert(np.clip(steps, -LARGEST[kind], LARGEST[kind]), dtype)).astype(np.float64) * scale


_convert = jax.jit(jax.lax.convert_element_type, static_argnums=1)


def drawn(seed: int, T: int, D: int, F: int) -> list[Any]:
    draw = np.random.default_rng(seed)
    shapes, scales = ((T, D), (D, F), (T, F)), (1.0, 0.02, 1e-5)
    return [(draw.normal(size=shape) * scale).astype(np.float32) for shape, scale in zip(shapes, scales, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_linear_multiplies_as_its_quantization_says(kind):
    x_BLD, kernel_DHK, _ = drawn(1, 6, 8, 12)
    x_BLD, kernel_DHK = x_BLD.reshape(2, 3, 8), kernel_DHK.reshape(8, 3, 4)
    linear = partial(Linear, "BLD,DHK->BLHK", {"D": 8, "H": 3, "K": 4}, nn.initializers.zeros)
    params = {"params": {"kernel": kernel_DHK, "bias": np.ones((3, 4), np.float32)}}
    y_BLHK, whole_BLHK = (linear(quantization=of).apply(params, x_BLD) for of in (kind, "none"))
    expected = 1 + quantized_matmul(jnp.asarray(x_BLD.reshape(6, 8)), jnp.asarray(kernel_DHK.reshape(8, 12)), kind)
    assert_close(np.asarray(y_BLHK).reshape(6, 12), expected, atol=1e-7)
    assert_differs(y_BLHK, whole_BLHK, 1e-4)


@partial(jax.jit, static_argnums=3)
def product_and_gradients(x_TD, kernel_DF, dy_TF, kind):
    y_TF, back = jax.vjp(lambda x, kernel: quantized_matmul(x, kernel, kind), x_TD, kernel_DF)
    return y_TF, *back(dy_TF)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(5, 40, 7), *long(((1, 1, 3),), ((9, 33, 1),))])
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_a_product_and_its_gradients_are_those_of_the_rounded_factors(kind, sizes, seed):
    x_TD, kernel_DF, dy_TF = drawn(seed, *sizes)
    value, gradient = ("int8", "int8") if kind == "int8" else ("e4m3", "e5m2")
    factors = [(x_TD, value, 1), (kernel_DF, value, 0), (dy_TF, gradient, 1), (kernel_DF, value, 1)]
    if kind == "fp8":
        factors += [(x_TD, value, 0), (dy_TF, gradient, 0)]
    assume(all(is_clear(*factor) for factor in factors))
    y_TF, dx_TD, dkernel_DF = product_and_gradients(x_TD, kernel_DF, dy_TF, kind)
    expected_dx_TD = rounded(dy_TF, gradient, 1) @ rounded(kernel_DF.T, value, 0)
    assume(expected_dx_TD.any())  # of a single number the rounded terms can cancel, and zeros alone prove nothing
    close(y_TF, rounded(x_TD, value, 1) @ rounded(kernel_DF, value, 0))
    close(dx_TD, expected_dx_TD)
    if kind == "int8":  # leaves the factors of the kernel's gradient whole
        close(dkernel_DF, x_TD.T.astype(np.float64) @ dy_TF)
    else:
        close(dkernel_DF, rounded(x_TD.T, value, 1) @ rounded(dy_TF, gradient, 0))


@pytest.mark.parametrize(("kind", "share"), [("int8", 0.0112), *long(("fp8", 0.059))])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, *long(jnp.float32)])
def test_results_have_the_activations_dtype_and_are_near_the_exact_ones(kind, share, dtype):
    factors = [jnp.asarray(x, dtype) for x in drawn(0, 64, 512, 96)]
    y, back = jax.vjp(lambda x, kernel: quantized_matmul(x, kernel, kind), *factors[:2])
    exact, exact_back = jax.vjp(jnp.matmul, *(x.astype(jnp.float32) for x in factors[:2]))
    for got, expected in zip((y, *back(factors[2])), (exact, *exact_back(factors[2].astype(jnp.float32))), strict=True):
        assert got.dtype == dtype
        error = np.linalg.norm(np.asarray(got, np.float64) - np.asarray(expected, np.float64))
        assert error < share * np.linalg.norm(np.asarray(expected, np.float64))


@pytest.mark.parametrize("kind", ["int8", *long("fp8")])
def test_a_tokens_result_depends_on_no_other_token(kind):
    """Not on one that is much larger, nor on padding; one that is not finite is alone, and stays so."""
    x_TD, kernel_DF, dy_TF = drawn(1, 6, 32, 16)
    alone = quantized_matmul(x_TD[:1], kernel_DF, kind)
    x_TD[1] *= 1e6
    x_TD[2] = 0.0
    x_TD[3, 4], x_TD[4, 4] = np.nan, np.inf
    y_TF, back = jax.vjp(lambda x: quantized_matmul(x, kernel_DF, kind), x_TD)
    assert_close(y_TF[:1], alone, rtol=1e-5)
    assert not np.any(y_TF[2]) and np.isfinite(np.asarray(y_TF)[[0, 1, 2, 5]]).all()
    assert not np.isfinite(y_TF[3:5]).any()
    dy_TF[0], dy_TF[1, 2] = 0.0, np.nan
    (dx_TD,) = back(jnp.asarray(dy_TF))
    assert not np.any(dx_TD[0]) and np.isnan(dx_TD[1]).all() and np.isfinite(dx_TD[2:]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_small_gradients_keep_their_size_and_the_smallest_become_zeros(kind):
    x_TD, kernel_DF, dy_TF = drawn(3, 4, 32, 16)
    for size, share in ((1e-7, 0.08), (1e-25, None)):
        _, dx_TD, _ = product_and_gradients(x_TD, kernel_DF, dy_TF * np.float32(size), kind)
        exact_TD = dy_TF.astype(np.float64) * size @ kernel_DF.T
        if share is None:
            assert not np.any(dx_TD)
        else:
            assert np.linalg.norm(dx_TD - exact_TD) < share * np.linalg.norm(exact_TD)


@pytest.mark.parametrize("kind", KINDS)
def test_a_float32_models_precision_is_not_asked_of_8_bits(kind):
    """`highest` would have TPUs multiply in several passes."""
    x, kernel, _ = drawn(2, 8, 16, 8)
    with jax.default_matmul_precision("highest"):
        products = [
            equation for equation in equations(jax.make_jaxpr(lambda: quantized_matmul(x, kernel, kind))().jaxpr)
            if equation.primitive.name == "dot_general"
        ]  # fmt: skip
    assert len(products) == 1
    assert {aval.aval.dtype.itemsize for aval in products[0].invars} == {1}
    assert set(products[0].params["precision"]) == {jax.lax.Precision.DEFAULT}


def test_remat_keeps_the_result_and_no_wider_sum(capsys):
    """Of a layer under the policy `dots`: what the backward pass reads is in bfloat16."""
    x, kernel = jax.ShapeDtypeStruct((8, 16), jnp.bfloat16), jax.ShapeDtypeStruct((16, 4), jnp.bfloat16)
    for kind in ("none", *KINDS):

        def layer(x, kernel, kind: Quantization = kind):
            return jnp.sin(matmul(x, kernel) if kind == "none" else quantized_matmul(x, kernel, kind)).sum()

        print_saved_residuals(jax.checkpoint(layer, policy=POLICIES["dots"]), x, kernel)
        kept = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
        assert sorted(kept) == ["bf16[16,4]", "bf16[8,16]", "bf16[8,4]"], (kind, kept)


def test_offloading_sends_the_result_to_the_host():
    x, kernel = jnp.ones((8, 16), jnp.bfloat16), jnp.ones((16, 4), jnp.bfloat16)
    for rule, sent in (("dots", False), ("offload", True)):
        layer = jax.checkpoint(lambda x: jnp.sin(quantized_matmul(x, kernel, "int8")).sum(), policy=POLICIES[rule])
        assert ("bf16<host>[8,4]" in str(jax.make_jaxpr(jax.grad(layer))(x))) is sent
