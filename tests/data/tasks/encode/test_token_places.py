"""The tokens of a context are those of running text, and each knows its characters, for every kind of vocabulary."""

import io
import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.tasks.encode.token_places import encode_with_places
from contexture.data.tokenizers.base import Tokenizer, with_added_tokens
from contexture.data.tokenizers.byte_pair import Gpt1BPE
from contexture.data.tokenizers.gpt1_text import nonblank_places, standardized
from contexture.data.tokenizers.registry import learn
from contexture.data.tokenizers.sentencepiece_model import SentencePiece

COMPOSED = [
    "लड़की नदी के किनारे बैठी थी और किताब महँगी है।",
    "เด็กผู้หญิงนั่งอยู่ริมแม่น้ำ",
    "女孩坐在河邊，看書。 Ｆｕｌｌ",
    "Das Mädchen saß schön am Café…—ﬁne, “hier”",
    "한국어 문장입니다",
    "a 👨‍👩‍👧 family & ☕️ AT&amp;T\n next  line İstanbul ΟΔΟΣ",
]
TEXTS = [*COMPOSED, *(unicodedata.normalize("NFD", text) for text in COMPOSED)]
PARTS = [*"ab1é他 \n\t\0\x85▁<&;,'ﬁｆ…Ãقक", "\u0301", "\u200d", "&amp;", "â€œ", "Ã©", "İ"]
ANY = st.lists(st.sampled_from(PARTS), max_size=12)
KINDS = ("wordpiece", "words", "byte-bpe", "characters", "sentencepiece-unigram", "sentencepiece-bpe")


def _published(**options: Any) -> SentencePiece:
    """A model that changes text (NFKC, a space added in front), as most published ones do."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 9), model_writer=model, hard_vocab_limit=False, minloglevel=3, **options
    )
    return SentencePiece(model.getvalue())


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    letters = [*"abcdefghijklmnopqrstuvwxyzé.,-\"'&;"]
    gpt1 = ["<unk>", "\n</w>", *letters, *(f"{letter}</w>" for letter in letters), "am</w>"], [("a", "m</w>")]
    return {
        **{kind: learn(kind, TEXTS, 600, True, "punctuation") for kind in KINDS},
        "gpt1-bpe": with_added_tokens(Gpt1BPE(*gpt1), ["_start_"]),
        "gpt1-bpe of transformers": Gpt1BPE(*gpt1, cleaned="transformers"),
        "sentencepiece of NFKC": _published(vocab_size=120),
        "sentencepiece of NFKC and bytes": _published(vocab_size=400, byte_fallback=True),
    }


def test_a_context_has_the_tokens_of_its_running_text(tokenizers: dict[str, Tokenizer]):
    for kind, tokenizer in tokenizers.items():
        assert [ids for ids, _ in encode_with_places(TEXTS, tokenizer)] == tokenizer.encode(TEXTS), kind


@pytest.mark.parametrize("text", TEXTS)
def test_a_word_comes_back_from_the_places_of_its_tokens(tokenizers: dict[str, Tokenizer], text: str):
    """With its accents and vowel signs, also where the vocabulary drops them."""
    for kind, tokenizer in tokenizers.items():
        ((_, places_N2),) = encode_with_places([text], tokenizer)
        at = 0
        for word in text.split():
            begin = text.index(word, at)
            at = begin + len(word)
            inside = places_N2[(places_N2[:, 0] < at) & (places_N2[:, 1] > begin)]
            assert text[inside[0, 0] : inside[-1, 1]] == word, kind


@settings(max_examples=300, deadline=None)
@given(ANY.map("".join))
def test_places_go_forward_within_their_text(tokenizers: dict[str, Tokenizer], text: str):
    for kind, tokenizer in tokenizers.items():
        if kind == "characters" and not set(text) <= set(tokenizer.characters):  # pyright: ignore[reportAttributeAccessIssue]
            continue
        ((ids, places_N2),) = encode_with_places([text], tokenizer)
        assert ids == tokenizer.encode(text) and places_N2.shape == (len(ids), 2), kind
        begin, end = places_N2.T
        assert (0 <= begin).all() and (begin <= end).all() and (end <= len(text)).all(), kind
        assert (np.diff(begin) >= 0).all() and (np.diff(end) >= 0).all(), kind


@pytest.mark.parametrize(
    ("text", "clean", "origins"),
    [
        ("Well…  it", "well... it", ["W", "e", "l", "l", "…", "…", "…", "i", "t"]),
        ("ﬁne", "fine", ["ﬁ", "ﬁ", "n", "e"]),
        ("e\u0301a", "éa", ["e\u0301", "a"]),
        ("AT&amp;T", "at&t", ["A", "T", "&amp;", "T"]),
        ("a cafÃ© é b", "a café é b", ["a", *["cafÃ©"] * 4, "é", "b"]),  # mended in its word alone
        ("İa", "i\u0307a", ["İ", "İ", "a"]),
        ("a \0 b", "a b", ["a", "b"]),
    ],
)
def test_cleaned_characters_know_where_they_come_from(text: str, clean: str, origins: list[str]):
    assert standardized(text).lower() == clean
    assert [text[begin:end] for begin, end in nonblank_places(text)] == origins


def test_a_long_text_with_broken_encodings_is_placed_at_once():
    """Words behind a word that was mended have their own places again."""
    text = "the cat\0 sat voilÃ\xa0 on&nbsp;a mat cafÃ© " * 3000
    words, places_N2 = "".join(standardized(text).lower().split()), nonblank_places(text)
    assert len(words) == len(places_N2)
    for word in ("sat", "mat"):
        at = words.rindex(word)
        assert text[places_N2[at, 0] : places_N2[at + 2, 1]] == word
