"""A BERT predicts each token, masked alone, from all others of its window (Salazar et al. 2020, Masked Language Model
Scoring, section 2)."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from contexture.analysis.results import TextCounts, TextScore
from contexture.analysis.scoring.scorer import (
    Continuation,
    Guesses,
    PackedScorer,
    Prediction,
    Row,
    check_windows,
    fitted,
    guesses,
    perplexity,
    predictions_of,
    split_tokens,
    windows_of,
)
from contexture.data.errors import DataError
from contexture.data.layouts import Batch, token_lines
from contexture.data.packing import Packing, in_rows
from contexture.data.tokenizers.checked_text import encode_checked
from contexture.data.tokenizers.wordpiece import wordpiece
from contexture.models.config import BertConfig
from contexture.models.families import build
from contexture.models.heads.chunked_softmax import TIE
from contexture.models.model import Model, Outputs
from contexture.models.shapes import Params


class BertScorer(PackedScorer):
    """Rows are copies of a window between [CLS] and [SEP]; each copy has another token masked."""

    directions = ("masked",)
    convention = "pseudo-log-likelihood of the continuation's tokens: each masked alone, predicted from all others"

    def check(self, model: Model) -> None:
        """Raises: DataError for a model without a masked-LM head."""
        if "mlm" not in model.heads:
            raise DataError("this run was trained for a task and has no head for masked tokens; give a pretrained run")
        self.pieces = wordpiece(self.tokenizer)
        self.length, self.stride = check_windows(self.length, self.stride, 2, self.config.length)
        # Rows of the table beyond the vocabulary (it may be padded) are no tokens.
        self.vocabulary = min(self.pieces.size, self.config.vocab)

    def rows(self, documents: Iterable[str], totals: TextCounts) -> Iterator[Row]:
        for text in documents:
            line = totals["documents"]
            (ids,) = encode_checked([text], [f"document {line}"], self.pieces)
            totals["documents"] += 1
            totals["tokens"] += len(ids)
            totals["words"] += len(text.split())
            totals["bytes"] += len(text.encode())
            for start, end, new in windows_of(len(ids), self.length - 2, self.stride):
                yield from self._masked(ids[start:end], new, line)

    def _masked(self, window: list[int], new: int, line: int) -> Iterator[Row]:
        """Yields a row for each of the last `new` tokens of a window."""
        ids = [self.pieces.cls, *window, self.pieces.sep]
        for place in range(1 + len(window) - new, 1 + len(window)):
            yield Row([*ids[:place], self.pieces.mask, *ids[place + 1 :]], (place,), (ids[place],), line)

    def laid_out(self, rows: Sequence[Row], packing: Packing, slots: int) -> tuple[Batch, list[np.ndarray]]:
        """Returns a slot for each row: the head predicts at the masked token alone."""
        fields = token_lines([row.read for row in rows], 0, self.pieces.pad, self.config.length, packing.width)
        # Room that no row takes predicts at the first place, and nobody reads it.
        slots_B1, labels_B1 = np.zeros((slots, 1), np.int32), np.zeros((slots, 1), np.int32)
        slots_B1[: len(rows)] = [row.places for row in rows]
        labels_B1[: len(rows)] = [row.labels for row in rows]
        batch = in_rows(fields, packing, slots, self.pieces.pad)
        return {**batch, "slots": slots_B1, "labels": labels_B1}, list(np.arange(len(rows))[:, None])

    def compute(self, fields: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        return {"masked": _losses(self.config, self.vocabulary, self.params, fields)}

    def guess(self, fields: Batch, places: np.ndarray, top: int) -> dict[str, list[Prediction]]:
        guessed = _guesses(self.config, self.vocabulary, top, self.params, fields)
        return {"masked": predictions_of(guessed, len(places), self.pieces.token)}

    def continuation(self, context: str, continuation: str, number: int) -> Continuation:
        before, own = split_tokens(context, continuation, number, self.pieces)
        # [CLS] and [SEP] take two positions.
        kept, lost = fitted(before, own, self.config.length - 2, number)
        return Continuation(list(self._masked([*kept, *own], len(own), number)), len(own), lost)

    def result(self, totals: TextCounts, nats: dict[str, float], unknown: int) -> TextScore:
        loss = nats["masked"] / totals["tokens"]
        result: TextScore = {
            **totals,
            "loss": loss,
            "pseudo_perplexity": perplexity(loss),
            "unknown": unknown,
            "length": self.length,
            "stride": self.stride,
            "convention": (
                "each document alone; each token is masked alone, and predicted from all others of its window; [CLS] "
                "and [SEP] stand around it and are not scored; what the vocabulary lacks is scored as [UNK]; "
                f"windows of {self.length} tokens, {self.stride} new in each; words are what stands between white space"
            ),
        }
        # A text without words has no figure by word.
        if totals["words"]:
            result["word_pseudo_perplexity"] = perplexity(nats["masked"] / totals["words"])
        return result


@partial(jax.jit, static_argnums=(0, 1))
def _losses(config: BertConfig, vocabulary: int, params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
    logits_BV, labels_B1 = _logits(config, vocabulary, params, batch), jnp.asarray(batch["labels"])
    own_B1 = jnp.take_along_axis(logits_BV, labels_B1, 1)
    # A tie is no hit, as in `TokenLosses`.
    others_BV = jnp.where(jnp.arange(vocabulary)[None] == labels_B1, -jnp.inf, logits_BV)
    losses_B1 = -jnp.take_along_axis(jax.nn.log_softmax(logits_BV), labels_B1, 1)
    return losses_B1, own_B1 - others_BV.max(1, keepdims=True) > TIE


@partial(jax.jit, static_argnums=(0, 1, 2))
def _guesses(config: BertConfig, vocabulary: int, top: int, params: Params, batch: Batch) -> Guesses:
    return guesses(_logits(config, vocabulary, params, batch), jnp.asarray(batch["labels"])[:, 0], vocabulary, top)


def _logits(config: BertConfig, vocabulary: int, params: Params, batch: Batch) -> jax.Array:
    outputs = build(config, ("mlm",)).apply({"params": params}, batch)
    assert isinstance(outputs, Outputs)
    return outputs.heads["mlm"][:, 0, :vocabulary]
