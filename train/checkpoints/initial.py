"""The checkpoint that a run begins with where its parameters come from elsewhere: written one array at a time, so that
a model is never in memory whole."""

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import type_handlers

from contexture.models.interchange.renaming import nested
from contexture.models.shapes import by_path
from contexture.train.checkpoints.manager import FORMAT, text_digest
from contexture.train.checkpoints.orbax_logging import quiet_orbax

Array = np.ndarray
_CHUNK_BYTES = 16 << 20
"""What is read at once of an array later, at most: so a device reads little more than its own share."""
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Leaf:
    """A float32 array that is made when it is its turn."""

    shape: tuple[int, ...]
    make: Callable[[], Array]
    dtype: np.dtype[Any] = np.dtype(np.float32)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


class _OneByOne(type_handlers.NumpyHandler):
    """Writes leaves as numpy arrays, each before the next is made."""

    def __init__(self) -> None:
        super().__init__(deepcopy_host_arrays=False)
        self._turn = asyncio.Semaphore(1)
        self.failed: list[BaseException] = []

    async def _open_and_write(self, value: Any, tspec: dict[str, Any], ts_context: Any) -> None:
        async with self._turn:
            if not self.failed:
                try:
                    await super()._open_and_write(value.make(), tspec, ts_context)
                except BaseException as error:
                    self.failed.append(error)
                    raise


def digest(x: Array) -> int:
    """What train.checkpoints.manager gives an array of 4-byte numbers, here on the host."""
    flat = np.ascontiguousarray(x).reshape(-1).view(np.uint32)
    total = 0
    for start in range(0, flat.size, _BLOCK):
        bits = flat[start : start + _BLOCK]
        place = (np.arange(start, start + bits.size, dtype=np.uint64) & 0xFFFFFFFF).astype(np.uint32)
        place = place * np.uint32(2654435761) + np.uint32(1)
        total += int(((bits ^ (bits >> 15)) * (place | 1)).sum(dtype=np.uint64))
    return total & 0xFFFFFFFF


def write_first(run: Path, leaves: Mapping[str, Leaf], seed: int) -> None:
    """Writes checkpoints/0 of a run that is not there yet: parameters by their paths, and no optimizer.

    Raises what making a leaf raises, and OSError.
    """
    quiet_orbax()
    words: dict[str, int] = {}

    def made(path: str, leaf: Leaf) -> Leaf:
        def make() -> Array:
            array = leaf.make()
            words[path] = digest(array)
            return array

        return Leaf(leaf.shape, make)

    ordered = dict(sorted(leaves.items(), key=lambda item: -item[1].nbytes))
    tree = nested({f"params/{path}": made(f"params/{path}", leaf) for path, leaf in ordered.items()})
    there = by_path(tree)
    step = run / "checkpoints" / "0"
    handler = _OneByOne()
    registry = type_handlers.create_type_handler_registry((Leaf, handler))
    chunked = nested({path: ocp.SaveArgs(chunk_byte_size=_CHUNK_BYTES) for path in there})
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(type_handler_registry=registry)) as writer:
            writer.save((step / "state").absolute(), args=ocp.args.PyTreeSave(tree, save_args=chunked))
    except BaseException:
        if handler.failed:
            raise handler.failed[0] from None
        raise
    shapes = {path: list(leaf.shape) for path, leaf in there.items()}
    said = {"format": FORMAT, "step": 0, "identity": "", "held_out_loss": None, "seed": seed, "lines_read": 0}
    meta = {**said, "shapes": shapes}
    words_of: dict[str, Any] = {"arrays": words, "meta": text_digest(meta)}
    words_of["self"] = text_digest(words_of)
    for name, item in (("meta", meta), ("digest", words_of)):
        (step / name).mkdir()
        (step / name / "metadata").write_text(json.dumps(item), "utf-8")
