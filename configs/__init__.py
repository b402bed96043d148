"""Recipes: functions that give a whole Run. Their docstrings say the command, the paper's section, what to expect."""

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

from contexture.data.errors import did_you_mean
from contexture.models.config import HeadConfig
from contexture.train.config import Run
from contexture.train.errors import ConfigError
from contexture.train.options import OptimConfig

Recipe = Callable[[], Run]
_TASKS = "tasks"


def recipes() -> dict[str, Recipe]:
    """Every recipe of a pretraining: {"bert.tiny": <function>, …}, smallest first as they stand in their files."""
    modules = (module.name for module in pkgutil.iter_modules(__path__) if module.name != _TASKS)
    return {f"{module}.{name}": function for module in modules for name, function in _functions(module).items()}


def task_recipes() -> dict[str, Recipe]:
    """Every recipe of a fine-tuning: {"classify": <function>, …, "sst2": <function>}; the kinds of task come first."""
    return _functions(_TASKS)


def recipe(name: str) -> Run:
    """The run of a pretraining recipe. Raises ConfigError where there is none of that name."""
    return _find(name, recipes(), "recipe")


def task(name: str) -> Run:
    """The run of a fine-tuning recipe. Raises ConfigError where there is none of that name."""
    return _find(name, task_recipes(), "task")


def as_gpt(run: Run, pieces: int) -> Run:
    """A fine-tuning as GPT-1 has it (Radford et al. 2018, section 4.1): its optimizer, 6.25e-5, a warm-up over 0.2 % of
    the steps, and beside the task's loss half of that of the words; the token table grows to hold `pieces` rows."""
    optim = OptimConfig(
        name="gpt1", schedule="gpt1", peak_lr=6.25e-5, warmup=0, warmup_fraction=0.002, eps=1e-8, weight_decay=0.01
    )
    return dataclasses.replace(
        run,
        model=dataclasses.replace(run.model, vocab=max(run.model.vocab, pieces)),
        optim=optim,
        task=dataclasses.replace(run.task, lm_weight=0.5),
        init=dataclasses.replace(run.init, grow=True),
    )


def as_elmo(run: Run, inherited: dict[str, Any], *, scratch: bool) -> Run:
    """A fine-tuning as ELMo's users have it (Peters et al. 2018): the biLM frozen and without dropout, a mix of its
    layers into a biLSTM of the task's own, Adam at 1e-3. inherited: the model, data and head of
    the source run; a head that mixes stays. scratch: the biLM, which has learned nothing, is trained too."""
    optim = OptimConfig(
        name="adamw", schedule="linear", peak_lr=1e-3, warmup=0, final_lr=0.1, eps=1e-8, weight_decay=0.0, clip=5.0,
        frozen=() if scratch else ("backbone",),
    )  # fmt: skip
    data = dataclasses.replace(inherited["data"], vocabulary="words", word_types=512)
    model = inherited["model"] if scratch else dataclasses.replace(inherited["model"], dropout=0.0)
    head = HeadConfig(mix="all", cells=128) if inherited["head"].mix == "off" else inherited["head"]
    return dataclasses.replace(
        run, **{**inherited, "model": model, "data": data, "head": head}, optim=optim, epochs=10.0
    )


def _find(name: str, known: dict[str, Recipe], what: str) -> Run:
    if name not in known:
        raise ConfigError(f"there is no {what} {name!r}{did_you_mean(name, known)}; `contexture recipes` lists them")
    return known[name]()


def _functions(module: str) -> dict[str, Recipe]:
    found = vars(importlib.import_module(f"{__name__}.{module}"))
    return {
        name: value
        for name, value in found.items()
        if inspect.isfunction(value) and value.__module__ == found["__name__"] and name[0] != "_"
    }
