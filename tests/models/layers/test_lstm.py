"""The projected LSTM against its equations, step by step in float64, and its gradient against jax's own."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from contexture.models.layers.lstm import Lstm, recur
from contexture.models.sharding import MESH_AXES, partition_spec
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_differs, close

L, B, U, J = 4, 3, 6, 5
CLIPS = [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.3, 0.2)]


def _drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _clip(x: np.ndarray, limit: float) -> np.ndarray:
    return np.clip(x, -limit, limit) if limit else x


def _steps(z, cell, hidden, kernel, projection, cell_clip, projection_clip):
    """c = clip(σ(f + 1)·c + σ(i)·tanh(j)), h = clip((σ(o)·tanh(c))·P); gates in the order i, j, f, o."""
    cells, outputs = [], []
    for z_BGU in z:
        i, j, f, o = np.moveaxis(z_BGU + np.einsum("BJ,JGU->BGU", hidden, kernel), 1, 0)
        cell = _clip(_sigmoid(f + 1) * cell + _sigmoid(i) * np.tanh(j), cell_clip)
        hidden = _clip((_sigmoid(o) * np.tanh(cell)) @ projection, projection_clip)
        cells.append(cell)
        outputs.append(hidden)
    return np.stack(cells), np.stack(outputs)


def _inputs() -> tuple[np.ndarray, ...]:
    z, kernel, projection = _drawn(L, B, 4, U), _drawn(J, 4, U, seed=1) * 0.5, _drawn(U, J, seed=2) * 0.5
    return z, _drawn(B, U, seed=3) * 0.2, _drawn(B, J, seed=4) * 0.1, kernel, projection


@pytest.mark.parametrize("clips", CLIPS)
def test_a_layer_is_its_equations(clips):
    z, cell, hidden, kernel, projection = _inputs()
    got = recur(*jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (z, (cell, hidden), kernel, projection)), *clips)
    expected = _steps(z, cell, hidden, kernel, projection, *clips)
    for a, b, clip in zip(got, expected, clips, strict=True):
        close(a, b)
        assert not clip or (np.abs(b) == clip).any()


@pytest.mark.parametrize("clips", [CLIPS[0], CLIPS[3], *long(*((clips,) for clips in CLIPS[1:3]))])
def test_a_layers_gradient_is_that_of_its_equations(clips):
    """None goes to the state before the first step; none comes from the cells."""
    z, cell, hidden, kernel, projection = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), _inputs())
    dy = jnp.asarray(_drawn(L, B, J, seed=5), jnp.float32)

    def plain(z, kernel, projection):
        def step(state, z_BGU):
            c, h = state
            i, j, f, o = jnp.moveaxis(z_BGU + jnp.einsum("BJ,JGU->BGU", h, kernel), 1, 0)
            c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(j)
            c = jnp.clip(c, -clips[0], clips[0]) if clips[0] else c
            h = (jax.nn.sigmoid(o) * jnp.tanh(c)) @ projection
            h = jnp.clip(h, -clips[1], clips[1]) if clips[1] else h
            return (c, h), h

        return (jax.lax.scan(step, (cell, hidden), z)[1] * dy).sum()

    def ours(z, first, kernel, projection):
        return (recur(z, first, kernel, projection, *clips)[1] * dy).sum()

    got = jax.jit(jax.grad(ours, (0, 1, 2, 3)))(z, (cell, hidden), kernel, projection)
    expected = jax.jit(jax.grad(plain, (0, 1, 2)))(z, kernel, projection)
    assert not any(np.any(x) for x in got[1])
    for a, b in zip((got[0], *got[2:]), expected, strict=True):
        close(a, b)


@pytest.mark.parametrize("clips", [CLIPS[3], *long(*((clips,) for clips in CLIPS[:3]))])
def test_sentences_of_a_lane_are_each_alone(clips):
    """Sentences of 3, 1 and 5 steps in a lane, of 7 and 2 in another: states, and all gradients."""
    lanes = [[3, 1, 5], [7, 2]]
    _, cell, hidden, *kernels = jax.tree.map(
        lambda x: jnp.asarray(x[:2] if x.shape[0] == B else x, jnp.float32), _inputs()
    )
    z, dy = jnp.asarray(_drawn(9, 2, 4, U, seed=6), jnp.float32), jnp.asarray(_drawn(9, 2, J, seed=7), jnp.float32)
    places = [(lane, sum(own[:n]), length) for lane, own in enumerate(lanes) for n, length in enumerate(own)]
    keeps = np.ones((9, 2, 1), bool)
    for lane, first, _ in places:
        keeps[first, lane] = False

    def together(z, *kernels):
        states = recur(z, (cell, hidden), *kernels, *clips, jnp.asarray(keeps))
        return (states[1] * dy).sum(), states

    def alone(z, *kernels):
        zeros, total, states = (jnp.zeros((1, U)), jnp.zeros((1, J))), 0.0, []
        for lane, first, length in places:
            here = slice(first, first + length), slice(lane, lane + 1)
            states.append(recur(z[here], zeros, *kernels, *clips))
            total += (states[-1][1] * dy[here]).sum()
        return total, states

    (_, got), gradient = jax.jit(jax.value_and_grad(together, (0, 1, 2), has_aux=True))(z, *kernels)
    (_, expected), own = jax.jit(jax.value_and_grad(alone, (0, 1, 2), has_aux=True))(z, *kernels)
    for (lane, first, length), states in zip(places, expected, strict=True):
        for x, y in zip(got, states, strict=True):
            close(x[first : first + length, lane], y[:, 0])
    for x, y in zip(gradient, own, strict=True):
        close(x, y)
    # What is no number stays in its sentence, the second of the first lane.
    some = jax.jit(together)(z.at[3, 0].set(jnp.nan), *kernels)[1][1]
    assert np.array_equal(np.isnan(some).any(-1), np.isin(np.arange(18), 6).reshape(9, 2))


def _lstm(skip: bool, layers: int = 3):
    sizes = {"N": layers, "J": J, "G": 4, "U": U}
    module = Lstm(sizes, 0.0, 0.0, skip, 0.0, jnp.float32)
    x = jnp.asarray(_drawn(B, L, J, seed=6), jnp.float32)
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), x, False, None, None, 0))
    draw = np.random.default_rng(8)
    params: Any = jax.tree.map(lambda x: np.float32(draw.normal(0.1, 0.4, x.shape)), shapes)
    states: Any = jax.jit(lambda params: module.apply(params, x, False, None, None, 0))(params)
    return states, params["params"], np.asarray(x, np.float64)


@pytest.mark.parametrize("skip", [False, True])
def test_a_skip_adds_the_input_of_all_layers_but_the_first(skip):
    got, params, x = _lstm(skip)
    kernel, bias, projection = (np.asarray(params[name], np.float64) for name in ("kernel", "bias", "projection"))
    for n, layer in enumerate(got):
        z = np.einsum("BLJ,JGU->LBGU", x, kernel[n, 0]) + bias[n]
        y = _steps(z, np.zeros((B, U)), np.zeros((B, J)), kernel[n, 1], projection[n], 0.0, 0.0)[1]
        y = np.moveaxis(y, 0, 1)
        x = y + x if skip and n else y
        close(layer, x, str(n))


def test_a_lines_state_is_that_at_its_own_last_place():
    sizes = {"N": 2, "J": J, "G": 4, "U": U}
    module = Lstm(sizes, 0.0, 0.0, True, 0.0, jnp.float32)
    x, last = jnp.asarray(_drawn(B, L, J, seed=6), jnp.float32), jnp.array([1, 3, 2])

    @jax.jit
    def apply(variables, x, last):
        return module.apply(variables, x, True, last, None, 0, mutable=["carry"])

    made = jax.jit(lambda: module.init(jax.random.key(0), x, True, last, None, 0))()
    _, left = apply(made, x, last)
    for row, end in enumerate(last.tolist()):
        _, alone = apply(made, x[:, : end + 1], None)
        for name, state in left["carry"].items():
            close(state[row], alone["carry"][name][row], name)
    again, _ = apply({**made, **left}, x, None)
    fresh, _ = apply(made, x, None)
    assert_differs(again[0][:, 0], fresh[0][:, 0], 1e-3)


def test_cells_are_summed_in_float32_where_products_take_bfloat16():
    """Each step adds 2^-10 to a cell of 1, and takes it from a gate's 1: bfloat16 would lose both. The cell is then
    clipped at a number that bfloat16 does not hold."""
    steps, limit = 64, 1.0 + 50 / 1024
    # i is open and j small, so that i·j = 2^-10; f forgets nothing.
    gates = jnp.array([30.0, np.arctanh(1 / 1024), 30.0, 0.0], jnp.float32)
    z = jnp.broadcast_to(gates[None, None, :, None], (steps, B, 4, U))
    kernel, projection = jnp.zeros((J, 4, U), jnp.bfloat16), jnp.ones((U, J), jnp.bfloat16)
    initial = jnp.ones((B, U)), jnp.zeros((B, J), jnp.bfloat16)
    cells, hidden = recur(z, initial, kernel, projection, limit, 0.0)
    assert (cells.dtype, hidden.dtype) == (jnp.float32, jnp.bfloat16)
    expected = np.minimum(1 + np.arange(1, steps + 1) / 1024, limit)
    close(cells[:, 0, 0], expected, tolerance=1e-6)


@pytest.mark.long
def test_bfloat16_changes_layers_and_gradients_by_its_rounding_alone():
    """Over forty steps with a carry: states, and each parameter's gradient, which is float32 like the parameter."""
    sizes, x = {"N": 2, "J": 16, "G": 4, "U": 32}, jnp.asarray(_drawn(B, 40, 16, seed=7), jnp.float32)

    def run(dtype):
        module = Lstm(sizes, 3.0, 3.0, True, 0.0, dtype)
        made = jax.jit(module.init, static_argnums=(2, 5))(jax.random.key(0), x, True, None, None, 0)

        def loss(params):
            layers, left = module.apply({**made, "params": params}, x, True, None, None, 0, mutable=["carry"])
            return jnp.square(layers[-1].astype(jnp.float32)).sum(), (layers, left["carry"])

        gradient, (layers, carry) = jax.jit(jax.grad(loss, has_aux=True))(made["params"])
        return [*layers, carry["hidden"]], carry["cell"], gradient

    got, expected = run(jnp.bfloat16), run(jnp.float32)
    assert all(x.dtype == jnp.bfloat16 for x in got[0])
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(got[1:]))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        close(a.astype(jnp.float32), b, tolerance=1e-2)
        assert_differs(a.astype(jnp.float32), b)


@pytest.mark.long
def test_under_fsdp_each_kernel_is_gathered_once_and_outside_loops():
    """Each device of eight has its rows of the kernels and its own sequences: all it needs of the others is the rest of
    the kernels, before the first loop, and the sums of their gradients, after the last."""
    sizes = {"N": 2, "J": 8, "G": 4, "U": 16}
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(1, 8, 1), MESH_AXES)
    module = Lstm(sizes, 0.0, 0.0, False, 0.0, jnp.float32)
    x = jnp.asarray(_drawn(16, L, 8), jnp.float32)
    params: Any = module.init(jax.random.key(0), x, False, None, None, 0)["params"]
    dims = {"kernel": "N_JGU", "bias": "NGU", "projection": "NUJ"}

    def place(x: jax.Array, dims: str) -> jax.Array:
        return jax.device_put(x, NamedSharding(mesh, partition_spec(dims, x.shape, dict(mesh.shape))))

    def loss(params: Any, x: jax.Array) -> jax.Array:
        layers: Any = module.apply({"params": params}, x, False, None, None, 0)
        return jnp.square(layers[-1]).sum()

    with jax.set_mesh(mesh):
        placed = {name: place(x, dims[name]) for name, x in params.items()}
        shardings = {name: x.sharding for name, x in placed.items()}
        step = jax.jit(jax.grad(loss), out_shardings=shardings)
        computations = str(step.lower(placed, place(x, "BLJ")).compile().as_text()).split("\n\n")
    gathered = [re.findall(r"= f32\[([\d,]+)\]\S* all-gather\(", text) for text in computations]
    collective = re.compile(r" (?:all-\w+|reduce-scatter|collective-permute)(?:-start)?\(")
    sent = [len(collective.findall(text)) for text in computations]
    entry = next(n for n, text in enumerate(computations) if text.lstrip().startswith("ENTRY"))
    assert sum("while/body" in text for text in computations) > 1 and sum(sent) == sent[entry]
    kernels = [",".join(map(str, params[name].shape)) for name in ("kernel", "projection")]
    assert sorted(gathered[entry]) == sorted(kernels)
