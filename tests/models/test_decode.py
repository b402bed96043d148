"""How the next token is chosen, in small: top-k, top-p, temperature, keys (gpt-2, sample.py)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contexture.models import decode
from contexture.models.config import GptConfig, Sampling
from contexture.models.families import build, example

SHARES = np.array([0.4, 0.3, 0.2, 0.06, 0.04])
LOGITS = jnp.asarray(np.log(SHARES)[None], jnp.float32)


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"top_k": 1}, [0]),
        ({"top_k": 3}, [0, 1, 2]),
        ({"top_k": 9}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.5}, [0, 1]),
        ({"top_p": 0.75}, [0, 1, 2]),
        ({"top_p": 0.01}, [0]),
        ({"top_p": 0.5, "exclusive": True}, [0]),
        ({"top_p": 0.75, "exclusive": True}, [0, 1]),
        ({"top_p": 0.01, "exclusive": True}, [0]),
        ({"top_k": 2, "top_p": 0.5}, [0]),  # of the two that are left the first has 4/7
    ],
    ids=str,
)
def test_what_is_left_to_choose_from(how, kept):
    probs = np.asarray(decode.filter_logits(LOGITS, Sampling(**how)))[0]
    assert np.flatnonzero(np.isfinite(probs)).tolist() == kept
    assert np.array_equal(probs[kept], np.asarray(LOGITS)[0, kept])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_a_temperature_makes_the_likely_likelier_or_less_likely(temperature):
    keys = jax.random.split(jax.random.key(0), 20_000)
    drawn = decode.sample(jnp.tile(LOGITS, (20_000, 1)), keys, Sampling(temperature=temperature))
    expected = SHARES ** (1 / temperature)
    assert np.abs(np.bincount(drawn, minlength=5) / 20_000 - expected / expected.sum()).max() < 0.015


def test_each_token_of_a_text_is_drawn_with_a_key_of_its_own():
    """A model that gives every token the same chance: its texts are no repetitions."""
    config = GptConfig(vocab=64, length=40, layers=1, hidden=4, heads=1, ffn=4, dropout=0.0)
    fields = {"tokens": "i32 BL", "mask": "i32 BL", "next": "i32 BL", "next_weights": "f32 BL"}
    line = example(fields, {"B": 1, "L": 4})
    shapes = jax.eval_shape(lambda: build(config, ("lm",)).init(jax.random.key(0), line)["params"])
    apart = decode.unstack_params(jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes), config, 64)
    tokens, keys = np.ones((2, 3), np.int32), jax.random.split(jax.random.key(1), 2)
    writing = decode.prefill(config, Sampling(), 32, apart, tokens, tokens, keys)
    _, more = decode.generate_tokens(config, Sampling(), 32, apart, writing)
    rows = np.asarray(more)
    assert all(len(set(row.tolist())) > 16 for row in rows) and (rows[0] != rows[1]).mean() > 0.8
