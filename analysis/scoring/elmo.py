"""An ELMo predicts each word of a sentence from those before it, and from those behind it (Peters et al. 2018, section
3.1)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import jax
import numpy as np

from contexture.analysis.results import TextCounts, TextScore
from contexture.analysis.scoring.scorer import (
    Continuation,
    Planned,
    Prediction,
    Row,
    ScoredToken,
    TokenScorer,
    perplexity,
    predictions_of_vectors,
)
from contexture.data.bucketing import bucket, chunks
from contexture.data.errors import DataError
from contexture.data.layouts import Batch, elmo_lines
from contexture.data.text.lines import sentences, split_lines
from contexture.data.tokenizers.checked_text import check_characters
from contexture.data.tokenizers.word_level import BEGIN, END, UNK, word_tokenizer
from contexture.models.config import ElmoConfig
from contexture.models.families import build
from contexture.models.model import Model, Outputs
from contexture.models.shapes import Params

_FIELDS = {"forward": "", "backward": "_backward"}
"""Direction → the suffix of its batch fields."""


class ElmoScorer(TokenScorer):
    """Rows are the words of sentences, each read alone from a state of zeros; the sentence's end is predicted too.

    Backward predictions are in the order of reading: of the last word first, and of the sentence's beginning last.
    """

    directions = ("forward", "backward")
    convention = "log p of the words of context and continuation as one sentence, the mean of both directions"
    unit = "sentences"

    def check(self, model: Model) -> None:
        """Raises: DataError when the model has no softmax over words, or windows are asked for."""
        if "heads_bilm" not in self.params:
            raise DataError("this run has no softmax over words: its task's run left it behind; give a pretrained run")
        if self.length or self.stride:
            raise DataError(
                "length and stride have no meaning for an ELMo, which reads whole sentences; leave them out"
            )
        self.words = word_tokenizer(self.tokenizer)

    def rows(self, documents: Iterable[str], totals: TextCounts) -> Iterator[Row]:
        split: Callable[[str], list[str]] = sentences if self.split_sentences else lambda line: [line]
        number = 0
        for document, text in enumerate(documents):
            check_characters(text, f"document {document}")
            totals["documents"] += 1
            totals["bytes"] += len(text.encode())
            for sentence in (each for line in split_lines(text) for each in split(line)):
                if own := self.words.words(sentence):
                    totals["words"] += len(own)
                    totals["tokens"] += len(own) + 1  # the end, or the beginning, of the sentence is predicted too
                    yield self._row(own, number)
                    number += 1

    def _row(self, sentence: list[str], number: int) -> Row:
        # A word that the vocabulary lacks is read by its characters, and scored as <UNK>.
        labels = [self.words.ids.get(word, self.words.unk) for word in sentence]
        return Row(sentence, range(len(sentence) + 1), [*labels, self.words.end], number)

    def planned(self, window: Sequence[Row], batch: int) -> Iterator[Planned]:
        """Yields sentences with others of about their length, so that little is padding."""
        order = sorted(range(len(window)), key=lambda number: len(window[number].read))
        for numbers in chunks(order, batch):
            rows = [window[number] for number in numbers]
            fields = self.fields(rows, batch)
            length = fields["index"].shape[1]
            yield Planned(numbers, fields, [at * length + np.array(row.places) for at, row in enumerate(rows)])

    def compute(self, fields: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        return _losses(self.config, self.params, fields)

    def fields(self, rows: Sequence[Row], batch: int) -> Batch:
        """Returns a batch of lanes (`data.pretraining.bilm_lanes.FIELDS`), a sentence in each.

        `<S> a b` is read and `a b </S>` predicted; backward, `</S> b a` is read and `b a <S>` predicted.
        """
        group = [row.read for row in rows]
        # One position more than words: the first word is predicted where <S> is read, backward the last where </S> is.
        fields = elmo_lines(group, batch, bucket(1 + max(map(len, group))))
        made: Batch = {"types": fields["types"]}
        index = fields["index"]
        for name, suffix in _FIELDS.items():
            back = name == "backward"
            read, label, weight = np.zeros_like(index), np.zeros_like(index), np.zeros(index.shape, np.float32)
            for number, row in enumerate(rows):
                count, step = len(row.places), -1 if back else 1
                # Rows 1 and 2 of types are <S> and </S>.
                read[number, :count] = [2 if back else 1, *index[number, : count - 1][::step]]
                label[number, :count] = [*row.labels[:-1][::step], self.words.begin if back else self.words.end]
                weight[number, :count] = 1.0
            made |= {f"index{suffix}": read, f"next{suffix}": label, f"next_weights{suffix}": weight}
        return made

    def guess(self, fields: Batch, places: np.ndarray, top: int) -> dict[str, list[Prediction]]:
        head = self.params["heads_bilm"]
        names = ("types", *(f"index{suffix}" for suffix in _FIELDS.values()))
        hidden_BLD = _hidden(self.config, self.params, {name: fields[name] for name in names})
        # The forward half of D comes first.
        halves = jax.numpy.split(hidden_BLD.reshape(-1, hidden_BLD.shape[-1]), 2, -1)
        guessed: dict[str, list[Prediction]] = {}
        for (direction, suffix), x_TJ in zip(_FIELDS.items(), halves, strict=True):
            labels = fields[f"next{suffix}"].reshape(-1)[places].tolist()
            guessed[direction] = predictions_of_vectors(
                x_TJ[places], head["kernel"], head["bias"], labels, top, self.words
            )
        return guessed

    def tokens(self, row: Row, predictions: dict[str, list[Prediction]]) -> list[ScoredToken]:
        """Returns <S>, the words and </S>: forward all but the first have a prediction, backward all but the last."""
        forward, backward = ([None, *predictions["forward"]], [*predictions["backward"][::-1], None])
        # A word spelled like a special token counts as missing from the vocabulary.
        lacking = ["" if word in self.words.ids else UNK for word in row.read]
        tokens: list[ScoredToken] = []
        for token, scored_as, *both in zip([BEGIN, *row.read, END], ["", *lacking, ""], forward, backward, strict=True):
            own = {name: one for name, one in zip(self.directions, both, strict=True) if one is not None}
            tokens.append(ScoredToken(token, own, scored_as))
        return tokens

    def continuation(self, context: str, continuation: str, number: int) -> Continuation:
        own = self.words.words(continuation)
        if not own:
            raise DataError(f"example {number}: the continuation {continuation!r} has no word; give text")
        return Continuation([self._row([*self.words.words(context), *own], number)], len(own), 0)

    def result(self, totals: TextCounts, nats: dict[str, float], unknown: int) -> TextScore:
        tokens = totals["tokens"]
        # Each direction predicts as many tokens: the mean of both.
        loss = sum(nats.values()) / 2 / tokens
        return {
            **totals,
            "loss": loss,
            "perplexity": perplexity(loss),
            "forward_perplexity": perplexity(nats["forward"] / tokens),
            "backward_perplexity": perplexity(nats["backward"] / tokens),
            "unknown": unknown,
            "convention": (
                f"each {'sentence' if self.split_sentences else 'line'} alone, from a state of zeros; tokens are words "
                "and the end of the sentence, backward its beginning; a word that the vocabulary lacks is read by its "
                "characters and scored as <UNK>; the loss is the mean of both directions"
            ),
        }


@partial(jax.jit, static_argnums=0)
def _losses(config: ElmoConfig, params: Params, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Returns the losses of each direction, over the whole vocabulary."""
    outputs = build(config, ("bilm",)).apply({"params": params}, batch)
    assert isinstance(outputs, Outputs)
    return {name: (losses.loss_BL, losses.hit_BL) for name, losses in outputs.heads["bilm"].items()}


@partial(jax.jit, static_argnums=0)
def _hidden(config: ElmoConfig, params: Params, batch: Batch) -> jax.Array:
    """Returns the input of the softmax, BLD: the forward half of D, then the backward half."""
    outputs = build(config, ()).apply({"params": {"backbone": params["backbone"]}}, batch)
    assert isinstance(outputs, Outputs)
    return outputs.encoding.hidden_BLD
