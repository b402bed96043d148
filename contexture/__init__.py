"""Contexture: pretrain, fine-tune, evaluate and inspect ELMo, GPT and BERT in JAX.

    recipe(NAME, {…})        settings of a run               pretrain(recipe)             train it → its folder
    finetune(RUN, TASK, …)   teach a run a task → a folder   evaluate(RUN)                held-out figures
    open(RUN)                a loaded model: embed, similarity, fill, generate, stream, score, predict
    predict(RUN, texts)      labels, tags, numbers           load(RUN)                    model, params, tokenizer
    import_model(…)          a published model as a run      export_model(…)              a run as others read it

Errors: ConfigError (settings), DataError (text, tables, vocabularies), CheckpointError, Diverged; Interrupted where
training was stopped, with everything saved. Each is one line that says what, where and how to mend it.

The networks are in `contexture.models`, text and batches in `contexture.data`, training in `contexture.train`, recipes
in `contexture.configs`. Importing this needs no jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

from contexture.data.errors import DataError
from contexture.train.errors import CheckpointError, ConfigError, Diverged
from contexture.train.run.signals import Interrupted

if TYPE_CHECKING:
    from contexture.analysis.trained_model import TrainedModel
    from contexture.api import (
        evaluate,
        export_model,
        finetune,
        import_model,
        load,
        open,  # noqa: A004
        predict,
        pretrain,
        recipe,
    )

__version__ = "0.1.0"
_FUNCTIONS = ("evaluate", "export_model", "finetune", "import_model", "load", "open", "predict", "pretrain", "recipe")
__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "Diverged",
    "Interrupted",
    "TrainedModel",
    "evaluate",
    "export_model",
    "finetune",
    "import_model",
    "load",
    "open",
    "predict",
    "pretrain",
    "recipe",
]


def __getattr__(name: str) -> Any:
    """The functions of `contexture.api`, imported at the first use: every module of ours imports this file."""
    if name in _FUNCTIONS:
        return getattr(importlib.import_module("contexture.api"), name)
    if name == "TrainedModel":
        return importlib.import_module("contexture.analysis.trained_model").TrainedModel
    line = f"module 'contexture' has no attribute {name!r}"
    if name == "from_pretrained":
        line += "; import_model('hf', NAME, RUN) makes a run of a published model, and open(RUN) loads it"
    raise AttributeError(line)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
