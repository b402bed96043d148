"""Published files with anything in them: they are read, or said in one line, and nothing lies there afterwards."""

import json
import resource
import shutil
import time
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contexture.data.errors import DataError
from contexture.interchange import convert, tf_checkpoint
from contexture.interchange.name_tables import bilm
from contexture.interchange.renaming import shapes_of
from contexture.models import elmo
from contexture.models.config import ElmoConfig
from tests.conftest import ROOT

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("one_device")]
ANY_BYTES = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 6), st.binary(max_size=9)), min_size=1, max_size=3
)  # fmt: skip
NUMBERS = st.integers(-(10**20), 10**20) | st.floats() | st.sampled_from([0, 1, -1, 2**31, 2**63, 10**400, 1e300])
ANY_JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
EVERY_CHECK: Any = list(HealthCheck)
EXAMPLES = {n: settings(max_examples=n, deadline=None, suppress_health_check=EVERY_CHECK) for n in (40, 150)}


def hf(folder: Path) -> None:
    convert.export_model(ROOT / "tests" / "golden" / "bert_3_steps", "hf", folder, None)


def hf_in_parts(folder: Path) -> None:
    from safetensors.numpy import load_file

    hf(folder)
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    names = dict.fromkeys(load_file(folder / "part.safetensors"), "part.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}), "utf-8")


def google(folder: Path) -> None:
    golden = ROOT.parent / "shared" / "data" / "golden_keras_bert_ckpt"
    if not golden.is_dir():
        pytest.skip(f"{golden} is not there")
    shutil.copytree(golden, folder)
    for file in folder.iterdir():
        file.chmod(0o644)


def gpt1(folder: Path) -> None:
    folder.mkdir()
    layer = [[1, 12, 36], [36], [1, 12, 12], [12], [12], [12], [1, 12, 48], [48], [1, 48, 12], [12], [12], [12]]
    shapes = [[8, 12], [6, 12], *layer]
    numbers = np.zeros(sum(int(np.prod(shape)) for shape in shapes), np.float32)
    for number, part in enumerate(np.array_split(numbers, 10)):
        np.save(folder / f"params_{number}.npy", part)
    (folder / "params_shapes.json").write_text(json.dumps(shapes), "utf-8")
    tokens = {token: n for n, token in enumerate(["<unk>", "a", "b", "a</w>", "b</w>", "ab</w>"])}
    (folder / "encoder_bpe_40000.json").write_text(json.dumps(tokens), "utf-8")
    (folder / "vocab_40000.bpe").write_text("#version: 0.2\na b</w>\n", "utf-8")


def elmo_files(folder: Path) -> None:
    folder.mkdir()
    lstm = {"use_skip_connections": True, "projection_dim": 6, "cell_clip": 3, "proj_clip": 3, "dim": 16, "n_layers": 2}
    cnn = {"activation": "relu", "filters": [[1, 4], [2, 4]], "n_highway": 1, "embedding": {"dim": 16},
           "n_characters": 262, "max_characters_per_token": 50}  # fmt: skip
    (folder / "options.json").write_text(json.dumps({"lstm": lstm, "char_cnn": cnn}), "utf-8")
    config = ElmoConfig(char_width=16, filters=((1, 4), (2, 4)), highway=1, cells=16, projection=6)
    with h5py.File(folder / "weights.hdf5", "w") as file:
        for name, shape in shapes_of(bilm(config.filters, 1, True), elmo.sizes(config)).items():
            file.create_dataset(name, data=np.ones(shape, np.float32))


MADE = {"hf": hf, "parts": hf_in_parts, "bert-tf": google, "gpt1-npy": gpt1, "bilm": elmo_files}


def attempt(folder: Path, format: Any, to: Path) -> None:
    """It comes in, or it is said in one line, soon, in little memory, and nothing lies there."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    size = sum(file.stat().st_size for file in folder.iterdir())
    try:
        convert.import_model(format, folder, to)
    except DataError as error:
        assert str(folder) in str(error) and "\n" not in str(error), error
        assert not to.exists()
    assert not list(to.parent.glob(".*partial"))
    assert time.monotonic() - began < 20
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < size + 200e6
    shutil.rmtree(to, ignore_errors=True)


def mutated(raw: bytes, edits: list[tuple[float, int, bytes]], head: int) -> bytes:
    for share, gone, put in edits:
        place = int(share * min(head, len(raw)))
        raw = raw[:place] + put + raw[place + gone :]
    return raw


@pytest.mark.parametrize(
    ("kind", "name", "head"),
    [
        ("hf", "model.safetensors", 8),
        ("hf", "model.safetensors", 5000),
        ("hf", "config.json", 10**9),
        ("hf", "tokenizer.json", 10**9),
        ("hf", "tokenizer_config.json", 10**9),
        ("parts", "model.safetensors.index.json", 10**9),
        ("bert-tf", "bert_model.ckpt.index", 10**9),
        ("bert-tf", "vocab.txt", 10**9),
        ("gpt1-npy", "params_3.npy", 200),
        ("gpt1-npy", "encoder_bpe_40000.json", 10**9),
        ("gpt1-npy", "vocab_40000.bpe", 10**9),
        ("bilm", "weights.hdf5", 3000),
    ],
)
def test_bytes_put_in_and_taken_out_are_read_or_said(kind, name, head, tmp_path_factory, monkeypatch):
    """Of a checkpoint's table also where the checksums are right: whoever wants to harm computes them."""
    folder = tmp_path_factory.mktemp("mutated") / "theirs"
    MADE[kind](folder)
    raw = (folder / name).read_bytes()
    if kind == "bert-tf":
        monkeypatch.setattr(tf_checkpoint, "masked_crc32c", lambda raw: ANY)

    @EXAMPLES[150]
    @given(ANY_BYTES)
    def mutate(edits: list[tuple[float, int, bytes]]) -> None:
        (folder / name).write_bytes(mutated(raw, edits, head))
        attempt(folder, "hf" if kind == "parts" else kind, folder.parent / "run")

    mutate()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("hf", "config.json"),
        ("hf", "tokenizer.json"),
        ("hf", "tokenizer_config.json"),
        ("parts", "model.safetensors.index.json"),
        ("bert-tf", "bert_config.json"),
        ("gpt1-npy", "params_shapes.json"),
        ("bilm", "options.json"),
    ],
)
def test_any_value_in_their_json_is_read_or_said(kind, name, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mutated") / "theirs"
    MADE[kind](folder)
    tree = json.loads((folder / name).read_text("utf-8"))

    @EXAMPLES[40]
    @given(st.data())
    def mutate(data: st.DataObject) -> None:
        changed = json.loads(json.dumps(tree))
        place: Any = changed
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = data.draw(st.sampled_from(keys))
            deeper = isinstance(place[key], dict | list) and len(place[key]) > 0
            if not deeper or data.draw(st.booleans()):
                break
            place = place[key]
        place[key] = data.draw(ANY_JSON)
        (folder / name).write_text(json.dumps(changed), "utf-8")
        attempt(folder, "hf" if kind == "parts" else kind, folder.parent / "run")

    mutate()
