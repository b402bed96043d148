"""A value that is missing is missing in every kind of file and table, and never the word "nan"."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contexture.data.config import TaskConfig
from contexture.data.errors import DataError
from contexture.data.inputs import as_jsonl, records
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tasks.read.examples import Answer, ChoiceExample, QuestionExample
from contexture.data.tasks.read.labels import Labels
from contexture.data.tasks.read.read_examples import examples, examples_of
from contexture.data.text.tfds import _plain
from contexture.data.tokenizers.wordpiece import WordPiece
from tests.helpers.logs import logged
from tests.helpers.slow_pairs import vocabulary

TOKENIZER = WordPiece(vocabulary(), lowercase=True)
NAN = float("nan")


class NAType:
    """As pandas.NA, which says neither that it is itself nor that it is not."""

    def __eq__(self, other: object) -> bool:
        raise TypeError("boolean value of NA is ambiguous")

    __hash__ = object.__hash__


class Frame:
    """As a DataFrame: named columns, and its rows as dicts."""

    columns = ("text", "label")

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def to_dict(self, form: str) -> list[dict[str, Any]]:
        assert form == "records"
        return self.rows


def _write(file: Path, rows: list[dict[str, Any]], kind: str = "classify") -> Path:
    """Writes rows, NaN as NaN; "memory" stands for rows that are given in Python."""
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif file.suffix == ".json":
        file.write_text(json.dumps(rows))
    elif file.suffix == ".jsonl":
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        given = {".tuples": [tuple(row.values()) for row in rows], ".frame": Frame(rows), ".dicts": rows,
                 ".columns": {name: [row[name] for row in rows] for name in rows[0]}}[file.suffix]  # fmt: skip
        file = file.with_suffix(".jsonl")
        file.write_bytes(as_jsonl(records(given, kind, "train")))
    return file


DOORS = ("train.jsonl", "train.json", "train.parquet", "a.tuples", "a.frame", "a.dicts", "a.columns")


@pytest.mark.parametrize("name", DOORS)
@pytest.mark.parametrize("kind", ["classify", "tag"])
def test_a_missing_label_is_no_class(tmp_path: Path, name: str, kind: str):
    plain = [(f"w{n % 9 + 1}", n % 2) for n in range(300)]
    names = ("text", "label") if kind == "classify" else ("words", "tags")
    rows: list[dict[str, Any]] = [
        dict(zip(names, (text, label) if kind == "classify" else ([text, "w1"], [label, 1]), strict=True))
        for text, label in plain
    ]
    rows[3][names[1]] = NAN if kind == "classify" else [0, NAN]
    file = _write(tmp_path / name, rows, kind)
    task = TaskConfig(kind=kind, train=(str(file),))  # pyright: ignore[reportArgumentType]
    with logged() as messages:
        store = encode(task, TOKENIZER, tmp_path / "data")
    assert [label.removesuffix(".0") for label in store.labels] == ["0", "1"]
    assert store.splits["train"].examples == 299
    assert sum("left out 1 of 300 rows" in line and " is missing; give every example one" in line
               for line in messages) == 1  # fmt: skip


@pytest.mark.parametrize("missing", [NAN, NAType(), None], ids=["nan", "NA", "none"])
def test_missing_cells_of_a_table_are_empty_ones(tmp_path: Path, missing: Any):
    """The last alternatives of a question that has fewer, and the answers of a question that has none."""
    rows = [{"text": "w1", "choice1": "w2", "choice2": "w3", "choice3": missing, "label": 0}]
    file = _write(tmp_path / "a.frame", [{**rows[0], "choice3": "w4"}, *rows], "choice")
    (_, read) = examples(str(file), TaskConfig(kind="choice"), labelled=True)
    assert isinstance(read, ChoiceExample) and read.choices == ("w2", "w3")
    asked = [{"question": "w1", "context": "w2 w3", "answers": "w3", "answer_start": missing, "id": missing},
             {"question": "w1", "context": "w2 w3", "answers": missing, "answer_start": missing, "id": missing},
             {"question": "w1", "context": "w2 w3", "answers": {"text": missing, "answer_start": missing},
              "answer_start": missing, "id": missing}]  # fmt: skip
    file = _write(tmp_path / "b.frame", asked, "span")
    read = [x for x in examples(str(file), TaskConfig(kind="span"), labelled=True) if isinstance(x, QuestionExample)]
    assert [x.answers for x in read] == [(Answer("w3", 3),), (), ()]
    assert [x.id for x in read] == [x.origin for x in read]


def test_a_missing_text_is_said_to_be_missing_wherever_it_is_given():
    with pytest.raises(DataError, match=r"text:0: the text \(column 'text'\) is null"):
        examples_of([{"text": NAN}], TaskConfig(kind="classify"))


def test_a_missing_number_of_tfds_is_missing():
    import numpy as np
    import tensorflow_datasets as tfds

    feature = tfds.features.Scalar(np.float32)
    assert _plain(feature, np.float32("nan")) is None and _plain(feature, np.float32(3.8)) == 3.8


def test_the_word_nan_is_a_label_like_others(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"text": "w1", "label": "nan"}\n')
    (read,) = examples(str(tmp_path / "a.jsonl"), TaskConfig(kind="classify"), labelled=True)
    assert getattr(read, "label", None) == "nan"


def test_a_whole_number_is_one_label_however_it_is_written(tmp_path: Path):
    """A column of whole numbers becomes one of fractions where some are missing: 1 in one file, 1.0 in another."""
    (tmp_path / "train.csv").write_text("text,label\n" + "w1,1.0\nw2,0\nw3,1\nw4,10\nw5,1.5\nw6,x\nw7,01\n" * 2)
    (tmp_path / "dev.jsonl").write_text('{"text": "w1", "label": 1.0}\n{"text": "w1", "label": "0.00"}\n')
    task = TaskConfig(kind="classify", train=(str(tmp_path / "train.csv"),), dev=(str(tmp_path / "dev.jsonl"),))
    store = encode(task, TOKENIZER, tmp_path / "data")
    assert store.labels == ("0", "01", "1", "1.5", "10", "x")
    assert store.splits["dev"].answers().tolist() == [2, 0]
    # A model that was trained with 1.0 alone keeps its labels.
    labels = Labels(("0.0", "1.0"))
    assert [labels.number(label, "") for label in ("0", "1", "1.0")] == [0, 1, 1]
    with pytest.raises(DataError, match=r"label '1\.5' is not one of 0\.0, 1\.0"):
        labels.number("1.5", "dev.csv:2")
    both = Labels(("1", "1.0"), named=True)
    assert [both.number(label, "") for label in ("1", "1.0")] == [0, 1]


def test_an_alternative_is_named_by_a_whole_number_however_it_is_written(tmp_path: Path):
    rows = [{"text": "w1", "choices": ["w2", "w3"], "label": label} for label in (1.0, 0, "1", "0.0")]
    file = _write(tmp_path / "train.jsonl", rows)
    store = encode(TaskConfig(kind="choice", train=(str(file),)), TOKENIZER, tmp_path / "data")
    assert store.splits["train"].answers().tolist() == [1, 0, 1, 0] and store.labels == ("0", "1")
