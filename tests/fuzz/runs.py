"""What runs and prepared data consist of: descriptions, figures, indexes, checkpoints."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from contexture.data.config import DataConfig
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.storage import check_run_path
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tasks.store.example_store import ExampleStore
from contexture.data.tokenizers.registry import load_tokenizer
from contexture.train import mesh as meshes
from contexture.train.checkpoints import meta
from contexture.train.checkpoints.manager import Checkpoints
from contexture.train.checkpoints.read_back import read_back
from contexture.train.run.folder import open_or_create, steps
from contexture.train.run.report import Report, read_metrics
from contexture.train.settings import run_file
from contexture.train.settings.sections import MeshConfig, SaveConfig
from contexture.train.step import State
from tests.conftest import ROOT
from tests.fuzz.mutate import of_bytes, of_json, of_json_lines
from tests.fuzz.tables import CLASSIFY, LINES, tokenizer
from tests.fuzz.target import Target

GOLDEN = ROOT / "tests" / "golden"


def golden(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        shutil.copytree(GOLDEN / name, folder)
        (folder / "text.txt").write_text("\n".join(LINES) + "\n", "utf-8")

    return make


def _description(folder: Path, to: Path) -> None:
    run = run_file.read(folder).run
    run_file.fingerprint(run, "a", "b")
    load_tokenizer(folder / "tokenizer")
    copied = shutil.copytree(folder, to)
    open_or_create(run, Path(copied))


def _metrics(folder: Path, to: Path) -> None:
    list(read_metrics(folder / "metrics.jsonl"))
    copied = Path(shutil.copytree(folder, to))
    report = Report(copied, steps=10, speaks=True, tensorboard=False)
    report.start(3, 2)
    report.close()
    assert all(record["step"] <= 3 for record in read_metrics(copied / "metrics.jsonl"))


def _shards(folder: Path) -> None:
    text = folder.parent / "text"
    text.mkdir()
    (text / "text.txt").write_text("\n\n".join("\n".join(LINES) for _ in range(3)), "utf-8")
    prepare(DataConfig(path=(str(text),), length=16, dev_fraction=0.3), tokenizer(), folder)


def _open_shards(folder: Path, to: Path) -> None:
    shards = Shards.open(folder)
    shards.verify()
    shards.unigrams()
    shards.read(np.array([0]), np.array([min(shards.tokens, 9)]))
    for split in shards.splits:
        shards.spans(split)


def _name(folder: Path) -> None:
    folder.mkdir()
    (folder / "name").write_bytes(b"ex v2/a]b/%41#x:~ y/../z/\xc3\xa9")


def _store(folder: Path) -> None:
    text = folder.parent / "table"
    text.mkdir()
    rows = "".join(json.dumps({"text": line, "label": n % 2}) + "\n" for n, line in enumerate(LINES))
    (text / "train.jsonl").write_text(rows, "utf-8")
    from dataclasses import replace

    encode(replace(CLASSIFY, train=(str(text / "train.jsonl"),)), tokenizer(), folder)


def _open_store(folder: Path, to: Path) -> None:
    store = ExampleStore.open(folder)
    store.verify()
    for split in store.splits.values():
        if split.examples:
            split.take(np.arange(split.examples))


def _meta(folder: Path, to: Path) -> None:
    meta.read_meta(folder / "checkpoints" / "3")
    steps(folder / "checkpoints")


def _path(folder: Path, to: Path) -> None:
    """A run whose folder has any name: its checkpoint is where the file system says, or it is refused before."""
    name = os.fsdecode((folder / "name").read_bytes())
    if "\0" in name:  # no command line can give it
        return
    run = to / "a" / name
    check_run_path(run)
    if not os.path.realpath(run).startswith(os.path.realpath(to) + "/"):
        return
    run.mkdir(parents=True, exist_ok=True)
    mesh = meshes.build(MeshConfig(), jax.devices()[:1])
    state = {"x": jax.device_put(np.arange(3.0, dtype=np.float32), meshes.replicated(mesh))}
    zero = jax.device_put(np.int32(0), meshes.replicated(mesh))
    checkpoints = Checkpoints(run, mesh, SaveConfig())
    checkpoints.save(1, State(zero, state, {}, zero, zero), {}, None)
    checkpoints.wait()
    checkpoints.close()
    read_back(run / "checkpoints" / "1", whole=True)
    written = {os.path.realpath(file.parent) for file in to.rglob("manifest.ocdbt")}
    assert all(place.startswith(os.path.realpath(run) + "/") for place in written)


_STEP = "checkpoints/3"
TARGETS = (
    Target("run.path", _name, "name", of_bytes, _path, slow=True, keeps=True),
    Target("run.json", golden("bert_3_steps"), "run.json", of_json, _description, keeps=True),
    Target("run.json-elmo", golden("elmo_tag"), "run.json", of_json, _description, keeps=True),
    Target("run.json-gpt", golden("gpt_banded"), "run.json", of_json, _description, keeps=True),
    Target("run.metrics", golden("bert_3_steps"), "metrics.jsonl", of_json_lines, _metrics, keeps=True),
    Target("run.checkpoint-meta", golden("bert_3_steps"), f"{_STEP}/meta/metadata", of_json, _meta),
    Target("run.checkpoint-digest", golden("bert_3_steps"), f"{_STEP}/digest/metadata", of_json, _meta),
    Target("shards.index", _shards, "index.json", of_json, _open_shards),
    Target("shards.sentences", _shards, "sentences.bin", of_bytes, _open_shards),
    Target("store.index", _store, "index.json", of_json, _open_store),
)
