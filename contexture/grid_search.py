"""Grids of fine-tunings: which fields may vary, and the runs that their values and the seeds give. Needs no jax."""

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from contexture.configs.finetuning import SIZES
from contexture.option_scope import other_options, own_options, scope
from contexture.overrides import with_options
from contexture.suggestions import suggest_option
from contexture.train.errors import ConfigError
from contexture.train.grid.settings import Grid, Setting, Value, shown
from contexture.train.settings.run import Run, fields

_MAY_VARY = (
    *("optim", "model", "head", "steps", "epochs", "data.batch", "data.length", "data.word_types", "data.ramp_from"),
    *("data.ramp_steps", "task.class_weights", "task.lm_weight", "task.symmetric", "init.step", "init.drop_heads"),
    "init.redraw_layers",
)
"""Sections and fields that may vary: they decide how a model learns, not what it is measured on."""
_OF_THE_SOURCE = tuple(f"model.{name}" for name in (*SIZES, "vocab", "segments", "length"))
"""Sizes of the model, which follow from the run to begin from and its parameters."""
_EXCLUDE = {"epochs": "steps", "steps": "epochs"}
"""Field → the field that sets the same thing in another way."""
_CHANGE_THE_LOSS = ("task.class_weights", "task.lm_weight", "head.mix_l2")
"""Fields that change the definition of the loss, so that losses of different values cannot be compared."""


def make_grid(
    run: Run,
    values: Mapping[str, Sequence[Any]],
    seeds: int = 1,
    given: Collection[str] = (),
    where: str = "--grid",
) -> Grid:
    """Returns the grid of a run's settings: each combination of `values`, with `seeds` seeds from the run's own on.

    Args:
        run: what the runs have in common; its `dir` is the grid's folder.
        values: field → its values: {"optim.peak_lr": [2e-5, 3e-5]}.
        given: the options that the user gave for all runs, as fields.
        where: how the user gave the values, for errors.

    Raises:
        ConfigError: when a field does not exist, has no meaning, may not vary or is also given for all runs; values are
            missing, given twice or do not fit; or seeds is below 1.
    """
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise ConfigError(f"seeds={seeds} is not at least 1; give the number of runs of each setting: --seeds 5")
    if not isinstance(values, Mapping) or not all(isinstance(field, str) for field in values):
        raise ConfigError(f"{where} is {values!r}; give fields with their values: {{'optim.peak_lr': [2e-5, 3e-5]}}")
    normal: dict[str, tuple[Value, ...]] = {}
    for field, each in values.items():
        name = field.replace("-", "_")
        _check_field(name, run, where)
        if also := next((other for other in (name, _EXCLUDE.get(name)) if other in given), None):
            raise ConfigError(
                f"{where} {_option(name)} varies from run to run, and --{_option(also)} is given for all of them; "
                "leave one of them out"
            )
        if name in normal:
            raise ConfigError(f"{where} {_option(name)} is given twice; give all of its values at once")
        normal[name] = _values(name, each, fields(run)[name], where)
    settings = []
    folder = Path(run.dir)
    for combination in itertools.product(*normal.values()):
        chosen = dict(zip(normal, combination, strict=True))
        changed = with_options(run, chosen, where)
        settings.append(Setting(chosen, tuple(_run(changed, folder, _name(chosen), number) for number in range(seeds))))
    # Letters that do not suit a file name become `-` there, so that two values may get one name.
    names = [Path(each.dir).name for setting in settings for each in setting.runs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"{where}: two settings would share the folder {twice}; give values that differ in letters")
    return Grid(folder, dataclasses.replace(run, dir=""), normal, seeds, tuple(settings))


def first_values(values: Any, given: Collection[str]) -> dict[str, Any]:
    """Returns the first value of each field that varies; the run's other options may be valid only with such a value.

    Fields in `given`, fields that may not vary, and fields without values are left out: `make_grid` refuses them.
    """
    names = fields(Run())
    first: dict[str, Any] = {}
    for field, each in values.items() if isinstance(values, Mapping) else ():
        name = str(field).replace("-", "_")
        if name in names and _may_vary(name) and not {name, _EXCLUDE.get(name)} & {*given}:
            value = next(iter(each), "") if isinstance(each, list | tuple) else each
            first |= {} if value in ("", (), []) else {name: value}
    return first


def _may_vary(name: str) -> bool:
    return name not in _OF_THE_SOURCE and (name in _MAY_VARY or name.partition(".")[0] in _MAY_VARY)


def _check_field(name: str, run: Run, where: str) -> None:
    option = _option(name)
    if name not in fields(run):
        raise ConfigError(
            f"{where}: there is no option {option}{suggest_option(option, own_options(run), other_options(run))}"
        )
    if what := scope(name, run):
        raise ConfigError(f"{where}: {option} is for {what}, and has no meaning here; leave it out")
    if name == "seed":
        raise ConfigError(f"{where}: the seed varies by --seeds N, from --seed on; leave it out here")
    if not _may_vary(name):
        raise ConfigError(f"{where}: {option} cannot vary within a grid; give it once for all runs, as --{option}")
    # A question's loss is a softmax over the positions of its windows, whose number and size follow from the length;
    # the same holds for any text that is read in windows.
    windows = run.task.kind == "span" or run.task.windows != "off"
    changes_loss = name in _CHANGE_THE_LOSS or (name == "data.length" and windows)
    if changes_loss and run.evaluate.metric == "loss":
        raise ConfigError(
            f"{where}: {option} changes the loss itself, and the best setting would be chosen by it; choose by another "
            f"figure, such as --evaluate.metric {'f1' if run.task.kind == 'span' else 'accuracy'}"
        )


def _values(name: str, given: Sequence[Any], usual: object, where: str) -> tuple[Value, ...]:
    """Returns the values of a field with the type that the configuration holds; `usual` is a value of that type."""
    values: list[Value] = []
    if not isinstance(given, Iterable | int | float):
        raise ConfigError(f"{where} {_option(name)} is {given!r}; give a list of values")
    for value in [given] if isinstance(given, str | int | float) else given:
        if isinstance(usual, tuple):
            value = (value,) if isinstance(value, str) else tuple(value)
        # `1` is taken as 1.0, so that equal values have one form in names of folders.
        if isinstance(usual, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if value in values:
            raise ConfigError(f"{where} {_option(name)}: {shown(value)} stands twice; give each value once")
        values.append(value)
    if not values or any(value in ("", ()) for value in values):
        raise ConfigError(f"{where} {_option(name)}: a value is empty; give values with commas between them")
    return tuple(values)


def _run(run: Run, folder: Path, name: str, number: int) -> Run:
    seed = run.seed + number
    try:
        return dataclasses.replace(run, seed=seed, dir=str(folder / f"{name}{'-' * bool(name)}seed{seed}"))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _name(setting: Mapping[str, Value]) -> str:
    """Returns a setting as a part of a folder's name: `peak-lr=2e-05,batch=16`."""
    last = [name.rpartition(".")[2] for name in setting]
    words = last if len(set(last)) == len(last) else setting
    return ",".join(
        f"{_option(word)}={re.sub(r'[^A-Za-z0-9_.=+-]+', '-', shown(value))}"
        for word, value in zip(words, setting.values(), strict=True)
    )


def _option(name: str) -> str:
    return name.replace("_", "-")
