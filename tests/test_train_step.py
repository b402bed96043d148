"""The step: what is skipped changes nothing, and its sums are those of the whole batch."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import recipe
from data.config import DataConfig
from models.config import BertConfig
from models.model import build
from models.shapes import path_of
from train import mesh as meshes
from train.config import Run
from train.losses import cross_entropy
from train.metrics import peak_flops, step_floats, unigram_baseline
from train.objectives import OBJECTIVES, batch_fields
from train.options import MeshConfig, OptimConfig
from train.step import create, train_step

RUN = Run(
    model=BertConfig(vocab=50, length=16, layers=1, hidden=16, heads=2, ffn=24),
    data=DataConfig(batch=8, length=16, predictions=3),
    optim=OptimConfig(warmup=1, peak_lr=1e-2),
    steps=10,
)


def a_batch(seed: int = 0) -> dict[str, jax.Array]:
    rng = np.random.default_rng(seed)
    return {
        "tokens": jnp.asarray(rng.integers(5, 50, (8, 16)), jnp.int32),
        "segments": jnp.asarray(rng.integers(0, 2, (8, 16)), jnp.int32),
        "mask": jnp.ones((8, 16), jnp.int32),
        "slots": jnp.asarray(rng.integers(0, 16, (8, 3)), jnp.int32),
        "labels": jnp.asarray(rng.integers(5, 50, (8, 3)), jnp.int32),
        "slot_weights": jnp.asarray(rng.integers(0, 2, (8, 3)), jnp.float32),
        "is_random": jnp.asarray(rng.integers(0, 2, (8,)), jnp.int32),
        "valid": jnp.ones((8,), jnp.float32),
    }


@pytest.fixture(scope="module")
def stepper():
    mesh = meshes.build(MeshConfig(), jax.devices()[:1])
    objective = OBJECTIVES[RUN.objective]
    model = build(RUN.model, objective.heads)
    with jax.set_mesh(mesh):
        make, _, shardings = create(model, RUN, mesh)
        yield make, train_step(model, objective, RUN, shardings)


def test_the_old_moments_are_written_over_in_place(stepper):
    """On a CPU: a copy of them at every step is as many numbers as twice the parameters."""
    make, step = stepper
    program = step.lower(make(), a_batch()).compile().as_text()
    copied = [line.strip() for line in program.splitlines() if " copy(%state_opt" in line and "f32[]" not in line]
    assert "%state_opt" in program and not copied, copied


@pytest.mark.parametrize("poison", ["slot_weights", "valid"])
def test_a_step_that_is_not_finite_changes_nothing_and_is_counted(stepper, poison):
    make, step = stepper
    state, _ = step(make(), a_batch())
    before = jax.device_get((state.params, state.opt))
    for bad in (1, 2):
        state, metrics = step(state, {**a_batch(bad), poison: a_batch()[poison].at[0].set(jnp.nan)})
        assert not np.isfinite(metrics["loss"])
        assert (int(state.skipped), int(state.skipped_in_row), int(state.step)) == (bad, bad, 1 + bad)
    same = jax.tree.map(np.array_equal, before, jax.device_get((state.params, state.opt)))
    assert all(jax.tree.leaves(same))
    state, metrics = step(state, a_batch(3))
    assert np.isfinite(metrics["loss"]) and (int(state.skipped), int(state.skipped_in_row)) == (2, 0)


def test_the_batch_a_step_wants_is_what_the_backbone_and_the_objective_read():
    assert set(batch_fields(RUN)) == set(a_batch())


def test_every_moment_has_its_parameter_s_place():
    mesh = meshes.build(MeshConfig(fsdp=2, tensor=2))
    model = build(RUN.model, OBJECTIVES[RUN.objective].heads)
    _, shapes, shardings = create(model, RUN, mesh)
    places = {path_of(k): s.spec for k, s in jax.tree_util.tree_flatten_with_path(shardings.params)[0]}
    for moments in (shardings.opt[1].mu, shardings.opt[1].nu):
        assert {path_of(k): s.spec for k, s in jax.tree_util.tree_flatten_with_path(moments)[0]} == places
    assert any("tensor" in str(spec) for spec in places.values())


def test_cross_entropy_is_minus_the_log_softmax():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(4, 5, 11)).astype(np.float32) * 9, rng.integers(0, 11, (4, 5))
    loss, hit = cross_entropy(jnp.asarray(logits), jnp.asarray(labels, jnp.int32))
    wanted = -np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), labels[..., None], -1)[..., 0]
    np.testing.assert_allclose(loss, wanted, rtol=1e-5, atol=1e-5)
    assert np.array_equal(hit, logits.argmax(-1) == labels)


def test_the_unigram_baseline_is_the_training_text_s_frequencies():
    found = unigram_baseline(np.array([1, 5, 2]), np.array([1, 2, 1]))
    share = np.array([2, 6, 3]) / 11
    assert found["unigram_loss"] == pytest.approx(-np.log(share[[1, 1, 2, 0]]).mean())
    assert found["unigram_accuracy"] == 0.5


def test_a_chip_s_peak_is_its_own():
    assert peak_flops("NVIDIA H200") == 989e12 and peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_flops("TPU v5 lite") == 197e12 and peak_flops("TPU v5p") == 459e12 and peak_flops("cpu") is None


def test_what_a_step_works_on_grows_with_its_batch_and_decides_who_shares_an_arena():
    small, usual = recipe("gpt.shakespeare_char"), [recipe("gpt.tiny"), recipe("bert.tiny")]
    assert step_floats(small) * 4 < 60e6 < min(step_floats(run) * 4 for run in usual)
    twice = dataclasses.replace(small, data=dataclasses.replace(small.data, batch=2 * small.data.batch))
    assert step_floats(twice) == 2 * step_floats(small)
    parts = dataclasses.replace(twice, optim=dataclasses.replace(twice.optim, accumulate=2))
    assert step_floats(parts) == step_floats(small)
