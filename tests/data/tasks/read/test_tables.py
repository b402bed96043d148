"""Labelled examples from files: which columns, which rows, and what is refused."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.config import TaskConfig
from contexture.data.errors import DataError
from contexture.data.tasks.read import tables
from contexture.data.tasks.read.examples import Pair, Tagged, Text
from contexture.data.tasks.read.read_examples import check_sources, examples, source_of
from tests.helpers.logs import logged

CLASSIFY, REGRESS, TAG = (TaskConfig(kind=kind) for kind in ("classify", "regress", "tag"))


def _write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def _read(path: Path, content: str | bytes, task: TaskConfig = CLASSIFY, labelled: bool = True) -> list[Any]:
    return list(examples(_write(path, content), task, labelled=labelled))


def _refused(path: Path, content: str | bytes, task: TaskConfig = CLASSIFY, labelled: bool = True) -> str:
    with pytest.raises(DataError) as caught:
        _read(path, content, task, labelled)
    message = str(caught.value)
    assert "\n" not in message and message.startswith(str(path))
    return message.removeprefix(f"{path.parent}/")


def test_a_tsv_has_no_quotes_and_blank_lines_are_nothing(tmp_path: Path):
    content = '\ufefflabel\tsentence\r\npos\t"so" he said, "yes\r\n\r\nneg\t no \n'
    assert _read(tmp_path / "a.TSV", content) == [
        Text('"so" he said, "yes', "pos", "a.TSV:2"),
        Text(" no ", "neg", "a.TSV:4"),
    ]


def test_a_csv_quotes_fields_over_lines(tmp_path: Path):
    content = 'Premise,Hypothesis,label\n"one, two\nthree",“x”,yes\n\n"say ""hi""",z,"no "\n'
    assert _read(tmp_path / "a.csv", content) == [
        Pair("one, two\nthree", "“x”", "yes", "a.csv:2"),
        Pair('say "hi"', "z", "no", "a.csv:5"),
    ]


def test_labels_of_jsonl_are_told_as_json_tells_them(tmp_path: Path):
    labels = ["x", 1, 2.5, True, False, -0.125]
    content = "\n\n".join(json.dumps({"text": "é", "label": label}) for label in labels)
    assert [row.label for row in _read(tmp_path / "a.jsonl", content)] == ["x", "1", "2.5", "true", "false", "-0.125"]


def test_columns_may_be_positions_and_then_there_is_no_header(tmp_path: Path):
    task = TaskConfig(kind="classify", text="2", label="1")
    assert _read(tmp_path / "a.tsv", "pos\tgood\nneg\tbad", task) == [
        Text("good", "pos", "a.tsv:1"),
        Text("bad", "neg", "a.tsv:2"),
    ]
    headed = TaskConfig(kind="classify", text="2", label="1", header="yes")
    assert _read(tmp_path / "a.tsv", "label\twhat\npos\tgood\n", headed) == [Text("good", "pos", "a.tsv:2")]
    digits = TaskConfig(kind="classify", text="2", label="1", header="yes")
    assert _read(tmp_path / "a.tsv", "2\t1\nthe text\tlab\n", digits) == [Text("the text", "lab", "a.tsv:2")]
    pair = TaskConfig(kind="regress", text="1", second="3", label="2")
    assert _read(tmp_path / "a.csv", "a,0.5,b\n", pair) == [Pair("a", "b", "0.5", "a.csv:1")]


@pytest.mark.parametrize(
    ("task", "header", "message"),
    [
        (CLASSIFY, "sentence,label", "text from column 'sentence', label from column 'label'"),
        (CLASSIFY, "id,Question,Sentence,Label", "first text from column 'Question', second text from column"),
        (CLASSIFY, "gold_label,text_a,text_b", "label from column 'gold_label'"),
        (REGRESS, "text,label,score", "label from column 'score'"),
        (TAG, "text,words,labels,upos", "words from column 'words', tags from column 'upos'"),
        (TaskConfig(kind="classify", text="b"), "a,b,intent", "text from column 'b', label from column 'intent'"),
        (TaskConfig(kind="classify", second="b"), "a,b,text,intent", "first text from column 'text', second text from"),
        (TaskConfig(kind="classify", label="text"), "review,text", "text from column 'review', label from column"),
    ],
)
def test_usual_names_of_columns_are_found_and_told(tmp_path: Path, task: TaskConfig, header: str, message: str):
    width = header.count(",") + 1
    path = _write(tmp_path / "a.csv", header + "\n" + ",".join(["1"] * width))
    with logged() as messages:
        assert len(list(examples(path, task, labelled=True))) == 1
    assert len(messages) == 1 and messages[0].startswith("a.csv: ") and message in messages[0]


def test_columns_that_are_given_are_not_told(tmp_path: Path):
    path = _write(tmp_path / "a.csv", "a,b\n1,2\n")
    with logged() as messages:
        list(examples(path, TaskConfig(kind="classify", text="a", label="b"), labelled=True))
    assert not messages


def test_unlabelled_rows_need_no_label_and_have_none(tmp_path: Path):
    assert _read(tmp_path / "a.tsv", "sentence\nx\n", labelled=False) == [Text("x", None, "a.tsv:2")]
    assert _read(tmp_path / "a.tsv", "sentence\tlabel\nx\t\n", labelled=False) == [Text("x", None, "a.tsv:2")]
    assert _read(tmp_path / "a.jsonl", '{"words": ["a"]}', TAG, labelled=False) == [Tagged(("a",), None, "a.jsonl:1")]
    task = TaskConfig(kind="classify", text="1", label="2")
    assert _read(tmp_path / "a.csv", "x\n", task, labelled=False) == [Text("x", None, "a.csv:1")]
    assert _read(tmp_path / "a.conll", "a\nb\n\nc\n", TAG, labelled=False) == [
        Tagged(("a", "b"), None, "a.conll:1"),
        Tagged(("c",), None, "a.conll:4"),
    ]


def test_words_and_tags_are_lists_or_strings(tmp_path: Path):
    content = '{"tokens": ["New York", "is"], "tags": ["B", "O"]}\n{"tokens": "a b", "tags": "X Y"}\n'
    expected = [Tagged(("New York", "is"), ("B", "O"), "a.jsonl:1"), Tagged(("a", "b"), ("X", "Y"), "a.jsonl:2")]
    assert _read(tmp_path / "a.jsonl", content, TAG) == expected
    assert _read(tmp_path / "a.tsv", "words\ttags\na b\tX Y\n", TAG) == [Tagged(("a", "b"), ("X", "Y"), "a.tsv:2")]


CONLL = "-DOCSTART- -X- O\n\nEU NNP  B-ORG\n# SYM\tO\n \n\nBrussels NNP B-LOC"


def test_conll_has_a_word_a_line_and_its_tag_last(tmp_path: Path):
    assert _read(tmp_path / "a.conll", CONLL.replace("\n", "\r\n"), TAG) == [
        Tagged(("EU", "#"), ("B-ORG", "O"), "a.conll:3"),
        Tagged(("Brussels",), ("B-LOC",), "a.conll:7"),
    ]
    by_position = TaskConfig(kind="tag", text="1", label="2")
    assert _read(tmp_path / "a.conll", CONLL, by_position)[0].tags == ("NNP", "SYM")


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        # As MultiCoNER has it: as many columns as a word, but no tag of any other line.
        ("# id 11\tdomain=en\nanna _ _ B-PER\n# _ _ O\n\n# id 22\tdomain=en\nsees _ _ O\n", ["anna #", "sees"]),
        ("# sent1\n# text = a b\na O\n\n# sent2\nb O\n", ["a", "b"]),
        ("# one\n-DOCSTART- O\n\n# two\na O\n", ["a"]),
        ("# O\na O\n\n#\tO\n\n#Oslo B-LOC\n\n#\tB-X\nb O\n", ["# a", "#", "#Oslo", "# b"]),
        ("a O\n# B-X\n\n# B-X\nb O\n", ["a #", "# b"]),
    ],
)
def test_a_comment_of_conll_is_no_word_and_a_hash_is_one(tmp_path: Path, content: str, rows: list[str]):
    assert [" ".join(row.words) for row in _read(tmp_path / "a.conll", content, TAG)] == rows
    unlabelled = _read(tmp_path / "a.conll", content, TAG, labelled=False)
    assert [" ".join(row.words) for row in unlabelled] == rows


def _conllu(*lines: str) -> str:
    return "".join("\t".join([*line.split(" "), *"_________"][:10]) + "\n" if line else "\n" for line in lines)


def test_a_column_named_in_another_case_is_taken_for_nothing_else(tmp_path: Path):
    task = TaskConfig(kind="classify", second="SENTENCE")
    rows = _read(tmp_path / "a.csv", "Text,Sentence,Label\na,b,c\n", task)
    assert rows == [Pair("a", "b", "c", "a.csv:2")]


def test_conllu_leaves_out_ranges_empty_nodes_and_comments(tmp_path: Path):
    content = "# text = x\n" + _conllu("1-2 im", "1 in in ADP IN", "2 dem der DET ART", "2.1 _", "", "1 #x # SYM $", "")
    assert _read(tmp_path / "a.conllu", content, TAG) == [
        Tagged(("in", "dem"), ("ADP", "DET"), "a.conllu:3"),
        Tagged(("#x",), ("SYM",), "a.conllu:7"),
    ]
    for label in ("xpos", "5"):
        task = TaskConfig(kind="tag", text="lemma", label=label)
        assert _read(tmp_path / "a.conllu", content, task)[0] == Tagged(("in", "der"), ("IN", "ART"), "a.conllu:3")
    message = _refused(tmp_path / "a.conllu", content, TaskConfig(kind="tag", label="UPSO"))
    assert message.startswith("a.conllu:3: there is no column 'UPSO'; the columns are 'id', 'f")


@pytest.mark.parametrize(
    ("name", "content", "task", "message"),
    [
        # columns
        ("a.tsv", "sentence\tlabel\nx\ty\n", {"text": "sentense"}, "a.tsv:1: there is no column 'sentense' (did you "
         "mean 'sentence'?); the columns are 'sentence', 'label'"),
        ("a.csv", "bC,Bc,label\nx,y,z\n", {"text": "bc"}, "a.csv:1: several columns are called 'bc'; give the pos"),
        ("a.jsonl", '{"a": {"b": 1}, "label": 2}', {"text": "a.b"}, "a.jsonl:1: the text (column 'a.b') is the number"),
        ("a.jsonl", '{"a": {"b": 1}, "label": 2}', {"text": "a.c"}, "a.jsonl:1: the text (column 'a.c') is missing"),
        ("a.jsonl", '{"a": "b", "label": 2}', {"text": "a.b.c"}, "a.jsonl:1: the text (column 'a.b.c') is missing"),
        ("a.tsv", "It was good\t1\nbad\t0\n", {}, "a.tsv:1: no column has a usual name of the text (text, sentence, "
         "review, …); the columns are 'It was good', '1'; name it with --task.text; if this line is no header, give "
         "positions: --task.text 1 --task.label 2"),
        ("a.tsv", "x\t1\n", {"text": "review"}, "a.tsv:1: there is no column 'review'; the columns are 'x', '1'; if t"),
        ("a.csv", "text,x\na,b\n", {}, "a.csv:1: no column has a usual name of the label (label, category, class, …);"),
        ("a.jsonl", '{"words": "x"}', {}, "a.jsonl:1: no column has a usual name of the text (text, sentence, review,"),
        ("a.jsonl", "{}", {}, "a.jsonl:1: no column has a usual name of the text (text, sentence, review, …); there a"),
        ("a.csv", "text,review,label\na,b,c\n", {}, "a.csv:1: 'text', 'review' may each be the text; name it with --t"),
        ("a.csv", "text,label,score\na,b,c\n", {}, "a.csv:1: 'label', 'score' may each be the label; name it with --t"),
        ("a.csv", "text1,text2,first,second\na,b,c,d\n", {}, "a.csv:1: 'text1', 'text2', 'first', 'second' may each b"),
        ("a.csv", "text,a,a\nx,y,z\n", {"label": "a"}, "a.csv:1: several columns are called 'a'; give the position, 2"),
        ("a.csv", "a,b\n", {"text": "1", "label": "3"}, "a.csv:1: --task.label is 3 where there are 1 to 2; give"),
        ("a.csv", "a,b\n", {"text": "0", "label": "1"}, "a.csv:1: --task.text is 0 where there are 1 to 2; give"),
        ("a.csv", "a,b\n", {"text": "a", "label": "1", "header": "no"}, "a.csv: columns have no names here, and "
         "--task.text is 'a'; give a position, from 1"),
        ("a.csv", "a,b\n", {"header": "no"}, "a.csv: a file without a header wants positions; give --task.text 1 --ta"),
        # rows
        ("a.tsv", "premise\thypothesis\tlabel\na\tb\tc\nx\n", {}, "a.tsv:3: 1 column where the header has 3 ('premise"),
        ("a.csv", "text,label\na,b,c\n", {}, "a.csv:2: 3 columns where the header has 2 ('text', 'label'); put a comm"),
        ("a.csv", "a,b\n\nc\n", {"text": "1", "label": "2"}, "a.csv:3: 1 column where line 1 has 2; put a comma betwe"),
        ("a.tsv", "sentence\tlabel\n \ty\n", {}, "a.tsv:2: the text (column 'sentence') is empty; fill it, or leave t"),
        ("a.tsv", "sentence\tlabel\nx\t \n", {}, "a.tsv:2: the label (column 'label') is empty; fill it, or leave the"),
        ("a.csv", "1,\n", {"text": "1", "label": "2"}, "a.csv:1: the label (column 2) is empty"),
        ("a.csv", "text1,text2,label\na,,x\n", {}, "a.csv:2: the second text (column 'text2') is empty"),
        ("a.tsv", "sentence\tlabel\n", {}, "a.tsv: no row in the file but its header; give a row for each example"),
        ("a.tsv", "\n\n", {}, "a.tsv: no row in the file; give a row for each example"),
        ("a.jsonl", "\n\n", {}, 'a.jsonl: no row in the file; every line of a *.jsonl is an object like {"text": "…"'),
        ("a.tsv", b"sentence\tlabel\nna\xc3\xafv\xff\tx\n", {}, "a.tsv:2: not UTF-8 (byte 0xff at column 5); save the"),
        ("a.csv", b"text,label\n\xff,x\n", {}, "a.csv:2: not UTF-8 (byte 0xff at column 1); save the file as UTF-8"),
        # quotes
        ("a.csv", 'text,label\n"a""b\n""c","e""\n', {}, "a.csv:3: the quoted field that begins here is never closed;"),
        ("a.csv", 'text,label\na,b\n"a\nb","x\ny,z\n', {}, 'a.csv:4: the quoted field that begins here is never close'),
        ("a.csv", 'text,label\n"a"b,c\n', {}, "a.csv:2: text after a closing quote; write a quote within a quoted fie"),
        ("a.csv", "text;label\na, b;x\n", {}, "a.csv:1: no column has a usual name of the text"),
        ("a.csv", "text,label\na\rb,c\n", {}, "a.csv:2: 1 column where the header has 2"),
        # jsonl
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text"\n', {}, "a.jsonl:2: not JSON (Expecting ':' delimiter); every"),
        ("a.jsonl", "[1]", {}, "a.jsonl:1: no object; every line of a *.jsonl is an object like"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text": "x"}\n', {}, "a.jsonl:2: the label (column 'label') is missi"),
        ("a.jsonl", '{"text": 1.5, "label": 1}', {}, "a.jsonl:1: the text (column 'text') is the number 1.5, no strin"),
        ("a.jsonl", '{"text": null, "label": 1}', {}, "a.jsonl:1: the text (column 'text') is null, no string"),
        ("a.jsonl", '{"text": true, "label": 1}', {}, "a.jsonl:1: the text (column 'text') is true or false, no strin"),
        ("a.jsonl", '{"text": "x", "label": null}', {}, "a.jsonl:1: the label (column 'label') is missing; give every"),
        ("a.jsonl", '{"text": "x", "label": [1]}', {}, "a.jsonl:1: the label (column 'label') is a list; give a strin"),
        ("a.jsonl", '{"text": "x", "label": {}}', {}, "a.jsonl:1: the label (column 'label') is an object; give a str"),
        ("a.jsonl", '{"text": "\\udc00", "label": 1}', {}, "a.jsonl:1: half a character (a lone \\ud800-\\udfff); eve"),
        # words and tags
        ("a.tsv", "words\ttags\na b c d\tX Y Z\n", {"kind": "tag"}, "a.tsv:2: 4 words and 3 tags; give every word one"),
        ("a.tsv", "words\ttags\na  b\tX Y\n", {"kind": "tag"}, "a.tsv:2: word 2 (column 'words') is empty"),
        ("a.tsv", "words\ttags\na b\tX \n", {"kind": "tag"}, "a.tsv:2: tag 2 (column 'tags') is empty"),
        ("a.tsv", "words\ttags\n \tX\n", {"kind": "tag"}, "a.tsv:2: the words (column 'words') are empty; give a row"),
        ("a.tsv", "words\tx\n \tX\n", {"kind": "tag"}, "a.tsv:1: no column has a usual name of the tags (tags, ner_ta"),
        ("a.jsonl", '{"words": ["a", 1], "tags": ["X", "Y"]}', {"kind": "tag"}, "a.jsonl:1: word 2 (column 'words') i"),
        ("a.jsonl", '{"words": [], "tags": []}', {"kind": "tag"}, "a.jsonl:1: the words (column 'words') are empty; g"),
        ("a.jsonl", '{"words": 3, "tags": []}', {"kind": "tag"}, "a.jsonl:1: the words (column 'words') are the numbe"),
        ("a.conll", "EU B\nrejects\n", {"kind": "tag"}, "a.conll:2: 1 column where line 1 has 2; give every word its"),
        ("a.conll", "EU\n", {"kind": "tag"}, "a.conll:1: 1 column where a word and its tag are wanted; give every wor"),
        ("a.conll", "\n-DOCSTART-\n\n", {"kind": "tag"}, "a.conll: no sentence in the file; give a word a line, and a"),
        ("a.conll", "EU B\n", {"kind": "tag", "label": "ner"}, "a.conll: columns have no names here, and --task.label"),
        ("a.conll", "EU B\n", {}, "a.conll: holds words with tags; give it to --task.kind tag, not classify"),
        ("a.conllu", "1\tEU\tNOUN\n", {"kind": "tag"}, "a.conllu:1: 3 columns where CoNLL-U has 10; put tabs between"),
        ("a.txt", "x", {}, "a.txt: examples lie in *.tsv, *.csv, *.jsonl, *.json, *.conll, *.conllu (also"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_one_line(
    tmp_path: Path, name: str, content: str | bytes, task: dict[str, Any], message: str
):
    assert _refused(tmp_path / name, content, TaskConfig(**{"kind": "classify", **task})).startswith(message)


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        *(("classify", option) for option in ("text", "second", "label")),
        *(("regress", option) for option in ("text", "second", "label")),
        *(("tag", option) for option in ("text", "label")),
        *(("choice", option) for option in ("text", "label")),
        *(("span", option) for option in ("text", "second", "label", "answer_start")),
    ],
)
def test_a_column_without_a_name_is_asked_for_by_its_option(tmp_path: Path, kind: str, option: str):
    given = {"text": "1", "label": "2"} | ({"second": "3", "answer_start": "4"} if kind == "span" else {})
    given |= {"choices": ("4", "5")} if kind == "choice" else {}
    task = TaskConfig(**{"kind": kind, "header": "no", **given, option: "name"})
    message = _refused(tmp_path / "a.csv", "a,b,c,d,e\n", task)
    assert message.startswith(
        f"a.csv: columns have no names here, and --task.{option.replace('_', '-')} is 'name'; give"
    )


def test_a_field_without_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "LONGEST_FIELD", 1000)
    message = _refused(tmp_path / "a.csv", 'text,label\na,"' + "word\n" * 1000)
    assert message.startswith("a.csv:2: the quoted field that begins here has more than 1000 characters; close it")
    long = TaskConfig(kind="classify", text="1", label="2")
    with pytest.raises(DataError, match=r"a\.csv:1: the quoted field that begins here has more than 1000"):
        _read(tmp_path / "a.csv", "x" * 2000 + ",b\n", long)


def test_sources_are_checked(tmp_path: Path):
    good = _write(tmp_path / "train.TSV", "text\tlabel\n")
    check_sources([good], "task.train")
    assert source_of(good) == {"name": "train.TSV", "size": 11}
    (tmp_path / "link.tsv").symlink_to(good)
    (tmp_path / "folder.tsv").mkdir()
    for names, message in (
        (["none.tsv"], r"none\.tsv: task\.train names no such file; check the path"),
        (["folder.tsv"], r"folder\.tsv: task\.train names a folder; name the files in it"),
        (
            [_write(tmp_path / "empty.csv", "")],
            r"empty\.csv: the file is empty; task\.train wants a row for each example",
        ),
        (
            [_write(tmp_path / "train.txt", "x")],
            r"train\.txt: task\.train wants \*\.tsv, \*\.csv, \*\.jsonl, \*\.json, \*\.conll, \*\.conllu \(also",
        ),
        ([good, "link.tsv"], r"link\.tsv: task\.train names this file twice; give every file once"),
    ):
        with pytest.raises(DataError, match=message):
            check_sources([str(tmp_path / name) for name in names], "task.train")


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20).filter(str.strip)
ROWS = st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=8)


@settings(max_examples=50)
@given(rows=ROWS, newline=st.sampled_from(["\n", "\r\n"]))
def test_texts_come_back_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, rows: Any, newline: str):
    folder = tmp_path_factory.getbasetemp()
    expected = [(text, label.strip()) for text, label in rows]

    def read(name: str, content: str) -> list[tuple[str, str]]:
        return [(row.text, row.label) for row in _read(folder / name, content)]

    written = io.StringIO(newline="")
    csv.writer(written, lineterminator=newline, quoting=csv.QUOTE_ALL).writerows([("text", "label"), *rows])
    assert read("r.csv", written.getvalue()) == expected
    lines = [json.dumps({"text": text, "label": label}, ensure_ascii=len(text) % 2 == 0) for text, label in rows]
    assert read("r.jsonl", newline.join(lines)) == expected
    plain = [tuple(re.sub(r"[\t\r\n]", " ", cell) for cell in row) for row in rows]
    content = "".join(f"{text}\t{label}{newline}" for text, label in [("text", "label"), *plain])
    assert read("r.tsv", content) == [(text, label.strip()) for text, label in plain]


FILES = {
    "m.tsv": ("sentence1\tsentence2\tlabel\na b\tc\tx\n\nd\te f\ty\n", CLASSIFY),
    "m.csv": ('text,label\n"a ""q"" b",1\n"x\ny",2\n', REGRESS),
    "m.jsonl": ('{"tokens": ["a", "b"], "tags": ["X", "Y"]}\n{"tokens": "c", "tags": "Z"}\n', TAG),
    "m.conll": (CONLL, TAG),
    "m.conllu": (_conllu("1 a a X Y", "2 b b Z W", "", "1 c c V U"), TAG),
}


@settings(max_examples=150)
@given(
    name=st.sampled_from(sorted(FILES)),
    at=st.integers(0, 90),
    cut=st.integers(0, 6),
    put=st.one_of(
        st.binary(max_size=3), st.sampled_from([b'"', b"\t", b"\n", b",", b"\\u", b"\xff", b"\r", b"1", b"{"])
    ),
    labelled=st.booleans(),
)
def test_damage_gives_examples_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, name: str, at: int, cut: int, put: bytes, labelled: bool
):
    content, task = FILES[name]
    raw = content.encode()
    path = _write(tmp_path_factory.getbasetemp() / name, raw[:at] + put + raw[at + cut :])
    try:
        for row in examples(path, task, labelled=labelled):
            assert row.origin.startswith(f"{name}:")
    except DataError as error:
        assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "content", "task", "hint"),
    [
        ("a.csv", "text;label\na, b;x\n", {}, "semicolons between them: put a comma there"),
        ("a.csv", "a b;x\nc d;y\n", {"text": "1", "label": "2"}, "semicolons between them: put a comma there"),
        ("a.csv", "text;label\na;x\n", {"text": "text"}, "semicolons between them: put a comma there"),
        ("a.tsv", "text,label\na,x\n", {}, "commas between them: put a tab there; name it *.csv"),
        ("a.csv", "text\tlabel\na\tx\n", {}, "tabs between them: put a comma there; name it *.tsv"),
        ("a.tsv", "text|label\na|x\n", {}, "bars between them: put a tab there"),
        ("a.csv", "words\na\n", {}, ""),
    ],
)
def test_another_separator_is_named(tmp_path: Path, name: str, content: str, task: dict[str, Any], hint: str):
    message = _refused(tmp_path / name, content, TaskConfig(kind="classify", **task))
    assert f"its columns seem to have {hint}" in message if hint else "seem to have" not in message


def test_columns_are_those_of_the_first_hundred_rows():
    rows = [(n, ["a"] * (3 if n <= 50 else 2)) for n in range(1, 102)]
    assert tables.usual_width(rows) == (1, 3) and tables.usual_width(rows[1:]) == (51, 2)
    records: list[Any] = [(n, {"a" if n <= 50 else "b": "x"}) for n in range(1, 102)]
    assert tables.table_of_records("f", lambda: iter(records), "objects").names == ("a", "b")


USUAL = {
    ("classify", "text"): "text sentence review content question utterance query",
    ("classify", "label"): "label category class intent target sentiment score gold_label",
    ("regress", "label"): "score label target similarity",
    ("tag", "text"): "tokens words text sentence",
    ("tag", "label"): "tags ner_tags upos pos_tags ner labels label",
    ("choice", "text"): "text context ctx startphrase premise question goal story sentence",
    ("span", "text"): "question query",
    ("span", "label"): "answers answer answer_text",
}
"""The names of columns in the data sets of GLUE, SQuAD, RACE, SWAG, COPA, CoNLL and TFDS."""
OTHERS = {"classify": {"text": "text", "label": "label"}, "regress": {"text": "text"}, "tag": {"text": "tokens",
          "label": "tags"}, "choice": {"choices": "choices", "label": "label"}, "span": {"text": "question",
          "second": "context", "label": "answers"}}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "role", "name"), [(*key, name) for key, names in USUAL.items() for name in names.split()]
)
def test_a_column_is_known_by_each_of_its_usual_names(tmp_path: Path, kind: Any, role: str, name: str):
    columns = {**OTHERS[kind], role: name}
    values = {"choices": ["a", "b"], "label": "0"}
    row = {column: values.get(each, "cd") for each, column in columns.items()}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    given: Any = {each: column for each, column in columns.items() if each != role}
    if "choices" in given:
        given["choices"] = (given["choices"],)
    (example,) = examples(str(tmp_path / "a.jsonl"), TaskConfig(kind=kind, **given), labelled=True)
    text = {"span": "question", "tag": "words"}.get(kind, "text")
    assert getattr(example, text) == (("cd",) if kind == "tag" else "cd")
