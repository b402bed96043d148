"""Parquet, Arrow and saved data sets of Hugging Face: rows as they were written, and damage in one line."""

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.config import DataConfig, TaskConfig
from contexture.data.errors import DataError, FileChanged
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tasks.read.examples import ChoiceExample, Pair, Tagged, Text
from contexture.data.tasks.read.read_examples import check_sources, examples, source_of
from contexture.data.text import columnar
from contexture.data.text.columnar import Columnar
from contexture.data.text.sources import expand, texts
from contexture.data.tokenizers.wordpiece import learn_wordpiece
from tests.conftest import ROOT

SAVED = ROOT / "tests/golden/huggingface_dataset"
"""What `datasets` 5.2 wrote with DatasetDict.save_to_disk."""
CLASSIFY = TaskConfig(kind="classify")


def write(table: pa.Table, path: Path, rows: int | None = None) -> Path:
    """Writes a table as its suffix says, "*.stream.arrow" as a stream; rows: those of a batch, or of a row group."""
    if path.name.endswith(".stream.arrow"):
        with ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table, rows)
    elif path.suffix == ".arrow":
        with ipc.new_file(path, table.schema) as file:
            file.write_table(table, rows)
    elif path.suffix == ".feather":
        feather.write_feather(table, str(path), chunksize=rows)
    else:
        pq.write_table(table, path, row_group_size=rows)
    return path


NAMES = ["a.parquet", "a.arrow", "a.stream.arrow", "a.feather"]
FILES = pytest.mark.parametrize("name", NAMES)
STRINGS = st.text(st.characters(codec="utf-8"), max_size=12)


@settings(max_examples=80, deadline=None)
@given(
    rows=st.lists(st.tuples(STRINGS, st.integers(-9, 9), st.lists(STRINGS, max_size=3)), min_size=1, max_size=12),
    name=st.sampled_from(NAMES),
    size=st.integers(1, 5),
    at_once=st.integers(1, 4),
)
def test_rows_come_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, rows: Any, name: str, size: int, at_once: int
):
    written = [{"text": text, "n": number, "words": words} for text, number, words in rows]
    file = write(pa.Table.from_pylist(written), tmp_path_factory.getbasetemp() / name, size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columnar, "_AT_ONCE", at_once)
        read = [(number, dict(row)) for number, row in Columnar(file).rows()]
        seen: list[bytes] = []
        documents = list(Columnar(file).texts(seen.append))
    assert read == list(enumerate(written))
    assert [text for _, text, _ in documents] == [text for text, _, _ in rows]
    assert [number for number, _, _ in documents] == [*range(len(rows))]
    assert b"".join(seen) == "".join(f"{text}\n" for text, _, _ in rows).encode()


@FILES
def test_types_become_cells(tmp_path: Path, name: str):
    columns: dict[str, Any] = {
        "large": pa.array(["a", None], pa.large_string()),
        "category": pa.array(["x", "y"]).dictionary_encode(),
        "float32": pa.array([3.8, None], pa.float32()),
        "float64": pa.array([3.8, float("nan")]),
        "bool": pa.array([True, False]),
        "scores": pa.array([[0.1], None], pa.list_(pa.float32())),
        "price": pa.array([None, "1.50"]).cast(pa.decimal128(5, 2)),
        "none": pa.nulls(2),
        "time": pa.array([0, 1], pa.timestamp("s")),
        "image": pa.array([b"\0", b"\1"]),
    }
    file = write(pa.table(columns), tmp_path / name)
    (_, first), (_, second) = Columnar(file).rows()
    assert [first[name] for name in list(columns)[:8]] == ["a", "x", 3.8, 3.8, True, [0.1], None, None]
    assert [second[name] for name in list(columns)[:3]] == [None, "y", None]
    assert second["price"] == "1.50" and second["scores"] is None and second["float64"] is None
    assert len(second) == len(columns) and list(second) == list(columns)
    for column, kind in (("time", "timestamp"), ("image", "binary")):
        with pytest.raises(DataError, match=rf"{name}:1: column '{column}' is of type {kind}.*; give strings, numbers"):
            second[column]


@FILES
def test_a_row_is_an_example_and_an_odd_one_its_rows_error(tmp_path: Path, name: str):
    table = pa.table({"sentence": ["the cat", "the dog", None], "label": [1, 0, 1], "x": [b"", b"", b""]})
    file = str(write(table, tmp_path / name))
    check_sources([file], "task.train")
    read = examples(file, CLASSIFY, labelled=True)
    assert [next(read), next(read)] == [Text("the cat", "1", f"{name}:0"), Text("the dog", "0", f"{name}:1")]
    with pytest.raises(DataError, match=rf"{name}:2: the text \(column 'sentence'\) is null, no string; give a string"):
        next(read)
    with pytest.raises(DataError, match=rf"{name}:0: column 'x' is of type binary; give strings, numbers, or lists"):
        next(examples(file, TaskConfig(kind="classify", text="x"), labelled=True))
    with pytest.raises(DataError, match=rf"{name}: there is no column 'labl' \(did you mean 'label'\?\); the columns"):
        next(examples(file, TaskConfig(kind="classify", label="labl"), labelled=True))
    read = examples(file, TaskConfig(kind="classify", label="LABEL"), labelled=True)
    assert next(read) == Text("the cat", "1", f"{name}:0")


@FILES
def test_fields_within_objects_have_dotted_names(tmp_path: Path, name: str):
    rows = [{"de": "ein Haus", "en": "a house", "raw": b""}, {"de": "der Hund", "en": None, "raw": b""}, None]
    table = pa.table({"translation": rows, "meta": [{"score": {"label": 1}}, {"score": None}, {"score": None}]})
    file = str(write(table, tmp_path / name))
    task = TaskConfig(kind="classify", text="translation.de", second="Translation.en", label="meta.score.label")
    assert next(examples(file, task, labelled=True)) == Pair("ein Haus", "a house", "1", f"{name}:0")
    with pytest.raises(DataError, match=f"{name}: there is no column 'translaton.en'"):
        next(examples(file, dataclasses.replace(task, second="translaton.en"), labelled=True))
    odd = pa.table({"t": pa.StructArray.from_arrays(
        [pa.array(["a"]), pa.array([1], pa.timestamp("ns")), pa.array([1]), pa.array([2])], ["de", "when", "x", "x"]
    )})  # fmt: skip
    if not name.endswith("parquet"):  # which refuses to hold two fields of one name
        file_of_odd = str(write(odd, tmp_path / f"odd.{name}"))
        task = TaskConfig(kind="classify", text="t.de")
        assert next(examples(file_of_odd, task, labelled=False)) == Text("a", None, f"odd.{name}:0")
        for field in ("t.when", "t.x"):
            with pytest.raises(DataError, match=f"column '{field}'\\) is missing; every row is to have that field"):
                next(examples(file_of_odd, dataclasses.replace(task, text=field), labelled=False))
    for field, row, wrong in (
        ("translation.fr", 0, "the text (column 'translation.fr') is missing"),
        ("translation.raw", 0, "the text (column 'translation.raw') is missing"),
        ("translation.de", 2, "the text (column 'translation.de') is missing"),
        ("translation", 0, "the text (column 'translation') is an object, no string"),
    ):
        read = examples(file, TaskConfig(kind="classify", text=field), labelled=False)
        with pytest.raises(DataError, match=re.escape(f"{name}:{row}: {wrong}")):
            list(read)


def test_lists_are_words_tags_and_alternatives(tmp_path: Path):
    tags = write(pa.table({"tokens": [["The", "cat"]], "ner_tags": [["O", "B"]]}), tmp_path / "t.parquet")
    (read,) = examples(str(tags), TaskConfig(kind="tag"), labelled=True)
    assert read == Tagged(("The", "cat"), ("O", "B"), "t.parquet:0")
    choices = write(pa.table({"ctx": ["a"], "endings": [["b", "c"]], "label": [1]}), tmp_path / "c.arrow")
    (read,) = examples(str(choices), TaskConfig(kind="choice"), labelled=True)
    assert read == ChoiceExample("a", ("b", "c"), "1", "c.arrow:0")


def _described(**features: Any) -> dict[bytes, bytes]:
    return {b"huggingface": json.dumps({"info": {"features": features}}).encode()}


@FILES
@pytest.mark.parametrize("wrap", [lambda f: {"_type": "Sequence", "feature": f}, lambda f: [f]], ids=["type", "list"])
def test_class_labels_have_their_names(tmp_path: Path, name: str, wrap: Callable[[Any], Any]):
    label = {"_type": "ClassLabel", "names": ["neg", "pos"]}
    table = pa.table({"text": ["a", "b"], "label": [1, -1], "tags": [[0], [1, 0]]})
    file = write(table.replace_schema_metadata(_described(label=label, tags=wrap(label))), tmp_path / name)
    rows = [(row["label"], row["tags"]) for _, row in Columnar(file).rows()]
    assert rows == [("pos", ["neg"]), (None, ["pos", "neg"])]
    odd = pa.table({"label": [1, 2]}).replace_schema_metadata(_described(label=label))
    _, (_, row) = Columnar(write(odd, tmp_path / name)).rows()
    with pytest.raises(DataError, match=rf"{name}:1: column 'label' is class 2, and has the names of 2 classes"):
        row["label"]


@pytest.mark.parametrize("metadata", [b"", b"[", b"[]", b'{"info": 3}', b'{"info": {"features": [1]}}'])
def test_metadata_that_say_nothing_leave_numbers(tmp_path: Path, metadata: bytes):
    table = pa.table({"label": [1]}).replace_schema_metadata({b"huggingface": metadata})
    ((_, row),) = Columnar(write(table, tmp_path / "a.parquet")).rows()
    assert row["label"] == 1


def test_a_saved_data_set_is_read_by_its_split():
    train, test = str(SAVED / "train"), str(SAVED / "test")
    check_sources([train, test], "task.train")
    read = list(examples(test, CLASSIFY, labelled=True))
    assert read[:2] == [Text("a b", "neg", "test:0"), Text("c", "pos", "test:1")] and len(read) == 6
    shuffled = list(examples(train, CLASSIFY, labelled=True))
    assert [each.origin for each in shuffled] == [f"train:{n}" for n in range(6)]
    assert sorted(getattr(each, "label", "") for each in shuffled) == ["neg"] * 3 + ["pos"] * 3
    tagged = list(examples(test, TaskConfig(kind="tag"), labelled=True))
    assert tagged[0] == Tagged(("a", "b"), ("O", "B"), "test:0")
    assert list(texts(expand(SAVED / "test"))) == ["a b", "c"] * 3
    size = sum(file.stat().st_size for file in (SAVED / "train").glob("*.arrow"))
    assert source_of(f"{train}/") == {"name": "train", "size": size}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    shutil.copytree(SAVED, tmp_path / "set")
    return tmp_path / "set"


def test_a_folder_of_splits_names_one_of_them(saved: Path):
    message = "set: a data set with the splits train, test; name the folder of one: .*set/train"
    for refuse in (lambda: expand(saved), lambda: check_sources([str(saved)], "task.train")):
        with pytest.raises(DataError, match=message):
            refuse()
    (saved / "dataset_dict.json").write_text("{}")
    with pytest.raises(DataError, match="with the splits …; name the folder of one: .*set/train$"):
        expand(saved)


def _without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _with(name: str, content: object) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(json.dumps(content))


FIRST = "data-00000-of-00002.arrow"


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_without(FIRST), rf"{FIRST}: missing, a file of the data set; save it again with save_to_disk"),
        (_with("state.json", []), r"state\.json: no JSON object; save the data set again"),
        (_with("state.json", {}), r"state\.json: not the state of a saved data set"),
        (_with("state.json", {"_data_files": [{"filename": "../x.arrow"}]}), r"state\.json: not the state of a saved"),
        (_with("state.json", {"_data_files": [3]}), r"state\.json: not the state of a saved data set"),
        (_with("state.json", {"_data_files": []}), "the file is empty|the data set has no file"),
        (_with("state.json", {"_data_files": [], "_indices_data_files": [{"filename": "i.arrow"}]}),
         r"train: rows chosen by an index, which is not read; save dataset\.flatten_indices\(\)"),
        (_with("dataset_info.json", []), r"dataset_info\.json: no JSON object"),
    ],
)  # fmt: skip
def test_a_damaged_data_set_is_one_line(saved: Path, harm: Callable[[Path], object], message: str):
    folder = str(saved / "train")
    harm(saved / "train")
    for read in (
        lambda: list(texts(expand(saved / "train"))),
        lambda: (check_sources([folder], "x"), list(examples(folder, CLASSIFY, labelled=True))),
    ):
        with pytest.raises(DataError, match=message) as caught:
            read()
        assert "\n" not in str(caught.value)


def test_files_of_a_data_set_have_the_same_columns(saved: Path):
    write(pa.table({"text": ["a"], "other": [1]}), saved / "train" / "b.stream.arrow")
    (saved / "train/state.json").write_text(
        json.dumps({"_data_files": [{"filename": FIRST}, {"filename": "b.stream.arrow"}]})
    )
    with pytest.raises(DataError, match=r"b\.stream\.arrow: no column 'label', which another file of the data set has"):
        list(Columnar(saved / "train").rows())


@FILES
def test_a_file_cut_anywhere_is_an_error(tmp_path: Path, name: str):
    table = pa.table({"text": [f"the cat {n}" for n in range(40)], "label": [n % 2 for n in range(40)]})
    whole = write(table, tmp_path / name, 10).read_bytes()
    for cut in range(1, len(whole), 7):
        (tmp_path / name).write_bytes(whole[:cut])
        with pytest.raises(DataError, match=rf"{name}: (damaged|no \*|an Arrow stream without an end mark)") as caught:
            list(texts(expand(tmp_path / name)))
        assert "\n" not in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(NAMES), compressed=st.booleans(), data=st.data())
def test_a_damaged_file_is_read_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, name: str, compressed: bool, data: st.DataObject
):
    file = tmp_path_factory.getbasetemp() / f"damaged.{name}"
    table = pa.table({"text": [f"the cat {n}" for n in range(30)], "tags": [["O", "B"][: n % 3] for n in range(30)]})
    if not file.with_suffix(".whole").exists():
        file.with_suffix(".whole").write_bytes(write(table, file, 10).read_bytes())
    damaged = bytearray(write(table, file, 10).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(8, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(damaged)
    try:
        assert all(set(row) for _, row in Columnar(file).rows())
        list(texts(expand(file)))
    except DataError as error:
        assert "\n" not in str(error)


@FILES
def test_a_column_whose_name_is_no_text_is_one_line(tmp_path: Path, name: str):
    file = write(pa.table({"column": ["a"]}), tmp_path / name)
    file.write_bytes(file.read_bytes().replace(b"column", b"\x80olumn"))
    with pytest.raises(DataError, match=rf"{name}: damaged") as caught:
        Columnar(file).names()
    assert "\n" not in str(caught.value)


def test_an_old_feather_file_and_two_columns_of_a_name_are_refused(tmp_path: Path):
    (tmp_path / "a.feather").write_bytes(b"FEA1" + bytes(40))
    with pytest.raises(DataError, match=r"a\.feather: Feather of version 1, which is not read; write it again with"):
        Columnar(tmp_path / "a.feather").names()
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    with pytest.raises(DataError, match=r"a\.arrow: two columns are called 'text'; rename one"):
        list(texts(expand(write(twice, tmp_path / "a.arrow"))))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"Text": ["a"]}, r"a\.parquet: no column 'text' \(did you mean Text\?\); the columns are 'Text'; rename"),
        ({"body": ["a"]}, r"a\.parquet: no column 'text'; the columns are 'body'; rename the text's"),
        ({"text": [1]}, r"a\.parquet:0: no string in column 'text'; leave such rows out"),
        ({"text": ["a", None]}, r"a\.parquet:1: no string in column 'text'"),
    ],
)
def test_text_is_the_column_text(tmp_path: Path, table: dict[str, Any], message: str):
    with pytest.raises(DataError, match=message):
        list(texts(expand(write(pa.table(table), tmp_path / "a.parquet"))))


def test_a_damaged_column_that_nobody_asked_for_costs_no_text(tmp_path: Path):
    bad = pa.array([b"\xff\xfe", b"fine"], pa.binary()).view(pa.string())
    write(pa.table({"text": ["a", "b"], "url": bad, "id": [7, 8]}), tmp_path / "a.parquet")
    rows = list(Columnar(tmp_path / "a.parquet").texts(others=("url", "id", "lang")))
    assert [(text, row["id"], row["url"]) for _, text, row in rows] == [("a", 7, None), ("b", 8, None)]
    # One that is asked for is an error.
    with pytest.raises(DataError, match=r"a\.parquet: damaged"):
        list(Columnar(tmp_path / "a.parquet").texts(column="url"))


TOKENIZER = learn_wordpiece(["the cat sat. it slept."], 40, True)


@FILES
@pytest.mark.parametrize("stream", ["sentence_pairs", "windows"])
def test_text_gives_the_shards_that_a_jsonl_gives(tmp_path: Path, name: str, stream: Any):
    documents = [f"the cat sat {'at ' * n}.\nit slept." for n in range(9)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    file = write(pa.table({"text": documents, "n": range(9)}), tmp_path / name, 2)
    shards = [
        prepare(DataConfig(path=(str(path),), dev_fraction=0.3), TOKENIZER, tmp_path / f"s-{path.name}", stream=stream)
        for path in (tmp_path / "a.jsonl", file)
    ]
    bins = sorted(path.name for path in shards[0].folder.glob("*.bin"))
    assert len(bins) > 3
    for bin in bins:
        assert (shards[0].folder / bin).read_bytes() == (shards[1].folder / bin).read_bytes()
    assert not shards[1].sources_changed(DataConfig(path=(str(file),)))


def test_a_folder_stands_for_columnar_files_too(tmp_path: Path):
    write(pa.table({"text": ["one"]}), tmp_path / "b.parquet")
    (tmp_path / "a.txt").write_text("zero")
    (tmp_path / "notes.json").write_text("{}")
    assert list(texts(expand(tmp_path))) == ["zero", "one"]


def test_encoded_examples_know_whether_a_data_set_changed(saved: Path, tmp_path: Path):
    task = TaskConfig(kind="classify", train=(str(saved / "train"),), dev=(str(saved / "test"),))
    store = encode(task, TOKENIZER, tmp_path / "store")
    assert store.labels == ("neg", "pos") and store.counts == (3, 3)
    assert not store.sources_changed(task)
    (saved / "test/dataset_info.json").write_text((saved / "test/dataset_info.json").read_text().replace("neg", "bad"))
    assert "test is not what it was when" in store.sources_changed(task)
    again = TaskConfig(kind="classify", train=(str(saved / "train"),), dev=(f"{saved}/train/../train",))
    with pytest.raises(DataError, match=r"task\.dev names examples of task\.train too"):
        encode(again, TOKENIZER, tmp_path / "again")


@FILES
def test_a_file_that_changes_while_it_is_read_is_no_whole_one(tmp_path: Path, name: str):
    file = write(pa.table({"text": ["a", "b"]}), tmp_path / name)
    rows = Columnar(file).rows()
    next(rows)
    os.utime(file, ns=(0, 1))
    with pytest.raises(FileChanged, match=f"{name}: changed while it was read"):
        list(rows)
