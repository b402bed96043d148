"""`contexture embed` of words and tokens: each vector stands beside what it is of, as in Python."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import contexture
from contexture import requests
from contexture.analysis.vectors.row_names import _shown
from tests.helpers.commands import json_of, run_command
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close
from tests.train.run.test_formats import GOLDEN

pytestmark = pytest.mark.usefixtures("one_device")
LINES = ["the cat, sat", "", "  a dog  ran "]
RUNS = ["elmo", "bert", "gpt"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("\n".join(LINES) + "\n")
    return tmp_path / "text.txt"


def _embed(run: str, text: Path, name: str, *options: object) -> dict[str, Any]:
    return json_of("embed", GOLDEN / run, "--input", text, "--to", text.parent / name, *options)


@pytest.mark.parametrize("run", [RUNS[0], *long(*RUNS[1:])])
def test_a_file_of_words_has_the_rows_that_python_gives(run, text, tmp_path):
    counts = _embed(run, text, "words.npz", "--of", "words")
    expected = contexture.open(GOLDEN / run).embed(LINES, of="words", layers="all")
    assert (counts["lines"], counts["words"], counts["truncated"]) == (3, 6, 0)
    with np.load(tmp_path / "words.npz") as arrays:
        for number, line in enumerate(LINES):
            assert arrays[f"words/{number}"].tolist() == line.split()
            assert arrays[str(number)].shape[1] == len(line.split())
            if line:
                assert_close(arrays[str(number)], expected[number], rtol=0, atol=1e-6)


@pytest.mark.parametrize("run", RUNS)
def test_a_file_of_tokens_names_the_token_of_each_row(run, text, tmp_path):
    _embed(run, text, "tokens.hdf5")
    tokenizer = contexture.open(GOLDEN / run).tokenizer
    with h5py.File(tmp_path / "tokens.hdf5") as opened:
        assert list(opened) == ["0", "1", "2"]
        named = [opened[str(number)].attrs["tokens"].tolist() for number in range(3)]  # type: ignore[union-attr]
        assert [opened[str(number)].shape[1] for number in range(3)] == [len(names) for names in named]  # type: ignore[union-attr]
    for line, names in zip(LINES, named, strict=True):
        if run == "bert":
            assert (names[0], names[-1]) == ("[CLS]", "[SEP]")
            names = names[1:-1]
        words = line.replace(",", " ,").split()
        own = words if run == "elmo" else [tokenizer.token(id) for id in tokenizer.encode(line)]
        assert names == own


def test_an_elmos_words_stand_between_spaces_and_tokens_between_marks(text, tmp_path):
    """Its own splitter takes punctuation off: four tokens, three words."""
    for of, names in (("tokens", ["the", "cat", ",", "sat"]), ("words", ["the", "cat,", "sat"])):
        _embed("elmo", text, f"{of}.npz", "--of", of)
        with np.load(tmp_path / f"{of}.npz") as arrays:
            assert arrays[f"{of}/0"].tolist() == names and arrays["0"].shape[1] == len(names)


def test_a_line_of_words_that_is_too_long_is_named(text, capsys):
    text.write_text("the cat\n" + "a " * 500 + "\n")
    code, err = run_command(
        capsys, "embed", GOLDEN / "bert", "--input", text, "--to", text.parent / "v.txt", "--of", "words"
    )
    assert code == 2 and f"{text}:2: 502 tokens, and the model takes 24; give a shorter one" in err, err
    assert not (text.parent / "v.txt").exists()


def test_an_existing_file_stays_until_its_successor_is_complete(text, capsys):
    to = text.parent / "v.tsv"
    to.write_text("mine")
    command = ["embed", GOLDEN / "elmo", "--input", text, "--to", to]
    code, err = run_command(capsys, *command)
    assert code == 2 and "give another name, or --overwrite" in err and to.read_text() == "mine"
    code, err = run_command(capsys, *command, "--overwrite", "--layers", "9")
    assert code == 2 and "layers=9" in err and to.read_text() == "mine"
    assert run_command(capsys, *command, "--overwrite")[0] == 0 and to.read_text().startswith("line\ttext\t0\t1")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"of": "words", "pool": "mean"}, "pool=mean is for sentences, and --of words keeps each of them; leave one"),
        ({"of": "sentences", "pool": "none"}, "pool=none is for words and tokens, and --of sentences pools them"),
    ],
)
def test_pooling_is_for_sentences(options, line):
    with pytest.raises(ValueError, match=f"^{line}"):
        requests.EmbeddingRequest("run", "in.txt", "v.tsv", **options)


def test_a_name_of_a_row_has_no_zero_byte_and_is_cut():
    """HDF5 ends a string there, and numpy drops it."""
    assert (_shown("a\0b"), _shown("\0"), _shown("x" * 300)) == ("a\\x00b", "\\x00", "x" * 256)
