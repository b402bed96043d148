"""Command line arguments → typed configurations: the fields of dataclasses, read word by word."""

import dataclasses
import re
import typing
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from contexture.cli.commands import COMMANDS
from contexture.cli.help import command_page, options_of, wants_help
from contexture.cli.option_model import Option, leaves
from contexture.data.errors import did_you_mean
from contexture.data.phases import with_phases
from contexture.option_scope import check_scope, other_options, own_options
from contexture.suggestions import has_other_name, suggest_option
from contexture.train.errors import ConfigError
from contexture.train.settings.run import Run

T = TypeVar("T")
_NUMBERS: dict[type, str] = {int: "a whole number", float: "a number"}


def parse(kind: type[T], argv: list[str], title: str, default: T | None = None) -> T:
    """Parses arguments into a `kind`, or prints the help that they ask for.

    Args:
        kind: the type of the command's options.
        argv: the arguments behind the command, and behind its recipe.
        title: the command, with its recipe if one is given: pretrain bert.tiny.
        default: a recipe whose fields the arguments override.

    Raises:
        ConfigError: in one line, when an argument is wrong.
        SystemExit: when help was printed.
    """
    command = title.partition(" ")[0]
    run = default if isinstance(default, Run) else None
    if wants_help(argv):
        print(command_page(command, title, argv, run))
        raise SystemExit(0)
    # Options without a meaning for the run are parsed too: the error can then say what they are for.
    options = list(leaves(kind, default))
    values, unknown = _read(argv, options)
    for option in options:
        if option.positional and option.several:  # without any the request itself raises, in its own words
            values.setdefault(option.name, ())
    missing = [option for option in options if option.default is dataclasses.MISSING and option.name not in values]
    if missing:
        raise ConfigError(f"{command} needs {_needed(missing)}: contexture {command} {COMMANDS[command].usage}")

    def unrecognised(word: str, parsed: object) -> ConfigError:
        known = {option.name: option for option in options_of(COMMANDS[command], run)}
        return ConfigError(_unrecognised(word, argv, title, parsed, known))

    # Before the request is built, which may miss the very option that was misspelled. A run's hint needs the run.
    if unknown is not None and run is None:
        raise unrecognised(unknown, None)
    try:
        parsed = _build(kind, default, with_phases(values))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if unknown is not None:
        raise unrecognised(unknown, parsed)
    if isinstance(parsed, Run):
        check_scope(option_names(argv), parsed)
    return parsed


def option_names(argv: Sequence[str]) -> list[str]:
    """Returns the options among arguments as fields: `--optim.peak-lr=1` → optim.peak_lr."""
    names = [word[2:].partition("=")[0].replace("-", "_") for word in argv if word.startswith("--") and word[2:]]
    # --optim.no-decay is a field, not a `decay` that is switched off.
    return [re.sub(r"(^|\.)no_(?!decay)", r"\1", name) for name in names]


def _read(argv: Sequence[str], options: Sequence[Option]) -> tuple[dict[str, object], str | None]:
    """Returns (the values of options by their names; the first word that is none of theirs, or None)."""
    by_flag = {flag: option for option in options for flag in option.flags if not option.positional}
    free = [option for option in options if option.positional]
    values: dict[str, object] = {}
    unknown: str | None = None
    place = 0
    while place < len(argv):
        word = argv[place]
        if word == "--":  # by custom the end of options; here it only ends the values of the one before
            place += 1
            continue
        name, joined, text = word.partition("=")
        option = by_flag.get(name.replace("_", "-")) if word.startswith("--") else None
        if option is not None and option.flag:
            if joined:
                raise ConfigError(f"{name} takes no value, and got {text!r}; give {' or '.join(option.flags)} alone")
            values[option.name] = not _is_no(name)
            place += 1
            continue
        if option is None and not word.startswith("--") and free:
            option, name, first = free.pop(0), "", place
        else:
            first = place + 1
        # `--data.path=a b` is `--data.path a b`: what is joined comes before the words behind it.
        words = [text] if option is not None and name and joined else []
        # The words up to the next option: all of them, or the first.
        end = next((n for n in range(first, len(argv)) if argv[n].startswith("--")), len(argv))
        if option is None:
            # Reported later: the hint depends on the run that the other arguments make.
            unknown = word if unknown is None else unknown
            place = end if word.startswith("--") else place + 1
            continue
        place = end if option.several else first if words else min(first + 1, end)
        values[option.name] = _value(option, [*words, *argv[first:place]], name)
    return values, unknown


def _is_no(flag: str) -> bool:
    """Returns whether a flag switches off: --data.no-packed."""
    return flag[2:].rpartition(".")[2].replace("_", "-").startswith("no-")


def _value(option: Option, words: list[str], flag: str) -> object:
    """Returns the value that words spell. flag: the option as it was written, "" for an argument without a name."""
    shown = f"--{option.name}" if flag else option.name.upper()
    if not words and not option.several:
        raise ConfigError(f"{shown} wants a value: {shown} {option.metavar}")
    origin, inner = typing.get_origin(option.hint), typing.get_args(option.hint)
    if origin is tuple:
        if typing.get_origin(inner[0]) is not tuple:
            return tuple(_one(inner[0], word, shown) for word in words)
        of_each = typing.get_args(inner[0])
        if len(words) % len(of_each):
            raise ConfigError(f"{shown} wants {option.metavar}, not {', '.join(map(repr, words))}")
        rows = [words[n : n + len(of_each)] for n in range(0, len(words), len(of_each))]
        return tuple(tuple(_one(k, word, shown) for k, word in zip(of_each, row, strict=True)) for row in rows)
    if option.several:  # one string or several
        return words[0] if len(words) == 1 else tuple(words)
    return _one(option.hint, words[0], shown)


def _one(hint: Any, word: str, shown: str) -> object:
    if typing.get_origin(hint) is Literal:
        choices = {str(choice): choice for choice in typing.get_args(hint)}
        if word not in choices:
            listed = ", ".join(filter(None, choices))
            raise ConfigError(f"{shown} is {word!r}, not one of {listed}{did_you_mean(word, choices)}")
        return choices[word]
    if hint in _NUMBERS:
        try:
            return hint(word)
        except ValueError:
            raise ConfigError(f"{shown} wants {_NUMBERS[hint]}, not {word!r}") from None
    return word


def _build(kind: Callable[..., T], default: T | None, values: dict[str, object]) -> T:
    """Returns the dataclass with these values, built once, sections first: so dependent fields may change together."""
    own = {name.replace("-", "_"): value for name, value in values.items() if "." not in name}
    sections: dict[str, dict[str, object]] = {}
    for name, value in values.items():
        section, dot, last = name.partition(".")
        if dot:
            sections.setdefault(section, {})[last] = value
    for section, inside in sections.items():
        own[section] = _build(type(_part(kind, default, section)), _part(kind, default, section), inside)
    return kind(**own) if default is None else dataclasses.replace(default, **own)  # pyright: ignore[reportArgumentType, reportReturnType]


def _part(kind: Any, default: Any, section: str) -> Any:
    if default is not None:
        return getattr(default, section)
    (factory,) = (field.default_factory for field in dataclasses.fields(kind) if field.name == section)
    assert factory is not dataclasses.MISSING
    return factory()


def _needed(missing: Sequence[Option]) -> str:
    named = [f"--{option.name} {option.metavar}" for option in missing if not option.positional]
    return " and ".join(named or [option.name.upper() for option in missing])


def _unrecognised(word: str, argv: list[str], title: str, parsed: object, options: dict[str, Option]) -> str:
    if not word.startswith("-"):
        # A word behind a flag was meant as its value: `--data.packed yes`.
        before = argv[argv.index(word) - 1] if word in argv[1:] else ""
        flag = next((option for option in options.values() if option.flag and before in option.flags), None)
        if flag:
            return f"{title}: {before} takes no value, and got {word!r}; give {' or '.join(flag.flags)} alone"
        return f"{title}: unrecognised argument {word or repr(word)}; --help lists what it takes"
    if isinstance(parsed, Run):
        known, elsewhere = own_options(parsed), other_options(parsed)
    else:
        known, elsewhere = list(options), {name: "contexture pretrain and finetune" for name in _options_of_training()}
    asked = word.lstrip("-").partition("=")[0].replace("_", "-")
    # Options of other commands that no training has.
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
