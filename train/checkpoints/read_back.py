"""Reads a checkpoint back from the disk, before those before it are given up."""

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
from contexture.train.checkpoints.digests import host_digest
from contexture.train.errors import CheckpointError

_BYTES, _ARRAYS = 64 << 20, 8
"""The size of a sample: so many bytes, and so many arrays, since opening a small one takes as long as reading it."""


def read_back(directory: Path, whole: bool = False) -> None:
    """Compares a checkpoint on disk with its own digests: the names and shapes of all arrays, the values of a sample.

    The order of the arrays changes with the folder's name: over the checkpoints of a run each gets its turn. whole: the
    values of all arrays.

    Raises: CheckpointError for an array that is missing or differs, Exception of many kinds for what Orbax cannot read.
    """
    digest = json.loads((directory / "digest" / "metadata").read_text("utf-8"))["arrays"]
    shapes = json.loads((directory / "meta" / "metadata").read_text("utf-8"))["shapes"]
    state = epath.Path(directory / "state")
    with contextlib.closing(ocp.PyTreeCheckpointHandler()) as reader:
        tree = reader.metadata(state).tree
        arrays = by_path(tree)
        for name in sorted(arrays.keys() | shapes.keys()):
            written = list(arrays[name].shape) if name in arrays else None
            if written != shapes.get(name):
                raise CheckpointError(f"array {name}: its shape is {written}, not {shapes.get(name)}")
        sizes = {name: math.prod(x.shape) * x.dtype.itemsize for name, x in arrays.items()}
        for names in _groups(directory.name, sizes, len(sizes) if whole else _ARRAYS):
            restored = read_arrays(reader, state, tree, names)
            for name in names:
                if host_digest(np.asarray(restored[name])) != digest[name]:
                    raise CheckpointError(f"array {name}: its values do not match their digest")
            if not whole:
                return


def read_arrays(
    reader: ocp.PyTreeCheckpointHandler, state: epath.Path, tree: object, names: set[str]
) -> dict[str, Any]:
    """Returns the arrays of these names as NumPy's. tree: what is known of all of them."""
    part = jax.tree_util.tree_map_with_path(lambda path, x: x if path_of(path) in names else ocp.PLACEHOLDER, tree)
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), part)
    return by_path(reader.restore(state, args=ocp.args.PyTreeRestore(part, restore_args=as_numpy)))


def _groups(seed: str, sizes: dict[str, int], most: int) -> Iterator[set[str]]:
    """Yields the names in an order of chance, in groups of at most _BYTES bytes and `most` arrays, or of one array."""
    names = sorted(sizes)
    random.Random(seed).shuffle(names)
    group: set[str] = set()
    for name in names:
        if group and (len(group) == most or sum(map(sizes.__getitem__, group)) + sizes[name] > _BYTES):
            yield group
            group = set()
        group.add(name)
    yield group
