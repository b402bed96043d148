"""WordPiece: the original's behaviour, published vocabularies, and learning that any process repeats."""

import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.errors import DataError
from contexture.data.tokenizers.registry import load_tokenizer
from contexture.data.tokenizers.wordpiece import SPECIAL, WordPiece, learn_wordpiece, wordpiece

SHARED = Path(__file__).parents[4] / "shared" / "data"
GOLDEN = SHARED / "golden_tokenizer_bert"
VOCABULARIES = SHARED / "vocab_bert"
golden = pytest.mark.skipif(not GOLDEN.is_dir(), reason="the golden tokenizer cases (../shared/data) are not here")

TEXT = ["The cat sat on the mat.", "A cat and a hat; the cat's hat!", "Der Hut saß, naïve café", "他来了 42 cats"] * 3


def _spelled(tokenizer: WordPiece, text: str) -> list[str]:
    return [tokenizer.token(number) for number in tokenizer.encode([text])[0]]


def _tiny(*pieces: str, lowercase: bool = True) -> WordPiece:
    return WordPiece([*SPECIAL, *pieces], lowercase)


@golden
def test_words_are_those_of_the_original():
    for case in json.loads((GOLDEN / "google_bert_tokenization_cases.json").read_text("utf-8"))["basic"]:
        assert _tiny(lowercase=case["lower"]).words(case["text"]) == case["tokens"]


@golden
def test_pieces_are_those_of_the_original():
    cases = json.loads((GOLDEN / "google_bert_tokenization_cases.json").read_text("utf-8"))
    for case in cases["full"] + cases["wordpiece"]:
        # The cases' vocabularies are cut short: the missing special pieces go behind, so that the ids stay.
        behind = [special for special in SPECIAL if special not in case["vocab"]]
        tokenizer = WordPiece(case["vocab"] + behind, "ids" in case)
        assert _spelled(tokenizer, case["text"]) == case["tokens"]
        if "ids" in case:
            assert tokenizer.encode([case["text"]]) == [case["ids"]]


@golden
def test_every_published_question_has_its_ids():
    tokenizer = wordpiece(load_tokenizer(VOCABULARIES / "bert-base-uncased-vocab.txt"))
    lines = (GOLDEN / "squad_dev_questions_bert_uncased.jsonl").read_text("utf-8").splitlines()
    cases = [json.loads(line) for line in lines]
    assert len(cases) == 1500
    assert tokenizer.encode([case["text"] for case in cases]) == [case["ids"] for case in cases]
    for case in cases:
        assert tokenizer.words(case["text"]) == case["basic"]
        assert _spelled(tokenizer, case["text"]) == case["wordpiece"]


@golden
def test_published_french_text_has_its_ids():
    tokenizer = wordpiece(load_tokenizer(VOCABULARIES / "bert-base-uncased-vocab.txt"))
    case = json.loads((GOLDEN / "bert_uncased_encoded.json").read_text("utf-8"))
    assert _spelled(tokenizer, case["text"]) == case["bpe_tokens"]
    ids = next(value for name, value in case.items() if "id" in name)
    ids = [number for number in ids if number not in (tokenizer.cls, tokenizer.sep)]
    assert tokenizer.encode([case["text"]])[0] == ids


@golden
@pytest.mark.parametrize(
    ("name", "vocabulary", "lowercase"),
    [
        ("bert-base-uncased", "bert-base-uncased-vocab.txt", True),
        ("google-bert/bert-base-uncased", "bert-base-uncased-vocab.txt", True),
        ("distilbert/distilbert-base-multilingual-cased", "bert-base-multilingual-cased-vocab.txt", False),
    ],
)
def test_published_models_cases_agree(name: str, vocabulary: str, lowercase: bool):
    tokenizer = wordpiece(load_tokenizer(VOCABULARIES / vocabulary, lowercase))
    cases = json.loads((GOLDEN / "hf_swift_tokenizer_tests.json").read_text("utf-8"))[name]
    assert len(cases) == 18
    for case in cases:
        ids = [tokenizer.cls, *tokenizer.encode([case["input"]])[0], tokenizer.sep]
        assert ids == case["encoded"]["input_ids"], case["input"]
        assert tokenizer.decode(ids) == case["decoded_with_special"]


@golden
@pytest.mark.parametrize("name", ["uncased", "cased", "chinese", "multilingual-cased"])
def test_published_vocabulary_keeps_its_ids(name: str):
    file = VOCABULARIES / f"bert-base-{name}-vocab.txt"
    tokenizer = wordpiece(load_tokenizer(file))
    specials = (tokenizer.pad, tokenizer.unk, tokenizer.cls, tokenizer.sep, tokenizer.mask)
    assert specials == (0, 100, 101, 102, 103)
    assert tokenizer.size == file.read_bytes().count(b"\n")


def test_words_of_200_characters_are_read_and_longer_ones_are_unknown():
    tokenizer = _tiny("a", "##a")
    assert tokenizer.encode(["a" * 200]) == [[5] + [6] * 199]
    assert tokenizer.encode(["a" * 201]) == [[tokenizer.unk]]


def test_special_pieces_in_text_are_text():
    tokenizer = _tiny("[", "]", "mask", "cls")
    assert _spelled(tokenizer, "[MASK] [CLS]") == ["[", "mask", "]", "[", "cls", "]"]


def test_accents_and_case_stay_when_cased():
    assert _tiny(lowercase=False).words("Ünïted HÉLLO") == ["Ünïted", "HÉLLO"]
    assert _tiny(lowercase=True).words("Ünïted HÉLLO") == ["united", "hello"]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60), st.booleans())
def test_words_follow_the_written_rules(text: str, lowercase: bool):
    text = "".join(c for c in text if _is_old(c))
    assert _tiny(lowercase=lowercase).words(text) == _words(text, lowercase)


def _is_old(c: str) -> bool:
    """Whether what a character is has long been settled: the library's tables are those of Unicode 8 (2015), and it
    takes marks, stops and format characters that came later, about 500, for letters."""
    category = unicodedata.category(c)
    settled = unicodedata.ucd_3_2_0.category(c) == category and category not in ("Co", "Cs", "Cn")
    return settled and not 0x2B820 <= ord(c) < 0x2B920


def _words(text: str, lowercase: bool) -> list[str]:
    """The rules of the original, one character at a time."""
    cjk = [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F)]
    cjk += [(0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)]
    clean = ""
    for c in text:
        category = unicodedata.category(c)
        if c in "\t\n\r" or category == "Zs":
            clean += " "
        elif c in "\0\ufffd" or category in ("Cc", "Cf"):
            continue
        else:
            clean += f" {c} " if any(low <= ord(c) <= high for low, high in cjk) else c
    words = []
    for word in clean.split():
        if lowercase:
            word = "".join(c for c in unicodedata.normalize("NFD", word.lower()) if unicodedata.category(c) != "Mn")
        part = ""
        for c in word:
            ascii_mark = 33 <= ord(c) <= 126 and not c.isalnum()
            if ascii_mark or unicodedata.category(c).startswith("P"):
                words += [part, c] if part else [c]
                part = ""
            else:
                part += c
        words += part.split()
    return words


def test_a_learned_vocabulary_has_its_special_pieces_and_spells_its_text():
    tokenizer = learn_wordpiece(TEXT, 120, lowercase=True)
    assert tokenizer.vocabulary[:5] == SPECIAL
    assert (tokenizer.pad, tokenizer.unk, tokenizer.cls, tokenizer.sep, tokenizer.mask) == (0, 1, 2, 3, 4)
    assert tokenizer.size <= 120
    assert "cat" in tokenizer.vocabulary
    ids = tokenizer.encode(TEXT)
    assert all(tokenizer.unk not in line for line in ids)
    assert tokenizer.decode(ids[0]) == "the cat sat on the mat."


def test_learned_vocabulary_is_no_larger_than_asked():
    count = ["".join(chr(0x4E00 + i) for i in range(3000))] * 2 + TEXT
    assert learn_wordpiece(count, 500, lowercase=True).size <= 500
    assert learn_wordpiece(TEXT, 20, lowercase=True).size <= 20
    assert learn_wordpiece(TEXT, 40, lowercase=True).size <= 40
    assert learn_wordpiece(TEXT, 100_000, lowercase=True).size < 200


def test_learning_is_the_same_in_every_process(tmp_path: Path):
    program = (
        "from contexture.data.tokenizers.wordpiece import learn_wordpiece\n"
        "import random\n"
        "r = random.Random(0)\n"
        "lines = [' '.join(''.join(r.choices('abcdefgh', k=r.randint(1, 6))) for _ in range(30)) for _ in range(300)]\n"
        "print(learn_wordpiece(lines, 400, True).fingerprint)\n"
    )
    root = Path(__file__).parents[3]
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": str(seed), "RAYON_NUM_THREADS": str(threads)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, threads in ((0, 1), (1, 2), (2, 4), (3, 1))
    ]
    assert len(set(runs)) == 1 and len(runs[0].strip()) == 64


def test_saved_tokenizer_is_self_contained(tmp_path: Path):
    tokenizer = learn_wordpiece(TEXT, 100, lowercase=False)
    tokenizer.save(tmp_path / "deep" / "tokenizer")
    again = wordpiece(load_tokenizer(tmp_path / "deep" / "tokenizer", lowercase=True))
    assert again.fingerprint == tokenizer.fingerprint and not again.lowercase
    assert again.encode(TEXT) == tokenizer.encode(TEXT)
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["tokenizer"]
    tokenizer.save(tmp_path / "deep" / "tokenizer")
    with pytest.raises(DataError, match="holds another tokenizer; give another folder"):
        learn_wordpiece(TEXT, 60, lowercase=False).save(tmp_path / "deep" / "tokenizer")


def test_a_tokenizer_is_not_saved_where_no_folder_can_be(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "full" / "inside").mkdir(parents=True)
    for to, message in (("file", "a file where"), ("file/t", "is a file"), ("full", "already holds something")):
        with pytest.raises(DataError, match=message):
            _tiny("a").save(tmp_path / to)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "full", "inside"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, OSError, DataError, SystemExit])
def test_what_the_texts_raise_comes_through_unchanged(kind: type[BaseException]):
    raised = kind("enough")

    def texts():
        yield "a b c"
        raise raised

    with pytest.raises(kind) as caught:
        learn_wordpiece(texts(), 100, True)
    assert caught.value is raised


def test_fingerprint_covers_vocabulary_and_options():
    prints = {_tiny("a", "b").fingerprint, _tiny("b", "a").fingerprint, _tiny("a", "b", lowercase=False).fingerprint}
    assert len(prints) == 3


def test_vocabulary_of_a_folder_is_found(tmp_path: Path):
    (tmp_path / "vocab.txt").write_bytes("\r\n".join([*SPECIAL, "a", "\u2028"]).encode() + b"\r\n\n")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.size == 7 and tokenizer.token(6) == "\u2028"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the vocabulary is empty"),
        ("\n".join([*SPECIAL, "a", "b", "a"]).encode(), r"vocab\.txt:8: the piece 'a' stands in 2 lines"),
        ("\n".join([*SPECIAL, "", "b"]).encode(), r"vocab\.txt:6: an empty line"),
        (b"[PAD]\n[UNK]\na\n", r"\[CLS\], \[SEP\], \[MASK\] missing"),
        (b"[PAD]\n[UNK]\n\xff\n", r"vocab\.txt:3: not UTF-8 \(byte 0xff\)"),
    ],
)
def test_bad_vocabulary_is_refused(tmp_path: Path, content: bytes, message: str):
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_tokenizer(tmp_path / "vocab.txt")


def test_missing_vocabulary_is_named(tmp_path: Path):
    with pytest.raises(DataError, match="no such vocabulary; give a tokenizer folder"):
        load_tokenizer(tmp_path / "none.txt")
    with pytest.raises(DataError, match=r"the folder holds no vocab\.txt"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{", "not the options of a tokenizer"),
        ('{"format": 2, "kind": "wordpiece", "lowercase": true}', "format 2, kind 'wordpiece'; this reads format 1"),
        ('{"format": 1, "kind": "phrases", "lowercase": true}', "kind 'phrases'"),
    ],
)
def test_options_of_another_format_are_refused(tmp_path: Path, options: str, message: str):
    _tiny("a").save(tmp_path / "t")
    (tmp_path / "t" / "tokenizer.json").write_text(options)
    with pytest.raises(DataError, match=message):
        load_tokenizer(tmp_path / "t")


def test_learning_from_nothing_is_refused():
    with pytest.raises(DataError, match="no word in the text"):
        learn_wordpiece(["  ", ""], 100, True)
    with pytest.raises(DataError, match="give a larger size"):
        learn_wordpiece(["a b"], 6, True)
