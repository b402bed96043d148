"""The words between user and program: options in, as typed configurations through tyro; results out."""

import contextlib
import dataclasses
import io
import os
from collections.abc import Callable
from typing import Any, TypeVar

import tyro

from data.visible import visible
from train.config import ConfigError, Run, fields
from train.suggestions import suggest_option

T = TypeVar("T")
_COMMANDS = tuple("LearnTokenizer Prepare Evaluate Predict Fill Generate Score Embed Import Export".split())
_SECTIONS = ("Run", "model", "data", "optim", "mesh", "save", "log", "evaluate", "init", "task", *_COMMANDS)


def parse(kind: type[T], words: list[str], command: str, default: T | None = None) -> T:
    """The user's words as a `kind`, through tyro. Raises ConfigError in one line where they are not."""
    said = io.StringIO()
    width, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), "1000"
    if any(word in ("-h", "--help") for word in words):
        os.environ["COLUMNS"] = width or "110"
    given: Any = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(said):
            found, unknown = tyro.cli(
                kind,
                args=words,
                prog=f"contexture {command}",
                return_unknown_args=True,
                config=(tyro.conf.AvoidSubcommands,),  # a model's class comes with the recipe
                **given,
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ConfigError(_in_one_line(said.getvalue())) from None
    finally:
        os.environ.pop("COLUMNS") if width is None else os.environ.update(COLUMNS=width)
    if unknown:
        known = [name.replace("_", "-") for name in (fields(found) if dataclasses.is_dataclass(found) else ())]
        word = unknown[0]
        raise ConfigError(f"{command} does not know {word!r}{suggest_option(word, known)}; --help lists all")
    return found


def _in_one_line(box: str) -> str:
    """What tyro says in a box, as one line: the first block between its rules. Its title stands in the frame, or, where
    stderr knows no Unicode, as a block before it."""
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


def value_of(words: list[str], *names: str) -> str:
    """What was said for the first of these options: `--task.kind tag` or `--task.kind=tag` → "tag"; else ""."""
    for place, word in enumerate(words):
        for name in names:
            if word == name and place + 1 < len(words):
                return words[place + 1]
            if word.startswith(name + "="):
                return word.partition("=")[2]
    return ""


def spelled_out(words: list[str]) -> list[str]:
    """The short forms `--task X` and `--init RUN` as what they stand for."""
    short = {"--task": "--task.name", "--init": "--init.run"}
    return [
        short[name] + equals + value if (name := word.partition("=")[0]) in short else word
        for word in words
        for _, equals, value in [word.partition("=")]
    ]


def without_contradiction(base: Run, words: list[str]) -> Run:
    """The recipe without what contradicts the user's words: how long to train, and to warm up, is told in one way."""
    if value_of(words, "--epochs"):
        if value_of(words, "--steps"):
            raise ConfigError("--steps and --epochs both say how long to train; give one of them")
        base = dataclasses.replace(base, steps=0, epochs=base.epochs or 1.0)
    if value_of(words, "--optim.warmup") and not value_of(words, "--optim.warmup-fraction"):
        base = dataclasses.replace(base, optim=dataclasses.replace(base.optim, warmup_fraction=0.0))
    return base


@dataclasses.dataclass(frozen=True)
class Streamed:
    """A command's work whose text is told while it grows: work(tell) → the result for --json."""

    work: Callable[[Callable[[str], None]], dict[str, Any]]


def write_out(text: str) -> None:
    """To stdout, at once; control characters are shown escaped."""
    print(visible(text), end="", flush=True)


def print_result(result: dict[str, Any], indent: str = "") -> None:
    """A result for a person."""
    for name, value in result.items():
        if isinstance(value, dict):
            print(visible(f"{indent}{name}"))
            print_result(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], list):
            print_result({f"{name} {number}": rows for number, rows in enumerate(value, 1)}, indent)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            print(visible(f"{indent}{name}"))
            _print_table(value, indent + "  ")
        else:
            print(visible(f"{indent}{name:<{max(26 - len(indent), 1)}} {_shown(value)}"))


def _print_table(rows: list[dict[str, Any]], indent: str) -> None:
    flat = {name: value for name, value in rows[0].items() if not isinstance(value, dict | list)}
    if len(flat) < len(rows[0]):  # what holds tables itself
        for row in rows:
            print_result(row, indent)
        return
    lines = [[*map(visible, rows[0])], *([_shown(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print((indent + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))).rstrip())


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "–" if value is None else visible(f"{value}")
