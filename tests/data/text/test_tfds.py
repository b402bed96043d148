"""TFDS sets on disk: as examples, as text to pretrain on, and what is refused."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from contexture.data.config import DataConfig, TaskConfig
from contexture.data.errors import DataError
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.tasks.read.examples import Pair, Tagged, Text
from contexture.data.tasks.read.read_examples import check_sources, examples, source_of
from contexture.data.text.sources import expand, texts
from contexture.data.text.tfds import open_split
from contexture.data.tokenizers.wordpiece import WordPiece
from tests.helpers.logs import logged
from tests.helpers.slow_pairs import as_text, random_documents, vocabulary
from tests.helpers.tfds_sets import build

CLASSIFY, REGRESS, TAG = (TaskConfig(kind=kind) for kind in ("classify", "regress", "tag"))
TOKENIZER = WordPiece(vocabulary(), lowercase=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tfds")
    rows = [{"sentence": f"Nº {number} “was” fine.", "label": number % 2} for number in range(150)]
    unknown = [{"sentence": "who knows", "label": -1}]
    build(folder, "glue/sst2", {"train": rows, "validation": rows[:20], "test": unknown})
    pair = {"sentence1": "A.", "sentence2": "B."}
    build(folder, "glue/stsb", {"train": [{**pair, "label": label} for label in (3.8, 5.0, 0.25)]})
    build(folder, "glue/mrpc", {"validation": [{**pair, "label": 1}]}, version="1.0.0")
    build(folder, "glue/mrpc", {"train": [{**pair, "label": 0}]}, version="2.0.0")
    build(folder, "glue/mrpc", {"train": [{**pair, "label": 1}]}, version="10.0.0")
    build(folder, "conll2003", {"train": [{"tokens": ["Ann", "Lee", "é"], "ner": [1, 2, 0]}]})
    build(folder, "opinions", {"train": [{"comment": "Fine", "stars": 4, "useful": False, "both": [1, 2]}]})
    return folder


@pytest.fixture(autouse=True)
def data_dir(built: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TFDS_DATA_DIR", str(built))
    return built


def _read(path: str, task: TaskConfig, labelled: bool = True) -> list[Any]:
    return list(examples(path, task, labelled=labelled))


def _refused(path: str, task: TaskConfig = CLASSIFY) -> str:
    with pytest.raises(DataError) as caught:
        _read(path, task)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_classes_are_told_by_their_names():
    rows = _read("tfds:glue/sst2:train", CLASSIFY)
    assert len(rows) == 150
    assert rows[149] == Text("Nº 149 “was” fine.", "positive", "tfds:glue/sst2:train:149")
    assert _read("tfds:glue/sst2", CLASSIFY)[0] == Text("Nº 0 “was” fine.", "negative", "tfds:glue/sst2:train:0")
    name = "tfds:glue/sst2:1.0.0:train[-10%:]+validation[:5]"
    assert _read(name, CLASSIFY)[15:] == [
        Text(f"Nº {n} “was” fine.", ["negative", "positive"][n % 2], f"{name}:{15 + n}") for n in range(5)
    ]


def test_numbers_are_told_as_a_file_would():
    rows = _read("tfds:glue/stsb", REGRESS)
    assert rows[0] == Pair("A.", "B.", "3.8", "tfds:glue/stsb:train:0")
    assert [row.label for row in rows] == ["3.8", "5.0", "0.25"]
    for label, text in (("stars", "4"), ("useful", "false")):
        task = TaskConfig(kind="classify", text="comment", label=label)
        assert _read("tfds:opinions", task) == [Text("Fine", text, "tfds:opinions:train:0")]


def test_tags_are_told_by_their_names():
    with logged() as messages:
        rows = list(examples("tfds:conll2003:train", TAG, labelled=True))
    assert rows == [Tagged(("Ann", "Lee", "é"), ("B-PER", "I-PER", "O"), "tfds:conll2003:train:0")]
    assert messages == ["tfds:conll2003:train: words from column 'tokens', tags from column 'ner'"]


def test_a_row_that_is_too_long_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("contexture.data.text.tfds.LONGEST_ROW", 10)
    assert _refused("tfds:glue/sst2") == (
        "tfds:glue/sst2:train:0: 'sentence' holds 16 characters in one row, more than 10; break the text up"
    )


def test_the_newest_version_is_read():
    assert _read("tfds:glue/mrpc", CLASSIFY)[0].label == "equivalent"
    assert _read("tfds:glue/mrpc:2.0.0:train", CLASSIFY)[0].label == "not_equivalent"


def test_unlabelled_rows_are_only_for_prediction():
    assert _read("tfds:glue/sst2:test", CLASSIFY, labelled=False) == [Text("who knows", None, "tfds:glue/sst2:test:0")]
    assert _refused("tfds:glue/sst2:test").startswith(
        "tfds:glue/sst2:test:0: the label (column 'label') is missing; give"
    )


def test_sources_are_checked(built: Path, tmp_path: Path):
    check_sources(["tfds:glue/sst2:train[:50%]", "tfds:glue/sst2:train[50%:]", "tfds:glue/stsb"], "task.train")
    files = list((built / "glue" / "sst2" / "1.0.0").glob("glue-train*"))
    size = sum(file.stat().st_size for file in files)
    assert source_of("tfds:glue/sst2") == {"name": "tfds:glue/sst2:train", "size": size}
    with pytest.raises(DataError, match=r"tfds:glue/sst2:train\[:1%\]: task.train names this split twice; give every"):
        check_sources(["tfds:glue/sst2", "tfds:glue/sst2:train[:1%]"], "task.train")
    with pytest.raises(DataError, match="tfds:glue/cola: glue/cola is not in"):
        check_sources(["tfds:glue/cola"], "task.train")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("tfds:", "tfds:: no name of a TFDS set; give tfds:NAME[/CONFIG][:VERSION][:SPLIT], as tfds:lm1b:train"),
        ("tfds:../x", "tfds:../x: no name of a TFDS set"),
        ("tfds:glue", "tfds:glue: there are glue/mrpc, glue/sst2, glue/stsb; name one of them, as tfds:glue/mrpc"),
        ("tfds:glue/sst22", "tfds:glue/sst22: glue/sst22 is not in {root} (did you mean glue/sst2?); set TFDS_DATA_DI"),
        ("tfds:glue/xyzzy", "tfds:glue/xyzzy: glue/xyzzy is not in {root} (there are glue/mrpc, glue/sst2, glue/stsb)"),
        ("tfds:glue/sst2:2.0.0", "tfds:glue/sst2:2.0.0: there is no version 2.0.0 of glue/sst2 in {root}; there are 1"),
        ("tfds:glue/sst2:trian", "tfds:glue/sst2:trian: there is no split 'trian' (did you mean train?); there are tr"),
        ("tfds:glue/sst2:train+dev[:3]", "tfds:glue/sst2:train+dev[:3]: there is no split 'dev'; there are train, val"),
        ("tfds:glue/sst2:train[:x]", "tfds:glue/sst2:train[:x]: 'train[:x]' is no part of a split (Unrecognized split"),
        ("tfds:glue/sst2:train[:200%]", "tfds:glue/sst2:train[:200%]: 'train[:200%]' is no part of a split (When unit"),
        ("tfds:glue/sst2:train[900:]", "tfds:glue/sst2:train[900:]: 'train[900:]' is no part of a split (Requested sl"),
        ("tfds:glue/sst2:train[9:9]", "tfds:glue/sst2:train[9:9]: 'train[9:9]' holds no example; write the part as tr"),
        ("tfds:opinions", "tfds:opinions:train: no column has a usual name of the text (text, sentence, review, …); t"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_told_in_one_line(built: Path, path: str, message: str):
    assert _refused(path).startswith(message.replace("{root}", str(built)))


def test_what_is_not_on_disk_is_told_with_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TFDS_DATA_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _refused("tfds:lm1b:1.1.0:train").endswith(
        f"lm1b is not in {tmp_path}/tensorflow_datasets; set TFDS_DATA_DIR to the folder that it is in, or get it, on "
        'a machine with network: python -c "import tensorflow_datasets as tfds; '
        "tfds.builder('lm1b:1.1.0', file_format='array_record').download_and_prepare()\""
    )
    build(tmp_path / "tensorflow_datasets", "lm1b", {"train": [{"text": "a"}]})
    assert _read("tfds:lm1b", TaskConfig(kind="classify"), labelled=False)[0].text == "a"


def test_what_is_no_text_is_told():
    for column, message in (
        ("both", "(column 'both') is of type ndarray, no string"),
        ("stars", "is the number 4, no"),
    ):
        assert message in _refused("tfds:opinions", TaskConfig(kind="classify", text=column, label="useful"))


def _damaged(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(built / "glue" / "sst2", tmp_path / "glue" / "sst2")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    return tmp_path / "glue" / "sst2" / "1.0.0"


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"featuresDict": 3}', b"\xff", b'{"splits": [{"name": 3}]}'])
def test_damaged_descriptions_are_told(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes
):
    folder = _damaged(built, tmp_path, monkeypatch)
    (folder / name).write_bytes(content)
    assert _refused("tfds:glue/sst2").startswith(f"{folder}: damaged, no TFDS set (")


@pytest.mark.parametrize("dtype", ["none", "", "int65", 5, "missing"])
def test_a_dtype_that_is_none_is_told_without_tensorflow(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str | int
):
    """TFDS would load TensorFlow for it, where that is installed."""
    file = _damaged(built, tmp_path, monkeypatch) / "features.json"
    tree = json.loads(file.read_text())
    column = tree["featuresDict"]["features"]["idx"]
    column["tensor"] = {**column["tensor"], "dtype": dtype} if dtype != "missing" else []
    file.write_text(json.dumps(tree))
    shown = "" if dtype == "missing" else dtype
    assert _refused("tfds:glue/sst2") == f"{file}: {str(shown)!r} is no dtype of a column; prepare the set again"


@pytest.mark.parametrize("key", ["pythonClassName", "type"])
@pytest.mark.parametrize(
    "name", ["antigravity.Text", "tensorflow../x.Text", "", "tensorflow_datasets.testing.Text", "os"]
)
def test_a_class_that_is_not_of_tfds_is_not_imported(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, name: str
):
    file = _damaged(built, tmp_path, monkeypatch) / "features.json"
    tree = json.loads(file.read_text())
    column = tree["featuresDict"]["features"]["sentence"]
    column.update({key: name, **({"content": {}} if key == "type" else {})})
    file.write_text(json.dumps(tree))
    assert _refused("tfds:glue/sst2") == f"{file}: {name!r} is no feature of TFDS; prepare the set again"
    assert "antigravity" not in sys.modules


def test_columns_may_be_called_as_what_describes_columns(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = _damaged(built, tmp_path, monkeypatch) / "features.json"
    tree = json.loads(file.read_text())
    columns = tree["featuresDict"]["features"]
    for name in ("tensor", "dtype", "pythonClassName"):
        columns[name] = columns["sentence"]
    file.write_text(json.dumps(tree))
    assert {"tensor", "dtype", "pythonClassName"} < open_split("tfds:glue/sst2").features.keys()


def test_a_set_that_is_not_as_array_record_is_told(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    info = _damaged(built, tmp_path, monkeypatch) / "dataset_info.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "fileFormat": "tfrecord"}))
    assert _refused("tfds:glue/sst2").startswith(
        f"tfds:glue/sst2: lies in {info.parent} as tfrecord, which needs TensorFlow; get it as array_record into"
    )


def test_missing_and_damaged_records_are_told(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = _damaged(built, tmp_path, monkeypatch)
    file = folder / "glue-train.array_record-00000-of-00001"
    raw = bytearray(file.read_bytes())
    for broken in (b"", raw[:1000], raw[: len(raw) // 2], b"\0" * len(raw), b"\xff" * 2000 + raw[2000:]):
        file.write_bytes(broken)
        assert "cannot be read" in _refused("tfds:glue/sst2")
    file.unlink()
    assert _refused("tfds:glue/sst2") == f"{file}: missing, a file of tfds:glue/sst2; prepare the set again"


def _texts(folder: Path, name: str, rows: list[str], **more: Any) -> None:
    build(folder, name, {"train": [{"text": text, **more} for text in rows]})


def _content(shards: Shards) -> Any:
    index = {**shards.index, "sources": [source["sentences"] for source in shards.index["sources"]], "fingerprint": ""}
    return index, {name: (shards.folder / name).read_bytes() for name in index["files"]}


@pytest.mark.parametrize("fraction", [0.0, 0.3])
def test_text_gives_the_shards_that_a_file_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fraction: float):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    documents = random_documents(5, 60)
    content = as_text(documents)
    (tmp_path / "a.txt").write_text(content, "utf-8")
    lines = content.removesuffix("\n").split("\n")
    _texts(tmp_path, "lm1b", lines)  # a line an example
    _texts(
        tmp_path, "wikipedia/20230601.en", [text for text in content.split("\n\n") if "\n" in text.strip()], title=""
    )
    kept = "\n\n".join(text.strip() for text in content.split("\n\n") if "\n" in text.strip())
    (tmp_path / "b.txt").write_text(kept, "utf-8")
    for place, (file, name) in enumerate((("a.txt", "tfds:lm1b"), ("b.txt", "tfds:wikipedia:train"))):
        of_file, of_set = (
            prepare(
                DataConfig(path=(path,), dev_fraction=fraction, split_sentences=False),
                TOKENIZER,
                tmp_path / f"{which}{place}",
            )
            for which, path in (("file", str(tmp_path / file)), ("set", name))
        )
        assert _content(of_set) == _content(of_file)
        assert of_set.index["sources"][0]["name"] == ("tfds:lm1b:train", "tfds:wikipedia:train")[place]
        assert list(texts(expand(name))) == list(texts(expand(tmp_path / file)))


def test_one_line_goes_on_with_the_document_and_several_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    _texts(tmp_path, "lm1b", [" a", "b\n", "", "c\r\n\n d\n", "e"])
    seen: list[bytes] = []
    expected = [(0, "a"), (1, "b"), (2, ""), (3, ""), (3, "c"), (3, "d"), (3, ""), (4, "e")]
    assert list(open_split("tfds:lm1b").documents(seen.append)) == expected
    assert b"".join(seen) == b" a\nb\n\n\nc\r\n\n d\n\ne\n"


def test_changed_sets_are_told_and_missing_ones_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    _texts(tmp_path, "lm1b", as_text(random_documents(5, 30)).split("\n"))
    config = DataConfig(path=("tfds:lm1b:train[:50%]",), dev=("tfds:lm1b:train[50%:]",))
    calls: list[tuple[int, int]] = []
    shards = prepare(config, TOKENIZER, tmp_path / "s", lambda *call: calls.append(call))
    assert shards.splits["dev"].documents and len(calls) > 30
    assert all(0 <= done <= total and total == calls[0][1] for done, total in calls)
    assert shards.sources_changed(config) == ""
    assert shards.sources_changed(DataConfig(path=("tfds:lm1b:train[:40%]",))).startswith(
        "tfds:lm1b:train[:40%] was not"
    )
    file = next((tmp_path / "lm1b" / "1.0.0").glob("lm1b-train*"))
    os.truncate(file, file.stat().st_size + 1)
    assert "bytes and had" in shards.sources_changed(config)
    shutil.rmtree(tmp_path / "lm1b")
    assert shards.sources_changed(config) == ""


def test_text_that_overlaps_or_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(
        DataError, match=r"tfds:glue/sst2:train: data.path names this split twice; give every split once"
    ):
        expand(["tfds:glue/sst2:train[5:6]", "tfds:glue/sst2"])
    held_out = DataConfig(path=("tfds:glue/sst2",), dev=("tfds:glue/sst2:train[90%:]",))
    with pytest.raises(
        DataError, match=r"train\[90%:\]: data.dev names a split that data.path holds too; keep held-out"
    ):
        prepare(held_out, TOKENIZER, tmp_path / "s")
    for name, message in (
        (
            "tfds:glue/stsb",
            r"tfds:glue/stsb:train: the set has several texts \(sentence1, sentence2\) and none of them is",
        ),
        ("tfds:conll2003", r"tfds:conll2003:train: the set has no text; give one with a column 'text'"),
    ):
        with pytest.raises(DataError, match=message):
            list(texts(expand(name)))
    assert next(texts(expand("tfds:glue/sst2"))) == "Nº 0 “was” fine."
