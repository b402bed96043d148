"""Options that do not exist: the option that other libraries call so, or the nearest name, is suggested."""

from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass

import pytest

from contexture import requests
from contexture.configs import _OTHER_NAMES as USUAL
from contexture.configs import recipe, recipes, task, task_recipes
from contexture.suggestions import _OTHER_NAMES, suggest_option
from contexture.train.errors import ConfigError
from contexture.train.settings.run import fields

OPTIONS = [name.replace("_", "-") for name in fields(recipe("bert.tiny"))]


@pytest.mark.parametrize(
    ("word", "option"),
    [
        ("--optim.lr", "optim.peak-lr"),
        ("--lr", "optim.peak-lr"),
        ("--learning-rate", "optim.peak-lr"),
        ("--learning_rate=1e-4", "optim.peak-lr"),
        ("--optim.peek-lr", "optim.peak-lr"),
        ("--peak-lr", "optim.peak-lr"),
        ("--batch-size", "data.batch"),
        ("--batch", "data.batch"),
        ("--evaluate.batch-size", "evaluate.batch"),
        ("--num-epochs", "epochs"),
        ("--num_train_epochs", "epochs"),
        ("--max-steps", "steps"),
        ("--warmup-steps", "optim.warmup"),
        ("--warmup", "optim.warmup"),
        ("--weight-decay", "optim.weight-decay"),
        ("--max-length", "data.length"),
        ("--seq-len", "data.length"),
        ("--model.num-layers", "model.layers"),
        ("--num-layers", "model.layers"),
        ("--hidden-size", "model.hidden"),
        ("--num-heads", "model.heads"),
        ("--output-dir", "dir"),
        ("--random-seed", "seed"),
        ("--dropout", "model.dropout"),
        ("--gradient-accumulation-steps", "optim.accumulate"),
        ("--grad-accumulation", "optim.accumulate"),
        ("--bf16", "model.dtype bfloat16"),
        ("--fp16", "model.dtype bfloat16"),
        ("--max-grad-norm", "optim.clip"),
        ("--save-steps", "save.every"),
        ("--data.lenght", "data.length"),
        ("--vocab-size", "model.vocab"),
        ("--max-predictions-per-seq", "data.max-predictions"),
        ("--data.predictions", "data.max-predictions"),
        ("--save-total-limit", "save.max-to-keep"),
        ("--save.latest", "save.max-to-keep"),
        ("--data.split", "data.word-splitter"),
        ("--init.scratch", "init.random"),
    ],
)
def test_the_option_meant_is_suggested(word: str, option: str):
    assert suggest_option(word, OPTIONS) == f" (did you mean --{option}?)"


@pytest.mark.parametrize("word", ["--zzzz", "--", "-", "--" + "lr" * 1000, "--qqq.xyz"])
def test_nothing_is_suggested_where_nothing_is_near(word: str):
    assert suggest_option(word, OPTIONS) == ""


@pytest.mark.parametrize("word", ["--objective", "--data.stream", "--data.layout=gpt"])
def test_an_option_that_follows_from_others_now_is_not_replaced(word: str):
    assert suggest_option(word, OPTIONS) == " (it follows from the model and the kind of task: leave it out)"


@pytest.mark.parametrize(
    ("word", "option"),
    [
        ("--no-data.lowercase", "data.no-lowercase"),
        ("--no-lowercase", "data.no-lowercase"),
        ("--no_do_lower_case", "data.no-lowercase"),
        ("--no-log.tensorboard", "log.no-tensorboard"),
    ],
)
def test_a_flag_that_is_switched_off_is_not_suggested_as_its_opposite(word: str, option: str):
    assert suggest_option(word, OPTIONS, flags=["data.lowercase", "log.tensorboard"]) == f" (did you mean --{option}?)"


@pytest.mark.parametrize(
    ("name", "usual"),
    [
        *(("ner", "tag"), ("token-classification", "tag"), ("pos", "tag"), ("qa", "span"), ("nli", "classify")),
        *(("question-answering", "span"), ("text-classification", "classify"), ("multiple-choice", "choice")),
    ],
)
def test_kinds_of_task_are_known_by_other_names(name: str, usual: str):
    with pytest.raises(ConfigError, match=rf"no task '{name}' \(did you mean {usual}\?\)"):
        task(name)


@pytest.mark.parametrize(
    ("name", "usual"),
    [
        *(("bert.base-uncased", "bert.base"), ("bert-large-cased", "bert.large_cased"), ("gpt2-xl", "gpt.gpt2_1558m")),
        *(("bert-base-chinese", "bert.base_chinese"), ("bert.tinny", "bert.tiny"), ("gpt2", "gpt.gpt2_124m")),
    ],
)
def test_recipes_are_known_by_other_names(name: str, usual: str):
    with pytest.raises(ConfigError, match=rf"\(did you mean {usual}\?\)"):
        recipe(name)


def test_every_usual_name_of_a_task_or_a_recipe_is_one():
    assert set(USUAL.values()) <= recipes().keys() | task_recipes().keys()


def test_every_option_with_other_names_exists():
    runs = (recipe("bert.tiny"), recipe("gpt.tiny"), recipe("elmo.tiny"), task("classify"))
    known = {name for run in runs for name in fields(run)}
    for request in filter(is_dataclass, vars(requests).values()):
        known |= {field.name for field in dataclass_fields(request)}
    assert {name.replace("_", "-") for name in known} >= _OTHER_NAMES.keys()


def test_only_options_of_the_command_are_suggested():
    assert suggest_option("--batch-size", ["run", "input", "batch"]) == " (did you mean --batch?)"
    assert suggest_option("--lr", ["run", "input", "batch"]) == ""
