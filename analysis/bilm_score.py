"""Scores text by an ELMo: each word from those before it and from those behind it (Peters et al. 2018, section 3.1)."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import jax
import numpy as np

from contexture.analysis.results import TextCounts
from contexture.data.cancel import CancelToken
from contexture.data.errors import DataError
from contexture.data.layouts import Batch, elmo_lines, power_of_two
from contexture.data.tasks.encode_examples import chunks
from contexture.data.tasks.word_alignment import check_characters
from contexture.data.text.lines import split_lines
from contexture.data.text.sentences import sentences
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.word_level import Words, word_tokenizer
from contexture.models.config import ElmoConfig
from contexture.models.model import Model, Outputs, build
from contexture.models.shapes import Params

_SORTED = 64
"""Batches whose sentences are sorted by length."""
DIRECTIONS = {"forward": "", "backward": "_backward"}
"""A direction → what its batch fields end in."""


def direction_nats(
    model: Model,
    params: Params,
    tokenizer: Tokenizer,
    documents: Iterable[str],
    totals: TextCounts,
    *,
    split_sentences: bool,
    batch: int,
    cancel: CancelToken,
) -> tuple[dict[str, float], int]:
    """Returns ({direction: -Σ log p over words and the end of each sentence}, how many words the vocabulary lacks).

    Each sentence is read alone, from a state of zeros; what is read is counted in totals.

    split_sentences  whether lines are split into sentences, as in pretraining; else each line is one
    batch            sentences at a time

    Raises: DataError for a model without a softmax over words.
    """
    config = model.config
    assert isinstance(config, ElmoConfig)
    if "heads_bilm" not in params:
        raise DataError("this run has no softmax over words: its task's run left it behind; give a pretrained run")
    words = word_tokenizer(tokenizer)
    split: Callable[[str], list[str]] = sentences if split_sentences else lambda line: [line]
    nats, unknown = dict.fromkeys(DIRECTIONS, 0.0), 0
    for some in chunks(read_sentences(documents, words, split, totals), batch * _SORTED):
        unknown += sum(word not in words.ids for sentence in some for word in sentence)
        # Only sums are wanted: neighbours of one length make batches without padding.
        for group in chunks(sorted(some, key=len), batch):
            cancel.check()
            losses = jax.device_get(_losses(config, params, lanes(group, words, batch)))
            nats = {name: nats[name] + float(losses[name]) for name in nats}
    return nats, unknown


def read_sentences(
    documents: Iterable[str], words: Words, split: Callable[[str], list[str]], totals: TextCounts
) -> Iterator[list[str]]:
    """Yields the words of each sentence that has one; counts in totals."""
    for number, text in enumerate(documents):
        check_characters(text, f"document {number}")
        totals["documents"] += 1
        totals["bytes"] += len(text.encode())
        for sentence in (each for line in split_lines(text) for each in split(line)):
            if own := words.words(sentence):
                totals["words"] += len(own)
                totals["tokens"] += len(own) + 1  # the end, or the beginning, of the sentence is predicted too
                yield own


def lanes(group: list[list[str]], words: Words, batch: int) -> Batch:
    """Sentences of words → a batch of lanes (`data.pretraining.bilm_lanes.FIELDS`), a sentence in each: `<S> a b` is
    read and `a b </S>` predicted, backward `</S> b a` and `b a <S>`."""
    # A place more than words: where the first one is predicted, a mark is read.
    fields = elmo_lines(group, batch, max(power_of_two(1 + max(map(len, group))), 8))
    made: Batch = {"types": fields["types"]}
    index = fields["index"]
    for name, suffix in DIRECTIONS.items():
        back = name == "backward"
        read, label, weight = np.zeros_like(index), np.zeros_like(index), np.zeros(index.shape, np.float32)
        for row, sentence in enumerate(group):
            count, step = len(sentence) + 1, -1 if back else 1
            # Rows 1 and 2 of types are <S> and </S>.
            read[row, :count] = [2 if back else 1, *index[row, : len(sentence)][::step]]
            ids = [words.ids.get(word, words.unk) for word in sentence[::step]]
            label[row, :count] = [*ids, words.begin if back else words.end]
            weight[row, :count] = 1.0
        made |= {f"index{suffix}": read, f"next{suffix}": label, f"next_weights{suffix}": weight}
    return made


@partial(jax.jit, static_argnums=0)
def _losses(config: ElmoConfig, params: Params, batch: Batch) -> dict[str, jax.Array]:
    """Returns the summed losses of each direction, over the whole vocabulary."""
    outputs = build(config, ("bilm",)).apply({"params": params}, batch)
    assert isinstance(outputs, Outputs)
    return {name: losses.total for name, losses in outputs.heads["bilm"].items()}
