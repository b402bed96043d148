"""The speed of a pretraining counts the tokens of its texts, and the padding ratio what is computed for each."""

import numpy as np
import pytest

from contexture.data.pretraining.shards import Shards
from contexture.train.run.throughput import ThroughputMeter
from contexture.train.setup import open_batches
from tests.data.pretraining.test_packed_pairs import BATCH, LENGTH, prepared
from tests.train.test_packed_pairs import run_of


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return prepared(tmp_path_factory.mktemp("pairs"))


def test_real_tokens_are_counted_whether_or_not_rows_are_shared(shards: Shards):
    """A process that holds half of the sequences takes the others to be as long."""
    found = {}
    for packed in (False, True):
        run = run_of(shards, packed)
        batches = open_batches(run, shards, shards.tokenizer)
        meter = ThroughputMeter(run, 1, "cpu", 0)
        whole = batches.read(0)
        meter.counted(0, whole)
        (record,) = meter.records([1], [{}])
        assert record["padding_ratio"] == whole["tokens"].size / whole["mask"].sum()
        found[packed] = record["padding_ratio"]
        half = batches.read(1, np.arange(0, BATCH, 2))
        meter.counted(1, half)
        (record,) = meter.records([2], [{}])
        tokens = round(int(half["mask"].sum()) * 2)
        computed_ = half["tokens"].size * (1 if packed else 2)
        assert record["padding_ratio"] == computed_ / tokens and record["tokens_per_second"] > 0
        # Of a step that was not counted all places are tokens.
        assert "padding_ratio" not in meter.records([3], [{}])[0]
    assert 1 <= found[True] < found[False]


def test_all_places_count_where_text_fills_every_row(shards: Shards):
    run = run_of(shards, False)
    meter = ThroughputMeter(run, 1, "cpu", 0)
    meter.counted(0, {"mask": np.ones((BATCH, LENGTH), np.int32)})
    meter.counted(1, {"index": np.ones((BATCH, LENGTH), np.int32)})
    assert "padding_ratio" not in meter.records([2], [{}])[0]
