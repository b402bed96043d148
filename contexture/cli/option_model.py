"""The options of a command, read from its dataclasses: name, metavar, default, and the text below the field."""

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from contexture.option_scope import scope
from contexture.requests.arguments import Arg
from contexture.train.settings.run import Run

ALIASES = {
    "task": "task.name",
    "init": "init.run",
    "lr": "optim.peak-lr",
    "batch": "data.batch",
    "length": "data.length",
    "profile": "log.profile",
}
"""Short forms of options of a run."""
METAVARS = {
    **dict.fromkeys(("dir", "init.run"), "RUN"),
    **dict.fromkeys(("data.path", "data.dev", "task.train", "task.dev", "task.test"), "FILE …"),
    **dict.fromkeys(("task.text", "task.second", "task.label"), "COLUMN"),
    "data.tokenizer": "DIR",
    "task.name": "TASK",
    "task.choices": "COLUMN …",
    "task.labels": "LABEL …",
    "task.class-weights": "LABEL=WEIGHT …",
    "optim.no-decay": "WORD …",
    "optim.frozen": "WORD …",
    "evaluate.metric": "METRIC",
    "mesh.compiler-options": "NAME=VALUE …",
    "mesh.startup-minutes": "MINUTES",
    "mesh.peer-minutes": "MINUTES",
    "model.filters": "WIDTH COUNT …",
}
"""Placeholders for options' values in help, where the type gives none; requests annotate their own."""
_NOT_TO_GIVE = {"task.kind": ("off",)}
"""Values that a configuration can have, but no command line."""
VARIES = object()
"""The default of an option that differs from recipe to recipe."""


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of a command, or an argument without a name."""

    name: str
    """As it is written: optim.peak-lr."""
    metavar: str
    default: object
    """MISSING if it has to be given, VARIES if recipes differ in it."""
    kind: type
    """The dataclass that has its field."""
    hint: Any = str
    """The type of its value."""
    choices: tuple[str, ...] = ()
    flag: bool = False
    positional: bool = False
    aliases: tuple[str, ...] = ()
    """Short forms, with their dashes."""

    @property
    def flags(self) -> tuple[str, ...]:
        """The words on the command line: ("--packed", "--no-packed"), the usual one first."""
        section, _, last = self.name.rpartition(".")
        no = f"--{section}{'.' * bool(section)}no-{last}"
        return (*self.aliases, f"--{self.name}", *((no,) if self.flag else ()))

    @property
    def text(self) -> str:
        """What it does; the short help shows its first sentence. Read only when shown, since reading takes a while."""
        return _texts(self.kind).get(self.name.rpartition(".")[2].replace("-", "_"), "")

    @property
    def several(self) -> bool:
        """Whether it takes several values."""
        return "…" in self.metavar

    @property
    def sentence(self) -> str:
        """The first sentence of its text."""
        return re.split(r"(?<=\.) ", self.text, maxsplit=1)[0]


@dataclasses.dataclass(frozen=True)
class _Settings:
    config: str = ""
    """A file of settings: the run.json of a run, or names and values in *.yaml or *.json. Options on the command line
    replace what it says."""


CONFIG = Option("config", "FILE", "", _Settings)


def options_of_runs(runs: Sequence[Run]) -> list[Option]:
    """Returns the options that have a meaning for all of these runs, --config last; a default is what all have."""
    each = [{option.name: option for option in leaves(type(run), run) if _applies(option, run)} for run in runs]
    # In the order of the first run; an option that another run lacks is no option of all.
    options = [option for name, option in each[0].items() if all(name in others for others in each)]
    return [
        *(
            option
            if all(others[option.name].default == option.default for others in each)
            else dataclasses.replace(option, default=VARIES)
            for option in options
        ),
        CONFIG,
    ]


def options_of_kind(kind: type) -> list[Option]:
    """Returns the options of a request."""
    return list(leaves(kind))


def _applies(option: Option, run: Run) -> bool:
    return not scope(option.name.replace("-", "_"), run)


def leaves(kind: type, values: object = None, prefix: str = "") -> Iterator[Option]:
    """Yields the options of a dataclass, with dotted names for its sections. values: an instance with the defaults."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        default = getattr(values, field.name) if values is not None else field.default
        if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        name = f"{prefix}{field.name.replace('_', '-')}"
        if dataclasses.is_dataclass(default) and not isinstance(default, type):
            yield from leaves(type(default), default, f"{name}.")
        else:
            yield _option(name, hints[field.name], default, kind)


def _option(name: str, hint: Any, default: object, kind: type) -> Option:
    notes: tuple[Arg, ...] = typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()
    hint = typing.get_args(hint)[0] if notes else hint
    metavar = next((note.metavar for note in notes if note.metavar), METAVARS.get(name))
    aliases = tuple(alias for note in notes for alias in note.aliases)
    aliases += tuple(f"--{short}" for short, long in ALIASES.items() if long == name)
    # tuple[Literal[…], ...]: several values, each of them one of these.
    several = typing.get_origin(hint) is tuple
    each = typing.get_args(hint)[0] if several else hint
    choices = tuple(map(str, typing.get_args(each))) if typing.get_origin(each) is Literal else ()
    choices = tuple(choice for choice in choices if choice not in _NOT_TO_GIVE.get(name, ()))
    positional = any(note.positional for note in notes)
    metavar = metavar or _metavar(name, hint, tuple(filter(None, choices))) + " …" * (several and bool(choices))
    return Option(name, metavar, default, kind, hint, choices, hint is bool, positional, aliases)


def _metavar(name: str, hint: Any, choices: tuple[str, ...]) -> str:
    if choices:
        joined = "|".join(choices)
        return joined if len(joined) <= 24 else name.rpartition(".")[2].rpartition("-")[2].upper()
    if hint is bool:
        return ""
    if hint is int:
        return "N"
    if hint is float:
        last = name.rpartition(".")[2].rpartition("-")[2]
        return {"lr": "RATE", "dropout": "RATE", "fraction": "FRACTION"}.get(last, "NUMBER")
    several = typing.get_origin(hint) in (tuple, types.UnionType, typing.Union)
    return "TEXT …" if several else "TEXT"


@functools.cache
def _texts(kind: type) -> dict[str, str]:
    """Returns the text below each field of a dataclass, its first paragraph on one line; inherited ones too."""
    texts: dict[str, str] = {}
    # Base classes first: a class may word an inherited option anew.
    for each in reversed(kind.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
        assert isinstance(body, ast.ClassDef)
        # The text is the string literal below a field, which Python itself does not keep.
        for field, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                text = ast.literal_eval(below.value)
                texts[ast.unparse(field.target)] = " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())
    return texts
