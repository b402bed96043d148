"""The training instances of BERT's original script, create_pretraining_data.py: the same ones for the same text,
vocabulary and seed, in the same order.

One generator, `random.Random(seed)`, is asked for everything, so that a draw more or fewer changes all that follows:
the order of the documents; for each round (dupe_factor) and document its pairs, how each is cut to length and masked;
at the end the order of all instances. `sentence_pairs` and `masking` do the same for a run's own batches, with numbers
that depend on no other document.

Differs: a lone carriage return ends a line, and a line of more than half a megabyte is cut in two (`text.lines`).
"""

import logging
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from contexture.data.errors import DataError
from contexture.data.plain_files import Seen
from contexture.data.text.sources import Source, sentence_batches
from contexture.data.tokenizers.unknown_tokens import UnknownTokens
from contexture.data.tokenizers.wordpiece import WordPiece

logger = logging.getLogger(__name__)

Document: TypeAlias = list[Sequence[int]]
"""Sentences as their ids."""
_TRIES = 10
_MEND = (
    "give a vocabulary of this text, or let `contexture prepare` learn one",
    "write with a cased vocabulary, learned with --no-lowercase",
)


@dataclass(frozen=True, kw_only=True)
class InstanceOptions:
    """The script's flags."""

    length: int
    """Tokens of a sequence, special ones counted (max_seq_length)."""
    predictions: int
    """The most masked tokens of a sequence (max_predictions_per_seq)."""
    masked_fraction: float
    """masked_lm_prob."""
    short_fraction: float
    """short_seq_prob."""
    dupe_factor: int
    """Rounds over the documents, each with other pairs and masks."""
    whole_word_mask: bool
    """Mask all pieces of a word or none (do_whole_word_mask)."""


class Instance(NamedTuple):
    """A masked sequence: `[CLS] a [SEP] b [SEP]`, without padding. Slots ascend; labels are the ids that were there."""

    tokens: list[int]
    segments: list[int]
    slots: list[int]
    labels: list[int]
    is_random: bool


def read_documents(sources: Sequence[Source], tokenizer: WordPiece, seen: Seen = len) -> list[Document]:
    """Returns the tokenised documents of text: a sentence in each line, an empty line between documents.

    As in the original, the end of a file ends no document: the next file's first line continues it. Sentences without
    tokens and documents without sentences are dropped.

    Warns where many tokens are unknown. Raises: DataError for text that cannot be read, or that holds no sentence.
    """
    # The last document is open: lines are added to it until one is empty.
    documents: list[Document] = [[]]
    # u16 is a quarter of a list's pointers, and all documents are in memory at once.
    kind = "H" if tokenizer.size <= 1 << 16 else "I"
    unknown = UnknownTokens(tokenizer)
    for source in sources:
        for batch in sentence_batches(source, False, seen):
            # None is a border between documents, and has no ids.
            texts = [line for line in batch if line is not None]
            sentences = tokenizer.encode_batch(texts)
            unknown.add(texts, sentences)
            encoded = iter(sentences)
            for line in batch:
                if line is None:
                    documents.append([])
                # A line of control characters alone has no tokens; it is no border either.
                elif ids := next(encoded):
                    documents[-1].append(array(kind, ids))
    documents = [document for document in documents if document]
    if not documents:
        raise DataError(f"{', '.join(map(str, sources))}: no sentence in the text; give text in UTF-8, a line each")
    for line in unknown.warnings("the text", *_MEND):
        logger.warning(line)
    return documents


def create_instances(
    documents: list[Document],
    tokenizer: WordPiece,
    options: InstanceOptions,
    generator: random.Random,
    check: Callable[[], object],
) -> Iterator[Instance]:
    """Yields the instances of all rounds, before the last shuffle; `documents` are shuffled in place.

    Args:
        documents: as `read_documents` returns them.
        tokenizer: the vocabulary.
        options: the script's flags.
        generator: `random.Random(seed)`. After the last instance it is in the state that their shuffle begins with.
        check: called before each document; may raise to stop the work.
    """
    masker = _Masker(tokenizer, options, generator)
    # Once, and not for each round.
    generator.shuffle(documents)
    for _ in range(options.dupe_factor):
        for number in range(len(documents)):
            # Between documents, which are short: a signal is answered at once.
            check()
            for a, b, is_random in _pairs(documents, number, options, generator):
                # Three places are for [CLS] and two [SEP].
                _truncate(a, b, options.length - 3, generator)
                tokens = [tokenizer.cls, *a, tokenizer.sep, *b, tokenizer.sep]
                segments = [0] * (len(a) + 2) + [1] * (len(b) + 1)
                yield Instance(*masker.masked(tokens, segments), is_random)


def _pairs(
    documents: list[Document], number: int, options: InstanceOptions, generator: random.Random
) -> Iterator[tuple[list[int], list[int], bool]]:
    """Yields a document's pairs, not yet cut to length: (first span, second span, whether the second is random).

    Lazily: the original cuts and masks each pair before it draws the next one.
    """
    document, limit = documents[number], options.length - 3
    # target_seq_length: mostly all that fits.
    target = generator.randint(2, limit) if generator.random() < options.short_fraction else limit
    # Sentences first … at-1 are the chunk, with `held` tokens.
    first = at = held = 0
    while at < len(document):
        # current_chunk: sentences first … at, until they have `target` tokens or the document ends.
        held += len(document[at])
        at += 1
        if at < len(document) and held < target:
            continue
        # The chunk is complete.
        count = at - first
        # a_end: how many sentences are the first span; a lone one is it without a draw.
        middle = first + (generator.randint(1, count - 1) if count > 1 else 1)
        a = _joined(document[first:middle])
        # A lone sentence has nothing that follows it: its second span is random without a draw.
        is_random = count == 1 or generator.random() < 0.5
        if is_random:
            # As many tokens as the first span leaves of the target, though both may be cut later.
            b = _random_span(documents, number, target - len(a), generator)
            # Sentences that were not used begin the next chunk.
            at = middle
        else:
            b = _joined(document[middle:at])
        yield a, b, is_random
        first, held = at, 0


def _random_span(documents: list[Document], number: int, target: int, generator: random.Random) -> list[int]:
    """Returns `target` tokens or more of another document, in whole sentences from a random one on."""
    other = number
    for _ in range(_TRIES):
        other = generator.randint(0, len(documents) - 1)
        # The tenth is taken, whatever it is.
        if other != number:
            break
    document, span = documents[other], list[int]()
    for sentence in document[generator.randint(0, len(document) - 1) :]:
        span.extend(sentence)
        if len(span) >= target:
            break
    return span


def _joined(sentences: Sequence[Sequence[int]]) -> list[int]:
    return [token for sentence in sentences for token in sentence]


def _truncate(a: list[int], b: list[int], limit: int, generator: random.Random) -> None:
    """Takes single tokens from the longer span, b where both are as long, until both fit; from either end."""
    # A coin for each token that goes, as in the original.
    while len(a) + len(b) > limit:
        longer = a if len(a) > len(b) else b
        if generator.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


class _Masker:
    """create_masked_lm_predictions."""

    def __init__(self, tokenizer: WordPiece, options: InstanceOptions, generator: random.Random) -> None:
        self._tokenizer, self._options, self._generator = tokenizer, options, generator
        # Pieces that continue a word; without whole-word masking every piece is a word of its own.
        self._continues = {
            number
            for number, piece in enumerate(tokenizer.vocabulary)
            if options.whole_word_mask and piece.startswith("##")
        }

    def masked(self, tokens: list[int], segments: list[int]) -> tuple[list[int], list[int], list[int], list[int]]:
        """Returns the tokens with some of them masked, the segments, the slots and what was there."""
        options, generator = self._options, self._generator
        words = self._words(tokens)
        generator.shuffle(words)
        # Python 3 rounds halves to even. The length counts [CLS] and [SEP].
        count = min(options.predictions, max(1, round(len(tokens) * options.masked_fraction)))
        replaced: dict[int, int] = {}
        for word in words:
            if len(replaced) >= count:
                break
            # A word that would be too many is passed over; a shorter one may follow.
            if len(replaced) + len(word) > count:
                continue
            for place in word:
                replaced[place] = self._replacement(tokens[place])
        # Drawn in the order of the shuffled words, and written in the order of the text.
        slots = sorted(replaced)
        # Before the tokens are replaced.
        labels = [tokens[place] for place in slots]
        for place in slots:
            tokens[place] = replaced[place]
        return tokens, segments, slots, labels

    def _words(self, tokens: list[int]) -> list[list[int]]:
        """Returns the places of each word's pieces, special tokens left out.

        As in the original, a piece that continues a word is joined to the word before it, also where that word lies
        before a [SEP] and the beginning of its own was cut off.
        """
        words: list[list[int]] = []
        for place, token in enumerate(tokens):
            if token in (self._tokenizer.cls, self._tokenizer.sep):
                continue
            if words and token in self._continues:
                words[-1].append(place)
            else:
                words.append([place])
        return words

    def _replacement(self, token: int) -> int:
        # 80 % [MASK]; of the rest one half stays, and one becomes any piece of the vocabulary, special ones too.
        if self._generator.random() < 0.8:
            return self._tokenizer.mask
        if self._generator.random() < 0.5:
            return token
        return self._generator.randint(0, self._tokenizer.size - 1)
