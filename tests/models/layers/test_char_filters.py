"""Words from their characters, against the published equations in NumPy, in float64 (bilm-tf, bilm/model.py)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contexture.models.layers.char_cnn import CharCnn, Highway
from contexture.models.shapes import by_path, path_of
from tests.helpers.long import long
from tests.helpers.parity_rule import close

E, J, W, R = 4, 5, 50, 7
FILTERS = ((1, 3), (2, 4), (5, 6))
STEP = 1e-3
F = sum(count for _, count in FILTERS)
ACTIVATIONS = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}


def _types() -> np.ndarray:
    rng = np.random.default_rng(0)
    types = np.full((R, W), 261, np.int32)
    for row, length in enumerate((0, 3, 9, 17, 24, 33, 48)):
        types[row, : length + 2] = (259, *rng.integers(1, 257, length), 260)
    types[0] = 0  # no word
    return types


def _drawn(tree):
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) * 0.4, x.dtype), tree)


@pytest.mark.parametrize(("longest", "activation"), [(R, "relu"), (4, "tanh"), *long((4, "relu"), (R, "tanh"))])
def test_a_word_is_its_largest_filters_through_highways_and_projection(activation, longest):
    """VALID convolutions over all 50 places, padding included: max over places, bias, activation; then the highways."""
    types = _types()[:longest]
    module = CharCnn({"E": E, "F": F, "J": J}, FILTERS, activation, 2, jnp.float32)
    params = _drawn(jax.eval_shape(module.init, jax.random.key(0), types)["params"])
    p = {path: np.asarray(x, np.float64) for path, x in by_path(params).items()}
    table = np.concatenate([np.zeros((1, E)), p["characters"]])
    x = table[types]
    pooled = []
    for n, (width, _) in enumerate(FILTERS):
        windows = np.stack([x[:, at : at + width] for at in range(W - width + 1)], 1)
        pooled.append(np.einsum("RPWE,WEF->RPF", windows, p[f"filters_{n}/kernel"]).max(1) + p[f"filters_{n}/bias"])
    y = ACTIVATIONS[activation](np.concatenate(pooled, -1))
    for n in range(2):
        gate, new = (
            y @ p[f"highway_{n}/{part}/kernel"] + p[f"highway_{n}/{part}/bias"] for part in ("carry", "transform")
        )
        gate = 1 / (1 + np.exp(-gate))
        y = gate * np.maximum(new, 0) + (1 - gate) * y
    close(jax.jit(module.apply)({"params": params}, types), y @ p["projection/kernel"] + p["projection/bias"])


def moved_at(x, at, by):
    moved = x.copy()
    moved[at] += by
    return moved


def test_a_words_gradient_goes_to_the_window_that_won():
    """Compared with slow differences, on parameters without ties."""
    types = _types()[1:4]
    module = CharCnn({"E": E, "F": F, "J": J}, FILTERS, "tanh", 1, jnp.float32)
    params = _drawn(jax.eval_shape(module.init, jax.random.key(0), types)["params"])
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), params)
        wide = module.clone(dtype=jnp.float64)

        @jax.jit
        def total(params):
            out: Any = wide.apply({"params": params}, types)
            return jnp.sin(out).sum()

        got = by_path(jax.jit(jax.grad(total))(params))
        params = jax.tree.map(np.asarray, params)
        for path in ("characters", "filters_1/kernel", "filters_2/bias", "highway_0/carry/kernel"):
            at = tuple(np.unravel_index(np.abs(got[path]).argmax(), got[path].shape))
            value = []
            for sign in (1, -1):
                moved = jax.tree_util.tree_map_with_path(
                    lambda k, x, path=path, at=at, sign=sign: moved_at(x, at, sign * STEP) if path_of(k) == path else x,
                    params,
                )
                value.append(float(total(moved)))
            close(got[path][at], (value[0] - value[1]) / (2 * STEP), path, 2e-3)


def test_a_highway_with_a_closed_gate_lets_its_input_through():
    module = Highway({"F": F}, jnp.float32)
    x = jnp.asarray(np.random.default_rng(2).normal(size=(R, F)), jnp.float32)
    params = _drawn(module.init(jax.random.key(0), x)["params"])
    closed = {**params, "carry": {**params["carry"], "bias": jnp.full(F, -60.0)}}
    close(module.apply({"params": closed}, x), x)
    opened = {**params, "carry": {**params["carry"], "bias": jnp.full(F, 60.0)}}
    kernel, bias = (np.asarray(params["transform"][name]) for name in ("kernel", "bias"))
    new = np.maximum(np.asarray(x) @ kernel + bias, 0)
    close(module.apply({"params": opened}, x), new)
