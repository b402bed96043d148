"""TFRecords as a store of rows: what is read is what was written; the rows of a step follow from (seed, step); what
does not fit is one line with file and record."""

import gzip
import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.batches import check_fields
from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.packing import apart
from contexture.data.pretraining.create_instances import Instance, InstanceOptions
from contexture.data.pretraining.instance_records import FEATURES, features_of, record_files, record_of
from contexture.data.pretraining.record_batches import HeldOutRecords, RecordBatches
from contexture.data.pretraining.record_store import RecordStore, convert
from contexture.data.pretraining.sequence_batches import FIELDS
from contexture.data.protobuf import message_field, packed
from contexture.data.tfrecord import write_record
from contexture.data.tokenizers.wordpiece import WordPiece
from tests.helpers.slow_pairs import vocabulary

LENGTH, PREDICTIONS, SEED = 24, 4, 3
OPTIONS = InstanceOptions(
    length=LENGTH,
    predictions=PREDICTIONS,
    masked_fraction=0.15,
    short_fraction=0.1,
    dupe_factor=1,
    whole_word_mask=False,
)
TOKENIZER = WordPiece(vocabulary(), lowercase=True)


def instance(number: int) -> Instance:
    """Sequence `number` of its own tokens and lengths."""
    draw = np.random.default_rng(number)
    a, b = (draw.integers(5, TOKENIZER.size, draw.integers(1, 10)).tolist() for _ in range(2))
    tokens = [TOKENIZER.cls, *a, TOKENIZER.sep, *b, TOKENIZER.sep]
    slots = sorted(
        draw.choice(np.arange(1, len(tokens)), draw.integers(1, min(PREDICTIONS, len(a)) + 1), False).tolist()
    )
    labels = draw.integers(5, TOKENIZER.size, len(slots)).tolist()
    return Instance(tokens, [0] * (len(a) + 2) + [1] * (len(b) + 1), slots, labels, bool(number % 3))


def write(file: Path, records: list[bytes]) -> Path:
    with file.open("wb") as out:
        for record in records:
            write_record(out, record)
    return file


def written(folder: Path, sizes: list[int]) -> list[Path]:
    """Files of so many records, numbered on."""
    folder.mkdir(exist_ok=True)
    ends = np.cumsum(sizes).tolist()
    return [
        write(folder / f"a-{n}.tfrecord", [record_of(instance(i), OPTIONS) for i in range(end - size, end)])
        for n, (size, end) in enumerate(zip(sizes, ends, strict=True))
    ]


def config(*paths: Path, **more: Any) -> DataConfig:
    data = {"batch": 4, "length": LENGTH, "max_predictions": PREDICTIONS, **more}
    return DataConfig(path=tuple(map(str, paths)), **data)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    folder = tmp_path_factory.mktemp("records")
    written(folder / "in", [10, 1, 12])
    return config(folder / "in", dev_fraction=0.25)


@pytest.fixture(scope="module")
def store(data: DataConfig, tmp_path_factory: pytest.TempPathFactory) -> RecordStore:
    return convert(data, TOKENIZER, tmp_path_factory.mktemp("store") / "data")


HELD_OUT = [8, 9, 20, 21, 22]
"""A quarter of each file, at its end; none of a file of one record."""


def row_of(number: int) -> dict[str, Any]:
    """A record's fields of a batch."""
    made = instance(number)
    free, short = [0] * (PREDICTIONS - len(made.slots)), [0] * (LENGTH - len(made.tokens))
    return {
        "tokens": made.tokens + short,
        "segments": made.segments + short,
        "mask": [1] * len(made.tokens) + short,
        "slots": made.slots + free,
        "labels": made.labels + free,
        "slot_weights": [1.0] * len(made.slots) + free,
        "is_random": int(made.is_random),
        "valid": 1.0,
    }


def rows_of(batch: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    return [{name: array[row].tolist() for name, array in batch.items()} for row in range(len(batch["tokens"]))]


def test_an_epoch_is_every_record_once_in_an_order_of_its_own(store: RecordStore, data: DataConfig):
    batches = RecordBatches(store, replace(data, batch=6), seed=SEED)
    train = [row_of(number) for number in range(23) if number not in HELD_OUT]
    assert batches.examples_per_epoch == 18 == len(train)
    epochs = [[row for step in range(3 * e, 3 * e + 3) for row in rows_of(batches.read(step))] for e in range(3)]
    for epoch in epochs:
        assert sorted(epoch, key=str) == sorted(train, key=str) and epoch != train
    assert epochs[0] != epochs[1] != epochs[2]
    check_fields(batches.read(0), FIELDS)
    assert "18 records to train on, 5 held out; an epoch is 18 sequences" in batches.describe()


def test_processes_read_together_what_one_reads(store: RecordStore, data: DataConfig):
    """Whichever rows each reads, in whatever order, from stores of their own, over the end of an epoch."""
    one = RecordBatches(store, data, seed=SEED)
    for step in (0, 4, 9):
        whole = one.read(step)
        for rows in ([0, 1], [3, 2]):
            other = RecordBatches(RecordStore.open(store.folder), data, seed=SEED).read(step, np.array(rows))
            assert {n: x.tolist() for n, x in other.items()} == {n: x[rows].tolist() for n, x in whole.items()}
    assert rows_of(RecordBatches(store, data, seed=SEED + 1).read(0)) != rows_of(one.read(0))


def test_held_out_records_are_read_once_in_their_order(store: RecordStore, data: DataConfig):
    held_out = HeldOutRecords(store, data)
    assert (held_out.count, held_out.steps) == (5, 2)
    rows = [row for step in range(2) for row in rows_of(held_out.read(step))]
    assert rows[:5] == [row_of(number) for number in HELD_OUT]
    assert all(row["valid"] == 0.0 and not any(row["slot_weights"]) for row in rows[5:]) and len(rows) == 8


def test_held_out_files_and_guesses(tmp_path: Path):
    train, dev = written(tmp_path / "in", [7, 2])
    store = convert(config(train, dev=(str(dev),)), TOKENIZER, tmp_path / "data")
    assert (store.count("train"), store.count("dev")) == (7, 2)
    assert rows_of(HeldOutRecords(store, config(batch=2)).read(0)) == [row_of(7), row_of(8)]
    labels = [label for number in range(7) for label in instance(number).labels]
    assert store.unigrams().tolist() == np.bincount(labels, minlength=TOKENIZER.size).tolist()


def test_longer_sequences_pad_the_records(store: RecordStore, data: DataConfig):
    own, longer = (
        RecordBatches(store, replace(data, length=L, max_predictions=P), seed=SEED).read(1)
        for L, P in ((24, 4), (31, 7))
    )
    assert longer["tokens"].shape == (4, 31) and longer["slots"].shape == (4, 7)
    for name, array in own.items():
        wide = longer[name]
        assert np.array_equal(wide if array.ndim == 1 else wide[:, : array.shape[1]], array)
        assert array.ndim == 1 or not wide[:, array.shape[1] :].any()


def test_packed_records_are_the_same_sequences(store: RecordStore, data: DataConfig):
    alone = RecordBatches(store, replace(data, batch=8), seed=SEED).read(1)
    shared = RecordBatches(store, replace(data, batch=8, packed=True), seed=SEED).read(1)
    assert shared["tokens"].size <= alone["tokens"].size
    for name, array in apart(shared).items():
        assert np.array_equal(array, alone[name][:, : array.shape[1]] if array.ndim > 1 else alone[name])


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_compressed_records_are_the_same_rows(compress, store: RecordStore, data: DataConfig, tmp_path: Path):
    for file in Path(data.path[0]).iterdir():
        (tmp_path / file.name).write_bytes(compress(file.read_bytes()))
    other = convert(replace(data, path=(str(tmp_path),)), TOKENIZER, tmp_path / "data")
    assert other.index["files"] == store.index["files"]


def _changed(**features: list | None) -> bytes:
    """A record with other features; None leaves one out."""
    whole: dict[str, Any] = {
        name: values.tolist() for name, values in features_of(record_of(instance(0), OPTIONS)).items()
    }
    return example({**whole, **features})


def example(features: dict[str, Any], repeated: bool = False) -> bytes:
    """A tf.train.Example. repeated: each number a field of its own, as writers before proto3 have it."""
    entries = b""
    for name, values in features.items():
        if values is None:
            continue
        if any(isinstance(value, float) for value in values):
            kind, content = 2, message_field(1, np.array(values, "<f4").tobytes())
        elif repeated:
            kind, content = 3, b"".join(message_field(1, value) for value in values)
        else:
            kind, content = 3, message_field(1, packed(values))
        feature = message_field(kind, content)
        entries += message_field(1, message_field(1, name.encode()) + message_field(2, feature))
    return message_field(1, entries)


def test_other_ways_of_writing_a_record_read_the_same(tmp_path: Path):
    """Features in another order, one more of them, and numbers that are not packed."""
    record = record_of(instance(0), OPTIONS)
    features = {name: values.tolist() for name, values in features_of(record).items()}
    assert tuple(features) == FEATURES
    others = example({"extra": [1], **dict(reversed(features.items()))}, repeated=True)
    file = write(tmp_path / "a.tfrecord", [record, others])
    store = convert(config(file), TOKENIZER, tmp_path / "data")
    first, second = store.read("train", np.arange(2))
    assert first == second


_IDS = [2, *[7] * 21, 3, 3]
WRONG: dict[str, tuple[bytes, str]] = {
    "no example": (b"\xff\xff", "is no tf.train.Example; write the records again"),
    "no feature": (_changed(segment_ids=None), "has no segment_ids; this reads records of create_pretraining_data.py"),
    "another kind": (_changed(masked_lm_weights=[1] * 4), "masked_lm_weights is no list of floats; write the"),
    "floats": (_changed(input_ids=[1.0] * 24), "input_ids is no list of whole numbers; write the records again"),
    "another length": (
        _changed(input_ids=[2] * 25),
        "input_ids has 25 values, and 24 in .*a.tfrecord: record 1; give files of one length",
    ),
    "fewer predictions": (_changed(masked_lm_ids=[7] * 3), "masked_lm_ids has 3 values, and 4 in "),
    "no label": (_changed(next_sentence_labels=[]), "next_sentence_labels has 0 values, and 1 in "),
    "an id above": (
        _changed(input_ids=[2, 95, *_IDS[2:]]),
        "input_ids has the id 95, and the vocabulary 95 pieces; give",
    ),
    "a label above": (_changed(masked_lm_ids=[500, 0, 0, 0]), "masked_lm_ids has the id 500, and the vocabulary 95"),
    "a number of 70 bits": (
        message_field(
            1,
            message_field(
                1, message_field(1, b"a") + message_field(2, message_field(3, b"\x08" + b"\xff" * 9 + b"\x7f"))
            ),
        ),
        "is no tf.train.Example",
    ),
    "an id below": (_changed(input_ids=[2, 2**64 - 1, *_IDS[2:]]), "input_ids has the id -1, and the vocabulary"),
    "no CLS": (_changed(input_ids=[7, *_IDS[1:]]), "begins with the id 7, 'w2' in the vocabulary, and not with .CLS."),
    "mask with a hole": (_changed(input_mask=[1, 0, 1, *[0] * 21]), "input_mask is not ones and then zeros; write"),
    "empty mask": (_changed(input_mask=[0] * 24), "input_mask is not ones and then zeros"),
    "a third segment": (_changed(segment_ids=[2] * 24), "segment_ids holds another number than 0 and 1"),
    "a third label": (_changed(next_sentence_labels=[2]), "next_sentence_labels holds another number than 0 and 1"),
    "a slot behind": (_changed(masked_lm_positions=[23, 0, 0, 0]), "masked_lm_positions has a place behind the "),
    "no weight": (_changed(masked_lm_weights=[float("nan")] * 4), "masked_lm_weights holds nan; write"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_record_is_one_line_with_its_number(name: str, tmp_path: Path):
    record, line = WRONG[name]
    file = write(tmp_path / "a.tfrecord", [record_of(instance(0), OPTIONS), record])
    with pytest.raises(DataError, match=f"^{file}: record 2:? {line}"):
        convert(config(file), TOKENIZER, tmp_path / "data")
    assert not (tmp_path / "data").exists()


@settings(deadline=None, max_examples=400)
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 3), st.binary(max_size=12)), min_size=1))
def test_any_changed_record_is_read_or_said(tmp_path_factory, edits: list[tuple[float, int, bytes]]):
    """Its check sums are right: whoever wants to harm computes them."""
    record = bytearray(record_of(instance(0), OPTIONS))
    for at, out, put in edits:
        place = int(at * len(record))
        record[place : place + out] = put
    folder = tmp_path_factory.mktemp("changed")
    file = write(folder / "a.tfrecord", [record_of(instance(0), OPTIONS), bytes(record)])
    try:
        rows = convert(config(file), TOKENIZER, folder / "data").read("train", np.arange(2))
    except DataError as error:
        assert str(error).startswith(f"{file}: record 2")
    else:
        assert (
            rows["input_ids"].max() < TOKENIZER.size and (rows["masked_lm_positions"] < rows["tokens"][:, None]).all()
        )


def test_what_does_not_fit_the_run_is_said_at_the_first_record(tmp_path: Path):
    (file,) = written(tmp_path / "in", [2])
    for more, line in (
        ({"length": 23}, "has 24 tokens, more than 23; give --data.length 24"),
        ({"max_predictions": 3}, "has 4 predictions, more than 3; give --data.max-predictions 4"),
    ):
        with pytest.raises(DataError, match=f"^{file}: record 1 {line}$"):
            convert(config(file, **more), TOKENIZER, tmp_path / "data")


def test_files_that_give_nothing_or_too_much_are_refused(tmp_path: Path):
    one, two = written(tmp_path / "in", [3, 3])
    empty, text = write(tmp_path / "e.tfrecord", []), tmp_path / "text.txt"
    text.write_text("A sentence.\n")
    with pytest.raises(DataError, match=f"^{empty}: holds no record; leave the file out"):
        convert(config(empty), TOKENIZER, tmp_path / "data")
    with pytest.raises(DataError, match=f"^{one}: data.dev names a file that data.path holds too"):
        convert(config(one, two, dev=(str(one),)), TOKENIZER, tmp_path / "data")
    for paths, line in (
        ((one, text), "data.path names TFRecords .* together with text .*text.txt"),
        ((tmp_path,), "data.path names TFRecords .* together with text"),
        ((one, "tfds:wiki"), "data.path names TFRecords .* together with text .tfds:wiki"),
        ((one, one), "data.path names a TFRecord file twice; give each once"),
    ):
        with pytest.raises(DataError, match=line):
            record_files([*map(str, paths)], "data.path")


def test_records_are_known_by_names_or_first_bytes(tmp_path: Path):
    (file,) = written(tmp_path / "in", [1])
    names = ["x.tfrecords", "b.tfrecord-00000-of-00002", "c.TFRecord.gz", "tf_examples.tf_record", "d.tfrec"]
    for name in (*names, "part-0"):
        (tmp_path / name).write_bytes(file.read_bytes())
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "a.txt").rename(tmp_path / "a.log")
    assert [each.name for each in record_files([str(tmp_path)], "data.path")] == sorted(names)
    assert record_files([str(tmp_path / "part-0")], "data.path") == [tmp_path / "part-0"]
    assert record_files([str(tmp_path / "a.log")], "data.path") == record_files((), "data.path") == []


def test_a_store_that_changed_is_refused(store: RecordStore, data: DataConfig, tmp_path: Path):
    def copied(name: str) -> Path:
        to = tmp_path / name
        (to / "tokenizer").mkdir(parents=True)
        for file in store.folder.rglob("*.*"):
            (to / file.relative_to(store.folder)).write_bytes(file.read_bytes())
        return to

    copied("same")
    RecordStore.open(tmp_path / "same").verify()
    rows = copied("rows") / "rows.bin"
    rows.write_bytes(rows.read_bytes()[:-1] + b"?")
    with pytest.raises(DataError, match="rows.bin: damaged, not the bytes that were written"):
        RecordStore.open(rows.parent).verify()
    rows.write_bytes(b"")
    with pytest.raises(DataError, match="rows.bin: missing or not as long as it was written; delete the folder"):
        RecordStore.open(rows.parent)
    index = copied("index") / "index.json"
    for change, line in (
        ({"length": 23}, "damaged .its content does not match its fingerprint"),
        ({"length": "24"}, "damaged .length."),
    ):
        index.write_text(json.dumps({**store.index, **change}))
        with pytest.raises(DataError, match=f"^{index}: {line}"):
            RecordStore.open(index.parent)
    index.unlink()
    with pytest.raises(DataError, match="missing, or not the index of records"):
        RecordStore.open(index.parent)
    assert not RecordStore.is_at(index.parent) and RecordStore.is_at(store.folder)
    vocabulary = copied("words") / "tokenizer/vocab.txt"
    vocabulary.write_text(vocabulary.read_text().replace("w1\n", "v1\n"))
    with pytest.raises(DataError, match="not the vocabulary of these records"):
        RecordStore.open(tmp_path / "words").verify()


def test_sources_that_changed_are_named_and_those_gone_are_not(tmp_path: Path):
    one, two = written(tmp_path / "in", [3, 4])
    data = config(one)
    store = convert(data, TOKENIZER, tmp_path / "data")
    assert store.sources_changed(data) == "" and "a-1" in store.sources_changed(config(two))
    write(one, [record_of(instance(number), OPTIONS) for number in range(2)])
    assert "a-0.tfrecord is not among the TFRecords" in store.sources_changed(data)
    one.unlink()
    assert store.sources_changed(data) == ""
