"""The maps that all transformers of the house are made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.blocks import Linear, product

SIZES = {"D": 6, "H": 2, "K": 5, "F": 9}


@settings(deadline=None, max_examples=12)
@given(st.tuples(*[st.integers(1, 9)] * 3), st.sampled_from([jnp.float32, jnp.bfloat16]))
def test_a_product_s_gradient_is_that_of_the_plain_one_whichever_factor_is_wider(sizes, dtype):
    T, D, F = sizes
    draw = np.random.default_rng(T * 100 + D * 10 + F)
    x_TD, kernel_DF, dy_TF = (jnp.asarray(draw.normal(size=shape), dtype) for shape in ((T, D), (D, F), (T, F)))
    found, back = jax.vjp(product, x_TD, kernel_DF)
    plain, plain_back = jax.vjp(jnp.matmul, x_TD, kernel_DF)
    for a, b in zip((found, *back(dy_TF)), (plain, *plain_back(dy_TF)), strict=True):
        assert a.dtype == b.dtype == dtype
        np.testing.assert_allclose(*(np.asarray(y, np.float32) for y in (a, b)), rtol=1e-5 if a.itemsize == 4 else 1e-2)


@pytest.mark.parametrize("equation", ["BLD,DHK->BLHK", "BLHK,HKD->BLD", "BLD,DF->BLF"])
def test_a_linear_map_is_its_equation(equation):
    given_letters, letters = equation.split("->")[0].split(",")
    sizes = SIZES | {"B": 3, "L": 4}
    x = jnp.asarray(np.random.default_rng(0).normal(size=[sizes[c] for c in given_letters]), jnp.float32)
    linear = Linear(equation, sizes, jax.nn.initializers.normal(1.0))
    params = linear.init(jax.random.key(0), x)["params"]
    assert params["kernel"].shape == tuple(sizes[c] for c in letters)
    params["bias"] += 0.5
    expected = jnp.einsum(equation, x, params["kernel"]) + 0.5
    np.testing.assert_allclose(linear.apply({"params": params}, x), expected, atol=1e-5)
