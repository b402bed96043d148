"""Reads a new checkpoint back from the disk before older ones are removed."""

import contextlib
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from contexture.models.shapes import by_path, path_of
from contexture.train.checkpoints import orbax_s3
from contexture.train.checkpoints.digests import host_digest
from contexture.train.errors import CheckpointError

_BYTES, _ARRAYS = 64 << 20, 8
"""Limits of a sample, in bytes and in arrays, since opening a small array takes as long as reading it."""


def read_back(directory: Path, whole: bool = False, state: str = "") -> None:
    """Compares a checkpoint on disk with its own digests: the names and shapes of all arrays, the values of a sample.

    The order of the arrays changes with the folder's name: over the checkpoints of a run each gets its turn.

    Args:
        directory: the checkpoint, which may have a temporary name still.
        whole: whether to compare the values of all arrays.
        state: where the arrays are, if not in the folder: an address of a bucket.

    Raises:
        CheckpointError: when an array is missing or differs.
        Exception: of many kinds, when Orbax cannot read the checkpoint.
    """
    digest = json.loads((directory / "digest" / "metadata").read_text("utf-8"))["arrays"]
    shapes = json.loads((directory / "meta" / "metadata").read_text("utf-8"))["shapes"]
    arrays_at = orbax_s3.place(state or directory / "state")
    # Not by a Checkpointer: this runs inside the write of one, in the thread of Orbax.
    with contextlib.closing(ocp.PyTreeCheckpointHandler()) as reader:
        tree = reader.metadata(arrays_at).tree
        # Names and shapes of everything are cheap: they come from the metadata. Values cost a read of the disk.
        arrays = by_path(tree)
        for name in sorted(arrays.keys() | shapes.keys()):
            written = list(arrays[name].shape) if name in arrays else None
            if written != shapes.get(name):
                raise CheckpointError(f"array {name}: its shape is {written}, not {shapes.get(name)}")
        # Bytes by name, to group arrays to what is read at once.
        sizes = {name: math.prod(x.shape) * x.dtype.itemsize for name, x in arrays.items()}
        # The first group is the sample; with `whole` all groups follow, each as much as fits in memory at once.
        for names in _groups(directory.name, sizes, len(sizes) if whole else _ARRAYS):
            restored = read_arrays(reader, arrays_at, tree, names)
            for name in names:
                # On the host: the devices are training the next steps meanwhile.
                if host_digest(np.asarray(restored[name])) != digest[name]:
                    raise CheckpointError(f"array {name}: its values do not match their digest")
            if not whole:
                return


def read_arrays(
    reader: ocp.PyTreeCheckpointHandler, state: epath.Path, tree: object, names: set[str]
) -> dict[str, Any]:
    """Returns the arrays of these names as NumPy arrays. tree: the metadata of all arrays."""
    # A placeholder tells Orbax to leave an array on the disk.
    part = jax.tree_util.tree_map_with_path(lambda path, x: x if path_of(path) in names else ocp.PLACEHOLDER, tree)
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), part)
    return by_path(reader.restore(state, args=ocp.args.PyTreeRestore(part, restore_args=as_numpy)))


def _groups(seed: str, sizes: dict[str, int], most: int) -> Iterator[set[str]]:
    """Yields the names in random order, in groups of at most _BYTES bytes and `most` arrays, or of one large array."""
    names = sorted(sizes)
    # Seeded by the folder's name, which holds the step: the next checkpoint has another sample.
    random.Random(seed).shuffle(names)
    group: set[str] = set()
    for name in names:
        if group and (len(group) == most or sum(map(sizes.__getitem__, group)) + sizes[name] > _BYTES):
            yield group
            group = set()
        group.add(name)
    yield group
