"""What a task reads of a backbone's layers: mixes, chains of tags, and the heads over them."""

import itertools
from typing import Any, get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contexture.data.config import DataConfig, TaskConfig
from contexture.models.config import BertConfig, ElmoConfig, GptConfig, HeadConfig
from contexture.models.encoding import Encoding
from contexture.models.families import build
from contexture.models.heads.crf import LinearChainCRF
from contexture.models.heads.layer_mix import MixedFeatures, MixPooledHead, ScalarMix, learned_mixes
from contexture.models.shapes import by_path, dims_of
from contexture.train.settings.run import Run
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close

MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]], np.int32)


def test_a_chains_loss_and_best_path_are_those_of_all_paths_written_out():
    rng = np.random.default_rng(0)
    logits, tags = rng.standard_normal((4, 4, 3)).astype(np.float32), rng.integers(0, 3, (4, 4))
    chain = LinearChainCRF(3)
    params = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in
              (("steps", (3, 3)), ("first", (3,)), ("last", (3,)))}  # fmt: skip
    made: Any = jax.jit(chain.apply)({"params": params}, logits, np.where(MASK > 0, tags, -1), MASK)

    def score(row: int, path: tuple[int, ...]) -> float:
        own = sum(logits[row, at, tag] for at, tag in enumerate(path))
        between = sum(params["steps"][a, b] for a, b in itertools.pairwise(path))
        return own + between + params["first"][path[0]] + params["last"][path[-1]]

    for row, words in enumerate(MASK.sum(1)):
        if not words:
            assert made.loss_B[row] == 0
            continue
        paths = list(itertools.product(range(3), repeat=int(words)))
        scores = np.array([score(row, path) for path in paths])
        total = np.log(np.exp(scores - scores.max()).sum()) + scores.max()
        assert made.loss_B[row] == pytest.approx(total - score(row, tuple(tags[row, :words])), abs=1e-4)
        assert tuple(np.asarray(made.best_BL)[row, :words]) == paths[scores.argmax()]
        shares = np.zeros((words, 3))
        for path, share in zip(paths, np.exp(scores - total), strict=True):
            shares[np.arange(words), path] += share
        assert_close(made.marginals_BLC[row, :words], shares, atol=1e-5)


@pytest.mark.parametrize("norm", [False, True])
def test_a_mix_is_gamma_times_the_weighted_sum_of_layers(norm: bool):
    rng = np.random.default_rng(1)
    layers = tuple(rng.standard_normal((4, 4, 6)).astype(np.float32) for _ in range(3))
    weights, gamma = np.array([0.3, -1.0, 0.7], np.float32), np.float32(1.7)
    mix = ScalarMix(norm)
    got = mix.apply({"params": {"weights": weights, "gamma": gamma}}, layers, MASK)
    shares = np.exp(weights) / np.exp(weights).sum()
    expected = np.zeros((4, 4, 6))
    for share, layer in zip(shares, layers, strict=True):
        inside = layer[MASK > 0].astype(np.float64)  # one mean and variance over all words and features
        expected += share * ((layer - inside.mean()) / np.sqrt(inside.var() + 1e-12) if norm else layer)
    assert_close(got, gamma * expected, atol=1e-5)
    fresh: Any = mix.init(jax.random.key(0), layers, MASK)["params"]
    assert not fresh["weights"].any() and fresh["gamma"] == 1.0


CONFIG = ElmoConfig(vocab=9, char_width=3, filters=((1, 4), (2, 4)), highway=1, cells=6, projection=4)


def _batch(pair: bool, columns: int = 4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    types = np.full((8, 50), 261, np.int32)
    types[0] = 0
    types[1:, 0], types[1:, 1], types[1:, 2] = 259, rng.permutation(range(98, 105)), 260
    index = np.zeros((4, columns), np.int32)
    index[:, :4] = rng.integers(3, 8, (4, 4)) * MASK
    mask = np.pad(MASK, [(0, 0), (0, columns - 4)])
    lines = (2, 2, columns) if pair else (4, columns)
    tags = np.where(mask > 0, rng.integers(0, 3, mask.shape), -1).astype(np.int32)
    return {"types": types, "index": index.reshape(lines), "mask": mask.reshape(lines), "tags": tags}


@pytest.mark.parametrize(
    ("name", "pair", "place", "lstm_layers"), [("tag", False, "both", 1), *long(("classify", True, "input", 2))]
)
def test_a_tasks_head_sees_words_alone(name: str, pair: bool, place: Any, lstm_layers: int):
    """More columns of padding change no answer; every parameter has dims and a gradient."""
    head = HeadConfig(mix="all", mix_norm=True, place=place, cells=5, pair=pair, lstm_layers=lstm_layers)
    model = build(CONFIG, (name,), 3, head)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), _batch(pair))["params"])
    rng = np.random.default_rng(3)
    params = jax.tree.map(lambda x: 0.2 * rng.standard_normal(x.shape).astype(np.float32), shapes)
    for path, x in by_path(params).items():
        assert len(dims_of(path)) == x.ndim, path

    def total(params: Any, batch: Any) -> Any:
        made: Any = model.apply({"params": params}, batch)
        return jnp.square(made.heads[name]).sum(), made.heads[name]

    gradient, few = jax.jit(jax.grad(total, has_aux=True))(params, _batch(pair))
    _, more = jax.jit(total)(params, _batch(pair, 7))
    if name == "tag":
        few, more = few * MASK[:, :, None], more[:, :4] * MASK[:, :, None]
    assert few.shape == {"tag": (4, 4, 3), "classify": (2 if pair else 4, 3)}[name]
    assert_close(few, more, atol=1e-6)
    still = [path for path, x in by_path(gradient).items() if not np.any(x) and "bias" not in path]
    assert not still or all("gamma" in path or "weights" in path for path in still)
    mixes = learned_mixes(params)
    assert mixes.keys() == ({"input"} if place == "input" else {"input", "output"})
    assert all(sum(mix["weights"]) == pytest.approx(1.0) for mix in mixes.values())


def test_each_choice_of_layers_gives_those_layers_times_gamma():
    rng = np.random.default_rng(5)
    states = tuple(rng.standard_normal((4, 4, 6)).astype(np.float32) for _ in range(6))
    expected = {
        "all": np.mean(states, 0), "last-four": np.mean(states[2:], 0), "top": states[5], "second-to-last": states[4],
        "words": states[0], "concat-last-four": np.concatenate(states[2:], 2),
    }  # fmt: skip
    assert {*expected, "off"} == set(get_args(get_type_hints(HeadConfig)["mix"]))
    encoding = Encoding(jnp.asarray(states[-1]), jnp.asarray(MASK), states=tuple(map(jnp.asarray, states)))
    for mix, x in expected.items():
        features = MixedFeatures(HeadConfig(mix=mix), 0.0, np.float32)  # pyright: ignore[reportArgumentType]
        params = features.init(jax.random.key(0), encoding, None)
        params = jax.tree.map_with_path(lambda path, x: 1.5 + 0 * x if "gamma" in str(path) else x, params)
        assert_close(features.apply(params, encoding, None), 1.5 * x, atol=1e-6)


def test_each_layer_of_the_tasks_lstm_reads_both_directions():
    head = HeadConfig(mix="top", cells=5, lstm_layers=3)
    shapes = jax.eval_shape(lambda: build(CONFIG, ("tag",), 3, head).init(jax.random.key(0), _batch(False))["params"])
    inputs = {path: x.shape for path, x in by_path(shapes).items() if path.endswith("forward/cell/ii/kernel")}
    assert inputs == {
        f"heads_tag/features/{name}/forward/cell/ii/kernel": (width, 5)
        for name, width in (("lstm", 8), ("lstm_1", 10), ("lstm_2", 10))
    }


def test_a_chain_is_that_of_the_words_with_tags_wherever_they_stand():
    """Words before and behind a sentence are read, and no part of its chain; without any tag all words are."""
    batch = _batch(False)
    batch["mask"], batch["index"] = np.ones_like(batch["mask"]), np.maximum(batch["index"], 3)
    for row, (first, last) in enumerate([(0, 4), (1, 3), (2, 4), (0, 0)]):
        batch["tags"][row] = [row % 3 if first <= n < last else -1 for n in range(4)]
    crf, plain = (build(CONFIG, ("tag",), 3, HeadConfig(mix="all", crf=crf)) for crf in (True, False))
    shapes = jax.eval_shape(lambda: crf.init(jax.random.key(0), batch)["params"])
    rng = np.random.default_rng(3)
    params: Any = jax.tree.map(lambda x: 0.3 * rng.standard_normal(x.shape).astype(np.float32), shapes)
    answer: Any = jax.jit(crf.apply)({"params": params}, batch)
    answer, chain = answer.heads["tag"], params["heads_tag"].pop("chain")
    logits: Any = jax.jit(plain.apply)({"params": params}, batch)
    of_words = jax.jit(LinearChainCRF(3).apply)
    for row, (first, last) in enumerate([(0, 4), (1, 3), (2, 4), (0, 4)]):
        own = logits.heads["tag"][row : row + 1, first:last]
        tags, ones = batch["tags"][row : row + 1, first:last], np.ones((1, last - first), np.int32)
        alone: Any = of_words({"params": chain}, own, tags, ones)
        assert_close(answer.loss_B[row], alone.loss_B[0], atol=1e-5)
        assert_close(answer.marginals_BLC[row, first:last], alone.marginals_BLC[0], atol=1e-5)
        assert answer.best_BL[row, first:last].tolist() == alone.best_BL[0].tolist()


ONE_WIDTH: dict[str, Any] = {"vocab": 9, "length": 4, "layers": 2, "hidden": 8, "heads": 2, "ffn": 8}
FAMILIES = {
    "bert": BertConfig(**ONE_WIDTH),
    "gpt-1": GptConfig(norm="post", **ONE_WIDTH),
    "gpt-2": GptConfig(norm="pre", **ONE_WIDTH),
    "gpt-3": GptConfig(norm="pre", local_window=2, **ONE_WIDTH),
    "elmo": CONFIG,
}


def _family_batch(family: str) -> dict[str, np.ndarray]:
    words = _batch(False)
    tokens = {"tokens": words["index"], "mask": words["mask"], "segments": np.zeros_like(words["index"])}
    return words if family == "elmo" else {**tokens, "tags": words["tags"]}


@pytest.mark.parametrize("family", ["gpt-3", *long(*(family for family in FAMILIES if family != "gpt-3"))])
def test_the_last_state_is_what_the_heads_read(family: str):
    """Bit for bit; so a mix reads, and trains, the final norm of a pre-norm GPT."""
    config, batch = FAMILIES[family], _family_batch(family)
    mix = HeadConfig(mix="all")
    model = build(config, ("classify",), 3, mix)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), batch)["params"])
    rng = np.random.default_rng(4)
    params = jax.tree.map(lambda x: 0.5 * rng.standard_normal(x.shape).astype(np.float32), shapes)
    run: Any = jax.jit(lambda params: model.apply({"params": params}, batch, states=True))
    encoding = run(params).encoding
    assert len(encoding.states) == config.layers + 1
    assert jnp.array_equal(encoding.states[-1], encoding.hidden_BLD)
    gradient = by_path(jax.jit(jax.grad(lambda params: jnp.square(run(params).heads["classify"]).sum()))(params))
    final = [path for path in gradient if path in ("backbone/norm/scale", "backbone/norm/bias")]
    assert len(final) == (2 if family in ("gpt-2", "gpt-3") else 0)
    assert all(np.any(gradient[path]) for path in final)


def test_settings_that_mean_nothing_are_refused():
    for wrong, message in (
        ({"crf": True}, "head.crf=True has no meaning for head.mix=off"),
        ({"mix": "all", "place": "both"}, "head.place=both wants a biLSTM"),
        ({"mix": "all", "mix_l2": -1.0}, "head.mix-l2=-1.0 is not a number from 0 on"),
        ({"mix": "all", "cells": -1}, "head.cells=-1 is not a number of cells"),
        ({"mix": "words", "mix_l2": 0.1}, "head.mix-l2=0.1 has no meaning for head.mix=words"),
        ({"mix": "all", "lstm_layers": 2}, "head.lstm-layers=2 wants the size of the biLSTM; give --head.cells"),
        ({"mix": "all", "lstm_layers": 0}, "head.lstm-layers=0 is not a positive number of layers"),
        ({"lstm_layers": 2}, "head.lstm-layers=2 has no meaning for head.mix=off"),
    ):
        with pytest.raises(ValueError, match=message):
            HeadConfig(**wrong)  # pyright: ignore[reportArgumentType]
    mix: Any
    for mix, layers in (("last-four", 4), ("concat-last-four", 4), ("second-to-last", 2)):
        parts: dict[str, Any] = {"task": TaskConfig(kind="tag"), "head": HeadConfig(mix=mix)}
        sizes = {**ONE_WIDTH, "length": 8}
        Run(model=BertConfig(**{**sizes, "layers": layers}), data=DataConfig(length=8), **parts)
        with pytest.raises(ValueError, match=f"head.mix={mix} reads {layers} layers, and the model has {layers - 1}"):
            Run(model=BertConfig(**{**sizes, "layers": layers - 1}), data=DataConfig(length=8), **parts)


def test_two_texts_are_matched_by_both_their_distance_and_their_product():
    """linear([u, v, |u - v|, u·v]), each text as [max, mean] over its words (Conneau et al. 2017, section 3.1)."""
    rng = np.random.default_rng(4)
    states = tuple(jnp.asarray(rng.standard_normal((4, 4, 6)), jnp.float32) for _ in range(3))
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]], np.int32)
    encoding = Encoding(states[-1], jnp.asarray(mask), states=states)
    head = MixPooledHead({"C": 3}, jax.nn.initializers.normal(), jnp.float32, head=HeadConfig(mix="top", pair=True))
    shapes = jax.eval_shape(head.init, jax.random.key(0), encoding, {})["params"]
    params = jax.tree.map(lambda x: rng.standard_normal(x.shape).astype(np.float32), shapes)
    got: Any = head.apply({"params": params}, encoding, {})
    gamma = params["features"]["mix"]["gamma"]
    for row in range(2):
        words = [gamma * np.asarray(states[-1], np.float64)[n][mask[n] > 0] for n in (2 * row, 2 * row + 1)]
        u, v = (np.concatenate([each.max(0), each.mean(0)]) for each in words)
        matched = np.concatenate([u, v, np.abs(u - v), u * v])
        assert_close(got[row], matched @ params["out"]["kernel"] + params["out"]["bias"], atol=1e-4)
