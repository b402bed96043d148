"""Vectors of words, written to files: what they hold, what changes none of them, and what is refused in one line."""

import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np
import pytest

import contexture
from contexture.analysis.embed import embed as vectors_of
from contexture.analysis.options import EmbedOptions, layer_numbers
from contexture.data.errors import DataError
from contexture.data.tokenizers.wordpiece import wordpiece
from contexture.train.run.signals import Signals
from tests.conftest import ROOT
from tests.helpers.commands import json_of, run_command
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close, assert_differs, close
from tests.train.run.test_formats import GOLDEN

Opened = tuple[Any, Any, Any]
"""(model, parameters, tokenizer)."""
TEXT = [
    "The cat sees the river .",
    "",
    "a " + "very" * 20 + " word and " + "ä" * 30,
    " ".join(f"word{number}" for number in range(300)),
    "dog",
    "  my   brother paints  ",
]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("embed") / "text.txt"
    file.write_text("\n".join(TEXT) + "\n", "utf-8")
    return file


@pytest.fixture(scope="module")
def opened(elmo_run: Path) -> Opened:
    """(model, parameters, tokenizer)."""
    return contexture.load(elmo_run)


@pytest.fixture(scope="module")
def whole(opened: Opened) -> list[np.ndarray]:
    """Every line's vectors, all layers, seven lines at a time."""
    return list(vectors_of(*opened, [line.split() for line in TEXT], EmbedOptions(batch=7)))


def _embed(run: Path, file: Path, to: Path, *options: object) -> dict[str, Any]:
    return json_of("embed", run, "--input", file, "--to", to, *options)


def in_hdf5(file: Path) -> dict[str, np.ndarray]:
    with h5py.File(file) as opened:
        return {str(name): np.asarray(opened[name]) for name in opened}


def test_both_kinds_of_file_hold_every_lines_vectors(elmo_run, text, whole, tmp_path):
    """By the line's number, [layers, words, width], in single precision; a word that is cut is counted."""
    summaries = [_embed(elmo_run, text, tmp_path / name, "--batch", 7) for name in ("v.hdf5", "v.npz")]
    lines = [line.split() for line in TEXT]
    for result, name in zip(summaries, ("v.hdf5", "v.npz"), strict=True):
        words = sum(map(len, lines))
        counts = {"lines": len(TEXT), "tokens": words, "words": words, "truncated": 2}
        assert result == {"to": str(tmp_path / name), **counts}
    with np.load(tmp_path / "v.npz") as file:
        one = {name: file[name] for name in file.files if name.isdecimal()}
        named = {name: file[name].tolist() for name in file.files if not name.isdecimal()}
    other = in_hdf5(tmp_path / "v.hdf5")
    assert named == {f"tokens/{number}": words for number, words in enumerate(lines)}
    assert one.keys() == other.keys() == {str(number) for number in range(len(TEXT))}
    for number, words in enumerate(lines):
        vectors = one[str(number)]
        assert vectors.dtype == np.float32 and vectors.shape == (3, len(words), 12)
        assert np.array_equal(vectors, other[str(number)]) and np.array_equal(vectors, whole[number])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["v.hdf5", "v.npz"]


def test_the_first_layer_is_the_words_twice(whole):
    for vectors in whole:
        assert np.array_equal(vectors[0, :, :6], vectors[0, :, 6:])
    assert whole[0][0, 0].any()
    assert_differs(whole[0][1, :, :6], whole[0][1, :, 6:])
    assert_differs(whole[3][0, 4], whole[3][0, 5])
    assert len(whole[3][0]) == 300


def test_a_word_that_is_cut_is_its_first_bytes(opened: Opened, whole):
    """Within a character too. All other lines stay, since a batch of another shape may round otherwise."""
    lines = [line.split() for line in TEXT]
    lines[2] = ["a", "very" * 12, "word", "and", "ä" * 24]
    assert np.array_equal(list(vectors_of(*opened, lines, EmbedOptions(batch=7)))[2], whole[2])


def near(got: np.ndarray, expected: np.ndarray) -> None:
    """Of a line without words there is nothing to compare."""
    assert got.shape == expected.shape
    if expected.size:
        assert_close(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("batch", [1, 64])
def test_the_batch_changes_no_vector(opened: Opened, whole, batch):
    for got, expected in zip(vectors_of(*opened, map(str.split, TEXT), EmbedOptions(batch=batch)), whole, strict=True):
        near(got, expected)


@pytest.mark.long
def test_layers_and_pools_are_parts_of_all(opened: Opened, whole):
    lines = [line.split() for line in TEXT]
    for layers in ("last", "0,2", "1", "2,0"):
        numbers = layer_numbers(layers, 2)
        for got, expected in zip(vectors_of(*opened, lines, EmbedOptions(layers=numbers, batch=7)), whole, strict=True):
            near(got, expected[{"last": [2], "0,2": [0, 2], "1": [1], "2,0": [2, 0]}[layers]])
    for pool in ("mean", "mean-words", "last"):
        for got, expected in zip(vectors_of(*opened, lines, EmbedOptions(pool=pool, batch=7)), whole, strict=True):
            assert got.shape == (3, 12)
            if expected.shape[1]:
                assert_close(got, expected[:, -1] if pool == "last" else expected.mean(1), rtol=0, atol=1e-6)
            else:
                assert not got.any()
    assert next(vectors_of(*opened, lines, EmbedOptions(layers=(2,), pool="mean", batch=7))).shape == (1, 12)


def test_lines_are_alone_unless_the_model_is_stateful(elmo_run, opened: Opened, tmp_path):
    """Then line n goes on from line n - batch."""
    (tmp_path / "text.txt").write_text("the cat sees\nthat bird\n" * 2, "utf-8")
    file = tmp_path / "text.txt"
    _embed(elmo_run, file, tmp_path / "alone.hdf5", "--batch", 2)
    _embed(elmo_run, file, tmp_path / "on.hdf5", "--batch", 2, "--stateful")
    alone, on = in_hdf5(tmp_path / "alone.hdf5"), in_hdf5(tmp_path / "on.hdf5")
    for first, second in (("0", "2"), ("1", "3")):
        assert_close(alone[first], alone[second], rtol=1e-5, atol=1e-7)
        close(alone[first], on[first], tolerance=1e-6)
        assert_differs(on[first][1:], on[second][1:], 1e-3)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--layers", "3"], "layers=3 are not all, last, or numbers from 0 to 2"),
        (["--layers", "0,,1"], "layers=0,,1 are not all, last, or numbers from 0 to 2"),
        (["--layers", "-1"], "layers=-1 are not all, last, or numbers from 0 to 2"),
        (["--batch", "0"], "batch=0 is not a positive number of sentences"),
        (["--batch", "9" * 20], f"batch={'9' * 20} is more than 16384 sentences at a time; give fewer"),
        (["--to", "TMP/v.csv"], "v.csv: not a file of vectors; give *.npy, *.parquet or *.safetensors for a matrix"),
        (["--pool", "mean"], "v.npz: pool=mean gives a vector for each line; give --to *.npy, *.parquet, *.saf"),
        (["--to", "TMP/taken.npz"], "taken.npz: there is such a file already; give another name, or --overwrite"),
        (["--to", "TMP/nowhere/v.npz"], "nowhere/v.npz: its folder is not there; make it, or give another name"),
        (["--input", "TMP/nowhere.txt"], "nowhere.txt: no such file; give one with a sentence in each line"),
        (["--input", "TMP/latin.txt"], "latin.txt:2: "),
    ],
)
def test_words_that_are_wrong_give_one_clear_line(elmo_run, text, tmp_path, capsys, words, line):
    (tmp_path / "taken.npz").write_bytes(b"mine")
    (tmp_path / "latin.txt").write_bytes("caf\ncafé\n".encode("latin-1"))
    existing = sorted(tmp_path.iterdir())
    given = {"--input": text, "--to": tmp_path / "v.npz"}
    given |= {words[0]: words[1].replace("TMP", str(tmp_path))}
    code, err = run_command(capsys, "embed", elmo_run, *(word for pair in given.items() for word in pair))
    assert code == 2 and line in err and len(err.splitlines()) == 1, err
    assert sorted(tmp_path.iterdir()) == existing and (tmp_path / "taken.npz").read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["bert_3_steps", *long("gpt_banded")])
def test_pieces_have_the_vectors_of_their_model(name: str, tmp_path: Path):
    """Of a BERT with [CLS] and [SEP], whatever stands beside a line in its batch; what is too long is cut and
    counted; each pool is of the vectors that its name says."""
    run, file = ROOT / "tests" / "golden" / name, tmp_path / "text.txt"
    lines = ["the cat sat", "", "a dog " * 40]
    file.write_text("\n".join(lines) + "\n", "utf-8")
    model, params, tokenizer = contexture.load(run)
    bert, length = name == "bert_3_steps", model.backbone.config.length
    summary = _embed(run, file, tmp_path / "v.npz", "--batch", 2)
    actual = np.load(tmp_path / "v.npz")
    kept = [ids[: length - 2 * bert] for ids in tokenizer.encode(lines)]
    assert (
        summary["words"] == sum(map(len, kept))
        and summary["truncated"] == sum(map(len, tokenizer.encode(lines))) - summary["words"]
    )
    assert summary["truncated"] > 0 and summary["tokens"] == summary["words"] + 2 * bert * len(lines)
    assert summary["tokens"] == sum(actual[str(number)].shape[1] for number in range(len(lines)))
    for number, ids in enumerate(kept):
        row = [wordpiece(tokenizer).cls, *ids, wordpiece(tokenizer).sep] if bert else ids
        vectors = actual[str(number)]
        assert vectors.shape == (model.backbone.config.layers + 1, len(row), model.backbone.config.hidden)
        if not row:
            continue
        batch = {"tokens": np.array([row], np.int32), "mask": np.ones((1, len(row)), np.int32)}
        batch["segments"] = np.zeros_like(batch["tokens"])
        out: Any = jax.jit(partial(model.clone(heads={}).apply, states=True))({"params": params}, batch)
        expected = np.stack([x[0] for x in out.encoding.states])
        close(vectors, expected)
    own = slice(1, -1) if bert else slice(None)
    expected = {"mean": lambda x: x.mean(0), "mean-words": lambda x: x[own].mean(0), "last": lambda x: x[own][-1]}
    for pool, of in (expected | ({"cls": lambda x: x[0]} if bert else {})).items():
        to = tmp_path / f"{pool}.npy"
        counted = _embed(run, file, to, "--pool", pool, "--batch", 2)
        assert {**counted, "to": ""} == {**summary, "to": ""}
        pooled = np.load(to)
        for number in (0, 2):
            assert_close(pooled[number], of(actual[str(number)][-1]), rtol=1e-5, atol=1e-6)
        if pool == "mean" and bert:  # the empty line has two tokens and no word
            assert_close(pooled[1], actual["1"][-1].mean(0), rtol=1e-5, atol=1e-6)
        else:
            assert pool == "cls" or not pooled[1].any()


@pytest.mark.parametrize(
    ("name", "words", "line"),
    [
        ("bert_3_steps", ["--stateful"], "stateful is an ELMo's, and this run is of another family; leave it out"),
        ("gpt_banded", ["--pool", "cls"], "pool=cls is not one of none, mean, mean-words, last"),
    ],
)
def test_what_a_family_does_not_have_is_said(text, tmp_path, capsys, name, words, line):
    run = ROOT / "tests" / "golden" / name
    code, err = run_command(capsys, "embed", run, "--input", text, "--to", tmp_path / "v.npy", *words)
    assert code == 2 and line in err and len(err.splitlines()) == 1, err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["v.npy", *long("v.npz", "v.hdf5", "v.parquet", "v.safetensors")])
def test_nothing_is_left_of_what_was_stopped(elmo_run, tmp_path_factory, tmp_path, capsys, monkeypatch, name):
    """By a signal between two batches."""
    text, seen = tmp_path_factory.mktemp("long") / "text.txt", []
    text.write_text("\n".join(TEXT * 9) + "\n", "utf-8")

    def check() -> None:
        seen.append(os.listdir(tmp_path))
        if len(seen) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Signals, "check", lambda signals: check())
    code, err = run_command(capsys, "embed", elmo_run, "--input", text, "--to", tmp_path / name, "--batch", 1)
    assert (code, err) == (130, "Ctrl-C")
    assert seen[-1] and not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.parametrize("pool", ["none", *long("mean", "last")])
def test_sentences_in_lanes_keep_their_order_and_their_vectors(opened, pool, monkeypatch):
    """Sentences of 0 to 40 words, in two windows of several batches; each has the vectors that it has alone."""
    monkeypatch.setattr("contexture.data.bucketing.WINDOW", 12)
    rng, words = np.random.default_rng(3), " ".join(TEXT).split()[:12]
    sentences: list[list[str]] = [rng.choice(words, int(40 * x**3)).tolist() for x in rng.random(70)]
    together = list(vectors_of(opened[0], opened[1], opened[2], sentences, EmbedOptions(pool=pool, batch=4)))
    assert len(together) == len(sentences)
    for sentence, vectors in zip(sentences[:16], together, strict=False):
        (alone,) = vectors_of(opened[0], opened[1], opened[2], [sentence], EmbedOptions(pool=pool))
        assert vectors.shape == alone.shape == (3, *([len(sentence)] if pool == "none" else []), 12)
        assert sentence or not alone.any()
        if alone.any():
            assert_close(vectors, alone, rtol=1e-5, atol=1e-6)


def test_lines_longer_than_those_of_the_training_are_said_once(tmp_path, capsys):
    run = shutil.copytree(GOLDEN / "bert", tmp_path / "run")
    settings = json.loads((run / "run.json").read_text())
    settings["config"]["data"]["length"] = 8
    (run / "run.json").write_text(json.dumps(settings))
    (tmp_path / "text.txt").write_text("the cat sees the river . the cat\n" * 3)
    for source, count in ((run, 1), (GOLDEN / "bert", 0)):
        capsys.readouterr()
        _embed(source, tmp_path / "text.txt", tmp_path / f"{count}.npy")
        assert capsys.readouterr().err.count("trained on sequences of at most 8 tokens") == count


def test_a_sentence_has_one_vector_in_python():
    given: Any = "none"
    with pytest.raises(DataError, match="pool='none' gives a vector for each token; give of='tokens'"):
        contexture.open(GOLDEN / "gpt").embed(["the cat", "a"], pool=given)
