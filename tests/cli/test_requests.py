"""Requests: what the command line and the Python functions make of the same options."""

import inspect

import pytest

import contexture
from contexture import api
from contexture.cli.parse import parse
from contexture.requests import FillRequest, GenerationRequest, several
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


def test_functions_have_the_fields_of_their_request_and_its_documentation():
    assert list(inspect.signature(contexture.fill).parameters) == ["run", "text", "top", "step"]
    shown = str(contexture.fill.__doc__)
    assert "Args:" in shown and "top: Tokens for each." in shown


def test_functions_work_where_only_bytecode_is_installed(monkeypatch):
    def no_source(what: object) -> str:
        raise OSError("could not get source code")

    monkeypatch.setattr(inspect, "getsource", no_source)
    fill = api.call_with_fields("fill", FillRequest, api.fill_masks)
    assert fill.__doc__ == api.fill_masks.__doc__
