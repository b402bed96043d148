"""Files of vectors: an array per line for words and tokens, one matrix for sentences.

A file is written while the vectors are computed, in constant memory, and appears complete or not at all.
"""

import json
import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Literal, Protocol

import numpy as np

from contexture.analysis.pooling import Pool
from contexture.analysis.vectors.text_files import tsv_writer, word2vec_writer
from contexture.data.errors import DataError
from contexture.data.storage import atomic_file, check_new_file, hdf5_writer

Of = Literal["sentences", "words", "tokens"]
BY_LINE, MATRIX, TEXT = (".hdf5", ".h5", ".npz"), (".npy", ".parquet", ".safetensors"), (".tsv", ".txt")


class Write(Protocol):
    """Writes the next line: its text, its vectors, and for words or tokens the name of each vector.

    The vectors are [layers, units, D] or [units, D]; for sentences [D] or [layers, D].
    """

    def __call__(self, text: str, array: np.ndarray, names: Sequence[str] = (), /) -> None: ...


_TENSOR = "vectors"
"""The name of the matrix in a *.safetensors, and of the column in a *.parquet."""
_HEADER = 256
"""Bytes kept free at the start of a *.safetensors for its header, which names the number of lines."""
_ROWS = 1024
"""Rows of a *.parquet in one row group."""


def resolve(file: Path, layers: str, pool: str, of: str = "auto", *, overwrite: bool = False) -> tuple[str, Pool, Of]:
    """Returns (layers, pool, of) for a file, with defaults in place of `auto`.

    Defaults are, for a matrix and a *.tsv, the mean of the words in the last layer; for a *.txt the words in the last
    layer; else the tokens in every layer.

    Args:
        file: the file to write; its suffix says its kind.
        layers: "auto", or layers as in `layer_numbers`.
        pool: "auto", "none", or a pooling of sentences.
        of: "auto", "sentences", "words" or "tokens".
        overwrite: replace an existing file.

    Raises:
        DataError: when the suffix is unknown, the file exists or its folder does not, or this kind of file cannot hold
            such vectors.
    """
    # Checked first: a wrong name is an error before the model is loaded.
    _check_free(file, overwrite)
    suffix = file.suffix
    if of == "auto":
        sentences = suffix in MATRIX or pool not in ("auto", "none") or (suffix == ".tsv" and pool == "auto")
        of = "sentences" if sentences else "words" if suffix == ".txt" else "tokens"
    given = f"of={of}" if pool == "auto" else f"pool={pool}"
    if suffix in MATRIX and (of != "sentences" or pool == "none"):
        raise DataError(f"{file}: {given} gives several vectors for each line; give --to *.hdf5, *.npz, *.tsv or *.txt")
    if suffix in BY_LINE and of == "sentences":
        raise DataError(
            f"{file}: {given} gives a vector for each line; give --to *.npy, *.parquet, *.safetensors or *.tsv"
        )
    if suffix == ".txt" and of == "sentences":
        raise DataError(
            f"{file}: {given} gives vectors of sentences, and word2vec's format names a vector by a word, without "
            "spaces; give --of words, or --to *.tsv"
        )
    layers = ("all" if suffix in BY_LINE else "last") if layers == "auto" else layers
    if suffix in (".parquet", ".txt") and (layers == "all" or "," in layers):
        what, other = ("line", "*.npy") if suffix == ".parquet" else ("word", "*.tsv")
        raise DataError(f"{file}: layers={layers} are several vectors for each {what}; give one, or --to {other}")
    pool = ("mean-words" if of == "sentences" else "none") if pool == "auto" else pool
    return layers, pool, of  # pyright: ignore[reportReturnType]  # the request has checked `of`


def _check_free(file: Path, overwrite: bool) -> None:
    if file.suffix not in BY_LINE + MATRIX + TEXT:
        raise DataError(
            f"{file}: not a file of vectors; give *.npy, *.parquet or *.safetensors for a matrix of sentence vectors, "
            "*.hdf5 or *.npz for an array of word vectors by line, *.tsv or *.txt for text"
        )
    check_new_file(file, overwrite)
    if not file.parent.is_dir():
        raise DataError(f"{file}: its folder is not there; make it, or give another name")


@contextmanager
def vectors_file(file: Path, of: Of, layers: str) -> Iterator[Write]:
    """Opens a file of vectors, whose suffix says its kind. `resolve` checks name and options.

    *.hdf5         a dataset for each line, by its number from 0: the original ELMo's layout. Its attribute `words` or
                   `tokens` has the name of each row
    *.npz          an array for each line, likewise, and the names as `words/0` or `tokens/0`
    *.npy          f32 [lines, D], or [lines, layers, D] of several layers
    *.safetensors  the same, as the tensor `vectors`
    *.parquet      columns `text` and `vectors` (a list of D numbers), a row for each line
    *.tsv          a row for each vector: line, name, layer where there are several, numbers
    *.txt          word2vec's text format: `count D`, then a row for each vector: name, numbers
    """
    kinds = {
        ".hdf5": partial(_hdf5, of=of),
        ".h5": partial(_hdf5, of=of),
        ".npz": partial(_npz, of=of),
        ".npy": _npy,
        ".safetensors": _safetensors,
        ".tsv": partial(tsv_writer, of=of, layers=layers),
        ".txt": word2vec_writer,
    }
    with atomic_file(file) as part, kinds.get(file.suffix, _parquet)(part) as write:
        yield write


@contextmanager
def _hdf5(file: Path, of: Of) -> Iterator[Write]:
    with hdf5_writer(file) as write_dataset:
        lines = 0

        def write(text: str, array: np.ndarray, names: Sequence[str] = ()) -> None:
            nonlocal lines
            write_dataset(str(lines), array, {of: names})
            lines += 1

        yield write


@contextmanager
def _npz(file: Path, of: Of) -> Iterator[Write]:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as opened:
        lines = 0

        def write(text: str, array: np.ndarray, names: Sequence[str] = ()) -> None:
            nonlocal lines
            for member, content in ((f"{lines}", array), (f"{of}/{lines}", np.array(names, np.str_))):
                # force_zip64: an array may exceed 4 GiB, which is not known when its header is written.
                with opened.open(f"{member}.npy", "w", force_zip64=True) as place:
                    np.lib.format.write_array(place, content)
            lines += 1

        yield write


@contextmanager
def _matrix(file: Path, write_header: Callable[[IO[bytes], tuple[int, ...]], None]) -> Iterator[Write]:
    """Writes rows behind a header.

    The header is written twice, since the shape is known only after the last row; both must have the same length.
    """
    with open(file, "wb") as opened:
        shape: tuple[int, ...] = (0, 0)
        write_header(opened, shape)

        def write(text: str, array: np.ndarray, names: Sequence[str] = ()) -> None:
            nonlocal shape
            shape = (shape[0] + 1, *array.shape)
            opened.write(np.ascontiguousarray(array, "<f4").tobytes())

        yield write
        opened.seek(0)
        write_header(opened, shape)


def _npy(file: Path) -> AbstractContextManager[Write]:
    # numpy leaves room in its header for a first axis of any length, and pads to 128 bytes, which hold three dims.
    def write_header(opened: IO[bytes], shape: tuple[int, ...]) -> None:
        np.lib.format.write_array_header_1_0(opened, {"descr": "<f4", "fortran_order": False, "shape": shape})

    return _matrix(file, write_header)


def _safetensors(file: Path) -> AbstractContextManager[Write]:
    def write_header(opened: IO[bytes], shape: tuple[int, ...]) -> None:
        size = math.prod(shape) * 4
        tensor = {"dtype": "F32", "shape": list(shape), "data_offsets": [0, size]}
        header = json.dumps({_TENSOR: tensor}).encode().ljust(_HEADER)
        opened.write(len(header).to_bytes(8, "little") + header)

    return _matrix(file, write_header)


@contextmanager
def _parquet(file: Path) -> Iterator[Write]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts: list[str] = []
    vectors: list[np.ndarray] = []
    writer: pq.ParquetWriter | None = None

    def flush(width: int) -> None:
        nonlocal writer
        flat = np.concatenate(vectors) if vectors else np.empty(0, np.float32)
        column = pa.FixedSizeListArray.from_arrays(pa.array(flat, pa.float32()), width)
        table = pa.table({"text": pa.array(texts, pa.string()), _TENSOR: column})
        writer = writer or pq.ParquetWriter(opened, table.schema)
        writer.write_table(table)
        texts.clear()
        vectors.clear()

    def write(text: str, array: np.ndarray, names: Sequence[str] = ()) -> None:
        texts.append(text)
        vectors.append(array.astype(np.float32).reshape(-1))  # layers=2 gives [1, D]
        if len(texts) == _ROWS:
            flush(len(vectors[0]))

    # Opened before the first row is there, so that a full disk is an error before the model has worked.
    with open(file, "wb") as opened:
        try:
            yield write
            if texts or writer is None:
                flush(len(vectors[0]) if vectors else 1)
        finally:
            if writer is not None:
                writer.close()
