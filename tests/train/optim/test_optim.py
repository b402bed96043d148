"""Optimizers and schedules against references written from the papers' formulas in plain NumPy."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.configs import recipe
from contexture.configs.finetuning import MIX_LR
from contexture.models.heads.layer_mix import ScalarMix
from contexture.models.shapes import path_of
from contexture.overrides import with_options
from contexture.train.errors import ConfigError
from contexture.train.optim.optimizers import decayed, learning_rate, learning_rate_of, lr_multipliers, optimizer
from contexture.train.settings.sections import OptimConfig
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close

T = 100


def rate(config: OptimConfig, step: int, steps: int = T) -> float:
    return float(learning_rate(config, steps, jnp.int32(step)))


def test_the_originals_rate_starts_at_zero_and_falls_from_step_zero():
    config = OptimConfig(peak_lr=1e-4, warmup=10)
    assert rate(config, 0) == 0.0
    assert rate(config, 9) == pytest.approx(1e-4 * 9 / 10, rel=1e-6)
    assert rate(config, 10) == pytest.approx(1e-4 * (1 - 10 / T), rel=1e-6)
    assert rate(config, T - 1) == pytest.approx(1e-4 / T, rel=1e-5)
    assert rate(config, T) == rate(config, T + 50) == 0.0


@given(st.integers(0, 99), st.integers(0, 99), st.sampled_from(["linear", "cosine"]), st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_the_other_schedules_rise_to_the_peak_and_fall_to_their_end(step, warmup, schedule, final):
    config = OptimConfig(name="adamw", schedule=schedule, warmup=warmup, peak_lr=2.0, final_lr=final)
    done = max(step - warmup, 0) / max(T - warmup, 1)
    shape = 1 - done if schedule == "linear" else (1 + np.cos(np.pi * done)) / 2
    expected = 2.0 * ((step + 1) / warmup if step < warmup else final + (1 - final) * shape)
    assert rate(config, step) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert rate(config, T) == pytest.approx(2.0 * final, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_rate_ends_its_fall_at_decay_steps_and_stays_there(schedule):
    config = OptimConfig(name="adamw", schedule=schedule, warmup=20, decay_steps=60, peak_lr=2.0, final_lr=0.1)
    assert rate(config, 19) == rate(config, 20) == pytest.approx(2.0)
    quarter = 0.75 if schedule == "linear" else (1 + np.cos(np.pi / 4)) / 2
    assert rate(config, 30) == pytest.approx(2.0 * (0.1 + 0.9 * quarter), rel=1e-5)
    assert rate(config, 40) == pytest.approx(2.0 * (0.1 + 0.9 * 0.5), rel=1e-5)
    assert rate(config, 59) > rate(config, 60) == rate(config, T) == rate(config, 10 * T) == pytest.approx(0.2)
    whole = dataclasses.replace(config, decay_steps=0)
    assert rate(whole, 60) == pytest.approx(2.0 * (0.1 + 0.9 * 0.5), rel=1e-5)  # halfway from 20 to 100


def test_gpt_1s_rate_falls_from_the_first_step_on_its_warm_up_included():
    """(x/0.2 where x ≤ 0.2, else 1)·(1 - x), x = t/T; the fraction is not rounded to whole steps."""
    config = OptimConfig(name="gpt1", schedule="gpt1", warmup=0, warmup_fraction=0.205, peak_lr=2.0)
    for step in (0, 1, 10, 20, 21, 50, 99):
        x = step / T
        expected = 2.0 * (x / 0.205 if x <= 0.205 else 1.0) * (1 - x)
        assert rate(config, step) == pytest.approx(expected, rel=1e-5, abs=1e-9), step
    assert rate(config, T) == rate(config, T + 9) == 0.0


PARAMS = {
    "backbone": {"ffn": {"kernel": (5, 3), "bias": (3,)}, "norm": {"scale": (3,), "bias": (3,)}},
    "heads_mlm": {"bias": (7,)},
}


def draw(seed: int) -> dict:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: rng.normal(size=shape).astype(np.float32), PARAMS, is_leaf=lambda x: isinstance(x, tuple)
    )


def reference(config: OptimConfig, params: dict, grads: list[dict]) -> list[np.ndarray]:
    """Clip, Adam with or without bias correction, decoupled decay of kernels only; float64."""
    names = [jax.tree_util.keystr(k) for k, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    p = [x.astype(np.float64) for x in jax.tree.leaves(params)]
    m, v = [0 * x for x in p], [0 * x for x in p]
    for t, grad in enumerate(grads):
        g = [x.astype(np.float64) for x in jax.tree.leaves(grad)]
        norm = np.sqrt(sum((x**2).sum() for x in g))
        g = [x * min(1.0, config.clip / norm) for x in g] if config.clip else g
        lr = config.peak_lr * (t / config.warmup if t < config.warmup else 1 - t / T)
        for i, name in enumerate(names):
            m[i] = config.b1 * m[i] + (1 - config.b1) * g[i]
            v[i] = config.b2 * v[i] + (1 - config.b2) * g[i] ** 2
            a, b = (1.0, 1.0) if config.name == "bert" else (1 - config.b1 ** (t + 1), 1 - config.b2 ** (t + 1))
            update = (m[i] / a) / (np.sqrt(v[i] / b) + config.eps)
            if "kernel" in name:
                update = update + config.weight_decay * p[i]
            p[i] = p[i] - lr * update
    return p


@pytest.mark.parametrize("name", ["bert", "adamw"])
@pytest.mark.parametrize("clip", [0.0, 1.0, 1e6, 1e39])
def test_ten_updates_are_those_of_the_formula(name, clip):
    config = OptimConfig(name=name, peak_lr=0.01, warmup=4, clip=clip, weight_decay=0.1)
    params, grads = draw(0), [draw(seed) for seed in range(1, 11)]
    tx = optimizer(config)
    state, now = tx.init(params), params
    for step, grad in enumerate(grads):
        updates, state = tx.update(grad, state, now)
        lr = learning_rate(config, T, jnp.int32(step))
        now = jax.tree.map(lambda p, u, lr=lr: p - lr * u, now, updates)
    for got, expected in zip(jax.tree.leaves(now), reference(config, params, grads), strict=True):
        assert_close(got, expected, rtol=2e-5, atol=2e-6)


LAYERED = {
    "backbone": {
        "embeddings": {"tokens": (6, 4)},
        "layers": {"ffn": {"kernel": (3, 4, 5), "bias": (3, 5)}, "norm": {"scale": (3, 4)}},
    },
    "heads_mlm": {"kernel": (4, 6), "empty": {"kernel": (2, 2)}},
}


def lamb(config: OptimConfig, params: dict[str, np.ndarray], grads: list[dict[str, np.ndarray]]) -> None:
    """You et al. 2020, algorithm 2, for each layer by itself; float64, in place."""
    m, v = ({name: 0 * x for name, x in params.items()} for _ in range(2))
    for t, g in enumerate(grads, 1):
        norm = np.sqrt(sum((x**2).sum() for x in g.values()))
        lr = float(learning_rate(config, T, jnp.int32(t - 1)))
        for name, p in params.items():
            m[name] = config.b1 * m[name] + (1 - config.b1) * g[name] * min(1.0, config.clip / norm)
            v[name] = config.b2 * v[name] + (1 - config.b2) * (g[name] * min(1.0, config.clip / norm)) ** 2
            r = (m[name] / (1 - config.b1**t)) / (np.sqrt(v[name] / (1 - config.b2**t)) + config.eps)
            # Norms and biases are neither decayed nor scaled.
            if "kernel" in name or "tokens" in name:
                r = r + config.weight_decay * p
                lengths = np.linalg.norm(p), np.linalg.norm(r)
                r = r * (lengths[0] / lengths[1] if min(lengths) > 0 else 1.0)
            p -= lr * r


def apart(tree: Any) -> dict[str, np.ndarray]:
    """Arrays by path, each layer's by itself."""
    arrays: dict[str, np.ndarray] = {}
    for keys, x in jax.tree_util.tree_flatten_with_path(tree)[0]:
        path = path_of(keys)
        each = {f"{path} {n}": part for n, part in enumerate(x)} if "/layers/" in path else {path: x}
        arrays |= {name: np.asarray(part, np.float64).copy() for name, part in each.items()}
    return arrays


@pytest.mark.parametrize("moments", ["float32", "bfloat16"])
def test_twenty_updates_of_lamb_are_those_of_the_paper(moments):
    """One kernel is 0, so that its ratio is 1; one gradient is 0 at first."""
    config = OptimConfig(name="lamb", peak_lr=0.01, warmup=4, schedule="linear", weight_decay=0.1, moments=moments)
    rng = np.random.default_rng(3)
    shapes = jax.tree.map(lambda shape: shape, LAYERED, is_leaf=lambda x: isinstance(x, tuple))

    def drawn() -> Any:
        return jax.tree.map(
            lambda shape: rng.normal(size=shape).astype(np.float32), shapes, is_leaf=lambda x: isinstance(x, tuple)
        )

    params, grads = drawn(), [drawn() for _ in range(20)]
    params["heads_mlm"]["empty"]["kernel"][:] = 0.0
    grads[0]["heads_mlm"]["empty"]["kernel"][:] = 0.0
    expected = apart(params)
    lamb(config, expected, [apart(grad) for grad in grads])
    tx = optimizer(config)
    state, now = tx.init(params), params
    for step, grad in enumerate(grads):
        updates, state = tx.update(grad, state, now)
        lr = learning_rate(config, T, jnp.int32(step))
        now = jax.tree.map(lambda p, u, lr=lr: p - lr * u, now, updates)
    got = apart(now)
    assert set(got) == set(expected)
    for name, value in expected.items():
        if moments == "float32":
            assert_close(got[name], value, rtol=2e-5, atol=2e-6)
        else:
            # Rounded moments: the same path, not the same numbers.
            assert np.abs(got[name] - value).max() < 0.02 * np.abs(apart(params)[name] - value).max() + 1e-3


def adafactor(config: OptimConfig, params: dict[str, np.ndarray], grads: list[dict[str, np.ndarray]]) -> None:
    """Shazeer and Stern 2018, algorithm 4, for each kernel of each layer by itself; float64, in place."""
    state: dict[str, Any] = {}
    for t, g in enumerate(grads, 1):
        norm = np.sqrt(sum((x**2).sum() for x in g.values()))
        lr, decay = float(learning_rate(config, T, jnp.int32(t - 1))), 1 - t**-0.8
        for name, p in params.items():
            cut = {"query": 1, "out": 2}.get(name.split("/")[-2], 1)
            sides = (math.prod(p.shape[:cut]), math.prod(p.shape[cut:]))
            grad = (g[name] * min(1.0, config.clip / norm)).reshape(sides)
            square = grad**2 + 1e-30
            if min(sides) >= 128:
                row, column = state.get(name, (0.0, 0.0))
                row, column = decay * row + (1 - decay) * square.mean(1), decay * column + (1 - decay) * square.mean(0)
                state[name], v = (row, column), np.outer(row, column) / row.mean()
            else:
                state[name] = v = decay * state.get(name, 0.0) + (1 - decay) * square
            u = grad / np.sqrt(v)
            u = u / max(1.0, np.sqrt((u**2).mean())) * max(1e-3, np.sqrt((p**2).mean()))
            p -= lr * (u.reshape(p.shape) + config.weight_decay * p * ("kernel" in name))


def test_twenty_updates_of_adafactor_are_those_of_the_paper():
    """Kernels with dims for heads on either side, tables, small matrices and biases; the first update is by signs."""
    config = OptimConfig(name="adafactor", peak_lr=0.05, warmup=4, schedule="linear", weight_decay=0.1)
    shapes = {
        "backbone": {"layers": {
            "attention": {"query": {"kernel": (2, 130, 5, 26), "bias": (2, 5, 26)}, "out": {"kernel": (2, 5, 26, 130)}},
            "norm": {"scale": (2, 130)},
        }},
        "heads_mlm": {"transform": {"kernel": (128, 140)}, "small": {"kernel": (127, 200), "bias": (7,)}},
    }  # fmt: skip
    rng = np.random.default_rng(3)

    def drawn(scale: float) -> Any:
        shape = lambda x: isinstance(x, tuple)  # noqa: E731
        return jax.tree.map(lambda s: (scale * rng.normal(size=s)).astype(np.float32), shapes, is_leaf=shape)

    params, grads = drawn(0.02), [drawn(0.1) for _ in range(20)]
    expected, tx = apart(params), optimizer(config)
    adafactor(config, expected, [apart(grad) for grad in grads])
    state, now = tx.init(params), params
    for step, grad in enumerate(grads):
        updates, state = tx.update(grad, state, now)
        lr = learning_rate(config, T, jnp.int32(step))
        now = jax.tree.map(lambda p, u, lr=lr: p - lr * u, now, updates)
    got = apart(now)
    assert set(got) == set(expected)
    for name, value in expected.items():
        assert_close(got[name], value, rtol=2e-4, atol=2e-6)
    # Sums of rows and columns: far less than one number for each parameter.
    assert sum(x.size for x in jax.tree.leaves(state)) < 0.3 * sum(x.size for x in jax.tree.leaves(params))


def test_each_phase_may_have_a_schedule_of_its_own():
    base = with_options(recipe("bert.tiny"), {"data.phases": "16x8:100 32x8:50"})

    def rates_of(steps: Sequence[int], **options: Any) -> list[float]:
        run = dataclasses.replace(base, optim=OptimConfig(schedule="linear", **options))
        return [float(learning_rate_of(run, jnp.int32(step))) for step in steps]

    rates = rates_of(range(150), phase_lr=(6e-3, 4e-3), phase_warmup=(20, 5))
    for first, steps, peak, warmup in ((0, 100, 6e-3, 20), (100, 50, 4e-3, 5)):
        alone = OptimConfig(schedule="linear", peak_lr=peak, warmup=warmup)
        expected = [float(learning_rate(alone, steps, jnp.int32(step))) for step in range(steps)]
        assert rates[first : first + steps] == pytest.approx(expected, rel=1e-6)
    # A share of each phase's own steps; and without rates, one schedule.
    assert rates_of((19, 109), phase_lr=(6e-3, 4e-3), warmup_fraction=0.2) == pytest.approx([6e-3, 4e-3])
    one = OptimConfig(schedule="linear", warmup=10)
    assert rates_of((120,), warmup=10) == [float(learning_rate(one, 150, jnp.int32(120)))]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"optim.phase_lr": [1e-3]}, "optim.phase-lr has 1 rates, and data.phases 2 phases; give one for each"),
        ({"optim.phase_lr": [1e-3, 0.0]}, "are rates above 0 and steps from 0 on"),
        ({"optim.phase_warmup": [1, 2]}, "optim.phase-warmup has no meaning without as many optim.phase-lr"),
        ({"optim.name": "adafactor", "optim.moments": "bfloat16"}, "adafactor's sums of squares want float32"),
        (
            {"optim.name": "adafactor", "optim.b1": 0.5},
            "optim.b1 is for --optim.name adamw, bert, gpt1 or lamb, and has no meaning for --optim.name adafactor",
        ),
    ],
)
def test_mistakes_in_rates_of_phases_are_one_line(options: dict[str, Any], line: str):
    run = with_options(recipe("bert.tiny"), {"data.phases": "16x8:4 32x8:4"})
    with pytest.raises(ConfigError, match=line):
        with_options(run, options)


def test_norms_and_biases_are_not_decayed_and_the_words_are_a_choice():
    mask = decayed(draw(0), OptimConfig().no_decay)
    assert mask == {
        "backbone": {"ffn": {"kernel": True, "bias": False}, "norm": {"scale": False, "bias": False}},
        "heads_mlm": {"bias": False},
    }
    every = dataclasses.replace(OptimConfig(), no_decay=())
    assert all(jax.tree.leaves(decayed(draw(0), every.no_decay)))


def _shares(**more) -> dict[str, np.ndarray]:
    params = {
        "backbone": {
            "embeddings": {"tokens": np.zeros((5, 2))},
            "layers": {"ffn": {"in": {"kernel": np.zeros((3, 2, 4))}}},
            "pooler": {"bias": np.zeros(2)},
        },
        "heads_tag": {"kernel": np.zeros((2, 3)), "mix": {"weights": np.zeros(3)}},
    }
    multipliers = lr_multipliers(OptimConfig(**more), params)
    leaves = jax.tree_util.tree_flatten_with_path(multipliers)[0]
    return {path_of(k): x.ravel() for k, x in leaves}


def test_each_layer_has_its_share_of_the_rate():
    assert lr_multipliers(OptimConfig(), {}) is None
    multipliers = _shares(layer_decay=0.5)
    assert_close(multipliers["backbone/layers/ffn/in/kernel"], [0.25, 0.5, 1.0])
    assert multipliers["backbone/embeddings/tokens"] == [0.125]
    assert multipliers["backbone/pooler/bias"] == multipliers["heads_tag/kernel"] == [1.0]


def test_the_weights_of_a_mix_have_a_rate_of_their_own():
    mixes: Any = {"heads_tag": {"features": {"mix": {"weights": np.zeros(3), "gamma": np.ones(())}}, "out": np.ones(2)}}
    config = OptimConfig(peak_lr=1e-3, mix_lr=0.05)
    for run in (config, dataclasses.replace(config, lora_rank=4, frozen=("backbone",))):
        multipliers: Any = lr_multipliers(run, mixes)
        assert multipliers["heads_tag"]["out"] == [1.0]
        mix = multipliers["heads_tag"]["features"]["mix"]
        assert mix["weights"] == pytest.approx([50.0]) and mix["gamma"] == 1.0
    assert lr_multipliers(OptimConfig(), mixes) is None
    plain: Any = {"heads_tag": {"out": np.ones(2)}}
    assert lr_multipliers(OptimConfig(mix_lr=0.05), plain) is None
    with pytest.raises(ValueError, match="mix-lr=-1.0 is not at least 0"):
        OptimConfig(mix_lr=-1.0)


def test_the_rate_of_a_mix_stands_beside_those_of_layers():
    own = {"peak_lr": 1e-3, "mix_lr": 0.05}
    for more, layers in (({"layer_decay": 0.5}, [0.25, 0.5, 1.0]), ({"frozen_layers": 2}, [0.0, 0.0, 1.0])):
        multipliers = _shares(**own, **more)
        assert multipliers["heads_tag/mix/weights"] == pytest.approx([50.0])
        assert multipliers["heads_tag/kernel"] == [1.0]
        assert_close(multipliers["backbone/layers/ffn/in/kernel"], layers)
    multipliers = _shares(**own, frozen=("mix",))
    assert multipliers["heads_tag/mix/weights"] == [0.0] and multipliers["heads_tag/kernel"] == [1.0]


@pytest.mark.parametrize("layer", [1, *long(0, 2)])
def test_a_mix_finds_the_layer_that_matters_at_a_rate_of_its_own(layer: int):
    """Three layers of noise, one of which also tells two classes apart. At the rate of all else it hardly leaves a
    third."""
    rng = np.random.default_rng(layer)
    classes_BL = rng.integers(0, 2, (32, 8))
    layers: list[Any] = [rng.standard_normal((32, 8, 16)).astype(np.float32) for _ in range(3)]
    layers[layer][..., 0] += 4.0 * classes_BL - 2.0
    mask_BL, mix = jnp.ones((32, 8), jnp.int32), ScalarMix()

    def loss(params: Any) -> jax.Array:
        x_BLD: Any = mix.apply({"params": params["mix"]}, tuple(layers), mask_BL)
        return optax.losses.sigmoid_binary_cross_entropy(x_BLD @ params["kernel"], classes_BL).mean()

    def weight(config: OptimConfig) -> float:
        tx = optimizer(config)
        params: Any = {"mix": mix.init(jax.random.key(0), tuple(layers), mask_BL)["params"], "kernel": jnp.zeros(16)}
        multipliers = lr_multipliers(config, params)
        state: Any = tx.init(params)

        @jax.jit
        def step(params: Any, state: Any) -> tuple[Any, Any]:
            updates, state = tx.update(jax.grad(loss)(params), state, params)
            if multipliers is not None:
                updates = jax.tree.map(lambda u, m: u * m, updates, multipliers)
            return jax.tree.map(lambda p, u: p - config.peak_lr * u, params, updates), state

        for _ in range(100):
            params, state = step(params, state)
        return float(jax.nn.softmax(params["mix"]["weights"])[layer])

    config = OptimConfig(name="adamw", peak_lr=1e-3, weight_decay=0.0)
    assert weight(dataclasses.replace(config, mix_lr=MIX_LR)) > 0.8
    assert 1 / 3 < weight(config) < 0.4


def test_what_is_frozen_has_no_rate():
    multipliers = _shares(frozen_layers=2)
    assert multipliers["backbone/layers/ffn/in/kernel"].tolist() == [0.0, 0.0, 1.0]
    assert multipliers["backbone/embeddings/tokens"] == [0.0] and multipliers["heads_tag/kernel"] == [1.0]
    multipliers = _shares(frozen=("backbone",))
    assert (
        not any(x.any() for path, x in multipliers.items() if path.startswith("backbone"))
        and multipliers["heads_tag/kernel"]
    )
    with pytest.raises(ConfigError, match="optim.frozen-layers=4 is more than the model's 3 layers"):
        _shares(frozen_layers=4)
    with pytest.raises(ConfigError, match="leaves nothing to train"):
        _shares(frozen=("backbone", "heads"))


TAKEN_AND_REFUSED = {
    "peak_lr": ([1e-30, 1e3], [0.0, -1e-9, math.inf]), "final_lr": ([0.0, 1.0], [-1e-9, 1.001]),
    "b1": ([0.0, 0.999], [-1e-9, 1.0]), "b2": ([0.0, 0.9999], [-1e-9, 1.0]), "eps": ([1e-30, 2.0], [0.0, math.inf]),
    "weight_decay": ([0.0, 2.0], [-1e-9, math.inf]), "mix_lr": ([0.0, 2.0], [-1e-9, math.inf]),
    "lora_alpha": ([1e-9, 64.0], [0.0, math.inf]), "clip": ([0.0, 2.0], [-1e-9, math.inf]),
    "gradient_scale": ([1e-9, 2.0], [0.0, math.inf]), "warmup_fraction": ([0.0, 0.999], [-1e-9, 1.0]),
    "layer_decay": ([1e-9, 1.0], [0.0, 1.001]),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN_AND_REFUSED)
def test_a_number_is_taken_up_to_its_bounds(name):
    taken, refused = TAKEN_AND_REFUSED[name]
    usual: dict[str, Any] = dict(name="adamw", schedule="linear", warmup=0)
    for value in taken:
        given: dict[str, Any] = usual | {name: value}
        assert getattr(OptimConfig(**given), name) == value
    for value in (*refused, math.nan):
        given = usual | {name: value}
        with pytest.raises(ValueError, match=f"optim.{name.replace('_', '-')}={value} is not "):
            OptimConfig(**given)
