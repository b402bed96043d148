"""The runs of a grid: each combination of settings with each seed. Plain dataclasses: importing this needs no jax."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from contexture.train.settings.run import Run

Value: TypeAlias = bool | int | float | str | tuple[str, ...]
"""A value of a field that varies."""


@dataclass(frozen=True)
class Setting:
    """One combination of settings, and its runs: one for each seed, each with its folder."""

    values: Mapping[str, Value]
    """Field that varies → its value: {"optim.peak_lr": 2e-5}."""
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Grid:
    """A grid of runs in one folder."""

    folder: Path
    base: Run
    """The run before its settings vary; its seed is the first one."""
    values: Mapping[str, tuple[Value, ...]]
    """The values of each field that varies."""
    seeds: int
    """How many seeds each setting is trained with."""
    settings: tuple[Setting, ...]

    @property
    def runs(self) -> list[Run]:
        """All runs, in the order in which they are trained."""
        # All seeds of a setting before the next setting.
        return [run for setting in self.settings for run in setting.runs]


def as_options(values: Mapping[str, Value]) -> str:
    """Returns a setting as options of the command line: `--optim.peak-lr 2e-05 --data.batch 16`."""
    # Typed like this after a recipe, the options give the same run.
    return " ".join(f"--{name.replace('_', '-')} {shown(value)}" for name, value in values.items())


def shown(value: Value) -> str:
    """Returns a value as it is typed on the command line."""
    return (
        # Several words in a tuple; true and false in lower case; numbers as Python prints them.
        " ".join(value) if isinstance(value, tuple) else str(value).lower() if isinstance(value, bool) else str(value)
    )
