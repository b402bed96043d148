"""Words outside a vocabulary, numbered after it while text is read, so that an ELMo reads them by their characters.

The original stores text and looks characters up while it trains. Here text is stored as numbers, so every word needs
one, also those that the softmax does not know.
"""

import json
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

from contexture.data.binary_files import I64
from contexture.data.tokenizers.elmo_char_ids import are_cut
from contexture.data.tokenizers.word_level import WordNumbers, Words, char_id_table


class _AutoNumber(defaultdict[str, int]):
    """Numbers of words. A word without one gets the next when it is looked up: no Python code is run for it."""

    def __init__(self, ids: Mapping[str, int], first: int) -> None:
        super().__init__(count(first).__next__, ids)
        self._known = len(ids)

    @property
    def new_count(self) -> int:
        """How many words were numbered."""
        return len(self) - self._known

    def new(self, begin: int = 0) -> list[str]:
        """Returns the words that were numbered, in that order, from one on."""
        # A dictionary keeps the order in which its keys came.
        return [*islice(self, self._known + begin, None)]


class CorpusVocabulary:
    """Words → ids for lanes: words that the vocabulary lacks are numbered after it, V, V+1, …, by first appearance, so
    that they can be read by their characters. Memory grows with the number of distinct words."""

    def __init__(self, tokenizer: Words) -> None:
        self._tokenizer = tokenizer
        # Ids go on behind the vocabulary's V, so that an id alone tells whether the softmax knows its word.
        self._ids = _AutoNumber(tokenizer.ids, tokenizer.size)
        # Ids of words with more bytes than are read, and how many of `new` were looked at for that.
        self._long = np.flatnonzero(are_cut(tokenizer.vocabulary))
        self._looked_at = 0
        self._seen: set[int] = set()
        self._times = 0

    def encode(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], I64]:
        """Sentences → the ids of all, joined, u32 [T], and how many each has, i64 [n]; a sentence with a word is
        followed by the end."""
        # __getitem__ numbers a word that it has not seen, so map needs no Python code for each word. And numbers go
        # into an array at once: a list of them would take twice the memory and be read a second time.
        number, words, end = self._ids.__getitem__, self._tokenizer.words, self._tokenizer.end
        ids, ends, before = array("I"), array("q"), 0
        for text in texts:
            ids.extend(map(number, words(text)))
            # A sentence without words has no end, and is dropped by the caller.
            if len(ids) > before:
                ids.append(end)
                before = len(ids)
            ends.append(before)
        return np.array(ids, np.uint32), np.diff(np.array(ends, np.int64), prepend=0)

    def number(self, words: Iterable[str]) -> list[int]:
        """Words → their numbers; no word is split."""
        return [*map(self._ids.__getitem__, words)]

    def count(self, ids: NDArray[np.integer]) -> None:
        """Counts the ids whose words are cut."""
        # Only words that came since the last call are looked at.
        new = self._ids.new(self._looked_at)
        cut = np.flatnonzero(are_cut(new)) + self._tokenizer.size + self._looked_at
        self._long = np.append(self._long, cut)
        self._looked_at += len(new)
        # Most text has no such word, and is then not searched.
        if len(self._long):
            long = ids[np.isin(ids, self._long)]
            self._seen.update(long.tolist())
            self._times += len(long)

    def known(self, ids: NDArray[np.integer]) -> NDArray[np.integer]:
        """Returns the ids, with `<UNK>` for those that the vocabulary lacks."""
        # As in bilm-tf, where a target that the vocabulary lacks is <UNK>, while its characters are read all the same.
        return np.where(ids < self._tokenizer.size, ids, self._tokenizer.unk)

    def unknown(self) -> bytes:
        """Returns the words that the vocabulary lacks, in the order of their numbers, a word a line."""
        # A line each: no word of running text holds a line end.
        return "\n".join([*self._ids.new(), ""]).encode()

    def facts(self) -> dict[str, dict[str, int]]:
        """Returns how many words the vocabulary lacks, and how many words are cut and how many times."""
        # The size of their file is checked when shards are opened.
        lacking = {"words": self._ids.new_count, "bytes": len(self.unknown())}
        return {"unknown": lacking, "cut": {"words": len(self._seen), "times": self._times}}


class OpenVocabulary(WordNumbers):
    """The words of a task, which an ELMo reads by their characters and never predicts: every word gets a number, by
    first appearance, and none is unknown. Memory grows with the number of distinct words."""

    lossless = False
    specials: Mapping[str, int] = {}

    def __init__(self, tokenizer: Words, known: Iterable[str] = ()) -> None:
        self.fingerprint, self.kind, self.split = tokenizer.fingerprint, tokenizer.kind, tokenizer.split
        self.words = tokenizer.words
        # From 0: a word's number is its row in `char_ids`.
        self._ids = _AutoNumber({}, 0)
        self.number(known)

    @property
    def size(self) -> int:
        """Words so far."""
        return self._ids.new_count

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts → the numbers of their words."""
        return [self.number(self.words(text)) for text in texts]

    def number(self, words: Iterable[str]) -> list[int]:
        """Words → their numbers; no word is split."""
        return [*map(self._ids.__getitem__, words)]

    def char_ids(self) -> NDArray[np.uint16]:
        """Returns the character ids of each word, u16 [n, 50]."""
        return char_id_table(self._ids.new())

    def file(self) -> bytes:
        """Returns the words as a JSON list: words to tag may hold white space."""
        return json.dumps(self._ids.new(), ensure_ascii=False).encode()
