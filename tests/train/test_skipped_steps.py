"""A step whose loss is finite and whose gradient is not: it is skipped and counted, and changes nothing."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contexture.data.config import DataConfig
from contexture.models.config import BertConfig, ElmoConfig
from contexture.models.families import build, example
from contexture.train import mesh as meshes
from contexture.train.objectives import OBJECTIVES, Objective, Sum, batch_fields, batch_sizes
from contexture.train.programs import step_settings
from contexture.train.settings.run import Run
from contexture.train.settings.sections import MeshConfig, OptimConfig
from contexture.train.step import create, train_step
from tests.helpers.long import long
from tests.helpers.random_runs import drawn

OPTIM = OptimConfig(name="adamw", schedule="linear", peak_lr=1e-2, warmup=0)
RUNS = {
    "mlm_nsp": Run(
        model=BertConfig(vocab=50, length=16, layers=1, hidden=16, heads=2, ffn=24),
        data=DataConfig(batch=4, length=16, max_predictions=3),
        optim=OPTIM,
        steps=10,
    ),
    "bilm": Run(
        model=ElmoConfig(vocab=30, filters=((1, 4), (2, 4)), highway=1, layers=1, cells=8, projection=4),
        data=DataConfig(batch=4, length=5, vocabulary="words", negatives=0, word_types=9),
        optim=OPTIM,
        steps=10,
    ),
}


@dataclass(frozen=True)
class Cornered:
    """An objective and, beside it, sqrt(Σ (flag · x)²) of the hidden states, flag being one less than the
    batch's largest `valid`: where that is 0, the value is 0 and its slope 0/0."""

    inner: Objective

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def sums(self, outputs: Any, batch: Any) -> dict[str, Sum]:
        totals, name = self.inner.sums(outputs, batch), next(iter(self.inner.terms))
        flag = batch["valid"].max() - 1.0
        corner = jnp.sqrt(jnp.square(flag * outputs.encoding.hidden_BLD).sum())
        return {**totals, name: Sum(totals[name].total + corner, totals[name].weight)}


@pytest.mark.parametrize("name", ["bilm", *long("mlm_nsp")])
def test_a_finite_loss_with_a_gradient_that_is_not_finite_is_skipped(name):
    """Parameters and moments are as they were, bit for bit; a carry is what the batch's words leave, and finite."""
    run, objective = RUNS[name], Cornered(OBJECTIVES[name])
    mesh = meshes.build(MeshConfig(), jax.devices()[:1])
    rng = np.random.default_rng(0)
    batch = dict(example(batch_fields(run), batch_sizes(run, run.data.batch)))
    batch |= {k: jnp.asarray(rng.integers(1, 8, x.shape), x.dtype) for k, x in batch.items() if x.dtype == jnp.int32}
    batch |= {k: jnp.minimum(batch[k], 1) for k in ("segments", "is_random", "mask") if k in batch}
    good, bad = ({**batch, "valid": batch["valid"] * valid} for valid in (2.0, 1.0))
    with jax.set_mesh(mesh):
        _, shapes, shardings = create(build(run.model, objective.heads), run, mesh)
        step = train_step(build(run.model, objective.heads), objective, run, mesh)  # pyright: ignore[reportArgumentType]
        settings = step_settings(run)
        state, metrics = step(jax.device_put(drawn(shapes), shardings), good, settings)
        assert np.isfinite(metrics["grad_norm"]) and int(metrics["skipped"]) == 0
        before = jax.device_get((state.params, state.opt, state.carry))
        assert all(np.any(x) for x in jax.tree.leaves(before[1]))
        state, metrics = step(state, bad, settings)
        assert np.isfinite(metrics["loss"]) and not np.isfinite(metrics["grad_norm"])
        assert (int(state.skipped), int(state.skipped_in_row), int(state.step)) == (1, 1, 2)
        after = jax.device_get((state.params, state.opt, state.carry))
        assert all(jax.tree.leaves(jax.tree.map(np.array_equal, before[:2], after[:2])))
        for old, new in zip(*map(jax.tree.leaves, (before[2], after[2])), strict=True):
            assert np.isfinite(new).all() and np.any(new) and not np.array_equal(old, new)
        state, metrics = step(state, good, settings)
        assert (int(state.skipped), int(state.skipped_in_row)) == (1, 0)
        moved = jax.tree.map(np.array_equal, jax.device_get(state.params), after[0])
        assert not any(jax.tree.leaves(moved["backbone"]["layers"]))
