"""Time grows with the length of a line and with nothing else: half a megabyte of one mark is read like any text."""

import json
import random
import re
import string
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path

import ftfy
import pytest

from contexture.data.errors import DataError, did_you_mean
from contexture.data.tasks.read import conll, tables
from contexture.data.text.lines import sentences
from contexture.data.text.sources import TextFile, document_batches, sentence_batches
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.byte_pair import Gpt1BPE, standardized
from contexture.data.tokenizers.open_vocabulary import OpenVocabulary
from contexture.data.tokenizers.registry import learn
from tests.helpers.long import long

SIZE = 1 << 19
QUICK = 1 << 17
"""Letters of a line, in the long suite and in the quick one. What is quadratic in Python takes minutes for both; what
is quadratic in a library is seen at the full size alone."""
SIZES = (
    pytest.param(QUICK, marks=pytest.mark.timeout(10)),
    pytest.param(SIZE, marks=[pytest.mark.long, pytest.mark.timeout(60)]),
)
MARKS = [*string.punctuation, "。", "！", "？", "…", " ", "a"]
MIXED = [". ", "a.", '".', '."', ".)", ") ", "? ! ", "。”", " .", "'a", "a-", "\t ", "1.", '""', "<>", "\u0301\u0316"]
KINDS = ("wordpiece", "byte-bpe", "sentencepiece-unigram", "sentencepiece-bpe", "words", "gpt1-bpe")


def line(mark: str, size: int = SIZE) -> str:
    return (mark * size)[:size]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mark", [*MARKS, *long(*MIXED)])
def test_a_long_line_of_marks_is_split_into_sentences_at_once(mark: str, size: int):
    """Nothing of it is lost, whatever comes behind."""
    for text in (line(mark, size), line(mark, size) + "x"):
        split = sentences(text)
        assert len("".join("".join(split).split())) == len("".join(text.split()))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "mark",
    [
        " ",
        "\u3000",
        ".",
        *long("\u0301\u0316", "\u0344\u0316", "\u0f73\u0f71"),
    ],
)
def test_a_long_line_of_marks_is_cleaned_up_at_once(mark: str, size: int):
    """Of marks that combine it is their order that takes time: by their class, lowest first."""
    for text in (line(mark, size), "x" + line(mark, size) + "x"):
        assert standardized(text) == " ".join(standardized(text).split())


@pytest.mark.parametrize("letter", ["e", "é", "क", "가", "ཀ"])
def test_as_many_marks_as_a_text_may_have_are_normalized_as_one(letter: str):
    """30 (UAX #15, stream-safe); where there are more the first 30 are put in order."""
    rng = random.Random(0)
    for _ in range(200):
        marks = "".join(rng.choices("\u0301\u0316\u0323\u0308\u0344\u0f73\u0345\u093c", k=rng.randint(0, 30)))
        for text in (f"a {letter}{marks}", f"{letter}{marks}a{marks} 1"):
            assert standardized(text) == ftfy.fix_text(text)
    assert standardized("e" + "\u0301\u0316" * 16).startswith(unicodedata.normalize("NFC", "e" + "\u0301\u0316" * 15))


# The rule in plain words, as it was before its time was bounded: it tries every stop of a run and gives back.
_PLAIN = re.compile(
    r"[.!?…؟।۔]+[\"'”’»)\]}›]*(?P<gap>\s+)(?=(?P<next>\S))|[。！？]+[”’」』）》〉】\"')]*(?P<cjk>\s*)(?=\S)"
)


def test_sentences_end_where_the_plain_pattern_says(monkeypatch: pytest.MonkeyPatch):
    """On any mixture of stops, closing marks, spaces and letters."""
    rng = random.Random(0)
    letters = list(".!?…。！？\"')”’」 \n\t\u3000aA1,-")
    texts = ["".join(rng.choices(letters, k=rng.randint(0, 12))) + "x" for _ in range(30_000)]
    split = [sentences(text) for text in texts]
    monkeypatch.setattr("contexture.data.text.lines._SENTENCE_END", _PLAIN)
    assert split == [sentences(text) for text in texts]
    assert sum(map(len, split)) > 1.2 * len(split)


def test_what_closes_a_quote_at_the_end_of_a_line_belongs_to_its_sentence():
    assert sentences("他说：“好。”") == ["他说：“好。”"]
    assert sentences("他走了。他说：“好。”") == ["他走了。", "他说：“好。”"]
    assert sentences("真的吗？？") == ["真的吗？？"]


def test_a_clean_up_keeps_line_ends_and_makes_other_blanks_one_space():
    assert standardized("a \t b\n \n c  \r\n d\u3000e ") == "a b \n c \n d e"


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    text = ["the cat sat on the mat. it's a well-known 3.5 km; " + string.printable.strip()] * 20
    sizes = dict(zip(KINDS[:5], (150, 300, 380, 380, 100), strict=True))
    learned = {kind: learn(kind, text, size, True, "punctuation") for kind, size in sizes.items()}
    letters = string.printable.strip()
    pieces = ["<unk>", *letters, *(f"{letter}</w>" for letter in letters), "aa", "ab"]
    return {**learned, "gpt1-bpe": Gpt1BPE(pieces, [("a", "a"), ("a", "b")])}


def exhaust(items: Iterable[object]) -> None:
    for _ in items:
        pass


def encode(tokenizer: Tokenizer, text: str, folder: Path) -> None:
    tokenizer.encode([text])
    if tokenizer.kind == "words":
        OpenVocabulary(tokenizer).encode([text])  # pyright: ignore[reportArgumentType]


def prepare(tokenizer: Tokenizer, text: str, folder: Path) -> None:
    """As a text file and as a row of JSON, in sentences and in whole documents."""
    (folder / "a.txt").write_text(f"{text}\n", "utf-8")
    (folder / "a.jsonl").write_text(json.dumps({"text": text}) + "\n", "utf-8")
    for file in map(TextFile, (folder / "a.txt", folder / "a.jsonl")):
        exhaust(sentence_batches(file, True))
        exhaust(document_batches(file, "blank_lines", tokenizer.split_long))


def learn_again(tokenizer: Tokenizer, text: str, folder: Path) -> None:
    if tokenizer.kind != "gpt1-bpe":
        try:
            learn(tokenizer.kind, [text], 400, True, "punctuation")
        except DataError as error:
            assert "no word in the text" in str(error) or "has no room" in str(error)


def read_tables(text: str, folder: Path) -> None:
    """A file that is broken by the marks (a quote never closed) is refused as quickly as another is read."""
    cell = text.replace("\t", " ")
    for name, content in (
        ("a.tsv", f"text\tlabel\n{cell}\tx\n"),
        ("a.csv", f"text,label\n{cell},x\n"),
        ("b.csv", f'text,label\n"{cell}\n'),
        ("a.conll", f"{text} X\n\n"),
        ("a.conllu", f"1\t{cell}" + "\t_" * 8 + "\n\n"),
    ):
        (folder / name).write_text(content, "utf-8")
        try:
            read = conll.conll if "conll" in name else lambda path: tables.separated(path, True)
            exhaust(read(folder / name).rows)
        except DataError:
            assert len(content) > len(text)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
def test_every_tokenizer_reads_a_long_line_of_stops_at_once(kind: str, tokenizers, tmp_path):
    """The long suite has every mark, and all else that reads text."""
    encode(tokenizers[kind], line(".", QUICK), tmp_path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("mark", [".", '"'])
def test_tables_of_marks_are_read_at_once(mark: str, tmp_path):
    read_tables(line(mark, QUICK), tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("work", [encode, prepare, learn_again], ids=lambda work: work.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_all_that_reads_text_reads_long_lines_of_any_mark_at_once(work: Callable, kind: str, tokenizers, tmp_path):
    for mark in [*MARKS, *MIXED]:
        work(tokenizers[kind], line(mark), tmp_path)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_tables_of_any_mark_are_read_at_once(tmp_path):
    for mark in [*MARKS, *MIXED]:
        read_tables(line(mark), tmp_path)


@pytest.mark.timeout(60)
def test_a_long_wrong_name_is_compared_with_none():
    assert did_you_mean("entailement", ["entailment", "neutral"]) == " (did you mean entailment?)"
    assert did_you_mean(line("ab"), [line("ba") + "c", line("a")]) == ""
    assert did_you_mean("entailement", [line("ab")] * 3) == ""
