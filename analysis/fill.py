"""What a masked language model would put in a gap (the task that pretrains BERT, Devlin et al. 2018, section 3.1)."""

from typing import Any

import jax
import numpy as np

from contexture.data.errors import DataError
from contexture.data.tasks.word_alignment import encode_checked
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.wordpiece import MASK, wordpiece
from contexture.models.config import ElmoConfig, GptConfig
from contexture.models.model import Model


def fill(model: Model, params: Any, tokenizer: Tokenizer, text: str, top: int = 5) -> list[list[dict[str, Any]]]:
    """For each [MASK] of the text, the `top` pieces that fit best: [[{"token": "cat", "score": 0.61}, …], …].

    The score is the share that the softmax over the vocabulary gives. Raises DataError where the text has no [MASK], is
    longer than the model, or the model has no head for masked tokens.
    """
    if isinstance(getattr(model.backbone, "config", None), GptConfig):
        raise DataError("only a BERT fills gaps; this run is a GPT, which writes on: contexture generate")
    if isinstance(getattr(model.backbone, "config", None), ElmoConfig):
        raise DataError("only a BERT fills gaps; this run is an ELMo, which gives vectors: contexture embed")
    if "mlm" not in model.heads:
        raise DataError("this run was trained for a task and has no head for masked tokens; give a pretrained run")
    parts = text.split(MASK)
    if len(parts) < 2:
        raise DataError(f"the text has no {MASK}; put one where a word is wanted: 'The cat {MASK} on the mat.'")
    if top < 1:
        raise DataError(f"top={top} is not a positive number of pieces")
    tokenizer = wordpiece(tokenizer)
    top = min(top, tokenizer.size)
    first, *others = encode_checked(parts, ["the text"] * len(parts), tokenizer)
    ids = [tokenizer.cls, *first]
    for part in others:
        ids += [tokenizer.mask, *part]
    ids.append(tokenizer.sep)
    positions = model.backbone.config.length  # pyright: ignore[reportAttributeAccessIssue]
    if len(ids) > positions:
        raise DataError(f"the text has {len(ids)} tokens, the model takes {positions}; give a shorter one")
    slots = np.flatnonzero(np.array(ids) == tokenizer.mask)
    tokens = np.array([ids], np.int32)
    batch = {"tokens": tokens, "segments": np.zeros_like(tokens), "mask": np.ones_like(tokens), "slots": slots[None]}
    outputs: Any = model.clone(heads={"mlm": model.heads["mlm"]}).apply({"params": params}, batch)
    logits_PV = outputs.heads["mlm"][0]
    shares, pieces = jax.device_get(jax.lax.top_k(jax.nn.softmax(logits_PV[:, : tokenizer.size]), top))
    return [
        [{"token": tokenizer.token(int(p)), "score": float(s)} for p, s in zip(row_p, row_s, strict=True)]
        for row_p, row_s in zip(pieces, shares, strict=True)
    ]
