"""The gates of an ELMo at each word, and the layers that its task mixes."""

from typing import Any

import jax
import numpy as np
import pytest

import contexture
from contexture.analysis.attention.gates import word_gates
from contexture.data.errors import DataError
from contexture.data.layouts import elmo_lines
from contexture.models.config import ElmoConfig
from contexture.models.elmo import sizes
from contexture.models.families import build
from contexture.models.layers.char_cnn import CharCnn
from contexture.models.model import Outputs
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close, close
from tests.train.run.test_formats import GOLDEN

TEXT = "the cat sat on a mat"


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _means_of(inputs: np.ndarray, params: dict[str, np.ndarray], layer: int, config: ElmoConfig) -> np.ndarray:
    """The LSTM's equations word by word, in float64: inputs [L, J] → the means of input, forget, output gate [3, L]."""
    kernel, bias = params["kernel"][layer].astype(np.float64), params["bias"][layer]
    cell, hidden, means = 0.0, np.zeros(inputs.shape[1]), []
    for x in inputs:
        i, j, f, o = np.einsum("J,JGU->GU", x, kernel[0]) + np.einsum("J,JGU->GU", hidden, kernel[1]) + bias
        i, f, o = _sigmoid(i), _sigmoid(f + 1), _sigmoid(o)
        cell = np.clip(f * cell + i * np.tanh(j), -config.cell_clip or -np.inf, config.cell_clip or np.inf)
        hidden = (o * np.tanh(cell)) @ params["projection"][layer]
        hidden = np.clip(hidden, -config.projection_clip or -np.inf, config.projection_clip or np.inf)
        means.append([i.mean(), f.mean(), o.mean()])
    return np.array(means).T


@pytest.mark.parametrize("run", ["elmo_tag", *long("elmo")])
def test_gates_are_those_of_the_equations_in_both_directions(run: str):
    model = contexture.open(GOLDEN / run)
    got = model.gates(TEXT)
    assert got["words"] == TEXT.split() and got["directions"] == ["forward", "backward"]
    assert got["gates"] == ["input", "forget", "output"] and got["layers"] == [1, 2]
    config, backbone = model.model.config, model.params["backbone"]
    assert isinstance(config, ElmoConfig)
    # Layer 1 reads the words' own vectors, with begin and end of the sentence around them.
    fields = elmo_lines([TEXT.split()])
    own: Any = backbone["embeddings"]  # pyright: ignore[reportIndexIssue]
    read = jax.jit(build(config).apply, static_argnames="states")
    outputs = read({"params": model.params}, fields, states=True)
    assert isinstance(outputs, Outputs)
    J, count = config.projection, len(got["words"])
    words_LJ = np.asarray(outputs.encoding.states[0])[0, :count, :J]
    cnn = CharCnn(sizes(config), config.filters, config.activation, config.highway, np.float32)
    begin, end = np.asarray(jax.jit(cnn.apply)({"params": own}, fields["types"]))[1:3]
    lines = {"forward": [begin, *words_LJ, end], "backward": [end, *words_LJ[::-1], begin]}
    for number, direction in enumerate(got["directions"]):
        params: Any = jax.tree.map(np.asarray, backbone["layers"][direction])  # pyright: ignore
        expected = _means_of(np.array(lines[direction], np.float64), params, 0, config)[:, 1 : count + 1]
        expected = expected if direction == "forward" else expected[:, ::-1]
        close(got["means"][number, 0], expected)


def test_each_words_shares_of_the_layers_are_weight_times_length():
    model = contexture.open(GOLDEN / "elmo_tag")
    mixes = model.gates(TEXT)["mixes"]
    assert [mix["place"] for mix in mixes] == ["input", "output"] and mixes[0]["layers"] == [0, 1, 2]
    vectors = np.stack([model.embed(TEXT, of="words", layers=layer) for layer in range(3)])
    for mix in mixes:
        terms = np.array(mix["weights"])[:, None] * np.linalg.norm(vectors, axis=-1)
        assert mix["shares"] is not None
        close(mix["shares"], terms / terms.sum(0))
        assert_close(sum(mix["weights"]), 1.0, rtol=1e-6)


def test_a_run_without_a_learned_mix_has_gates_alone():
    assert contexture.open(GOLDEN / "elmo").gates("a cat")["mixes"] == []


def test_a_models_outputs_do_not_depend_on_who_asks_for_gates():
    model = contexture.open(GOLDEN / "elmo")
    before = model.embed(TEXT)
    model.gates(TEXT)
    assert np.array_equal(before, model.embed(TEXT))


def test_other_families_and_texts_without_words_are_one_clear_line():
    with pytest.raises(DataError, match="gates are those of an ELMo"):
        contexture.open(GOLDEN / "bert").gates(TEXT)
    model = contexture.open(GOLDEN / "elmo")
    with pytest.raises(DataError, match="text= is empty; give a text"):
        word_gates(model.model, model.params, model.tokenizer, " ", model.run.head)
