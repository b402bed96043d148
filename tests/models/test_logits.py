"""Heads answer in float32 whatever the model's dtype, and an accuracy counts no tie and no NaN."""

import functools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contexture.data.tasks.store.example_store import row_type
from contexture.models.config import BertConfig, ElmoConfig, GptConfig, HeadConfig
from contexture.models.encoding import Encoding
from contexture.models.families import build
from contexture.models.heads.chunked_softmax import next_token_loss
from contexture.models.layers.blocks import Linear
from contexture.models.model import Outputs
from contexture.models.shapes import path_of
from contexture.train.evaluation.predictions import ClassCollector
from contexture.train.objectives import OBJECTIVES, Sum, WithLmLoss, WithMixPenalty, cross_entropy, has_best
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close

SIZES = {"vocab": 9, "length": 6, "layers": 1, "hidden": 8, "heads": 2, "ffn": 8, "dtype": "bfloat16"}
BERT, GPT = BertConfig(**SIZES), GptConfig(**SIZES)
ELMO = ElmoConfig(
    vocab=9, char_width=3, filters=((1, 4),), highway=1, cells=6, projection=4, layers=1, dtype="bfloat16"
)
MIX = HeadConfig(mix="all")
B, L, P, A = 2, 6, 3, 2
HEADS: dict[str, tuple[Any, str, HeadConfig]] = {
    "mlm": (BERT, "mlm", HeadConfig()),
    "nsp": (BERT, "nsp", HeadConfig()),
    "span": (BERT, "span", HeadConfig()),
    "choice": (BERT, "choice", HeadConfig()),
    "classify": (BERT, "classify", HeadConfig()),
    "regress": (GPT, "regress", HeadConfig()),
    "tag": (GPT, "tag", HeadConfig()),
    "mixed classify": (BERT, "classify", MIX),
    "mixed regress": (ELMO, "regress", MIX),
    "mixed tag": (ELMO, "tag", MIX),
    "mixed pairs": (ELMO, "classify", HeadConfig(mix="all", pair=True)),
}


def _encoding(config: Any, choices: int) -> Encoding:
    """What a backbone may give, drawn, in bfloat16."""
    rng = np.random.default_rng(0)
    D, lines = 8, B * choices

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape), jnp.bfloat16)

    hidden, pooled, table = draw(lines, L, D), draw(lines, D), jnp.asarray(rng.standard_normal((9, D)), jnp.float32)
    mask = jnp.ones((lines, L), jnp.int32)
    return Encoding(hidden, mask, pooled, (draw(lines, L, D), hidden), table, choices=choices)


def _batch() -> dict[str, jax.Array]:
    rng = np.random.default_rng(1)
    shapes = {"slots": (L, (B, P)), "labels": (9, (B, P)), "next": (9, (B, L)), "next_backward": (9, (B, L)),
              "tags": (3, (B, L))}  # fmt: skip
    drawn = {name: jnp.asarray(rng.integers(0, high, size), jnp.int32) for name, (high, size) in shapes.items()}
    return {**drawn, "next_weights": jnp.ones((B, L)), "next_weights_backward": jnp.ones((B, L))}


LAST_BIAS = ("bias", "out/bias")


@functools.cache
def _head(name: str) -> tuple[Any, Any]:
    """(the shapes of a head's parameters, the program: parameters → logits)."""
    config, head, settings = HEADS[name]
    module = build(config, (head,), 3, settings).heads[head]
    encoding, batch = _encoding(config, A if head == "choice" or settings.pair else 1), _batch()
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), encoding, batch)["params"])
    return shapes, jax.jit(lambda params: module.apply({"params": params}, encoding, batch))


def _logits(name: str, params: Any) -> np.ndarray:
    logits = _head(name)[1](params)
    assert logits.dtype == jnp.float32
    return np.asarray(logits)


@pytest.mark.parametrize("name", HEADS)
def test_a_bias_reaches_the_logits_whole(name: str):
    """Where all else is zero, the answer is the bias, which bfloat16 would round to 1000."""
    last = jax.tree_util.tree_map_with_path(
        lambda path, x: np.full(x.shape, 1000.3 * (path_of(path) in LAST_BIAS), x.dtype), _head(name)[0]
    )
    assert_close(_logits(name, last), np.float32(1000.3), rtol=0.0)


@pytest.mark.parametrize("name", HEADS)
def test_logits_are_no_bfloat16_numbers(name: str):
    rng = np.random.default_rng(2)
    drawn = jax.tree_util.tree_map_with_path(
        lambda path, x: np.float32(rng.standard_normal(x.shape) * (path_of(path) not in LAST_BIAS)),
        _head(name)[0],
    )  # without the last bias, whose own digits would hide those that a product has lost
    logits = _logits(name, drawn)
    rounded = np.asarray(jnp.asarray(logits).astype(jnp.bfloat16).astype(jnp.float32))
    assert (logits != rounded).mean() > 0.9


def test_a_linear_map_in_float32_is_of_its_rounded_factors_with_gradients():
    sizes = {"B": 4, "D": 16, "C": 3}
    rng = np.random.default_rng(3)
    x = jnp.asarray(rng.standard_normal((4, 16)), jnp.bfloat16)
    params = {
        "kernel": rng.standard_normal((16, 3)).astype(np.float32),
        "bias": np.array([1000.3, -0.1, 7.0], np.float32),
    }
    init = jax.nn.initializers.zeros

    def total(x: Any, params: Any, module: Linear) -> Any:
        y: Any = module.apply({"params": params}, x)
        return jnp.square(y).sum(), y

    def plain(x: Any, params: Any) -> Any:
        kernel = params["kernel"].astype(jnp.bfloat16).astype(jnp.float32)
        y = jnp.matmul(x.astype(jnp.float32), kernel, precision="highest") + params["bias"][None]
        return jnp.square(y).sum(), y

    head = Linear("BD,DC->BC", sizes, init, jnp.bfloat16, out_dtype=jnp.float32)
    (_, got), gradient = jax.value_and_grad(total, (0, 1), has_aux=True)(x, params, head)
    (_, expected), true = jax.value_and_grad(plain, (0, 1), has_aux=True)(x, params)
    assert got.dtype == jnp.float32
    assert_close(got, expected, rtol=1e-6, atol=1e-5)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(true), strict=True):
        assert a.dtype == b.dtype
        assert_close(np.float32(a), np.float32(b), rtol=2e-2, atol=2e-2 * np.abs(np.float32(b)).max())
    assert_close(gradient[1]["bias"], true[1]["bias"], rtol=1e-5)
    # in float32 the dtype of the result changes no bit
    first, second = (
        jax.value_and_grad(total, (0, 1), has_aux=True)(
            x.astype(jnp.float32), params, Linear("BD,DC->BC", sizes, init, jnp.float32, out_dtype=out_dtype)
        )
        for out_dtype in (None, jnp.float32)
    )
    jax.tree.map(functools.partial(assert_close, rtol=0.0), second, first)


@pytest.mark.parametrize("limit", [1, *long(1 << 30)])
def test_the_softmax_over_words_adds_its_bias_in_float32(limit: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("contexture.models.heads.chunked_softmax.MAX_LOGITS", limit)
    rng = np.random.default_rng(4)
    x_BLD = jnp.asarray(rng.standard_normal((B, L, 8)), jnp.bfloat16)
    table_VD = jnp.asarray(rng.standard_normal((9, 8)), jnp.bfloat16)
    bias_V = jnp.asarray(1000.0 + rng.random(9), jnp.float32)
    next_BL, weights_BL = _batch()["next"], jnp.asarray(rng.random((B, L)), jnp.float32)

    def plain(bias_V: jax.Array) -> Any:
        factors = x_BLD.astype(jnp.float32), table_VD.astype(jnp.float32)
        loss_BL, hit_BL = cross_entropy(
            jnp.einsum("BLD,VD->BLV", *factors, precision="highest") + bias_V[None, None], next_BL
        )
        return (loss_BL * weights_BL).sum(), (loss_BL, hit_BL)

    def ours(bias_V: jax.Array) -> Any:
        scored = next_token_loss(x_BLD, table_VD, next_BL, weights_BL, bias_V)
        return scored.total, (scored.loss_BL, scored.hit_BL)

    actual, expected = (jax.jit(jax.value_and_grad(f, has_aux=True))(bias_V) for f in (ours, plain))
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_a_hit_is_a_label_whose_logit_is_greater_than_all_others():
    nan, inf = np.nan, np.inf
    cases = [([1.0, 2.0, 3.0], 2, 1), ([1.0, 2.0, 3.0], 1, 0), ([3.0, 3.0, 1.0], 0, 0), ([3.0, 3.0, 1.0], 1, 0),
             ([0.0, 0.0, 0.0], 1, 0), ([nan, 2.0, 1.0], 1, 0), ([nan, 2.0, 1.0], 0, 0), ([nan, nan, nan], 0, 0),
             ([-inf, -inf, -inf], 0, 0), ([-inf, 1.0, -inf], 1, 1)]  # fmt: skip
    logits, labels, expected = (np.array(x) for x in zip(*cases, strict=True))
    _, hits = cross_entropy(jnp.asarray(logits, jnp.float32), jnp.asarray(labels, jnp.int32))
    assert hits.tolist() == expected.tolist()
    # the same through the softmax in parts, whose table gives these logits
    x_BLD, table_VD = jnp.asarray(logits, jnp.float32)[:, None], jnp.eye(3)
    finite, labels = np.isfinite(logits).all(1), jnp.asarray(labels)
    hit_BL = next_token_loss(x_BLD[finite], table_VD, labels[finite, None], jnp.ones((finite.sum(), 1))).hit_BL
    assert hit_BL[:, 0].tolist() == expected[finite].tolist()
    poisoned = next_token_loss(x_BLD[~finite] * nan, table_VD, labels[~finite, None], jnp.ones(((~finite).sum(), 1)))
    assert not poisoned.hit_BL.any()
    assert has_best(logits.astype(np.float32)).tolist() == [True, True] + [False] * 7 + [True]


@pytest.mark.parametrize("value", [0.0, 0.3, np.nan])
def test_logits_that_tell_nothing_apart_score_nothing(value: float):
    """In every accuracy of every objective."""
    batch = {**_batch(), "valid": jnp.ones(B), "slot_weights": jnp.ones((B, P)), "is_random": jnp.zeros(B, jnp.int32),
             "weights": jnp.ones(B), "tag_weights": jnp.ones((B, L)), "targets": jnp.ones(B),
             "starts": jnp.zeros(B, jnp.int32), "ends": jnp.zeros(B, jnp.int32)}  # fmt: skip
    scored = next_token_loss(jnp.full((B, L, 4), value), jnp.ones((9, 4)), batch["next"], batch["next_weights"])
    heads = {name: jnp.full(shape, value) for name, shape in (
        ("mlm", (B, P, 9)), ("nsp", (B, 2)), ("classify", (B, 3)), ("regress", (B, 1)), ("tag", (B, L, 3)),
        ("choice", (B, A)), ("span", (B, L, 2)))}  # fmt: skip
    outputs = Outputs(
        _encoding(BERT, 1), {**heads, "lm": scored, "bilm": {"forward": scored, "backward": scored}}, jnp.ones(())
    )
    counted = set()
    for name, objective in OBJECTIVES.items():
        one_each = {**batch, "labels": batch["labels"] if name == "mlm_nsp" else jnp.zeros(B, jnp.int32)}
        for whole in (objective, WithLmLoss(objective, 0.5), WithMixPenalty(objective, 0.5)):
            for figure, total in whole.sums(outputs, one_each).items():
                if "accuracy" in figure:
                    assert isinstance(total, Sum) and total.total == 0 and total.weight > 0, (name, figure)
                    counted.add(figure)
    assert counted == {"accuracy", "mlm_accuracy", "nsp_accuracy", "lm_accuracy"}


def test_a_prediction_out_of_a_tie_is_named_and_counts_as_no_hit():
    """The first of the labels that score alike is named; no metric of the evaluation counts it."""
    rows = np.zeros(4, row_type("classify"))
    split: Any = SimpleNamespace(
        kind="classify", labels=("a", "b"), choices=1, windows="off", take=lambda numbers: rows[numbers]
    )
    split.origin = lambda row: "dev.tsv:1"
    held_out: Any = SimpleNamespace(split=split, numbers=lambda step: np.arange(4), ends_window=lambda step: True)
    answers = ClassCollector(held_out)
    scores = np.array([[0.5, 0.5], [np.nan, np.nan], [0.4, 0.6], [0.6, 0.4]], np.float32)
    named = [record.get("prediction") for record in answers.add(0, {"scores": scores})]
    assert named == ["a", "a", "b", "a"]
    assert answers.figures()["accuracy"] == 0.25
