"""Byte pairs, characters, SentencePiece: what is lossless comes back, what is long is cut, what is learned is fixed."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers as libraries
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.errors import DataError
from contexture.data.tokenizers import word_counts
from contexture.data.tokenizers.base import Tokenizer, with_added_tokens
from contexture.data.tokenizers.byte_pair import BYTES, ByteBPE, Gpt1BPE, standardized
from contexture.data.tokenizers.char_level import Characters
from contexture.data.tokenizers.registry import learn, load_tokenizer
from tests.conftest import ROOT
from tests.helpers.long import long

KINDS = ("wordpiece", "byte-bpe", "characters", "sentencepiece-unigram", "sentencepiece-bpe")
WORDS = "the cat sat on a mat, and the dog's bone lay in sun: wanting, waits, walking. Naïve café! 他来了。 42".split()
SAMPLE = [
    "\n".join(" ".join(random.Random(line).choices(WORDS, k=12)) for line in range(first, first + 40)) + "\n\n"
    for first in range(0, 120, 40)
]
ANY = st.text(max_size=40)
ODD = st.text("ab1é他 \n\t\r\0\x1c\x85\xa0\u2028▁▅⁇\ufeff\ufffd.,'s<>_😀\u0301", max_size=40)
"""Texts of what vocabularies keep for themselves, and of many kinds of white space."""


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    """A small vocabulary of every kind, that of GPT-1 made by hand."""
    letters = ["<unk>", *"abst.", *(letter + "</w>" for letter in "abst.'"), "at</w>", "\n</w>"]
    return {**{kind: learn(kind, SAMPLE, 400, True) for kind in KINDS}, "gpt1-bpe": Gpt1BPE(letters, [("a", "t</w>")])}


def _whole(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode([text])[0]


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("text", ["他来了我们去看河", "aaaa", "他来了 我们去看河" + "他来了我们去看河" * 900])
def test_spaces_come_back_also_where_the_text_had_few_or_none(kind: str, text: str):
    tokenizer = learn(kind, [text], 400, True)
    for other in ("他 来  了 ", " ▁ a"):
        if kind != "characters" or set(other) <= set(text):
            assert tokenizer.lossless and tokenizer.decode(_whole(tokenizer, other)) == other


@settings(max_examples=300, deadline=None)
@given(ANY | ODD)
def test_what_is_lossless_comes_back_as_it_was(tokenizers: dict[str, Tokenizer], text: str):
    each = {**tokenizers, "characters": Characters(sorted({*text, "x"}))}
    kept = {kind for kind, tokenizer in each.items() if tokenizer.lossless}
    assert kept == set(KINDS) - {"wordpiece"}
    for kind in kept:
        ids = _whole(each[kind], text)
        assert each[kind].decode(ids) == text, kind
        assert all(0 <= number < each[kind].size for number in ids)
        assert each[kind].end not in ids and each[kind].unk not in ids


@settings(max_examples=300, deadline=None)
@given(ANY | ODD, st.integers(1, 12))
def test_the_ids_of_parts_joined_are_those_of_the_whole(tokenizers: dict[str, Tokenizer], text: str, limit: int):
    for kind, tokenizer in {**tokenizers, "characters": Characters(sorted({*text, "x"}))}.items():
        parts = tokenizer.split_long(text, limit)
        assert "".join(parts) == text
        assert [number for ids in tokenizer.encode(parts) for number in ids] == _whole(tokenizer, text), kind


@settings(max_examples=200, deadline=None)
@given(ANY | ODD)
def test_words_are_encoded_alone_as_the_library_encodes_the_whole(tokenizers: dict[str, Tokenizer], text: str):
    text = text.replace("▁", "")
    pairs: Any = tokenizers["byte-bpe"]
    ids = {token: number for number, token in enumerate(pairs.vocabulary)}
    library = libraries.Tokenizer(libraries.models.BPE(ids, list(pairs.merges)))
    library.pre_tokenizer = libraries.pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    assert _whole(pairs, text) == library.encode(text).ids
    for kind in KINDS[3:]:
        pieces: Any = tokenizers[kind]
        assert _whole(pieces, text) == sentencepiece.SentencePieceProcessor(model_proto=pieces.model).encode(text)


@pytest.mark.parametrize("letters", [20_000, *long(-1)])
def test_real_text_is_cut_into_parts(tokenizers: dict[str, Tokenizer], shared: Path, letters: int):
    book = (shared / "data" / "pretrain_books" / "the-time-machine.txt").read_text("utf-8")[:letters]
    published = {name: load_tokenizer(shared / "data" / name) for name in ("vocab_gpt1", "vocab_gpt2")}
    characters = learn("characters", [book], 200, True)
    for tokenizer in {**tokenizers, **published, "characters": characters}.values():
        parts = tokenizer.split_long(book, 1000)
        assert [number for ids in tokenizer.encode(parts) for number in ids] == _whole(tokenizer, book)
        if tokenizer.kind != "gpt1-bpe":
            assert len(parts) >= len(book) // 1100 and max(map(len, parts)) < 1100


def test_text_without_spaces_is_cut_too(tokenizers: dict[str, Tokenizer]):
    text = "他来了。我也来了，你呢？" * 50
    parts = tokenizers["byte-bpe"].split_long(text, 100)
    assert len(parts) > 5 and max(map(len, parts)) < 120
    assert [number for ids in tokenizers["byte-bpe"].encode(parts) for number in ids] == _whole(
        tokenizers["byte-bpe"], text
    )


@pytest.mark.parametrize("specials", [(), ("_start_", "_delimiter_", "_classify_")])
def test_saved_and_loaded_is_the_same(tokenizers: dict[str, Tokenizer], tmp_path: Path, specials: tuple[str, ...]):
    for kind, tokenizer in tokenizers.items():
        if specials and kind == "wordpiece":
            continue
        tokenizer = with_added_tokens(tokenizer, specials) if specials else tokenizer
        for _ in range(2):
            tokenizer.save(tmp_path / kind)
        again = load_tokenizer(tmp_path / kind)
        for name in ("kind", "size", "pad", "end", "unk", "lossless", "fingerprint", "specials"):
            assert getattr(again, name) == getattr(tokenizer, name), (kind, name)
        assert again.files() == tokenizer.files()
        ids = tokenizer.encode(SAMPLE)
        assert again.encode(SAMPLE) == ids and again.decode(ids[0]) == tokenizer.decode(ids[0])
        assert [again.token(number) for number in range(again.size)] == [
            tokenizer.token(number) for number in range(tokenizer.size)
        ]
        other = with_added_tokens(tokenizers["byte-bpe"], ["_other_"])
        with pytest.raises(DataError, match="holds another tokenizer; give another folder"):
            other.save(tmp_path / kind)
    assert {path.name for path in tmp_path.iterdir()} == {kind for kind in tokenizers if kind != "wordpiece"} | (
        set() if specials else {"wordpiece"}
    )


@pytest.mark.parametrize("kind", KINDS)
def test_another_vocabulary_of_a_kind_has_another_fingerprint(tokenizers: dict[str, Tokenizer], kind: str):
    """Also one of the same size: ids would mean other texts."""
    other = learn(kind, [text.replace("t", "q") for text in SAMPLE], 400, True)
    assert other.fingerprint != tokenizers[kind].fingerprint
    assert (
        Characters(list("ab")).fingerprint != Characters(list("ac")).fingerprint != Characters(list("ca")).fingerprint
    )


def test_every_kind_has_its_own_fingerprint(tokenizers: dict[str, Tokenizer]):
    grown = [with_added_tokens(tokenizers[kind], [name]) for kind in KINDS[1:] for name in ("_a_", "_b_")]
    prints = [tokenizer.fingerprint for tokenizer in [*tokenizers.values(), *grown]]
    assert len(set(prints)) == len(prints) and all(len(one) == 64 for one in prints)
    bytes_alone = ByteBPE([*BYTES], [])
    assert bytes_alone.fingerprint != ByteBPE([*BYTES][::-1], []).fingerprint


def test_special_tokens_grow_behind_and_text_stays_text(tokenizers: dict[str, Tokenizer]):
    names = ["_start_", "_delimiter_", "_classify_"]
    for kind, tokenizer in tokenizers.items():
        if kind == "wordpiece":
            continue
        grown = with_added_tokens(tokenizer, names)
        assert grown.size == tokenizer.size + 3 and tokenizer.specials == {}
        assert grown.specials == {name: tokenizer.size + place for place, name in enumerate(names)}
        text = "cats _start_ at" if kind != "characters" else "the cat"
        ids = _whole(tokenizer, text)
        assert _whole(grown, text) == ids
        start, delimiter, classify = grown.specials.values()
        spelled = grown.decode([start, *ids, delimiter, classify])
        assert spelled == f"_start_{tokenizer.decode(ids)}_delimiter__classify_"
        assert grown.token(classify) == "_classify_" and grown.token(0) == tokenizer.token(0)
        assert with_added_tokens(with_added_tokens(tokenizer, names[:1]), names[1:]).fingerprint == grown.fingerprint


def test_special_tokens_that_cannot_be_are_refused(tokenizers: dict[str, Tokenizer]):
    with pytest.raises(DataError, match=r"a wordpiece vocabulary has its own special tokens \(\[PAD\], "):
        with_added_tokens(tokenizers["wordpiece"], ["_start_"])
    for names in (["_start_"], ["_a_", "_a_"]):
        with pytest.raises(DataError, match="is there already; give each name once"):
            with_added_tokens(with_added_tokens(tokenizers["byte-bpe"], ["_start_"]), names)
    for names in ([], [""]):
        with pytest.raises(DataError, match="a special token without a name"):
            with_added_tokens(tokenizers["byte-bpe"], names)


def test_learned_bytes_come_first_and_the_end_last(tokenizers: dict[str, Tokenizer]):
    tokenizer: Any = tokenizers["byte-bpe"]
    assert tokenizer.vocabulary[:256] == tuple(BYTES) and tokenizer.vocabulary[-1] == "<|endoftext|>"
    assert tokenizer.end == tokenizer.size - 1 and tokenizer.size <= 400 and tokenizer.unk is None
    assert tokenizer.vocabulary[256:-1] == tuple(first + second for first, second in tokenizer.merges)
    assert tokenizer.end not in _whole(tokenizer, "a <|endoftext|>")
    assert " the" in [tokenizer.token(number) for number in _whole(tokenizer, "in the")]
    assert tokenizer.token(_whole(tokenizer, "\xff")[0]) == "\\xc3"
    assert tokenizer.decode(_whole(tokenizer, "ü")[:1]) == "\ufffd"


def test_learned_pieces_begin_with_what_every_text_needs(tokenizers: dict[str, Tokenizer]):
    for kind in KINDS[3:]:
        tokenizer = tokenizers[kind]
        assert [tokenizer.token(number) for number in range(4)] == ["<pad>", "<unk>", "</s>", "\n"]
        assert (tokenizer.pad, tokenizer.unk, tokenizer.end) == (0, 1, 2) and tokenizer.size <= 400
        assert _whole(tokenizer, "\n\n") == [3, 3]
        assert 2 not in _whole(tokenizer, "a</s>") and 0 not in _whole(tokenizer, "<pad>")
        learned = {tokenizer.token(number) for number in range(4 + 256, tokenizer.size)}
        assert any(len(token) > 2 and token[0] == " " for token in learned)
        assert not any(" " in token.lstrip(" ") for token in learned)


def test_characters_are_numbered_in_their_order(shared: Path):
    text = (shared / "data" / "pretrain_tinyshakespeare" / "input.txt").read_text("utf-8")
    tokenizer = learn("characters", text.splitlines(keepends=True), 65, True)
    assert tokenizer.size == 65 and tokenizer.encode(["\nAz"]) == [[0, 13, 64]]
    assert tokenizer.decode(_whole(tokenizer, text)) == text
    assert tokenizer.end is None and tokenizer.unk is None


@pytest.mark.parametrize("character", ["~", "\0", "😀", "他"])
def test_a_character_that_was_not_learned_is_named(character: str):
    with pytest.raises(
        DataError, match=rf"\(U\+{ord(character):04X}\) is none of the vocabulary's 3; learn the vocabu"
    ):
        Characters(["a", "b", "z"]).encode(["ab" + character])


def test_learning_is_the_same_in_every_process():
    program = (
        "from contexture.data.tokenizers.registry import learn\n"
        "import random\n"
        "r = random.Random(0)\n"
        "words = [''.join(r.choices('abcdefgh他', k=r.randint(1, 6))) for _ in range(9000)]\n"
        "lines = [' '.join(words[at : at + 30]) for at in range(0, 9000, 30)]\n"
        f"print([learn(kind, lines, 450, True).fingerprint for kind in {KINDS!r}])\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": str(seed), "RAYON_NUM_THREADS": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        )
        for seed in (1, 2)
    ]
    assert runs[0].stdout == runs[1].stdout and len(runs[0].stdout) > 64 * len(KINDS)
    assert not runs[0].stderr


def test_a_vocabulary_is_learned_on_the_most_frequent_words(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(word_counts, "MAX_WORDS", 50)
    texts = ["".join(f" word{number}" for number in range(at, at + 20)) + " often" for at in range(0, 400, 20)]
    tokenizer = learn("byte-bpe", texts, 300, True)
    assert [tokenizer.token(number) for number in _whole(tokenizer, " often word7")][0] == " often"


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_texts_raise_comes_through_unchanged(kind: str):
    raised = OSError("enough")

    def texts():
        yield "a b c"
        raise raised

    with pytest.raises(OSError) as caught:
        learn(kind, texts(), 400, True)
    assert caught.value is raised


@pytest.mark.parametrize(
    ("kind", "texts", "size", "line"),
    [
        ("byte-bpe", ["", ""], 300, "no word in the text to learn a vocabulary from; give text"),
        ("byte-bpe", ["a"], 256, "a vocabulary of 256 has no room for the 256 bytes and .* give at least 257"),
        ("characters", [""], 300, "no character in the text to learn a vocabulary from; give text"),
        ("characters", ["abc"], 2, "the text has 3 different characters, a vocabulary of 2 no room .* a size of 3"),
        ("sentencepiece-bpe", [" \n\t"], 300, "no word in the text to learn a vocabulary from; give text"),
        ("sentencepiece-unigram", SAMPLE, 262, "a vocabulary of 262 has no room for tokens beside .* a larger size"),
        ("sentencepiece-bpe", SAMPLE, 100, "a vocabulary of 100 has no room for tokens beside .* a larger size"),
        ("gpt1-bpe", SAMPLE, 300, "of kind 'gpt1-bpe' cannot be learned; choose one of wordpiece, byte-bpe, character"),
    ],
)
def test_what_cannot_be_learned_is_one_clear_line(
    capfd: pytest.CaptureFixture[str], kind: str, texts: list[str], size: int, line: str
):
    with pytest.raises(DataError, match=line):
        learn(kind, texts, size, True)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_is_no_larger_than_its_text_has_pieces_for(capfd: pytest.CaptureFixture[str], kind: str):
    tokenizer = learn(kind, ["ab ab abc\n"] * 3, 5000, True)
    assert tokenizer.size < 300 and _whole(tokenizer, "ab")
    assert capfd.readouterr() == ("", "")


# GPT-2's own files


@pytest.fixture(scope="module")
def gpt2(shared: Path) -> Tokenizer:
    return load_tokenizer(shared / "data" / "vocab_gpt2")


def test_gpt2s_cases_have_their_ids(gpt2: Tokenizer, shared: Path):
    tokenizer = gpt2
    assert (tokenizer.kind, tokenizer.size, tokenizer.end) == ("byte-bpe", 50257, 50256)
    for name in ("encoded_tokens.json", "gpt2_encoded_tokens.json"):
        case = json.loads((shared / "data" / "golden_tokenizer_gpt2" / name).read_text("utf-8"))
        assert _whole(tokenizer, case["text"]) == case["token_ids"]
        assert tokenizer.decode(case["token_ids"]) == case["text"]
    assert _whole(tokenizer, "Hello world") == [15496, 995]
    for name, content in tokenizer.files().items():
        assert name == "tokenizer.json" or content == (shared / "data" / "vocab_gpt2" / name).read_bytes(), name


@settings(max_examples=100, deadline=None)
@given(ANY | ODD)
def test_gpt2s_vocabulary_is_lossless(gpt2: Tokenizer, text: str):
    ids = _whole(gpt2, text)
    assert gpt2.decode(ids) == text
    assert [number for part in gpt2.encode(gpt2.split_long(text, 3)) for number in part] == ids


# GPT-1's own files


def test_gpt1s_vocabulary_keeps_its_ids(shared: Path):
    tokenizer = load_tokenizer(shared / "data" / "vocab_gpt1")
    assert (tokenizer.kind, tokenizer.size, tokenizer.unk, tokenizer.end) == ("gpt1-bpe", 40478, 0, None)
    ids = _whole(tokenizer, "The Cat\n\nsat ☃ (there)!!\n")
    assert [tokenizer.token(number) for number in ids] == [
        "the</w>", "cat</w>", "\n</w>", "sat</w>", "<unk>", "(</w>", "there</w>", ")</w>", "!</w>", "!</w>"
    ]  # fmt: skip
    assert ids[2] == 40477 and ids[4] == 0
    assert tokenizer.decode(ids[:4]) == "the cat\nsat"
    grown = with_added_tokens(tokenizer, ["_start_", "_delimiter_", "_classify_"])
    assert grown.specials == {"_start_": 40478, "_delimiter_": 40479, "_classify_": 40480}


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Well…  it's—2018!!", "Well... it's - 2018 !!"),
        ("a –b―c´d", "a - b - c'd"),
        ("one  \n\n  two\t\tthree\n", "one \n two three"),
        ("C:\\path\\to", "C:\\path\\to"),
        ("a--b~c;d?e+f,g)h(i/j*k[l]m}n{o|p_q", "a -- b ~ c ; d ? e + f , g ) h ( i / j * k [ l ] m } n { o | p _ q"),
        ("don't .stop: #1 $5", "don't .stop: #1 $5"),
        ("schÃ¶n \u201cquoted\u201d &amp; ﬁne", 'schön " quoted " & fine'),
        ("", ""),
    ],
)
def test_gpt1s_clean_up_is_the_originals(text: str, clean: str):
    assert standardized(text) == clean


# Against transformers


def _cases(shared: Path) -> list[str]:
    book = (shared / "data" / "pretrain_books" / "the-time-machine.txt").read_text("utf-8")
    return [line for line in book.splitlines() if line.strip()][:2000]


@pytest.mark.parity
def test_gpt2s_ids_are_those_of_transformers(shared: Path):
    transformers = pytest.importorskip("transformers")
    folder = shared / "data" / "vocab_gpt2"
    theirs = transformers.GPT2TokenizerFast(vocab=str(folder / "encoder.json"), merges=str(folder / "vocab.bpe"))
    _same(load_tokenizer(folder), [*_cases(shared), *SAMPLE, " \n\n  x\t\r\n他来了。  ", "a'S 'll"], theirs)


@pytest.mark.parity
def test_gpt1s_ids_are_those_of_transformers(shared: Path):
    """On text that is clean already: their clean-up is another one."""
    transformers = pytest.importorskip("transformers")
    folder = shared / "data" / "vocab_gpt1"
    theirs = transformers.OpenAIGPTTokenizerFast(
        vocab=str(folder / "encoder_bpe_40000.json"), merges=str(folder / "vocab_40000.bpe")
    )
    _same(load_tokenizer(folder), [text for text in map(standardized, _cases(shared)) if text.isascii()], theirs)


def _same(tokenizer: Tokenizer, texts: list[str], theirs: Callable[..., Any]) -> None:
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert tokenizer.encode(texts) == expected and sum(map(len, expected)) > 1000


def test_tokens_grown_behind_a_vocabulary_leave_its_options_as_they_are(tmp_path: Path):
    base = Gpt1BPE(["<unk>", "a</w>", "b</w>"], [], cleaned="transformers")
    grown = with_added_tokens(base, ["_start_"])
    grown.save(tmp_path / "saved")
    opened = load_tokenizer(tmp_path / "saved")
    assert opened.fingerprint == grown.fingerprint and opened.encode(["Á"]) == [[1]]
