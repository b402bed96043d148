"""Published models in and out: bit for bit, tensor for tensor; and what is no such model is one clear line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np
import pytest

import contexture
from contexture.cli import main as cli
from contexture.data.errors import DataError
from contexture.data.tokenizers.word_level import SPECIAL
from contexture.interchange import allennlp_bilm, convert
from contexture.interchange.name_tables import bilm
from contexture.interchange.renaming import shapes_of
from contexture.models import elmo
from contexture.models.config import ElmoConfig
from contexture.train.run.folder import steps
from contexture.train.run.report import read_metrics
from tests.conftest import ROOT
from tests.helpers.commands import run_command
from tests.helpers.long import long
from tests.helpers.random_runs import random_elmo

GOLDEN = ROOT / "tests" / "golden"
OPTIONS: dict[str, Any] = {
    "lstm": {"use_skip_connections": True, "projection_dim": 6, "cell_clip": 3, "proj_clip": 3, "dim": 16,
             "n_layers": 2},
    "char_cnn": {"activation": "relu", "filters": [[1, 4], [2, 4]], "n_highway": 1, "embedding": {"dim": 16},
                 "n_characters": 262, "max_characters_per_token": 50},
}  # fmt: skip
TENSOR = "CNN_proj/b_proj"
Edit = Callable[[h5py.File], object]


def tensors(file: Path) -> dict[str, np.ndarray]:
    read: dict[str, np.ndarray] = {}
    with h5py.File(file) as opened:
        opened.visititems(lambda name, x: read.update({name: x[()]}) if isinstance(x, h5py.Dataset) else None)
    return read


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A folder of a small published model, every number of it another one."""
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "options.json").write_text(json.dumps(OPTIONS), "utf-8")
    config = ElmoConfig(char_width=16, filters=((1, 4), (2, 4)), highway=1, cells=16, projection=6)
    rng = np.random.default_rng(0)
    with h5py.File(folder / "weights.hdf5", "w") as file:
        for name, shape in shapes_of(bilm(config.filters, 1, True), elmo.sizes(config)).items():
            file.create_dataset(name, data=rng.standard_normal(shape, np.float32))
    return folder


def test_what_was_published_comes_out_as_it_went_in(shared, published_elmo, tmp_path, capsys):
    """The original's own file: names, shapes, kinds and every bit; and the options that it has."""
    golden = shared / "data" / "golden_bilm_tf" / "model"
    code, err = run_command(capsys, "export", published_elmo, "bilm", "--to", tmp_path / "out")
    assert code == 0 and "this format holds no softmax; not exported" in err
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "README.md",
        "options.json",
        "vocab.txt",
        "weights.hdf5",
    ]
    ours, theirs = tensors(tmp_path / "out" / "weights.hdf5"), tensors(golden / "lm_weights.hdf5")
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        got = ours[name]
        assert (got.dtype, got.shape, got.tobytes()) == (expected.dtype, expected.shape, expected.tobytes()), name
    both = [json.loads((folder / "options.json").read_text("utf-8")) for folder in (tmp_path / "out", golden)]
    assert both[0] == both[1]


def test_what_was_trained_goes_out_and_comes_back_bit_for_bit(tmp_path, capsys):
    """With its vocabulary; its softmax is initialised randomly, with a warning."""
    to, back = tmp_path / "out", tmp_path / "back"
    run = GOLDEN / "elmo"
    (step,) = steps(run / "checkpoints")
    assert convert.export_model(run, "bilm", to, step)["step"] == step
    code, err = run_command(capsys, "import", "bilm", to, "--to", back)
    assert code == 0 and "was initialised randomly: heads_bilm/bias, heads_bilm/kernel" in err
    _, was, words = contexture.load(run, step)
    now: Any
    _, now, same_words = contexture.load(back)
    for (path, a), b in zip(jax.tree.leaves_with_path(was["backbone"]), jax.tree.leaves(now["backbone"]), strict=True):
        assert a.dtype == b.dtype and np.array_equal(a, b), path
    assert same_words.files()["vocab.txt"] == words.files()["vocab.txt"]
    assert now["heads_bilm"]["kernel"].shape == (words.size, 4)
    assert len((to / "vocab.txt").read_text("utf-8").splitlines()) == words.size
    assert tuple((to / "vocab.txt").read_text("utf-8").splitlines()[:3]) == SPECIAL
    convert.export_model(back, "bilm", tmp_path / "again", None)
    for name in ("weights.hdf5", "options.json", "vocab.txt"):
        if name == "weights.hdf5":
            again, once = tensors(tmp_path / "again" / name), tensors(to / name)
            assert again.keys() == once.keys() and all(np.array_equal(again[key], once[key]) for key in once)
        else:
            assert (tmp_path / "again" / name).read_bytes() == (to / name).read_bytes()


def test_the_step_that_is_asked_for_is_exported(once, elmo_words, tmp_path):
    run = random_elmo(once, elmo_words)
    written = {step: tmp_path / f"step {step}" for step in (30, 40, None)}
    for step, to in written.items():
        assert convert.export_model(run, "bilm", to, step)["step"] == (step or 40)
    early, late, usual = (tensors(to / "weights.hdf5") for to in written.values())
    assert all(np.array_equal(usual[name], x) and not np.array_equal(early[name], x) for name, x in late.items())
    equal = {}  # of some the format has other shapes
    for step, written_arrays in ((30, early), (40, late)):
        own = [np.asarray(x) for x in jax.tree.leaves(contexture.load(run, step)[1]["backbone"])]
        equal[step] = {name for name, x in written_arrays.items() if any(np.array_equal(x, y) for y in own)}
    assert equal[30] == equal[40] != set()


@pytest.mark.long
def test_an_imported_run_is_trained_on(door, published, elmo_run, elmo_words, tmp_path, capsys):
    """A pretraining with its sizes begins from it, with the vocabulary that was given."""
    known = (elmo_run / "tokenizer" / "vocab.txt").read_text("utf-8").split()
    words = [*known, *(f"word{number}" for number in range(60 - len(known)))]
    (published / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    run, more = tmp_path / "run", tmp_path / "more"
    assert run_command(capsys, "import", "bilm", published, "--to", run)[0] == 0
    done = door(*elmo_words, "--init.run", run, "--data.word-splitter", "spaces", "--dir", more)
    assert done.returncode == 0 and f"parameters from {run}, step 0" in done.stderr, done.stderr
    kept = [line for line in done.stderr.splitlines() if line.startswith(("kept", "new", "grown", "dropped"))]
    assert len(kept) == 2 and all(line.startswith("kept") for line in kept)
    assert (more / "tokenizer" / "vocab.txt").read_text("utf-8").split() == words
    losses = [r["loss"] for r in read_metrics(more / "metrics.jsonl") if r["split"] == "train"]
    assert len(losses) == 40 and losses[-1] < losses[0]


def test_without_a_vocabulary_there_are_three_words(published, tmp_path, capsys):
    code, err = run_command(capsys, "import", "bilm", published, "--to", tmp_path / "run")
    assert code == 0 and "the softmax over 3 words is not in such files and was initialised randomly" in err
    assert contexture.load(tmp_path / "run")[2].size == 3
    assert cli.main(["show", str(tmp_path / "run"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["config"]["model"]["family"] == "elmo" and shown["parameters"] > shown["backbone"] > 0


def removed(file: h5py.File) -> None:
    del file[TENSOR]


def put(array: Any) -> Edit:
    def edit(file: h5py.File) -> None:
        del file[TENSOR]
        file[TENSOR] = array

    return edit


def virtual(file: h5py.File) -> None:
    """A tensor that lies in another file, though it looks as if it were here."""
    removed(file)
    layout = h5py.VirtualLayout((6,), np.float32)
    layout[:] = h5py.VirtualSource("other.hdf5", "b", (6,))
    file.create_virtual_dataset(TENSOR, layout)


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (removed, "the tensor CNN_proj/b_proj [6] is missing"),
        (put(np.zeros(5, np.float32)), "the tensor CNN_proj/b_proj is [5], the options want [6]"),
        (put(h5py.Empty("f4")), "the tensor CNN_proj/b_proj is [], the options want [6]"),
        (lambda file: file.create_dataset("more/w", data=np.zeros(3)), "the tensor more/w is in no row"),
        (put(np.zeros(6, np.int32)), "the tensor CNN_proj/b_proj is of kind int32, not numbers"),
        (put(np.full(6, np.nan, np.float32)), "the tensor CNN_proj/b_proj holds what is no number"),
        (put(np.full(6, 1e200)), "the tensor CNN_proj/b_proj holds what is no number"),
        (put(h5py.ExternalLink("other.hdf5", "b")), "the tensor CNN_proj/b_proj [6] is missing"),
        (put(h5py.SoftLink("/char_embed")), "the tensor CNN_proj/b_proj [6] is missing"),
        (virtual, "the tensor CNN_proj/b_proj is of kind float32, not numbers in this file"),
    ],
)
def test_a_tensor_that_is_not_as_it_should_be_is_named(published, tmp_path, capsys, edit, line):
    with h5py.File(published / "other.hdf5", "w") as file:
        file["b"] = np.zeros(6, np.float32)
    with h5py.File(published / "weights.hdf5", "a") as file:
        edit(file)
    refused(capsys, published, tmp_path, f"weights.hdf5: {line}")


def refused(capsys: pytest.CaptureFixture[str], published: Path, folder: Path, line: str) -> None:
    """In one line, and nothing lies there afterwards."""
    existing = sorted(folder.iterdir())
    code, err = run_command(capsys, "import", "bilm", published, "--to", folder / "run")
    assert code == 2 and line in err and err.startswith("DataError: ") and len(err.splitlines()) == 1, err
    assert sorted(folder.iterdir()) == existing


@pytest.mark.parametrize("place", [None, 0, 8, 900, 4000, -1])
def test_a_file_of_weights_that_is_cut_off_or_none_is_said(published, tmp_path, capsys, place):
    file = published / "weights.hdf5"
    file.write_bytes(b"these are no weights" if place is None else file.read_bytes()[:place])
    refused(capsys, published, tmp_path, "weights.hdf5: cannot be read as hdf5")


@pytest.mark.parametrize("examples", [25, *long(150)])
def test_flipped_bytes_of_a_file_of_weights_are_read_or_said(published, examples):
    """Where what is damaged is not the numbers themselves, h5py fails in many ways."""
    raw, rng = (published / "weights.hdf5").read_bytes(), np.random.default_rng(0)
    config = allennlp_bilm._bilm_config(published / "options.json")
    table = allennlp_bilm.table_of(config)
    expected, failed = shapes_of(table, elmo.sizes(config)), 0
    for place in rng.integers(0, min(len(raw), 12_000), examples):
        harmed = bytearray(raw)
        harmed[place] ^= 1 << int(rng.integers(8))
        (published / "weights.hdf5").write_bytes(harmed)
        try:
            tensors = allennlp_bilm.read_hdf5(published / "weights.hdf5", expected, table)
            for name in expected:
                tensors.read(name)
        except DataError as error:
            failed += "weights.hdf5: " in str(error)
    assert failed


@pytest.mark.parametrize(
    ("section", "key", "value", "line"),
    [
        ("lstm", None, None, "lstm is missing"),
        ("char_cnn", None, [], "char_cnn is missing"),
        ("lstm", "dim", None, "lstm.dim is None, not of kind int"),
        ("lstm", "dim", "16", "lstm.dim is '16', not of kind int"),
        ("lstm", "dim", True, "lstm.dim is True, not of kind int"),
        ("lstm", "dim", 0, "model.cells=0 is not a positive number; give the original's options"),
        ("lstm", "cell_clip", "3", "lstm.cell_clip is '3', not of kind float"),
        ("lstm", "proj_clip", -1, "model.projection-clip=-1.0 is not at least 0; give the original's options"),
        ("lstm", "peepholes", True, "lstm.peepholes is an option that is not known here; leave it out"),
        ("char_cnn", "dropout", 0.1, "char_cnn.dropout is an option that is not known here; leave it out"),
        ("bidirectional", None, False, "bidirectional is False, and an ELMo reads both ways"),
        ("lstm", "use_skip_connections", 1, "lstm.use_skip_connections is 1, not of kind bool"),
        ("char_cnn", "filters", [[1]], "char_cnn.filters are [[1]], not pairs of width and number"),
        ("char_cnn", "filters", [["a", 2]], "char_cnn.filters are [['a', 2]], not pairs of width and number"),
        ("char_cnn", "embedding", {}, "embedding.dim is None, not of kind int"),
        ("char_cnn", "n_highway", "1", "char_cnn.n_highway is '1', not of kind int"),
        ("char_cnn", "activation", "gelu", "char_cnn.activation is 'gelu', not relu or tanh"),
        ("char_cnn", "n_characters", 256, "char_cnn.max_characters_per_token=50, n_characters=256; this reads"),
        ("char_cnn", "max_characters_per_token", 40, "char_cnn.max_characters_per_token=40, n_characters=262; this"),
    ],
)
def test_an_option_that_is_not_as_it_should_be_is_named(published, tmp_path, capsys, section, key, value, line):
    options = json.loads(json.dumps(OPTIONS))
    if key:
        options[section][key] = value
    else:
        options[section] = value
    (published / "options.json").write_text(json.dumps(options), "utf-8")
    refused(capsys, published, tmp_path, f"options.json: {line}")


def test_a_folder_that_is_no_published_model_is_said(published, tmp_path, capsys):
    refused(capsys, tmp_path / "nowhere", tmp_path, "nowhere: no such folder")
    (published / "options.json").write_text("{", "utf-8")
    refused(capsys, published, tmp_path, "options.json: cannot be read as JSON")
    (published / "options.json").unlink()
    refused(capsys, published, tmp_path, "published: not one *options.json; give a folder with options.json")
    for name in ("a_options.json", "b_options.json"):
        (published / name).write_text("{}", "utf-8")
    refused(capsys, published, tmp_path, "not one *options.json, but a_options.json, b_options.json")
    (published / "b_options.json").unlink()
    (published / "a_options.json").rename(published / "options.json")
    (published / "options.json").write_text(json.dumps(OPTIONS), "utf-8")
    (published / "vocab.txt").write_text("the\ncat\n", "utf-8")
    refused(capsys, published, tmp_path, "vocab.txt: the first lines are 'the', 'cat'")


def test_a_place_that_is_taken_is_left_alone(published, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine", "utf-8")
    refused(capsys, published, tmp_path, "already holds something; give another folder")
    assert (tmp_path / "run" / "mine.txt").read_text("utf-8") == "mine"


def test_nothing_is_left_of_what_was_not_finished(published, tmp_path, monkeypatch):
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(convert, "write_first", stop)
    existing = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        convert.import_model("bilm", published, tmp_path / "run")
    assert sorted(tmp_path.iterdir()) == existing


def test_another_familys_run_is_not_exported(tmp_path, capsys):
    run = ROOT / "tests" / "golden" / "bert_3_steps"
    code, err = run_command(capsys, "export", run, "bilm", "--to", tmp_path / "out")
    assert code == 2 and "is no ELMo, and bilm is ELMo's format; give a run of an elmo recipe" in err
    assert len(err.splitlines()) == 1 and not list(tmp_path.iterdir())
