"""A *.json is an array of objects, or one after the other, read object by object; what is none is one line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.analysis.probing.span_objects import read_objects
from contexture.analysis.zeroshot.conversations import read_questions
from contexture.data.config import TaskConfig
from contexture.data.errors import DataError
from contexture.data.tasks.read.examples import Text
from contexture.data.tasks.read.read_examples import examples
from contexture.data.text import json_rows
from contexture.data.text.json_rows import json_objects, json_records
from contexture.data.text.sources import TextFile, expand

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.lists(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), VALUES, max_size=3), max_size=5)


@settings(max_examples=150, deadline=None)
@given(
    objects=OBJECTS,
    indent=st.sampled_from([None, 1]),
    lines=st.booleans(),
    ascii=st.booleans(),
    begin=st.sampled_from(["", "\ufeff", " \n"]),
    piece=st.integers(1, 40),
)
def test_objects_come_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory,
    objects: Any,
    indent: Any,
    lines: bool,
    ascii: bool,
    begin: str,
    piece: int,
):
    file = tmp_path_factory.getbasetemp() / "a.json"
    if lines:
        text = "\n".join(json.dumps(each, indent=indent, ensure_ascii=ascii) for each in objects)
    else:
        text = json.dumps(objects, indent=indent, ensure_ascii=ascii)
    file.write_text(f"{begin}{text}\n", "utf-8")
    raw: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_rows, "_PIECE", piece)
        assert list(json_objects(file, "", raw.append)) == list(enumerate(objects))
    assert b"".join(raw) == file.read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'[{"text": "a"}, {"text": "b"}',
            r"a\.json: not JSON at line 1 \(the array is never closed; cut off\?\); a \*",
        ),
        (
            b'[{"text": "a"},\n{"text": "b',
            r"a\.json: not JSON at line 2 \(Unterminated string starting at\); a \*\.json",
        ),
        (b'[{"text": "a"}\n{"text": "b"}]', r"a\.json: not JSON at line 2 \(a comma or \] is missing\)"),
        (b'[{"text": "a"},\n\n]', r"a\.json: not JSON at line 3 \(a comma before \]\)"),
        (b'[{"text": "a"}]\n[]', r"a\.json: not JSON at line 2 \(text after the array\)"),
        (b'{"text": "a"}\n}', r"a\.json: not JSON at line 2 \(Expecting value\)"),
        (b"[", r"a\.json: not JSON at line 1 \(the array is never closed; cut off\?\)"),
        (b'[{"text": "a"},', r"a\.json: not JSON at line 1 \(the array is never closed; cut off\?\)"),
        (b"<html>", r"a\.json: not JSON at line 1 \(Expecting value\); .*, or write it as \*\.jsonl"),
        (b'[\n{"text": "\xff"}]', r"a\.json: not UTF-8 \(byte 0xff near line 2\); save the file as UTF-8"),
        (b'[{"text": "a"}, {"text": "\xc3', r"a\.json: not UTF-8 \(byte 0xc3 near line 1\)"),
        (b'[{"text": "a"}, [1]]', r"a\.json:1: no object; a \*\.json is an array of objects like"),
        (b"[12, 3]", r"a\.json:0: no object"),
        (b'"text"', r"a\.json:0: no object"),
        (b'[{"text": "a \\ud801"}]', r"a\.json:0: half a character"),
        (b'[{"words": "a"}]', r'a\.json:0: no "text" that is a string; a \*\.json is an array of objects like'),
        (b"[" * 100_000, r"a\.json: not JSON at line 1 \(nested too deep\)"),
        (b'[{"text": "a"},\n{"text": "b", "text": "c"}]', r"a\.json: near line 2: the key 'text' twice in one object"),
        (b'[{"n": ' + b"1" * 5000 + b"}]", r"a\.json: not JSON at line 1 \(Exceeds the limit"),
    ],
)
def test_what_is_no_array_of_objects_is_one_line(tmp_path: Path, content: bytes, message: str):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        list(TextFile(tmp_path / "a.json").documents())
    assert "\n" not in str(caught.value)


def test_an_object_without_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(json_rows, "LONGEST_VALUE", 1000)
    monkeypatch.setattr(json_rows, "_PIECE", 100)
    (tmp_path / "a.json").write_text('[{"text": "a"}, {"text": "' + "word " * 100_000)
    raw: list[bytes] = []
    with pytest.raises(DataError, match="an object is too long, or a quote never closed"):
        list(json_objects(tmp_path / "a.json", "", raw.append))
    assert sum(map(len, raw)) < 200_000


def test_an_object_of_a_json_is_a_document(tmp_path: Path):
    (tmp_path / "a.json").write_text(json.dumps([{"text": "one\n\ntwo"}, {"text": "three"}], indent=2))
    (source,) = expand(tmp_path / "a.json")
    assert list(source.documents()) == [(0, "one"), (0, "two"), (0, ""), (1, "three"), (1, "")]
    assert list(source.chunks("files")) == ["one\n\ntwo", "", "three", ""]


def test_an_object_of_a_json_is_an_example_and_an_odd_one_its_rows_error(tmp_path: Path):
    (tmp_path / "a.json").write_text('[{"text": "a b", "label": 1}, {"text": "c", "label": true}]')
    read = list(examples(str(tmp_path / "a.json"), TaskConfig(kind="classify"), labelled=True))
    assert read == [Text("a b", "1", "a.json:0"), Text("c", "true", "a.json:1")]
    (tmp_path / "a.json").write_text('[{"text": "a"}, 3, {"text": "b"}]')
    records = [record for _, record in json_records(tmp_path / "a.json", "give objects")]
    assert isinstance(records[1], DataError) and records[::2] == [{"text": "a"}, {"text": "b"}]


def test_a_key_twice_in_one_object_is_an_odd_row(tmp_path: Path):
    """Python would keep the last value in silence; which one is meant nobody can tell."""
    (tmp_path / "a.jsonl").write_text(
        '{"text": "a", "label": "x"}\n{"text": "b", "label": "x", "label": "y"}\n{"text": {"de": "a", "de": "b"}}\n'
    )
    records = [record for _, record in json_records(tmp_path / "a.jsonl", "give objects")]
    assert records[0] == {"text": "a", "label": "x"}
    assert str(records[1]).startswith(f"{tmp_path}/a.jsonl:2: the key 'label' twice in one object")
    assert "a.jsonl:3: the key 'de' twice in one object" in str(records[2])


@pytest.mark.parametrize("read", [read_questions, lambda files: list(read_objects(Path(files[0])))])
def test_a_key_twice_is_an_error_of_files_of_other_forms(tmp_path: Path, read: Any):
    name = "a.json" if read is read_questions else "a.jsonl"
    (tmp_path / name).write_text('{"data": [], "data": [{"story": "a"}]}\n')
    with pytest.raises(DataError, match="the key 'data' twice in one object"):
        read([str(tmp_path / name)])
