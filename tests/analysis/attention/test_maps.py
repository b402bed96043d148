"""Attention maps: the weights of the training path, computed again from queries and keys."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

import contexture
from contexture.analysis.attention.maps import TokenSequence, layer_maps, token_sequence
from contexture.data.errors import DataError
from contexture.data.families.registry import TEXT_FAMILIES
from contexture.models.config import BertConfig, GptConfig, TransformerConfig
from contexture.models.families import build
from contexture.models.layers.attention import module
from contexture.models.model import Outputs
from tests.helpers.commands import devices
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close, close, worst
from tests.train.run.test_formats import GOLDEN

BERT = BertConfig(vocab=61, length=24, layers=3, hidden=24, heads=3, ffn=40)
PRE = GptConfig(vocab=61, length=24, layers=4, hidden=24, heads=3, ffn=40)
CONFIGS: dict[str, TransformerConfig] = {
    "bert": BERT,
    "scanned": dataclasses.replace(BERT, unroll=1),
    "pre-norm": PRE,
    "post-norm": dataclasses.replace(PRE, norm="post"),
    "banded": dataclasses.replace(PRE, local_window=3),
}
COUNT = 13


def _sequence(config: TransformerConfig) -> TokenSequence:
    ids = np.random.default_rng(2).integers(0, config.vocab, COUNT).tolist()
    return TokenSequence(ids, [False] * COUNT, [0] * 6 + [int(isinstance(config, BertConfig))] * (COUNT - 6))


def _params(config: TransformerConfig) -> Any:
    """Deviation 0.3, norms about one: weights large enough to matter."""
    batch = {name: np.ones((1, 8), np.int32) for name in ("tokens", "segments", "mask")}
    shapes = jax.eval_shape(lambda: build(config).init(jax.random.key(0), batch)["params"])
    rng = np.random.default_rng(1)

    def draw(path: Any, x: Any) -> np.ndarray:
        return (0.3 * rng.standard_normal(x.shape) + ("scale" in str(path[-1]))).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def _maps(config: TransformerConfig, **chosen: list[int]) -> list[Any]:
    every = {"layers": list(range(1, config.layers + 1)), "heads": list(range(1, config.heads + 1))}
    with devices(1):
        return list(layer_maps(config, _params(config), 0, _sequence(config), **{**every, **chosen}))


def _of_training(config: TransformerConfig, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The weights BHLM that a training step multiplies with the values, layer by layer."""
    seen: list[np.ndarray] = []
    plain = module.dropout

    def dropout(x: jax.Array, *more: Any) -> jax.Array:
        if x.ndim == 4:
            jax.debug.callback(lambda weights: seen.append(np.asarray(weights)), x, ordered=True)
        return plain(x, *more)

    monkeypatch.setattr(module, "dropout", dropout)
    sequence = _sequence(config)
    batch = {
        "tokens": np.array([sequence.ids], np.int32),
        "segments": np.array([sequence.segments], np.int32),
        "mask": np.ones((1, COUNT), np.int32),
    }

    def loss(params: Any) -> jax.Array:
        outputs = build(config).apply({"params": params}, batch)
        assert isinstance(outputs, Outputs)
        return outputs.encoding.hidden_BLD.sum()

    with devices(1):
        jax.block_until_ready(jax.jit(jax.value_and_grad(loss))(_params(config)))
    jax.effects_barrier()
    return seen[: config.layers]


@pytest.mark.parametrize("name", ["banded", *long(*sorted(CONFIGS.keys() - {"banded"}))])
def test_maps_are_those_of_a_training_step(name: str, monkeypatch: pytest.MonkeyPatch):
    config = CONFIGS[name]
    trained = _of_training(config, monkeypatch)
    maps = _maps(config)
    assert len(trained) == config.layers == len(maps)
    for weights, one in zip(trained, maps, strict=True):
        assert_close(one.weights, weights[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_map_is_the_softmax_of_queries_and_keys_over_what_a_query_sees(name: str):
    config = CONFIGS[name]
    query, key = np.mgrid[:COUNT, :COUNT]
    for number, one in enumerate(_maps(config)):
        sees = np.ones((COUNT, COUNT), bool)
        if isinstance(config, GptConfig):
            sees = key <= query
            if config.local_window and number % 2:
                sees &= key > query - config.local_window
        q, k = (x.astype(np.float64) for x in (one.queries, one.keys))
        assert q.shape == (config.heads, COUNT, config.hidden // config.heads)
        terms = np.where(sees, np.exp(q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])), 0)
        close(one.weights, terms / terms.sum(-1, keepdims=True), tolerance=1e-6)
        assert not one.weights[:, ~sees].any()
        assert worst(abs(one.weights.sum(-1) - 1).ravel()) <= 1e-6


def test_chosen_layers_and_heads_are_those_of_all():
    every, some = _maps(PRE), _maps(PRE, layers=[2, 4], heads=[1, 3])
    for number, one in zip((1, 3), some, strict=True):
        for whole, part in zip(every[number], one, strict=True):
            assert np.array_equal(whole[[0, 2]], part)


def test_a_loaded_model_returns_plain_arrays():
    model = contexture.open(GOLDEN / "bert")
    maps = model.attention("the cat sat", "on a mat", layers=2, heads=[2, 1])
    count, width = len(maps["tokens"]), model.run.model.hidden // 2  # pyright: ignore[reportAttributeAccessIssue]
    assert maps["layers"] == [2] and maps["heads"] == [1, 2]
    assert maps["weights"].shape == (1, 2, count, count) and maps["keys"].shape == (1, 2, count, width)
    assert all(type(maps[name]) is np.ndarray for name in ("weights", "queries", "keys"))
    first = maps["tokens"].index("[SEP]")
    assert maps["tokens"][0] == "[CLS]" and maps["tokens"][-1] == "[SEP]" and first < count - 1
    assert [place for place, special in enumerate(maps["special"]) if special] == [0, first, count - 1]
    assert maps["segments"] == [0] * (first + 1) + [1] * (count - first - 1)


def test_a_fine_tuned_gpt_reads_its_marks_and_a_pretrained_one_none():
    model = contexture.open(GOLDEN / "gpt")
    config, tokenizer = model.model.config, model.tokenizer
    assert isinstance(config, GptConfig)
    alone, both = tokenizer.encode("the cat"), tokenizer.encode("sat")
    assert token_sequence(config, tokenizer, "the cat").ids == alone
    tuned = TEXT_FAMILIES["gpt"].with_task_tokens(tokenizer)
    start, between, end = (tuned.specials[name] for name in ("_start_", "_delimiter_", "_classify_"))
    assert token_sequence(config, tuned, "the cat").ids == [start, *alone, end]
    pair = token_sequence(config, tuned, "the cat", "sat")
    assert pair.ids == [start, *alone, between, *both, end] and not any(pair.segments)
    assert sum(pair.special) == 3 and pair.special[0] and pair.special[-1]


@pytest.mark.parametrize(
    ("run", "options", "message"),
    [
        ("bert", {"text": " \n"}, "text= is empty; give a text"),
        ("bert", {"second": ""}, "second= is empty; give a text"),
        ("bert", {"text": "\x01"}, r"has no token of the vocabulary; give another text"),
        ("bert", {"text": "a " * 100}, "the text has 102 tokens, 2 special ones among them, and the model "
         "takes [0-9]+; give a shorter text"),
        ("gpt", {"text": "a " * 400}, "the text has [0-9]+ tokens and the model takes [0-9]+; give a"),
        ("gpt", {"second": "b"}, "second: this GPT was not fine-tuned on pairs and reads one text; leave"),
        ("bert", {"layers": 3}, "layers: 3 is none of the model's layers, 1 to 2; give some of these"),
        ("bert", {"layers": [1, 0]}, "layers: 0 is none of the model's layers, 1 to 2"),
        ("bert", {"layers": []}, "layers: none is given; give some of 1 to 2, or leave layers out for all"),
        ("gpt", {"heads": -1}, "heads: -1 is none of the model's heads, 1 to 2; give some of these"),
        ("gpt", {"heads": ["a"]}, "heads: 'a' is none of the model's heads, 1 to 2"),
        ("elmo", {}, "a model of the family elmo has no attention: its LSTMs have gates instead; give"),
    ],
)  # fmt: skip
def test_what_cannot_be_computed_is_one_clear_line(run: str, options: dict[str, Any], message: str):
    model = contexture.open(GOLDEN / run)
    with pytest.raises(DataError, match=message):
        model.attention(**{"text": "the cat", **options})


def test_a_text_as_long_as_the_model_is_read_whole():
    model = contexture.open(GOLDEN / "gpt")
    room = model.run.model.length  # pyright: ignore[reportAttributeAccessIssue]
    text = model.tokenizer.decode(model.tokenizer.encode("the cat sat on a mat. " * room)[:room])
    maps = model.attention(text, layers=1, heads=1)
    assert abs(len(maps["tokens"]) - room) <= 1
    assert_close(maps["weights"].sum(-1), np.ones((1, 1, len(maps["tokens"]))), rtol=0, atol=1e-6)
