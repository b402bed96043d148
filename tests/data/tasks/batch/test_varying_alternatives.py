"""Questions of different numbers of alternatives: from every table, in every family's arrays, in one store."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.batches import check_fields
from contexture.data.config import DataConfig, TaskConfig
from contexture.data.describe import describe
from contexture.data.errors import DataError
from contexture.data.packing import apart
from contexture.data.tasks.batch.batches import HeldOutTask, task_fields
from contexture.data.tasks.batch.training_batches import TaskBatches
from contexture.data.tasks.encode import encode_examples
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tasks.encode.example_tokens import encode_chunk, in_memory
from contexture.data.tasks.read.examples import ChoiceExample, Example
from contexture.data.tasks.read.labels import Labels, class_weights
from contexture.data.tasks.read.published.choices import commonsense_questions
from contexture.data.tasks.read.read_examples import examples
from contexture.data.tasks.store.example_store import ExampleSplit, ExampleStore
from contexture.data.tokenizers.elmo_char_ids import words_from_char_ids
from contexture.data.tokenizers.open_vocabulary import OpenVocabulary
from contexture.data.tokenizers.word_level import Words
from tests.data.tasks.batch.test_gpt_layout import BERT, CHOICE, LETTERS, WORDS, batch_of, shares, split_of, to_lists
from tests.helpers import tfds_sets
from tests.helpers.packed import every_example

QUESTIONS = [("b", ("c", "d", "e"), 2), ("de", ("f", "g"), 1), ("h", ("b", "c", "d", "e", "fg"), 4)]
OPEN = Words(["<S>", "</S>", "<UNK>", "the"], "punctuation")


def json_lines(questions=QUESTIONS) -> str:
    keys = ("text", "choices", "label")
    return "".join(json.dumps(dict(zip(keys, question, strict=True))) + "\n" for question in questions)


def write(path: Path, content: str) -> str:
    path.write_text(content, "utf-8")
    return str(path)


def read(path: str, **task: Any) -> list[tuple[str, tuple[str, ...], str | None]]:
    config = TaskConfig(kind="choice", **task)
    return [(x.text, x.choices, x.label) for x in examples(path, config, labelled=True) if isinstance(x, ChoiceExample)]


# Files


@pytest.mark.parametrize(
    ("name", "content", "task"),
    [
        ("a.jsonl", json_lines(), {}),
        ("a.csv", "text,sol1,sol2,sol3,sol4,sol5,label\nb,c,d,e,,,2\nde,f,g,,  ,,1\nh,b,c,d,e,fg,4\n", {}),
        ("a.tsv", "b\tc\td\te\t\t\t2\nde\tf\tg\t\t\t\t1\nh\tb\tc\td\te\tfg\t4\n",
         {"text": "1", "choices": ("2", "3", "4", "5", "6"), "label": "7"}),
        ("a.jsonl", "".join(json.dumps({"text": text, **{f"choice{n}": choice for n, choice in enumerate(choices)},
                                        "label": label}) + "\n" for text, choices, label in QUESTIONS), {}),
        ("a.jsonl", "".join(json.dumps({"text": text, "label": label} | {
            f"choice{n}": choices[n] if n < len(choices) else None for n in range(5)}) + "\n"
            for text, choices, label in QUESTIONS), {}),
    ],
    ids=["list", "csv", "tsv by position", "own keys", "null"],
)  # fmt: skip
def test_the_last_alternatives_may_be_absent(tmp_path, name, content, task):
    path = write(tmp_path / name, content)
    assert read(path, **task) == [(text, choices, str(label)) for text, choices, label in QUESTIONS]


def test_an_alternative_that_is_empty_before_another_is_an_odd_text(tmp_path):
    path = write(tmp_path / "a.csv", "text,choice1,choice2,choice3,label\nb,c,,e,2\n")
    with pytest.raises(DataError, match=r"a\.csv:2: the alternative 1 \(column 'choice2'\) is empty"):
        read(path)


def test_a_tfds_set_has_lists_of_any_length(tmp_path, monkeypatch):
    features: dict[str, Any] = tfds_sets.FEATURES
    lists, text = features["conll2003"]["tokens"], features["lm1b"]["text"]
    monkeypatch.setitem(features, "exam_set", {"question": text, "options": lists, "label": np.int32})
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    rows = [{"question": text, "options": list(choices), "label": label} for text, choices, label in QUESTIONS]
    tfds_sets.build(tmp_path, "exam_set", {"train": rows})
    assert read("tfds:exam_set:train") == [(text, choices, str(label)) for text, choices, label in QUESTIONS]


def test_published_questions_have_three_to_five_answers(tmp_path):
    """ARC's files have the form of CommonsenseQA's; some of its questions number their answers."""

    def row(names: str, key: str) -> dict[str, Any]:
        return {"answerKey": key, "question": {"stem": "?", "choices": [{"label": x, "text": f"{x}."} for x in names]}}

    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(row(*each)) + "\n" for each in (
        ("ABCD", "C"), ("1234", "2"), ("CBA", "A"), ("ABCDE", "E"), ("ACD", "A"))))  # fmt: skip
    *rows, (_, odd) = commonsense_questions(file).rows
    assert [(x["choices"], x["label"]) for _, x in rows if isinstance(x, dict)] == [
        (["A.", "B.", "C.", "D."], "C"), (["1.", "2.", "3.", "4."], "B"), (["A.", "B.", "C."], "A"),
        (["A.", "B.", "C.", "D.", "E."], "E")]  # fmt: skip
    assert "a.jsonl:5: not in the form of its publisher" in str(odd)


def words_of(items: list[Example]) -> ExampleSplit:
    """Examples as an ELMo reads them."""
    words, labels = OpenVocabulary(OPEN), Labels()
    coded = encode_chunk(items, "choice", words, labels)
    return in_memory(coded, "choice", tuple(labels.numbers), "f", char_ids=words.char_ids())


# Arrays

UNEQUAL: list[Example] = [ChoiceExample("bc", ("d", "ef", "g"), "2", "f:1"), ChoiceExample("h", ("d", "e"), "1", "f:2")]


def test_absent_alternatives_have_special_tokens_alone():
    """A GPT's weigh nothing in the loss of the words either."""
    batch = to_lists(batch_of(UNEQUAL, "choice", labels=("0", "1", "2")))
    assert batch["tokens"][1] == [[9, 7, 10, 3, 11, 0, 0, 0], [9, 7, 10, 4, 11, 0, 0, 0], [9, 11, 0, 0, 0, 0, 0, 0]]
    assert batch["mask"][1] == [[1] * 5 + [0] * 3] * 2 + [[1] * 2 + [0] * 6]
    assert batch["next_weights"][1] == [*shares(5, 5), [0.0] * 8]
    assert batch["choices"] == [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]] and batch["labels"] == [2, 1]
    items: list[Example] = [ChoiceExample("w1", ("w2", "w3", "w4"), "0", "f:1"),
                            ChoiceExample("w1", ("w2", "w3"), "1", "f:2")]  # fmt: skip
    bert = batch_of(items, "choice", BERT, WORDS, labels=("0", "1", "2"))
    assert to_lists(bert)["tokens"][1][2] == [2, 3, 0, 0, 0, 0, 0, 0] and to_lists(bert)["choices"][1] == [1, 1, 0]
    assert "the right one of 2 alternatives" in describe(bert, 1, WORDS, ("0", "1", "2"), "choice")


def test_an_elmo_reads_a_text_and_an_alternative_as_one_sequence():
    """Where both are too long, the longer one loses its end. Distinct words are those of all alternatives."""
    items: list[Example] = [ChoiceExample("the cat sat there", ("on a mat", "no", "up"), "0", "f:1"),
                            ChoiceExample("who", ("the cat", "a"), "1", "f:2")]  # fmt: skip
    split = words_of(items)
    assert split.longest == 7 and (split.longer_than(9), split.longer_than(8)) == (0, 1)
    for length, first in ((9, "the cat sat there on a mat"), (8, "the cat sat on a mat"), (6, "the cat on a")):
        config = DataConfig(batch=2, length=length, max_predictions=1)
        held_out = HeldOutTask(split, OPEN, config, 2, family="elmo")
        packed = held_out.read(0)
        check_fields(packed, held_out.fields)
        batch = apart(packed)
        assert batch["index"].shape == (2, 3, length - 2) and batch["choices"].tolist() == [[1, 1, 1], [1, 1, 0]]
        lines = [[" ".join(words_from_char_ids(batch["types"][i[m > 0]])) for i, m in zip(*row, strict=True)]
                 for row in zip(batch["index"], batch["mask"], strict=True)]  # fmt: skip
        assert lines[0][0] == first and lines[1] == ["who the cat", "who a", ""]
    assert task_fields("choice", "elmo", pair=True) == held_out.fields
    assert describe(packed, 1, OPEN, ("0", "1", "2"), "choice") == (
        "who a → 1\n(2 words; the right one of 2 alternatives)"
    )


TEXTS = st.text("bcdefgh", min_size=1, max_size=9)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(TEXTS, st.lists(TEXTS, min_size=2, max_size=6)), min_size=1, max_size=7),
    st.integers(8, 20),
    st.sampled_from(["gpt", "elmo"]),
)
def test_a_question_has_the_rows_that_it_has_alone(questions, length, family):
    names, tokenizer = tuple("012345"), OPEN if family == "elmo" else LETTERS
    items: list[Example] = [ChoiceExample(text, tuple(x), "0", f"f:{n}") for n, (text, x) in enumerate(questions)]

    def batch(some: list[Example]) -> dict[str, np.ndarray]:
        split = words_of(some) if family == "elmo" else split_of(some, "choice", tokenizer, names)
        return every_example(HeldOutTask(split, tokenizer, DataConfig(batch=4, length=length), 4, family=family))

    together, most = batch(items[:4]), max(len(choices) for _, choices in questions[:4])
    for row, item in enumerate(items[:4]):
        alone, count = batch([item]), len(questions[row][1])
        assert together["choices"][row].tolist() == [1.0] * count + [0.0] * (most - count)
        names_of = ("mask", "words") if family == "elmo" else ("tokens", "mask", "next", "next_weights")
        width = alone["mask"].shape[-1]
        for name in names_of:
            assert np.array_equal(together[name][row, :count, :width], alone[name][0, :count]), name
            # What is longer among the others has more places.
            assert not together[name][row, :count, width:].any(), name
        if family == "gpt":
            assert not together["next_weights"][row, count:].any()


# Stores


def test_a_store_has_as_many_rows_as_the_longest_list_wherever_it_stands(tmp_path, monkeypatch):
    """Among the held-out questions, or in a later chunk; the files do not say how they were read."""
    train, dev = write(tmp_path / "train.jsonl", json_lines()), write(tmp_path / "dev.jsonl", json_lines(
        [("c", ("d", "e"), 0), ("c", tuple("bcdefgh"), 6)]))  # fmt: skip
    task = TaskConfig(kind="choice", train=(train,), dev=(dev,))
    whole = encode(task, LETTERS, tmp_path / "whole")
    monkeypatch.setattr(encode_examples, "CHUNK", 1)
    parts = encode(task, LETTERS, tmp_path / "parts")
    assert whole.fingerprint == parts.fingerprint and whole.choices == 7
    ExampleStore.open(tmp_path / "parts").verify()
    assert whole.labels == tuple("0123456") and whole.counts == (0, 1, 1, 0, 1, 0, 0)
    for store in (whole, parts):
        assert [split.examples for split in store.splits.values()] == [3, 2]
        assert store.splits["train"].answers().tolist() == [2, 1, 4] and store.splits["dev"].answers().tolist() == [
            0,
            6,
        ]
    balanced = TaskConfig(kind="choice", class_weights=("balanced",))
    weights = class_weights(balanced, whole.labels, whole.counts)
    assert weights.tolist() == pytest.approx([1, 3 / 7, 3 / 7, 1, 3 / 7, 1, 1])
    batches = TaskBatches(whole, LETTERS, DataConfig(batch=3, length=16), CHOICE, seed=0, family="gpt")
    assert batches.describe().startswith("3 examples in up to 7 sequences of 8 tokens; ")
    assert sorted(batches.read(0)["choices"].sum(1).tolist()) == [2, 3, 5]


def test_equal_numbers_are_stored_as_they_always_were(tmp_path):
    path = write(tmp_path / "a.jsonl", json_lines([("b", ("c", "d"), 0), ("c", ("d", "e"), 1)]))
    store = encode(TaskConfig(kind="choice", train=(path,)), LETTERS, tmp_path / "data")
    batches = TaskBatches(store, LETTERS, DataConfig(batch=2, length=16), CHOICE, seed=0, family="gpt")
    assert store.choices == 2 and batches.describe().startswith("2 examples in 2 sequences of 8 tokens; ")


def test_named_alternatives_are_the_first_names(tmp_path):
    rows = [("b", ("c", "d", "e"), "C"), ("de", ("f", "g"), "B")]
    path = write(tmp_path / "a.jsonl", json_lines(rows))
    store = encode(TaskConfig(kind="choice", train=(path,), labels=tuple("ABCDE")), LETTERS, tmp_path / "data")
    assert (store.labels, store.choices) == (tuple("ABCDE"), 3)
    assert store.splits["train"].answers().tolist() == [2, 1]
