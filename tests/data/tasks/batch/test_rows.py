"""Examples share rows: each comes once, whole and in its microbatch's rows, and little of a batch is padding."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from contexture.data import packing
from contexture.data.config import DataConfig, TaskConfig
from contexture.data.layouts import bert_texts
from contexture.data.packing import Shape, apart
from contexture.data.tasks.batch import batches as module
from contexture.data.tasks.batch.batches import HeldOutTask
from contexture.data.tasks.batch.training_batches import TaskBatches
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tasks.read.examples import ChoiceExample, Example, Text
from contexture.data.tasks.store.example_store import ExampleStore
from tests.data.tasks.batch.test_gpt_layout import split_of
from tests.data.tasks.encode.test_encode_examples import TOKENIZER
from tests.helpers.packed import every_example

LENGTH, COUNT, EACH = 48, 301, 3
SHARED = ("tokens", "segments", "packs", "positions")
"""The fields that all examples of a batch share."""


def text_of(rng: np.random.Generator, most: int) -> str:
    """1 to `most` words, few of them long texts."""
    return " ".join(f"w{n}" for n in rng.integers(30, size=int(most * rng.random() ** 3 + 1)))


@pytest.fixture(params=["classify", "choice"])
def opened(request, tmp_path: Path, monkeypatch) -> tuple[ExampleStore, TaskConfig, np.ndarray]:
    """A store, its task, and the tokens of each example's sequences as the slow road lays them out. Programs need not
    save much."""
    monkeypatch.setattr(packing, "MIN_SAVING", 0.05)
    rng, rows, texts = np.random.default_rng(5), [], []
    for n in range(COUNT):
        text = f"{text_of(rng, 50)} w{30 + n % 10} w{40 + n // 10}"
        if request.param == "classify":
            rows.append({"text": text, "label": "ab"[n % 2]})
            texts.append(text)
        else:
            choices = [text_of(rng, 9) for _ in range(EACH)]
            rows.append({"text": text, "choices": choices, "label": n % EACH})
            texts += [(text, choice) for choice in choices]
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    task = TaskConfig(kind=request.param, train=(str(file),))
    tokens = bert_texts(TOKENIZER, texts, LENGTH)["tokens"]
    return encode(task, TOKENIZER, tmp_path / "data", length=LENGTH), task, tokens.reshape(COUNT, -1, LENGTH)


def config(batch: int) -> DataConfig:
    return DataConfig(batch=batch, length=LENGTH, max_predictions=1)


def check_places(batch: dict[str, np.ndarray], count: int) -> np.ndarray:
    """Returns the row of each sequence, [examples, sequences], of the first examples of a batch: it has no others."""
    assert batch["tokens"].size == batch["packs"].size
    width, lengths = batch["tokens"].shape[1], batch["mask"][:count].sum(-1).ravel()
    begins = batch["begins"][:count].ravel()
    held = Counter(batch["packs"].ravel().tolist())
    # A number for each sequence, at as many places as it has tokens: none lies over another.
    assert [held.pop(n + 1) for n in range(len(lengths))] == lengths.tolist() and set(held) <= {0}
    for number, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
        assert begin // width == (begin + length - 1) // width
        here = slice(begin, begin + length)
        assert (batch["packs"].ravel()[here] == number + 1).all()
        assert batch["positions"].ravel()[here].tolist() == list(range(length))
    return (begins // width).reshape(count, -1)


@pytest.mark.parametrize(("parts", "devices"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_a_training_batch_has_all_tokens_in_rows_of_their_part(opened, parts, devices):
    store, task, tokens = opened
    batches = TaskBatches(store, TOKENIZER, config(16), task, family="bert", seed=3, parts=parts, devices=devices)
    assert batches.rows is not None
    heights, width, seen, computed = batches.rows.heights(16), batches.rows.width, [], []
    assert 1 <= len(heights) <= 3 and all(n % (parts * devices) == 0 for n in heights)
    for step in range(COUNT // 16):
        batch = batches.read(step)
        rows = check_places(batch, 16)
        assert (rows % parts == np.arange(16)[:, None] % parts).all()
        height = len(batch["tokens"])
        assert batch["tokens"].shape[1] == width and (height in heights or height > heights[-1])
        alone = apart(batch)["tokens"].reshape(16, -1, batches.length)
        seen += [line.tobytes() for line in alone]
        # Every process reads the same rows, and its own examples.
        part = batches.read(step, np.array([5, 2]))
        for name, array in batch.items():
            assert np.array_equal(part[name], array if name in SHARED else array[[5, 2]]), name
        size = batches.size_at(step)
        assert size == (rows.size, batch["mask"].sum(), height * width)
        computed.append([size.tokens, size.computed])
    expected = Counter(line.tobytes() for line in tokens[:, :, : batches.length].astype(np.int32))
    assert not tokens[:, :, batches.length :].any() and len(expected) == COUNT
    # An epoch has each example once.
    assert len(set(seen)) == len(seen) == COUNT // 16 * 16 and set(seen) <= set(expected)
    total, places = np.sum(computed, 0)
    # On the mean less than two rows of a device are left over in each part: there are few numbers of rows.
    assert total < places < total + 2 * len(computed) * parts * devices * width


@pytest.mark.parametrize(("batch", "devices"), [(1, 1), (7, 1), (16, 1), (16, 8), (400, 1)])
def test_held_out_examples_come_once_each_in_windows(opened, monkeypatch, batch, devices):
    monkeypatch.setattr(module, "WINDOW", 3)
    store, _, tokens = opened
    held_out = HeldOutTask(store.splits["train"], TOKENIZER, config(16), batch, family="bert", devices=devices)
    shape = held_out.shape
    assert isinstance(shape, Shape) and held_out.batch % devices == 0
    assert all(n % devices == 0 for n in shape.heights)
    read, seen, first = every_example(held_out), list[int](), 0
    assert np.array_equal(read["tokens"].reshape(COUNT, -1, held_out.length), tokens[:, :, : held_out.length])
    for step in range(held_out.steps):
        batch_, numbers = held_out.read(step), held_out.numbers(step)
        check_places(batch_, len(numbers))
        assert batch_["tokens"].shape[1] == shape.width and len(batch_["tokens"]) in shape.heights
        assert len(batch_["mask"]) == held_out.batch >= len(numbers)
        seen += numbers.tolist()
        if held_out.ends_window(step):
            assert sorted(seen) == list(range(first, first + len(seen)))
            first, seen = first + len(seen), []
    assert first == COUNT and held_out.ends_window(held_out.steps - 1)


@pytest.mark.parametrize("kind", ["classify", "choice"])
def test_a_long_text_that_is_not_in_the_sample_has_a_row_too(monkeypatch, kind):
    monkeypatch.setattr(module, "SAMPLE", 5)
    monkeypatch.setattr(packing, "ROW", 16)
    texts = ["w1 w2"] * 20
    # Every fourth of the 20 is in the sample.
    texts[7] = "w3 " * 90
    items: list[Example] = [
        Text(text, "x", f"f:{n}") if kind == "classify" else ChoiceExample(text, ("w4", "w5"), "x", f"f:{n}")
        for n, text in enumerate(texts)
    ]
    data = DataConfig(batch=4, length=128, max_predictions=1)
    held_out = HeldOutTask(split_of(items, kind, TOKENIZER), TOKENIZER, data, 4, family="bert")
    read = every_example(held_out)
    assert [int(n) for n in read["mask"].reshape(20, -1, held_out.length)[:, 0].sum(-1)] == [
        len(text.split()) + (2 if kind == "classify" else 4) for text in texts
    ]
