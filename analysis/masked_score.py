"""Scores text by a BERT: each token masked alone, and predicted from all others (Salazar et al. 2020, Masked Language
Model Scoring, section 2)."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain

import jax
import jax.numpy as jnp
import numpy as np

from contexture.analysis.results import TextCounts
from contexture.data.cancel import CancelToken
from contexture.data.errors import DataError
from contexture.data.layouts import Batch, token_lines
from contexture.data.tasks.encode_examples import chunks
from contexture.data.tasks.word_alignment import encode_checked
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.wordpiece import WordPiece, wordpiece
from contexture.models.config import BertConfig, ElmoConfig, GptConfig, ModelConfig, VectorsConfig
from contexture.models.model import Model, Outputs, build
from contexture.models.shapes import Params


def pseudo_nats(
    model: Model,
    params: Params,
    tokenizer: Tokenizer,
    documents: Iterable[str],
    totals: TextCounts,
    *,
    length: int,
    stride: int,
    batch: int,
    cancel: CancelToken,
) -> tuple[float, int]:
    """Returns (-Σ log p(token | all others of its window) over the tokens of documents, how many of them are [UNK]).

    Each document is read alone; what is read is counted in totals.

    length  tokens of a window, [CLS] and [SEP] among them, which are never masked
    stride  tokens from one window to the next, at most length - 2; those that the window before has scored are context
    batch   windows at a time, in each of which one token is masked

    Raises: DataError for a model without a masked-LM head.
    """
    config = model.config
    assert isinstance(config, BertConfig)
    check_masked_lm(model)
    pieces = wordpiece(tokenizer)
    masked = chain.from_iterable(
        mask_each(window, new, pieces) for window, new in masked_windows(documents, pieces, length - 2, stride, totals)
    )
    nats, unknown, before = 0.0, 0, np.zeros(0)
    for group in chunks(masked, batch):
        cancel.check()
        fields = token_lines([ids for ids, _, _ in group], batch, pieces.pad, config.length)
        places, labels = np.zeros((batch, 1), np.int32), np.zeros((batch, 1), np.int32)
        places[: len(group), 0] = [place for _, place, _ in group]
        labels[: len(group), 0] = [label for _, _, label in group]
        unknown += int((labels[: len(group), 0] == pieces.unk).sum())
        losses, _ = masked_losses(config, pieces, params, {**fields, "slots": places, "labels": labels})
        losses = losses[: len(group)]
        # The device computes this batch while the host takes the sum of the one before.
        nats, before = nats + float(np.asarray(before, np.float64).sum()), losses
    return nats + float(np.asarray(before, np.float64).sum()), unknown


def check_predicts(config: ModelConfig) -> BertConfig | GptConfig | ElmoConfig:
    """Returns the configuration of a model that predicts words. Raises: DataError for static vectors."""
    if isinstance(config, VectorsConfig):
        raise DataError(
            "static vectors predict no word, so no text has a score; give a run of an ELMo, a GPT or a BERT"
        )
    return config


def check_masked_lm(model: Model) -> None:
    """Raises: DataError for a model without a masked-LM head."""
    if "mlm" not in model.heads:
        raise DataError("this run was trained for a task and has no head for masked tokens; give a pretrained run")


def masked_losses(config: BertConfig, pieces: WordPiece, params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Returns (-log p of the label at each row's slot, f32 B; whether it is the most probable token there, B)."""
    # Rows of the table beyond the vocabulary (it may be padded) are no tokens.
    return _losses(config, min(pieces.size, config.vocab), params, batch)


@partial(jax.jit, static_argnums=(0, 1))
def _losses(config: BertConfig, vocabulary: int, params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
    outputs = build(config, ("mlm",)).apply({"params": params}, batch)
    assert isinstance(outputs, Outputs)
    logits_BV = outputs.heads["mlm"][:, 0, :vocabulary]
    own_B1 = jnp.take_along_axis(logits_BV, batch["labels"], 1)
    # A tie is no hit, as in `TokenLosses`.
    others_BV = jnp.where(jnp.arange(vocabulary)[None] == batch["labels"], -jnp.inf, logits_BV)
    losses_B = -jnp.take_along_axis(jax.nn.log_softmax(logits_BV), batch["labels"], 1)[:, 0]
    return losses_B, (own_B1 > others_BV.max(1, keepdims=True))[:, 0]


def masked_windows(
    documents: Iterable[str], pieces: WordPiece, size: int, stride: int, totals: TextCounts
) -> Iterator[tuple[list[int], int]]:
    """Yields (at most `size` ids, how many of them, at the end, no window before has scored); counts in totals."""
    for text in documents:
        (ids,) = encode_checked([text], [f"document {totals['documents']}"], pieces)
        totals["documents"] += 1
        totals["tokens"] += len(ids)
        totals["words"] += len(text.split())
        totals["bytes"] += len(text.encode())
        start = scored = 0
        while scored < len(ids):
            window = ids[start : start + size]
            yield window, start + len(window) - scored
            scored, start = start + len(window), start + stride


def mask_each(window: list[int], new: int, pieces: WordPiece) -> Iterator[tuple[list[int], int, int]]:
    """Yields (the ids with one of the last `new` tokens masked, its place, its id) for each of these tokens."""
    ids = [pieces.cls, *window, pieces.sep]
    for place in range(1 + len(window) - new, 1 + len(window)):
        yield [*ids[:place], pieces.mask, *ids[place + 1 :]], place, ids[place]
