"""ELMo's Adagrad in NumPy, in float64 (bilm-tf, training.py), and rates that differ by layer."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contexture.data.config import DataConfig
from contexture.models.config import BertConfig
from contexture.models.families import build, example
from contexture.models.shapes import by_path
from contexture.train import mesh as meshes
from contexture.train.objectives import OBJECTIVES, batch_fields, batch_sizes
from contexture.train.optim.optimizers import optimizer
from contexture.train.programs import step_settings
from contexture.train.settings.run import Run
from contexture.train.settings.sections import MeshConfig, OptimConfig
from contexture.train.step import create, train_step
from tests.helpers.parity_rule import close

CONFIG = OptimConfig(
    name="adagrad", schedule="linear", peak_lr=0.2, warmup=0, final_lr=1.0, weight_decay=0.0, clip=10.0,
    gradient_scale=20.0,
)  # fmt: skip


@pytest.mark.parametrize("size", [0.05, 3.0])
def test_five_updates_are_those_of_the_formula(size):
    """20·g, to a length of 10 at most, over sqrt(1 + Σ g²), without eps."""
    rng = np.random.default_rng(0)
    params = {"a": rng.normal(size=(4, 3)).astype(np.float32), "b": rng.normal(size=5).astype(np.float32)}
    tx, now = optimizer(CONFIG), params
    state, p = tx.init(params), {name: x.astype(np.float64) for name, x in params.items()}
    squares = {name: np.ones_like(x) for name, x in p.items()}
    for _ in range(5):
        grads = {name: (size * rng.normal(size=x.shape)).astype(np.float32) for name, x in params.items()}
        updates, state = tx.update(grads, state, now)
        now = jax.tree.map(lambda x, u: x - 0.2 * u, now, updates)
        scaled = {name: 20.0 * g.astype(np.float64) for name, g in grads.items()}
        length = np.sqrt(sum(np.square(g).sum() for g in scaled.values()))
        assert (length > 10) == (size > 1)
        for name, g in scaled.items():
            g = g * min(1.0, 10 / length)
            squares[name] += g * g
            p[name] -= 0.2 * g / np.sqrt(squares[name])
    for name in p:
        close(now[name], p[name], name)


@pytest.mark.long
def test_a_layer_moves_by_its_share_of_the_rate_a_frozen_one_not():
    """Of layers in one array the first stays to the bit; the second has a third of the last one's rate."""
    run = Run(
        model=BertConfig(vocab=50, length=16, layers=3, hidden=16, heads=2, ffn=24, dropout=0.0, attention_dropout=0.0),
        data=DataConfig(batch=4, length=16, max_predictions=3),
        optim=OptimConfig(name="adamw", schedule="linear", peak_lr=1e-2, warmup=0, weight_decay=0.0, clip=0.0),
        steps=10,
    )
    mesh, objective = meshes.build(MeshConfig(), jax.devices()[:1]), OBJECTIVES[run.objective]
    rng = np.random.default_rng(0)
    batch = dict(example(batch_fields(run), batch_sizes(run, run.data.batch)))
    batch["tokens"], batch["labels"] = (
        jnp.asarray(rng.integers(5, 50, batch[name].shape), jnp.int32) for name in ("tokens", "labels")
    )

    model = build(run.model, objective.heads)
    with jax.set_mesh(mesh):
        draw, _, shardings = create(model, run, mesh)
        initial = jax.device_get(draw(run.seed))
    before = by_path(initial.params)

    def moved(**more) -> dict[str, np.ndarray]:
        changed = dataclasses.replace(run, optim=dataclasses.replace(run.optim, **more))
        with jax.set_mesh(mesh):
            step = train_step(model, objective, changed, mesh)
            state, _ = step(jax.device_put(initial, shardings), batch, step_settings(changed))
        after = by_path(jax.device_get(state.params))
        return {path: after[path].astype(np.float64) - before[path] for path in before}

    whole, part = moved(), moved(layer_decay=1 / 3, frozen_layers=1)
    for path in ("backbone/layers/ffn/in/kernel", "backbone/layers/attention/value/kernel"):
        assert not part[path][0].any()
        close(part[path][1], whole[path][1] / 3, path, 1e-3)
        close(part[path][2], whole[path][2], path, 1e-3)
    assert not part["backbone/embeddings/tokens"].any() and part["heads_nsp/kernel"].any()
