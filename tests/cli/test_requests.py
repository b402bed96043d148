"""Requests: what the command line makes of options."""

import pytest

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
