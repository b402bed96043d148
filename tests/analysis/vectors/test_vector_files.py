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

from contexture.analysis.vectors import vector_files
from contexture.analysis.vectors.vector_files import resolve, vectors_file
from contexture.data.errors import DataError
from contexture.data.word_vectors import read_word_vectors
from contexture.interchange.allennlp_bilm import write_bilm_weights


def _write(file: Path, texts: list[str], vectors: np.ndarray) -> None:
    with vectors_file(file, "tokens", "all") as write:
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
    ("name", "layers", "pool", "of", "expected"),
    [
        ("v.npy", "auto", "auto", "auto", ("last", "mean-words", "sentences")),
        ("v.parquet", "0", "last", "auto", ("0", "last", "sentences")),
        ("v.safetensors", "all", "cls", "sentences", ("all", "cls", "sentences")),
        ("v.hdf5", "auto", "auto", "auto", ("all", "none", "tokens")),
        ("v.npz", "last", "none", "auto", ("last", "none", "tokens")),
        ("v.npz", "last", "none", "words", ("last", "none", "words")),
        ("v.tsv", "auto", "auto", "auto", ("last", "mean-words", "sentences")),
        ("v.tsv", "all", "none", "auto", ("all", "none", "tokens")),
        ("v.tsv", "all", "last", "auto", ("all", "last", "sentences")),
        ("v.txt", "auto", "auto", "auto", ("last", "none", "words")),
        ("v.txt", "1", "none", "tokens", ("1", "none", "tokens")),
    ],
)
def test_a_files_kind_decides_what_is_left_to_it(tmp_path, name, layers, pool, of, expected):
    assert resolve(tmp_path / name, layers, pool, of) == expected


@pytest.mark.parametrize(
    ("name", "layers", "pool", "of", "message"),
    [
        ("v.npy", "auto", "none", "auto", r"v\.npy: pool=none gives several vectors for each line; give --to \*\.hdf5"),
        ("v.npy", "auto", "auto", "words", r"v\.npy: of=words gives several vectors for each line; give --to \*\.hdf5"),
        ("v.h5", "auto", "cls", "auto", r"v\.h5: pool=cls gives a vector for each line; give --to \*\.npy"),
        ("v.npz", "auto", "auto", "sentences", r"v\.npz: of=sentences gives a vector for each line; give --to \*\.npy"),
        ("v.txt", "auto", "mean", "auto", r"v\.txt: pool=mean gives vectors of sentences, and word2vec's format names"),
        ("v.txt", "all", "auto", "auto", r"v\.txt: layers=all are several vectors for each word; give one, or --to \*"),
        ("v.parquet", "all", "auto", "auto", r"v\.parquet: layers=all are several vectors for each line; give one, or"),
        ("v.csv", "auto", "auto", "auto", r"v\.csv: not a file of vectors; give \*\.npy"),
        ("no/v.npy", "auto", "auto", "auto", r"no/v\.npy: its folder is not there"),
    ],
)
def test_vectors_that_a_file_does_not_hold_are_refused(tmp_path, name, layers, pool, of, message):
    with pytest.raises(DataError, match=message):
        resolve(tmp_path / name, layers, pool, of)


def test_a_file_is_overwritten_only_where_that_is_asked_for(tmp_path):
    (tmp_path / "v.npy").write_bytes(b"mine")
    with pytest.raises(DataError, match=r"v\.npy: there is such a file already; give another name, or --overwrite"):
        resolve(tmp_path / "v.npy", "auto", "auto")
    resolve(tmp_path / "v.npy", "auto", "auto", overwrite=True)
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(DataError, match="not a plain file, which is not overwritten"):
        resolve(tmp_path / "folder.npy", "auto", "auto", overwrite=True)


@contextlib.contextmanager
def files_of_at_most(size: int):
    """A disk that is full after so many bytes of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("suffix", [".hdf5", ".npz", ".npy", ".safetensors", ".parquet", ".tsv", ".txt"])
@pytest.mark.parametrize("room", [0, 5_000, 100_000])
def test_a_disk_that_is_full_is_an_error_that_leaves_nothing(tmp_path, suffix, room):
    rng = np.random.default_rng(0)
    shape = (300,) if suffix in (".npy", ".safetensors", ".parquet") else (3, 100)
    with (
        pytest.raises(OSError, match=rf"File too large: '.*/v\{suffix}'"),
        files_of_at_most(room),
        vectors_file(tmp_path / f"v{suffix}", "tokens", "all") as write,
    ):
        for _ in range(400):
            array = rng.standard_normal(shape, np.float32)
            write("a line", array[-1:] if suffix in (".tsv", ".txt") else array, ["a"])
    assert not any(tmp_path.iterdir())


def test_datasets_of_hdf5_are_read_as_they_were_written(tmp_path):
    arrays = [np.arange(n * 7.0, dtype=np.float32).reshape(n, 7) for n in [*range(40), 3000]]
    with vectors_file(tmp_path / "v.hdf5", "tokens", "all") as write:
        for array in arrays:
            write("", array)
    with h5py.File(tmp_path / "v.hdf5") as opened:
        assert len(opened) == len(arrays)
        assert all(np.array_equal(opened[str(n)], array) for n, array in enumerate(arrays))  # type: ignore[arg-type]


@pytest.mark.parametrize("room", [0, 5_000])
def test_a_full_disk_ends_an_export_of_hdf5(tmp_path, room):
    with pytest.raises(OSError, match="File too large"), files_of_at_most(room):
        write_bilm_weights(tmp_path, {name: np.zeros((50, 50)) for name in "abc"})


def test_the_names_of_a_line_of_any_length_stand_beside_its_vectors(tmp_path):
    """Also where they are more than an attribute of HDF5's first format holds."""
    lines = [[], ["a", "äö", "b" * 200], [f"w{number}" for number in range(9000)]]
    for name in ("v.hdf5", "v.npz"):
        with vectors_file(tmp_path / name, "words", "all") as write:
            for line in lines:
                write("", np.ones((2, len(line), 1), np.float32), line)
    with h5py.File(tmp_path / "v.hdf5") as opened, np.load(tmp_path / "v.npz") as arrays:
        assert list(opened) == ["0", "1", "2"]
        assert arrays.files == ["0", "words/0", "1", "words/1", "2", "words/2"]
        for number, line in enumerate(lines):
            assert opened[str(number)].attrs["words"].tolist() == line == arrays[f"words/{number}"].tolist()  # type: ignore[union-attr]
            assert opened[str(number)].shape == (2, len(line), 1)  # type: ignore[union-attr]


ROWS = np.array([[0.1, -2e-30], [3.4e38, 1 / 3], [0.0, -0.0]], np.float32)


@pytest.mark.parametrize("layers", ["last", "0,2"])
def test_rows_of_text_hold_every_vector_with_its_name_to_the_bit(tmp_path, layers):
    lines = [["a", "b\tc", '"'], [], ["ä", "a", "\u2028"]]
    of = np.stack([ROWS, -ROWS]) if layers == "0,2" else ROWS
    with vectors_file(tmp_path / "v.tsv", "tokens", layers) as write:
        for line in lines:
            write("", of[..., : len(line), :], line)
    head, *rows = [row.split("\t") for row in (tmp_path / "v.tsv").read_text("utf-8").split("\n")[:-1]]
    several = ["layer"] if layers == "0,2" else []
    assert head == ["line", "token", *several, "0", "1"]
    expected = [
        [str(number), name.replace("\t", " "), *([layer] if several else [])]
        for number, line in enumerate(lines)
        for layer in (["0", "2"] if several else [""])
        for name in line
    ]
    assert [row[:-2] for row in rows] == expected
    numbers = np.array([row[-2:] for row in rows], np.float32)
    assert np.array_equal(numbers[: of.size // 2], of.reshape(-1, 2)) and len(rows) == 2 * of.size // 2


def test_rows_of_sentences_hold_their_text(tmp_path):
    with vectors_file(tmp_path / "v.tsv", "sentences", "all") as write:
        write("the cat", ROWS)
    written = (tmp_path / "v.tsv").read_text("utf-8").splitlines()
    assert written[0] == "line\ttext\tlayer\t0\t1" and len(written) == 4
    assert written[2] == "0\tthe cat\t1\t3.39999995e+38\t0.333333343"


def test_word2vecs_form_is_read_as_a_file_of_word_vectors(tmp_path):
    with vectors_file(tmp_path / "v.txt", "words", "last") as write:
        write("a b", ROWS[:2], ["a", "b"])
        write("", ROWS[:0], [])
        write("ä", ROWS[None, 2:], ["ä"])
    assert (tmp_path / "v.txt").read_text("utf-8").split("\n")[0].split() == ["3", "2"]
    read = read_word_vectors(tmp_path / "v.txt")
    assert list(read.words) == ["a", "b", "ä"] and np.array_equal(read.vectors_VD, ROWS)


@pytest.mark.parametrize("name", ["", " a", "a b", "\t"])
def test_a_name_with_a_space_has_no_place_in_word2vecs_form(tmp_path, name):
    with pytest.raises(DataError, match="line 2: the token .* has a space or is empty, and word2vec's format"), (
        vectors_file(tmp_path / "v.txt", "tokens", "all")) as write:  # fmt: skip
        write("a", ROWS[:1], ["a"])
        write(name, ROWS[:1], [name])
    assert not any(tmp_path.iterdir())
