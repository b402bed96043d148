"""Tasks as GPT-1 lays them out, and multiple choice: every field by hand, read back by number, mistakes in one line."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.batches import check_fields
from contexture.data.config import DataConfig, Family, TaskConfig
from contexture.data.describe import describe
from contexture.data.errors import DataError
from contexture.data.packing import apart
from contexture.data.tasks.batch.batches import HeldOutTask, task_fields
from contexture.data.tasks.batch.training_batches import TaskBatches
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tasks.encode.example_tokens import encode_chunk, in_memory
from contexture.data.tasks.read.examples import ChoiceExample, Example, Pair, Tagged, Text
from contexture.data.tasks.read.labels import Labels
from contexture.data.tasks.store.example_store import ExampleSplit, ExampleStore
from contexture.data.tokenizers.base import Tokenizer, with_added_tokens
from contexture.data.tokenizers.char_level import Characters
from contexture.data.tokenizers.registry import learn
from contexture.data.tokenizers.wordpiece import WordPiece
from contexture.train.evaluation.predictions import ClassCollector
from tests.helpers.packed import every_example
from tests.helpers.slow_pairs import truncate, vocabulary

LETTERS = with_added_tokens(Characters(list("abcdefgh ")), ["_start_", "_delimiter_", "_classify_"])
"""a is 0, and so is padding; b 1, …; the space 8; the special tokens 9, 10, 11."""
START, DELIMITER, EXTRACT = 9, 10, 11
WORDS = WordPiece(vocabulary(), lowercase=True)  # [PAD] 0, [CLS] 2, [SEP] 3, w0 5, w1 6, …
GPT = DataConfig(batch=4, length=16)
BERT = DataConfig(batch=4, length=16, max_predictions=1)
CHOICE = TaskConfig(kind="choice")


def split_of(
    items: list[Example], kind: str, tokenizer: Tokenizer = LETTERS, labels=("x", "y"), **more: Any
) -> ExampleSplit:
    coded = encode_chunk(items, kind, tokenizer, Labels(labels if kind != "regress" else ("",), named=True))
    return in_memory(coded, kind, () if kind == "regress" else tuple(labels), "f", **more)


def batch_of(
    items: list[Example],
    kind: str,
    config: DataConfig = GPT,
    tokenizer: Tokenizer = LETTERS,
    lines: int = 0,
    **more: Any,
) -> dict[str, np.ndarray]:
    """All of them in their order, a row for each sequence. The fields of batches have the names, types and ranks that
    are promised."""
    family: Family = "bert" if config is BERT else "gpt"
    config = dataclasses.replace(config, length=more.pop("length", config.length))
    split = split_of(items, kind, tokenizer, **more)
    held_out = HeldOutTask(split, tokenizer, config, lines or len(items), family=family)
    assert held_out.fields == task_fields(kind, family, split.symmetric)
    for step in range(held_out.steps):
        batch = held_out.read(step)
        check_fields(batch, held_out.fields)
        assert set(batch) == set(held_out.fields)
    return every_example(held_out)


def width_of(batch: dict[str, np.ndarray], *lengths: int, limit: int) -> int:
    """The places of a sequence in a batch: of the longest, by eights, at most the limit."""
    width = batch["mask"].shape[-1]
    assert width == min(-(-max(lengths) // 8) * 8, limit)
    return width


def to_lists(batch: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: array.tolist() for name, array in batch.items()}


def shares(*lengths: int, width: int = 8) -> list[list[float]]:
    """next_weights of lines of so many tokens."""
    return [[float(np.float32(1 / (n - 1)))] * (n - 1) + [0.0] * (width - n + 1) for n in lengths]


# Every field by hand


def test_a_text_of_a_class():
    assert to_lists(batch_of([Text("bc", "y", "f:1"), Text("defg", "x", "f:2")], "classify")) == {
        "tokens": [[9, 1, 2, 11, 0, 0, 0, 0], [9, 3, 4, 5, 6, 11, 0, 0]],
        "mask": [[1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 0, 0]],
        "next": [[1, 2, 11, 0, 0, 0, 0, 0], [3, 4, 5, 6, 11, 0, 0, 0]],
        "next_weights": shares(4, 6),
        "labels": [1, 0],
        "weights": [1.0, 1.0],
        "valid": [1.0, 1.0],
    }


def test_a_pair_with_a_number():
    assert to_lists(batch_of([Pair("bc", "d", "2.5", "f:1")], "regress")) == {
        "tokens": [[9, 1, 2, 10, 3, 11, 0, 0]],
        "mask": [[1, 1, 1, 1, 1, 1, 0, 0]],
        "next": [[1, 2, 10, 3, 11, 0, 0, 0]],
        "next_weights": shares(6),
        "targets": [2.5],
        "valid": [1.0],
    }


def test_a_pair_in_both_orders():
    assert to_lists(batch_of([Pair("bc", "d", "x", "f:1")], "classify", symmetric=True)) == {
        "tokens": [[[9, 1, 2, 10, 3, 11, 0, 0], [9, 3, 10, 1, 2, 11, 0, 0]]],
        "mask": [[[1, 1, 1, 1, 1, 1, 0, 0]] * 2],
        "next": [[[1, 2, 10, 3, 11, 0, 0, 0], [3, 10, 1, 2, 11, 0, 0, 0]]],
        "next_weights": [shares(6, 6)],
        "labels": [0],
        "weights": [1.0],
        "valid": [1.0],
    }


def test_a_choice():
    items: list[Example] = [ChoiceExample("bc", ("d", "ef", "g"), "ef", "f:1")]
    assert to_lists(batch_of(items, "choice", labels=("0", "1", "2"))) == {
        "tokens": [[[9, 1, 2, 10, 3, 11, 0, 0], [9, 1, 2, 10, 4, 5, 11, 0], [9, 1, 2, 10, 6, 11, 0, 0]]],
        "mask": [[[1] * 6 + [0] * 2, [1] * 7 + [0], [1] * 6 + [0] * 2]],
        "next": [[[1, 2, 10, 3, 11, 0, 0, 0], [1, 2, 10, 4, 5, 11, 0, 0], [1, 2, 10, 6, 11, 0, 0, 0]]],
        "next_weights": [shares(6, 7, 6)],
        "choices": [[1.0, 1.0, 1.0]],
        "labels": [1],
        "weights": [1.0],
        "valid": [1.0],
    }


def test_a_choice_as_bert_has_it():
    items: list[Example] = [ChoiceExample("w1 w2", ("w3", "w4 w5"), "y", "f:1")]
    assert to_lists(batch_of(items, "choice", BERT, WORDS)) == {
        "tokens": [[[2, 6, 7, 3, 8, 3, 0, 0], [2, 6, 7, 3, 9, 10, 3, 0]]],
        "segments": [[[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1, 1, 0]]],
        "mask": [[[1] * 6 + [0] * 2, [1] * 7 + [0]]],
        "choices": [[1.0, 1.0]],
        "labels": [1],
        "weights": [1.0],
        "valid": [1.0],
    }


def test_a_tag_stands_where_its_whole_word_was_seen():
    batch = batch_of(
        [Tagged(("bc", "d"), ("x", "y"), "f:1"), Tagged(("efgh", "b"), ("y", "x"), "f:2")], "tag", length=7
    )
    assert batch["tokens"].tolist() == [[9, 1, 2, 8, 3, 11, 0], [9, 4, 5, 6, 7, 8, 11]]
    assert batch["tags"].tolist() == [[-1, -1, 0, -1, 1, -1, -1], [-1, -1, -1, -1, 1, -1, -1]]
    assert np.array_equal(batch["tag_weights"], batch["tags"] >= 0)
    assert batch["next_weights"].tolist() == shares(6, 7, width=7)


def test_the_fields_of_a_task():
    rows = {"tokens": "i32 XY", "packs": "i32 XY", "positions": "i32 XY"}
    answers = {"labels": "i32 B", "weights": "f32 B", "valid": "f32 B"}
    of_words = {"next": "i32 XY", "next_weights": "f32 XY"}
    assert task_fields("classify", "gpt") == {**rows, **of_words, "begins": "i32 B", "mask": "i32 BL", **answers}
    both = task_fields("regress", "gpt", True)
    assert both == {
        **rows,
        **of_words,
        "begins": "i32 BA",
        "mask": "i32 BAL",
        "targets": "f32 B",
        "valid": "f32 B",
    }
    assert task_fields("choice", "bert") == {
        **rows,
        "segments": "i32 XY",
        "begins": "i32 BA",
        "mask": "i32 BAL",
        "choices": "f32 BA",
        **answers,
    }
    assert task_fields("tag", "elmo") == {
        "types": "i32 RW",
        "index": "i32 XY",
        "packs": "i32 XY",
        "positions": "i32 XY",
        "begins": "i32 B",
        "mask": "i32 BL",
        "tags": "i32 BL",
        "tag_weights": "f32 BL",
        "valid": "f32 B",
    }
    assert task_fields("regress", "vectors", pair=True)["begins"] == "i32 BA"
    assert task_fields("tag", "bert")["tags"] == "i32 BL" and "next" not in task_fields("tag", "bert")


# Laws over lengths

TEXTS = st.text("bcdefgh", min_size=1, max_size=20)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS | st.none()), min_size=1, max_size=5), st.integers(5, 30))
def test_special_tokens_stay_and_every_token_but_the_first_is_a_target(texts, length):
    items: list[Example] = [
        Text(a, "x", f"f:{n}") if b is None else Pair(a, b, "x", f"f:{n}") for n, (a, b) in enumerate(texts)
    ]
    batch = batch_of(items, "classify", length=length)
    width = width_of(batch, *(len(a) + (2 if b is None else len(b) + 3) for a, b in texts), limit=length)
    for row, (a, b) in enumerate(texts):
        first, second = LETTERS.encode([a])[0], LETTERS.encode([b or ""])[0]
        if b is None:
            line = [START, *first[: length - 2], EXTRACT]
        else:
            first, second = truncate(first, second, length, lambda side, taken: False)
            line = [START, *first, DELIMITER, *second, EXTRACT]
        pad = [0] * (width - len(line))
        assert batch["tokens"][row].tolist() == line + pad
        assert batch["mask"][row].tolist() == [1] * len(line) + pad
        assert batch["next"][row].tolist() == [*line[1:], 0, *pad]
        assert batch["next_weights"][row].tolist() == shares(len(line), width=width)[0]
        assert batch["next_weights"][row].sum() == pytest.approx(1.0)


@settings(max_examples=40, deadline=None)
@given(TEXTS, TEXTS, st.integers(5, 30))
def test_a_pair_turned_round_gives_its_lines_turned_round(a, b, length):
    existing, back = (
        batch_of([Pair(one, other, "x", "f:1")], "classify", symmetric=True, length=length)
        for one, other in ((a, b), (b, a))
    )
    for name in ("tokens", "mask", "next", "next_weights"):
        assert np.array_equal(existing[name][:, ::-1], back[name])
    one_way = batch_of([Pair(a, b, "x", "f:1")], "classify", length=length)
    assert np.array_equal(existing["tokens"][:, 0], one_way["tokens"])


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(TEXTS, st.lists(TEXTS, min_size=3, max_size=3)), min_size=1, max_size=9),
    st.sampled_from([1, 2, 7, 64]),
    st.integers(8, 24),
)
def test_a_choice_is_its_pairs_whatever_the_batch(items, lines, length):
    examples: list[Example] = [
        ChoiceExample(text, tuple(choices), "2", f"f:{n}") for n, (text, choices) in enumerate(items)
    ]
    pairs: list[Example] = [Pair(text, choice, "0", "f:1") for text, choices in items for choice in choices]
    expected = batch_of(pairs, "classify", labels=("0",), length=length)
    split = split_of(examples, "choice", labels=("0", "1", "2"))
    config = dataclasses.replace(GPT, length=length)
    batch = every_example(HeldOutTask(split, LETTERS, config, lines, family="gpt"))
    width = width_of(expected, *(len(text) + len(choice) + 3 for text, choices in items for choice in choices),
                     limit=length)  # fmt: skip
    for name in ("tokens", "mask", "next", "next_weights"):
        assert np.array_equal(batch[name].reshape(-1, width), expected[name]), name
    assert batch["labels"].tolist() == [2] * len(items)
    for name in ("next_weights", "weights", "valid"):
        assert (batch[name].reshape(len(items), -1).sum(-1) > 0).all()
    assert split.examples == len(items)
    longer = [max(len(choice) for choice in choices) + len(text) + 3 > length for text, choices in items]
    assert split.longer_than(length) == sum(longer)


def test_a_layout_wants_its_own_vocabulary_and_room():
    split = split_of([Text("b", "x", "f:1")], "classify")
    for tokenizer, family, config, message in (
        (LETTERS.base, "gpt", GPT,  # type: ignore[attr-defined]
         "and this one, of kind characters, lacks _start_, _delimiter_, _classify_"),
        (with_added_tokens(Characters(["b"]), ["_start_"]), "gpt", GPT,
         "lacks _delimiter_, _classify_; fine-tune a pretrained GPT"),
        (LETTERS, "bert", BERT, "BERT reads a vocabulary of kind wordpiece"),
        (LETTERS, "gpt", DataConfig(length=4), "data.length=4 has no room for a pair of texts "
         "and its special tokens; give at least 5"),
    ):  # fmt: skip
        with pytest.raises(DataError) as caught:
            HeldOutTask(split, tokenizer, config, 1, family=family)  # pyright: ignore[reportArgumentType]
        assert message in str(caught.value)


def test_a_store_remembers_that_pairs_are_read_in_both_orders(tmp_path):
    (tmp_path / "a.tsv").write_text("sentence1\tsentence2\tlabel\nb\tc\tx\nd\te\ty\n")
    task = TaskConfig(kind="classify", train=(str(tmp_path / "a.tsv"),), symmetric=True)
    encode(task, LETTERS, tmp_path / "data")
    store = ExampleStore.open(tmp_path / "data")
    batches = TaskBatches(store, LETTERS, GPT, task, seed=0, family="gpt")
    assert batches.fields["mask"] == "i32 BAL" and apart(batches.read(0))["tokens"].shape == (4, 2, 8)
    # Eight sequences of five tokens, in a row of the least bucket that holds them.
    assert batches.describe().startswith("2 examples in 2 sequences of 8 tokens; 1 row")
    assert batches.describe().endswith(" of 48 tokens a batch, padding ratio 1.20")
    task = TaskConfig(kind="classify", train=task.train)
    plain = encode(task, LETTERS, tmp_path / "plain")
    assert not {"choices", "symmetric"} & set(plain.index) and plain.fingerprint != store.fingerprint


def test_both_orders_are_answered_once():
    split = split_of([Pair("b", "c", "x", "f:1"), Pair("d", "e", "y", "f:2")], "classify", symmetric=True)
    answers = ClassCollector(HeldOutTask(split, LETTERS, GPT, 2, family="gpt"))
    answered: list[Any] = list(answers.add(0, {"scores": np.array([[0.75, 0.25], [0.5, 0.5]], np.float32)}))
    assert [(one["id"], one["label"], one["prediction"]) for one in answered] == [("f:1", "x", "x"), ("f:2", "y", "x")]


# Lines for people


def test_lines_are_described():
    bytes_ = with_added_tokens(learn("byte-bpe", ["the cat sat on the mat " * 9], 300, False), list(LETTERS.specials))

    def line(items: Example, kind: str, labels=("no", "yes"), **more: Any) -> str:
        return describe(batch_of([items], kind, GPT, bytes_, labels=labels, **more), 0, bytes_, labels, kind)

    assert line(Text("the cat", "yes", "f:1"), "classify") == "_start_ the cat _classify_\n(4 tokens; label yes)"
    assert line(Pair("the cat\nsat", "on", "0.5", "f:1"), "regress").startswith(
        "_start_ the cat⏎sat _delimiter_ on _classify_\n("
    )
    assert "; target 0.5)" in line(Pair("the cat", "sat", "0.5", "f:1"), "regress")
    both = line(Pair("the", "cat", "no", "f:1"), "classify", symmetric=True)
    assert both.endswith("the first of 2 sequences; label no)")
    assert line(ChoiceExample("the cat", ("on", "sat"), "yes", "f:1"), "choice").startswith(
        "_start_ the cat _delimiter_ sat _classify_\n("
    )
    assert "the right one of 2 alternatives; label yes)" in line(
        ChoiceExample("the", ("on", "sat"), "yes", "f:1"), "choice"
    )
    assert line(Tagged(("the", "mats"), ("no", "yes"), "f:1"), "tag").startswith(
        "_start_ the/no mats/yes _classify_\n("
    )
    items: list[Example] = [ChoiceExample("w1 w2", ("w3", "w4"), "y", "f:1")]
    assert describe(batch_of(items, "choice", BERT, WORDS), 0, WORDS, ("x", "y"), "choice") == (
        "[CLS] w1 w2 [SEP] w4 [SEP]\n"
        "(6 tokens; the right one of 2 alternatives; 4 in segment 0, 2 in segment 1; label y)"
    )
