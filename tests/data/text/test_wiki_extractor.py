"""The folders that WikiExtractor writes, and the column that text is in."""

import bz2
import html
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contexture.data.errors import DataError
from contexture.data.text import wiki_extractor
from contexture.data.text.sources import TextFile, expand
from tests.helpers.commands import done, run_command

ARTICLES = [
    ("12", "A & B", "First sentence. Second < third.\n\nA paragraph after an empty line."),
    ("13", "C", "Only one line."),
    ("14", "Empty", ""),
    ("15", 'A "D" > "E"', "One more.\nAnd its last."),
]


def block(id: str, title: str, text: str) -> str:
    """As WikiExtractor writes it without --json."""
    title, text = html.escape(title), html.escape(text)
    return f'<doc id="{id}" url="https://example.org/{id}" title="{title}">\n{title}\n\n{text}\n\n</doc>\n'


def wiki(folder: Path, as_json: bool = False, packed: bool = False) -> Path:
    """A folder with two files, in two folders, of two articles each."""
    for number, name in enumerate(("AA/wiki_00", "AB/wiki_00")):
        pair = ARTICLES[2 * number : 2 * number + 2]
        keys = ("id", "title", "text")
        lines = (json.dumps(dict(zip(keys, each, strict=True))) + "\n" if as_json else block(*each) for each in pair)
        raw = "".join(lines).encode()
        file = folder / (name + ".bz2" * packed)
        file.parent.mkdir(parents=True)
        file.write_bytes(bz2.compress(raw) if packed else raw)
    return folder


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_articles_of_a_folder_are_documents_of_their_text(tmp_path: Path, as_json: bool, packed: bool):
    sources = expand(wiki(tmp_path / "wiki", as_json, packed))
    assert [source.name for source in sources] == [f"{a}/wiki_00" + ".bz2" * packed for a in ("AA", "AB")]
    documents = [text for source in sources for text in source.chunks("blank_lines") if text]
    assert documents == [text for _, _, text in ARTICLES if text]
    lines = [line for _, line in sources[0].documents()]
    assert lines == ["First sentence. Second < third.", "A paragraph after an empty line.", "", "Only one line.", ""]


def test_a_folder_of_one_letter_pair_and_a_file_are_read_too(tmp_path: Path):
    wiki(tmp_path / "wiki")
    assert len(expand(tmp_path / "wiki" / "AA")) == len(expand(tmp_path / "wiki" / "AA" / "wiki_00")) == 1


def test_articles_keep_their_ids_and_lines(tmp_path: Path):
    file = wiki(tmp_path / "wiki") / "AA" / "wiki_00"
    assert [(each.id, each.line) for each in wiki_extractor.articles(file)] == [("12", 1), ("13", 9)]


def test_titles_with_quotes_are_titles(tmp_path: Path):
    """As WikiExtractor writes them: without escapes."""
    (tmp_path / "wiki_00").write_text(
        '<doc id="7" url="u" title="Say "hi" > now">\nSay "hi" > now\n\nText.\n\n</doc>\n'
    )
    assert [(each.id, each.text) for each in wiki_extractor.articles(tmp_path / "wiki_00")] == [("7", "Text.")]


def test_a_cut_falls_between_articles(tmp_path: Path):
    file = wiki(tmp_path / "wiki") / "AA" / "wiki_00"
    source, first = TextFile(file), len(block(*ARTICLES[0]).encode())
    assert source.can_be_cut("blank_lines") and source.can_be_cut("files")
    assert [source.document_border(at) for at in (1, first - 1, first, first + 1)] == [
        first, first, first, source.size,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('<doc id="1">\ntext\n', r"wiki_00:1: an article without </doc>; cut off\? extract it again"),
        ('<doc id="1">\na\n</doc>\nmore\n', r"wiki_00:4: not in a <doc …> … </doc> block of WikiExtractor"),
    ],
)
def test_damaged_articles_are_named(tmp_path: Path, content: str, message: str):
    (tmp_path / "wiki_00").write_text(content)
    with pytest.raises(DataError, match=message):
        list(TextFile(tmp_path / "wiki_00").documents())


def test_an_article_without_an_end_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wiki_extractor, "LONGEST_DOCUMENT", 100)
    (tmp_path / "wiki_00").write_text('<doc id="1">\n' + "word word\n" * 50 + "</doc>\n")
    with pytest.raises(DataError, match=r"wiki_00:1: an article without </doc>"):
        list(TextFile(tmp_path / "wiki_00").documents())


TABLE = {"body": ["w5 w6. w7 w8.", "w9 w10.\nw11."], "title": ["a", "b"]}


def table(folder: Path, kind: str, rows: dict[str, list[str]] = TABLE) -> Path:
    file = folder / f"a.{kind}"
    objects = [dict(zip(rows, each, strict=True)) for each in zip(*rows.values(), strict=True)]
    if kind == "parquet":
        pq.write_table(pa.table(rows), file)
    elif kind == "jsonl":
        file.write_text("".join(json.dumps(each) + "\n" for each in objects))
    else:
        file.write_text(json.dumps(objects))
    return file


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_the_column_of_the_text_is_an_option(tmp_path: Path, kind: str):
    (source,) = expand(table(tmp_path, kind), column="body")
    assert [text for text in source.chunks("files") if text] == TABLE["body"]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("jsonl", r'a\.jsonl:1: no "bodies" that is a string \(did you mean body\?\); every line of a \*\.jsonl is like'
                  r' \{"bodies": "…"\}$'),
        ("json", r'a\.json:0: no "bodies" that is a string \(did you mean body\?\)'),
        ("parquet", r"a\.parquet: no column 'bodies' \(did you mean body\?\); the columns are 'body', 'title'; rename"),
    ],
)  # fmt: skip
def test_a_column_that_is_not_there_is_named(tmp_path: Path, kind: str, message: str):
    (source,) = expand(table(tmp_path, kind), column="bodies")
    with pytest.raises(DataError, match=message):
        list(source.documents())


def test_plain_text_has_no_column(tmp_path: Path):
    (tmp_path / "a.txt").write_text("text\n")
    with pytest.raises(DataError, match=r"a\.txt: text-column body has no meaning for plain text; leave it out"):
        expand(tmp_path / "a.txt", column="body")


def test_a_run_on_shards_knows_their_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Prepared by an option, and by a file of settings; learned and tokenised by a run itself."""
    file, words = table(tmp_path, "jsonl", {"body": ["w5 w6. w7 w8.", "w9 w10.\nw11."] * 30, "text": ["x"] * 60}), []
    for name in ("body", "text"):
        vocab = tmp_path / f"vocab-{name}"
        done("tokenizer", "wordpiece", "--input", file, "--text-column", name, "--vocab-size", 60, "--to", vocab)
        words.append((vocab / "vocab.txt").read_text())
    assert "x" in words[1].split() and "x" not in words[0].split()
    (tmp_path / "settings.yaml").write_text("data.text-column: body\n")
    given = ("--input", file, "--tokenizer", tmp_path / "vocab-body", "--dev-fraction", 0.2)
    done("prepare", "bert.tiny", *given, "--text-column", "body", "--to", tmp_path / "s")
    done("prepare", "bert.tiny", *given, "--config", tmp_path / "settings.yaml", "--to", tmp_path / "s2")
    indexes = [json.loads((tmp_path / name / "index.json").read_text()) for name in ("s", "s2")]
    assert indexes[0] == indexes[1] and indexes[0]["text_column"] == "body"
    run = ("pretrain", "bert.tiny", "--data.path", tmp_path / "s", "--dir", tmp_path / "run", "--steps", 1)
    line = "the text was prepared from the column 'body'; leave data.text-column out"
    code, printed = run_command(capsys, *run, "--data.text-column", "title")
    assert code == 2 and line in printed
