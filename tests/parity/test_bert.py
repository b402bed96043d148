"""BERT against transformers' BertForPreTraining: each state, head, loss and gradient, on odd sizes.

Weights are drawn large enough to matter. The rule for each tensor is max|a - b| <= 1e-5 · max|b|, b being torch's in
float64, so that only this side's float32 noise is left.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contexture.interchange.name_tables import BERT_HF
from contexture.interchange.renaming import to_ours, to_theirs
from contexture.models import bert
from contexture.models.config import BertConfig
from contexture.models.families import build
from contexture.train.objectives import OBJECTIVES, loss
from tests.helpers.parity_rule import off as off_by
from tests.helpers.parity_rule import worst
from tests.helpers.published_models import bert_of, draw, torch, transformers

pytestmark = pytest.mark.parity

OBJECTIVE = OBJECTIVES["mlm_nsp"]
CONFIGS = {
    "3 layers, 3 heads of 16, odd ffn": BertConfig(
        vocab=131, length=41, segments=2, layers=3, hidden=48, heads=3, ffn=77, gelu="erf", unroll=1
    ),
    "1 layer, 5 heads of 8, tanh, 3 segments": BertConfig(
        vocab=97, length=37, segments=3, layers=1, hidden=40, heads=5, ffn=77, gelu="tanh"
    ),
    "2 layers, one head of 33, eps 1e-5": BertConfig(
        vocab=53, length=64, segments=2, layers=2, hidden=33, heads=1, ffn=19, gelu="tanh", eps=1e-5
    ),
    "4 layers, 7 heads of 1, remat": BertConfig(
        vocab=61, length=39, segments=3, layers=4, hidden=7, heads=7, ffn=29, gelu="erf", unroll=2, remat="full"
    ),
}
B, L, P = 5, 37, 6


@dataclass
class Both:
    """What the two sides answered on one batch: tensors by name, theirs and ours."""

    config: BertConfig
    model: Any
    batch: dict[str, np.ndarray]
    tensors: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    got: dict[str, np.ndarray]
    expected_grads: dict[str, np.ndarray]
    got_grads: dict[str, np.ndarray]


def _batch(config: BertConfig, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Lines of many lengths, the longest whole; slots in order, at least one, the rest padded as place 0, weight 0."""
    lengths = np.array([L, 1 + P, L - 1, 20, 11])
    mask = (np.arange(L) < lengths[:, None]).astype(np.int32)
    slots, labels = np.zeros((B, P), np.int32), np.zeros((B, P), np.int32)
    weights = np.zeros((B, P), np.float32)
    for row, count in enumerate((P, 1, 3, P, 2)):
        slots[row, :count] = np.sort(rng.choice(lengths[row], count, replace=False))
        labels[row, :count] = rng.integers(0, config.vocab, count)
        weights[row, :count] = 1.0
    return {
        "tokens": rng.integers(0, config.vocab, (B, L), np.int32),
        "segments": rng.integers(0, config.segments, (B, L), np.int32),
        "mask": mask,
        "slots": slots,
        "labels": labels,
        "slot_weights": weights,
        "is_random": np.array([0, 1, 1, 0, 1], np.int32),
        "valid": np.ones(B, np.float32),
    }


def _run_theirs(model: Any, batch: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    model = model.double()
    labels = np.full((B, L), -100, np.int64)
    rows, slots = np.nonzero(batch["slot_weights"])
    labels[rows, batch["slots"][rows, slots]] = batch["labels"][rows, slots]
    given = {
        "input_ids": batch["tokens"],
        "token_type_ids": batch["segments"],
        "attention_mask": batch["mask"],
        "labels": labels,
        "next_sentence_label": batch["is_random"],
    }
    given = {name: torch.from_numpy(np.asarray(x, np.int64)) for name, x in given.items()}
    out = model(**given, output_hidden_states=True)
    encoded = model.bert(**{k: given[k] for k in ("input_ids", "token_type_ids", "attention_mask")})
    out.loss.backward()
    logits = out.prediction_logits.detach().numpy()
    ce_BL = torch.nn.functional.cross_entropy(out.prediction_logits.mT, given["labels"], reduction="none")
    ce_B = torch.nn.functional.cross_entropy(
        out.seq_relationship_logits, given["next_sentence_label"], reduction="none"
    )
    answers = {f"state {n}": x.detach().numpy() for n, x in enumerate(out.hidden_states)} | {
        "pooled": encoded.pooler_output.detach().numpy(),
        "mlm logits": logits[np.arange(B)[:, None], batch["slots"]],
        "nsp logits": out.seq_relationship_logits.detach().numpy(),
        "mlm sum": ce_BL.detach().numpy().sum(),
        "nsp sum": ce_B.detach().numpy().sum(),
        "loss": out.loss.detach().numpy(),
    }
    return answers, {name: p.grad.numpy() for name, p in model.named_parameters()}


def _run_ours(config: BertConfig, params: Any, batch: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The loss here divides by the labelled slots alone, as transformers does, without the original's 1e-5."""
    model = build(config, ("mlm", "nsp"))
    ours = OBJECTIVE.weights(batch)
    assert np.float32(ours["mlm_loss"]) == np.float32(batch["slot_weights"].sum() + np.float32(1e-5))
    assert float(ours["nsp_loss"]) == B
    weights = {"mlm_loss": jnp.asarray(batch["slot_weights"].sum()), "nsp_loss": jnp.asarray(float(B))}

    def run(params: Any, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
        out: Any = model.apply({"params": params}, batch, states=True)
        sums = OBJECTIVE.sums(out, batch)
        total = loss(OBJECTIVE, sums, weights)
        answers = {f"state {n}": x for n, x in enumerate(out.encoding.states)} | {
            "pooled": out.encoding.pooled_BD,
            "mlm logits": out.heads["mlm"],
            "nsp logits": out.heads["nsp"],
            "mlm sum": sums["mlm_loss"].total,
            "nsp sum": sums["nsp_loss"].total,
            "loss": total,
        }
        return total, answers

    grads, answers = jax.jit(jax.grad(run, has_aux=True))(params, batch)
    return {k: np.asarray(x) for k, x in answers.items()}, to_theirs(BERT_HF, grads, bert.sizes(config))


@pytest.fixture(scope="module", params=CONFIGS)
def both(request: pytest.FixtureRequest) -> Both:
    config = CONFIGS[request.param]
    theirs = draw(bert_of("BertForPreTraining", config), len(request.param))
    tensors = {name: x.numpy().copy() for name, x in theirs.state_dict().items()}
    batch = _batch(config, np.random.default_rng(3))
    got, got_grads = _run_ours(config, to_ours(BERT_HF, tensors, bert.sizes(config)), batch)
    expected, expected_grads = _run_theirs(theirs, batch)
    return Both(config, theirs, batch, tensors, expected, got, expected_grads, got_grads)


def _off(got: np.ndarray, expected: np.ndarray) -> float:
    return off_by(got, expected)


def test_every_state_and_answer_is_transformerss(both: Both):
    assert both.got.keys() == both.expected.keys() and len(both.got) == both.config.layers + 7
    off = {name: _off(both.got[name], expected) for name, expected in both.expected.items()}
    assert worst(off.values()) <= 1e-5, off


def test_every_gradient_is_transformerss(both: Both):
    """All but the keys' biases, whose gradient is zero: they add the same to all that a query is compared with."""
    assert both.expected_grads.keys() == both.got_grads.keys() - dict(BERT_HF.repeats).keys()
    off = {}
    for name, expected in both.expected_grads.items():
        if name.endswith("key.bias"):
            scale = abs(both.expected_grads[name.replace("key.bias", "query.bias")]).max()
            assert abs(expected).max() <= 1e-12 * scale
            off[name] = abs(both.got_grads[name]).max() / scale
        else:
            off[name] = _off(both.got_grads[name], expected)
    assert worst(off.values()) <= 1e-5, {name: x for name, x in off.items() if x > 1e-5}


def test_transformers_tensors_come_back_bit_for_bit(both: Both):
    """No name of theirs is unaccounted for, and none is made up."""
    sizes = bert.sizes(both.config)
    back = to_theirs(BERT_HF, to_ours(BERT_HF, both.tensors, sizes), sizes)
    assert back.keys() == both.tensors.keys()
    for name, tensor in both.tensors.items():
        assert back[name].dtype == tensor.dtype and np.array_equal(back[name], tensor), name


def test_our_parameters_have_the_names_and_shapes_of_the_table(both: Both):
    model = build(both.config, ("mlm", "nsp"))
    made = jax.eval_shape(lambda: model.init(jax.random.key(0), both.batch)["params"])
    ours = to_ours(BERT_HF, both.tensors, bert.sizes(both.config))
    assert jax.tree.map(lambda x: x.shape, made) == jax.tree.map(lambda x: x.shape, ours)


def test_both_of_transformers_tanh_gelus_are_ours():
    from contexture.models.layers.blocks import ACTIVATIONS as ours

    x = np.linspace(-6, 6, 1001)
    for name, its in (("tanh", "gelu_new"), ("tanh", "gelu_pytorch_tanh"), ("erf", "gelu")):
        expected = transformers.activations.ACT2FN[its](torch.from_numpy(x)).numpy()
        assert _off(np.asarray(ours[name](jnp.asarray(x, jnp.float32))), expected) <= 1e-6


def test_the_rule_sees_a_small_fault(both: Both):
    """One number of one kernel, off by a tenth of its deviation, breaks it in the last state and in the gradients."""
    tensors = {name: x.copy() for name, x in both.tensors.items()}
    tensors["bert.encoder.layer.0.output.dense.weight"][0, 0] += 0.02
    got, grads = _run_ours(both.config, to_ours(BERT_HF, tensors, bert.sizes(both.config)), both.batch)
    last = f"state {both.config.layers}"
    assert _off(got[last], both.expected[last]) > 1e-5
    trained = (name for name in both.expected_grads if "key.bias" not in name)
    assert worst(_off(grads[name], both.expected_grads[name]) for name in trained) > 1e-5
