"""Requests: what the command line makes of options."""

import dataclasses
import itertools
import os
import typing
from typing import Any

import pytest

from contexture import requests
from contexture.cli.argv import expand_aliases
from contexture.cli.parse import parse
from contexture.models.config import ElmoConfig
from contexture.requests import GenerationRequest, ScoreRequest, arguments, several
from contexture.train.errors import ConfigError
from contexture.train.settings.run import Run
from tests.helpers.commands import request_kinds


def test_every_name_that_the_package_gives_is_there():
    assert set(requests.__all__) <= set(dir(requests))


@pytest.mark.parametrize(
    ("argv", "prompts"),
    [
        (["--prompt", ""], ("",)),
        (["--prompt", "a"], ("a",)),
        (["--prompt", "", "a"], ("", "a")),
        (["--prompt", "1", "2"], ("1", "2")),
    ],
)
def test_prompts_are_texts_also_an_empty_one(argv: list[str], prompts: tuple[str, ...]):
    assert several(parse(GenerationRequest, ["run", *argv], "generate").prompt) == prompts


@pytest.mark.parametrize("argv", [[], ["--prompt", "", "--input", "file"], ["--prompt", "a", "--input", "file"]])
def test_prompts_come_from_one_place(argv: list[str]):
    with pytest.raises(ConfigError, match="give --prompt TEXT, or --input FILE"):
        parse(GenerationRequest, ["run", *argv], "generate")


@pytest.mark.parametrize(
    ("argv", "expanded"),
    [
        (["--lr", "1"], ["--optim.peak-lr", "1"]),
        (["--batch=2", "--length", "8"], ["--data.batch=2", "--data.length", "8"]),
        (["--task", "sst2", "--init=a"], ["--task.name", "sst2", "--init.run=a"]),
        (["--optim.peak-lr", "1"], ["--optim.peak-lr", "1"]),
    ],
)
def test_a_short_form_is_the_option_that_it_stands_for(argv: list[str], expanded: list[str]):
    assert expand_aliases(argv) == expanded


@pytest.mark.parametrize("argv", [["--lr", "1", "--optim.peak-lr", "2"], ["--data.batch=1", "--batch=1"]])
def test_a_short_form_and_its_option_are_not_given_together(argv: list[str]):
    with pytest.raises(ConfigError, match="are the same option; give one of them"):
        expand_aliases(argv)


def _writers() -> list[tuple[type, str, str]]:
    """(a type of options that writes files, which option says where, each of its options that is a file to read)."""
    marks = arguments.FILE, arguments.FILES
    found = []
    for kind in request_kinds():
        hints = typing.get_type_hints(kind, include_extras=True)
        files = [
            name for name, hint in hints.items() if any(mark in marks for mark in getattr(hint, "__metadata__", ()))
        ]
        found += [(kind, to, name) for to in _WRITTEN for name in files if to in files and name not in _WRITTEN]
    return found


_WRITTEN = ("to", "table")


@pytest.mark.parametrize(("kind", "place", "option"), _writers(), ids=lambda value: getattr(value, "__name__", value))
def test_no_command_writes_over_what_it_reads(tmp_path, monkeypatch, kind, place, option):
    """By the same name, another name of the same file, a link and a hard link; also before the file exists."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.tsv").write_text("a\tb\n")
    os.symlink("in.tsv", "link.tsv")
    os.link("in.tsv", "hard.tsv")
    needed = [field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]
    values: dict[str, Any] = {name: {"task": "choice"}.get(name, "x") for name in needed}
    values |= {"shots": 1} if option == "examples" else {}
    for file, to in itertools.product(
        ("in.tsv", "link.tsv", "new.tsv"), ("in.tsv", "./link.tsv", "hard.tsv", "new.tsv")
    ):
        given = {**values, option: file, place: to}
        if ("new" in file) == ("new" in to):
            with pytest.raises(ValueError, match="is the input itself"):
                kind(**given)
    kind(**{**values, option: "in.tsv", place: "out.tsv"})
    # A folder stands for its texts: what is put among them would be read as one of them.
    (tmp_path / "texts").mkdir()
    os.symlink("texts", "linked")
    for to in ("texts/a.jsonl", "linked/a.jsonl.gz"):
        with pytest.raises(ValueError, match="is among the texts of texts, which is read; give another folder"):
            kind(**{**values, option: "texts", place: to})


@pytest.mark.parametrize("form", ["--data.path=a", "--data.path a"])
def test_a_value_joined_to_its_option_is_the_first_of_several(form: str):
    run = parse(Run, [*form.split(), "b", "--seed=3", "--optim.no-decay=norm", "bias"], "pretrain", Run())
    assert (run.data.path, run.seed, run.optim.no_decay) == (("a", "b"), 3, ("norm", "bias"))
    elmo = dataclasses.replace(Run(), model=ElmoConfig())
    joined = parse(Run, ["--model.filters=1", "32", "2", "64"], "pretrain", elmo)
    assert joined.model == dataclasses.replace(elmo.model, filters=((1, 32), (2, 64)))


def test_an_option_of_one_value_takes_no_second():
    for words in (["--seed=3", "4"], ["--seed", "3", "4"]):
        with pytest.raises(ConfigError, match="pretrain: unrecognised argument 4; --help"):
            parse(Run, words, "pretrain", Run())


@pytest.mark.parametrize("words", [["", "--text", "a"], ["--text", "a", ""]])
def test_an_argument_that_is_empty_is_one_too_many(words: list[str]):
    """As an unset variable of a shell gives it."""
    with pytest.raises(ConfigError, match="score: unrecognised argument ''; --help lists what it takes"):
        parse(ScoreRequest, ["run", *words], "score")


def test_two_dashes_alone_end_the_values_of_an_option():
    run = parse(Run, ["--data.path", "a", "--", "--seed", "3", "--"], "pretrain", Run())
    assert run.data.path == ("a",) and run.seed == 3


def test_a_misspelled_option_is_named_before_the_one_that_it_leaves_out():
    with pytest.raises(ConfigError, match="score: unrecognised option --txt .did you mean --text.."):
        parse(ScoreRequest, ["run", "--txt", "a"], "score")
