"""Lines of files: where they end, and that none is collected without end."""

import gzip
import json
import re
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contexture.analysis.senses.occurrences import read_sentences
from contexture.analysis.zeroshot import word_perplexity
from contexture.analysis.zeroshot.conversations import read_questions
from contexture.analysis.zeroshot.files import passages
from contexture.data import plain_files
from contexture.data.config import TaskConfig
from contexture.data.errors import DataError
from contexture.data.protobuf import message_fields
from contexture.data.tasks.read import columns, conll, tables
from contexture.data.tasks.read import examples as task_examples
from contexture.data.tasks.read.examples import ChoiceExample, Pair, QuestionExample, Tagged, Text, example_chunks
from contexture.data.tasks.read.read_examples import examples
from contexture.data.tasks.read.squad_file import questions_of_json
from contexture.data.text import columnar, lines
from contexture.data.text.columnar import Columnar
from contexture.data.text.sources import TextFile, documents_of, expand, lines_of
from tests.helpers.long import long

ENDS = st.sampled_from(["\n", "\r\n", "\r"])
WITHIN = st.text(st.sampled_from("a ä漢\t\u2028\u2029\x85\x1c\x0b\x0c"), max_size=9)


@given(
    st.lists(st.tuples(WITHIN, ENDS), max_size=9), WITHIN, st.sampled_from([1, 2, 3, 5, 9, 1 << 19]), st.integers(1, 20)
)
def test_line_feeds_and_carriage_returns_end_lines_and_nothing_else(tmp_path_factory, rows, last, limit, block):
    """In files and in texts alike, wherever the file's pieces and blocks end."""
    file = tmp_path_factory.getbasetemp() / "ends.txt"
    text = "".join(f"{line}{end}" for line, end in rows) + last
    file.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "LONGEST_LINE", limit)
        patch.setattr(lines, "_BLOCK", block)
        read = list(lines.lines(file))
    written = re.findall("[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)
    assert read == list(enumerate(written, 1))
    assert lines.split_lines(text) == [*(line.rstrip("\r\n") for line in written), *([""] if not last else [])]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json"])
def test_a_text_has_the_same_lines_in_a_file_and_in_a_row(tmp_path: Path, end: str, name: str):
    text = end.join(["one\u2028two", "three\x85", "four\x1cfive"])
    (tmp_path / name).write_bytes((text if name == "a.txt" else json.dumps({"text": text})).encode())
    documents = [line for _, line in TextFile(tmp_path / name).documents() if line]
    assert documents == ["one\u2028two", "three", "four\x1cfive"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_tables_have_the_same_rows_by_any_line_end(tmp_path: Path, end: str):
    table = TaskConfig(kind="classify")
    (tmp_path / "a.tsv").write_bytes(end.join(["text\tlabel", "a\u2028b\tx", "c\ty", ""]).encode())
    (tmp_path / "a.csv").write_bytes(end.join(["text,label", '"a\u2028b",x', "c,y", ""]).encode())
    (tmp_path / "a.jsonl").write_bytes(
        end.join(['{"text": "a\u2028b", "label": "x"}', '{"text": "c", "label": "y"}']).encode()
    )
    for name, first in (("a.tsv", 2), ("a.csv", 2), ("a.jsonl", 1)):
        assert list(examples(str(tmp_path / name), table, labelled=True)) == [
            Text("a\u2028b", "x", f"{name}:{first}"), Text("c", "y", f"{name}:{first + 1}")
        ]  # fmt: skip
    (tmp_path / "a.conll").write_bytes(end.join(["a O", "b X", "", "c O"]).encode())
    tagged = examples(str(tmp_path / "a.conll"), TaskConfig(kind="tag"), labelled=True)
    assert [" ".join(getattr(each, "words", ())) for each in tagged] == ["a b", "c"]


MEGABYTE = gzip.compress(b"0" * (1 << 20))


def _endless(file: Path, begin: str, megabytes: int = 400) -> Path:
    """Writes a file whose last line is of so many megabytes, and which is of half a megabyte itself."""
    file.write_bytes(gzip.compress(begin.encode()) + MEGABYTE * megabytes)
    return file


@contextmanager
def _peak_below(megabytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < megabytes << 20
    finally:
        tracemalloc.stop()


def _task(kind: str) -> Callable[[Path], object]:
    return lambda file: list(examples(str(file), TaskConfig(kind=kind), labelled=True))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("name", "begin", "read", "most", "line"),
    [
        ("a.txt.gz", "", lambda file: list(lines_of(file, "a text")), 4, ":1: a line of more than 1,048,576 bytes"),
        ("a.txt.gz", "a b\n", lambda file: list(read_sentences([str(file)])), 4, ":2: a line of more than 1,048,576"),
        ("a.txt.gz", "a b\n", lambda file: list(passages(str(file))), 4, ":2: a line of more than 1,048,576"),
        ("a.conll.gz", "a\tO\n\n", _task("tag"), 4, ":3: a line of more than 1,048,576 bytes"),
        ("a.tsv.gz", "text\tlabel\na\tx\n", _task("classify"), 200, ":3: a line of more than 67,108,864 bytes"),
        *long(("a.csv.gz", "text,label\na,x\n", _task("classify"), 200, ":3: a line of more than 67,108,864 bytes")),
        ("a.jsonl.gz", '{"text": "a", "label": 1}\n{"text": "', _task("classify"), 200, ":2: a line of more than"),
        ("a.jsonl.gz", '{"text": "', lambda file: list(TextFile(file).documents()), 200, ":1: a line of more than"),
    ],
)
def test_memory_does_not_follow_one_line(tmp_path: Path, name, begin, read, most, line):
    file = _endless(tmp_path / name, begin)
    with _peak_below(most), pytest.raises(DataError) as caught:
        read(file)
    assert str(caught.value).startswith(f"{file}{line}")


@pytest.mark.parametrize("read", [questions_of_json, lambda file: read_questions([str(file)])])
def test_a_file_that_is_read_whole_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read):
    monkeypatch.setattr(plain_files.read_stream, "__defaults__", (1 << 20,))
    file = _endless(tmp_path / "a.json.gz", '{"data": "', 50)
    with _peak_below(8), pytest.raises(DataError, match="more than 1,048,576 bytes, which are read at once"):
        read(file)


def test_a_row_over_many_lines_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "LONGEST_ROW", 1000)
    (tmp_path / "a.csv").write_text("text,label\nb,c\n" + '"' + 'a\n","' * 1000)
    row = '"' + "a\n" * 496 + 'b","c"\n'
    assert len(row) == 1000
    (tmp_path / "b.csv").write_text("text,label\n" + row)
    assert len(list(tables.separated(tmp_path / "b.csv", True).rows)) == 1
    with pytest.raises(DataError, match=r"a\.csv:3: a row of more than 1,000 characters begins here; check its quotes"):
        list(tables.separated(tmp_path / "a.csv", True).rows)


def test_a_sentence_without_end_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conll, "LONGEST_SENTENCE", 100)
    (tmp_path / "a.conll").write_text("a O\n" * 100 + "\n" + "a O\n" * 101)
    with pytest.raises(DataError, match=r"a\.conll:102: a sentence of more than 100 words; put a blank line after"):
        list(conll.conll(tmp_path / "a.conll").rows)


def test_a_cell_has_a_limit_and_is_an_odd_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(columns, "LONGEST_FIELD", 10)
    (tmp_path / "a.tsv").write_text(f"text\tlabel\n{'a' * 10}\tx\n{'a' * 11}\tx\n")
    with pytest.raises(DataError, match=r"a\.tsv:3: the text \(column 'text'\) has 11 characters, more than 10; break"):
        _task("classify")(tmp_path / "a.tsv")


@pytest.mark.parametrize("encoded", [False, True])
def test_a_cell_of_a_columnar_file_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoded: bool):
    monkeypatch.setattr(columnar, "LONGEST_ROW", 10)
    column = pa.array(["a", "b" * 11])
    pq.write_table(pa.table({"text": column.dictionary_encode() if encoded else column}), tmp_path / "a.parquet")
    (_, row), *_ = Columnar(tmp_path / "a.parquet").rows()
    pq.write_table(pa.table({"text": column.slice(0, 1)}), tmp_path / "b.parquet")
    monkeypatch.setattr(columnar, "LONGEST_ROW", 1)
    assert next(iter(Columnar(tmp_path / "b.parquet").rows()))[1]["text"] == "a"
    monkeypatch.setattr(columnar, "LONGEST_ROW", 10)
    with pytest.raises(DataError, match=r"a\.parquet:0: column 'text' holds 11 bytes in a cell near here, more than"):
        row["text"]


def test_a_document_that_is_read_whole_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("contexture.data.text.sources.LONGEST_DOCUMENT", 100)
    (tmp_path / "a.txt").write_text(f"{'a b ' * 20}\n\n{'a b ' * 20}\n")
    assert len(list(documents_of(expand(tmp_path / "a.txt"), "blank_lines"))) == 2
    with pytest.raises(DataError, match=r"a\.txt: a document of more than 100 characters; put blank lines between"):
        list(documents_of(expand(tmp_path / "a.txt"), "files"))
    monkeypatch.setattr(word_perplexity, "LONGEST_DOCUMENT", 100)
    with pytest.raises(DataError, match="an article of more than 100 characters"):
        list(word_perplexity._articles(["a b " * 20] * 2))


def test_few_long_examples_are_read_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task_examples, "CHUNK_CHARACTERS", 10)
    monkeypatch.setattr(task_examples, "CHUNK", 3)
    for lengths, chunks in (((1, 1, 1, 9, 1, 40, 2, 2), [3, 2, 1, 2]), ((4, 5, 1, 4, 6), [3, 2]), ((9, 9, 9), [2, 1])):
        read = [Text("a" * length, None, "") for length in lengths]
        assert [len(chunk) for chunk in example_chunks(read)] == chunks


@pytest.mark.parametrize(
    ("example", "count"),
    [
        (Text("abc", None, ""), 3),
        (Pair("abc", "de", None, ""), 5),
        (Tagged(("ab", "c"), None, ""), 3),
        (ChoiceExample("ab", ("c", "def"), None, ""), 6),
        (QuestionExample("", "abc", "de", (), ""), 5),
    ],
)
def test_an_example_has_the_characters_of_all_its_texts(example, count):
    assert task_examples.characters(example) == count


@pytest.mark.parametrize("piece", [1, 4, 7, 100])
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_line_is_within_its_limit_wherever_its_pieces_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece, end
):
    """Without its end."""
    monkeypatch.setattr(lines, "LONGEST_LINE", piece)
    file = tmp_path / "a.txt"
    file.write_bytes(b"a\n" + b"b" * 16 + end.encode())
    assert len(list(lines.lines(file, most=16))) == 2
    file.write_bytes(b"a\n" + b"b" * 17 + end.encode())
    with pytest.raises(DataError, match="a.txt:2: a line of more than 16 bytes"):
        list(lines.lines(file, most=16))


@pytest.mark.parametrize("cut", range(1, 7))
def test_a_message_that_is_cut_off_is_no_message(cut: int):
    whole = b"\x08\x96\x01\x12\x02ab"
    assert dict(message_fields(whole)) == {1: 150, 2: b"ab"}
    if cut == 4:  # between two fields
        assert dict(message_fields(whole[:-cut])) == {1: 150}
    else:
        with pytest.raises((ValueError, IndexError)):
            list(message_fields(whole[:-cut]))
