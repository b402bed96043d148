"""Pairs of sentences that share rows: the same sequences in the same order, with little padding."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from contexture.data import packing
from contexture.data.batches import check_fields
from contexture.data.config import DataConfig, TaskConfig
from contexture.data.packing import apart
from contexture.data.pretraining.sentence_pairs import HeldOutPairs, PairBatches
from contexture.data.pretraining.sequence_batches import FIELDS, pair_fields
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.tokenizers.wordpiece import WordPiece
from contexture.models.config import BertConfig, VectorsConfig
from contexture.train.settings.run import Run
from tests.data.tasks.batch.test_rows import SHARED, check_places
from tests.helpers.slow_pairs import as_text, random_documents, vocabulary

LENGTH, BATCH, SEED = 64, 16, 3


def prepared(folder: Path) -> Shards:
    """The text of short documents and longer ones."""
    (folder / "text.txt").write_text(as_text(random_documents(8, 120)), "utf-8")
    return prepare(config(folder), WordPiece(vocabulary(), True), folder / "shards")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return prepared(tmp_path_factory.mktemp("pairs"))


def config(folder: Path, **more) -> DataConfig:
    data = DataConfig(path=(str(folder / "text.txt"),), dev_fraction=0.3, split_sentences=False, batch=BATCH)
    return dataclasses.replace(data, length=LENGTH, short_fraction=0.4, max_predictions=7, **more)


def opened(shards: Shards, packed: bool, parts: int = 1, devices: int = 1, **more) -> PairBatches:
    data = config(shards.folder.parent, packed=packed, **more)
    return PairBatches(shards, data, seed=SEED, parts=parts, devices=devices)


def assert_equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert set(one) == set(other)
    for name, array in one.items():
        assert array.dtype == other[name].dtype and np.array_equal(array, other[name]), name


@pytest.mark.parametrize(("parts", "devices"), [(1, 1), (2, 1), (1, 4), (2, 4)])
def test_a_packed_batch_has_the_same_sequences_in_fewer_rows(shards, monkeypatch, parts: int, devices: int):
    monkeypatch.setattr(packing, "MIN_SAVING", 0.05)
    plain, packed = opened(shards, False), opened(shards, True, parts, devices)
    assert packed.rows is not None
    heights, places, tokens = packed.rows.heights(BATCH), 0, 0
    assert 1 <= len(heights) <= 3 and all(n % (parts * devices) == 0 for n in heights)
    for step in (0, 1, 7, 1000):
        batch, alone = packed.read(step), plain.read(step)
        assert_equal(apart(batch), alone)
        rows = check_places(batch, BATCH).ravel()
        assert (rows % parts == np.arange(BATCH) % parts).all()
        height, width = batch["tokens"].shape
        assert width == LENGTH and height <= BATCH and height % (parts * devices) == 0
        # Every process reads the same rows, and its own sequences.
        own = packed.read(step, np.array([5, 2]))
        assert_equal(own, {name: x if name in SHARED else x[[5, 2]] for name, x in batch.items()})
        numbers = np.arange(step * BATCH, (step + 1) * BATCH)
        assert packed.lengths_of(numbers).tolist() == alone["mask"].sum(1).tolist()
        places, tokens = places + batch["tokens"].size, tokens + int(batch["mask"].sum())
    assert tokens <= places <= 4 * BATCH * LENGTH * (1 if parts * devices > 4 else 0.9)
    assert packed.rows_read == 4 * (BATCH + 2)


def test_a_ramp_has_numbers_of_rows_for_each_size(shards):
    plain, packed = (opened(shards, packed, ramp_from=4, ramp_steps=4) for packed in (False, True))
    for step in (0, 2, 4):
        batch = packed.read(step)
        assert_equal(apart(batch), plain.read(step))
        assert len(batch["tokens"]) <= len(batch["mask"]) == (4, 8, 16)[step // 2]


def test_fields_of_packed_pairs_are_as_announced(shards):
    packed = opened(shards, True)
    assert packed.fields == pair_fields(DataConfig(packed=True)) and pair_fields(DataConfig()) == FIELDS
    batch = packed.read(2)
    check_fields(batch, packed.fields)
    assert set(batch) == set(packed.fields) == {*FIELDS, "packs", "positions", "begins"}
    assert [packed.fields[name] for name in ("tokens", "mask", "begins", "slots")] == [
        "i32 XY", "i32 BL", "i32 B", "i32 BP",
    ]  # fmt: skip


def test_rows_are_chosen_without_reading_a_token(shards, monkeypatch):
    packed = opened(shards, True)
    monkeypatch.setattr(type(shards), "read", None)
    assert packed.rows is not None and packed.rows.heights(BATCH)
    assert "of 64 tokens a batch, padding ratio 1." in packed.describe()
    assert "padding" not in opened(shards, False).describe()


@pytest.mark.parametrize("devices", [1, 2])
def test_held_out_pairs_share_rows_and_what_fills_up_has_none(shards, devices: int):
    data = dataclasses.replace(config(shards.folder.parent), batch=14)
    plain = HeldOutPairs(shards, data)
    packed = HeldOutPairs(shards, dataclasses.replace(data, packed=True), devices=devices)
    assert packed.fields == pair_fields(DataConfig(packed=True)) and packed.count == plain.count and packed.count % 14
    assert packed.steps == plain.steps > 1
    for step in range(packed.steps):
        batch, alone = packed.read(step), plain.read(step)
        count = int(alone["valid"].sum())
        check_places(batch, count)
        assert len(batch["tokens"]) <= 14 and len(batch["tokens"]) % devices == 0
        separate = apart(batch)
        assert_equal({name: x[:count] for name, x in separate.items()}, {name: x[:count] for name, x in alone.items()})
        assert not any(separate[name][count:].any() for name in ("valid", "slot_weights", "mask"))
        some = packed.read(step, np.array([13, 0]))
        assert_equal(some, {name: x if name in SHARED else x[[13, 0]] for name, x in batch.items()})


def test_packed_is_refused_where_it_has_no_meaning():
    data = DataConfig(packed=True)
    assert Run(data=data).shares_rows
    with pytest.raises(ValueError, match=r"data\.packed has no meaning for static vectors; leave it out"):
        Run(model=VectorsConfig(), data=data)
    with pytest.raises(ValueError, match=r"data\.packed has no meaning for task\.kind=classify; leave it out"):
        Run(model=BertConfig(), data=data, task=TaskConfig(kind="classify", train=("x.tsv",)))
