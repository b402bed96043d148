"""A task's examples: encoded once, read back by number, laid out in batches."""

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.batches import iterate
from contexture.data.bucketing import MAX_BATCH, check_batch
from contexture.data.config import DataConfig, TaskConfig
from contexture.data.errors import DataError
from contexture.data.layouts import bert_texts
from contexture.data.packing import apart
from contexture.data.tasks.batch.batches import HeldOutTask, sequence_length
from contexture.data.tasks.batch.training_batches import TaskBatches
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tasks.encode.example_tokens import encode_chunk, in_memory, same_shape
from contexture.data.tasks.encode.word_alignment import cut_words
from contexture.data.tasks.read import examples as task_examples
from contexture.data.tasks.read.examples import Pair, Tagged, Text
from contexture.data.tasks.read.file_report import FileReport
from contexture.data.tasks.read.labels import Labels, class_weights
from contexture.data.tasks.store.example_store import ExampleStore, sha256_of
from contexture.data.tokenizers.char_level import Characters
from contexture.data.tokenizers.wordpiece import WordPiece
from tests.helpers.packed import every_example
from tests.helpers.slow_pairs import vocabulary

TOKENIZER = WordPiece([*vocabulary(), "un", "##want", "##ed"], lowercase=True)
DATA = DataConfig(batch=4, length=16, max_predictions=1)
WORDS = st.lists(st.sampled_from(["w1", "w2", "w30", "unwanted", "wanted?"]), min_size=1, max_size=12)


def store(folder: Path, lines: str, name: str = "train.tsv", **more) -> ExampleStore:
    (folder / name).write_text(lines, "utf-8")
    task = TaskConfig(train=(str(folder / name),), **{"kind": "classify", **more})
    return encode(task, TOKENIZER, folder / "data")


def rows(*pairs: tuple[str, str]) -> str:
    return "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in pairs)


def batches(examples: ExampleStore, seed: int = 0, **task) -> TaskBatches:
    return TaskBatches(examples, TOKENIZER, DATA, TaskConfig(kind=examples.kind, **task), seed=seed, family="bert")  # type: ignore[arg-type]


def test_labels_are_sorted_counted_and_kept(tmp_path):
    encoded = store(tmp_path, rows(("w1", "no"), ("w2", "yes"), ("w3", "maybe"), ("w4", "no")))
    assert (encoded.labels, encoded.counts) == (("maybe", "no", "yes"), (1, 2, 1))
    assert encoded.splits["train"].answers().tolist() == [1, 2, 0, 1]
    encoded.verify()


def test_labels_that_are_numbers_are_sorted_as_numbers(tmp_path):
    assert store(tmp_path, rows(("w1", "10"), ("w2", "9"), ("w3", "-1"))).labels == ("-1", "9", "10")


def test_labels_in_an_order_of_ones_own(tmp_path):
    encoded = store(tmp_path, rows(("w1", "no"), ("w2", "yes")), labels=("yes", "unseen", "no"))
    assert (encoded.labels, encoded.counts) == (("yes", "unseen", "no"), (1, 0, 1))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS | st.none()), min_size=1, max_size=9), st.integers(8, 24))
def test_an_encoded_example_is_laid_out_like_the_text_at_hand(texts, length):
    pairs = [(" ".join(a), " ".join(b) if b else None) for a, b in texts]
    actual = [Text(a, "x", f"f:{n}") if b is None else Pair(a, b, "x", f"f:{n}") for n, (a, b) in enumerate(pairs)]
    split = in_memory(encode_chunk(actual, "classify", TOKENIZER, Labels(["x"])), "classify", ("x",), "f")
    held_out = HeldOutTask(split, TOKENIZER, dataclasses.replace(DATA, length=length), batch=4, family="bert")
    expected = bert_texts(TOKENIZER, [a if b is None else (a, b) for a, b in pairs], length)
    read = every_example(held_out)
    # What no example reaches, in a sequence of the greatest length, has no place.
    width = held_out.length
    assert width == min(-(-int(expected["mask"].sum(1).max()) // 8) * 8, length)
    for name, array in expected.items():
        assert np.array_equal(read[name], array[:, :width]) and not array[:, width:].any(), name
    assert len(read["valid"]) == len(pairs) == split.examples
    assert [split.origin(row) for row in split.take(np.arange(len(pairs)))] == [f"f:{n}" for n in range(len(pairs))]


@settings(max_examples=40, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=6), st.integers(8, 20))
def test_a_tag_stands_at_its_words_first_piece(sentences, length):
    actual = [Tagged(tuple(words), tuple(words), f"f:{n}") for n, words in enumerate(sentences)]
    labels = Labels()
    coded = encode_chunk(actual, "tag", TOKENIZER, labels)
    names = tuple(labels.numbers)
    split = in_memory(coded, "tag", names, "f")
    config = dataclasses.replace(DATA, length=length)
    batch = every_example(HeldOutTask(split, TOKENIZER, config, batch=len(actual), family="bert"))
    longest = max(sum(len(TOKENIZER.encode([word])[0]) for word in words) + 2 for words in sentences)
    width = min(-(-longest // 8) * 8, length)
    for row, words in enumerate(sentences):
        expected = [-1]
        for word in words:
            pieces = TOKENIZER.encode([word])[0]
            expected += [names.index(word)] + [-1] * (len(pieces) - 1)
        expected = expected[: length - 1]
        expected += [-1] * (width - len(expected))
        assert batch["tags"][row].tolist() == expected
    assert np.array_equal(batch["tag_weights"], (batch["tags"] >= 0).astype(np.float32))


def test_every_pass_has_every_example_once_in_an_order_of_its_own(tmp_path):
    encoded = store(tmp_path, rows(*((f"w{n}", "ab"[n % 2]) for n in range(11))))
    reader = batches(encoded)
    seen = [tuple(line) for step in range(11) for line in apart(reader.read(step))["tokens"].tolist()]
    passes = [seen[11 * e : 11 * (e + 1)] for e in range(4)]
    assert all(len(set(one)) == 11 and set(one) == set(passes[0]) for one in passes)
    assert passes[0] != passes[1] != passes[2]
    assert [tuple(x) for x in apart(batches(encoded, seed=1).read(0))["tokens"].tolist()] != seen[:4]
    again = batches(encoded)
    for step in (7, 3, 7):
        part, whole = again.read(step, np.array([2, 0])), reader.read(step)
        # The rows are those of the whole batch.
        assert np.array_equal(part["tokens"], whole["tokens"])
        assert np.array_equal(apart(part)["tokens"], apart(whole)["tokens"][[2, 0]])
    with iterate(batches(encoded), 2, 6) as steps:
        for step, batch in steps:
            assert np.array_equal(batch["tokens"], reader.read(step)["tokens"])


def test_three_rows_make_batches_of_four(tmp_path):
    reader = batches(store(tmp_path, rows(("w1", "a"), ("w2", "b"), ("w3", "a"))))
    assert Counter(apart(reader.read(s))["tokens"][r, 1] for s in range(3) for r in range(4)) == Counter(
        {number: 4 for number in (6, 7, 8)}
    )
    assert reader.length == 8


def test_lines_are_as_long_as_the_longest_example(tmp_path):
    assert [sequence_length(DATA, longest) for longest in (1, 6, 7, 13, 14, 15, 400)] == [8, 8, 16, 16, 16, 16, 16]
    reader = batches(store(tmp_path, rows(("w1 " * 30, "a"), ("w2", "b"), ("w3 " * 14, "b"))))
    # The first batch has 51 tokens at most, with the longest three times: the least bucket holds them.
    assert reader.length == 16 and reader.read(0)["mask"].shape == (4, 16)
    assert reader.rows is not None and reader.rows.width == 64
    assert reader.describe().startswith("3 examples in sequences of 16 tokens; 1 of them longer, and cut; 1 row")
    assert {len(apart(reader.read(step))["tokens"][0]) for step in range(3)} == {16}


def test_a_fraction_held_out_is_drawn_and_apart(tmp_path):
    encoded = store(tmp_path, rows(*((f"w{n}", "ab"[n % 2]) for n in range(60))), dev_fraction=0.2)
    splits = encoded.splits
    assert splits["train"].examples + splits["dev"].examples == 60 and 4 <= splits["dev"].examples <= 22
    lines = [split.take(np.arange(split.examples))["line"] for split in splits.values()]
    assert sorted(np.concatenate(lines).tolist()) == list(range(2, 62))
    assert (np.diff(lines[1]) > 1).any()


def test_numbers_are_kept_to_the_bit(tmp_path):
    encoded = store(tmp_path, rows(("w1", "3.8"), ("w2", "-0.1"), ("w3", "1e-30")), kind="regress")
    assert encoded.splits["train"].answers().tolist() == [3.8, -0.1, 1e-30] and encoded.labels == ()
    assert sorted(np.concatenate([batches(encoded).read(0)["targets"]]).tolist())[0] == pytest.approx(-0.1)


def test_class_weights():
    task = TaskConfig(kind="classify", class_weights=("balanced",))
    assert class_weights(task, ("a", "b"), (30, 10)).tolist() == pytest.approx([40 / 60, 2.0])
    task = TaskConfig(kind="classify", class_weights=("b=2.5",))
    assert class_weights(task, ("a", "b"), (30, 10)).tolist() == [1.0, 2.5]
    for weights, says in ((("x=1",), "'x' is not one of a, b"), (("b=zwei",), "'zwei' is not a number"),
                          (("b=0",), "must be above 0"), (("balance",), "'' is not one of")):  # fmt: skip
        with pytest.raises(DataError, match=says):
            class_weights(TaskConfig(kind="classify", class_weights=weights), ("a", "b"), (30, 10))


@pytest.mark.parametrize(
    ("lines", "more", "says"),
    [
        (rows(("w1", "a"), ("w2", "a")), {}, "train.tsv: every example has the label 'a'"),
        (rows(("w1", "1"), ("w2", "two")), {"kind": "regress"}, "train.tsv:3: 'two' is not a number"),
        (rows(("w1", "1"), ("w2", "nan")), {"kind": "regress"}, "train.tsv:3: 'nan' is not a number"),
        (rows(("w1", "a"), ("w2", "b")), {"dev_fraction": 0.01}, "holds out none of 2 examples"),
        (
            rows(("w1", "entailment"), ("w2", "neutral"), ("w3", "entailement")),
            {"labels": ("entailment", "neutral")},
            r"train.tsv:4: label 'entailement' is not one of entailment, neutral \(did you mean entailment\?\)",
        ),
    ],
)
def test_examples_that_are_wrong_give_one_clear_line_and_leave_nothing(tmp_path, lines, more, says):
    with pytest.raises(DataError, match=says):
        store(tmp_path, lines, **more)
    assert [path.name for path in tmp_path.iterdir()] == ["train.tsv"]


def test_a_single_text_among_pairs_is_named():
    pairs = [Pair("w1", "w2", None, "f:4"), Text("w3", None, "f:5"), Pair("w1", "w2", None, "f:6")]
    coded = encode_chunk(pairs, "classify", TOKENIZER, Labels(["x"]))
    for pair, says in ((None, "f:5: a single text, and a pair of texts is what was learned from"),
                       (False, "f:4: a pair of texts, and a single text is what was learned from")):  # fmt: skip
        with pytest.raises(DataError, match=says):
            same_shape(coded, pair, "f:4")


def test_what_is_learned_from_is_not_held_out_too(tmp_path):
    (tmp_path / "train.tsv").write_text(rows(("w1", "a"), ("w2", "b")))
    (tmp_path / "dev.tsv").symlink_to("train.tsv")
    for name in ("dev", "test"):
        task = TaskConfig(kind="classify", train=(str(tmp_path / "train.tsv"),), **{name: (str(tmp_path / "dev.tsv"),)})  # pyright: ignore[reportArgumentType]
        with pytest.raises(DataError, match=f"dev.tsv: task.{name} names examples of task.train too"):
            encode(task, TOKENIZER, tmp_path / "data")


def test_a_folder_that_was_harmed_is_known(tmp_path):
    encoded = store(tmp_path, rows(("w1", "a"), ("w2", "b")))
    for file in sorted(encoded.folder.iterdir()):
        whole = file.read_bytes()
        if not whole:
            continue
        file.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        with pytest.raises(DataError, match="delete the folder and start the command again"):
            ExampleStore.open(encoded.folder).verify()
        file.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(DataError, match="delete the folder and start the command again"):
            ExampleStore.open(encoded.folder).verify()
        file.write_bytes(whole)
    ExampleStore.open(encoded.folder).verify()


def test_a_batch_that_cannot_be_is_refused_by_what_it_counts():
    for batch in (1, MAX_BATCH):
        check_batch(batch)
    cases: list[tuple[tuple[Any, ...], str]] = [
        ((0,), "batch=0 is not a positive number of sentences"),
        ((-1, "prompts"), "batch=-1 is not a positive number of prompts"),
        ((MAX_BATCH + 1,), f"batch={MAX_BATCH + 1} is more than {MAX_BATCH} sentences at a time; give fewer"),
    ]
    for args, line in cases:
        with pytest.raises(DataError) as caught:
            check_batch(*args)
        assert str(caught.value) == line


def test_a_set_of_tfds_has_digests_of_its_own(tmp_path: Path):
    (tmp_path / "a.tsv").write_text("x", "utf-8")
    assert sha256_of(str(tmp_path / "a.tsv")) == "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    assert sha256_of("tfds:glue/sst2") == ""


WRITTEN: dict[str, list[dict[str, Any]]] = {
    "classify": [{"text": f"w{n} w{n + 1}", "label": "ab"[n % 2]} for n in range(1, 8)],
    "regress": [{"text1": f"w{n}", "text2": f"w{n + 1} w1", "score": n / 3} for n in range(1, 8)],
    "tag": [{"words": ["w1"] * n, "tags": ["X", "Y", "X"][:n]} for n in (1, 2, 3, 3, 2, 1, 2)],
    "choice": [{"context": f"w{n}", "choices": ["w1", "w2 w3", f"w{n}"], "label": n % 3} for n in range(1, 8)],
    "span": [
        {"id": str(n), "question": f"w{n}", "context": "w1 w2 w3 " * n,
         "answers": {"text": ["w2"] * (n % 3 > 0), "answer_start": [3] * (n % 3 > 0)}} for n in range(1, 10)
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", WRITTEN)
def test_examples_that_are_read_in_parts_are_the_same_examples(tmp_path, monkeypatch, kind):
    lines = "".join(json.dumps(row) + "\n" for row in WRITTEN[kind])
    files = []
    for chunk in (4096, 2):
        monkeypatch.setattr(task_examples, "CHUNK", chunk)
        (tmp_path / str(chunk)).mkdir()
        folder = store(tmp_path / str(chunk), lines, "train.jsonl", kind=kind).folder
        files.append({file.name: file.read_bytes() for file in sorted(Path(folder).iterdir())})
        files[-1].pop("index.json")  # which names the folder's own files of examples
    assert files[0] == files[1] and len(files[0]) >= 2


@pytest.mark.parametrize(
    ("tokenizer", "sentences", "first"),
    [
        (Characters(list("ab ")), ["a \ud800", "\ud800 b"], "f:1"),
        (Characters(list("ab ")), ["a", "b", "\udc00 \ud800", "\ud800"], "f:3"),
        (WordPiece([*vocabulary(), "a"], True), ["a \ud800", "a", "\ud800"], "f:1"),
    ],
)
def test_the_first_sentence_with_a_word_that_is_no_text_is_named(tokenizer, sentences, first):
    """Also where words have a space before them within a sentence alone, and so are others at its beginning."""
    tagged = [Tagged(tuple(text.split()), None, f"f:{n}") for n, text in enumerate(sentences, 1)]
    with pytest.raises(DataError, match=f"^{first}: half a character"):
        cut_words(tagged, tokenizer, FileReport("f", tokenizer), "sentence")
