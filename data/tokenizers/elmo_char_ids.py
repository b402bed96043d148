"""ELMo's character ids: a word as the bytes of its UTF-8, in a row of 50 (bilm-tf, data.py, UnicodeCharsVocabulary).

    begin of word, at most 48 bytes, end of word, padding …

An id is a byte + 1, or one of the marks below; 0 marks a place without a word. These are the ids that the original
reads at inference; in training it has no 0, and all others are smaller by one.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MAX_BYTES = 48
"""Bytes of a word that are read; the others are cut off, even within a character, as in the original."""
WIDTH = MAX_BYTES + 2
# The original's 256 … 260, plus one.
BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = range(257, 262)


def _special(mark: int) -> NDArray[np.int32]:
    """Returns the row of a word that is one mark."""
    row = np.full(WIDTH, PADDING, np.int32)
    # bilm-tf's 258, 256 or 257, 259, plus one: a sentence's border is a word whose only character is the mark.
    row[:3] = BEGIN_WORD, mark, END_WORD
    return row


BEGIN_ROW, END_ROW = _special(BEGIN_SENTENCE), _special(END_SENTENCE)
"""The rows of `<S>` and `</S>`, which no text can spell."""


BEGIN, END, FIRST_WORD = 1, 2, 3
"""The rows of a table that hold `<S>` and `</S>`, and the first one that holds a word; row 0 is nothing."""


def word_table(char_ids: NDArray[np.integer], rows: int) -> NDArray[np.int32]:
    """The character ids of words, [n, 50], behind the rows of the marks → i32 [R, 50]; R is `rows`, doubled until all
    have room."""
    # A table that grew with each batch would be compiled anew each time; doubled, there are few shapes.
    while rows < FIRST_WORD + len(char_ids):
        rows *= 2
    table = np.zeros((rows, WIDTH), np.int32)
    # Row 0 stays zeros, which is no word: the original's mask is true where an id is above 0.
    table[1], table[2] = BEGIN_ROW, END_ROW
    table[FIRST_WORD : FIRST_WORD + len(char_ids)] = char_ids
    return table


def char_ids(words: Sequence[str]) -> NDArray[np.int32]:
    """Words → i32 [n, 50]; an empty one, where no word is, gives zeros.

    `["ab", ""]` → `259 98 99 260 261 261 …` and `0 0 0 …`. A text that spells `<S>` is a word like others.
    """
    # All words at once: their bytes are one array, from which each row takes its own, shifted by one for the begin.
    # Half a character has no bytes, as in the original ("ignore").
    raw = [word.encode("utf-8", "ignore") for word in words]
    lengths = np.fromiter(map(len, raw), np.int64, len(raw))
    kept = np.minimum(lengths, MAX_BYTES)
    place = np.arange(WIDTH)
    # Place 0 is the begin of the word, so that byte k is at place k + 1.
    inside = (place > 0) & (place <= kept[:, None])
    starts = np.cumsum(lengths) - lengths
    rows = np.full((len(raw), WIDTH), PADDING, np.int32)
    rows[inside] = np.frombuffer(b"".join(raw), np.uint8)[(starts[:, None] + place - 1)[inside]] + np.int32(1)
    rows[:, 0] = BEGIN_WORD
    rows[np.arange(len(raw)), kept + 1] = END_WORD
    rows[np.fromiter((not word for word in words), np.bool_, len(raw))] = 0
    return rows


def are_cut(words: Sequence[str]) -> NDArray[np.bool_]:
    """Which words have more bytes than are read → bool [n]."""
    sizes = np.fromiter(map(len, words), np.int64, len(words))
    # A character has four bytes at most, so short words need not be encoded to know.
    for place in np.flatnonzero(sizes * 4 > MAX_BYTES).tolist():
        sizes[place] = len(words[place].encode("utf-8", "ignore"))
    return sizes > MAX_BYTES


def words_from_char_ids(rows: NDArray[np.integer]) -> list[str]:
    """Character ids → words, for people: i32 [n, 50] → words, `<S>`, `</S>`, and "" for zeros."""
    marks = {BEGIN_SENTENCE: "<S>", END_SENTENCE: "</S>"}
    words = []
    for row in rows:
        # Between the begin and the first end of a word.
        inside = row[1 : 1 + int((row[1:] == END_WORD).argmax())]
        first = int(inside[0]) if len(inside) else 0
        # `replace`: the cut after 48 bytes may be within a character.
        words.append(marks.get(first) or (inside - 1).astype(np.uint8).tobytes().decode("utf-8", "replace"))
    return words
