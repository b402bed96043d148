"""Files of word vectors: every published form gives the same words and numbers, and each fault is one line."""

import gzip

import numpy as np
import pytest

from contexture.data.errors import DataError
from contexture.data.word_vectors import read_word_vectors
from tests.helpers.parity_rule import assert_close

WORDS = ["the", "café", "日本", ". . .", "U.S."]
VECTORS = np.arange(-7, 8, dtype=np.float32).reshape(5, 3) / 8 + np.float32(1 / 3)


def _lines(end: str = "\n", mark: str = " ") -> str:
    rows = (mark.join([word, *map(repr, row.tolist())]) for word, row in zip(WORDS, VECTORS, strict=True))
    return "".join(row + end for row in rows)


def _binary(after: bytes = b"\n", words=WORDS, header: str = "5 3") -> bytes:
    rows = (word.encode() + b" " + row.astype("<f4").tobytes() for word, row in zip(words, VECTORS, strict=True))
    return header.encode() + b"\n" + b"".join(row + after for row in rows)


NO_SPACES = [word.replace(" ", "") for word in WORDS]


@pytest.mark.parametrize(
    ("content", "form"),
    [
        (_lines().encode(), "text"),
        (_lines().rstrip("\n").encode(), "text"),
        (_lines("\r\n").encode(), "text"),
        (_lines(mark="\t").encode(), "text"),
        (b"\xef\xbb\xbf" + _lines(" \n").encode() + b"\n\n", "text"),
        (("5 3\n" + _lines()).encode(), "text with a header"),
        (("5 3\n" + _lines(" \n")).encode(), "text with a header"),
        (_binary(words=NO_SPACES), "binary"),
        (_binary(b"", words=NO_SPACES), "binary"),
    ],
    ids=["glove", "no-last-end", "crlf", "tabs", "mark", "word2vec", "fasttext", "binary", "gensim-binary"],
)
def test_each_form_gives_the_words_and_the_numbers_of_the_file(tmp_path, content, form):
    (tmp_path / "v").write_bytes(content)
    read = read_word_vectors(tmp_path / "v")
    assert read.form == form and read.vectors_VD.dtype == np.float32
    assert read.words == (NO_SPACES if form == "binary" else WORDS)
    assert_close(read.vectors_VD, VECTORS, rtol=0)
    (tmp_path / "v.gz").write_bytes(gzip.compress(content))
    packed = read_word_vectors(tmp_path / "v.gz")
    assert packed.words == read.words and not packed.note()


@pytest.mark.parametrize("kind", ["text", "binary"])
def test_rows_across_blocks_are_whole(tmp_path, monkeypatch, kind):
    from contexture.data import word_vectors

    monkeypatch.setattr(word_vectors, "_BLOCK", 7)
    monkeypatch.setattr(word_vectors, "_HEAD", 40)
    content = _lines().encode() if kind == "text" else _binary(words=NO_SPACES)
    (tmp_path / "v").write_bytes(content)
    read = read_word_vectors(tmp_path / "v")
    assert read.words == (WORDS if kind == "text" else NO_SPACES)
    assert_close(read.vectors_VD, VECTORS, rtol=0)


def test_numbers_that_only_python_reads_are_read_too(tmp_path):
    (tmp_path / "v").write_text("a +1.5 2e-1\nb 1. -.5\n")
    assert_close(read_word_vectors(tmp_path / "v").vectors_VD, np.array([[1.5, 0.2], [1.0, -0.5]], np.float32), rtol=0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ": empty; "),
        (b"\n\n", ": empty; "),
        (b"The cat sat.\nIt left.\n", ":1: neither a header (count dim) nor a word and its numbers; "),
        (b"3 2\n", ":2: the file ends behind its header, which gives 3 words; "),
        (b"0 2\na 0.1 0.2\n", ":1: the header gives 0 words of 2 numbers; "),
        (b"3 2\na 0.1 0.2\nb 0.3 0.4\n", ":1: the header gives 3 words, and the file has 2; "),
        (b"1 2\na 0.1 0.2\nb 0.3 0.4\n", ":1: the header gives 1 words, and the file has 2; "),
        (b"2 3\na 0.1 0.2\nb 0.3 0.4\n", ":2: 2 numbers behind the word 'a', where 3 are expected; "),
        (b"2 1\na 0.1 0.2\nb 0.3 0.4\n", ":2: 2 numbers behind the word 'a', where 1 are expected; "),
        (b"a 0.1 0.2\nb 0.3\nc 0.5 0.6\n", ":2: 1 numbers behind the word 'b', where 2 are expected; "),
        (b"a 0.1 0.2\nb 0.3 0.4 0.5\nc 1 2\n", ":2: 3 numbers behind the word 'b', where 2 are expected; "),
        (b"a 0.1 0.2\n\nb 0.3  0.4\nc 0.5 x\n", ":4: 'x' is no number; "),
        (b"a 0.1 0.2\nb 0.3.4 0.5\n", ":2: '0.3.4' is no number; "),
        (b"a 0.1 0.2\nb NA 0.5\n", ":2: 'NA' is no number; "),
        (b"a 0.1 0.2\nb nan 0.5\n", ":2: the vector of 'b' holds nan; "),
        (b"a 0.1 0.2\nb 1_0 0.5\n", ":2: '1_0' is no number; "),
        (b"a 0.1 0.2\nb -inf 0.5\n", ":2: the vector of 'b' holds -inf; "),
        (b"a 0.1 0.2\nb 1e60 0.5\n", ":2: the vector of 'b' holds inf; "),
        (b"a 0.1 0.2\nb 0.3 0.4\na 0.5 0.6\n", ":3: the word 'a' occurs twice, first at :1; keep one of them"),
        (b"caf\xe9 0.1 0.2\n", ": no word is UTF-8; save the file as UTF-8"),
        (_binary(words=NO_SPACES)[:-20], ":4: cut off within word 4 of 5, or the header, which gives 3 numbers, "),
        (_binary(words=NO_SPACES, header="6 3"), ":6: cut off within word 6 of 6, "),
        (_binary(words=NO_SPACES, header="4 3"), ":5: bytes behind the 4 words of 3 numbers that the header gives; "),
        (_binary(words=["a", "b", "c", "b", "d"]), ":4: the word 'b' occurs twice, first at :2; keep one of them"),
        (b"9 999999999999\na \x00", ":1: the header gives 9 words of 999,999,999,999 numbers; "),
        (b"1 1\na \x00\x00\xc0\x7f", ":1: the vector of 'a' holds nan; "),
        (b"9 300\n" + b"\0" * 100_000, ":1: word 1 does not end; the header is wrong, or "),
        (b"a" * (1 << 20), ":1: a line of more than 1,048,576 bytes; give a file of word vectors"),
    ],
)
def test_each_fault_is_one_line_that_says_where(tmp_path, content, words):
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(DataError) as error:
        read_word_vectors(tmp_path / "v")
    assert str(error.value).startswith(f"{tmp_path / 'v'}{words}"), error.value
    assert "\n" not in str(error.value)


def test_a_header_with_another_dimension_is_refused_in_a_binary_file(tmp_path):
    (tmp_path / "v").write_bytes(_binary(words=NO_SPACES, header="5 2"))
    with pytest.raises(DataError):
        read_word_vectors(tmp_path / "v")


def test_words_that_are_not_utf_8_are_left_out_and_counted(tmp_path):
    words = (b"a", b"\xff", b"b", b"\xff", b"\xe9t\xe9")
    (tmp_path / "v").write_bytes(b"".join(word + b" 1.5 2.5\n" for word in words))
    read = read_word_vectors(tmp_path / "v")
    assert read.words == ["a", "b"] and read.vectors_VD.shape == (2, 2)
    assert read.note() == (
        f"{tmp_path / 'v'}:2: 3 words are not UTF-8, this one first; left out, since no text can hold them"
    )
    (tmp_path / "v").write_bytes(b"a 1.5 2.5\n\xff 1.5 2.5\n")
    assert ":2: 1 word is not UTF-8, this one first; left" in read_word_vectors(tmp_path / "v").note()


def test_a_missing_file_and_an_archive_are_one_line(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_word_vectors(tmp_path / "none")
    (tmp_path / "glove.zip").write_bytes(b"PK\x03\x04")
    with pytest.raises(DataError, match="unpack it"):
        read_word_vectors(tmp_path / "glove.zip")
