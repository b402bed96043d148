"""Compiled programs that the runs of one process share."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np

T = TypeVar("T")
Shapes: TypeAlias = tuple[tuple[int, ...], ...]
"""The shapes of a batch's arrays, in the order of their names."""


def shapes_of(batch: Mapping[str, jax.Array | np.ndarray]) -> Shapes:
    """Returns the shapes that a batch's program is compiled for."""
    return tuple(batch[name].shape for name in sorted(batch))


class Programs:
    """Jitted functions that the runs of one process share, by all that they were traced from."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns what `make` returned for this key the first time."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]
