"""Checkpoints of parameters alone, written one array at a time: the whole model is never in memory."""

import asyncio
import errno
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import type_handlers

from contexture.models.shapes import by_path, nested
from contexture.train.checkpoints.digests import host_digest
from contexture.train.checkpoints.late_evaluation import text_digest
from contexture.train.checkpoints.meta import FORMAT, Meta, write_failure
from contexture.train.checkpoints.orbax_logging import orbax_silenced

Array = np.ndarray
_CHUNK_BYTES = 16 << 20
"""Size of the pieces that an array is stored in: later, a device reads little more than its own part."""


@dataclass(frozen=True)
class Leaf:
    """An array that is made only when it is written. Orbax plans the file from its shape and dtype."""

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
    """Writes leaves as numpy arrays, each before the next is made.

    Orbax starts one coroutine for each array. The semaphore lets one of them at a time make its array.
    """

    def __init__(self) -> None:
        # No copy: the array belongs to nobody else, and a copy would double the memory.
        super().__init__(deepcopy_host_arrays=False)
        self._turn = asyncio.Semaphore(1)
        self.failed: list[BaseException] = []
        self.not_made: list[BaseException] = []

    async def _open_and_write(self, value: Any, tspec: dict[str, Any], ts_context: Any) -> None:
        # One array is in memory at a time: the next coroutine waits until this one is written.
        async with self._turn:
            # After a failure the other coroutines end at once: making further arrays may take minutes.
            if not self.failed:
                try:
                    array = value.make()
                except BaseException as error:
                    self.failed.append(error)
                    self.not_made.append(error)
                    raise
                try:
                    await super()._open_and_write(array, tspec, ts_context)
                except BaseException as error:
                    # Orbax would replace the error by its own; and no further array needs to be made.
                    self.failed.append(error)
                    raise


def write_first(run: Path, leaves: Mapping[str, Leaf], seed: int) -> None:
    """Writes checkpoints/0 of a new run: parameters by their paths, and no optimizer.

    Raises OSError, and the errors of making a leaf.
    """
    meta = {"format": FORMAT, "step": 0, "identity": "", "held_out_loss": None, "seed": seed, "lines_read": 0}
    write_checkpoint(run / "checkpoints" / "0", {f"params/{path}": leaf for path, leaf in leaves.items()}, meta)


def write_checkpoint(step: Path, leaves: Mapping[str, Leaf], meta: Meta) -> None:
    """Writes the folder of a checkpoint: arrays by their paths, and its meta with their shapes.

    Raises OSError, and the errors of making a leaf.
    """
    # Digests are taken from each array while it is in memory, before it goes through the disk.
    words: dict[str, int] = {}

    def made(path: str, leaf: Leaf) -> Leaf:
        def make() -> Array:
            array = leaf.make()
            words[path] = host_digest(array)
            return array

        return Leaf(leaf.shape, make, leaf.dtype)

    # The largest first: what fits with it in memory fits with all others.
    ordered = dict(sorted(leaves.items(), key=lambda item: -item[1].nbytes))
    tree = nested({path: made(path, leaf) for path, leaf in ordered.items()})
    by_name = by_path(tree)
    handler = _OneByOne()
    # Orbax sees Leaf as a type of array of its own, and hands each one to the handler.
    registry = type_handlers.create_type_handler_registry((Leaf, handler))
    chunked = nested({path: ocp.SaveArgs(chunk_byte_size=_CHUNK_BYTES) for path in by_name})
    try:
        with orbax_silenced(), ocp.Checkpointer(ocp.PyTreeCheckpointHandler(type_handler_registry=registry)) as writer:
            writer.save((step / "state").absolute(), args=ocp.args.PyTreeSave(tree, save_args=chunked))
    except BaseException as error:
        # The error of making an array (a damaged published file) is the user's; Orbax's own wrapper would hide it.
        if handler.not_made:
            raise handler.not_made[0] from None
        if isinstance(error, Exception) and not isinstance(error, OSError):  # of many kinds, where Orbax cannot write
            raise OSError(errno.EIO, write_failure(handler.failed[0] if handler.failed else error), str(step)) from None
        raise
    # The items of train.checkpoints.manager, in the order of their digests: arrays, meta, digest.
    meta = {**meta, "shapes": {path: list(leaf.shape) for path, leaf in by_name.items()}}
    digest: dict[str, object] = {"arrays": words, "meta": text_digest(meta)}
    digest["self"] = text_digest(digest)
    # As Orbax's JsonSave lays them out: a folder for each item, with a file `metadata`.
    for name, item in (("meta", meta), ("digest", digest)):
        (step / name).mkdir()
        (step / name / "metadata").write_text(json.dumps(item), "utf-8")
