"""Predicts masked tokens (the task that pretrains BERT, Devlin et al. 2018, section 3.1)."""

from functools import partial

import jax
import numpy as np

from contexture.analysis.results import TokenScore
from contexture.data.bucketing import power_of_two
from contexture.data.errors import DataError
from contexture.data.layouts import Batch, token_lines
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.checked_text import encode_checked
from contexture.data.tokenizers.wordpiece import MASK, wordpiece
from contexture.models.config import ModelConfig
from contexture.models.families import build, family_of
from contexture.models.model import Model, Outputs
from contexture.models.shapes import Params
from contexture.train.families import text_family
from contexture.train.run.trained_length import ANY_LENGTH, LengthWatch


def fill(
    model: Model, params: Params, tokenizer: Tokenizer, text: str, top: int = 5, trained: LengthWatch = ANY_LENGTH
) -> list[list[TokenScore]]:
    """Predicts the `top` most probable tokens for each [MASK] of a text: [[{"token": "cat", "score": 0.61}, …], …].

    The score is the probability in the softmax over the vocabulary.

    Args:
        trained: warns of text longer than the training sequences.

    Raises:
        DataError: when the text has no [MASK] or is longer than the model, or the model has no masked-LM head.
    """
    if "mlm" not in family_of(model.config).heads:
        other = text_family(model.config)
        raise DataError(f"only a BERT fills gaps, and not {other.called}, {other.instead}")
    if "mlm" not in model.heads:
        raise DataError("this run was trained for a task and has no head for masked tokens; give a pretrained run")
    parts = text.split(MASK)
    if len(parts) < 2:
        raise DataError(f"the text has no {MASK}; put one where a word is wanted: 'The cat {MASK} on the mat.'")
    if top < 1:
        raise DataError(f"top={top} is not a positive number of tokens")
    tokenizer = wordpiece(tokenizer)
    top = min(top, tokenizer.size)
    # The text between the gaps is tokenised, and the mask's id put in by hand: spelled out in text, [MASK] is text.
    first, *others = encode_checked(parts, ["the text"] * len(parts), tokenizer)
    ids = [tokenizer.cls, *first]
    for part in others:
        ids += [tokenizer.mask, *part]
    ids.append(tokenizer.sep)
    if len(ids) > model.config.length:
        raise DataError(f"the text has {len(ids)} tokens, the model takes {model.config.length}; give a shorter one")
    trained.check(len(ids))
    places = np.flatnonzero(np.array(ids) == tokenizer.mask)
    # The number of slots is rounded up, as the length is, so that few programs are compiled; empty ones are dropped.
    slots = np.zeros((1, power_of_two(len(places))), np.int32)
    slots[0, : len(places)] = places
    batch = {**token_lines([ids], 1, tokenizer.pad, model.config.length), "slots": slots}
    # Rows of the table beyond the vocabulary (it may be padded) are no tokens.
    best = _best(model.config, min(tokenizer.size, model.config.vocab), top, params, batch)
    probs_PK, ids_PK = jax.device_get(best)
    return [
        [{"token": tokenizer.token(int(id)), "score": float(prob)} for id, prob in zip(ids_K, probs_K, strict=True)]
        for ids_K, probs_K in zip(ids_PK[: len(places)], probs_PK[: len(places)], strict=True)
    ]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _best(config: ModelConfig, tokens: int, top: int, params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Returns (probabilities f32 PK, ids i32 PK) of the most probable tokens at each slot."""
    outputs = build(config, ("mlm",)).apply({"params": params}, batch)
    assert isinstance(outputs, Outputs)
    probs_PK, ids_PK = jax.lax.top_k(jax.nn.softmax(outputs.heads["mlm"][0][:, :tokens]), top)
    return probs_PK, ids_PK
