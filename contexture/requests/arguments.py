"""Arguments that several commands have: how files, folders and texts are shown and read. Needs no jax."""

from pathlib import Path
from typing import TypeAlias

import tyro

from contexture.train.checkpoints.meta import Step
from contexture.train.errors import ConfigError
from contexture.train.evaluation.request import Strings

Place: TypeAlias = str | Path
"""A file or a folder."""
RUN, FILE, DIR = (tyro.conf.arg(metavar=metavar) for metavar in ("RUN", "FILE", "DIR"))
STEP = tyro.conf.arg(metavar="N|best")
FILES, TEXTS, TEXT = (tyro.conf.arg(metavar=metavar) for metavar in ("FILE …", "TEXT …", "TEXT"))


def several(values: Strings) -> tuple[str, ...]:
    """Returns one string or several as a tuple."""
    return (values,) if isinstance(values, str) else tuple(values)


def checkpoint_of(step: str) -> Step:
    """Returns the checkpoint that --step names; "" is the one that answers for the run. Raises: ConfigError."""
    if step in ("", "best"):
        return "best" if step else None
    if not (step.isascii() and step.isdecimal()):
        raise ConfigError(f"--step {step}: give the number of a step, or `best`")
    return int(step)


def check_place(to: Place) -> None:
    """Raises: ValueError for an empty path, which an unset shell variable gives: it would be the current folder."""
    if not str(to).strip():
        raise ValueError("to= is empty; give --to a path")
