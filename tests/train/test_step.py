"""The step: what is skipped changes nothing, and its sums are those of the whole batch."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contexture.configs import recipe
from contexture.data.config import DataConfig, TaskConfig
from contexture.models.config import BertConfig, HeadConfig
from contexture.models.families import build
from contexture.models.shapes import by_path, path_of
from contexture.train import mesh as meshes
from contexture.train import programs
from contexture.train.errors import ConfigError
from contexture.train.evaluation.best import unigram_baseline, value_to_minimise
from contexture.train.metric_directions import Best
from contexture.train.objectives import OBJECTIVES, batch_fields, cross_entropy
from contexture.train.programs import step_settings, without_step_settings
from contexture.train.run.throughput import activation_floats
from contexture.train.settings.run import Run
from contexture.train.settings.sections import (
    EvaluateConfig,
    InitConfig,
    LogConfig,
    MeshConfig,
    OptimConfig,
    SaveConfig,
)
from contexture.train.step import create, train_step
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close, assert_differs, close
from tests.helpers.random_runs import drawn

FIRST = [0.012751494534313679, -0.021641425788402557, -0.015221397392451763]
RUN = Run(
    model=BertConfig(vocab=50, length=16, layers=1, hidden=16, heads=2, ffn=24),
    data=DataConfig(batch=8, length=16, max_predictions=3),
    optim=OptimConfig(warmup=1, peak_lr=1e-2),
    steps=10,
)

SETTINGS = step_settings(RUN)


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
        _, shapes, shardings = create(model, RUN, mesh)
        yield lambda: jax.device_put(drawn(shapes), shardings), train_step(model, objective, RUN, mesh)


def test_the_old_moments_are_written_over_in_place(stepper):
    """On a CPU: a copy of them at every step is as many numbers as twice the parameters."""
    make, step = stepper
    program = step.jitted.lower(make(), a_batch(), SETTINGS).compile().as_text()
    copied = [line.strip() for line in program.splitlines() if " copy(%state_opt" in line and "f32[]" not in line]
    assert "%state_opt" in program and not copied, copied


@pytest.mark.parametrize("shape", [(2, 2, 2), *long(((1, 1, 1),))])
def test_a_first_state_is_that_of_its_seed_on_any_mesh(shape: tuple[int, int, int]):
    """And a seed gives the numbers that it always gave."""
    model, kernel = build(RUN.model, OBJECTIVES[RUN.objective].heads), "backbone/layers/ffn/in/kernel"

    def params(run: Run, data: int = 1, fsdp: int = 1, tensor: int = 1) -> dict[str, np.ndarray]:
        mesh = meshes.build(MeshConfig(data=data, fsdp=fsdp, tensor=tensor), jax.devices()[: data * fsdp * tensor])
        with jax.set_mesh(mesh):
            return jax.device_get(by_path(create(model, run, mesh)[0](run.seed).params))

    first = params(RUN, *shape)
    assert_close(first[kernel][0, 0, :3], FIRST, rtol=1e-6)
    other = params(dataclasses.replace(RUN, seed=5), *shape)
    assert all(np.ptp(x) == 0 or np.mean(x != other[path]) > 0.9 for path, x in first.items())
    if shape == (1, 1, 1):
        for path, x in params(RUN, 2, 2, 2).items():
            assert np.array_equal(x, first[path]), path


def test_runs_share_a_step_with_masks_and_a_rate_of_their_own(stepper):
    make, step = stepper
    batch, results = a_batch(), []
    for run in (RUN, dataclasses.replace(RUN, seed=5, optim=dataclasses.replace(RUN.optim, peak_lr=3e-2))):
        settings = step_settings(run)
        state, _ = step(make(), batch, settings)  # its rate is 0
        results.append(step(state, batch, settings)[1])
        assert results[-1]["learning_rate"] == np.float32(run.optim.peak_lr) * np.float32(0.9)
    assert_differs(results[0]["loss"], results[1]["loss"], 1e-3)
    assert step.jitted._cache_size() == 1


def test_a_seed_and_a_rate_have_no_step_of_their_own(stepper):
    mesh, objective = meshes.build(MeshConfig(), jax.devices()[:1]), OBJECTIVES[RUN.objective]
    model = build(RUN.model, objective.heads)

    def jitted(**changes) -> Any:
        run = dataclasses.replace(RUN, **changes)
        return train_step(model, objective, run, mesh).jitted

    with jax.set_mesh(mesh):
        optim = dataclasses.replace(RUN.optim, peak_lr=3e-2)
        unread: dict[str, Any] = {
            "save": SaveConfig(every=3), "log": LogConfig(every=7), "evaluate": EvaluateConfig(every=2),
            "init": InitConfig(run="runs/1"),
            "data": dataclasses.replace(RUN.data, path=("a",), dev=("b",), tokenizer="c"),
            "task": dataclasses.replace(RUN.task, train=("a",), dev=("b",), test=("c",)),
        }  # fmt: skip
        assert jitted(seed=5, dir="runs/5", optim=optim) is stepper[1].jitted
        assert all(jitted(**{name: config}) is stepper[1].jitted for name, config in unread.items())
        for other in ({"optim": dataclasses.replace(RUN.optim, weight_decay=0.5)}, {"steps": 11}):
            assert jitted(**other) is not stepper[1].jitted


@pytest.mark.long
def test_runs_of_other_seeds_and_rates_share_a_step_with_own_numbers():
    """To the bit those of a step of their own, dropout on; another setting has another step."""
    mesh, objective = meshes.build(MeshConfig(), jax.devices()[:1]), OBJECTIVES[RUN.objective]
    model = build(RUN.model, objective.heads)

    def two_steps(run: Run) -> tuple[dict[str, np.ndarray], Any]:
        draw, settings = create(model, run, mesh)[0], step_settings(run)
        step = train_step(model, objective, run, mesh)
        state, metrics = step(step(draw(run.seed), a_batch(0), settings)[0], a_batch(1), settings)
        assert float(metrics["learning_rate"]) == np.float32(run.optim.peak_lr) * np.float32(0.9)
        return jax.device_get(by_path(state.params)), step.jitted

    def changed(seed: int, **optim) -> Run:
        return dataclasses.replace(RUN, seed=seed, dir=f"runs/{seed}", optim=dataclasses.replace(RUN.optim, **optim))

    with jax.set_mesh(mesh):
        runs = [RUN, changed(5, peak_lr=3e-2), changed(2**31 - 1), changed(0, peak_lr=3e-2)]
        results = [two_steps(run) for run in runs]
        assert len({id(jitted) for _, jitted in results}) == 1 and results[0][1]._cache_size() == 1
        for run, (params, _) in zip(runs[:2], results, strict=False):
            programs.forget()
            alone = two_steps(run)[0]
            assert all(np.array_equal(params[path], alone[path]) for path in alone)
        kernels = [params["backbone/layers/ffn/in/kernel"] for params, _ in results]
        for n, kernel in enumerate(kernels):
            for other in kernels[:n]:
                assert_differs(kernel, other, 1e-3)
        # The seed decides both the first parameters and, from the same ones, the masks.
        draw, step = create(model, RUN, mesh)[0], train_step(model, objective, RUN, mesh)
        starts = [by_path(draw(run.seed).params)["backbone/layers/ffn/in/kernel"] for run in runs[:2]]
        assert_differs(starts[0], starts[1], 1e-2)
        losses = [step(draw(0), a_batch(), step_settings(run))[1]["loss"] for run in runs[:2]]
        assert_differs(losses[0], losses[1], 1e-3)
        for run in (changed(0, weight_decay=0.5), dataclasses.replace(RUN, steps=11)):
            assert train_step(model, objective, run, mesh).jitted is not results[0][1]


def test_a_step_that_mixes_layers_at_a_rate_of_their_own_is_of_one_rate():
    mixed = dataclasses.replace(
        RUN,
        task=TaskConfig(kind="classify"),
        head=HeadConfig(mix="all"),
        optim=dataclasses.replace(RUN.optim, mix_lr=0.5),
    )
    other, seeded = (
        dataclasses.replace(mixed, optim=dataclasses.replace(mixed.optim, peak_lr=1.0)),
        dataclasses.replace(mixed, seed=1),
    )
    assert without_step_settings(mixed) == without_step_settings(seeded) != without_step_settings(other)


@pytest.mark.parametrize("poison", ["slot_weights", "valid"])
def test_a_step_that_is_not_finite_changes_nothing_and_is_counted(stepper, poison):
    make, step = stepper
    state, _ = step(make(), a_batch(), SETTINGS)
    before = jax.device_get((state.params, state.opt))
    for bad in (1, 2):
        state, metrics = step(state, {**a_batch(bad), poison: a_batch()[poison].at[0].set(jnp.nan)}, SETTINGS)
        assert not np.isfinite(metrics["loss"])
        assert (int(state.skipped), int(state.skipped_in_row), int(state.step)) == (bad, bad, 1 + bad)
    same = jax.tree.map(np.array_equal, before, jax.device_get((state.params, state.opt)))
    assert all(jax.tree.leaves(same))
    state, metrics = step(state, a_batch(3), SETTINGS)
    assert np.isfinite(metrics["loss"]) and (int(state.skipped), int(state.skipped_in_row)) == (2, 0)


@pytest.mark.parametrize(
    ("frozen", "quantization"),
    [
        ({"frozen_layers": 1}, "none"),
        *long(
            ({"frozen": ("embeddings", "ffn")}, "none"),
            ({"frozen_layers": 1}, "int8"),
        ),
    ],
    ids=str,
)
def test_what_is_frozen_is_not_counted_in_the_norm_that_is_clipped(frozen, quantization):
    """The trained part alone is as long as the clip; what is frozen stays as it was, to the bit. Adagrad moves by the
    gradient itself where that is small."""
    optim = OptimConfig(name="adagrad", schedule="linear", peak_lr=0.5, warmup=0, weight_decay=0.0, clip=1e-2, **frozen)
    sizes = dataclasses.replace(RUN.model, layers=2, quantization=quantization)
    run = dataclasses.replace(RUN, model=sizes, optim=optim)
    mesh, objective = meshes.build(MeshConfig(), jax.devices()[:1]), OBJECTIVES[RUN.objective]
    model = build(run.model, objective.heads)
    with jax.set_mesh(mesh):
        _, shapes, shardings = create(model, run, mesh)
        state = jax.device_put(drawn(shapes, moments=1.0), shardings)
        before = jax.device_get(state.params)
        state, metrics = train_step(model, objective, run, mesh)(state, a_batch(), step_settings(run))
    assert float(metrics["grad_norm"]) > 2e-2
    moved = by_path(
        jax.tree.map(lambda new, old: np.asarray(new, np.float64) - old, jax.device_get(state.params), before)
    )
    length = np.sqrt(sum(np.square(x).sum() for x in moved.values())) / 0.5
    assert length == pytest.approx(1e-2, rel=1e-3)
    for path, x in moved.items():
        if path.startswith("backbone/layers/") and "frozen_layers" in frozen:
            assert not x[0].any() and (x[1].any() or path.endswith("key/bias")), path
        elif "embeddings" in path or ("frozen" in frozen and "ffn" in path):
            assert not x.any(), path
    assert moved["heads_mlm/bias"].any()


@pytest.mark.parametrize("parts", long(2, 4))
def test_a_step_in_parts_is_the_whole_step(stepper, parts):
    """Dropout on: a line's masks are those of its number in the whole batch, whichever part it is in."""
    run = dataclasses.replace(RUN, optim=dataclasses.replace(RUN.optim, accumulate=parts))
    mesh, objective = meshes.build(MeshConfig(), jax.devices()[:1]), OBJECTIVES[RUN.objective]
    assert isinstance(RUN.model, BertConfig) and RUN.model.dropout > 0
    batch = a_batch() | {"slot_weights": a_batch()["slot_weights"].at[:3].set(0.0)}  # parts of unlike weights
    make, whole = stepper
    with jax.set_mesh(mesh):
        in_parts = train_step(build(run.model, objective.heads), objective, run, mesh)
        actual = []
        for step in (whole, in_parts):
            state, _ = step(make(), batch, SETTINGS)  # its rate is 0
            state, metrics = step(state, batch, SETTINGS)
            actual.append(jax.device_get((by_path(state.params), by_path(state.opt), metrics)))
    for got, expected in zip(actual[1][:2], actual[0][:2], strict=True):
        for path, x in expected.items():
            if not path.endswith("attention/key/bias"):  # zero but for rounding
                close(got[path], x, path, 1e-4)
    for name in ("loss", "mlm_loss", "nsp_loss", "grad_norm"):
        close(actual[1][2][name], actual[0][2][name], name)


def test_a_step_wants_what_the_backbone_and_the_objective_read():
    assert set(batch_fields(RUN)) == set(a_batch())


def test_every_moment_has_its_parameters_place():
    mesh = meshes.build(MeshConfig(fsdp=2, tensor=2))
    model = build(RUN.model, OBJECTIVES[RUN.objective].heads)
    shardings: Any
    _, shapes, shardings = create(model, RUN, mesh)
    places = {path_of(k): s.spec for k, s in jax.tree_util.tree_flatten_with_path(shardings.params)[0]}
    for moments in (shardings.opt[1].mu, shardings.opt[1].nu):
        assert {path_of(k): s.spec for k, s in jax.tree_util.tree_flatten_with_path(moments)[0]} == places
    assert any("tensor" in str(spec) for spec in places.values())


def test_cross_entropy_is_minus_the_log_softmax():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(4, 5, 11)).astype(np.float32) * 9, rng.integers(0, 11, (4, 5))
    loss, hit = cross_entropy(jnp.asarray(logits), jnp.asarray(labels, jnp.int32))
    expected = -np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), labels[..., None], -1)[..., 0]
    assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    hits = logits.argmax(-1) == labels
    assert np.array_equal(hit, hits) and hits.any() and not hits.all()


def test_the_unigram_baseline_is_the_training_texts_frequencies():
    losses = unigram_baseline(np.array([1, 5, 2]), np.array([1, 2, 1]))
    share = np.array([2, 6, 3]) / 11
    assert losses["unigram_loss"] == pytest.approx(-np.log(share[[1, 1, 2, 0]]).mean())
    assert losses["unigram_accuracy"] == 0.5


@pytest.mark.parametrize("metric", ["loss", "mlm_loss", "mse", "mae"])
def test_a_loss_or_an_error_is_the_better_the_smaller_it_is(metric):
    assert value_to_minimise(metric, {metric: 0.25}) == 0.25 < value_to_minimise(metric, {metric: 0.5})


@pytest.mark.parametrize("metric", ["accuracy", "f1", "matthews", "pearson", "entity_f1"])
def test_any_other_figure_is_the_better_the_larger_it_is(metric):
    assert value_to_minimise(metric, {metric: 0.5}) == -0.5 < value_to_minimise(metric, {metric: 0.25})
    with pytest.raises(ConfigError, match=f"evaluate.metric={metric} is not measured.*there are loss"):
        value_to_minimise(metric, {"loss": 1.0})


def test_the_best_is_the_first_of_the_smallest_ranks_and_nan_is_none():
    best, seen = Best(), []
    for step, value in enumerate([float("nan"), 3.0, 2.0, 2.0, float("inf"), 2.5, 1.0, float("nan")]):
        best.update(step, value)
        seen.append((best.rank, best.step, best.evals_without_improvement))
    assert seen[0] == (None, 0, 1) and seen[2:6] == [(2.0, 2, n) for n in range(4)]
    assert seen[6:] == [(1.0, 6, 0), (1.0, 6, 1)]
    assert Best(**dataclasses.asdict(best)) == best


def test_a_steps_memory_grows_with_its_batch_and_decides_the_arenas():
    small, usual = recipe("gpt.shakespeare_char"), [recipe("gpt.tiny"), recipe("bert.tiny")]
    assert activation_floats(small) * 4 < 60e6 < min(activation_floats(run) * 4 for run in usual)
    twice = dataclasses.replace(small, data=dataclasses.replace(small.data, batch=2 * small.data.batch))
    assert activation_floats(twice) == 2 * activation_floats(small)
    parts = dataclasses.replace(twice, optim=dataclasses.replace(twice.optim, accumulate=2))
    assert activation_floats(parts) == activation_floats(small)
