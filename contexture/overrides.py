"""Settings by their dotted names, {"optim.peak_lr": 1e-4}, set in a run. Needs no jax."""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from contexture.data.phases import with_phases
from contexture.option_scope import check_scope, other_options, own_options
from contexture.places import path_of
from contexture.suggestions import suggest_option
from contexture.train.errors import ConfigError
from contexture.train.settings.run import Run, fields
from contexture.train.settings.run_file import from_json, to_json


def with_options(run: Run, options: Mapping[str, Any], where: str = "", *, whole: bool = False) -> Run:
    """Returns the run with other settings.

    Args:
        run: the run.
        options: values by the names of the command line, with `_` or `-`. A file may be a Path, and a single value may
            be given in place of a list of one.
        where: the file that they come from, for errors.
        whole: whether these are all settings of a run, including settings without a meaning for it.

    Raises:
        ConfigError: when an option does not exist, is of the wrong kind, has no meaning, or does not fit the others.
    """
    try:
        given = with_phases({name.replace("-", "_"): value for name, value in options.items()})
    except ValueError as error:
        raise ConfigError(f"{where and where + ': '}{error}") from None
    if not whole:  # a whole run.json may hold epochs as well as the steps that replaced them
        run = without_replaced(run, {name for name, value in given.items() if value})
    usual, tree = fields(run), to_json(run)
    for name, value in given.items():
        if name not in usual:
            hint = suggest_option(name, own_options(run), other_options(run)).replace("--", "").replace("-", "_")
            raise ConfigError(f"{where and where + ': '}there is no option {name!r}{hint}")
        section, _, last = name.rpartition(".")
        part: Any = tree[section] if section else tree
        part[last] = _as_json(value, usual[name])
    changed = from_json(tree, where or "options")
    if not whole:
        check_scope(given, changed, where)
    return changed


def _as_json(value: Any, usual: object) -> Any:
    if isinstance(value, Path):
        value = str(value)
    value = path_of(value)  # an address of a bucket, in a file of settings or given in Python
    if isinstance(usual, tuple):
        return [str(each) if isinstance(each, Path) else each for each in value] if _is_list(value) else [value]
    return value


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def without_replaced(base: Run, given: Collection[str]) -> Run:
    """Returns the recipe without the settings that a given option replaces by an alternative.

    Steps and epochs exclude each other, and so do warm-up steps and a warm-up fraction; a recipe gives one of each.

    Raises:
        ConfigError: when both of a pair are given.
    """
    if "epochs" in given:
        if "steps" in given:
            raise ConfigError("--steps and --epochs both say how long to train; give one of them")
        base = dataclasses.replace(base, steps=0, epochs=base.epochs or 1.0)
    if {"optim.warmup", "optim.warmup_fraction"} <= set(given):
        raise ConfigError("--optim.warmup and --optim.warmup-fraction both say how long to warm up; give one of them")
    if "optim.warmup" in given:
        base = dataclasses.replace(base, optim=dataclasses.replace(base.optim, warmup_fraction=0.0))
    return base
