"""Recipes: functions that give a whole Run. Their docstrings say the command, the paper's section, what to expect."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable

from train.config import ConfigError, Run, did_you_mean


def recipes() -> dict[str, Callable[[], Run]]:
    """Every recipe by its name: {"bert.tiny": <function>, …}, smallest first as they stand in their files."""
    found: dict[str, Callable[[], Run]] = {}
    for module in pkgutil.iter_modules(__path__):
        functions = vars(importlib.import_module(f"{__name__}.{module.name}"))
        for name, value in functions.items():
            if inspect.isfunction(value) and value.__module__ == functions["__name__"] and name[0] != "_":
                found[f"{module.name}.{name}"] = value
    return found


def recipe(name: str) -> Run:
    """The run of a recipe. Raises ConfigError where there is none of that name."""
    known = recipes()
    if name not in known:
        raise ConfigError(f"there is no recipe {name!r}{did_you_mean(name, known)}; `contexture recipes` lists them")
    return known[name]()
