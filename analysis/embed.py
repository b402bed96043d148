"""The vectors that a model gives the words of a text, written to a file."""

import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from data.encode import chunks
from data.errors import DataError
from data.layouts import elmo_lines
from data.words import word_tokenizer
from models.config import ElmoConfig
from models.model import Model, build

POOLS = ("none", "mean", "last")
Write = Callable[[str, np.ndarray], None]


def embed(
    model: Model,
    params: Any,
    tokenizer: Any,
    lines: Iterable[list[str]],
    *,
    layers: str = "all",
    pool: str = "none",
    batch: int = 64,
    stateful: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Iterator[np.ndarray]:
    """The vectors of each line of words, in order: f32 [layers, words, D], the words' own layer first.

    layers: all, last (no first dim then), or their numbers, `0,2`. pool: none, or the mean or the last of the words (no
    dim of words then). stateful: line n goes on from where line n - batch stopped, as in the original.

    Raises: DataError for a model that is no ELMo, layers that it has not, a pool that is not known.
    """
    config = getattr(model.backbone, "config", None)
    if not isinstance(config, ElmoConfig):
        raise DataError("embed reads the words of an ELMo, this run is of another family; give one of an elmo recipe")
    if pool not in POOLS:
        raise DataError(f"pool={pool} is not one of {', '.join(POOLS)}")
    if batch < 1:
        raise DataError(f"batch={batch} is not a positive number of lines")
    chosen = _chosen(layers, config.layers)
    word_tokenizer(tokenizer)
    run = jax.jit(partial(_states, build(replace(config, stateful=stateful)), tuple(chosen)))
    carry: Any = {}
    for group in chunks(lines, batch):
        check()
        arrays, carry = run({"backbone": params["backbone"]}, elmo_lines(group, batch), carry)
        states = np.asarray(jax.device_get(arrays), np.float32)
        for row, words in enumerate(group):
            vectors = states[:, row, : len(words)]
            if pool != "none":
                vectors = _pooled(vectors, pool)
            yield vectors[0] if layers == "last" else vectors


def _states(model: Model, chosen: tuple[int, ...], params: Any, batch: Any, carry: Any) -> tuple[Any, Any]:
    outputs, left = model.apply({"params": params, "carry": carry}, batch, states=True, mutable=["carry"])
    states: Any = outputs
    return jax.numpy.stack([states.encoding.states[n] for n in chosen]), left.get("carry", {})


def _pooled(vectors: np.ndarray, pool: str) -> np.ndarray:
    if not vectors.shape[1]:
        return np.zeros((len(vectors), vectors.shape[2]), np.float32)
    return vectors.mean(1) if pool == "mean" else vectors[:, -1]


def _chosen(layers: str, top: int) -> list[int]:
    if layers in ("all", "last"):
        return list(range(top + 1)) if layers == "all" else [top]
    words = layers.split(",")
    if not all(word.isascii() and word.isdecimal() and int(word) <= top for word in words):
        raise DataError(f"layers={layers} are not all, last, or numbers from 0 to {top} with commas between")
    return [int(word) for word in words]


@contextmanager
def vectors_file(file: Path) -> Iterator[Write]:
    """A file that takes arrays by name, `*.hdf5` (the original's layout: a dataset for each line, by its number from 0)
    or `*.npz`; there whole or not at all. Raises: DataError for another kind of file, or a place that is taken."""
    kind = file.suffix.removeprefix(".")
    if kind not in ("npz", "hdf5", "h5"):
        raise DataError(f"{file}: a file of vectors ends in .hdf5 or .npz; give such a name")
    if file.exists():
        raise DataError(f"{file}: there is such a file already; give another name")
    if not file.parent.is_dir():
        raise DataError(f"{file}: its folder is not there; make it, or give another name")
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        with (_npz if kind == "npz" else _hdf5)(part) as write:
            yield write
        os.replace(part, file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def _hdf5(file: Path) -> Iterator[Write]:
    import h5py

    with h5py.File(file, "w") as opened:

        def write(name: str, array: np.ndarray) -> None:
            opened.create_dataset(name, data=array)

        yield write


@contextmanager
def _npz(file: Path) -> Iterator[Write]:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as opened:

        def write(name: str, array: np.ndarray) -> None:
            with opened.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array)

        yield write
