"""Contexture: pretrain, fine-tune, evaluate and inspect ELMo, GPT and BERT in JAX.

Load, evaluate and query runs in Python:

    load(RUN)        → model, params, tokenizer
    evaluate(RUN)    held-out figures                  predict(RUN, texts)   labels, tags, numbers of texts
    embed(RUN, …)    vectors of words or sentences     score(RUN, files)     perplexity
    fill(RUN, text)  tokens for each [MASK]            generate(RUN, …)      text after a prompt

The networks are in `contexture.models`, text and batches in `contexture.data`, training in `contexture.train`, recipes
in `contexture.configs`. Importing this needs no jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contexture.api import embed, evaluate, fill, generate, load, predict, score

__version__ = "0.1.0"
__all__ = ["embed", "evaluate", "fill", "generate", "load", "predict", "score"]


def __getattr__(name: str) -> Any:
    """The functions of `contexture.api`, which is imported at the first use: every module of ours imports this file."""
    if name in __all__:
        return getattr(importlib.import_module("contexture.api"), name)
    raise AttributeError(f"module 'contexture' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
