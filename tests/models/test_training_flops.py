"""The FLOPs of a training step, from which MFU is computed.

The forward pass costs two FLOPs for each weight of a kernel and each vector that it multiplies, the backward pass twice
as many. Here the kernels are counted in the model as it is built.
"""

import dataclasses
import math
import re
from typing import Any

import jax
import pytest

from contexture.configs import recipe
from contexture.models import bert, elmo, gpt, vectors
from contexture.models.config import VectorsConfig
from contexture.models.families import build, example
from contexture.train.objectives import OBJECTIVES, batch_fields, batch_sizes
from contexture.train.plan.flops import traced_flops
from tests.models.test_shapes import _parameters

SIZE = {"B": 3, "L": 16, "P": 2}


def numbers(name: str, kernels: str) -> int:
    """How many numbers the kernels of these paths hold."""
    return sum(math.prod(x) for path, x in _parameters(name).items() if re.fullmatch(kernels, path))


@pytest.mark.parametrize(("P", "A"), [(2, 1), (0, 1), (0, 4)])
def test_a_berts_flops_are_those_of_its_kernels(P, A):
    model: Any = recipe("bert.tiny").model
    attention = 2 * 2 * 16 * model.hidden  # of one token with each of 16, for the weights and for the sum
    token = 2 * numbers("bert.tiny", "backbone/layers/.*kernel") + model.layers * attention
    slot = 2 * numbers("bert.tiny", "heads_mlm/transform/kernel|backbone/embeddings/tokens")
    text = 16 * token + P * slot + 2 * numbers("bert.tiny", "backbone/pooler/kernel")
    assert bert.training_flops(model, {"B": 3, "L": 16, "P": P, "A": A}) == 3 * 3 * A * text


@pytest.mark.parametrize("A", [1, 4])
def test_a_gpts_flops_are_those_of_its_kernels(A):
    model: Any = recipe("gpt.tiny").model
    token = 2 * numbers("gpt.tiny", "backbone/(layers/.*kernel|embeddings/tokens)")
    token += model.layers * 2 * 2 * 16 * model.hidden
    assert gpt.training_flops(model, {"B": 3, "L": 16, "A": A}) == 3 * 3 * A * 16 * token


@pytest.mark.parametrize("S", [None, 100])
def test_an_elmos_flops_are_those_of_its_kernels(S):
    """A filter is at W - width + 1 places of a word; an output of the softmax costs a vector of its table."""
    model: Any = recipe("elmo.tiny").model
    W, R = 50, 7
    word = 2 * numbers("elmo.tiny", "backbone/embeddings/(highway|projection).*kernel")
    for number, (width, _) in enumerate(model.filters):
        word += 2 * (W - width + 1) * numbers("elmo.tiny", f"backbone/embeddings/filters_{number}/kernel")
    # Both directions: each of them sees every word.
    ways = 2 * numbers("elmo.tiny", "backbone/layers/.*(kernel|project.*)")
    softmax = 2 * 2 * model.projection * (S or model.vocab)
    size = {"B": 3, "L": 16, "W": W, "R": R} | ({"S": S} if S else {})
    assert elmo.training_flops(model, size) == 3 * (R * word + 3 * 16 * (ways + softmax))


def test_vectors_are_looked_up_and_multiply_nothing():
    model = VectorsConfig(vocab=9, hidden=5)
    assert vectors.training_flops(model, SIZE) == 0
    assert vectors.activation_floats(model, SIZE) == 2 * 3 * 16 * 5
    assert vectors.activation_floats(model, {**SIZE, "A": 4}) == 4 * 2 * 3 * 16 * 5


@pytest.mark.parametrize("S", [None, 100])
def test_an_elmos_activations_are_filters_gates_and_logits(S):
    model: Any = recipe("elmo.tiny").model
    filters = sum(count for _, count in model.filters)
    size = {"B": 3, "L": 16, "W": 50, "R": 7} | ({"S": S} if S else {})
    expected = 7 * filters * (50 + 6 * model.highway)
    expected += 2 * 3 * 16 * (model.layers * 12 * model.cells + 2 * (S or model.vocab))
    assert elmo.activation_floats(model, size) == expected


@pytest.mark.parametrize("name", ["bert.tiny", "gpt.tiny"])
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_every_kernel_of_the_layers_multiplies_as_the_quantization_says(name, quantization):
    run = recipe(name)
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, quantization=quantization))
    model = build(run.model, OBJECTIVES[run.objective].heads)
    batch = example(batch_fields(run), batch_sizes(run, 2))
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), batch))
    flops = traced_flops(jax.jit(model.apply).trace(params, batch).jaxpr.jaxpr)
    of_layers = 2 * numbers(name, "backbone/layers/.*kernel") * batch["mask"].size
    assert flops.get("s8", 0.0) == of_layers * (quantization == "int8") and flops["f32"] > 0
