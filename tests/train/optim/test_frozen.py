"""A backbone that is frozen whole: it draws no dropout, has no moments, and stays as it is."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from contexture.data.config import DataConfig, TaskConfig
from contexture.models.config import BertConfig
from contexture.models.families import build, example
from contexture.models.shapes import by_path
from contexture.train import mesh as meshes
from contexture.train.errors import ConfigError
from contexture.train.objectives import batch_fields, batch_sizes, objective_of
from contexture.train.optim.optimizers import lr_multipliers
from contexture.train.programs import step_settings
from contexture.train.settings.run import Run
from contexture.train.settings.sections import MeshConfig, OptimConfig
from contexture.train.setup import check_frozen
from contexture.train.step import create, train_step
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close, assert_differs
from tests.helpers.random_runs import drawn

RUN = Run(
    model=BertConfig(vocab=40, hidden=16, ffn=32, layers=2, heads=2, length=16, dropout=0.5, attention_dropout=0.5),
    data=DataConfig(batch=8, length=16),
    optim=OptimConfig(name="adamw", schedule="linear", peak_lr=1e-2, warmup=0, frozen=("backbone",)),
    task=TaskConfig(kind="tag"),
    steps=4,
)


def _trained(run: Run, steps: int = 3) -> tuple[Any, list[float], Any]:
    """(the state of a few steps, their losses, the state before them), of random words and tags."""
    mesh, objective = meshes.build(MeshConfig(), jax.devices()[:1]), objective_of(run)
    model, rng = build(run.model, objective.heads, 3), np.random.default_rng(0)
    ones: Any = example(batch_fields(run), batch_sizes(run, 8))
    batch = {**ones, "tokens": rng.integers(0, 40, (8, 16)), "tags": rng.integers(0, 3, (8, 16))}
    with meshes.use(mesh, "float32"):
        _, shapes, shardings = create(model, run, mesh)
        first, step = drawn(shapes), train_step(model, objective, run, mesh)
        state = jax.device_put(first, shardings)
        losses: list[float] = []
        for _ in range(steps):
            given = {name: x.astype(ones[name].dtype) for name, x in batch.items()}
            state, metrics = step(state, given, step_settings(run))
            losses.append(float(metrics["loss"]))
    return state, losses, first


@pytest.mark.long
def test_a_frozen_backbone_draws_no_dropout_and_heads_keep_theirs():
    still = dataclasses.replace(RUN.model, dropout=0.0, attention_dropout=0.0, head_dropout=0.5)
    _, given, _ = _trained(
        dataclasses.replace(RUN, model=dataclasses.replace(still, dropout=0.5, attention_dropout=0.5))
    )
    _, without, _ = _trained(dataclasses.replace(RUN, model=still))
    assert given == without
    _, no_dropout, _ = _trained(dataclasses.replace(RUN, model=dataclasses.replace(still, head_dropout=0.0)))
    assert_differs(np.array(no_dropout), np.array(given))


def test_a_frozen_backbone_has_no_moments_and_stays_as_it_is():
    state, _, first = _trained(RUN)
    assert not [path for path in by_path(state.opt) if "backbone" in path]
    assert {path for path in by_path(state.opt) if "/mu/" in path}
    before, after = by_path(first.params), by_path(state.params)
    for path, x in before.items():
        assert np.array_equal(x, after[path]) == path.startswith("backbone"), path


@pytest.mark.parametrize("name", long("bert", "adamw", "gpt1", "adagrad"))
def test_the_step_of_the_heads_is_that_of_a_backbone_at_rate_zero(name):
    """Without the backbone's moments the heads are moved by the same numbers."""
    optim = dataclasses.replace(RUN.optim, name=name)
    run = dataclasses.replace(
        RUN, optim=optim, model=dataclasses.replace(RUN.model, dropout=0.0, attention_dropout=0.0)
    )
    state, losses, _ = _trained(run)
    words = ("embeddings", "layers", "norm", "pooler")
    other, of_words, _ = _trained(dataclasses.replace(run, optim=dataclasses.replace(optim, frozen=words)))
    assert_close(np.array(losses), np.array(of_words), rtol=1e-6)
    heads = [state.params["heads_tag"]["kernel"], other.params["heads_tag"]["kernel"]]
    assert_close(np.asarray(heads[0]), np.asarray(heads[1]), rtol=1e-6)


def test_words_beside_backbone_freeze_parts_of_the_heads():
    heads: Any = {"heads_tag": {"kernel": np.ones((2, 2)), "bias": np.ones(2)}}
    multipliers: Any = lr_multipliers(OptimConfig(frozen=("backbone", "bias")), heads)
    assert multipliers["heads_tag"]["bias"] == [0.0] and multipliers["heads_tag"]["kernel"] == [1.0]
    assert lr_multipliers(OptimConfig(frozen=("backbone",)), heads) is None
    with pytest.raises(ConfigError, match="leaves nothing to train"):
        lr_multipliers(OptimConfig(frozen=("backbone", "heads")), heads)


@pytest.mark.parametrize(
    ("optim", "line"),
    [
        ({"frozen": ("encodr",)}, "optim.frozen=encodr is in the path of no parameter"),
        ({"frozen": (), "frozen_layers": 3}, "optim.frozen-layers=3 is more than the model's 2 layers"),
        ({"frozen": ("backbone", "heads")}, "optim.frozen=backbone heads leaves nothing to train"),
    ],
)
def test_what_cannot_be_frozen_is_refused_before_any_work(optim, line):
    with pytest.raises(ConfigError, match=line):
        check_frozen(dataclasses.replace(RUN, optim=dataclasses.replace(RUN.optim, **optim)))


@pytest.mark.parametrize("words", [("backbone",), ("bias", "ffn"), ("heads_tag",), ("embeddings",)])
def test_what_can_be_frozen_is_taken(words):
    check_frozen(dataclasses.replace(RUN, optim=dataclasses.replace(RUN.optim, frozen=words)))


def test_parameters_that_heads_of_pairs_alone_have_can_be_frozen():
    from contexture.configs import recipe
    from contexture.configs.finetuning import finetune_run

    run = finetune_run(recipe("elmo.tiny"), "run", "classify")
    for words in (("mix",), ("backbone", "lstm")):
        check_frozen(dataclasses.replace(run, optim=dataclasses.replace(run.optim, frozen=words)))
