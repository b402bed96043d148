"""What shards say of themselves: counts by source, lengths, ids of documents, how they were made."""

import json
from pathlib import Path

import pytest

from contexture.data.config import DataConfig, Stream
from contexture.data.errors import DataError
from contexture.data.pretraining.manifest import IDS, MANIFEST, merged, read_manifest, versions
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.text import row_facts
from contexture.data.text.row_facts import RowFacts
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.word_level import Words
from contexture.data.tokenizers.wordpiece import WordPiece
from tests.helpers.commands import done, json_of
from tests.helpers.slow_pairs import vocabulary

PIECES = WordPiece(vocabulary(), lowercase=True)
TOKENIZERS: dict[Stream, Tokenizer] = {
    "sentence_pairs": PIECES, "windows": PIECES, "lanes": Words(["<S>", "</S>", "<UNK>", "w5", "w6", "w7"]),
}  # fmt: skip
ROWS = [
    {"text": "w5 w6.\nw7 zzz.", "id": "first", "language": "en"},
    {"text": "", "id": "empty", "language": "en"},
    {"text": "w5 w6 w7.\nw5.\nw6.", "url": "http://x\ty", "lang": "de", "subset": "web"},
    {"text": "w7 w7.", "language": "en", "source": "books"},
]
PLAIN = "w5 w6.\nw7.\n\nw6 qqq.\n"


def text(folder: Path) -> DataConfig:
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "b.txt").write_text(PLAIN)
    return DataConfig(path=(str(folder / "a.jsonl"), str(folder / "b.txt")), split_sentences=False)


@pytest.mark.parametrize("stream", [*TOKENIZERS])
def test_a_manifest_counts_what_shards_hold_of_each_source(tmp_path: Path, stream: Stream):
    tokenizer = TOKENIZERS[stream]
    shards = prepare(text(tmp_path), tokenizer, tmp_path / "s", stream=stream)
    manifest = read_manifest(tmp_path / "s", shards.fingerprint)
    assert manifest is not None and manifest["versions"] == versions() and manifest["command"] == ""
    table, plain = manifest["sources"]
    assert [table["name"], plain["name"]] == ["a.jsonl", "b.txt"]
    assert table["tokens"] + plain["tokens"] == shards.tokens
    assert table["sentences"] + plain["sentences"] == shards.sentences
    # A GPT's *.txt is one document between blank lines; a row without text is none.
    assert (table["documents"], plain["documents"]) == (3, 2)
    counted = {"language": {"en": 2, "de": 1}, "source": {"books": 1, "web": 1}}
    # Sentences end at a row's end, also at that of a row without any.
    counted["language"]["en"] += stream != "windows"
    assert table["counts"] == counted and plain["counts"] == {}
    # Unknown, counted by hand: "zzz", "qqq" and each stop; of words between spaces those with a stop.
    by_hand = {"sentence_pairs": (7, 4), "windows": (7, 4), "lanes": (6, 3)}[stream]
    assert (table["unknown"], plain["unknown"]) == by_hand
    assert sum(manifest["lengths"]["train"]) == shards.splits["train"].documents == 5
    assert manifest["tokenizer"]["fingerprint"] == tokenizer.fingerprint


@pytest.mark.parametrize("stream", [*TOKENIZERS])
def test_ids_of_rows_stand_at_their_first_sentence(tmp_path: Path, stream: Stream):
    shards = prepare(text(tmp_path), TOKENIZERS[stream], tmp_path / "s", stream=stream)
    lines = [line.split("\t") for line in (tmp_path / "s" / IDS).read_text().splitlines()]
    # White space within an id would end it.
    assert [name for _, name in lines] == ["first", "http://x y"]
    starts = [int(number) for number, _ in lines]
    firsts = [shards.splits["train"].document(number)[0] for number in range(2)]
    assert starts == firsts


def test_text_without_ids_has_no_file_of_them(tmp_path: Path):
    (tmp_path / "b.txt").write_text(PLAIN)
    prepare(DataConfig(path=(str(tmp_path / "b.txt"),)), PIECES, tmp_path / "s")
    assert not (tmp_path / "s" / IDS).exists()


def test_lengths_are_counted_by_powers_of_two(tmp_path: Path):
    lengths = [2, 3, 4, 7, 8, 100]
    (tmp_path / "a.txt").write_text("\n\n".join(f"{'w5 ' * (n - 1)}\nw6" for n in lengths))
    shards = prepare(DataConfig(path=(str(tmp_path / "a.txt"),), split_sentences=False), PIECES, tmp_path / "s")
    manifest = read_manifest(tmp_path / "s", shards.fingerprint)
    assert manifest is not None and manifest["lengths"]["train"][:8] == [0, 2, 2, 1, 0, 0, 1, 0]


@pytest.mark.parametrize("wrong", ["{", "[]", '{"format": 1}', None])
def test_a_damaged_manifest_is_named_and_a_missing_one_is_none(tmp_path: Path, wrong: str | None):
    shards = prepare(text(tmp_path), PIECES, tmp_path / "s")
    file = tmp_path / "s" / MANIFEST
    file.write_text(file.read_text().replace('"tokens": 1', '"tokens": 2') if wrong is None else wrong)
    with pytest.raises(DataError, match=r"manifest\.json: damaged, or of other shards; delete it, or prepare the text"):
        read_manifest(tmp_path / "s", shards.fingerprint)
    file.unlink()
    assert read_manifest(tmp_path / "s", shards.fingerprint) is None
    # A run reads the tokens all the same.
    Shards.open(tmp_path / "s").verify()


def test_a_manifest_of_other_shards_is_refused(tmp_path: Path):
    prepare(text(tmp_path), PIECES, tmp_path / "s")
    with pytest.raises(DataError, match="of other shards"):
        read_manifest(tmp_path / "s", "0" * 64)


def test_too_many_values_are_counted_together(monkeypatch: pytest.MonkeyPatch):
    """All of them, so that counts do not depend on the parts that they are summed over."""
    monkeypatch.setattr(row_facts, "_MOST", 2)
    values = ["a", "b", "c", "a", "d"]
    for borders in ([5], [2, 5], [1, 2, 3, 4, 5], [3, 5]):
        parts = []
        for first, end in zip([0, *borders], borders, strict=False):
            facts = RowFacts()
            for value in values[first:end]:
                facts.end({"source": value, "language": True, "id": None})
            parts.append(facts.counts)
        assert merged(parts) == {"source": {"": 5}}
    assert merged([{"source": {"a": 1}}, {"source": {"b": 2, "a": 2}}]) == {"source": {"a": 3, "b": 2}}


@pytest.mark.parametrize("column", ["source", "lang", "id", "url"])
def test_the_column_of_the_text_says_nothing_of_it(tmp_path: Path, column: str):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({column: f"w5 w6.\nw7 {n}."}) + "\n" for n in range(5)))
    config = DataConfig(path=(str(tmp_path / "a.jsonl"),), text_column=column)
    shards = prepare(config, PIECES, tmp_path / "s")
    manifest = read_manifest(tmp_path / "s", shards.fingerprint)
    assert manifest is not None and manifest["sources"][0]["counts"] == {} and not (tmp_path / "s" / IDS).exists()


def test_the_command_of_shards_is_that_of_one_process(tmp_path: Path):
    """However they were made, and wherever they lie."""
    text(tmp_path)
    PIECES.save(tmp_path / "v")
    given = ["bert.tiny", "--input", tmp_path / "a.jsonl", tmp_path / "b.txt", "--tokenizer", tmp_path / "v"]
    done("prepare", *given, "--to", tmp_path / "whole")
    for part in range(2):
        done("prepare", *given, "--to", tmp_path / "parts", "--part", f"{part}/2")
    done("prepare", "bert.tiny", "--to", tmp_path / "parts", "--join")
    one, two = ((tmp_path / name / MANIFEST).read_text() for name in ("whole", "parts"))
    words = " ".join(map(str, given))
    assert one == two and json.loads(one)["command"] == f"contexture prepare {words}"
    shown = json_of("show", tmp_path / "whole", "--to", tmp_path / "page.html")
    assert shown["command"].endswith(words) and shown["counts"]["language"] == {"en": 3, "de": 1}
    page = (tmp_path / "page.html").read_text()
    assert "<svg" in page and "a.jsonl" in page and "Documents by language" in page and "<script" not in page
