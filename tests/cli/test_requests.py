"""Requests: what the command line makes of options."""

import pytest

from contexture.cli.argv import expand_aliases
from contexture.cli.parse import parse
from contexture.requests import GenerationRequest, several
from contexture.train.errors import ConfigError


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
