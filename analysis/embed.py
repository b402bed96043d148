"""The vectors that a model gives the words or pieces of a text, written to a file."""

import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.layouts import elmo_lines, token_lines
from contexture.data.storage import atomic_file
from contexture.data.tasks.encode_examples import check_batch, chunks
from contexture.data.tokenizers.elmo_char_ids import are_cut
from contexture.data.tokenizers.word_level import word_tokenizer
from contexture.data.tokenizers.wordpiece import wordpiece
from contexture.models.config import BertConfig, ElmoConfig
from contexture.models.model import Model, build

POOLS = ("none", "mean", "mean-words", "last", "cls")
Units = list[Any]
"""What a line is made of: an ELMo's words, or the ids of pieces."""
Write = Callable[[str, np.ndarray], None]


def parted(model: Model, tokenizer: Any) -> Callable[[str], tuple[Units, int, int]]:
    """How a line is read: its words, or its pieces, of which as many as the model takes, with a BERT's [CLS] before and
    [SEP] behind; how many are its own, without those two; and how many more are not read, or not to their ends."""
    config: Any = model.backbone.config  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(config, ElmoConfig):
        split = word_tokenizer(tokenizer).words

        def words(line: str) -> tuple[Units, int, int]:
            found = split(line)
            return found, len(found), int(are_cut(found).sum())

        return words
    ends = (wordpiece(tokenizer).cls, wordpiece(tokenizer).sep) if isinstance(config, BertConfig) else ()
    room = config.length - len(ends)

    def pieces(line: str) -> tuple[Units, int, int]:
        (ids,) = tokenizer.encode([line.rstrip("\r\n")])
        kept = ids[:room]
        return ([ends[0], *kept, ends[1]] if ends else kept), len(kept), len(ids) - len(kept)

    return pieces


def embed(
    model: Model,
    params: Any,
    tokenizer: Any,
    lines: Iterable[Units],
    *,
    layers: str = "all",
    pool: str = "none",
    batch: int = 64,
    stateful: bool = False,
    cancel: CancelToken = NEVER,
) -> Iterator[np.ndarray]:
    """The vectors of each line of words or pieces (`parted`), in order: f32 [layers, words, D], the words' own layer
    first.

    layers: all, last (no first dim then), or their numbers, `0,2`; the last is what the heads read, a GPT-2's after
    the final norm.

    pool: none gives every token that was read, a BERT's [CLS] and [SEP] among them. The others give one vector (no dim
    of words then): mean, of all these tokens; mean-words, of those without [CLS] and [SEP]; last, the last of these;
    cls, a BERT's [CLS]. An ELMo and a GPT have no special tokens, so that mean and mean-words are one there. The mean
    of no tokens is 0.

    stateful: of an ELMo, line n goes on from where line n - batch stopped, as in the original.

    Raises: DataError for layers that the model has not, and options that it does not know.
    """
    config: Any = model.backbone.config  # pyright: ignore[reportAttributeAccessIssue]
    elmo, bert = isinstance(config, ElmoConfig), isinstance(config, BertConfig)
    if pool not in POOLS or (pool == "cls" and not bert):
        raise DataError(f"pool={pool} is not one of {', '.join(POOLS if bert else POOLS[:-1])}")
    if stateful and not elmo:
        raise DataError("stateful is an ELMo's, and this run is of another family; leave it out")
    check_batch(batch)
    chosen = _chosen(layers, config.layers)
    model = build(replace(config, stateful=stateful) if elmo else config)
    run, carry = jax.jit(partial(_states, model, tuple(chosen))), {}
    for group in chunks(lines, batch):
        cancel.check()
        lined = elmo_lines(group, batch) if elmo else token_lines(group, batch, tokenizer.pad, config.length)
        arrays, carry = run({"backbone": params["backbone"]}, lined, carry)
        states = np.asarray(jax.device_get(arrays), np.float32)
        for row, units in enumerate(group):
            vectors = states[:, row, : len(units)]
            if pool == "cls":
                vectors = vectors[:, 0]
            elif pool != "none":
                vectors = _pooled(vectors[:, 1:-1] if bert and pool != "mean" else vectors, pool)
            yield vectors[0] if layers == "last" else vectors


def _states(model: Model, chosen: tuple[int, ...], params: Any, batch: Any, carry: Any) -> tuple[Any, Any]:
    outputs, left = model.apply({"params": params, "carry": carry}, batch, states=True, mutable=["carry"])
    states = outputs.encoding.states  # pyright: ignore[reportAttributeAccessIssue]
    return jax.numpy.stack([states[n] for n in chosen]), left.get("carry", {})


def _pooled(vectors: np.ndarray, pool: str) -> np.ndarray:
    if not vectors.shape[1]:
        return np.zeros((len(vectors), vectors.shape[2]), np.float32)
    return vectors[:, -1] if pool == "last" else vectors.mean(1)


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
    with atomic_file(file) as part, (_npz if kind == "npz" else _hdf5)(part) as write:
        yield write


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
