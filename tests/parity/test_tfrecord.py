"""The records of `contexture prepare --as google-tfrecord`, read by TensorFlow as BERT's own training reads them."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contexture.data.config import DataConfig
from contexture.data.pretraining.record_batches import RecordBatches
from contexture.data.pretraining.record_store import convert
from contexture.data.tokenizers.wordpiece import WordPiece
from tests.data.pretraining.test_create_instances import PIECES, written
from tests.helpers.original_instances import Flags, read_tfrecord

pytestmark = pytest.mark.parity
FLAGS = Flags(max_seq_length=32, max_predictions_per_seq=5, dupe_factor=3)


@pytest.fixture(scope="module")
def tf() -> Any:
    return importlib.import_module("tensorflow")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    draw = np.random.default_rng(0)
    lines = [" ".join(draw.choice(["a", "ab", "abba", "c", "z"], draw.integers(1, 20))) for _ in range(200)]
    text = "\n".join("" if number % 7 == 6 else line for number, line in enumerate(lines))
    return written(tmp_path_factory.mktemp("text"), [text], WordPiece(PIECES, lowercase=True), FLAGS, files=2)


def test_tensorflow_parses_the_records_that_are_written(tf: Any, files: list[Path]):
    L, P = FLAGS.max_seq_length, FLAGS.max_predictions_per_seq
    sizes = {"input_ids": L, "input_mask": L, "segment_ids": L, "masked_lm_positions": P, "masked_lm_ids": P}
    spec = {name: tf.io.FixedLenFeature([size], tf.int64) for name, size in sizes.items()}
    spec["masked_lm_weights"] = tf.io.FixedLenFeature([P], tf.float32)
    spec["next_sentence_labels"] = tf.io.FixedLenFeature([1], tf.int64)
    for file in files:
        parsed = [tf.io.parse_single_example(raw, spec) for raw in tf.data.TFRecordDataset(str(file))]
        read = [{name: value.numpy().tolist() for name, value in each.items()} for each in parsed]
        assert read == read_tfrecord(file) and len(read) > 20


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_what_tensorflow_writes_is_read(tf: Any, files: list[Path], compression: str, tmp_path: Path):
    """In its own order of features and with its own compression: the same batches as of our files."""
    for file in files:
        with tf.io.TFRecordWriter(str(tmp_path / file.name), options=compression) as writer:
            for raw in tf.data.TFRecordDataset(str(file)):
                example = tf.train.Example.FromString(raw.numpy())
                again = tf.train.Example()
                for name in sorted(example.features.feature, reverse=True):
                    again.features.feature[name].CopyFrom(example.features.feature[name])
                writer.write(again.SerializeToString())
    assert (compression == "GZIP") == ((tmp_path / files[0].name).read_bytes()[:2] == b"\x1f\x8b")
    ours, theirs = (
        convert(data, WordPiece(PIECES, lowercase=True), tmp_path / name)
        for name, data in (("ours", config(*files)), ("theirs", config(*(tmp_path / file.name for file in files))))
    )
    for step in range(4):
        one, other = (RecordBatches(store, config(), seed=1).read(step) for store in (ours, theirs))
        assert all(np.array_equal(one[name], other[name]) for name in one)


def config(*files: Path) -> DataConfig:
    return DataConfig(path=tuple(map(str, files)), length=32, max_predictions=5, batch=8)
