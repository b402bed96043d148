"""Parameters with an array for each layer: the same bits, and no kernel is copied out of a stack."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import contexture
from contexture.models import model as model_module
from contexture.models.config import BertConfig, ElmoConfig, GptConfig
from contexture.models.families import build
from contexture.models.layers.stacked import stack_layers, unstack_layers
from contexture.train import mesh as meshes
from contexture.train.settings.sections import MeshConfig
from tests.helpers.long import long

GOLDEN = Path(__file__).parents[2] / "golden"
BERT = BertConfig(vocab=61, length=24, segments=2, layers=4, hidden=64, heads=4, ffn=256)
GPT = GptConfig(vocab=61, length=24, layers=4, hidden=64, heads=4, ffn=256, local_window=3)
IDS = np.random.default_rng(0).integers(0, 61, (3, 8), np.int32)
BATCH: Any = {"tokens": IDS, "segments": np.zeros_like(IDS), "mask": np.ones_like(IDS)}


def _forward(config: Any) -> tuple[Any, Any]:
    """Returns the jitted forward pass of the backbone, and its parameters."""
    model = build(config, ())
    shapes, draw = jax.eval_shape(model.init, jax.random.key(0), BATCH)["params"], np.random.default_rng(1)
    params = jax.tree.map(lambda x: jnp.asarray(0.1 * draw.normal(size=x.shape), x.dtype), shapes)
    return jax.jit(lambda params: model.apply({"params": params}, BATCH).encoding.hidden_BLD), params


@pytest.mark.parametrize(
    "config", [dataclasses.replace(BERT, layers=2), *long(BERT, GPT)], ids=["bert of two", "bert", "gpt"]
)
def test_layers_apart_give_the_same_bits_and_copy_no_kernel(config: Any):
    forward, params = _forward(config)
    apart = unstack_layers(params, config)
    assert (np.asarray(forward(apart)) == np.asarray(forward(params))).all()
    kernels = sum(x.nbytes for x in jax.tree.leaves(params["backbone"]["layers"]))
    read = [forward.lower(x).compile().cost_analysis()["bytes accessed"] for x in (params, apart)]
    # A copy reads and writes each kernel once.
    assert read[0] - read[1] > 1.9 * kernels


def test_stacking_undoes_it_and_a_second_time_changes_nothing():
    _, params = _forward(BERT)
    apart = unstack_layers(params, BERT)
    assert unstack_layers(apart, BERT) is apart and stack_layers(params) is params
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, stack_layers(apart), params)))


@pytest.mark.parametrize("why", ["a layer loop", "a checkpointed layer", "several devices", "another family"])
def test_parameters_stay_as_they_are_where_that_would_gain_nothing(why: str):
    config: Any = BERT
    changes = {"a layer loop": {"unroll": 2}, "a checkpointed layer": {"remat": "dots"}}
    config = dataclasses.replace(BERT, **changes.get(why, {}))
    if why == "another family":
        config = ElmoConfig()
    params: Any = {"backbone": {"layers": {"kernel": jnp.zeros((4, 2, 2))}}}
    mesh = meshes.build(MeshConfig(), None if why == "several devices" else meshes.find_devices()[:1])
    with meshes.use(mesh, "float32"):
        assert unstack_layers(params, config) is params
        assert why != "several devices" or mesh.size > 1


@pytest.mark.long
@pytest.mark.parametrize(
    "changes", [{"dtype": "bfloat16"}, {"quantization": "int8"}, {"hidden": 60, "heads": 3}, {}], ids=str
)
@pytest.mark.parametrize("config", [BERT, GPT], ids=["bert", "gpt"])
def test_bits_are_the_same_in_every_dtype_and_with_usual_options(config: Any, changes: dict[str, Any]):
    config = dataclasses.replace(config, **changes)
    forward, params = _forward(config)
    apart, stacked = (np.asarray(forward(x).astype(jnp.float32)) for x in (unstack_layers(params, config), params))
    assert (apart == stacked).all() and apart.std() > 0.1


@pytest.mark.long
def test_what_reads_a_model_gives_each_layer_arrays_of_its_own(monkeypatch):
    given = []
    monkeypatch.setattr(model_module, "stack_layers", lambda params: given.append(params) or stack_layers(params))
    run, task = (contexture.open(GOLDEN / name) for name in ("bert", "bert_classify"))
    for call in (lambda: run.embed("the cat"), lambda: run.score("the cat sat ."), lambda: task.predict("the cat")):
        given.clear()
        call()
        assert given and all(isinstance(x, tuple) for x in given[-1]["backbone"]["layers"]["ffn"]["in"].values())
