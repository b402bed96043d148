"""Command line arguments → typed configurations, through tyro."""

import contextlib
import dataclasses
import io
import os
import re
from typing import Any, TypeVar

import tyro

from contexture.cli.commands import COMMANDS
from contexture.cli.help import command_page, options_of, wants_help
from contexture.cli.options import Option
from contexture.data.errors import did_you_mean
from contexture.option_scope import check_scope, other_options, own_options
from contexture.suggestions import has_other_name, suggest_option
from contexture.train.config import Run
from contexture.train.errors import ConfigError

T = TypeVar("T")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""What switches colours on and off. tyro draws in colours where stdout is a terminal, wherever the drawing goes."""


def parse(kind: type[T], argv: list[str], title: str, default: T | None = None) -> T:
    """Parses arguments into a `kind`, or prints the help that they ask for.

    Args:
        kind: the type of the command's options.
        argv: the arguments behind the command, and behind its recipe.
        title: the command, with its recipe if one is given: pretrain bert.tiny.
        default: a recipe whose fields the arguments override.

    Raises: ConfigError in one line where tyro would print a box; SystemExit where help was printed.
    """
    command = title.partition(" ")[0]
    run = default if isinstance(default, Run) else None
    if wants_help(argv):
        print(command_page(command, title, argv, run))
        raise SystemExit(0)
    given: Any = {} if default is None else {"default": default}
    stderr = io.StringIO()
    # tyro reads the terminal's width: an error must not be wrapped, since it becomes one line.
    width, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), "1000"
    try:
        with contextlib.redirect_stderr(stderr):
            parsed, unknown = tyro.cli(
                kind,
                args=argv,
                prog=f"contexture {title}",
                return_unknown_args=True,
                add_help=False,
                config=(tyro.conf.AvoidSubcommands,),  # a model's class comes with the recipe
                **given,
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        line = _in_one_line(stderr.getvalue())
        raise ConfigError(_clearer(line, argv, command, _options(command, run))) from None
    finally:
        os.environ.pop("COLUMNS") if width is None else os.environ.update(COLUMNS=width)
    if unknown:
        raise ConfigError(_unrecognised(unknown[0], argv, title, parsed, _options(command, run)))
    if isinstance(parsed, Run):
        check_scope(option_names(argv), parsed)
    return parsed


def _options(command: str, run: Run | None) -> dict[str, Option]:
    return {option.name: option for option in options_of(COMMANDS[command], run)}


def option_names(argv: list[str]) -> list[str]:
    """Returns the options among arguments as fields: `--optim.peak-lr=1` → optim.peak_lr."""
    names = [word[2:].partition("=")[0].replace("-", "_") for word in argv if word.startswith("--")]
    return [re.sub(r"(^|\.)no_(?!decay)", r"\1", name) for name in names]


def _unrecognised(word: str, argv: list[str], title: str, parsed: object, options: dict[str, Option]) -> str:
    if not word.startswith("-"):
        joined = next((each.partition("=")[0] for each in argv if each.endswith(f"={word}")), "")
        before = argv[argv.index(word) - 1] if word in argv[1:] else joined
        flag = next((option for option in options.values() if option.flag and before in option.flags), None)
        if flag:
            return f"{title}: {before} takes no value, and got {word!r}; give {' or '.join(flag.flags)} alone"
        return f"{title}: unrecognised argument {word}; --help lists what it takes"
    if isinstance(parsed, Run):
        known, elsewhere = own_options(parsed), other_options(parsed)
    else:
        known, elsewhere = list(options), {name: "contexture pretrain and finetune" for name in _options_of_training()}
    asked = word.lstrip("-").partition("=")[0].replace("_", "-")
    others = [
        name
        for name, one in COMMANDS.items()
        if asked in _request_options(one.kind()) and asked not in _request_options(Run)
    ]
    if isinstance(parsed, Run) and others and not has_other_name(asked, known):
        elsewhere = {asked: f"contexture {' and '.join(others)}", **elsewhere}
    if asked in elsewhere:
        return f"{title}: --{asked} is for {elsewhere[asked]}, and has no meaning here; leave it out"
    flags = [option.name for option in options.values() if option.flag]
    hint = suggest_option(word, known, elsewhere, flags)
    return f"{title}: unrecognised option {word}{hint}; --help lists what it takes"


def _request_options(kind: type) -> list[str]:
    return [field.name.replace("_", "-") for field in dataclasses.fields(kind)]


def _options_of_training() -> list[str]:
    run = Run()
    return [*own_options(run), *other_options(run)]


def _clearer(line: str, argv: list[str], command: str, options: dict[str, Option]) -> str:
    """Returns tyro's error as this program writes errors: the value, what was expected, how to mend it."""
    if match := re.match(r"invalid choice (.*) for argument '(.*?)'\. Expected one of \((.*)\)", line):
        value, name, choices = match[1].strip("'\""), match[2].split(",")[-1], re.findall(r"'(.*?)'", match[3])
        name = name if name.startswith("-") else name.upper()
        listed = ", ".join(filter(None, choices))
        return f"{name} is {value!r}, not one of {listed}{did_you_mean(value, choices)}"
    if match := re.match(r"Missing value for argument '(.*?)'", line):
        name = match[1].split(",")[0].split("/")[0]
        option = options.get(name.lstrip("-"))
        return f"{name} wants a value: {name} {option.metavar if option else 'VALUE'}"
    if line.startswith("Missing from contexture"):
        expected = [
            f"--{option.name} {option.metavar}"
            for option in options.values()
            if option.default is dataclasses.MISSING
            and not option.positional
            and not any(word.partition("=")[0].replace("_", "-") in option.flags for word in argv)
        ]
        expected = expected or [option.name.upper() for option in options.values() if option.positional]
        return f"{command} needs {' and '.join(expected)}: contexture {command} {COMMANDS[command].usage}"
    if match := re.match(r"(--[\w.-]+): Could not find valid parse for arguments: \[(.*)\]", line):
        option = options.get(match[1].lstrip("-"))
        return f"{match[1]} wants {option.metavar if option else 'other values'}, not {match[2]}"
    for pattern, expected in (
        (r"(?:argument )?(--[\w.-]+).*?: invalid literal for int\(\) with base 10: (.*)", "a whole number"),
        (r"(?:argument )?(--[\w.-]+).*?: could not convert string to float: (.*)", "a number"),
    ):
        if match := re.match(pattern, line):
            return f"{match[1]} wants {expected}, not {match[2]}"
    return line


def _in_one_line(box: str) -> str:
    """Returns the error that tyro draws in a box as one line.

    tyro writes an error to stderr alone, so the text is read out of the drawing: blocks of lines with rules between
    them. The first block is the error, later ones are hints. The title stands in the frame, or, where stderr knows no
    Unicode, as a block before it.
    """
    blocks, framed = [""], False
    for line in _COLOUR.sub("", box).splitlines():
        text = line.strip("│|╭╮╰╯+ ")
        if line.lstrip().startswith(("╭", "+")):
            framed = True
        elif text and set(text) <= {"─", "-"}:
            blocks.append("")
        else:
            blocks[-1] = f"{blocks[-1]} {text}".strip()
    blocks = [block for block in blocks if block]
    text = blocks[0 if framed or len(blocks) == 1 else 1].removeprefix("Error parsing ") if blocks else box
    sections = ("model", "data", "optim", "mesh", "save", "log", "evaluate", "init", "task", "head")
    for section in (*(command.request for command in COMMANDS.values()), *sections):
        text = text.removeprefix(f"{section}: ")
    return text
