"""Compiled programs that all of one process shares."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np

T = TypeVar("T")
Shapes: TypeAlias = tuple[tuple[int, ...], ...]
"""The shapes of a batch's arrays, in the order of their names."""

MOST = 16
"""So many functions are kept, with their programs: those of about five runs that differ in more than rate and seed."""
_kept: OrderedDict[Hashable, Any] = OrderedDict()
_lock = threading.Lock()


def shapes_of(batch: Mapping[str, jax.Array | np.ndarray]) -> Shapes:
    """Returns the shapes that a batch's program is compiled for."""
    return tuple(batch[name].shape for name in sorted(batch))


def shared(key: Hashable, make: Callable[[], T]) -> T:
    """Returns what `make` returned for this key, which names all that its jitted functions are traced from.

    The second training of a notebook, the runs of a grid and the checkpoints of an evaluation are traced and compiled
    once. Of more than `MOST` keys the one that was longest without use is dropped.
    """
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    made = make()
    with _lock:
        _kept[key] = made
        if len(_kept) > MOST:
            _kept.popitem(last=False)
    return made


def forget() -> None:
    """Drops all that is kept."""
    with _lock:
        _kept.clear()
