"""Arguments that several commands have: how files, folders and texts are shown and read. Needs no jax."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TypeAlias

from contexture.data.plain_files import IN_FOLDERS, inner_suffix
from contexture.train.checkpoints.meta import Step
from contexture.train.errors import ConfigError

Place: TypeAlias = str | Path
"""A file or a folder."""


@dataclass(frozen=True)
class Arg:
    """What an annotation says of an option: `Annotated[str, Arg(metavar="FILE")]`.

    metavar     stands for the value in help; with … it takes several words
    aliases     other names, with their dashes
    positional  it is a word without a name
    """

    metavar: str = ""
    aliases: tuple[str, ...] = ()
    positional: bool = False


POSITIONAL = Arg(positional=True)
RUN, FILE, DIR = (Arg(metavar=metavar) for metavar in ("RUN", "FILE", "DIR"))
STEP = Arg(metavar="N|best")
FILES, TEXTS, TEXT = (Arg(metavar=metavar) for metavar in ("FILE …", "TEXT …", "TEXT"))


def checkpoint_of(step: str) -> Step:
    """Returns the checkpoint that --step names; "" is the one that answers for the run. Raises: ConfigError."""
    if step in ("", "best"):
        return "best" if step else None
    if not (step.isascii() and step.isdecimal()):
        raise ConfigError(f"--step {step}: give the number of a step, or `best`")
    return int(step)


def check_place(to: Place, *read: Place | Sequence[Place], option: str = "to") -> None:
    """Refuses a place to write to that is empty, one of the files that are read, by any name or link, or among the
    texts of a folder that is read.

    An unset shell variable gives an empty path, which would be the current folder.

    read: paths, or lists of paths. option: what names the place.

    Raises: ValueError.
    """
    if not str(to).strip():
        raise ValueError(f"{option}= is empty; give --{option} a path")
    for given in read:
        for file in (given,) if isinstance(given, str | Path) else given:
            if str(file) and _is_same(to, file):
                other = "" if str(file) == str(to) else f" ({file})"
                raise ValueError(f"--{option} {to} is the input itself{other}; give another file")
            if str(file) and _is_text_inside(to, file):
                raise ValueError(f"--{option} {to} is among the texts of {file}, which is read; give another folder")


def check_effect(request: object, names: Sequence[str], has_effect: bool, what: str) -> None:
    """Refuses options that were changed and have no effect. what: what they are for, and what to give too:
    "a page; give --to FILE".

    Raises: ValueError.
    """
    assert is_dataclass(request)
    for field in fields(request):
        if field.name in names and not has_effect and getattr(request, field.name) != field.default:
            option = field.name.replace("_", "-")
            raise ValueError(f"{option}= is for {what} too, or leave --{option} out")


def _is_text_inside(to: Place, folder: Place) -> bool:
    """Returns whether a file has the place and the suffix of a text in a folder."""
    return os.path.isdir(folder) and inner_suffix(Path(to)) in IN_FOLDERS and _is_same(Path(to).parent, folder)


def _is_same(one: Place, other: Place) -> bool:
    """Returns whether two paths lead to one file, also where it does not exist."""
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return os.path.realpath(one) == os.path.realpath(other)
