"""Recipes: functions that return a whole Run. Their docstrings give command, paper and what to expect."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable

from contexture.configs.own_recipes import is_own, own_recipe
from contexture.data.errors import did_you_mean
from contexture.train.errors import ConfigError
from contexture.train.settings.run import Run

Recipe = Callable[[], Run]
_TASKS = ("tasks", "published_tasks")
_NO_RECIPES = (*_TASKS, "task_settings", "finetuning", "own_recipes")


def recipes() -> dict[str, Recipe]:
    """Returns every pretraining recipe: {"bert.tiny": <function>, …}, in the order of their files, smallest first."""
    modules = (module.name for module in pkgutil.iter_modules(__path__) if module.name not in _NO_RECIPES)
    return {f"{module}.{name}": function for module in modules for name, function in _functions(module).items()}


def task_recipes() -> dict[str, Recipe]:
    """Returns every fine-tuning recipe: {"classify": <function>, …, "sst2": <function>}, kinds of task first."""
    return {name: function for module in _TASKS for name, function in _functions(module).items()}


def recipe(name: str) -> Run:
    """Returns the run of a pretraining recipe, or of a function in a user's own file: my_recipes.py:big.

    Raises:
        ConfigError: when there is no such recipe, or the function returns no run.
    """
    if isinstance(name, str) and is_own(name):
        return own_recipe(name)
    return _find(name, recipes(), "recipe")


def task(name: str) -> Run:
    """Returns the run of a fine-tuning recipe; an unknown name is a ConfigError."""
    return _find(name, task_recipes(), "task")


def _find(name: str, known: dict[str, Recipe], what: str) -> Run:
    if not isinstance(name, str):
        raise ConfigError(
            f"a {what} is named by a string, not by {type(name).__name__}; `contexture recipes` lists them"
        )
    if name not in known:
        usual = _usual_name(name)
        hint = f" (did you mean {usual}?)" if usual in known else did_you_mean(name, known)
        raise ConfigError(f"there is no {what} {name!r}{hint}; `contexture recipes` lists them")
    return known[name]()


_OTHER_NAMES = {
    **dict.fromkeys("ner pos pos_tagging token_classification tagging sequence_labeling sequence_labelling "
                    "chunking".split(), "tag"),
    **dict.fromkeys("qa question_answering extractive_qa reading_comprehension mrc".split(), "span"),
    **dict.fromkeys("text_classification sequence_classification classification sentiment sentiment_analysis nli "
                    "entailment paraphrase intent".split(), "classify"),
    **dict.fromkeys("regression sts".split(), "regress"),
    **dict.fromkeys("multiple_choice mcq".split(), "choice"),
    "openai_gpt": "gpt.gpt1",
    "gpt2": "gpt.gpt2_124m",
    "gpt2_medium": "gpt.gpt2_355m",
    "gpt2_large": "gpt.gpt2_774m",
    "gpt2_xl": "gpt.gpt2_1558m",
    "bert.base_multilingual_cased": "bert.multilingual",
}  # fmt: skip
"""Other libraries' names of kinds of task and of recipes → their names here."""


def _usual_name(name: str) -> str:
    """Returns our name of a task or a recipe of another library: bert-base-uncased → bert.base."""
    name = re.sub(r"^(bert|gpt|elmo)_", r"\1.", name.lower().replace("-", "_"))
    return _OTHER_NAMES.get(name, name.removesuffix("_uncased"))


def _functions(module: str) -> dict[str, Recipe]:
    members = vars(importlib.import_module(f"{__name__}.{module}"))
    return {
        name: value
        for name, value in members.items()
        if inspect.isfunction(value) and value.__module__ == members["__name__"] and name[0] != "_"
    }
