"""GPT-1's fine-tuning code, whose particulars no port has: against arithmetic written out here in NumPy, float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contexture.models.config import GptConfig
from contexture.models.families import build
from contexture.models.layers.dropout import dropout_key
from contexture.train.objectives import OBJECTIVES, WithLmLoss, loss
from contexture.train.optim.optimizers import learning_rate, optimizer
from contexture.train.settings.sections import OptimConfig
from tests.helpers.parity_rule import assert_close, close
from tests.helpers.random_runs import random_parameters

V, P, D, H, N, L, B = 19, 11, 12, 3, 2, 7, 3
CONFIG = GptConfig(vocab=V, length=P, layers=N, hidden=D, heads=H, ffn=4 * D, norm="post", one_table=True, dropout=0.0,
                   attention_dropout=0.0)  # fmt: skip


def _norm(x: Any, g: Any, b: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * g + b


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _reference(w: dict[str, Any], we: Any, tokens: Any) -> tuple[Any, Any]:
    """The last layer, and the logits over every row of the one table: tokens first, then positions."""
    h = we[tokens] + we[V + np.arange(tokens.shape[1])]
    mask = np.tril(np.ones((tokens.shape[1],) * 2))
    for n in range(N):
        q, k, v = np.split(h @ w["c_attn"][n] + w["c_attn_b"][n], 3, -1)
        heads = [y.reshape(*y.shape[:2], H, D // H).transpose(0, 2, 1, 3) for y in (q, k, v)]
        scores = heads[0] @ heads[1].transpose(0, 1, 3, 2) / np.sqrt(D // H)
        a = _softmax(scores * mask + -1e9 * (1 - mask)) @ heads[2]
        a = a.transpose(0, 2, 1, 3).reshape(h.shape) @ w["c_proj"][n] + w["c_proj_b"][n]
        middle = _norm(h + a, w["g1"][n], w["b1"][n])
        m = _gelu(middle @ w["fc"][n] + w["fc_b"][n]) @ w["proj"][n] + w["proj_b"][n]
        h = _norm(middle + m, w["g2"][n], w["b2"][n])
    return h, h @ we.T


@pytest.fixture(scope="module")
def weights() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"c_attn": (N, D, 3 * D), "c_attn_b": (N, 3 * D), "c_proj": (N, D, D), "c_proj_b": (N, D),
              "fc": (N, D, 4 * D), "fc_b": (N, 4 * D), "proj": (N, 4 * D, D), "proj_b": (N, D)}  # fmt: skip
    drawn = {name: 0.2 * rng.standard_normal(shape) for name, shape in shapes.items()}
    drawn |= {name: (name[0] == "g") + 0.2 * rng.standard_normal((N, D)) for name in ("g1", "b1", "g2", "b2")}
    return drawn | {"we": 0.2 * rng.standard_normal((V + P, D))}


def _params(w: dict[str, Any]) -> Any:
    q, k, v = np.split(w["c_attn"].reshape(N, D, 3 * D), 3, -1)
    qb, kb, vb = np.split(w["c_attn_b"], 3, -1)
    inward = {
        name: {"kernel": x.reshape(N, D, H, D // H), "bias": b.reshape(N, H, D // H)}
        for name, x, b in (("query", q, qb), ("key", k, kb), ("value", v, vb))
    }
    layers = {
        "attention": {**inward, "out": {"kernel": w["c_proj"].reshape(N, H, D // H, D), "bias": w["c_proj_b"]}},
        "attention_norm": {"scale": w["g1"], "bias": w["b1"]},
        "ffn": {"in": {"kernel": w["fc"], "bias": w["fc_b"]}, "out": {"kernel": w["proj"], "bias": w["proj_b"]}},
        "ffn_norm": {"scale": w["g2"], "bias": w["b2"]},
    }
    tables = {"tokens": w["we"][:V], "positions": w["we"][V:]}
    tree = {"backbone": {"embeddings": tables, "layers": layers}}
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def test_one_table_is_read_by_token_and_place_and_is_the_softmax(weights: dict[str, Any]):
    """The loss of every token is that of a softmax over all rows, positions among them."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, V, (B, L + 1))
    batch = {"tokens": tokens[:, :-1].astype(np.int32), "next": tokens[:, 1:].astype(np.int32),
             "mask": np.ones((B, L), np.int32), "next_weights": np.ones((B, L), np.float32)}  # fmt: skip
    hidden, logits = _reference(weights, weights["we"], tokens[:, :-1])
    outputs: Any = build(CONFIG, ("lm",)).apply({"params": _params(weights)}, batch)
    expected = -np.log(np.take_along_axis(_softmax(logits), tokens[:, 1:, None], -1))[..., 0]
    for a, b in ((outputs.encoding.hidden_BLD, hidden), (outputs.heads["lm"].loss_BL, expected)):
        close(a, b)


def test_the_loss_is_the_choices_and_half_of_the_words(weights: dict[str, Any]):
    """L3 of a multiple choice (ROCStories): cross entropy over the alternatives, each read at its last token, and 0.5
    of the mean over all sequences of each one's mean loss of a word."""
    rng = np.random.default_rng(3)
    A, lam = 2, 0.5
    lengths = rng.integers(3, L + 1, (B, A))
    tokens = rng.integers(0, V, (B, A, L))
    head, bias, labels = 0.2 * rng.standard_normal(D), 0.1, rng.integers(0, A, B)
    hidden, logits = _reference(weights, weights["we"], tokens.reshape(B * A, L))
    extract = hidden[np.arange(B * A), lengths.ravel() - 1].reshape(B, A, D)
    clf = -np.log(_softmax(extract @ head + bias)[np.arange(B), labels]).mean()
    ce = -np.log(np.take_along_axis(_softmax(logits[:, :-1]), tokens.reshape(B * A, L)[:, 1:, None], -1))[..., 0]
    M = np.arange(1, L) < lengths.ravel()[:, None]
    lm = ((ce * M).sum(1) / M.sum(1)).mean()

    place = np.arange(L)
    targets = place < lengths[..., None] - 1
    batch = {
        "tokens": tokens.astype(np.int32),
        "mask": (place < lengths[..., None]).astype(np.int32),
        "next": np.roll(tokens, -1, -1).astype(np.int32),
        "next_weights": (targets / targets.sum(-1, keepdims=True)).astype(np.float32),
        "labels": labels.astype(np.int32),
        "weights": np.ones(B, np.float32),
        "valid": np.ones(B, np.float32),
    }
    objective = WithLmLoss(OBJECTIVES["choice"], lam)
    linear = {"kernel": head[:, None].astype(np.float32), "bias": np.array([bias], np.float32)}
    params = {**_params(weights), "heads_choice": linear}
    outputs: Any = build(CONFIG, objective.heads).apply({"params": params}, batch)
    got = loss(objective, objective.sums(outputs, batch), objective.weights(batch))
    assert_close(got, clf + lam * lm, rtol=1e-5)


def test_the_alternatives_of_an_example_share_their_dropout():
    """Two alternatives that are the same text have the same logit, whatever is dropped; two examples have not."""
    model = build(CONFIG, ("choice",))
    tokens = np.broadcast_to(np.arange(L, dtype=np.int32), (B, 2, L))
    batch = {"tokens": tokens, "mask": np.ones_like(tokens)}
    params = random_parameters(model, batch)
    outputs: Any = jax.jit(model.apply)({"params": params}, batch, dropout_key(0, jnp.int32(1), jnp.arange(B)))
    logits_BA = np.asarray(outputs.heads["choice"])
    assert (logits_BA[:, 0] == logits_BA[:, 1]).all() and len(set(logits_BA[:, 0].tolist())) == B


def test_a_pair_in_both_orders_is_read_from_the_sum_of_both():
    """Similarity: the two vectors are added before the linear map, so that the order of a pair changes nothing."""
    model = build(CONFIG, ("regress",))
    rng = np.random.default_rng(4)
    tokens = rng.integers(0, V, (B, 2, L)).astype(np.int32)
    batch = {"tokens": tokens, "mask": np.ones_like(tokens)}
    params = random_parameters(model, batch)
    apply = jax.jit(model.apply)
    both: Any = apply({"params": params}, batch)
    turned: Any = apply({"params": params}, {"tokens": tokens[:, ::-1], "mask": batch["mask"]})
    one: Any = apply({"params": params}, {"tokens": tokens[:, 0], "mask": batch["mask"][:, 0]})
    other: Any = apply({"params": params}, {"tokens": tokens[:, 1], "mask": batch["mask"][:, 1]})
    bias = params["heads_regress"]["bias"]
    assert_close(both.heads["regress"], turned.heads["regress"], rtol=1e-6, atol=1e-7)
    summed = one.heads["regress"] + other.heads["regress"] - bias[None]
    assert_close(both.heads["regress"], summed, rtol=1e-5, atol=1e-6)


def test_the_optimizers_correction_falls_on_the_decay_too_and_not_on_eps():
    """Twelve steps of finetune-transformer-lm's Adam, its schedule and its clipping, on a matrix and a bias."""
    steps, rate, b1, b2, eps, decay, warm = 12, 6.25e-2, 0.9, 0.999, 1e-8, 0.01, 0.2
    config = OptimConfig(name="gpt1", schedule="gpt1", peak_lr=rate, warmup=0, warmup_fraction=warm, b1=b1, b2=b2,
                         eps=eps, weight_decay=decay, clip=1.0)  # fmt: skip
    rng = np.random.default_rng(2)
    p = {"kernel": rng.standard_normal((5, 4)), "bias": rng.standard_normal(4)}
    m = {name: np.zeros_like(x) for name, x in p.items()}
    v = {name: np.zeros_like(x) for name, x in p.items()}
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), p)
    tx = optimizer(config)
    state = tx.init(params)
    for t in range(1, steps + 1):
        grads = {name: rng.standard_normal(x.shape) * t for name, x in p.items()}
        norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
        x = (t - 1) / steps
        schedule = (x / warm if x <= warm else 1.0) * (1 - x)
        lrt = rate * np.sqrt(1 - b2**t) / (1 - b1**t) * schedule
        for name, g in grads.items():
            g = g / max(norm, 1.0)
            m[name] = b1 * m[name] + (1 - b1) * g
            v[name] = b2 * v[name] + (1 - b2) * g * g
            pull = decay * p[name] if p[name].ndim > 1 else 0.0
            p[name] = p[name] - lrt * (m[name] / (np.sqrt(v[name]) + eps) + pull)
        given = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), grads)
        updates, state = tx.update(given, state, params)
        lr = learning_rate(config, steps, jnp.int32(t - 1))
        params = jax.tree.map(lambda a, u, lr=lr: a - lr * u, params, updates)
        for name in p:
            assert_close(params[name], p[name], rtol=2e-6, atol=2e-6)


def test_the_first_step_has_the_rate_zero_and_the_second_the_peak():
    """138 steps, warm-up over 0.2 % of them: 0.276 of a step."""
    config = OptimConfig(name="gpt1", schedule="gpt1", peak_lr=1.0, warmup=0, warmup_fraction=0.002)
    rates = [float(learning_rate(config, 138, jnp.int32(t))) for t in (0, 1, 2, 137)]
    assert_close(rates, [0.0, 137 / 138, 136 / 138, 1 / 138], rtol=1e-5)
