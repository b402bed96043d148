"""Files of vectors: of words and tokens an array for each line, of sentences one matrix. Each is written as the vectors
come, in constant memory, and comes into being whole or not at all."""

import json
import math
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from contexture.data.errors import DataError
from contexture.data.storage import atomic_file, hdf5_writer

BY_LINE, MATRIX = (".hdf5", ".h5", ".npz"), (".npy", ".parquet", ".safetensors")
Write = Callable[[str, np.ndarray], None]
"""Takes the next line's text and its vectors: [layers, units, D] or [units, D] by line, [D] or [layers, D] of a
matrix."""
_TENSOR = "vectors"
"""The name of the matrix in a *.safetensors, and of the column in a *.parquet."""
_HEADER = 256
"""Bytes kept free at the start of a *.safetensors for its header, which names the number of lines."""
_ROWS = 1024
"""Rows of a *.parquet that are written together."""


def resolve(file: Path, layers: str, pool: str) -> tuple[str, str]:
    """Returns (layers, pool) for a file, where `auto` is what its kind holds: in a matrix the mean of the words in the
    last layer, by line the vectors of every layer.

    Raises: DataError for another kind of file, one that exists, a folder that does not, and vectors that the kind does
    not hold.
    """
    if file.suffix not in BY_LINE + MATRIX:
        raise DataError(
            f"{file}: not a file of vectors; give *.npy, *.parquet or *.safetensors for a matrix of sentence vectors, "
            "*.hdf5 or *.npz for an array of word vectors by line"
        )
    if file.exists():
        raise DataError(f"{file}: there is such a file already; give another name")
    if not file.parent.is_dir():
        raise DataError(f"{file}: its folder is not there; make it, or give another name")
    matrix = file.suffix in MATRIX
    layers = ("last" if matrix else "all") if layers == "auto" else layers
    pool = ("mean-words" if matrix else "none") if pool == "auto" else pool
    if matrix and pool == "none":
        raise DataError(f"{file}: pool=none gives vectors by line; give --to *.hdf5 or *.npz, or --pool mean-words")
    if not matrix and pool != "none":
        raise DataError(
            f"{file}: pool={pool} gives a vector for each line; give --to *.npy, *.parquet or *.safetensors"
        )
    if file.suffix == ".parquet" and (layers == "all" or "," in layers):
        raise DataError(f"{file}: layers={layers} are several vectors for each line; give one, or --to *.npy")
    return layers, pool


@contextmanager
def vectors_file(file: Path) -> Iterator[Write]:
    """Opens a file of vectors, of a kind by its name.

    *.hdf5         a dataset for each line, by its number from 0: the original ELMo's layout
    *.npz          an array for each line, likewise
    *.npy          f32 [lines, D], or [lines, layers, D] of several layers
    *.safetensors  the same, as the tensor `vectors`
    *.parquet      columns `text` and `vectors` (a list of D numbers), a row for each line

    `resolve` checks the name.
    """
    kinds = {".hdf5": _hdf5, ".h5": _hdf5, ".npz": _npz, ".npy": _npy, ".safetensors": _safetensors}
    with atomic_file(file) as part, kinds.get(file.suffix, _parquet)(part) as write:
        yield write


@contextmanager
def _hdf5(file: Path) -> Iterator[Write]:
    with hdf5_writer(file) as write_dataset:
        lines = 0

        def write(text: str, array: np.ndarray) -> None:
            nonlocal lines
            write_dataset(str(lines), array)
            lines += 1

        yield write


@contextmanager
def _npz(file: Path) -> Iterator[Write]:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as opened:
        lines = 0

        def write(text: str, array: np.ndarray) -> None:
            nonlocal lines
            with opened.open(f"{lines}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array)
            lines += 1

        yield write


@contextmanager
def _matrix(file: Path, write_header: Callable[[IO[bytes], tuple[int, ...]], None]) -> Iterator[Write]:
    """Writes rows behind a header. The header is written twice, since the last row decides its shape; it must be of the
    same length both times."""
    with open(file, "wb") as opened:
        shape: tuple[int, ...] = (0, 0)
        write_header(opened, shape)

        def write(text: str, array: np.ndarray) -> None:
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

    def write(text: str, array: np.ndarray) -> None:
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
