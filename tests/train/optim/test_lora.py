"""Adapters: what they add to a kernel, what a step trains, and what no mesh changes."""

import dataclasses
import functools
import math
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contexture.data.batches import Batches
from contexture.models.config import ElmoConfig
from contexture.models.families import build, example
from contexture.models.shapes import PARAMETER_DIMS, by_path, dims_of
from contexture.train import mesh as meshes
from contexture.train.checkpoints.transfer import model_of
from contexture.train.errors import ConfigError
from contexture.train.objectives import batch_sizes, loss, objective_of
from contexture.train.optim.lora import add_adapters, merged, split
from contexture.train.settings.run import Run
from contexture.train.settings.sections import MeshConfig, OptimConfig
from contexture.train.step import State, create
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close, assert_differs
from tests.helpers.random_runs import drawn as first_state
from tests.train.test_mesh import BERT, ELMO, GPT, batches_of, losses_on, on_text

FAMILY_RUNS = {"bert": BERT, "gpt": GPT, "elmo": ELMO}
# Written out by hand: input dims, the rank r, output dims of each kernel.
PRODUCTS = {
    "layers/attention/query/kernel": "ndr,nrhk->ndhk",
    "layers/attention/key/kernel": "ndr,nrhk->ndhk",
    "layers/attention/value/kernel": "ndr,nrhk->ndhk",
    "layers/attention/out/kernel": "nhkr,nrd->nhkd",
    "layers/ffn/in/kernel": "ndr,nrf->ndf",
    "layers/ffn/out/kernel": "nfr,nrd->nfd",
    "pooler/kernel": "dr,re->de",
    "layers/forward/kernel": "nijr,nrgu->nijgu",
    "layers/backward/kernel": "nijr,nrgu->nijgu",
    "layers/forward/projection": "nur,nrj->nuj",
    "layers/backward/projection": "nur,nrj->nuj",
    "embeddings/projection/kernel": "fr,rj->fj",
    "embeddings/highway_0/carry/kernel": "fr,re->fe",
    "embeddings/highway_0/transform/kernel": "fr,re->fe",
}


def adapted(run: Run, *targets: str, rank: int = 3, alpha: float = 6.0, **model: Any) -> Run:
    optim = OptimConfig(
        name="adamw", peak_lr=1e-2, warmup=1, lora_rank=rank, lora_alpha=alpha, lora_targets=targets or ("all",)
    )
    return dataclasses.replace(run, optim=optim, model=dataclasses.replace(run.model, **model))


def with_adapters(run: Run, seed: int = 0) -> Any:
    return add_adapters(backbone_of(run), run, jax.random.key(seed))


@functools.cache
def backbone_of(run: Run) -> dict[str, Any]:
    batch = example(run.text.sequences, batch_sizes(run, 1))
    shapes = jax.eval_shape(lambda: build(run.model).init(jax.random.key(1), batch)["params"]["backbone"])
    rng = np.random.default_rng(1)
    return {"backbone": jax.tree.map(lambda x: jnp.asarray(0.02 * rng.normal(size=x.shape), x.dtype), shapes)}


def drawn(params: Any) -> Any:
    """The parameters with B drawn too, as if trained."""
    leaves, rng = by_path(params["lora"]), np.random.default_rng(0)
    trained = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), params["lora"])
    assert len(leaves) and not any(np.any(x) for path, x in leaves.items() if path.endswith("/b"))
    return {**params, "lora": trained}


def by_hand(params: Any, scale: float) -> dict[str, np.ndarray]:
    """Path below backbone → W + scale · A·B, in float64."""
    kernels, adapters = by_path(params["backbone"]), by_path(params["lora"])
    result = {path: np.asarray(x, np.float64) for path, x in kernels.items()}
    for path, letters in PRODUCTS.items():
        if f"{path}/a" in adapters:
            a, b = (np.asarray(adapters[f"{path}/{side}"], np.float64) for side in "ab")
            result[path] = result[path] + scale * np.einsum(letters, a, b)
    return result


@pytest.mark.parametrize("family", ["bert", *long("elmo", "gpt")])
def test_a_merged_kernel_is_the_sum_of_its_own_and_of_the_scaled_product(family):
    run = FAMILY_RUNS[family]
    if isinstance(run.model, ElmoConfig):
        run = dataclasses.replace(run, model=dataclasses.replace(run.model, projection=6, layers=2))
    run = adapted(run)
    params = with_adapters(run)
    fresh = by_path(merged(params, run.optim))
    assert all(np.array_equal(x, fresh[path]) for path, x in by_path({"backbone": params["backbone"]}).items())
    params = drawn(params)
    got, expected = by_path(merged(params, run.optim)["backbone"]), by_hand(params, 6.0 / 3)
    for path, x in expected.items():
        if f"{path}/a" in by_path(params["lora"]):
            assert_close(got[path], x, rtol=1e-5, atol=1e-5)
            assert_differs(got[path], by_path(params["backbone"])[path], 1e-2)
        else:
            assert np.array_equal(got[path], np.asarray(x, np.float32))
    assert set(PRODUCTS) & set(expected) == {path[:-2] for path in by_path(params["lora"]) if path.endswith("/a")}


def test_every_row_of_adapters_is_of_an_adapter():
    elmo = dataclasses.replace(ELMO, model=dataclasses.replace(ELMO.model, projection=6))
    paths: list[str] = []
    for run in map(adapted, (BERT, elmo)):
        paths += [f"lora/{path}" for path in by_path(with_adapters(run)["lora"])]
    rows = {pattern for pattern, _ in PARAMETER_DIMS if pattern.startswith("lora/")}
    assert {row for row in rows if any(re.fullmatch(row, path) for path in paths)} == rows
    assert all(dims_of(path) for path in paths)


def test_a_is_uniform_by_its_inputs_and_depends_on_seed_and_path_alone():
    run = adapted(BERT, "query", "ffn", rank=16)
    adapters = by_path(with_adapters(run)["lora"])
    a = adapters["layers/ffn/out/kernel/a"]
    assert a.shape == (2, 64, 16) and adapters["layers/ffn/out/kernel/b"].shape == (2, 16, 32)
    assert np.abs(a).max() <= 1 / 8 and np.std(a) == pytest.approx(1 / 8 / math.sqrt(3), rel=0.05)
    assert_differs(a[0], a[1], 0.01)
    others = by_path(with_adapters(adapted(run, "out", rank=16))["lora"])
    assert np.array_equal(a, others["layers/ffn/out/kernel/a"]) and "layers/attention/out/kernel/a" in others
    seeded = by_path(with_adapters(run, seed=1)["lora"])
    assert_differs(a, seeded["layers/ffn/out/kernel/a"], 0.01)


def test_queries_and_values_are_adapted_by_default_and_an_elmos_lstms():
    for run, expected in (
        (BERT, {"layers/attention/query/kernel", "layers/attention/value/kernel"}),
        (ELMO, {path for path in PRODUCTS if path.startswith(("layers/forward/", "layers/backward/"))}),
    ):
        run = dataclasses.replace(run, optim=OptimConfig(lora_rank=2))
        assert {path[:-2] for path in by_path(with_adapters(run)["lora"])} == expected


@pytest.mark.parametrize(
    ("targets", "rank", "says"),
    [
        (("quary",), 2, r"optim.lora-targets=quary is in the path of no kernel .*\(did you mean query\?\)"),
        (("tokens",), 2, r"optim.lora-targets=tokens is in the path of no kernel .* give some of layers, "),
        (("query",), 33, r"optim.lora-rank=33 is above the rank of layers/attention/query/kernel, 32×32; give at most"),
    ],
)
def test_adapters_that_do_not_fit_the_model_are_refused(targets, rank, says):
    run = adapted(BERT, *targets, rank=rank)
    with pytest.raises(ConfigError, match=says):
        with_adapters(run)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lora_rank": -1}, "optim.lora-rank=-1 is not at least 0"),
        ({"lora_rank": 8, "lora_alpha": 0.0}, "optim.lora-alpha=0.0 is not above 0"),
        ({"lora_targets": ("query",)}, "optim.lora-targets has no meaning without adapters; give --optim.lora-rank"),
        ({"lora_rank": 8, "frozen": ("bias",)}, "optim.frozen contradicts optim.lora-rank=8, which freezes the whole"),
        ({"lora_rank": 8, "frozen_layers": 1}, "optim.frozen-layers contradicts optim.lora-rank=8"),
        ({"lora_rank": 8, "layer_decay": 0.9}, "optim.layer-decay contradicts optim.lora-rank=8"),
    ],
)
def test_options_that_contradict_adapters_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        OptimConfig(**options)


def test_without_a_rank_there_are_no_adapters():
    params = backbone_of(BERT)
    assert add_adapters(params, BERT, jax.random.key(0)) is params and merged(params, BERT.optim) is params
    assert split(params, OptimConfig()) == ({}, params) and split(params, OptimConfig())[1] is params


@pytest.fixture(scope="module", params=["bert", *long("gpt", "elmo")])
def run(request: pytest.FixtureRequest, text_folder: Path) -> Run:
    return adapted(on_text(FAMILY_RUNS[request.param], text_folder))


@pytest.fixture(scope="module")
def batches(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Batches:
    return batches_of(run, tmp_path_factory.mktemp("lora") / "shards")


def initial(run: Run) -> State:
    mesh = meshes.build(MeshConfig(), jax.devices()[:1])
    with jax.set_mesh(mesh):
        return first_state(create(model_of(run, ()), run, mesh)[1])


def test_adapters_and_heads_are_trained_and_nothing_else(run, batches):
    losses, state, _ = losses_on(run, batches, (1, 1, 1), 1, initial=first_state)
    assert losses[-3:].mean() < losses[:3].mean()
    for path, x in by_path(initial(run).params).items():
        moved = not np.array_equal(x, by_path(state.params)[path])
        assert moved == (not path.startswith("backbone/")), path
    moments = list(by_path(state.opt))
    assert not any("backbone/" in path for path in moments)
    count = len([path for path in by_path(state.params) if not path.startswith("backbone/")])
    assert len([path for path in moments if "lora/" in path or "heads_" in path]) == 2 * count


@pytest.mark.long
def test_no_mesh_and_no_microbatch_changes_the_losses(run, batches):
    losses, state, mesh = losses_on(run, batches, (2, 2, 2), 2)
    assert_close(losses, losses_on(run, batches, (1, 1, 1), 1)[0], rtol=1e-5)
    leaves = by_path(state.params["lora"])
    sharded = {path for path, x in leaves.items() if x.addressable_shards[0].data.size < x.size}
    assert any(path.endswith("/a") for path in sharded) and any(path.endswith("/b") for path in sharded)


@pytest.mark.long
def test_the_loss_of_a_step_is_that_of_the_merged_model(text_folder, tmp_path):
    """Merged by hand, in a model that knows of no adapters; dropout off."""
    run = adapted(on_text(BERT, text_folder), dropout=0.0, attention_dropout=0.0)
    batches, objective = batches_of(run, tmp_path / "shards"), objective_of(run)
    losses, _, _ = losses_on(run, batches, (1, 1, 1), 1, numbers=range(4))
    state = losses_on(run, batches, (1, 1, 1), 1, numbers=range(3))[1]
    leaves = {f"backbone/{path}": x for path, x in by_hand(state.params, 2.0).items()}
    heads = {name: part for name, part in state.params.items() if name.startswith("heads_")}
    backbone = jax.tree_util.tree_map_with_path(
        lambda keys, x: jnp.asarray(leaves["backbone/" + "/".join(key.key for key in keys)], jnp.float32),
        state.params["backbone"],
    )
    batch = {name: jnp.asarray(x) for name, x in batches.read(3).items()}
    forward: Any = jax.jit(model_of(run, ()).apply)
    outputs = forward({"params": {"backbone": backbone, **heads}}, batch)
    expected = loss(objective, objective.sums(outputs, batch), objective.weights(batch))
    assert_close(losses[3], np.asarray(expected), rtol=1e-6)
    plain = forward({"params": {"backbone": state.params["backbone"], **heads}}, batch)
    other = loss(objective, objective.sums(plain, batch), objective.weights(batch))
    assert_differs(np.asarray(expected), np.asarray(other), 1e-4)


@pytest.mark.long
def test_adapters_train_under_8_bit_factors(text_folder, tmp_path):
    run = adapted(on_text(BERT, text_folder))
    batches = batches_of(run, tmp_path / "shards")
    whole = losses_on(run, batches, (1, 1, 1), 1)[0]
    losses = losses_on(adapted(run, quantization="int8"), batches, (1, 1, 1), 1)[0]
    assert_close(losses, whole, rtol=0.01)
    assert_differs(losses, whole, 1e-6)
