"""Tokenizers in small: what is cleaned away, how pieces come back as text, what broken bytes become."""

import pytest

from contexture.data.tokenizers.byte_pair import BYTES, END, ByteBPE
from contexture.data.tokenizers.wordpiece import SPECIAL, WordPiece

PIECES = [*SPECIAL, "a", "un", "##want", "##ed", "##,", ",", "'", "s", ".", "don", "t"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\u0000b\u200bc\ufffdd\u007f", ["abcd"]),  # NUL, format and control characters, the replacement character
        ("a\tb\nc\rd\u00a0e\u3000f", ["a", "b", "c", "d", "e", "f"]),
        ("a漢b", ["a", "漢", "b"]),
        ("É", ["e"]),
        ("it's, ok.", ["it", "'", "s", ",", "ok", "."]),
    ],
)
def test_what_a_texts_words_are(text, words):
    assert WordPiece(PIECES, lowercase=True).words(text) == words


def test_case_and_accents_stay_in_a_cased_vocabulary():
    assert WordPiece(PIECES, lowercase=False).words("É a\u0000b") == ["É", "ab"]


def test_pieces_are_joined_and_stops_and_apostrophes_stand_close():
    tokenizer = WordPiece(PIECES, lowercase=True)
    (ids,) = tokenizer.encode(["a unwanted, don't a."])
    assert [tokenizer.token(n) for n in ids] == ["a", "un", "##want", "##ed", ",", "don", "'", "t", "a", "."]
    assert tokenizer.decode(ids) == "a unwanted, don't a."


def test_bytes_that_are_no_character_become_the_replacement_character():
    tokenizer = ByteBPE([*BYTES, END], [])
    (ids,) = tokenizer.encode(["é漢"])
    assert tokenizer.decode(ids) == "é漢"
    assert tokenizer.decode(ids[:1]) == "\ufffd" and tokenizer.decode(ids[1:]) == "\ufffd漢"
    assert tokenizer.token(ids[0]) == "\\xc3" and tokenizer.decode([tokenizer.end]) == END  # pyright: ignore
