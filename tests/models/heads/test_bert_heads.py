"""The heads of BERT against their equations in NumPy, in float64 (modeling.py, run_pretraining.py, run_squad.py)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contexture.models.bert import MaskedLmHead, NextSentenceHead, SpanBoundaryHead
from contexture.models.config import BertConfig, GptConfig
from contexture.models.encoding import Encoding
from contexture.models.families import build
from contexture.models.heads.tasks import PooledHead, SpanHead, SpanPointerHead, TokenHead
from tests.helpers.parity_rule import close

B, L, D, V, P, C = 2, 5, 6, 11, 3, 4
SIZES = {"D": D, "_": D, "V": V, "C": C}
INIT = jax.nn.initializers.normal(0.5)


def _encoding() -> Encoding:
    rng = np.random.default_rng(0)
    hidden, pooled, table = (rng.normal(size=shape).astype(np.float32) for shape in ((B, L, D), (B, D), (V, D)))
    return Encoding(jnp.asarray(hidden), jnp.ones((B, L), jnp.int32), jnp.asarray(pooled), (), jnp.asarray(table))


def _drawn(module, batch):
    shapes = jax.eval_shape(module.init, jax.random.key(0), _encoding(), batch)["params"]
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), shapes)
    return params, jax.tree.map(lambda x: np.asarray(x, np.float64), params)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_logits_of_a_masked_token_are_those_of_the_equations(tied, activation):
    encoding, slots = _encoding(), np.array([[0, 3, 4], [2, 2, 0]], np.int32)
    module = MaskedLmHead(SIZES, activation, 1e-3, INIT, jnp.float32, tied)
    params, p = _drawn(module, {"slots": slots})
    x = np.take_along_axis(np.asarray(encoding.hidden_BLD, np.float64), slots[..., None], 1)
    x = x @ p["transform"]["kernel"] + p["transform"]["bias"]
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    x = np.maximum(x, 0) if activation == "relu" else 0.5 * x * (1 + np.tanh(inner))
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3) * p["norm"]["scale"] + p["norm"]["bias"]
    expected = x @ (np.asarray(encoding.table_VD) if tied else p["table"]).T + p["bias"]
    close(module.apply({"params": params}, encoding, {"slots": slots}), expected)
    assert ("table" in p) is not tied


def _normed(x: np.ndarray, norm: dict[str, np.ndarray]) -> np.ndarray:
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3) * norm["scale"] + norm["bias"]


@pytest.mark.parametrize("tied", [True, False])
def test_logits_from_a_spans_boundary_are_those_of_the_equations(tied: bool):
    """SpanBERT's two layers on the two tokens and the place in the span; places beyond the last share its vector."""
    encoding = _encoding()
    left, right, offset = (
        np.array(x, np.int32) for x in ([[0, 0, 2], [1, 0, 0]], [[3, 3, 4], [4, 2, 0]], [[0, 19, 25], [3, 0, 0]])
    )
    batch = {"left": left, "right": right, "offset": offset}
    module = SpanBoundaryHead(SIZES, "relu", 1e-3, INIT, jnp.float32, tied)
    params, p = _drawn(module, batch)
    assert p["places"].shape == (20, 200)
    hidden = np.asarray(encoding.hidden_BLD, np.float64)
    beside = [np.take_along_axis(hidden, side[..., None], 1) for side in (left, right)]
    inputs = np.concatenate([*beside, p["places"][np.minimum(offset, 19)]], -1)
    first = np.concatenate([p[name]["kernel"] for name in ("left", "right", "place")])
    x = _normed(np.maximum(inputs @ first + p["left"]["bias"], 0), p["norm"])
    x = _normed(np.maximum(x @ p["transform"]["kernel"] + p["transform"]["bias"], 0), p["norm_2"])
    expected = x @ (np.asarray(encoding.table_VD) if tied else p["table"]).T + p["bias"]
    close(module.apply({"params": params}, encoding, batch), expected)
    assert ("table" in p) is not tied


@pytest.mark.parametrize(
    ("module", "reads"),
    [
        (NextSentenceHead(SIZES, INIT, jnp.float32), "pooled_BD"),
        (PooledHead(SIZES, INIT, jnp.float32, 0.5), "pooled_BD"),
        (TokenHead(SIZES, INIT, jnp.float32, 0.5), "hidden_BLD"),
        (SpanHead(SIZES, INIT, jnp.float32), "hidden_BLD"),
    ],
    ids=lambda x: type(x).__name__ if not isinstance(x, str) else x,
)
def test_other_heads_are_one_linear_map_without_dropout_in_evaluation(module, reads):
    encoding = _encoding()
    params, p = _drawn(module, {})
    expected = np.asarray(getattr(encoding, reads), np.float64) @ p["kernel"] + p["bias"]
    close(module.apply({"params": params}, encoding, {}), expected)


@pytest.mark.parametrize("config", [BertConfig(), GptConfig()], ids=["bert", "gpt"])
def test_a_span_has_two_outputs_its_start_and_its_end(config):
    head: Any = build(config, ("span",)).heads["span"]
    assert head.sizes["C"] == 2


def test_a_left_to_right_models_span_is_pointed_at_by_its_last_token():
    """logits[l, c] = hidden[l] · query[c] / √D + linear(hidden[l])[c], query = linear(pooled)."""
    encoding, module = _encoding(), SpanPointerHead(SIZES | {"C": 2}, INIT, jnp.float32)
    params, p = _drawn(module, {})
    hidden, pooled = (np.asarray(x, np.float64) for x in (encoding.hidden_BLD, encoding.pooled_BD))
    query = np.einsum("bd,dce->bce", pooled, p["query"]["kernel"].reshape(D, 2, D)) + p["query"]["bias"].reshape(2, D)
    expected = np.einsum("bld,bcd->blc", hidden, query) / np.sqrt(D) + hidden @ p["kernel"] + p["bias"]
    close(module.apply({"params": params}, encoding, {}), expected)
