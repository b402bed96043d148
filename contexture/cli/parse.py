"""Command line arguments → typed configurations, through tyro."""

import contextlib
import dataclasses
import io
import os
from typing import Any, TypeVar

import tyro

from contexture import requests
from contexture.options import without_replaced
from contexture.suggestions import suggest_option
from contexture.train.config import Run, fields
from contexture.train.errors import ConfigError

T = TypeVar("T")
_REQUESTS = ("EvaluationArgs", *(name for name in vars(requests) if name.endswith("Request")))
_SECTIONS = ("Run", "model", "data", "optim", "mesh", "save", "log", "evaluate", "init", "task", *_REQUESTS)


def parse(kind: type[T], argv: list[str], command: str, default: T | None = None) -> T:
    """Parses arguments into a `kind`; `default` is a recipe whose fields they override.

    Raises: ConfigError in one line where tyro would print a box.
    """
    stderr = io.StringIO()
    # tyro reads the terminal's width: an error must not be wrapped, since it becomes one line; help is for people.
    width, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), "1000"
    if any(word in ("-h", "--help") for word in argv):
        os.environ["COLUMNS"] = width or "110"
    given: Any = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(stderr):
            parsed, unknown = tyro.cli(
                kind,
                args=argv,
                prog=f"contexture {command}",
                return_unknown_args=True,
                config=(tyro.conf.AvoidSubcommands,),  # a model's class comes with the recipe
                **given,
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ConfigError(_in_one_line(stderr.getvalue())) from None
    finally:
        os.environ.pop("COLUMNS") if width is None else os.environ.update(COLUMNS=width)
    if unknown:
        known = [name.replace("_", "-") for name in (fields(parsed) if dataclasses.is_dataclass(parsed) else ())]
        word = unknown[0]
        what = "option" if word.startswith("-") else "argument"
        raise ConfigError(f"{command}: unrecognised {what} {word}{suggest_option(word, known)}; --help lists all")
    return parsed


def _in_one_line(box: str) -> str:
    """Returns the error that tyro draws in a box as one line.

    tyro writes an error to stderr alone, so the text is read out of the drawing: blocks of lines with rules between
    them. The first block is the error, later ones are hints. The title stands in the frame, or, where stderr knows no
    Unicode, as a block before it.
    """
    blocks, framed = [""], False
    for line in box.splitlines():
        text = line.strip("│|╭╮╰╯+ ")
        if line.lstrip().startswith(("╭", "+")):
            framed = True
        elif text and set(text) <= {"─", "-"}:
            blocks.append("")
        else:
            blocks[-1] = f"{blocks[-1]} {text}".strip()
    blocks = [block for block in blocks if block]
    text = blocks[0 if framed or len(blocks) == 1 else 1].removeprefix("Error parsing ") if blocks else box
    for section in _SECTIONS:
        text = text.removeprefix(f"{section}: ")
    return text


def find_option(argv: list[str], *names: str) -> str:
    """Returns the value of the first of these options: `--task.kind tag` or `--task.kind=tag` → "tag"; else ""."""
    for place, word in enumerate(argv):
        for name in names:
            if word == name and place + 1 < len(argv):
                return argv[place + 1]
            if word.startswith(name + "="):
                return word.partition("=")[2]
    return ""


def expand_aliases(argv: list[str]) -> list[str]:
    """Replaces the short forms `--task X` and `--init RUN` by the options that they stand for."""
    short = {"--task": "--task.name", "--init": "--init.run"}
    return [
        short[name] + equals + value if (name := word.partition("=")[0]) in short else word
        for word in argv
        for _, equals, value in [word.partition("=")]
    ]


def apply_exclusive_options(base: Run, argv: list[str]) -> Run:
    """Returns the recipe without settings that the arguments replace by an alternative of theirs."""
    names = ("steps", "epochs", "optim.warmup", "optim.warmup_fraction")
    return without_replaced(base, {name for name in names if find_option(argv, f"--{name.replace('_', '-')}")})
