"""Layouts of text at hand, and a line told to people."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.describe import describe
from contexture.data.errors import DataError
from contexture.data.layouts import bert_texts
from contexture.data.tokenizers.wordpiece import WordPiece
from tests.helpers.slow_pairs import truncate, vocabulary

TOKENIZER = WordPiece([*vocabulary(), "un", "##want", "##ed", "-"], lowercase=True)


def _words(ids: list[int]) -> str:
    return " ".join(f"w{number - 5}" for number in ids)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30) | st.none()), min_size=1, max_size=5), st.integers(5, 30)
)
def test_texts_are_laid_out_like_the_originals(shapes, length):
    ids = [([5 + n for n in range(a)], None if b is None else [50 + n for n in range(b)]) for a, b in shapes]
    batch = bert_texts(TOKENIZER, [_words(a) if b is None else (_words(a), _words(b)) for a, b in ids], length)
    for row, (a, b) in enumerate(ids):
        if b is None:
            line, first = [2, *a[: length - 2], 3], 10**9
        else:
            a, b = truncate(a, b, length, lambda side, taken: False)
            line, first = [2, *a, 3, *b, 3], len(a) + 2
        pad = length - len(line)
        assert batch["tokens"][row].tolist() == line + [0] * pad
        assert batch["mask"][row].tolist() == [1] * len(line) + [0] * pad
        assert batch["segments"][row].tolist() == [int(n >= first) for n in range(len(line))] + [0] * pad
    assert all(array.dtype == np.int32 for array in batch.values())


def test_a_length_without_room_is_refused():
    with pytest.raises(DataError, match="length=4 has no room"):
        bert_texts(TOKENIZER, ["w1"], 4)


def test_a_line_is_described_with_its_guesses():
    batch = bert_texts(TOKENIZER, [("w1 unwanted w2", "w3")], 12)
    tokens = batch["tokens"]
    want, three = TOKENIZER.encode(["unwanted w3"])[0][1], TOKENIZER.encode(["w3"])[0][0]
    assert tokens[0, 3] == want
    tokens[0, 3] = TOKENIZER.mask
    batch |= {
        "slots": np.array([[3, 7, 0]]),
        "labels": np.array([[want, three, 0]]),
        "slot_weights": np.array([[1.0, 1.0, 0.0]], np.float32),
        "is_random": np.array([1], np.int32),
    }
    description = describe(batch, 0, TOKENIZER)
    assert description == (
        "[CLS] w1 un{want→[MASK]}ed w2 [SEP] {w3→w3} [SEP]\n"
        "(9 tokens; 7 in segment 0, 2 in segment 1; 2 to predict; the second span is random)"
    )
    assert describe(bert_texts(TOKENIZER, ["w1"], 8), 0, TOKENIZER).startswith(
        "[CLS] w1 [SEP]\n(3 tokens; 3 in segment 0"
    )


def test_a_word_of_several_pieces_is_described_whole_with_its_tag():
    words = ["w1", "unwanted", "w2-w3", "w4"]
    batch = bert_texts(TOKENIZER, [" ".join(words)], 12)
    pieces = [len(ids) for ids in TOKENIZER.encode(words)]
    assert pieces == [1, 3, 3, 1]
    tags = np.full((1, 12), -1)
    tags[0, np.cumsum([1, *pieces[:-1]])] = [0, 1, 2, 0]
    description = describe(batch | {"tags": tags}, 0, TOKENIZER, ("N", "ADJ", "X"), "tag")
    assert description.splitlines()[0] == "[CLS] w1/N unwanted/ADJ w2-w3/X w4/N [SEP]"
