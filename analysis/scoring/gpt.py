"""A GPT predicts each token from those before it."""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from contexture.analysis.results import TextCounts, TextScore
from contexture.analysis.scoring.scorer import (
    Continuation,
    PackedScorer,
    Prediction,
    Row,
    ScoredToken,
    check_windows,
    fitted,
    perplexity,
    predictions_of_vectors,
    split_tokens,
    windows_of,
)
from contexture.data.errors import DataError
from contexture.data.layouts import Batch, token_lines
from contexture.data.packing import Packing, packed_batch
from contexture.data.tokenizers.checked_text import encode_checked
from contexture.models.config import GptConfig
from contexture.models.families import build
from contexture.models.heads.chunked_softmax import TokenLosses
from contexture.models.model import Model, Outputs
from contexture.models.shapes import Params


class GptScorer(PackedScorer):
    """Rows are windows of a document, which begins behind the end-of-document token if the vocabulary has one."""

    directions = ("forward",)
    convention = "log p of the continuation's tokens, each from the context and those before it"

    def check(self, model: Model) -> None:
        """Raises: DataError for a model without a softmax over words."""
        if not self.config.tied and "heads_lm" not in self.params:
            raise DataError("this run has no softmax over words: its own table was left behind; give a pretrained run")
        self.length, self.stride = check_windows(self.length, self.stride, 0, self.config.length)

    def rows(self, documents: Iterable[str], totals: TextCounts) -> Iterator[Row]:
        for text in documents:
            line = totals["documents"]
            (ids,) = encode_checked([text], [f"document {line}"], self.tokenizer)
            if self.tokenizer.end is not None:
                # With a token to begin from, the document's first token is scored too.
                ids = [self.tokenizer.end, *ids]
            else:
                # The first token is not scored, so its words and bytes are not counted either.
                first = self.tokenizer.decode(ids[:1])
                text = text[len(first if self.tokenizer.lossless else first.strip()) :]
            totals["documents"] += 1
            totals["tokens"] += max(len(ids) - 1, 0)
            totals["words"] += len(text.split())
            totals["bytes"] += len(text.encode())
            # Position i predicts token i + 1; tokens that the window before has scored are context.
            for start, end, new in windows_of(len(ids) - 1, self.length, self.stride):
                places, labels = range(end - start - new, end - start), ids[end - new + 1 : end + 1]
                yield Row(ids[start:end], places, labels, line, start == 0)

    def laid_out(self, rows: Sequence[Row], packing: Packing, slots: int) -> tuple[Batch, list[np.ndarray]]:
        lines = token_lines([row.read for row in rows], 0, self.tokenizer.pad, self.length, packing.width)
        sequences = {"tokens": lines["tokens"], "next": np.zeros_like(lines["tokens"])}
        for number, row in enumerate(rows):
            sequences["next"][number, list(row.places)] = row.labels
        fields = packed_batch(sequences, packing, self.tokenizer.pad)
        places = [begin + np.array(row.places, np.int64) for begin, row in zip(packing.begins, rows, strict=True)]
        return {**fields, "mask": (fields["packs"] > 0).astype(np.int32)}, places

    def compute(self, fields: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        scored = _next_tokens(self.config, self.params, fields)
        return {"forward": (scored.loss_BL, scored.hit_BL)}

    def guess(self, fields: Batch, places: np.ndarray, top: int) -> dict[str, list[Prediction]]:
        hidden_XYD, table_VD = _hidden(self.config, self.params, fields)
        x_PD, labels = hidden_XYD.reshape(-1, hidden_XYD.shape[-1])[places], fields["next"].reshape(-1)[places]
        return {"forward": predictions_of_vectors(x_PD, table_VD, None, labels.tolist(), top, self.tokenizer)}

    def tokens(self, row: Row, predictions: dict[str, list[Prediction]]) -> list[ScoredToken]:
        """Returns a row's tokens; without an end-of-document token also a document's first, which nothing predicts."""
        unpredicted = self.tokenizer.end is None and row.first
        first = [ScoredToken(self.tokenizer.token(row.read[0]))] if unpredicted else []
        return first + super().tokens(row, predictions)

    def continuation(self, context: str, continuation: str, number: int) -> Continuation:
        start = [] if self.tokenizer.end is None else [self.tokenizer.end]
        before, own = split_tokens(context, continuation, number, self.tokenizer)
        if not start and not before:
            raise DataError(f"example {number}: the context is empty, and this vocabulary has no token to begin with")
        # The last token is predicted and never read: the model takes one more, behind one token at least.
        kept, lost = fitted(start + before, own, self.config.length + 1, number, least=1)
        read = [*kept, *own[:-1]]
        return Continuation([Row(read, range(len(kept) - 1, len(read)), own, number)], len(own), lost)

    def result(self, totals: TextCounts, nats: dict[str, float], unknown: int) -> TextScore:
        loss = nats["forward"] / totals["tokens"]
        begins = self.tokenizer.end is not None
        first = "scored behind the token that ends documents" if begins else "neither scored nor counted"
        result: TextScore = {
            **totals,
            "loss": loss,
            "perplexity": perplexity(loss),
            "bits_per_byte": nats["forward"] / math.log(2) / max(totals["bytes"], 1),
            "length": self.length,
            "stride": self.stride,
            "convention": (
                f"each document alone, its first token {first}; windows of {self.length} tokens, {self.stride} new in "
                "each; words are what stands between white space; bytes are UTF-8"
            ),
        }
        # A text without words has no figure by word.
        if totals["words"]:
            result["word_perplexity"] = perplexity(nats["forward"] / totals["words"])
        return result


@partial(jax.jit, static_argnums=0)
def _next_tokens(config: GptConfig, params: Params, batch: Batch) -> TokenLosses:
    # Built anew: a fine-tuned GPT's own heads are not needed, and `lm` needs no parameters where embeddings are tied.
    weights_BL = jnp.asarray(batch["mask"], jnp.float32)
    outputs = build(config, ("lm",)).apply({"params": params}, {**batch, "next_weights": weights_BL})
    assert isinstance(outputs, Outputs)
    return outputs.heads["lm"]


@partial(jax.jit, static_argnums=0)
def _hidden(config: GptConfig, params: Params, batch: Batch) -> tuple[jax.Array, Any]:
    """Returns (the input of the softmax, BLD; its table, VD)."""
    outputs = build(config, ()).apply({"params": {"backbone": params["backbone"]}}, batch)
    assert isinstance(outputs, Outputs)
    table: Any = outputs.encoding.table_VD
    return outputs.encoding.hidden_BLD, table if config.tied else params["heads_lm"]["table"]  # pyright: ignore[reportIndexIssue]
