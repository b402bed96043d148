"""Recipes in a user's own Python file: my_recipes.py:big."""

import inspect
from pathlib import Path
from typing import Any

from contexture.data.errors import did_you_mean
from contexture.train.errors import ConfigError
from contexture.train.settings.run import Run


def is_own(name: str) -> bool:
    """Returns whether this names a function of a file."""
    return name.partition(":")[0].endswith(".py")


def own_recipe(name: str) -> Run:
    """Runs a file, calls one of its functions, and returns the run that it returns: my_recipes.py:big.

    Raises:
        ConfigError: when the file or the function is missing or fails, or the function takes parameters or returns no
            Run.
    """
    place, _, function_name = name.partition(":")
    file = Path(place)
    if not file.is_file():
        raise ConfigError(f"{place}: no such file; give FILE.py:FUNCTION")
    values = _run_file(file)
    # Functions of the file itself: imported ones have another module.
    functions = {
        key: value for key, value in values.items() if inspect.isfunction(value) and value.__module__ == file.stem
    }
    if function_name not in functions:
        listed = ", ".join(key for key in functions if key[0] != "_") or "none"
        problem = f"there is no function {function_name!r}" if function_name else "no function is named"
        hint = did_you_mean(function_name, functions)
        raise ConfigError(f"{place}: {problem}{hint}; it has {listed}; give {place}:FUNCTION")
    function = functions[function_name]
    if wanted := [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]:
        raise ConfigError(f"{name} wants {', '.join(wanted)}; a recipe is a function without parameters")
    try:
        run = function()
    except Exception as error:  # whatever a user's function raises
        raise ConfigError(f"{name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(run, Run):
        raise ConfigError(f"{name} returns {str(run)[:40]!r}; a recipe returns a contexture.train.settings.run.Run")
    return run


def _run_file(file: Path) -> dict[str, Any]:
    """Returns the names that a file defines. It is run, not imported, so that no __pycache__ appears next to it."""
    values: dict[str, Any] = {"__name__": file.stem, "__file__": str(file)}
    try:
        exec(compile(file.read_bytes(), str(file), "exec"), values)
    except SyntaxError as error:
        raise ConfigError(f"{file}:{error.lineno}: {error.msg}; mend the file") from error
    except Exception as error:  # whatever a user's file raises
        raise ConfigError(f"{file} failed: {type(error).__name__}: {error}") from error
    return values
