"""What the methods of a model that stays loaded take: texts, layers, how tokens are sampled."""

from collections.abc import Sequence
from typing import Any

from contexture.data.errors import DataError
from contexture.data.inputs import as_list
from contexture.models.config import Sampling

Layers = str | int | Sequence[int]


def texts_of(given: Any) -> tuple[list[Any], bool]:
    """Returns (the texts, whether one string was given)."""
    return ([given], True) if isinstance(given, str) else (as_list(given, "texts"), False)


def words_of(text: Any, number: int) -> list[str]:
    """Returns the words of a text: as they are given, or what stands between white space."""
    words = text.split() if isinstance(text, str) else list(text) if isinstance(text, list | tuple) else None
    if words is None or not all(isinstance(word, str) for word in words):
        raise DataError(f"text {number}: {str(text)[:60]!r} is neither a text nor a list of words")
    return words


def layer_names(layers: Layers, top: int) -> tuple[str, bool]:
    """Returns (the layers as `embed` names them, whether they are one alone)."""
    if isinstance(layers, str):
        return layers, layers not in ("all",) and "," not in layers
    single = isinstance(layers, int)
    numbers = [layers] if isinstance(layers, int) else list(layers)
    if not numbers or not all(isinstance(n, int) and -top - 1 <= n <= top for n in numbers):
        raise DataError(f"layers={layers} are not all, last, or numbers from 0 to {top}, or -1 to {-top - 1}")
    return ",".join(str(n % (top + 1)) for n in numbers), single


def sampling_of(temperature: float, top_k: int, top_p: float, exclusive: bool) -> Sampling:
    """Raises: DataError for options out of range."""
    try:
        return Sampling(temperature, top_k, top_p, exclusive)
    except ValueError as error:
        raise DataError(str(error)) from None
