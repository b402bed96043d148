"""Models of others as runs, and runs as files that others read."""

import logging
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np

from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.storage import atomic_folder, check_free
from contexture.models.interchange.renaming import ParamMapping, check_repeats, param_mappings
from contexture.models.model import example
from contexture.models.shapes import by_path
from contexture.train import mesh as meshes
from contexture.train import run_file
from contexture.train.checkpoints.initial import Leaf, write_first
from contexture.train.checkpoints.transfer import load_parameters, model_of
from contexture.train.interchange.allennlp_bilm import bilm_family, bilm_files, open_bilm, write_hdf5
from contexture.train.interchange.google_openai import open_bert_tf, open_gpt1_npy, open_gpt2_tf
from contexture.train.interchange.huggingface_export import hf_files
from contexture.train.interchange.huggingface_import import open_hf
from contexture.train.interchange.imported_model import ImportedModel
from contexture.train.interchange.weight_files import Tensors
from contexture.train.objectives import batch_fields, batch_sizes
from contexture.train.options import MeshConfig
from contexture.train.run.data import read_tokenizer
from contexture.train.run.folder import versions

logger = logging.getLogger(__name__)

Check = Callable[[], None]


def import_model(
    format: str,
    path: Path,
    to: Path,
    cancel: CancelToken = NEVER,
    *,
    vocabulary: str = "",
    lowercase: bool | None = None,
    gelu: str = "erf",
    word_splitter: str = "spaces",
) -> dict[str, Any]:
    """A published model as a run, at step 0: {"run", "parameters", "vocab_size", "missing"}, the last the parameters
    that its files do not hold. Its tensors are read one at a time; `cancel` may raise before each to stop it.

    format: hf, bert-tf, gpt2-tf, gpt1-npy or bilm. vocabulary: another file of it than the model's own. lowercase (hf
    and bert-tf; None: as the files say), gelu (bert-tf) and word_splitter (bilm) as in the command's options.

    Raises: DataError for files that are not what they should be, naming what is wrong; then nothing is left behind.
    """
    check_free(to)
    notes: list[str] = []  # said when all is well
    if format == "hf":
        published = open_hf(path, to, vocabulary, lowercase, notes)
    elif format == "bert-tf":
        published = open_bert_tf(path, to, vocabulary, lowercase, gelu, notes)
    elif format == "gpt2-tf":
        published = open_gpt2_tf(path, to, vocabulary, notes)
    elif format == "gpt1-npy":
        published = open_gpt1_npy(path, to, vocabulary, notes)
    else:
        published = open_bilm(path, to, vocabulary, word_splitter)
    return _write_run(to, published, notes, cancel)


def export_model(folder: Path, format: str, to: Path, step: int | None, cancel: CancelToken = NEVER) -> dict[str, Any]:
    """A run as files that others read: {"to", "step", "files"}. `cancel` may raise to stop it.

    Raises: ConfigError for a run that the format has no place for, DataError for such a vocabulary.
    """
    check_free(to)
    record = run_file.read(folder)
    run = record.run
    if format == "bilm":
        bilm_family(folder, run)
    tokenizer = read_tokenizer(folder, record)
    mesh = meshes.build(MeshConfig(), meshes.find_devices()[:1])
    loaded = load_parameters(folder, run, record.labels, mesh, step)
    cancel.check()
    params = jax.device_get(loaded.params)
    if format == "bilm":
        files, tensors = bilm_files(run, params, tokenizer)
    else:
        files, tensors = hf_files(record, params, tokenizer)
    with atomic_folder(to) as part:
        for name, content in files.items():
            (part / name).write_bytes(content)
        if format == "bilm":
            write_hdf5(part / "weights.hdf5", tensors)
        else:
            from safetensors.numpy import save_file

            weights = part / "model.safetensors"
            save_file(tensors, weights, metadata={"format": "pt"})
            weights.chmod((part / "config.json").stat().st_mode)  # the library lets nobody else read it
        cancel.check()
    return {"to": str(to), "step": loaded.step, "files": sorted(file.name for file in to.iterdir())}


def _write_run(to: Path, published: ImportedModel, notes: list[str], cancel: CancelToken) -> dict[str, Any]:
    """A run's folder at step 0, there whole or not at all: the parameters of the files, those that they lack drawn, no
    optimizer."""
    run, tensors = published.run, published.tensors
    try:
        check_repeats(published.table, tensors.shapes, tensors.read)
    except ValueError as error:
        raise DataError(f"{tensors.where}: {error}") from None
    read = {place.ours: _leaf(place, tensors, cancel) for place in param_mappings(published.table, published.sizes)}
    model = model_of(run, published.labels)

    def init() -> dict[str, Any]:
        return by_path(model.init(jax.random.key(run.seed), example(batch_fields(run), batch_sizes(run, 1)))["params"])

    wanted = jax.eval_shape(init)
    drawn = [path for path in wanted if path not in read]
    for path, leaf in read.items():
        assert wanted[path].shape == leaf.shape, (path, wanted[path].shape, leaf.shape)
    made = jax.jit(lambda: {path: x for path, x in init().items() if path in drawn})() if drawn else {}
    leaves = {**read, **{path: Leaf(x.shape, lambda x=x: np.asarray(x)) for path, x in made.items()}}
    count = sum(prod(leaf.shape) for leaf in read.values())
    with atomic_folder(to) as part:
        published.tokenizer.save(part / "tokenizer")
        write_first(part, leaves, run.seed)
        imported = run_file.Imported(**published.provenance, missing=tuple(drawn))
        facts: dict[str, Any] = {"tokenizer": published.tokenizer.fingerprint, "labels": published.labels}
        run_file.write(part, run_file.RunRecord(run=run, versions=versions(), imported=imported, **facts))
    if drawn:
        logger.warning(f"{published.missing_note}: {', '.join(drawn)}")
    for note in filter(None, (*notes, tensors.note())):
        logger.info(note)
    return {"run": str(to), "parameters": count, "vocab_size": published.tokenizer.size, "missing": drawn}


def _leaf(place: ParamMapping, tensors: Tensors, cancel: CancelToken) -> Leaf:
    def make() -> np.ndarray:
        cancel.check()
        return place.load(tensors.read)

    return Leaf(place.shape, make)
