"""What the methods of a model that stays loaded take: texts, layers, how tokens are sampled."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from contexture.data.errors import DataError, did_you_mean
from contexture.data.inputs import as_list

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)
T = TypeVar("T")
_OTHER_NAMES = {
    "pool": "pooling pooling_mode pooling_strategy pool_mode",
    "batch": "batch_size bs",
    "top": "top_k topk k n",
    "tokens": "max_new_tokens max_tokens max_length num_tokens",
    "temperature": "temp",
    "layers": "layer hidden_layers",
    "stop": "stop_sequences stop_strings stop_words",
    "texts": "sentences text inputs input",
    "prompts": "prompt texts text inputs",
    "train": "train_dataset train_data train_file train_set",
    "dev": "eval_dataset validation valid dev_dataset validation_data eval_data",
    "test": "test_dataset test_data",
    "dir": "output_dir out_dir output to",
    "task": "task_name kind",
    "options": "config settings args kwargs",
    "to": "output_dir out_dir output save_directory path",
    "step": "checkpoint",
    "length": "max_length max_seq_length",
}
"""Arguments → what other libraries call them."""
_OTHER_METHODS = {
    "encode": "embed(texts) gives vectors, tokenizer.encode(texts) the ids of tokens",
    "decode": "tokenizer.decode(ids) gives text",
    "tokenize": "tokenizer.encode(texts) gives the ids of tokens",
    "forward": "model.apply({'params': params}, batch) runs the network",
    "fill_mask": "fill(text) predicts what stands at [MASK]",
    "perplexity": "score(texts) measures it",
    "train": "finetune(task, train=…, dir=…) trains a new run from this one",
    "fit": "finetune(task, train=…, dir=…) trains a new run from this one",
}
"""Methods that other libraries have → what does that here."""


def with_hints(function: F) -> F:
    """Wraps a function so that an unknown argument's error names the argument that was probably meant."""
    names = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
        for name in given.keys() - set(names):
            same = [own for own in names if name in _OTHER_NAMES.get(own, "").split()]
            hint = f" (did you mean {same[0]}?)" if same else did_you_mean(name, names)
            raise TypeError(f"{function.__name__} has no argument {name!r}{hint}; it has {', '.join(names)}")
        return function(*args, **given)

    return checked  # pyright: ignore[reportReturnType]


def with_method_hints(kind: C) -> C:
    """Adds hints to a class: for unknown arguments of its methods, and for names of methods of other libraries."""
    for name, method in vars(kind).copy().items():
        takes_any = (
            any(p.kind is p.VAR_KEYWORD for p in inspect.signature(method).parameters.values())
            if (inspect.isfunction(method))
            else True
        )
        if not name.startswith("_") and not takes_any:
            setattr(kind, name, with_hints(method))

    def missing(self: object, name: str) -> Any:
        known = [each for each in dir(kind) if not each.startswith("_")]
        hint = f"; {_OTHER_METHODS[name]}" if name in _OTHER_METHODS else did_you_mean(name, known)
        raise AttributeError(f"{kind.__name__} has no attribute {name!r}{hint}", name=name, obj=self)

    kind.__getattr__ = missing  # pyright: ignore[reportAttributeAccessIssue]
    return kind


def texts_of(given: Any) -> tuple[list[Any], bool]:
    """Returns (the texts, whether one string was given)."""
    return ([given], True) if isinstance(given, str) else (as_list(given, "texts"), False)


def words_of(text: Any, number: int) -> list[str]:
    """Returns the words of a text: a list as it was given, a string split at white space."""
    words = text.split() if isinstance(text, str) else list(text) if isinstance(text, list | tuple) else None
    if words is None or not all(isinstance(word, str) for word in words):
        raise DataError(f"text {number}: {str(text)[:60]!r} is neither a text nor a list of words")
    return words


def options_of(kind: Callable[..., T], **given: Any) -> T:
    """Returns an options object; a value out of range is a DataError, as for all that a caller passes in Python."""
    try:
        return kind(**given)
    except ValueError as error:
        raise DataError(str(error)) from None
