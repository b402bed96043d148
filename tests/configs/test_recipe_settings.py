"""The settings of every recipe, and every default, are those that are written down in tests/golden/recipes.json.

A run's results depend on each of them. To change one, write the file again with
`python -m tests.configs.test_recipe_settings`, and check the diff.
"""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import pytest

from contexture.configs import finetuning, recipes, task_recipes
from contexture.models.config import BertConfig, ElmoConfig, GptConfig, VectorsConfig
from contexture.train.config import Run

FILE = Path(__file__).parents[1] / "golden" / "recipes.json"


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
def written() -> dict[str, dict[str, Any]]:
    """The defaults whole, and of each recipe what is unlike them."""
    models = (BertConfig(), GptConfig(), ElmoConfig(), VectorsConfig())
    usual = {type(model).__name__: settings_of(dataclasses.replace(Run(), model=model)) for model in models}
    result = {f"defaults {name}": settings for name, settings in usual.items()}
    for name, make in {**recipes(), **task_recipes()}.items():
        settings = settings_of(make())
        others = usual[settings["model.class"]]
        result[name] = {key: value for key, value in settings.items() if others[key] != value}
        result[name]["model.class"] = settings["model.class"]
    return {**result, "fine-tuning": {"MIX_LR": finetuning.MIX_LR}}


GOLDEN: dict[str, Any] = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}


@pytest.mark.parametrize("name", GOLDEN)
def test_settings_are_those_that_are_written_down(name):
    assert written().get(name) == GOLDEN[name], "write them again by `python -m tests.configs.test_recipe_settings`"


def test_every_recipe_is_written_down():
    assert written().keys() == GOLDEN.keys()


if __name__ == "__main__":
    FILE.write_text(json.dumps(written(), indent=1) + "\n", "utf-8")
