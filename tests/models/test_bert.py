"""BERT's laws, on a small model with weights large enough to matter."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contexture.models.bert import Block
from contexture.models.config import BertConfig
from contexture.models.encoding import Encoding
from contexture.models.families import build
from contexture.models.layers.dropout import dropout_key
from contexture.models.model import Model, Outputs
from contexture.models.shapes import path_of
from contexture.train.objectives import MlmNsp, cross_entropy, loss
from tests.helpers.optimized import OPTIMIZED
from tests.helpers.parity_rule import assert_differs, off, worst

CONFIG = BertConfig(vocab=61, length=24, segments=2, layers=4, hidden=24, heads=3, ffn=40, dropout=0.2, unroll=1)
B, L, P = 4, 13, 3
HEADS = ("mlm", "nsp")
OBJECTIVE = MlmNsp()


def _batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    lengths = np.array([L, 7, 10, 5])
    return {
        "tokens": rng.integers(0, CONFIG.vocab, (B, L), np.int32),
        "segments": (np.arange(L) >= lengths[:, None] // 2).astype(np.int32),
        "mask": (np.arange(L) < lengths[:, None]).astype(np.int32),
        "slots": np.sort(rng.permuted(np.tile(np.arange(5), (B, 1)), axis=1)[:, :P]).astype(np.int32),
        "labels": rng.integers(0, CONFIG.vocab, (B, P), np.int32),
        "slot_weights": np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1]], np.float32),
        "is_random": np.array([0, 1, 1, 0], np.int32),
        "valid": np.ones(B, np.float32),
    }


BATCH: Any = _batch()


@pytest.fixture(scope="module")
def params() -> Any:
    """Deviation 0.2, norms about one."""
    model = build(CONFIG, HEADS)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), BATCH)["params"])
    rng = np.random.default_rng(1)

    def draw(path: Any, x: Any) -> np.ndarray:
        return (0.2 * rng.standard_normal(x.shape) + ("scale" in str(path[-1]))).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes)


@partial(jax.jit, static_argnums=0, static_argnames="states")
def _apply(config: BertConfig, params: Any, batch: dict[str, jax.Array], states: bool = False) -> Outputs:
    outputs: Any = build(config, HEADS).apply({"params": params}, batch, states=states)
    return outputs


@partial(jax.jit, static_argnums=0, compiler_options=OPTIMIZED)
def _gradient(config: BertConfig, params: Any) -> tuple[jax.Array, Any]:
    """Loss and gradients, dropout on."""

    def total(params: Any) -> jax.Array:
        out: Any = build(config, HEADS).apply({"params": params}, BATCH, dropout_key(3, jnp.int32(2), jnp.arange(B)))
        return loss(OBJECTIVE, OBJECTIVE.sums(out, BATCH), OBJECTIVE.weights(BATCH))

    return jax.value_and_grad(total)(params)


@pytest.fixture(scope="module")
def answer(params: Any) -> Outputs:
    """Without dropout, with every state."""
    return _apply(CONFIG, params, BATCH, states=True)


@pytest.fixture(scope="module")
def scanned(params: Any) -> tuple[jax.Array, Any]:
    return _gradient(CONFIG, params)


def _off(got: Any, expected: Any) -> float:
    """The largest difference, in parts of the largest number, over a tree."""

    def one(a: Any, b: Any) -> float:
        return off(np.asarray(a, np.float64), np.asarray(b, np.float64))

    return worst(jax.tree.leaves(jax.tree.map(one, got, expected)))


def test_padding_changes_nothing(params: Any, answer: Outputs):
    """Other tokens and segments in it: bit for bit. More of it: but for the rounding of sums in another order."""
    rng = np.random.default_rng(5)
    for more, near in ((0, 0.0), (6, 5e-6)):
        read = {name: np.pad(BATCH[name], ((0, 0), (0, more))) for name in ("tokens", "segments", "mask")}
        junk = {"tokens": rng.integers(0, CONFIG.vocab, (B, L + more), np.int32), "segments": 1 - read["segments"]}
        read |= {name: np.where(read["mask"] == 1, read[name], x) for name, x in junk.items()}
        padded = _apply(CONFIG, params, BATCH | read, states=True)
        real = BATCH["mask"][..., None]
        for got, expected in zip(padded.encoding.states, answer.encoding.states, strict=True):
            assert _off(got[:, :L] * real, expected * real) <= near
        assert _off(padded.heads, answer.heads) <= near
        assert _off(padded.encoding.pooled_BD, answer.encoding.pooled_BD) <= near


def test_every_token_that_is_not_padding_matters(params: Any, answer: Outputs):
    for row, column in ((0, L - 1), (1, 6), (3, 4)):
        other = BATCH["tokens"].copy()
        other[row, column] = (other[row, column] + 1) % CONFIG.vocab
        got = _apply(CONFIG, params, BATCH | {"tokens": other}, states=True).encoding.pooled_BD
        differs = abs(np.asarray(got) - np.asarray(answer.encoding.pooled_BD)).max(-1)
        assert differs[row] > 1e-4 and (np.delete(differs, row) == 0).all()


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [{"unroll": 0}, {"unroll": 2}, {"remat": "attention"}, {"remat": "offload"}, {"remat": "dots"}, {"remat": "full"}],
    ids=str,
)
def test_how_layers_are_looped_changes_nothing(changes: dict[str, Any], params: Any, scanned: tuple[jax.Array, Any]):
    """Loss and every gradient, dropout on: scanned, partly or wholly unrolled, computed again or kept."""
    got = _gradient(dataclasses.replace(CONFIG, **changes), params)
    scale = abs(np.asarray(scanned[1]["backbone"]["layers"]["attention"]["query"]["bias"])).max()
    for (path, a), b in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(scanned), strict=True):
        if path_of(path).endswith("attention/key/bias"):  # exactly zero, but for rounding
            assert worst(abs(np.asarray(x)).max() for x in (a, b)) < 1e-6 * scale
        else:
            assert _off(a, b) < 1e-6, path_of(path)


def test_parameters_do_not_depend_on_how_layers_are_looped():
    def shapes(**changes: Any) -> Any:
        model = build(dataclasses.replace(CONFIG, **changes), HEADS)
        return jax.eval_shape(lambda: model.init(jax.random.key(0), BATCH))

    assert shapes(unroll=0) == shapes(unroll=1) == shapes(unroll=2, remat="dots")


def test_states_are_the_embeddings_and_each_layer_one_by_one(params: Any, answer: Outputs):
    states = answer.encoding.states
    assert len(states) == CONFIG.layers + 1
    bias = (1.0 - BATCH["mask"][:, None, None, :].astype(np.float32)) * -10000.0
    block = jax.jit(lambda weights, x, n: Block(CONFIG).apply({"params": weights}, x, n, bias, None))
    for n in range(CONFIG.layers):
        weights = jax.tree.map(lambda x, n=n: x[n], params["backbone"]["layers"])
        assert _off(block(weights, states[n], jnp.int32(n)), states[n + 1]) < 1e-6
    assert np.array_equal(states[-1], answer.encoding.hidden_BLD)


def test_states_are_built_only_when_asked_for(params: Any, answer: Outputs):
    plain = _apply(CONFIG, params, BATCH)
    assert plain.encoding.states == ()
    assert _off(plain.heads, answer.heads) < 1e-6


def test_the_embeddings_are_the_normed_sum_of_three_tables(params: Any, answer: Outputs):
    table = params["backbone"]["embeddings"]
    x = table["tokens"][BATCH["tokens"]] + table["positions"][None, :L] + table["segments"][BATCH["segments"]]
    x = x.astype(np.float64)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + CONFIG.eps)
    assert _off(answer.encoding.states[0], x * table["norm"]["scale"] + table["norm"]["bias"]) < 1e-6


def test_positions_say_where_a_token_stands(params: Any, answer: Outputs):
    counted = BATCH | {"positions": np.tile(np.arange(L, dtype=np.int32), (B, 1))}
    assert _off(_apply(CONFIG, params, counted).heads, answer.heads) < 1e-6
    shifted = BATCH | {"positions": counted["positions"] + CONFIG.length - L}
    assert _off(_apply(CONFIG, params, shifted).heads["nsp"], answer.heads["nsp"]) > 1e-3


def test_gathered_slots_are_all_positions_gathered_afterwards(params: Any, answer: Outputs):
    every = _apply(CONFIG, params, BATCH | {"slots": np.tile(np.arange(L, dtype=np.int32), (B, 1))}).heads["mlm"]
    assert every.shape == (B, L, CONFIG.vocab)
    assert _off(np.asarray(every)[np.arange(B)[:, None], BATCH["slots"]], answer.heads["mlm"]) < 1e-6


def test_a_slot_without_weight_counts_nothing(params: Any, answer: Outputs):
    sums = OBJECTIVE.sums(answer, BATCH)
    changed = BATCH["slot_weights"] == 0
    other = BATCH | {"labels": np.where(changed, 5, BATCH["labels"])}
    assert float(OBJECTIVE.sums(answer, other)["mlm_loss"].total) == float(sums["mlm_loss"].total)
    assert float(sums["mlm_loss"].weight) == BATCH["slot_weights"].sum() == 9


def test_the_softmax_is_tied_to_the_token_table(params: Any, scanned: tuple[jax.Array, Any]):
    """A token that no line holds and no slot asks for still has a gradient, from the softmax."""
    unseen = set(range(CONFIG.vocab)) - set(BATCH["tokens"].ravel()) - set(BATCH["labels"].ravel())
    assert unseen
    assert abs(np.asarray(scanned[1]["backbone"]["embeddings"]["tokens"])[sorted(unseen)]).min(1).max() > 0


def test_class_0_of_the_next_sentence_head_is_the_true_next():
    """A field is named is_random, and its value is the class."""
    sure = jnp.tile(jnp.array([[9.0, -9.0]]), (B, 1))
    outputs = Outputs(Encoding(jnp.zeros(()), jnp.zeros(())), {"mlm": jnp.zeros((B, P, 5)), "nsp": sure})
    sums = OBJECTIVE.sums(outputs, BATCH | {"labels": np.zeros((B, P), np.int32)})
    assert float(sums["nsp_accuracy"].total) == (BATCH["is_random"] == 0).sum()
    losses, hits = cross_entropy(sure, jnp.asarray(BATCH["is_random"]))
    assert ((np.asarray(losses) < 1e-6) == (BATCH["is_random"] == 0)).all() and (np.asarray(hits) == [1, 0, 0, 1]).all()


def test_erf_and_tanh_differ_a_little(params: Any, answer: Outputs):
    other = _apply(dataclasses.replace(CONFIG, gelu="tanh"), params, BATCH)
    assert 1e-5 < _off(other.heads, answer.heads) < 2e-2


@pytest.mark.long
def test_bfloat16_computes_with_float32_parameters(params: Any, answer: Outputs, scanned: tuple[jax.Array, Any]):
    config = dataclasses.replace(CONFIG, dtype="bfloat16")
    made = jax.eval_shape(lambda: build(config, HEADS).init(jax.random.key(0), BATCH)["params"])
    assert {x.dtype for x in jax.tree.leaves(made)} == {jnp.dtype("float32")}
    out = _apply(config, params, BATCH)
    assert out.encoding.hidden_BLD.dtype == jnp.bfloat16
    assert {x.dtype for x in out.heads.values()} == {jnp.dtype("float32")}
    assert 1e-5 < _off(out.heads, answer.heads) < 0.05
    total, grads = _gradient(config, params)
    assert {x.dtype for x in jax.tree.leaves((total, grads))} == {jnp.dtype("float32")}
    assert abs(float(total) / float(scanned[0]) - 1) < 0.01

    def flat(tree: Any) -> np.ndarray:
        return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])

    a, b = flat(grads), flat(scanned[1])
    assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > 0.999


def test_dropout_is_on_with_noise_alone(params: Any, answer: Outputs, scanned: tuple[jax.Array, Any]):
    still = loss(OBJECTIVE, OBJECTIVE.sums(answer, BATCH), OBJECTIVE.weights(BATCH))
    assert abs(float(scanned[0]) - float(still)) > 1e-3


def test_dropouts_three_places_each_act(params: Any):
    """On the embeddings, on the attention's weights, and on what both sublayers add."""
    made = dropout_key(3, jnp.int32(2), jnp.arange(B))

    def states(**rates: float) -> list[np.ndarray]:
        model: Model = build(dataclasses.replace(CONFIG, **rates), ())
        only = {"backbone": params["backbone"]}
        apply: Any = lambda p: model.apply({"params": p}, BATCH, made, states=True)  # noqa: E731
        out = jax.jit(lambda p: apply(p).encoding.states)(only)
        return [np.asarray(x) for x in out]

    none = states(dropout=0.0, attention_dropout=0.0)
    attention, rest = states(dropout=0.0), states(attention_dropout=0.0)
    assert np.array_equal(attention[0], none[0])
    assert_differs(attention[1], none[1], 1e-5)
    assert (np.asarray(rest[0]) == 0).mean() == pytest.approx(0.2, abs=0.03) and not (none[0] == 0).any()


@pytest.fixture(scope="module")
def fresh() -> Any:
    """As a run is born, wide enough for statistics."""
    config = BertConfig(vocab=997, length=64, layers=2, hidden=128, heads=4, ffn=256)
    return jax.jit(build(config, HEADS).init)(jax.random.key(0), BATCH)["params"]


def test_kernels_are_normal_cut_at_two_deviations(fresh: Any):
    """Not rescaled: the deviation that is left is 0.8796 of 0.02."""
    for path, x in jax.tree.leaves_with_path(fresh):
        name, x = str(path[-1].key), np.asarray(x)
        if name == "scale":
            assert (x == 1).all()
        elif name == "bias":
            assert (x == 0).all()
        else:
            assert abs(x).max() <= 0.04, path
            assert x.std() == pytest.approx(0.8796 * 0.02, rel=5 / np.sqrt(2 * x.size)), path
            assert abs(x.mean()) < 5 * 0.0176 / np.sqrt(x.size), path


def test_layers_are_born_different(fresh: Any):
    for path, x in jax.tree.leaves_with_path(fresh["backbone"]["layers"]):
        if str(path[-1].key) == "kernel":
            assert abs(np.corrcoef(np.ravel(x[0]), np.ravel(x[1]))[0, 1]) < 5 / np.sqrt(x[0].size)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"hidden": 25}, r"model\.hidden=25 is not a multiple of model\.heads=3"),
        ({"layers": 0}, r"model\.layers=0 is not a positive number"),
        ({"dropout": 1.0}, r"model\.dropout=1\.0 is not in \[0, 1\)"),
        ({"attention_dropout": -0.1}, r"model\.attention-dropout=-0\.1"),
        ({"unroll": 3}, r"model\.unroll=3 does not divide model\.layers=4"),
        ({"unroll": 4, "remat": "dots"}, r"model\.remat=dots needs the layer loop that model\.unroll=4 takes away"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(field: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **field)
