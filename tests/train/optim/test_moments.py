"""Moments in bfloat16: what is stored, how it is rounded, and that training goes as with float32."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.train.optim.moments import _stochastic, in_bfloat16
from contexture.train.optim.optimizers import optimizer
from contexture.train.settings.sections import OptimConfig

PARAMS = {"kernel": jnp.linspace(-1, 1, 60).reshape(3, 20), "bias": jnp.ones(7)}
NAMES = ("bert", "adamw", "gpt1")


def trained(config: OptimConfig, steps: int = 60):
    """Parameters and state after some steps towards 0."""
    tx = optimizer(config)

    @jax.jit
    def step(params, state):
        grads = jax.tree.map(lambda p: p + 0.01 * jnp.sin(1000 * p), params)
        updates, state = tx.update(grads, state, params)
        return jax.tree.map(lambda p, u: p - 0.01 * u, params, updates), state

    params, state = PARAMS, tx.init(PARAMS)
    for _ in range(steps):
        params, state = step(params, state)
    return params, state


@pytest.mark.parametrize("name", NAMES)
def test_moments_take_half_of_the_memory_and_train_alike(name):
    config = OptimConfig(name=name, b2=0.999, clip=0.0)
    exact, state = trained(config)
    rounded, half = trained(dataclasses.replace(config, moments="bfloat16"))
    floats = [x for x in jax.tree.leaves(state) if x.dtype == jnp.float32]
    halves = [x for x in jax.tree.leaves(half) if x.dtype == jnp.bfloat16]
    assert [x.shape for x in floats] == [x.shape for x in halves] and len(halves) == 4
    assert not any(x.dtype == jnp.float32 for x in jax.tree.leaves(half))
    moved = np.abs(exact["kernel"] - PARAMS["kernel"]).max()
    assert np.abs(exact["kernel"] - rounded["kernel"]).max() < 0.02 * moved


def test_small_updates_add_up_only_where_they_are_rounded_by_chance():
    """A mean of squares that an update changes by 1/1000 of the way stands still where it is rounded to the nearest."""
    target, means = 4.0, {}
    for stochastic in (True, False):
        tx = in_bfloat16(optax.scale_by_adam(0.9, 0.999, 1e-8), stochastic=stochastic)
        state = tx.init({"x": jnp.zeros(500)})
        state = jax.tree.map(lambda x: jnp.full_like(x, 3.0) if x.dtype == jnp.bfloat16 else x, state)
        step = jax.jit(lambda s, tx=tx: tx.update({"x": jnp.full(500, target**0.5)}, s)[1])
        for _ in range(200):
            state = step(state)
        means[stochastic] = float(np.asarray(state.inner.nu["x"], np.float64).mean())
    expected = target - (target - 3.0) * 0.999**200
    assert abs(means[True] - expected) < 0.01 and means[False] == 3.0


@settings(max_examples=50, deadline=None)
@given(st.floats(-(2.0**100), 2.0**100, width=32), st.integers(0, 10_000))
def test_a_number_becomes_one_of_its_neighbours_and_keeps_its_expectation(value, count):
    x = jnp.full(4096, value, jnp.float32)
    rounded = np.asarray(_stochastic(x, jnp.int32(count), 3), np.float64)
    values = np.unique(rounded)
    gap = max(abs(value) * 2.0**-7, 1e-37)
    assert len(values) <= 2 and np.abs(values - np.float64(np.float32(value))).max() <= gap
    # Within five standard deviations of a mean of 4096 draws.
    assert abs(rounded.mean() - np.float64(np.float32(value))) <= 5 * gap / 2 / 64


def test_a_number_that_bfloat16_holds_and_one_that_is_not_finite_stay():
    x = jnp.array([0.0, -0.0, 1.0, -2.5, jnp.inf, -jnp.inf, jnp.nan])
    for count in range(20):
        rounded = np.asarray(_stochastic(x, jnp.int32(count), 0), np.float32)
        assert all(a == b or (np.isnan(a) and np.isnan(b)) for a, b in zip(rounded, np.asarray(x), strict=True))


def test_chances_are_others_at_each_update_and_place():
    x = jnp.full((64, 64), 1.003)
    draws = [np.asarray(_stochastic(x, jnp.int32(count), leaf), np.float32) for count, leaf in
             ((0, 0), (1, 0), (0, 1))]  # fmt: skip
    for one in draws:
        share = (one > 1).mean()
        assert 0.3 < share < 0.5 and abs(np.corrcoef(one[0], one[1])[0, 1]) < 0.5
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert abs(np.corrcoef(draws[a].ravel(), draws[b].ravel())[0, 1]) < 0.08


def test_adagrads_sums_stay_in_float32():
    with pytest.raises(ValueError, match="optim.moments=bfloat16 is for Adam"):
        OptimConfig(name="adagrad", moments="bfloat16")
