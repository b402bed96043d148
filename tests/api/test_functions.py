"""The functions of `import contexture` that train and convert, and the options that they take."""

import json
import logging
from pathlib import Path

import pytest

import contexture
from contexture import api
from contexture.configs import recipe as usual
from contexture.configs import recipes
from contexture.overrides import with_options
from contexture.train.settings.run_file import read
from tests.helpers.commands import json_of
from tests.helpers.random_runs import random_training

GOLDEN = Path(__file__).parents[1] / "golden"
BERT = GOLDEN / "bert"
pytestmark = pytest.mark.usefixtures("one_device")
TRAIN = [(f"the {animal} sees the river", "animal") for animal in ("cat", "dog", "bird", "fish")]
TRAIN += [(f"the {person} sees the river", "person") for person in ("queen", "brother", "man", "king")]
SMALL = {"epochs": 1, "data.batch": 4, "optim.peak_lr": 1e-3, "data.length": 16}


def test_there_are_about_fifteen_names():
    assert len(contexture.__all__) <= 16 and set(contexture.__all__) <= set(dir(contexture))
    for name in contexture.__all__:
        assert getattr(contexture, name).__doc__, name


def test_options_are_those_of_the_command_line(tmp_path: Path):
    run = contexture.recipe(
        "bert.tiny", {"data.path": tmp_path, "steps": 7, "optim.peak-lr": 1, "data.dev": ["a", Path("b")], "seed": 3}
    )
    assert (run.data.path, run.steps, run.optim.peak_lr, run.data.dev) == ((str(tmp_path),), 7, 1.0, ("a", "b"))
    shown = json_of("show", "bert.tiny", "--data.path", tmp_path, "--steps", 7, "--optim.peak-lr", 1, "--data.dev",
                    "a", "b", "--seed", 3)["config"]  # fmt: skip
    assert shown == json.loads(json.dumps(contexture.train.settings.run_file.to_json(run)))  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", recipes())
def test_no_option_is_no_change(name):
    assert contexture.recipe(name) == usual(name)


def test_steps_and_epochs_replace_each_other():
    run = with_options(usual("bert.tiny"), {"epochs": 2})
    assert (run.steps, run.epochs) == (0, 2.0)
    assert with_options(run, {"optim.warmup": 3}).optim.warmup_fraction == 0.0
    with pytest.raises(contexture.ConfigError, match="steps and --epochs both say how long to train"):
        with_options(run, {"epochs": 2, "steps": 3})


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"lr": 1e-3}, "there is no option 'lr' (did you mean optim.peak_lr?)"),
        ({"optim.peek_lr": 1e-3}, "there is no option 'optim.peek_lr' (did you mean optim.peak_lr?)"),
        ({"steps": "many"}, "options: steps is 'many', not a whole number"),
        ({"steps": -1}, "options: steps=-1"),
        ({"data.path": [3]}, "options: data: path is 3, not a text"),
        ({"model.dtype": "float64"}, "options: model: dtype is 'float64', not one of float32, bfloat16"),
        ({"model.family": "gpt"}, "there is no option 'model.family'"),
    ],
)
def test_options_that_are_wrong_give_one_clear_line(options, line):
    with pytest.raises(contexture.ConfigError) as caught:
        contexture.recipe("bert.tiny", options)
    assert line in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_a_run_is_trained_and_resumed(tiny_words, text_folder, tmp_path, caplog):
    model = {f"model.{name}": value for name, value in (("layers", 1), ("hidden", 16), ("heads", 2), ("ffn", 16),
                                                        ("vocab", 150))}  # fmt: skip
    options = {**model, "data.path": text_folder, "data.length": 16, "data.batch": 4, "dir": tmp_path / "run"}
    with random_training(2):
        folder = contexture.pretrain("bert.tiny", {**options, "steps": 2, "optim.warmup": 1})
    assert folder == tmp_path / "run" and contexture.open(folder).step == 2
    with pytest.raises(contexture.ConfigError, match="holds a run of --steps 2, not 1"):
        contexture.pretrain("bert.tiny", {**options, "steps": 1, "optim.warmup": 1})
    with pytest.raises(contexture.ConfigError, match="dir is empty"):
        contexture.pretrain("bert.tiny", {"data.path": text_folder})
    with pytest.raises(contexture.DataError, match="names no such file or folder"):
        contexture.pretrain("bert.tiny", {**options, "data.path": "nowhere", "dir": tmp_path / "other"})


def test_a_task_is_learned_from_rows_in_memory(tmp_path):
    """And the same call resumes; other rows are refused, and leave those of the run as they are."""
    folder = contexture.finetune(BERT, train=TRAIN, dev=TRAIN[:2], dir=tmp_path / "run", options=SMALL)
    assert read(folder).labels == ("animal", "person") and read(folder).counts == (4, 4)
    step = contexture.open(folder).step
    assert contexture.finetune(BERT, train=TRAIN, dev=TRAIN[:2], dir=tmp_path / "run", options=SMALL) == folder
    assert contexture.open(folder).step == step == 2
    before = (folder / "inputs" / "train.jsonl").read_bytes()
    with pytest.raises(contexture.ConfigError, match="was trained with another train.jsonl"):
        contexture.finetune(BERT, train=TRAIN[1:], dev=TRAIN[:2], dir=folder, options=SMALL)
    assert (folder / "inputs" / "train.jsonl").read_bytes() == before
    rows = [{"text": text, "label": label} for text, label in TRAIN]
    for dev in (TRAIN, rows, {"text": [t for t, _ in TRAIN], "label": [label for _, label in TRAIN]}):
        assert contexture.evaluate(folder, dev=dev, to=tmp_path / "e")["examples"] == 8
    assert contexture.evaluate(folder)["examples"] == 2


@pytest.mark.parametrize(
    ("task", "train", "line"),
    [
        ("classify", [], "task.train"),
        ("classify", [("a",)], "train:0: \"('a',)\" is not (text, label) or (text1, text2, label), and no dict"),
        ("tag", [(["a"], ["b"], "c")], "is not (words, tags), and no dict of columns"),
        ("classify", 3, "train: '3' is no list, column or table"),
        ("classify", {"text": ["a"], "label": []}, "the columns differ in length"),
        ("classify", [{"text": {1, 2}, "label": "x"}], "row 0: cannot be written as JSON"),
        ("classifies", TRAIN, "there is no task 'classifies' (did you mean classify?)"),
        ({"train": TRAIN}, TRAIN, "a task is named by a string, not by dict; `contexture recipes` lists them"),
        ("classify", "nowhere.tsv", "nowhere.tsv: task.train names no such file"),
    ],
)
def test_examples_that_are_wrong_give_one_clear_line(tmp_path, task, train, line):
    with pytest.raises((contexture.ConfigError, contexture.DataError)) as caught:
        contexture.finetune(BERT, task, train=train, dir=tmp_path / "run", options=SMALL)
    assert line in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_a_model_is_exported_and_imported(tmp_path):
    exported = contexture.export_model(BERT, "hf", tmp_path / "hf")
    run = contexture.import_model("hf", exported, tmp_path / "run")
    a, b = contexture.open(BERT), contexture.open(run)
    assert a.embed("the cat").tolist() == b.embed("the cat").tolist()
    for call in (lambda: contexture.export_model(BERT, "onnx", tmp_path / "x"),  # pyright: ignore[reportArgumentType]
                 lambda: contexture.import_model("onnx", exported, tmp_path / "y")):  # pyright: ignore[reportArgumentType]  # fmt: skip
        with pytest.raises(contexture.ConfigError, match="format 'onnx' is not one of"):
            call()


def test_warnings_are_logged_and_nothing_is_printed(caplog, capsys):
    with caplog.at_level(logging.WARNING, "contexture"):
        contexture.open(GOLDEN / "gpt").embed("the cat sees the river " * 400)
    assert "truncated 1 of 1 texts" in caplog.text and capsys.readouterr() == ("", "")


@pytest.mark.parametrize("random", [False, True])
def test_a_random_start_trains_the_backbone_too(tmp_path, monkeypatch, random):
    """As `finetune --init.random` does: what an ELMo freezes otherwise is nothing to keep."""
    runs = []
    monkeypatch.setattr(api, "_train", lambda run, base: runs.append(run))
    contexture.finetune(GOLDEN / "elmo", train=TRAIN, dev=TRAIN, dir=tmp_path / "run", options={"init.random": random})
    (run,) = runs
    assert run.init.random is random and run.optim.frozen == (() if random else ("backbone",))


@pytest.mark.parametrize("name", [5, None, ["bert.tiny"], {"name": "bert.tiny"}])
def test_what_is_no_name_of_a_recipe_is_one_clear_line(name):
    with pytest.raises(
        contexture.ConfigError,
        match="^a recipe is named by a string, not by [a-zA-Z]+; `contexture recipes` lists them$",
    ):
        contexture.recipe(name)
