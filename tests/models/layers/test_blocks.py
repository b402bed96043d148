"""The maps that all transformers of the house are made of."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.models.layers.attention import module
from contexture.models.layers.attention.mask import HIDDEN, PADDED
from contexture.models.layers.attention.module import reference_attend
from contexture.models.layers.blocks import ACTIVATIONS, FeedForward, Linear, Norm, matmul
from contexture.models.layers.dropout import WeightDropout, dropout, dropout_key
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close, close

SIZES = {"D": 6, "H": 2, "K": 5, "F": 9}


def near(actual, expected, share=1e-5):
    close(np.asarray(actual, np.float64), np.asarray(expected, np.float64), tolerance=share)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("sizes", [(5, 7, 2), (4, 3, 8)], ids=str)
def test_a_products_gradient_is_that_of_the_plain_one(sizes, dtype):
    T, D, F = sizes
    assert_product(T, D, F, dtype)


@pytest.mark.long
@settings(deadline=None, max_examples=12)
@given(st.tuples(*[st.integers(1, 9)] * 3), st.sampled_from([jnp.float32, jnp.bfloat16]))
def test_a_products_gradient_is_the_plain_one_whichever_factor_is_wider(sizes, dtype):
    T, D, F = sizes
    assert_product(T, D, F, dtype)


def assert_product(T, D, F, dtype):
    draw = np.random.default_rng(T * 100 + D * 10 + F)
    x_TD, kernel_DF, dy_TF = (jnp.asarray(draw.normal(size=shape), dtype) for shape in ((T, D), (D, F), (T, F)))
    for a, b in zip(
        *(with_gradients(product)(dy_TF, x_TD, kernel_DF) for product in (matmul, jnp.matmul)), strict=True
    ):
        assert a.dtype == b.dtype == dtype
        near(a, b, 1e-5 if a.itemsize == 4 else 1e-2)


def with_gradients(function):
    """(result's gradient, *arguments) → (the result, the arguments' gradients), in one program."""

    @jax.jit
    def program(dy, *arguments):
        result, back = jax.vjp(function, *arguments)
        return result, *back(dy)

    return program


SHAPES = [(2, 5, 7, 3, 4), (3, 1, 6, 1, 5), (1, 4, 4, 2, 1), (2, 6, 1, 2, 3)]


@pytest.mark.parametrize("equation", ["BLD,DHK->BLHK", "BLHK,HKD->BLD", "BLD,DF->BLF"])
def test_a_linear_map_is_its_equation(equation):
    given_letters, letters = equation.split("->")[0].split(",")
    sizes = SIZES | {"B": 3, "L": 4}
    x = jnp.asarray(np.random.default_rng(0).normal(size=[sizes[c] for c in given_letters]), jnp.float32)
    linear = Linear(equation, sizes, jax.nn.initializers.normal(1.0))
    params: Any = linear.init(jax.random.key(0), x)["params"]
    assert params["kernel"].shape == tuple(sizes[c] for c in letters)
    params["bias"] += 0.5
    expected = jnp.einsum(equation, x, params["kernel"]) + 0.5
    assert_close(linear.apply({"params": params}, x), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "dtype", "rate"),
    [
        (SHAPES[0], jnp.float32, 0.3),
        (SHAPES[1], jnp.bfloat16, 0.0),
        *long(*itertools.product(SHAPES, (jnp.float32, jnp.bfloat16), (0.0, 0.3))),
    ],
)
def test_attention_and_its_gradient_are_those_of_the_formula(shape, dtype, rate):
    B, L, M, H, K = shape
    draw, sound = np.random.default_rng(0), dropout_key(3, jnp.int32(5), jnp.arange(B))
    q, k, v, dy = (
        jnp.asarray(draw.normal(size=size), dtype) for size in ((B, L, H, K), (B, M, H, K), (B, M, H, K), (B, L, H, K))
    )
    bias = jnp.where(jnp.asarray(draw.random((B, 1, L, M)) < 0.3), -1e10, 0.0).at[..., 0].set(0.0)

    def formula(q, k, v):
        weights = jax.nn.softmax(jnp.einsum("BLHK,BMHK->BHLM", q, k) / np.sqrt(K) + bias, axis=-1)
        return jnp.einsum("BHLM,BMHK->BLHK", dropout(weights, rate, sound, 2), v)

    actual = with_gradients(lambda q, k, v: reference_attend(q, k, v, bias, WeightDropout(rate, sound, 2)))(dy, q, k, v)
    expected = with_gradients(formula)(*(x.astype(jnp.float32) for x in (dy, q, k, v)))
    for name, a, b in zip(("y", *"qkv"), actual, expected, strict=True):
        assert a.dtype == dtype
        if M == 1 and name in "qk":  # a single key has all the weight, whatever q and k are
            assert not np.asarray(a, np.float64).any() and not np.asarray(b).any()
        else:
            near(a, b, 1e-5 if dtype == jnp.float32 else 3e-2)


def seen(kind: str, L: int) -> np.ndarray:
    """Which keys each query sees, by the way that they are hidden: with dims that stand for B, H, L and M."""
    draw, at = np.random.default_rng(1), np.arange(L)
    packs = np.array([np.searchsorted([L // 5, L // 2, L // 2 + 9], at), at >= L // 3, 0 * at])
    return {
        "at random": (draw.random((3, 1, L, L)) < 0.5) | (at == 0),
        "later": (at[:, None] >= at)[None, None],
        "others": (packs[:, :, None] == packs[:, None])[:, None],
        "padding": (at < np.array([L, L // 3, 0])[:, None])[:, None, None],
    }[kind]


@pytest.mark.parametrize("kind", ["at random", "later", "others", "padding"])
@pytest.mark.parametrize("L", [64, 100, 128, 192, 384, 640])
def test_attention_in_tiles_of_queries_is_the_formula(monkeypatch, kind, L):
    """Where no gradient is computed, a CPU takes a few queries at a time, and leaves out keys that none of them sees;
    100 queries are no whole tiles. One sequence is nothing but padding, which sees itself."""
    monkeypatch.setattr(module, "_WHOLE", 0)
    draw = np.random.default_rng(1)
    q, k, v = (jnp.asarray(draw.normal(size=(3, L, 2, 5)), jnp.float32) for _ in range(3))
    bias = jnp.where(seen(kind, L), 0.0, PADDED if kind == "padding" else HIDDEN)
    actual = jax.jit(lambda q, k, v: reference_attend(q, k, v, bias))(q, k, v)
    weights = jax.nn.softmax(jnp.einsum("BLHK,BMHK->BHLM", q, k) / np.sqrt(5) + bias, axis=-1)
    near(actual, jnp.einsum("BHLM,BMHK->BLHK", weights, v))


def test_one_query_of_many_keys_is_computed_whole(monkeypatch):
    monkeypatch.setattr(module, "_WHOLE", 0)
    q, k = jnp.ones((2, 1, 2, 5)), jnp.ones((2, 128, 2, 5))
    near(reference_attend(q, k, k, jnp.zeros((1, 1, 1, 128))), q)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_slope_of_an_activation_is_that_of_its_values(name):
    x = np.linspace(-9, 9, 4001)
    with jax.enable_x64(True):
        h, value = 1e-6, ACTIVATIONS[name]
        expected = (np.asarray(value(jnp.asarray(x + h))) - np.asarray(value(jnp.asarray(x - h)))) / (2 * h)
    for dtype, share in ((jnp.float32, 1e-5), (jnp.bfloat16, 1e-2)):
        given = jnp.asarray(x, dtype)
        actual = jax.vjp(ACTIVATIONS[name], given)[1](jnp.ones_like(given))[0]
        assert actual.dtype == dtype
        away = np.abs(x) > 1e-2  # relu has no slope at 0
        near(np.asarray(actual)[away], expected[away], share)


def test_activations_are_their_formulas():
    """Gelu by the error function and by tanh (Hendrycks and Gimpel 2016), and relu."""
    x = np.linspace(-6, 6, 1001)
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    expected = {
        "erf": [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x],
        "tanh": 0.5 * x * (1 + np.tanh(inner)),
        "relu": np.maximum(x, 0),
    }
    assert expected.keys() == ACTIVATIONS.keys()
    for name, values in expected.items():
        near(ACTIVATIONS[name](jnp.asarray(x, jnp.float32)), values, 1e-6)


@pytest.mark.parametrize("eps", [1e-12, 0.5])
def test_a_norm_and_its_gradient_are_those_of_the_formula(eps):
    """(x - mean)/sqrt(variance + eps)·scale + bias, the variance that of the numbers there are."""
    draw = np.random.default_rng(0)
    x, dy = draw.normal(2.0, 3.0, (4, 7)), draw.normal(size=(4, 7))
    scale, bias = draw.normal(size=7), draw.normal(size=7)

    def formula(x):
        centred = x - x.mean(-1, keepdims=True)
        return centred / jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + eps) * scale[None] + bias[None]

    norm, params = Norm(eps), {"scale": jnp.asarray(scale, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}
    given = np.float32(dy), np.float32(x)
    actual = with_gradients(lambda x: norm.apply({"params": params}, x))(*given)
    with jax.enable_x64(True):
        for a, b in zip(actual, with_gradients(formula)(dy, x), strict=True):
            near(a, b)


def test_a_feed_forward_is_two_maps_with_an_activation_between():
    ffn = FeedForward(SIZES, "tanh", jax.nn.initializers.normal(1.0), jnp.float32)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 6)), jnp.float32)
    shapes = jax.eval_shape(ffn.init, jax.random.key(0), x)["params"]
    draw = np.random.default_rng(1)
    params = jax.tree.map(lambda x: np.float32(draw.normal(size=x.shape)), shapes)
    into, out = (jax.tree.map(lambda x: np.asarray(x, np.float64), params[name]) for name in ("in", "out"))
    inner = np.asarray(x, np.float64) @ into["kernel"] + into["bias"]
    inner = 0.5 * inner * (1 + np.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)))
    near(jax.jit(ffn.apply)({"params": params}, x), inner @ out["kernel"] + out["bias"])
