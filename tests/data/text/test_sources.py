"""Raw text: which files, which lines, which sentences, and what is refused."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.errors import DataError
from contexture.data.storage import check_free
from contexture.data.text import lines, sources
from contexture.data.text.lines import sentences
from contexture.data.text.sources import TextFile, document_batches, expand, texts


def _write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_folder_stands_for_its_sorted_text_files(tmp_path: Path):
    for name in ("b.txt", "a.jsonl", "c.csv", "a.txt"):
        _write(tmp_path / name, "x")
    assert [path.name for path in expand([tmp_path])] == ["a.jsonl", "a.txt", "b.txt"]
    assert [path.name for path in expand(str(tmp_path / "a.txt"))] == ["a.txt"]


def test_paths_that_hold_no_text_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match=r"nowhere: data\.dev names no such file or folder"):
        expand([tmp_path / "nowhere"], "data.dev")
    with pytest.raises(DataError, match=r"data\.path is a folder without \*\.txt, \*\.jsonl"):
        expand([tmp_path])
    with pytest.raises(DataError, match=r"data\.path names no text"):
        expand([])
    empty = _write(tmp_path / "empty.txt", "")
    with pytest.raises(DataError, match=r"empty\.txt: the file is empty"):
        expand([empty])
    file = _write(tmp_path / "some.txt", "x")
    with pytest.raises(DataError, match=r"some\.txt: data\.path names this file twice"):
        expand([file, file])


def test_a_free_place_is_empty_or_not_there_yet(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full" / "inside").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    _write(tmp_path / "file", "x")
    before = sorted(tmp_path.rglob("*"))
    for free in ("empty", "new", "new/deep", "link", "full/../new"):
        check_free(tmp_path / free)
    for taken, message in (
        ("full", "already holds something; give another folder"),
        ("file", "a file where a folder is wanted"),
        ("file/deep/er", "file is a file; give another"),
        ("x" * 300, r"cannot be a folder \(File name too long\)"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            check_free(tmp_path / taken)
        assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_blank_lines_part_documents_and_lines_keep_their_numbers(tmp_path: Path):
    file = _write(tmp_path / "a.txt", "\ufeffone \r\n two\r\n \t \r\nthree")
    assert list(TextFile(file).documents()) == [(1, "one"), (2, "two"), (3, ""), (4, "three")]
    assert list(texts([TextFile(file)])) == ["one", "two", "three"]


def test_a_json_line_is_a_document_and_its_lines_are_paragraphs(tmp_path: Path):
    lines = [json.dumps({"text": "one\n\ntwo", "id": 1}), "", json.dumps({"text": "drei ✓"})]
    file = _write(tmp_path / "a.jsonl", "\n".join(lines))
    assert list(TextFile(file).documents()) == [(1, "one"), (1, "two"), (1, ""), (3, "drei ✓"), (3, "")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\nna\xc3\xafv\xff\n", r"a\.txt:2: not UTF-8 \(byte 0xff at column 5\); save the file as UTF-8"),
        ("a.jsonl", b'{"text": "x"}\n\xe9\n', r"a\.jsonl:2: not UTF-8 \(byte 0xe9 at column 1\)"),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', r"a\.jsonl:2: not JSON \(Expecting value\)"),
        ("a.jsonl", b'{"words": "x"}\n', r'a\.jsonl:1: no "text" that is a string'),
        ("a.jsonl", b'["text"]\n', r"a\.jsonl:1: no object; every line of a \*\.jsonl is like"),
        ("a.jsonl", b'{"text": "a \\ud801"}\n', r"a\.jsonl:1: half a character"),
        ("a.jsonl", b'{"text": "", "n": ' + b"1" * 5000 + b"}", r"a\.jsonl:1: not JSON \(Exceeds the limit"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl:1: not JSON"),
    ],
)
def test_broken_lines_are_named_by_file_and_line(tmp_path: Path, name: str, content: bytes, message: str):
    with pytest.raises(DataError, match=message):
        list(TextFile(_write(tmp_path / name, content)).documents())


def test_every_byte_is_seen(tmp_path: Path):
    file = _write(tmp_path / "a.txt", "ä b\n\nc\r\n" * 100)
    raw: list[bytes] = []
    list(TextFile(file).documents(raw.append))
    assert b"".join(raw) == file.read_bytes()


@given(text=st.text(st.sampled_from("ab ä漢😀"), min_size=1, max_size=200), limit=st.integers(8, 40))
def test_a_long_line_is_cut_between_characters(tmp_path_factory: pytest.TempPathFactory, text: str, limit: int):
    file = _write(tmp_path_factory.mktemp("long") / "a.txt", f"{text}\nend")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "LONGEST_LINE", limit)
        pieces = list(TextFile(file).documents())
    assert pieces[-1] == (2, "end")
    assert {number for number, _ in pieces[:-1]} <= {1}
    assert "".join(piece for _, piece in pieces[:-1]).replace(" ", "") == text.replace(" ", "")
    assert all(len(piece.encode()) <= 2 * limit for _, piece in pieces)


@pytest.mark.parametrize(
    "pieces",
    [
        ["Dr. Who left.", "He ran!", "Why?"],
        ["He said no.", "She left."],  # an abbreviation before a number alone
        ["See no. 5 of art. 3.", "It ends."],
        ['"Stop!" he said.', '"Go."', "She went (really?)", "Yes."],
        ["At 3 p.m. J. R. Smith met No. 5 in the U.S. today... and so on.", "E.g. this vs. That, i.e. these.", "End"],
        ["It cost $3.50 on St. Mark's Pl. near here.", "12 men came."],
        ["Mr. and Mrs. Smith.", "“Who?”", "‘I.’"],
        ["That is it…", "No more."],
        ["no stop at all"],
        ["Wer?!", "Ärger."],
        ["نعم؟", "لا."],
    ],
)
def test_sentences_end_where_a_reader_ends_them(pieces: list[str]):
    assert sentences(" ".join(pieces)) == pieces


def test_chinese_stops_end_sentences_without_a_space():
    assert sentences("他来了。他走了！“好。”他说。") == ["他来了。", "他走了！", "“好。”", "他说。"]
    assert sentences("他来了没有标点") == ["他来了没有标点"]


@given(st.text(st.sampled_from("aA1.!?。” \"'()…"), max_size=80))
def test_splitting_loses_nothing_but_spaces(line: str):
    pieces = sentences(line.strip())
    assert "".join(pieces).replace(" ", "") == line.replace(" ", "")
    assert all(piece.strip() for piece in pieces)


def documents_of(text: str) -> list[str]:
    """The text between blank lines."""
    texts = [""]
    for line in re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text.removeprefix("\ufeff")):
        if line.strip():
            texts[-1] += line
        elif texts[-1]:
            texts.append("")
    return [document for document in texts if document]


TEXT = st.text(st.sampled_from("ab cd. \n\n\n\r\t\ufeffä漢😀\u2028\x85"), max_size=120)


@settings(max_examples=150, deadline=None)
@given(TEXT, st.integers(1, 9), st.sampled_from([8, 16, 1 << 19]))
def test_documents_come_exactly_as_they_stand(
    tmp_path_factory: pytest.TempPathFactory, text: str, chunk: int, longest: int
):
    file = TextFile(tmp_path_factory.mktemp("chunks") / "a.txt")
    file.path.write_bytes(text.encode())
    raw: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "CHUNK", chunk)
        patch.setattr(lines, "LONGEST_LINE", longest)
        whole = list(file.chunks("files", raw.append))
        parts = list(file.chunks("blank_lines"))
    assert b"".join(raw) == text.encode()
    assert "".join(whole) == text.removeprefix("\ufeff")
    assert whole[-1:] == ([""] if "".join(whole) else []) and whole.count("") < 2
    if longest > 1000:  # else a line of nothing but spaces may be longer than the longest
        documents = [""]
        for part in parts:
            documents += [""] if not part else []
            documents[-1] += part
        assert documents == [*documents_of(text), ""]
    (file.path.parent / "a.jsonl").write_text(json.dumps({"text": text}))
    assert list(TextFile(file.path.parent / "a.jsonl").chunks("blank_lines")) == ([text, ""] if text else [])


def test_text_without_a_place_to_cut_is_cut_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for module, name, value in ((sources, "CHUNK", 40), (lines, "LONGEST_LINE", 100), (sources, "_LONGEST_PART", 200)):
        monkeypatch.setattr(module, name, value)
    (tmp_path / "a.txt").write_text("w" * 5000 + "\n\n" + "end")
    given = []
    for batch in document_batches(TextFile(tmp_path / "a.txt"), "blank_lines", lambda text, limit: [text]):
        given += batch
    assert "".join(part or "|" for part in given) == "w" * 5000 + "\n|end|"
    assert max(len(part or "") for part in given) <= 300
