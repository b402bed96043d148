"""Multiple choice: alternatives from every table, labels by number, name or text, mistakes in one line, answers."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from contexture.data.batches import iterate
from contexture.data.config import TaskConfig
from contexture.data.errors import DataError
from contexture.data.families.registry import TEXT_FAMILIES
from contexture.data.packing import apart
from contexture.data.tasks.batch.answer_rules import AnswerRules
from contexture.data.tasks.batch.batches import HeldOutTask
from contexture.data.tasks.batch.training_batches import TaskBatches
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tasks.read.examples import ChoiceExample
from contexture.data.tasks.read.read_examples import examples
from contexture.data.tasks.store.example_store import ExampleStore
from contexture.data.tokenizers.base import Tokenizer, with_added_tokens
from contexture.data.tokenizers.char_level import Characters
from contexture.train import mesh as meshes
from contexture.train.evaluation.predict import Predictor, predict_file
from contexture.train.evaluation.predictions import ClassCollector, majority_baseline
from contexture.train.settings.sections import MeshConfig
from tests.data.tasks.batch.test_gpt_layout import GPT, LETTERS, batch_of
from tests.helpers import tfds_sets
from tests.helpers.logs import logged
from tests.helpers.packed import every_example

CHOICE = TaskConfig(kind="choice")

# Files

ITEMS = [("bc", ("d", "e"), 1), ("de fg", ("b c", "h"), 0), ("h", ("gg", "b"), 1)]


def write(path: Path, content: str) -> str:
    path.write_text(content, "utf-8")
    return str(path)


def table(mark: str, header: str | None, label=lambda choices, right: right) -> str:
    lines = [mark.join([text, *choices, str(label(choices, right))]) for text, choices, right in ITEMS]
    return "\n".join(([header.replace(",", mark)] if header else []) + lines) + "\n"


def as_json(**names: str) -> str:
    keys = {name: names.get(name, name) for name in ("text", "choices", "label")}
    return "".join(
        json.dumps({keys["text"]: text, keys["choices"]: choices, keys["label"]: right}) + "\n"
        for text, choices, right in ITEMS
    )


BY_POSITION = {"text": "1", "choices": ("2", "3"), "label": "4"}


@pytest.mark.parametrize(
    ("name", "content", "task"),
    [
        ("a.jsonl", as_json(), {}),
        ("a.jsonl", as_json(text="ctx", choices="endings"), {}),
        ("a.jsonl", as_json(text="x", choices="y", label="z"), {"text": "x", "choices": ("y",), "label": "z"}),
        ("a.csv", table(",", "text,choice1,choice2,label"), {}),
        ("a.tsv", table("\t", "context,Ending0,Ending1,label"), {}),
        ("a.tsv", table("\t", "goal,sol_1,sol_2,label", lambda choices, right: choices[right]), {}),
        ("a.csv", table(",", "x,y,z,label"), {"text": "x", "choices": ("y", "z")}),
        ("a.csv", table(",", None), BY_POSITION),
        ("a.tsv", table("\t", None, lambda choices, right: right + 1), {**BY_POSITION, "labels": ("1", "2")}),
        ("a.tsv", table("\t", "x,y,z,w"), {**BY_POSITION, "header": "yes"}),
    ],
)
def test_a_choice_is_read_from_any_table(tmp_path, name, content, task):
    config = TaskConfig(kind="choice", train=(write(tmp_path / name, content),), **task)
    actual = encode(config, LETTERS, tmp_path / "data")
    read = [
        (e.text, e.choices) for e in examples(config.train[0], config, labelled=True) if isinstance(e, ChoiceExample)
    ]
    assert read == [(text, choices) for text, choices, _ in ITEMS]
    unlabelled = list(examples(config.train[0], config, labelled=False))
    assert [example.label for example in unlabelled if isinstance(example, ChoiceExample)] == [None] * 3
    train = actual.splits["train"]
    assert actual.labels == task.get("labels", ("0", "1")) and actual.counts == (1, 2) and actual.pair
    assert (train.examples, train.choices, train.answers().tolist()) == (3, 2, [1, 0, 1])
    first = 1 if task.get("text") == "1" and "header" not in task or name == "a.jsonl" else 2
    rows = train.take(np.array([2, 0]))
    assert [train.origin(row) for row in rows] == [f"{name}:{n}" for n in (first + 2, first + 2, first, first)]
    batch = apart(TaskBatches(actual, LETTERS, GPT, config, seed=0, family="gpt").read(0, np.arange(3)))
    expected = batch_of([ChoiceExample(text, choices, str(right), "f:1") for text, choices, right in ITEMS], "choice",
                      labels=("0", "1"))  # fmt: skip
    assert sorted(batch["tokens"].tolist()) == sorted(expected["tokens"].tolist())


def test_columns_are_reported(tmp_path):
    path = write(tmp_path / "a.csv", table(",", "text,choice1,choice2,label"))
    with logged() as messages:
        list(examples(path, CHOICE, labelled=True))
    assert messages == ["a.csv: text from column 'text', alternative 0 from column 'choice1', "
                        "alternative 1 from column 'choice2', label from column 'label'"]  # fmt: skip


def test_choices_of_tfds(tmp_path, monkeypatch):
    features: dict[str, Any] = tfds_sets.FEATURES
    text, count = features["lm1b"]["text"], features["conll2003"]["tokens"]
    monkeypatch.setitem(features, "endings_set", {"context": text, "endings": count, "label": np.int32})
    monkeypatch.setitem(features, "solutions_set", {"goal": text, "sol1": text, "sol2": text, "label": np.int64})
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    tfds_sets.build(tmp_path, "endings_set", {"train": [{"context": "a", "endings": ["b", "c", "d"], "label": 2}]})
    tfds_sets.build(tmp_path, "solutions_set", {"train": [{"goal": "a", "sol1": "b", "sol2": "c", "label": 0}]})
    name = "tfds:endings_set:train"
    assert list(examples(name, CHOICE, labelled=True)) == [ChoiceExample("a", ("b", "c", "d"), "2", f"{name}:0")]
    name = "tfds:solutions_set:train"
    assert list(examples(name, CHOICE, labelled=True)) == [ChoiceExample("a", ("b", "c"), "0", f"{name}:0")]


def test_choices_are_encoded_once_and_read_by_position(tmp_path):
    letters = "bcdefgh"
    lines = [
        {"text": f"{letters[n % 7]}{letters[n // 7]}", "choices": ["b", "c", "d"], "label": n % 3} for n in range(40)
    ]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    task = TaskConfig(kind="choice", train=(path,), dev_fraction=0.25)
    encoded = encode(task, LETTERS, tmp_path / "data")
    index = json.loads((tmp_path / "data" / "index.json").read_text())
    assert (index["format"], index["choices"], index["labels"]) == (1, 3, ["0", "1", "2"]) and "symmetric" not in index
    train, dev = encoded.splits["train"], encoded.splits["dev"]
    assert train.examples + dev.examples == 40 and 3 <= dev.examples <= 20
    for name, split in encoded.splits.items():
        assert (encoded.folder / f"{name}-rows.bin").stat().st_size == split.examples * 3 * 6 * 8
    held = [split.take(np.arange(split.examples))["line"][::3].tolist() for split in (train, dev)]
    assert sorted(held[0] + held[1]) == list(range(1, 41)) and all(one == sorted(one) for one in held)
    (tmp_path / "a.jsonl").unlink()
    again = ExampleStore.open(tmp_path / "data")
    again.verify()
    batches, others = (TaskBatches(store, LETTERS, GPT, task, seed=3, family="gpt") for store in (encoded, again))
    assert batches.examples_per_epoch == train.examples
    assert batches.describe().startswith(f"{train.examples} examples in 3 sequences of 8 tokens; ")
    read = [apart(batches.read(step)) for step in range(train.examples)]
    seen = [tuple(line) for batch in read for line in batch["tokens"][:, 0].tolist()]
    assert all(len(set(seen[train.examples * e :][: train.examples])) == train.examples for e in range(4))
    assert np.array_equal(apart(others.read(7, np.array([2, 0])))["tokens"], read[7]["tokens"][[2, 0]])
    with iterate(others, 2, 5) as steps:
        for step, batch in steps:
            for name, array in batches.read(step).items():
                assert np.array_equal(batch[name], array)
    everything = [every_example(HeldOutTask(train, LETTERS, GPT, lines, family="gpt")) for lines in (1, 7, 64)]
    for other in everything[1:]:
        for name, array in everything[0].items():
            assert np.array_equal(other[name], array), name


# Mistakes


def refused(path: Path, content: str, tokenizer: Tokenizer = LETTERS, **task: Any) -> str:
    config = TaskConfig(train=(write(path, content),), **{"kind": "choice", **task})
    with pytest.raises(DataError) as caught:
        encode(config, tokenizer, path.parent / "data")
    message = str(caught.value)
    assert "\n" not in message and not (path.parent / "data").exists()
    return message.removeprefix(f"{path.parent}/")


HEAD = "text,choice1,choice2,label\n"


@pytest.mark.parametrize(
    ("name", "content", "task", "message"),
    [
        # labels
        ("a.csv", HEAD + "b,c,d,0\nb,c,d,2\n", {}, "a.csv:3: label '2' is neither one of 0, 1 nor an alternative's own "
         "text; count the alternatives from 0, or name them in their order: --task.labels 1 2"),
        ("a.csv", HEAD + "b,c,d,0\n", {"labels": ("1", "2")}, "a.csv:2: label '0' is neither one of 1, 2 nor an alte"),
        ("a.csv", HEAD + "b,fgfg,dede,fgfh\n", {}, "a.csv:2: label 'fgfh' is neither one of 0, 1 nor an alternative's "
         "own text (did you mean fgfg?); count"),
        ("a.csv", HEAD + "b,c,c,c\n", {}, "a.csv:2: label 'c' may mean alternative 0 or 1, by number or by text; give"),
        ("a.csv", HEAD + "b,c,d,\n", {}, "a.csv:2: the label (column 'label') is empty"),
        # how many
        ("a.jsonl", '{"text": "b", "choices": ["c", "d", "e"], "label": 2}\n{"text": "b", "choices": ["c", "d"], '
         '"label": 2}\n', {}, "a.jsonl:2: label '2' is neither one of 0, 1 nor an alternative's own text; count the"),
        ("a.jsonl", '{"text": "b", "choices": ["c", "d", "e"], "label": "x"}\n', {"labels": ("x", "y")},
         "a.jsonl:1: 3 alternatives where task.labels names 2 (x, y); give a name for each"),
        ("a.csv", HEAD + "b,c,d,z\n", {"labels": ("x", "y", "z")}, "a.csv:2: label 'z' is neither one of x, y nor an "),
        ("a.csv", HEAD + "b,c,,0\n", {}, "a.csv:2: the alternative 1 (column 'choice2') is empty; fill it"),
        ("a.jsonl", json.dumps({"text": "b", "choices": ["c"] * 257, "label": 0}), {}, "a.jsonl:1: 257 alternatives; at"
         " most 256 can be chosen from"),
        ("a.jsonl", '{"text": "b", "choices": ["c"], "label": 0}', {}, "a.jsonl:1: the alternatives (column 'choices')"
         " are 1; give at least two to choose from"),
        ("a.jsonl", '{"text": "b", "choices": "c", "label": 0}', {}, "a.jsonl:1: the alternatives (column 'choices') "
         "are a string; give a list, or a column for each: --task.choices A B"),
        # texts
        ("a.csv", HEAD + "b,c,d,0\nb,c, ,0\n", {}, "a.csv:3: the alternative 1 (column 'choice2') is empty; fill it"),
        ("a.jsonl", '{"text": "b", "choices": ["c", ""], "label": 0}', {}, "a.jsonl:1: alternative 1 (column 'choices')"
         " is empty; fill it"),
        ("a.jsonl", '{"text": "b", "choices": ["c", 3], "label": 0}', {}, "a.jsonl:1: alternative 1 (column 'choices')"
         " is the number 3, no string"),
        ("a.csv", HEAD + "b,c,d,0\n b,c,zz,0\n", {}, "a.csv:3: the character 'z' (U+007A) is none of the vocabulary's"),
        # columns
        ("a.csv", "text,a,b,label\nb,c,d,0\n", {}, "a.csv:1: no columns have usual names of alternatives (choices; "
         "choice1 and choice2; …); the columns are 'text', 'a', 'b', 'label'; name them with --task.choices; if this "
         "line is no header, give positions: --task.text 1 --task.choices 2 3 --task.label 4"),
        ("a.csv", "text,choice1,choice3,label\nb,c,d,0\n", {}, "a.csv:1: 'choice1', 'choice3' are not numbered from 0 "
         "or 1 on without a gap; name the columns of the alternatives with --task.choices"),
        ("a.csv", "text,choice2,choice3,label\nb,c,d,0\n", {}, "a.csv:1: 'choice2', 'choice3' are not numbered from 0"),
        ("a.csv", "text,sol1,sol2,ending1,ending2,label\nb,c,d,e,f,0\n", {}, "a.csv:1: 'sol1', 'sol2', 'ending1', "
         "'ending2' may each be the alternatives; name it with --task.choices"),
        ("a.csv", "text,choice1,choice_1,choice2,label\nb,c,d,e,0\n", {}, "a.csv:1: 'choice1', 'choice_1' may each be "
         "the alternative 1; name it with"),
        ("a.csv", "premise,choice1,choice2,question,label\nb,c,d,e,0\n", {}, "a.csv:1: 'premise', 'question' may each "
         "be the text; name it with --task.text"),
        ("a.csv", HEAD + "b,c,d,0\n", {"text": "choice1"}, "a.csv:1: column 'choice1' is both the text and the "
         "alternative 0; give each a column of its own"),
        ("a.csv", HEAD + "b,c,d,0\n", {"choices": ("choice1", "text"), "text": "text"}, "a.csv:1: column 'text' is both"
         " the text and the alternative 1; give each a column of its own: --task.text, --task.choices, --task.label"),
        ("a.csv", HEAD + "b,c,d,0\n", {"choices": ("choice1", "label"), "label": "label"}, "a.csv:1: column 'label' is "
         "both the alternative 1 and the label"),
        ("a.csv", HEAD + "b,c,d,0\n", {"choices": ("choice1", "choise2")}, "a.csv:1: there is no column 'choise2' (di"),
        ("a.csv", "b,c,d,0\n", {**BY_POSITION, "choices": ("2", "5")}, "a.csv:1: --task.choices is 5 where there are"),
        ("a.csv", "b,c,d,0\n", {"header": "no"}, "a.csv: a file without a header wants positions; give --task.text 1 "
         "--task.choices 2 3 --task.label 4"),
        ("a.conll", "EU B\n", {}, "a.conll: holds words with tags; give it to --task.kind tag, not choice"),
        # both orders
        ("a.csv", "text,label\nb,x\nc,y\n", {"kind": "classify", "symmetric": True}, "a.csv:2: a single text, and task."
         "symmetric reads pairs in both orders; name the second text's column, --task.second, or leave task.symmetric"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_one_line(tmp_path, name, content, task, message):
    assert refused(tmp_path / name, content, **task).startswith(message)


def test_a_number_that_is_a_text_too_wants_to_be_told_apart(tmp_path):
    content = HEAD + "b,1,0,1\n"
    digits = with_added_tokens(Characters(list("b01 ")), ["_start_", "_delimiter_", "_classify_"])
    message = refused(tmp_path / "a.csv", content, digits)
    assert message == ("a.csv:2: label '1' may mean alternative 0 or 1, by number or by text; give numbers, and say "
                       "so: --task.labels 0 1")  # fmt: skip
    task = TaskConfig(kind="choice", train=(str(tmp_path / "a.csv"),), labels=("0", "1"))
    assert encode(task, digits, tmp_path / "data").splits["train"].answers().tolist() == [1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"kind": "choice", "second": "b"}, "task.second has no meaning for task.kind=choice; leave it out"),
        ({"kind": "tag", "second": "b"}, "task.second has no meaning for task.kind=tag; leave it out"),
        ({"kind": "tag", "symmetric": True}, "task.symmetric has no meaning for task.kind=tag; leave it out"),
        ({"kind": "choice", "symmetric": True}, "task.symmetric has no meaning for task.kind=choice; leave it out"),
        ({"kind": "classify", "choices": ("a", "b")}, "task.choices has no meaning for task.kind=classify; leave it"),
        ({"kind": "choice", "choices": ("a", "a")}, "task.choices names a column twice; give each once"),
        ({"kind": "choice", "labels": ("a",)}, "task.labels names a single alternative; give a name for each, or none"),
        ({"kind": "choice", "lm_weight": -0.5}, "task.lm-weight=-0.5 is not a number from 0 on"),
        ({"kind": "choice", "lm_weight": float("nan")}, "task.lm-weight=nan is not a number from 0 on"),
    ],
)
def test_words_that_do_not_fit_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        TaskConfig(**words)


# Answers


def test_answers_to_choices_are_scored_by_example(tmp_path):
    path = write(tmp_path / "a.jsonl", as_json())
    task = TaskConfig(kind="choice", train=(path,), labels=("one", "two"))
    lines = as_json().replace('"label": 0', '"label": "one"').replace('"label": 1', '"label": "two"')
    write(tmp_path / "a.jsonl", lines)
    store = encode(task, LETTERS, tmp_path / "data")
    split = store.splits["train"]
    held_out = HeldOutTask(split, LETTERS, GPT, 2, family="gpt")
    answers = ClassCollector(held_out)
    scores = np.array([[[0.1, 0.9], [0.2, 0.8]], [[0.3, 0.7], [0.5, 0.5]]], np.float32)
    records = [record for step in range(held_out.steps) for record in answers.add(step, {"scores": scores[step]})]
    assert records == [
        {"id": "a.jsonl:1", "label": "two", "prediction": "two", "scores": {"one": 0.1, "two": 0.9}},
        {"id": "a.jsonl:2", "label": "one", "prediction": "two", "scores": {"one": 0.2, "two": 0.8}},
        {"id": "a.jsonl:3", "label": "two", "prediction": "two", "scores": {"one": 0.3, "two": 0.7}},
    ]
    assert answers.figures()["accuracy"] == pytest.approx(2 / 3)
    assert [(row["label"], row["count"]) for row in answers.table()] == [("one", 1), ("two", 2)]
    assert majority_baseline(store, split) == {"majority_accuracy": pytest.approx(2 / 3)}


@pytest.fixture
def predictor() -> Predictor:
    """One that never was trained: the longer an alternative, the more it is worth."""
    made = object.__new__(Predictor)
    model = SimpleNamespace(length=16, dtype="float32")
    made.run = SimpleNamespace(task=CHOICE, family="gpt", data=GPT, model=model, text=TEXT_FAMILIES["gpt"])  # type: ignore[assignment]
    made.labels, made.pair, made.tokenizer, made.truncated = ("0", "1"), True, LETTERS, 0
    made._shape = None
    made.mesh = meshes.build(MeshConfig())
    made.rules = AnswerRules()
    made.folder, made.batch = Path("run"), meshes.round_up_to_devices(made.mesh, 3)
    made.loaded = SimpleNamespace(unstacked={}, step=7)  # type: ignore[assignment]
    made._step = lambda params, batch, carry: ({}, {"scores": batch["mask"].sum(-1) / jnp.float32(32)}, {})
    return made


def test_a_predictor_chooses(predictor: Predictor):
    answers: Any = predictor([("b", ["c", "dd"]), ["b", ("eee", "f")]])
    assert [(one["id"], one["prediction"]) for one in answers] == [("text:0", "1"), ("text:1", "0")]
    assert answers[0]["scores"] == {"0": 5 / 32, "1": 6 / 32} and "label" not in answers[0]
    for item, message in (
        ("b", "text:0: 'b' is not a text with a list of alternatives: (text, [one, another])"),
        (("b", "c"), "text:0: ('b', 'c') is not a text with a list"),
        (("b", ["c", 1]), "text:0: ('b', ['c', 1]) is not a text with a list"),
        (("b", []), "text:0: ('b', []) is not a text with a list"),
        (("b", ["c"]), "text:0: 1 alternative; give at least two to choose from"),
    ):
        with pytest.raises(DataError) as caught:
            predictor([item])
        assert str(caught.value).startswith(message)
    assert len(predictor([("b", ["c", ""])])) == 1  # an empty text is read as unknown
    more: Any = predictor([("b", ["c", "d", "eee"]), ("b", ["cc", "d"])])
    assert [one["prediction"] for one in more] == ["2", "0"]
    assert [[*one["scores"]] for one in more] == [["0", "1", "2"], ["0", "1"]]


def test_a_file_of_choices_is_answered(predictor: Predictor, tmp_path: Path):
    source, to = write(tmp_path / "a.csv", "x,y,z\nb,c,dd\nd,eee,f\n"), tmp_path / "answers.jsonl"
    columns = {"text": "x", "choices": ("y", "z")}
    assert predict_file(predictor, source, to, columns)["examples"] == 2
    lines = [json.loads(line) for line in to.read_text().splitlines()]
    assert lines[0] == {
        "id": "a.csv:2",
        "text": "b",
        "choices": ["c", "dd"],
        "prediction": "1",
        "scores": {"0": 0.15625, "1": 0.1875},
    }
    assert lines[1]["prediction"] == "0"


def test_swag_as_published_is_read_by_its_usual_names(tmp_path):
    head = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
    file = write(tmp_path / "swag.csv", f"{head}\n0,v,1,He sat. She,He sat.,She,gold,ran,sat,sang,slept,2\n")
    (example,) = examples(file, TaskConfig(kind="choice"), labelled=True)
    assert example == ChoiceExample("He sat. She", ("ran", "sat", "sang", "slept"), "2", "swag.csv:2")
