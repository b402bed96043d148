"""Batches: a function of (seed, step, row) alone, however many read, and equal to the slow original in every token."""

import dataclasses
import hashlib
import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.configs import recipe
from contexture.data import rng
from contexture.data.batches import check_fields, iterate
from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.pretraining.sentence_pairs import HeldOutPairs, PairBatches
from contexture.data.pretraining.sequence_batches import FIELDS
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.tokenizers.wordpiece import WordPiece
from contexture.train.evaluation.held_out import open_held_out
from tests.helpers.long import long
from tests.helpers.slow_pairs import as_text, guesses, instances_of, random_documents, truncate, vocabulary

ROOT = Path(__file__).parents[2]
DOCUMENTS = random_documents(21, 150)
SEED = 5


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text(as_text(DOCUMENTS), "utf-8")
    return DataConfig(path=(str(file),), dev_fraction=0.2, split_sentences=False, batch=8, length=32, max_predictions=5)


@pytest.fixture(scope="module")
def shards(config: DataConfig) -> Shards:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("contexture.data.pretraining.shards.BLOCK_SENTENCES", 40)
        return prepare(config, WordPiece(vocabulary(), True), Path(config.path[0]).parent / "shards")


@pytest.fixture(scope="module")
def batches(shards: Shards, config: DataConfig) -> PairBatches:
    return PairBatches(shards, config, seed=SEED)


def _digest(batch: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(batch):
        digest.update(f"{name} {batch[name].dtype} {batch[name].shape}".encode() + batch[name].tobytes())
    return digest.hexdigest()


def _unmasked(batch: dict[str, np.ndarray]) -> np.ndarray:
    tokens = batch["tokens"].copy()
    rows, places = np.nonzero(batch["slot_weights"])
    tokens[rows, batch["slots"][rows, places]] = batch["labels"][rows, places]
    return tokens


def test_batches_are_the_slow_originals(batches: PairBatches, shards: Shards, config: DataConfig):
    """Every line of pass 0, laid out and cut by hand from lists of tokens."""
    kept = DOCUMENTS[: shards.splits["train"].documents]
    slow = {}
    for document in range(len(kept)):
        generator = Random(rng.key(rng.key(rng.DOCUMENT, SEED, 0), document))
        for instance in instances_of(kept, document, 32, 0.1, generator):
            slow.setdefault((tuple(instance.a), tuple(instance.b), instance.is_random), []).append(instance)
    N = batches.examples_per_epoch
    assert sum(map(len, slow.values())) == N
    pairs = batches.stream.pairs(np.arange(N))
    lines = batches.sequences(np.arange(N))
    tokens = _unmasked(lines)
    for number in range(N):
        a, b = (
            tuple(shards.read(starts[number : number + 1], lengths[number : number + 1]).tolist())
            for starts, lengths in ((pairs.a_start, pairs.a_length), (pairs.b_start, pairs.b_length))
        )
        instance = slow[a, b, bool(pairs.is_random[number])].pop()

        def front(side: str, taken: int, number: int = number) -> bool:
            line = rng.random_bits(rng.key({"a": rng.CUT_A, "b": rng.CUT_B}[side], SEED), np.array([number]))
            return bool(int(rng.random_bits(line, np.array([taken // 64]))[0]) >> taken % 64 & 1)

        a, b = truncate(instance.a, instance.b, 32, front)
        line = [2, *a, 3, *b, 3]
        pad = [0] * (32 - len(line))
        assert tokens[number].tolist() == line + pad
        assert lines["segments"][number].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1) + pad
        assert lines["mask"][number].tolist() == [1] * len(line) + pad
        assert lines["is_random"][number] == instance.is_random
        assert lines["slot_weights"][number].sum() == guesses(len(line), 5, 0.15)
        slots = lines["slots"][number][lines["slot_weights"][number] > 0]
        assert not set(slots.tolist()) & {0, len(a) + 1, len(line) - 1} and slots.max() < len(line)
    assert not any(slow.values())


def test_fields_are_as_announced(batches: PairBatches):
    batch = batches.read(3)
    assert list(batch) == list(FIELDS) == list(batches.fields)
    check_fields(batch, batches.fields)
    assert batch["tokens"].shape == (8, 32) and batch["labels"].shape == (8, 5) and batch["valid"].tolist() == [1.0] * 8
    with pytest.raises(DataError, match="lacks the field 'types'"):
        check_fields(batch, {"types": "i32 RW"})
    with pytest.raises(DataError, match=r"'valid' is float32 \(8,\), not i32 B"):
        check_fields(batch, {"valid": "i32 B"})


@pytest.mark.parametrize(
    ("how", "readers", "count"),
    [
        ("strided", 4, 40),
        ("contiguous", 2, 40),
        *long(*itertools.product(("strided", "contiguous"), (1, 2, 4), (200,))),
    ],
)
def test_any_number_of_readers_read_the_sequential_walk(shards, config, batches, readers: int, how: str, count: int):
    """Random steps, read by each reader in an order of its own, against one reader going step by step."""
    steps = Random(readers).sample(range(1000), count)
    walk = {step: batches.read(step) for step in sorted(steps)}
    parts = []
    for reader in range(readers):
        mine = PairBatches(shards, config, seed=SEED)
        rows = np.arange(8)[reader::readers] if how == "strided" else np.split(np.arange(8), readers)[reader]
        own = steps[reader:] + steps[:reader]
        parts.append((rows, {step: mine.read(step, rows) for step in own}))
        assert mine.rows_read == count * len(rows)
    for step in steps:
        for rows, read in parts:
            for name, array in read[step].items():
                assert array.dtype == walk[step][name].dtype and (array == walk[step][name][rows]).all(), name


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**7), st.lists(st.integers(0, 7), min_size=1, max_size=8))
def test_rows_come_in_the_order_asked_for(batches, step, rows):
    whole, part = batches.read(step), batches.read(step, np.array(rows))
    for name in whole:
        assert (part[name] == whole[name][rows]).all()


def test_batches_are_the_same_in_every_process(shards: Shards, config: DataConfig, batches: PairBatches):
    program = (
        "import sys\nfrom contexture.data.config import DataConfig\n"
        "from contexture.data.pretraining.sentence_pairs import PairBatches\n"
        "from contexture.data.pretraining.shards import Shards\nfrom tests.data.test_batches import _digest\n"
        "config = DataConfig(split_sentences=False, batch=8, length=32, max_predictions=5)\n"
        "batches = PairBatches(Shards.open(sys.argv[1]), config, seed=5)\n"
        "print(*(_digest(batches.read(step)) for step in (0, 7, 12345)))\n"
    )
    arguments = [sys.executable, "-c", program, str(shards.folder)]
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [_digest(batches.read(step)) for step in (0, 7, 12345)]


def test_another_seed_makes_other_batches(shards: Shards, config: DataConfig, batches: PairBatches):
    other = PairBatches(shards, config, seed=SEED + 1)
    assert (other.read(0)["tokens"] != batches.read(0)["tokens"]).any(axis=1).all()


def test_a_line_is_masked_anew_in_each_pass(shards: Shards, config: DataConfig):
    batches = PairBatches(shards, config, seed=SEED)
    N = batches.examples_per_epoch
    first, second = batches.sequences(np.arange(N)), batches.sequences(np.arange(N) + N)
    plain = {tuple(line): row for row, line in enumerate(_unmasked(first).tolist())}
    same = [(plain[tuple(line)], row) for row, line in enumerate(_unmasked(second).tolist()) if tuple(line) in plain]
    assert len(same) > 10
    assert np.mean([(first["slots"][a] == second["slots"][b]).all() for a, b in same]) < 0.2


def test_every_held_out_line_is_read_once_and_the_last_batch_is_filled_up(shards: Shards, config: DataConfig):
    held_out = HeldOutPairs(shards, config)
    assert held_out.steps == -(-held_out.count // 8) and held_out.count % 8
    whole = [held_out.read(step) for step in range(held_out.steps)]
    valid = np.concatenate([batch["valid"] for batch in whole])
    assert valid.sum() == held_out.count and (np.diff(valid) <= 0).all()
    spare = whole[-1]["valid"] == 0
    assert not whole[-1]["slot_weights"][spare].any() and whole[-1]["mask"][spare].any(axis=1).all()
    assert (_unmasked(whole[0])[0] == _unmasked(held_out.read(0, np.array([0])))[0]).all()
    again = [HeldOutPairs(Shards.open(shards.folder), config).read(step) for step in range(held_out.steps)]
    assert [_digest(batch) for batch in again] == [_digest(batch) for batch in whole]
    dev = DOCUMENTS[shards.splits["train"].documents :]
    expected = 0
    for document in range(len(dev)):
        generator = Random(rng.key(rng.key(rng.DOCUMENT, 0, 0), document))
        expected += len(instances_of(dev, document, 32, 0.1, generator))
    assert held_out.count == expected
    with pytest.raises(IndexError):
        held_out.read(held_out.steps)


@pytest.mark.parametrize("batch", [3, 12])
def test_held_out_text_knows_no_ramp(shards: Shards, config: DataConfig, batch: int):
    """The ramp belongs to training: held-out text is read in batches of any size."""
    ramped = dataclasses.replace(config, ramp_from=2, ramp_steps=6)
    tokenizer = WordPiece(vocabulary(), True)
    runs = [dataclasses.replace(recipe("bert.tiny"), data=each) for each in (config, ramped)]
    plain, other = (open_held_out(run, shards, tokenizer, batch) for run in runs)
    assert plain is not None and other is not None and plain.steps == other.steps > 1
    for name, x in plain.read(1).items():
        assert len(x) == batch and np.array_equal(other.read(1)[name], x), name


def test_no_held_out_text_is_refused(tmp_path: Path, config: DataConfig):
    (tmp_path / "a.txt").write_text("w1\nw2", "utf-8")
    shards = prepare(DataConfig(path=(str(tmp_path / "a.txt"),)), WordPiece(vocabulary(), True), tmp_path / "s")
    with pytest.raises(DataError, match="no dev text"):
        HeldOutPairs(shards, config)
    one_line = PairBatches(shards, config, seed=1)  # a single document is its own random one
    assert one_line.examples_per_epoch in (1, 2) and one_line.read(99)["valid"].all()


@pytest.mark.parametrize("threads", [1, 3])
def test_reader_threads_keep_the_order_and_stop(batches: PairBatches, threads: int):
    before = threading.active_count()
    with iterate(batches, 5, 45, np.array([1, 6]), threads=threads) as steps:
        read = [(step, _digest(batch)) for step, batch in steps]
    assert read == [(step, _digest(batches.read(step, np.array([1, 6])))) for step in range(5, 45)]
    with iterate(batches, 0, 10**9, threads=threads) as steps:
        assert [next(steps)[0] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError), iterate(batches, 0, 10**9, threads=threads) as steps:
        next(steps)
        raise ZeroDivisionError
    with iterate(batches, 7, 7) as steps:
        assert list(steps) == []
    end = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_a_failure_in_a_reader_thread_reaches_the_trainer(shards: Shards, config: DataConfig):
    batches = PairBatches(shards, config, seed=SEED)

    def broken(numbers, step=None):
        raise DataError("the disk is gone")

    batches.sequences = broken
    with pytest.raises(DataError, match="the disk is gone"), iterate(batches, 0, 10) as steps:
        next(steps)


def test_data_imports_no_jax():
    program = "import sys, contexture.data.batches, contexture.data.pretraining.tokenize_corpus\n"
    program += "print('jax' in sys.modules, 'grain' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 40), st.integers(0, 90))
@settings(max_examples=200, deadline=None)
def test_a_ramp_doubles_the_batch_at_equal_intervals(first: int, doublings: int, more: int, step: int):
    """examples_before counts what lines says of each step; the sizes double, each for as many steps as the others."""
    if not doublings:
        config = DataConfig(batch=first)
        assert (config.batch_size_at(step), config.examples_before(step)) == (first, first * step)
        return
    config = DataConfig(batch=first << doublings, ramp_from=first, ramp_steps=doublings + more)
    sizes = [config.batch_size_at(n) for n in range(config.ramp_steps + 3)]
    assert config.examples_before(step) == sum(config.batch_size_at(n) for n in range(step))
    assert sorted(set(sizes)) == [first << n for n in range(doublings + 1)] and sizes == sorted(sizes)
    counts = [sizes[: config.ramp_steps].count(first << n) for n in range(doublings)]
    assert max(counts) - min(counts) <= 1 and sum(counts) == config.ramp_steps


@pytest.mark.parametrize("ramp", [{"ramp_from": 3, "ramp_steps": 9}, {"ramp_from": 8}, {"ramp_steps": 5},
                                  {"ramp_from": 4, "ramp_steps": 2}, {"ramp_from": 32, "ramp_steps": 5}])  # fmt: skip
def test_a_ramp_that_does_not_end_at_the_batch_is_refused(ramp: dict[str, int]):
    with pytest.raises(ValueError, match=r"data.ramp-from=\d+ does not double to data.batch=32 within"):
        DataConfig(batch=32, **ramp)  # pyright: ignore[reportArgumentType]
