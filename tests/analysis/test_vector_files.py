"""Files of sentence vectors: one matrix, whatever the number of lines, as each kind's own library reads it."""

import contextlib
import resource
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from contexture.analysis import vector_files
from contexture.analysis.vector_files import resolve, vectors_file
from contexture.data.errors import DataError
from contexture.train.interchange.allennlp_bilm import write_bilm_weights


def _write(file: Path, texts: list[str], vectors: np.ndarray) -> None:
    with vectors_file(file) as write:
        for text, row in zip(texts, vectors, strict=True):
            write(text, row)


def _read(file: Path) -> np.ndarray:
    if file.suffix == ".npy":
        return np.load(file)
    if file.suffix == ".safetensors":
        return load_file(file)["vectors"]
    table = pq.read_table(file)
    return np.stack(table["vectors"].to_numpy()) if len(table) else np.empty((0,))


@settings(max_examples=40, deadline=None)
@given(
    lines=st.sampled_from([0, 1, 7, 999, 1000, 1001, 12345]),
    layers=st.sampled_from([0, 1, 13]),
    width=st.sampled_from([1, 6]),
    suffix=st.sampled_from([".npy", ".safetensors", ".parquet"]),
)
def test_a_matrix_is_read_as_it_was_written(tmp_path_factory, lines, layers, width, suffix):
    file = tmp_path_factory.getbasetemp() / f"v{suffix}"
    file.unlink(missing_ok=True)
    layers = min(layers, 1) if suffix == ".parquet" else layers  # no lists of lists
    shape = (lines, layers, width) if layers else (lines, width)
    vectors = np.random.default_rng(lines).normal(size=shape).astype(np.float32)
    _write(file, [f"line {n}" for n in range(lines)], vectors)
    actual = _read(file)
    assert len(actual) == lines and actual.dtype == np.float32 or not lines
    if lines:
        assert np.array_equal(actual, vectors.reshape(lines, width) if suffix == ".parquet" else vectors)


def test_a_parquet_holds_the_texts_beside_the_vectors(tmp_path, monkeypatch):
    monkeypatch.setattr(vector_files, "_ROWS", 2)
    texts = ["a", "", "é", "b"]
    _write(tmp_path / "v.parquet", texts, np.eye(4, dtype=np.float32))
    table = pq.read_table(tmp_path / "v.parquet")
    assert table["text"].to_pylist() == texts and table.schema.field("vectors").type.list_size == 4
    assert pq.ParquetFile(tmp_path / "v.parquet").num_row_groups == 2


@pytest.mark.parametrize(
    ("name", "layers", "pool", "expected"),
    [
        ("v.npy", "auto", "auto", ("last", "mean-words")),
        ("v.parquet", "0", "last", ("0", "last")),
        ("v.safetensors", "all", "cls", ("all", "cls")),
        ("v.hdf5", "auto", "auto", ("all", "none")),
        ("v.npz", "last", "none", ("last", "none")),
    ],
)
def test_a_file_s_kind_decides_what_is_left_to_it(tmp_path, name, layers, pool, expected):
    assert resolve(tmp_path / name, layers, pool) == expected


@pytest.mark.parametrize(
    ("name", "layers", "pool", "message"),
    [
        ("v.npy", "auto", "none", r"v\.npy: pool=none gives vectors by line; give --to \*\.hdf5 or \*\.npz, or --pool"),
        ("v.h5", "auto", "cls", r"v\.h5: pool=cls gives a vector for each line; give --to \*\.npy"),
        ("v.parquet", "all", "auto", r"v\.parquet: layers=all are several vectors for each line; give one, or --to"),
        ("v.csv", "auto", "auto", r"v\.csv: not a file of vectors; give \*\.npy"),
        ("no/v.npy", "auto", "auto", r"no/v\.npy: its folder is not there"),
    ],
)
def test_vectors_that_a_file_does_not_hold_are_refused(tmp_path, name, layers, pool, message):
    with pytest.raises(DataError, match=message):
        resolve(tmp_path / name, layers, pool)


@contextlib.contextmanager
def files_of_at_most(size: int):
    """A disk that is full after so many bytes of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("suffix", [".hdf5", ".npz", ".npy", ".safetensors", ".parquet"])
@pytest.mark.parametrize("room", [0, 5_000, 100_000])
def test_a_disk_that_is_full_is_an_error_that_leaves_nothing(tmp_path, suffix, room):
    rng = np.random.default_rng(0)
    shape = (300,) if suffix in (".npy", ".safetensors", ".parquet") else (3, 100)
    with (
        pytest.raises(OSError, match="File too large"),
        files_of_at_most(room),
        vectors_file(tmp_path / f"v{suffix}") as write,
    ):
        for _ in range(400):
            write("a line", rng.standard_normal(shape, np.float32))
    assert not any(tmp_path.iterdir())


def test_datasets_of_hdf5_are_read_as_they_were_written(tmp_path):
    arrays = [np.arange(n * 7.0, dtype=np.float32).reshape(n, 7) for n in [*range(40), 3000]]
    with vectors_file(tmp_path / "v.hdf5") as write:
        for array in arrays:
            write("", array)
    with h5py.File(tmp_path / "v.hdf5") as opened:
        assert len(opened) == len(arrays)
        assert all(np.array_equal(opened[str(n)], array) for n, array in enumerate(arrays))  # type: ignore[arg-type]


@pytest.mark.parametrize("room", [0, 5_000])
def test_a_full_disk_ends_an_export_of_hdf5(tmp_path, room):
    with pytest.raises(OSError, match="File too large"), files_of_at_most(room):
        write_bilm_weights(tmp_path, {name: np.zeros((50, 50)) for name in "abc"})
