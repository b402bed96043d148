"""Writing against transformers: greedy texts token for token, and the filters of its samplers."""

import jax.numpy as jnp
import numpy as np
import pytest

from contexture.interchange.name_tables import GPT1_HF, GPT2_HF
from contexture.interchange.renaming import to_ours
from contexture.models import decode, gpt
from contexture.models.config import GptConfig, Sampling
from tests.helpers.published_models import draw, torch, transformers

pytestmark = pytest.mark.parity

TOKENS, MODELS = 40, 20


def _models(norm: str, count: int):
    """Random models of odd sizes whose greedy texts of 40 tokens have at least 10 distinct ones."""
    import jax

    models, seed = [], 0
    while len(models) < count:
        seed += 1
        assert seed < 20 * count, "too few random models write anything varied"
        rng = np.random.default_rng(seed)
        heads = int(rng.integers(1, 5))
        hidden = heads * int(rng.integers(3, 17))
        common = {"vocab_size": int(rng.integers(40, 200)), "n_positions": 64, "n_embd": hidden, "n_head": heads,
                  "n_layer": int(rng.integers(1, 4)), "bos_token_id": None, "eos_token_id": None,
                  "attn_implementation": "eager"}  # fmt: skip
        if norm == "pre":
            model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**common)).eval()
        else:
            model = transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**common)).eval()
        model = draw(model.double(), seed, deviation=0.5)
        lengths = rng.integers(1, 20, 3)
        prompts = [rng.integers(0, common["vocab_size"], n) for n in lengths]
        written = []
        for prompt in prompts:  # one at a time: theirs takes no batch of unequal length without left padding
            ids = torch.from_numpy(prompt[None]).long()
            mask = torch.ones_like(ids)
            more = {"max_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0, "use_cache": norm == "pre"}
            with torch.no_grad():
                written.append(model.generate(ids, attention_mask=mask, **more)[0, len(prompt) :].numpy())
        if min(len(set(text.tolist())) for text in written) < 10:
            continue
        config = GptConfig(vocab=common["vocab_size"], length=64, layers=common["n_layer"], hidden=hidden, heads=heads,
                           ffn=4 * hidden, norm=norm)  # pyright: ignore  # fmt: skip
        tensors = {n: x.detach().float().numpy() for n, x in model.state_dict().items() if not n.endswith(".attn.bias")}
        params = to_ours(GPT2_HF if norm == "pre" else GPT1_HF, tensors, gpt.sizes(config))
        models.append((config, jax.tree.map(jax.numpy.asarray, params), prompts, written))
    return models


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_greedy_texts_are_theirs_token_for_token(norm: str):
    """Prompts of unequal length in one batch, padded on the right."""
    import jax

    for config, params, prompts, written in _models(norm, MODELS if norm == "pre" else 4):
        length = max(map(len, prompts)) + 3
        tokens = np.stack([np.pad(p, (0, length - len(p))) for p in prompts]).astype(np.int32)
        mask = np.stack([np.arange(length) < len(p) for p in prompts]).astype(np.int32)
        apart, keys = decode.unstack_params(params, config, config.vocab), jax.random.split(jax.random.key(0), 3)
        writing = decode.prefill(config, Sampling(temperature=0.0), TOKENS - 1, apart, tokens, mask, keys)
        first = np.asarray(writing.token_B)[:, None]
        _, rest = decode.generate_tokens(config, Sampling(temperature=0.0), TOKENS - 1, apart, writing)
        assert np.array_equal(np.concatenate([first, rest], 1), np.stack(written))


@pytest.mark.parametrize("top_p", [0.05, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("top_k", [0, 1, 7])
def test_what_top_k_and_top_p_leave_is_what_theirs_leave(top_k: int, top_p: float):
    logits = np.random.default_rng(0).standard_normal((16, 50)).astype(np.float32) * 2
    theirs = torch.from_numpy(logits)
    if top_k:
        theirs = transformers.TopKLogitsWarper(top_k)(None, theirs)
    theirs = transformers.TopPLogitsWarper(top_p)(None, theirs)
    ours = decode.filter_logits(jnp.asarray(logits), Sampling(top_k=top_k, top_p=top_p))
    assert np.array_equal(np.isfinite(ours), np.isfinite(theirs.numpy()))
