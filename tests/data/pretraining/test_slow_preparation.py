"""What `prepare` writes is what reading the text line by line gives, byte for byte."""

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.pretraining import text_parts, tokenize_corpus
from contexture.data.pretraining.join_parts import join
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.text_parts import job_of
from contexture.data.pretraining.tokenize_corpus import prepare, tokenize_part
from contexture.data.text import lines
from contexture.data.text.lines import sentences
from contexture.data.tokenizers.word_level import Words
from contexture.data.tokenizers.wordpiece import WordPiece
from tests.helpers.slow_pairs import vocabulary

KNOWN = ["w5", "w6", "<S>x", "é."]
WORDS = {split: Words(["<S>", "</S>", "<UNK>", *KNOWN], split) for split in ("spaces", "punctuation")}
PIECES = WordPiece(vocabulary(), lowercase=True)
# Ends of lines to Python that are none to us, white space beyond ASCII, a zero, special words spelled out, nothing that
# a WordPiece keeps (U+200B), and lines longer than others.
LINES = st.sampled_from(
    ["w5 w6 w7.", "W8. W9? No. 5", "", " ", "\t\x0b", "w5\u3000w6\xa0w5", "a\u2028b\x85c\x1cd", "</S> <S> <UNK>\x00",
     "é.", "漢字。漢字 w6", "\u200b", "y" * 60, "w5 " * 30, "\ufeffw6"]
)  # fmt: skip
ENDS = st.sampled_from(["\n", "\r\n", "\n\n", "\r\n\r\n", "\n \n", "\r", ""])
TEXT = st.lists(st.tuples(LINES, ENDS), max_size=30).map(lambda x: "w5 w6\nw6\n" + "".join(a + b for a, b in x))
Document = list[list[int]]


class Slow:
    """The numbers of words by their definition: the vocabulary's, then others by their first appearance."""

    def __init__(self, split: str) -> None:
        self.find = str.split if split == "spaces" else WORDS[split].words
        self.numbers = {word: number for number, word in enumerate(KNOWN, 3)}

    def __call__(self, sentence: str) -> list[int]:
        ids = [self.numbers.setdefault(word, len(self.numbers) + 3) for word in self.find(sentence)]
        return [*ids, 1] if ids else []


def slow_documents(text: str, split: bool, encode: Callable[[str], list[int]], most: tuple[int, int]) -> list[Document]:
    """Documents of sentences of ids. most: sentences, and tokens, after which a document is cut."""
    documents: list[Document] = [[]]
    for line in re.split("\r\n|\r|\n", text.removeprefix("\ufeff")):
        if not line.strip():
            documents.append([])
            continue
        for sentence in sentences(line.strip()) if split else [line.strip()]:
            if ids := encode(sentence):
                documents[-1].append(ids)
                if len(documents[-1]) >= most[0] or sum(map(len, documents[-1])) >= most[1]:
                    documents.append([])
    return [document for document in documents if document]


def assert_same(shards: Shards, documents: list[Document]) -> None:
    sizes = [len(sentence) for document in documents for sentence in document]
    ids = [number for document in documents for sentence in document for number in sentence]
    bounds = np.cumsum([0, *map(len, documents)])
    files = sorted(shards.folder.glob("tokens-*.bin"))
    assert b"".join(file.read_bytes() for file in files) == np.array(ids, shards.dtype).tobytes()
    assert (shards.folder / "sentences.bin").read_bytes() == np.cumsum([0, *sizes]).astype("<i8").tobytes()
    rows = np.stack([bounds[:-1], bounds[1:]], 1).astype("<i8")
    assert (shards.folder / "train.bin").read_bytes() == rows.tobytes()
    # Words that the vocabulary lacks count as its third.
    counts = np.bincount([number if number < shards.tokenizer.size else 2 for number in ids], minlength=300)
    assert shards.unigrams().tolist() == counts[: shards.tokenizer.size].tolist()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(TEXT, min_size=1, max_size=3),
    files=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=3, max_size=3),
    kind=st.sampled_from(["spaces", "punctuation", "wordpiece"]),
    split=st.booleans(),
    most=st.sampled_from([(16384, 1 << 20), (1, 1 << 20), (3, 1 << 20), (16384, 1), (4, 9)]),
    block=st.sampled_from([1, 7, 64, 1 << 18]),
    count=st.sampled_from([0, 1, 5]),
)
def test_the_shards_are_those_of_a_slow_reader(tmp_path_factory, texts, files, kind, split, most, block, count):
    folder: Path = tmp_path_factory.mktemp("slow")
    paths = []
    for number, (text, (packed, mark)) in enumerate(zip(texts, files, strict=False)):
        raw = (("\ufeff" * mark) + text).encode()
        paths.append(folder / (f"{number}.txt.gz" if packed else f"{number}.txt"))
        paths[-1].write_bytes(gzip.compress(raw) if packed else raw)
    tokenizer = PIECES if kind == "wordpiece" else WORDS[kind]
    encode = tokenizer.encode if kind == "wordpiece" else Slow(kind)
    config = DataConfig(path=tuple(map(str, paths)), split_sentences=split)
    stream = "sentence_pairs" if kind == "wordpiece" else "lanes"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenize_corpus, "LONGEST_DOCUMENT", most[0])
        patch.setattr(tokenize_corpus, "BLOCK_TOKENS", most[1])
        patch.setattr(lines, "_BLOCK", block)
        patch.setattr(text_parts, "PIECE", 50)
        try:
            if count:
                job = job_of(config, tokenizer, stream, per_file=37)
                for part in range(count):
                    tokenize_part(job, folder / "parts", part, count, lambda *new: None)
                shards = join(folder / "parts", folder / "shards")
            else:
                shards = prepare(config, tokenizer, folder / "shards", stream=stream, per_file=37)
        except DataError as error:
            # A BERT wants two sentences.
            assert "no document with two sentences" in str(error)
            return
    documents = [document for text in texts for document in slow_documents(text, split, encode, most)]
    assert_same(shards, documents)
    if isinstance(encode, Slow):
        words = [word for word, number in encode.numbers.items() if number >= len(KNOWN) + 3]
        assert (shards.folder / "words.txt").read_text("utf-8").split("\n")[:-1] == words
