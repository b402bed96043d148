"""The settings of every recipe, and all defaults of runs and commands, are those of tests/golden/settings.json.

A run's results depend on each of them. To change one, write the file again with
`python -m tests.configs.test_recipe_settings`, and check the diff.
"""

import dataclasses
import functools
import inspect
import json
from pathlib import Path
from typing import Any

import contexture
from contexture.configs import finetuning, recipes, task_recipes
from contexture.option_scope import own_options
from contexture.train.families import FAMILIES
from contexture.train.settings.run import Run
from tests.helpers.commands import request_kinds

FILE = Path(__file__).parents[1] / "golden" / "settings.json"


def settings_of(config: Any, prefix: str = "") -> dict[str, Any]:
    """{"model.layers": 12, …}; of a model also its class."""
    found: dict[str, Any] = {f"{prefix}class": type(config).__name__} if prefix == "model." else {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found |= settings_of(value, f"{prefix}{field.name}.")
        else:
            found[f"{prefix}{field.name}"] = value
    return json.loads(json.dumps(found))


@functools.cache
def written() -> dict[str, Any]:
    """The defaults whole, and of each recipe what is unlike them."""
    models = [family.config() for family in FAMILIES.values()]
    usual = {type(model).__name__: settings_of(dataclasses.replace(Run(), model=model)) for model in models}
    result = {f"defaults {name}": settings for name, settings in usual.items()}
    for name, make in {**recipes(), **task_recipes()}.items():
        settings = settings_of(make())
        others = usual[settings["model.class"]]
        result[name] = {key: value for key, value in settings.items() if others[key] != value}
        result[name]["model.class"] = settings["model.class"]
    return {
        **result,
        **_of_commands(),
        **_of_functions(),
        **_of_options(),
        "fine-tuning": {"MIX_LR": finetuning.MIX_LR},
    }


def _of_commands() -> dict[str, dict[str, Any]]:
    """{"ScoreRequest": {"batch": 16, …}}: the defaults of the options that are not a run's."""
    found: dict[str, dict[str, Any]] = {}
    for kind in request_kinds():
        own = {field.name: field.default for field in dataclasses.fields(kind)}
        found[kind.__name__] = {name: x for name, x in own.items() if isinstance(x, str | int | float | tuple)}
    return json.loads(json.dumps(found))


def _of_options() -> dict[str, list[str]]:
    """{"options of gpt.tiny": […], …}: those that a pretraining of each family takes."""
    return {
        f"options of {name}": sorted(own_options(recipes()[name]())) for name in ("bert.tiny", "gpt.tiny", "elmo.tiny")
    }


def _of_functions() -> dict[str, dict[str, Any]]:
    """{"TrainedModel.fill": {"top": 5}, …}: the defaults of the package's own functions, and of its models' methods."""
    public = {name: getattr(contexture, name) for name in contexture.__all__}
    public |= {f"TrainedModel.{name}": x for name, x in vars(contexture.TrainedModel).items() if name[:1] != "_"}
    found: dict[str, dict[str, Any]] = {}
    for name, function in public.items():
        if inspect.isfunction(function):
            own = inspect.signature(function).parameters.values()
            found[name] = {
                each.name: each.default for each in own if isinstance(each.default, str | int | float | tuple)
            }
    return json.loads(json.dumps({name: own for name, own in found.items() if own}))


def test_settings_are_those_that_are_written_down():
    golden, now = json.loads(FILE.read_text("utf-8")), written()
    for name in {**golden, **now}:
        message = f"{name}: write them again by `python -m tests.configs.test_recipe_settings`"
        assert now.get(name) == golden.get(name), message


if __name__ == "__main__":
    FILE.write_text(json.dumps(written(), indent=1) + "\n", "utf-8")
