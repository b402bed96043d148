"""GPT against transformers' GPT2LMHeadModel and OpenAIGPTLMHeadModel: each state, the loss and every gradient, on odd
sizes.

Weights are drawn large enough to matter. The rule for each tensor is max|a - b| <= 1e-5 · max|b|, b being torch's in
float64, so that only this side's float32 noise is left.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contexture.interchange.name_tables import GPT1_HF, GPT2_HF
from contexture.interchange.renaming import to_ours, to_theirs
from contexture.models import gpt
from contexture.models.config import GptConfig
from contexture.models.families import build
from contexture.models.heads import chunked_softmax as softmax
from contexture.train.objectives import OBJECTIVES, loss
from tests.helpers.parity_rule import close
from tests.helpers.published_models import draw, gpt_of, torch

pytestmark = pytest.mark.parity

OBJECTIVE = OBJECTIVES["lm"]
CONFIGS = {
    "GPT-2, 3 layers, 3 heads of 16, odd ffn": GptConfig(
        vocab=131, length=41, layers=3, hidden=48, heads=3, ffn=77, unroll=1
    ),
    "GPT-2, 1 layer, 5 heads of 8": GptConfig(vocab=97, length=37, layers=1, hidden=40, heads=5, ffn=77),
    "GPT-2, one head of 33, eps 1e-3": GptConfig(vocab=53, length=64, layers=2, hidden=33, heads=1, ffn=19, eps=1e-3),
    "GPT-2, 7 heads of 1, remat": GptConfig(
        vocab=61, length=39, layers=4, hidden=7, heads=7, ffn=29, unroll=2, remat="full"
    ),
    "GPT-1, 3 layers, 3 heads of 16": GptConfig(
        vocab=131, length=41, layers=3, hidden=48, heads=3, ffn=192, norm="post"
    ),
    "GPT-1, 2 layers, one head of 33, looped": GptConfig(
        vocab=53, length=38, layers=2, hidden=33, heads=1, ffn=132, norm="post", unroll=1
    ),
}
B, L = 5, 37


def _batch(config: GptConfig) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    lengths = np.array([L, 2, L - 1, 20, 11])
    mask = (np.arange(L) < lengths[:, None]).astype(np.int32)
    tokens = rng.integers(0, config.vocab, (B, L + 1), np.int32)
    weights = (np.arange(L) < lengths[:, None] - 1).astype(np.float32)  # the last token's successor is not asked for
    return {"tokens": tokens[:, :-1], "next": tokens[:, 1:], "mask": mask, "next_weights": weights,
            "valid": np.ones(B, np.float32)}  # fmt: skip


def _run_theirs(model: Any, batch: dict[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, Any]]:
    model = model.double()
    out = model(torch.from_numpy(batch["tokens"]).long(), output_hidden_states=True)
    weights = torch.from_numpy(batch["next_weights"]).double()
    ce_BL = torch.nn.functional.cross_entropy(
        out.logits.mT, torch.from_numpy(batch["next"]).long(), reduction="none"
    )  # fmt: skip
    total = (ce_BL * weights).sum() / weights.sum()
    total.backward()
    answers = {f"state {n}": x.detach().numpy() for n, x in enumerate(out.hidden_states)}
    answers |= {"logits": out.logits.detach().numpy(), "token losses": ce_BL.detach().numpy(),
                "loss": total.detach().numpy()}  # fmt: skip
    return answers, {name: p.grad.numpy() for name, p in model.named_parameters()}


def _run_ours(config: GptConfig, params: Any, batch: dict[str, np.ndarray]) -> tuple[dict[str, Any], Any]:
    model = build(config, OBJECTIVE.heads)
    given = jax.tree.map(jnp.asarray, batch)

    def total(params: Any) -> tuple[jax.Array, Any]:
        outputs: Any = model.apply({"params": params}, given, states=True)
        return loss(OBJECTIVE, OBJECTIVE.sums(outputs, given), OBJECTIVE.weights(given)), outputs

    (value, outputs), grads = jax.jit(jax.value_and_grad(total, has_aux=True))(params)
    encoding = outputs.encoding
    answers = {f"state {n}": np.asarray(x) for n, x in enumerate(encoding.states)}
    logits = jnp.einsum("BLD,VD->BLV", encoding.hidden_BLD, encoding.table_VD, precision="highest")
    answers |= {"logits": np.asarray(logits), "token losses": np.asarray(outputs.heads["lm"].loss_BL),
                "loss": np.asarray(value)}  # fmt: skip
    return answers, jax.tree.map(np.asarray, grads)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("parts", ["whole", "in parts"])
def test_every_state_loss_and_gradient_is_theirs(
    name: str, parts: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    config, batch = CONFIGS[name], _batch(CONFIGS[name])
    if parts == "in parts":
        monkeypatch.setattr(softmax, "MAX_LOGITS", B * config.vocab)  # one column at a time
    model, table = draw(gpt_of(config), 7), GPT2_HF if config.norm == "pre" else GPT1_HF
    theirs = {n: x.detach().numpy().copy() for n, x in model.state_dict().items() if not n.endswith(".attn.bias")}
    params = to_ours(table, theirs, gpt.sizes(config))
    back = to_theirs(table, params, gpt.sizes(config))
    assert back.keys() == theirs.keys() and all(np.array_equal(back[n], theirs[n]) for n in theirs)
    expected, expected_grads = _run_theirs(model, batch)
    got, grads = _run_ours(config, params, batch)
    got_grads = to_theirs(table, grads, gpt.sizes(config))
    for tensor, b in [*expected.items(), *(("gradient of " + n, g) for n, g in expected_grads.items())]:
        a = got_grads[tensor.removeprefix("gradient of ")] if tensor.startswith("gradient") else got[tensor]
        close(a, b, tensor)
