"""Words whose ids are kept: the ids of a text are the library's own for the whole text, whatever was encoded before."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.tokenizers import tokenizer_files
from contexture.data.tokenizers.byte_pair import learn_byte_bpe
from contexture.data.tokenizers.tokenizer_files import WordIds
from contexture.data.tokenizers.wordpiece import learn_wordpiece

LINES = ["The cat sat on the mat.", "A cat, and a hat; the cat's hat!", "naïve café über Σας", "他来了 42 cats"] * 4
TOKENIZERS: dict[str, Any] = {
    "uncased": learn_wordpiece(LINES, 120, True),
    "cased": learn_wordpiece(LINES, 120, False),
    "byte-bpe": learn_byte_bpe(LINES, 300),
}
SPACES = [" ", "  ", "\n", "\r\n", "\t", "\x0b", "\x1c", "\x85", "\xa0", "\u2003", "\u2028", "\u3000", "\0", "\u200b"]
PIECES = [
    "the",
    "Cat",
    "Σας",
    "ΣΑΣ",
    "e\u0301",
    "\u0301",
    "é",
    ".",
    "...",
    "'s",
    "[MASK]",
    "他来",
    "_",
    "42",
    "²",
    "🙂",
    "x" * 120,
]
TEXT = st.lists(
    st.one_of(st.sampled_from(SPACES), st.sampled_from([*PIECES, "x" * 120]), st.text(max_size=4)), max_size=14
).map("".join)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=300, deadline=None)
@given(texts=st.lists(TEXT, max_size=6))
def test_ids_are_those_of_the_library_for_the_whole_text(name: str, texts: list[str]):
    tokenizer = TOKENIZERS[name]
    whole = [each.ids for each in tokenizer._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    assert tokenizer.encode(texts) == whole
    # And by what is kept of them.
    assert tokenizer.encode(texts) == whole


def test_each_word_is_encoded_once_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []

    def encode(words: list[str]) -> list[list[int]]:
        asked.extend(words)
        return [[len(word), ord(word[0])] for word in words]

    kept = WordIds(encode)
    assert kept.encode([["a", "bb", "a"], [], ["a"]]) == [[1, 97, 2, 98, 1, 97], [], [1, 97]]
    kept.encode([["bb", "a"]])
    assert sorted(asked) == ["a", "bb"]
    for name, most in (("_WORDS", 2), ("_CHARACTERS", 3)):
        monkeypatch.setattr(tokenizer_files, name, most)
        asked.clear()
        kept = WordIds(encode)
        for _ in range(3):
            assert kept.encode([["a", "bb", "c"]]) == [[1, 97, 2, 98, 1, 99]]
        assert len(asked) == 9
        monkeypatch.undo()
