"""How well a GPT predicts a text: perplexity per token and per word, bits per byte."""

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.tasks.encode_examples import check_batch, chunks
from contexture.data.tasks.word_alignment import encode_checked
from contexture.data.tokenizers.base import Tokenizer
from contexture.models.config import GptConfig
from contexture.models.model import Model, build


def score(
    model: Model,
    params: Any,
    tokenizer: Tokenizer,
    documents: Iterable[str],
    *,
    length: int = 0,
    stride: int = 0,
    batch: int = 8,
    cancel: CancelToken = NEVER,
) -> dict[str, Any]:
    """{"documents", "tokens", "words", "bytes", "loss", "perplexity", "word_perplexity", "bits_per_byte", …}.

    Each document is read alone, in windows of `length` tokens (0: what the model takes), each `stride` tokens after
    the one before (0: length, so that they do not overlap); of a window, what the one before has scored is context
    alone. A document begins behind the token that ends documents, where the vocabulary has one, and its first token is
    scored too; else it is not. Perplexity is exp(loss / tokens); per word the same total over the words between white
    space, per byte in bits over the text's UTF-8. `convention` says so again.

    Raises: DataError where the model is no GPT, length or stride do not fit, or there is nothing to score.
    """
    config = getattr(model.backbone, "config", None)
    if not isinstance(config, GptConfig):
        raise DataError("only a GPT is scored by the next token; this run is of another family")
    if not config.tied and "heads_lm" not in params:
        raise DataError("this run has no softmax over words: its own table was left behind; give a pretrained run")
    length = length or config.length
    stride = stride or length
    if not 2 <= length <= config.length:
        raise DataError(f"length={length} is not between 2 and the {config.length} tokens that the model takes")
    check_batch(batch, "windows")
    if not 1 <= stride <= length:
        raise DataError(f"stride={stride} is not between 1 and length={length}")
    losses = jax.jit(partial(_losses, build(config, ("lm",))))
    totals = {"documents": 0, "tokens": 0, "words": 0, "bytes": 0}
    nats = 0.0
    for group in chunks(_windows(documents, tokenizer, length, stride, totals), batch):
        cancel.check()
        fields = {name: np.zeros((batch, length), np.int32) for name in ("tokens", "mask", "next")}
        weights_BL = np.zeros((batch, length), np.float32)
        for row, (ids, new) in enumerate(group):
            size = len(ids) - 1
            fields["tokens"][row, :size], fields["next"][row, :size] = ids[:-1], ids[1:]
            fields["mask"][row, :size] = 1
            weights_BL[row, size - new : size] = 1.0
        loss_BL = np.asarray(losses(params, {**fields, "next_weights": weights_BL}), np.float64)
        nats += float((loss_BL * weights_BL).sum())
    if not totals["tokens"]:
        raise DataError("there is no token to score in the text; give text")
    first = "scored behind the token that ends documents" if tokenizer.end is not None else "neither scored nor counted"
    told = (
        f"each document alone, its first token {first}; windows of {length} tokens, {stride} new in each; words are "
        "what stands between white space; bytes are UTF-8"
    )
    loss = nats / totals["tokens"]
    return {
        **totals,
        "loss": loss,
        "perplexity": _exp(loss),
        "word_perplexity": _exp(nats / max(totals["words"], 1)),
        "bits_per_byte": nats / math.log(2) / max(totals["bytes"], 1),
        "length": length,
        "stride": stride,
        "convention": told,
    }


def _losses(model: Model, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
    outputs: Any = model.apply({"params": params}, batch)
    return outputs.heads["lm"].loss_BL


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf


def _windows(
    documents: Iterable[str], tokenizer: Tokenizer, length: int, stride: int, totals: dict[str, int]
) -> Iterator[tuple[list[int], int]]:
    """Windows of at most length + 1 ids, and how many of them, at the end, no window before has scored."""
    for text in documents:
        (ids,) = encode_checked([text], [f"document {totals['documents']}"], tokenizer)
        row = ids
        if tokenizer.end is not None:
            row = [tokenizer.end, *ids]
        else:  # what is not scored is not counted
            first = tokenizer.decode(ids[:1])
            text = text[len(first if tokenizer.lossless else first.strip()) :]
        totals["documents"] += 1
        totals["tokens"] += max(len(row) - 1, 0)
        totals["words"] += len(text.split())
        totals["bytes"] += len(text.encode())
        start = scored = 0
        while scored < len(row) - 1:
            ids = row[start : start + length + 1]
            yield ids, start + len(ids) - 1 - scored
            scored = start + len(ids) - 1
            start += stride
