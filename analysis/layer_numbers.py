"""Layers by their names and numbers, as options and arguments give them. Needs no jax."""

from collections.abc import Sequence
from typing import TypeAlias

from contexture.data.errors import DataError

Layers: TypeAlias = str | int | Sequence[int]


def layer_numbers(layers: Layers, top: int, words: Sequence[str] = ("all", "last")) -> tuple[int, ...]:
    """Returns the numbers of layers in the order given: `"0,2"` → (0, 2), `-1` → (top,).

    Args:
        layers: a word, a number, or several numbers; 0 is the context-free layer, -1 the last.
        top: the number of the last layer.
        words: the words that may be given: "last" is the last layer, any other word means all layers.

    Raises:
        DataError: when the model lacks a layer.
    """
    if isinstance(layers, str):
        if layers in words:
            return (top,) if layers == "last" else tuple(range(top + 1))
        parts = layers.split(",")
        if not all(part.isascii() and part.isdecimal() and int(part) <= top for part in parts):
            raise DataError(
                f"layers={layers} are not {', '.join(words)}, or numbers from 0 to {top} with commas between"
            )
        return tuple(map(int, parts))
    numbers = [layers] if isinstance(layers, int) else list(layers)
    if not numbers or not all(isinstance(n, int) and -top - 1 <= n <= top for n in numbers):
        raise DataError(f"layers={layers} are not {', '.join(words)}, or numbers from 0 to {top}, or -1 to {-top - 1}")
    return tuple(n % (top + 1) for n in numbers)


def is_single(layers: Layers) -> bool:
    """Returns whether one layer alone is named, so that its vectors need no dim of layers."""
    return layers != "all" and "," not in layers if isinstance(layers, str) else isinstance(layers, int)
