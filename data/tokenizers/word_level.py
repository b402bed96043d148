"""Whole words by their number: ELMo's vocabulary, a vocab.txt with a word in each line (bilm-tf, data.py, Vocabulary),
and the words of static vectors."""

import json
import re
import sys
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain, groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from contexture.data.errors import DataError
from contexture.data.tokenizers import tokenizer_files, word_counts
from contexture.data.tokenizers.elmo_char_ids import WIDTH, char_ids
from contexture.data.tokenizers.text_encoder import Placed, TextEncoder
from contexture.data.tokenizers.word_counts import WordCount

BEGIN, END, UNK = SPECIAL = ("<S>", "</S>", "<UNK>")
VOCABULARY = "vocab.txt"
STATIC_SPECIAL = ("<pad>", "<unk>")
"""The rows in front of a static vocabulary, for people; text that spells one is a word like others."""
STATIC_WORDS = "words.json"
"""The file of a static vocabulary: JSON, since a published word may hold any character."""
SPLITS = ("spaces", "punctuation")
_NO_WORD = "!!!MAXTERMID"
"""A line of published vocabularies that the original skips."""
_SPACE = re.compile(r"\s")


class Words(TextEncoder):
    """A vocabulary of words. `split` says how a text is split into words.

        spaces       at white space, for text that is tokenised already, as the original expects it
        punctuation  letters, digits and their marks stay together, also around an apostrophe, hyphen or full stop
                     (don't, well-known, 3.5); every other character is a word

    A text that spells `<S>`, `</S>` or `<UNK>` holds a word that the vocabulary lacks, never the special one.

    Differs: in the original such a text means the special ones.
    """

    kind = "words"
    # Decoding puts one space between words, whatever white space the text had.
    lossless = False
    # The places of SPECIAL. There is no token for padding: masks tell a padded 0 from a word.
    pad, end, unk = 0, 1, 2
    begin = 0
    specials: Mapping[str, int] = {}

    def __init__(self, vocabulary: Sequence[str], split: str = "spaces", where: str = "vocabulary") -> None:
        """Raises: DataError for a vocabulary that does not begin with SPECIAL, holds a word twice, or an empty one."""
        # The original reads the special words by their place.
        if tuple(vocabulary[: len(SPECIAL)]) != SPECIAL:
            raise DataError(
                f"{where}: the first lines are {', '.join(map(repr, vocabulary[: len(SPECIAL)])) or 'missing'}; a "
                f"vocabulary of words begins with the lines {', '.join(SPECIAL)}"
            )
        ids = {word: number for number, word in enumerate(vocabulary)}
        if "" in ids:
            place = list(vocabulary).index("")
            raise DataError(f"{where}:{place + 1}: an empty line in the vocabulary; it wants one word in each line")
        if len(ids) != len(vocabulary):
            word, times = Counter(vocabulary).most_common(1)[0]
            # Where it occurs the second time.
            line = list(vocabulary).index(word, list(vocabulary).index(word) + 1) + 1
            raise DataError(f"{where}:{line}: the word {word!r} stands in {times} lines; keep each word once")
        self.vocabulary, self.split = tuple(vocabulary), split
        self.size = len(vocabulary)
        self.ids = {word: number for word, number in ids.items() if number >= len(SPECIAL)}
        """Ids of the words that a text may hold: all but the special ones."""
        self.fingerprint = tokenizer_files.fingerprint(self.kind, split=split, vocabulary=self.vocabulary)
        self.words = splitter(split)
        """Text → its words."""

    @staticmethod
    def open(file: Path, split: str) -> "Words":
        """Raises: DataError for a file that is not UTF-8, or no vocabulary of words."""
        # White space around a word, and the \r of a line end, are no part of it.
        lines = [line.strip(" \t\r") for line in tokenizer_files.read_lines(file)]
        # The original skips it, so the ids after it are smaller by one.
        if _NO_WORD in lines:
            lines = [line for line in lines if line != _NO_WORD]
        return Words(lines, split, str(file))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts → ids, `<UNK>` for a word that is not in the vocabulary."""
        # An ELMo itself reads words through `open_vocabulary`, where the ones that are unknown here have numbers too.
        return [[self.ids.get(word, self.unk) for word in self.words(text)] for text in texts]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Placed]:
        encoded = zip(texts, self.encode_batch(texts), strict=True)
        return [(ids, _word_places(text, self.words(text))) for text, ids in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        """Ids → words with spaces between."""
        return " ".join(self.vocabulary[number] for number in ids)

    def token(self, id: int) -> str:
        return self.vocabulary[id]

    def split_long(self, text: str, limit: int) -> list[str]:
        """Splits before white space, which no word holds."""
        return tokenizer_files.cut(text, limit, _SPACE)

    def files(self) -> dict[str, bytes]:
        vocabulary = "".join(f"{word}\n" for word in self.vocabulary).encode()
        return {VOCABULARY: vocabulary, tokenizer_files.OPTIONS: tokenizer_files.options(self.kind, split=self.split)}

    def save(self, folder: Path) -> None:
        """Raises: DataError where the folder holds something else, or cannot be made."""
        tokenizer_files.save(folder, self.files())


def are_words(file: Path) -> bool:
    """Returns whether a vocab.txt is a vocabulary of words: its first lines hold one of SPECIAL, where BERT's hold
    [PAD]. Raises: DataError for a file that cannot be read, or is not UTF-8."""
    # One of them is enough: a damaged vocabulary of words is refused as such, and not read as BERT's.
    return not set(SPECIAL).isdisjoint(line.strip(" \t\r") for line in tokenizer_files.read_lines(file)[: len(SPECIAL)])


def word_tokenizer(tokenizer: tokenizer_files.HasKind) -> Words:
    """Returns the tokenizer, known to be Words. Raises: DataError where it is of another kind."""
    if not isinstance(tokenizer, Words):
        raise DataError(
            f"an ELMo reads a vocabulary of kind words, and this one is {tokenizer.kind}; give a vocab.txt "
            "that begins with <S>, </S>, <UNK>, or learn one: contexture tokenizer words"
        )
    return tokenizer


class WordNumbers(ABC):
    """Numbers of words. A text is its words, none of them split and without special tokens around them."""

    words: Callable[[str], list[str]]
    """Text → its words."""

    @abstractmethod
    def number(self, words: Iterable[str]) -> list[int]:
        """Words → their numbers."""

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Placed]:
        """Texts → the numbers of their words, and begin and end of each among the characters of its text."""
        each = [(text, self.words(text)) for text in texts]
        return [(self.number(words), _word_places(text, words)) for text, words in each]


def _word_places(text: str, words: Iterable[str]) -> list[tuple[int, int]]:
    places, at = list[tuple[int, int]](), 0
    for word in words:  # each occurs in the text unchanged, after the one before it
        # From the end of the word before: a word that occurs twice has two places.
        begin = text.index(word, at)
        at = begin + len(word)
        places.append((begin, at))
    return places


class StaticWords(WordNumbers, TextEncoder):
    """The words of static vectors: a row for padding, one for all words that have no vector, then a row a word."""

    kind = "static-words"
    lossless = False
    # The places of STATIC_SPECIAL, which are rows of the imported table.
    pad, unk = 0, 1
    end = None
    specials: Mapping[str, int] = {}

    def __init__(self, vocabulary: Sequence[str], split: str = "punctuation", lowercase: bool = False) -> None:
        """Numbers the words.

        Args:
            vocabulary: the words of the vectors, without padding and unknown.
            split: as in `Words`.
            lowercase: whether words of a text are looked up in lower case.

        Raises:
            DataError: for a word that occurs twice.
        """
        self.vocabulary, self.split, self.lowercase = tuple(vocabulary), split, lowercase
        self.ids = {word: number for number, word in enumerate(vocabulary, len(STATIC_SPECIAL))}
        if len(self.ids) != len(self.vocabulary):
            raise DataError(f"the word {Counter(vocabulary).most_common(1)[0][0]!r} occurs twice; keep each word once")
        self.size = len(STATIC_SPECIAL) + len(self.vocabulary)
        self.fingerprint = tokenizer_files.fingerprint(
            self.kind, split=split, lowercase=lowercase, vocabulary=self.vocabulary
        )
        self.words = splitter(split)

    @staticmethod
    def open(folder: Path, split: str, lowercase: bool) -> "StaticWords":
        """Raises: DataError for a file that is no list of words."""
        file = folder / STATIC_WORDS
        words = tokenizer_files.read_json(file)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise DataError(f"{file}: not a list of words; import the vectors again")
        return StaticWords(words, split, lowercase)

    def number(self, words: Iterable[str]) -> list[int]:
        """Words → their numbers, `unk` for a word without a vector."""
        # The text's words are lower-cased, never the vectors' own: those keep their case.
        return [self.ids.get(word.lower() if self.lowercase else word, self.unk) for word in words]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.number(self.words(text)) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Ids → words with spaces between."""
        return " ".join(map(self.token, ids))

    def token(self, id: int) -> str:
        return STATIC_SPECIAL[id] if id < len(STATIC_SPECIAL) else self.vocabulary[id - len(STATIC_SPECIAL)]

    def split_long(self, text: str, limit: int) -> list[str]:
        """Splits before white space, which no word holds."""
        return tokenizer_files.cut(text, limit, _SPACE)

    def files(self) -> dict[str, bytes]:
        words = json.dumps(self.vocabulary, ensure_ascii=False).encode()
        options = tokenizer_files.options(self.kind, split=self.split, lowercase=self.lowercase)
        return {STATIC_WORDS: words, tokenizer_files.OPTIONS: options}

    def save(self, folder: Path) -> None:
        """Raises: DataError where the folder holds something else, or cannot be made."""
        tokenizer_files.save(folder, self.files())


def static_words(tokenizer: tokenizer_files.HasKind) -> StaticWords:
    """Returns the tokenizer, known to be StaticWords. Raises: DataError where it is of another kind."""
    if not isinstance(tokenizer, StaticWords):
        raise DataError(
            f"static vectors have words of their own, and this vocabulary is {tokenizer.kind}; leave it out"
        )
    return tokenizer


def learn_words(texts: Iterable[str], size: int, split: str = "spaces") -> Words:
    """Learns a vocabulary of at most `size` words: SPECIAL, then the most frequent first, equally frequent ones in the
    order of Unicode.

    Raises: DataError where the texts hold no word or the size leaves no room; and whatever the texts raise.
    """
    return words_of(word_counts.count(texts, splitter(split)), size, split)


def words_of(counts: Iterable[WordCount], size: int, split: str) -> Words:
    """As `learn_words`, from the counts of words."""
    room = size - len(SPECIAL)
    # Text that spells a special word is no word of the vocabulary.
    words = (each for each in counts if each[0] not in (*SPECIAL, _NO_WORD))
    # By descending frequency, which the log-uniform sampling of negatives relies on.
    frequent = list(word_counts.most_frequent(words, max(room, 1)))
    # An error of the text comes before one of the size.
    if not frequent:
        raise DataError("no word in the text to learn a vocabulary from; give text")
    if room < 1:
        raise DataError(
            f"a vocabulary of {size} has no room beside the {len(SPECIAL)} special words; give a larger size"
        )
    return Words([*SPECIAL, *frequent], split)


_TOGETHER = 1 << 14
"""Words whose characters are looked up together."""


def char_id_table(words: Sequence[str]) -> NDArray[np.uint16]:
    """Returns the character ids of each word (`data.tokenizers.elmo_char_ids`), u16 [n, 50]."""
    # u16, half of what a batch has, and a part at a time: millions of words fit in memory.
    rows = np.empty((len(words), WIDTH), np.uint16)
    for at in range(0, len(words), _TOGETHER):
        rows[at : at + _TOGETHER] = char_ids(words[at : at + _TOGETHER])
    return rows


def spaced_words(text: str) -> list[tuple[str, bool]]:
    """Returns the words of raw text, punctuation off, each with whether white space precedes it."""
    matches = list(_pattern().finditer(text))
    # The first word never counts as spaced: leading white space takes the place of a word before it.
    ends = [len(text) - len(text.lstrip()), *(match.end() for match in matches)]
    return [(match[0], match.start() > end) for match, end in zip(matches, ends[:-1], strict=True)]


def splitter(split: str) -> Callable[[str], list[str]]:
    """Text → its words."""
    # At any white space of Unicode, or by words and marks.
    return str.split if split == "spaces" else _pattern().findall


@cache
def _pattern() -> re.Pattern[str]:
    """Matches a word, or another character with the marks on it. Words may hold joiners of zero width too."""
    # Python's \\w leaves out combining marks, without which words of many scripts would fall apart.
    marks = _class(lambda character: unicodedata.category(character)[0] == "M")
    # Letters and digits: a word character that is no underscore.
    letter = rf"(?:[^\W_]|{marks})"
    # The other branch takes any single character, so that no character but white space is lost.
    return re.compile(rf"{letter}+(?:['’.\-‐‑\u200c\u200d]{letter}+)*|\S{marks}*")


def _class(belongs: Callable[[str], bool]) -> str:
    """Returns the characters of Unicode that belong, as a class of a regular expression."""
    # Code points minus their ranks are equal within a run of neighbours: groupby finds the runs, each a range a-z.
    groups = groupby(enumerate(code for code in range(sys.maxunicode + 1) if belongs(chr(code))), lambda n: n[1] - n[0])
    spans = ([code for _, code in group] for _, group in groups)
    return f"[{''.join(chain.from_iterable((chr(span[0]), '-', chr(span[-1])) for span in spans))}]"
