"""The heads of fine-tuning against transformers' BertFor…Classification: logits, loss and gradients.

The rule for each tensor is that of tests/parity/test_bert.py: max|a - b| <= 1e-5 · max|b|, theirs in float64.
"""

from typing import Any

import jax
import numpy as np
import pytest

from contexture.interchange.name_tables import BERT_HF
from contexture.interchange.renaming import NameTable, to_ours, to_theirs
from contexture.models import bert
from contexture.models.config import BertConfig
from contexture.models.families import build
from contexture.train.objectives import OBJECTIVES, loss
from tests.helpers.parity_rule import close
from tests.helpers.published_models import bert_of, draw, torch

pytestmark = pytest.mark.parity

CONFIG = BertConfig(vocab=71, length=23, segments=2, layers=2, hidden=36, heads=3, ffn=50, gelu="erf")
B, L, C = 5, 19, 7


def theirs(kind: str) -> Any:
    name = "BertForTokenClassification" if kind == "tag" else "BertForSequenceClassification"
    return draw(bert_of(name, CONFIG, num_labels=1 if kind == "regress" else C), 3).double()


def table(kind: str) -> NameTable:
    rows = tuple(
        row for row in BERT_HF.rows if row[0].startswith("bert.") and not (kind == "tag" and "pooler" in row[0])
    )
    head = (
        ("classifier.weight", f"heads_{kind}/kernel", "CD -> DC"),
        ("classifier.bias", f"heads_{kind}/bias", "C -> C"),
    )
    return NameTable("transformers", rows + head)


def batch_of(kind: str, rng: np.random.Generator) -> dict[str, Any]:
    lengths = np.array([L, 3, 9, L - 1, 5])
    mask = (np.arange(L) < lengths[:, None]).astype(np.int32)
    batch = {
        "tokens": rng.integers(0, CONFIG.vocab, (B, L), np.int32),
        "segments": rng.integers(0, 2, (B, L), np.int32),
        "mask": mask,
        "valid": np.ones(B, np.float32),
    }
    if kind == "tag":
        tags = np.where((rng.random((B, L)) < 0.6) & (mask > 0), rng.integers(0, C, (B, L)), -1).astype(np.int32)
        return {**batch, "tags": tags, "tag_weights": (tags >= 0).astype(np.float32)}
    if kind == "regress":
        return {**batch, "targets": rng.normal(size=B).astype(np.float32)}
    return {**batch, "labels": rng.integers(0, C, B, np.int32), "weights": np.ones(B, np.float32)}


@pytest.mark.parametrize("kind", ["classify", "regress", "tag"])
def test_a_tasks_head_is_equal(kind):
    model, batch = theirs(kind), batch_of(kind, np.random.default_rng(4))
    asked = {"input_ids": "tokens", "token_type_ids": "segments", "attention_mask": "mask"}
    given: dict[str, Any] = {name: torch.from_numpy(batch[ours].astype(np.int64)) for name, ours in asked.items()}
    if kind == "regress":
        given["labels"] = torch.from_numpy(batch["targets"]).double()
    else:
        gold = batch["labels"] if kind == "classify" else np.where(batch["tags"] < 0, -100, batch["tags"])
        given["labels"] = torch.from_numpy(gold.astype(np.int64))
    out = model(**given)
    out.loss.backward()

    sizes = bert.sizes(CONFIG, 1 if kind == "regress" else C)
    state = {name: p.detach().numpy().astype(np.float32) for name, p in model.named_parameters()}
    params = to_ours(table(kind), state, sizes)
    if kind == "tag":
        params["backbone"]["pooler"] = {"kernel": np.zeros((36, 36), np.float32), "bias": np.zeros(36, np.float32)}
    ours, objective = build(CONFIG, (kind,), sizes["C"]), OBJECTIVES[kind]

    def run(params: Any) -> tuple[jax.Array, jax.Array]:
        answers: Any = ours.apply({"params": params}, batch)
        return loss(objective, objective.sums(answers, batch), objective.weights(batch)), answers.heads[kind]

    (total, logits), grads = jax.value_and_grad(run, has_aux=True)(params)
    close(logits, out.logits.detach().numpy(), "logits")
    close(total, out.loss.item(), "loss")
    if kind == "tag":
        assert not np.any(grads["backbone"].pop("pooler")["kernel"])
    got = to_theirs(table(kind), grads, sizes)
    for name, parameter in model.named_parameters():
        if name.endswith("key.bias"):  # zero but for rounding: it shifts all of a query's logits alike
            scale = np.abs(dict(model.named_parameters())[name.replace("key", "query")].grad.numpy()).max()
            assert np.abs(got[name]).max() <= 1e-5 * scale, name
        else:
            close(got[name], parameter.grad.numpy(), name)
