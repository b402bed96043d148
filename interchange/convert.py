"""Import of published models as runs, and export of runs to files that other libraries read."""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TypeAlias, TypedDict

import jax
import numpy as np

from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.layouts import text_batch
from contexture.data.storage import atomic_folder, check_free, check_no_address, check_run_path
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.huggingface.known_options import SETTINGS
from contexture.interchange.allennlp_bilm import bilm_files, check_bilm_family, open_bilm, write_bilm_weights
from contexture.interchange.google_openai import open_bert_tf, open_gpt1_npy, open_gpt2_tf
from contexture.interchange.huggingface_export import hf_files, write_hf_weights
from contexture.interchange.huggingface_import import open_hf
from contexture.interchange.import_options import ImportOptions
from contexture.interchange.imported_model import ImportedModel, with_labels
from contexture.interchange.model_card import model_card
from contexture.interchange.peft_export import check_has_adapters, peft_files, write_peft_weights
from contexture.interchange.renaming import ParamMapping, check_repeats, param_mappings
from contexture.interchange.sentence_transformers import sentence_files, with_padding
from contexture.interchange.stablehlo import stablehlo_files, write_stablehlo_weights
from contexture.interchange.static_vectors import open_vectors
from contexture.interchange.weight_files import Tensors
from contexture.models.config import TransformerConfig
from contexture.models.families import example
from contexture.models.shapes import Params, by_path
from contexture.train import mesh as meshes
from contexture.train.checkpoints.initial import Leaf, write_first
from contexture.train.checkpoints.meta import Step
from contexture.train.checkpoints.transfer import load_parameters, model_of
from contexture.train.errors import CheckpointError, ConfigError
from contexture.train.objectives import batch_fields, batch_sizes
from contexture.train.run.folder import versions
from contexture.train.run.limits import available_memory
from contexture.train.run.vocabulary import read_tokenizer
from contexture.train.settings import run_file
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import RunRecord
from contexture.train.settings.sections import MeshConfig

logger = logging.getLogger(__name__)

OPENED_SIZE = 3.5
"""How many times the size of its parameters a model takes when a text is read with it: as read, held and copied."""
_NOT_OPENED = "too little memory here to open the model whole; no text was read with it"
ExportedFiles: TypeAlias = tuple[dict[str, bytes], dict[str, np.ndarray]]
"""(files by name, the tensors of the weights by name)."""


@dataclass(frozen=True)
class Exporter:
    """How runs are written in a format."""

    check: Callable[[Path, Run], None]
    """(folder, run) → raises ConfigError for a run that the format cannot hold; called before anything is read."""
    files: Callable[[RunRecord, Params, Tokenizer], ExportedFiles]
    """Raises: ConfigError or DataError when the format cannot hold the run."""
    write_weights: Callable[[Path, Mapping[str, np.ndarray]], None]
    """Writes the tensors into the folder, which holds the files by then."""
    merges: bool = True
    """Whether `files` takes the parameters with their adapters merged into them, or as separate arrays."""


EXPORTERS: dict[str, Exporter] = {
    "hf": Exporter(lambda folder, run: None, hf_files, write_hf_weights),
    "peft": Exporter(check_has_adapters, peft_files, write_peft_weights, merges=False),
    "bilm": Exporter(check_bilm_family, bilm_files, write_bilm_weights),
    "stablehlo": Exporter(lambda folder, run: None, stablehlo_files, write_stablehlo_weights),
}


class ImportResult(TypedDict):
    """An imported run; `missing` are the parameters that its files lack, which were initialised randomly."""

    run: str
    parameters: int
    vocab_size: int
    missing: list[str]


class ExportResult(TypedDict):
    """An exported folder."""

    to: str
    step: int
    files: list[str]


Notes: TypeAlias = list[str]
"""Messages to log once the run is written."""
_OPENERS: dict[str, Callable[[Path, Path, ImportOptions, Notes, CancelToken], ImportedModel]] = {
    "hf": lambda path, to, how, notes, _: open_hf(path, to, how.vocabulary, how.lowers, notes),
    "bert-tf": lambda path, to, how, notes, _: open_bert_tf(path, to, how.vocabulary, how.lowers, how.gelu, notes),
    "gpt2-tf": lambda path, to, how, notes, _: open_gpt2_tf(path, to, how.vocabulary, notes),
    "gpt1-npy": lambda path, to, how, notes, _: open_gpt1_npy(path, to, how.vocabulary, notes),
    "bilm": lambda path, to, how, notes, _: open_bilm(
        path, to, how.vocabulary, "spaces" if how.word_splitter == "auto" else how.word_splitter
    ),
    "vectors": lambda path, to, how, notes, cancel: open_vectors(
        path, to, how.lowers, how.word_splitter, notes, cancel
    ),
}
"""By format: (its files, the run's folder, options, notes, cancel) → the model."""
IMPORTERS = tuple(_OPENERS)
"""The formats that `import_model` reads."""


def import_model(
    format: str,
    path: Path,
    to: Path,
    cancel: CancelToken = NEVER,
    how: ImportOptions = ImportOptions(),  # noqa: B008  # frozen
) -> ImportResult:
    """Writes a published model as a run at step 0. Its tensors are read one at a time.

    On an error nothing is left behind.

    Args:
        format: one of IMPORTERS.
        path: its files; for hf also the name of a model on the hub.
        to: the run's folder.
        cancel: may raise before each tensor to stop the import.
        how: what the files do not say.

    Raises:
        DataError: when files are damaged, missing or unknown, or there are more or fewer labels than classes.
        ConnectionError: when the hub does not answer.
    """
    check_no_address(path)
    check_free(to)
    check_run_path(to, "--to")
    notes: Notes = []
    model = _OPENERS[format](path, to, how, notes, cancel)
    return _write_run(to, with_labels(model, how.labels) if how.labels else model, notes, cancel)


def export_model(
    folder: Path,
    format: str,
    to: Path,
    step: Step,
    cancel: CancelToken = NEVER,
    pooling: str = "",
    overwrite: bool = False,
) -> ExportResult:
    """Writes a run as files that other libraries read, with a README.md, the model card.

    Args:
        folder: the run's folder.
        format: hf, peft, bilm or stablehlo.
        to: the folder to write.
        step: the checkpoint.
        cancel: may raise to stop the export.
        pooling: for hf: how sentence-transformers, which then loads the folder too, pools vectors; empty: not at all.
        overwrite: replace an earlier export of the same files.

    Raises:
        ConfigError: when the format cannot hold the run.
        DataError: when the format cannot hold the vocabulary.
    """
    check_free(to, overwrite)
    exporter, record = EXPORTERS[format], run_file.read(folder)
    exporter.check(folder, record.run)
    tokenizer = read_tokenizer(folder, record)
    # On one device: the files need the parameters whole in memory anyway.
    mesh = meshes.build(MeshConfig(), meshes.find_devices()[:1])
    with meshes.use(mesh, record.run.model.dtype):
        loaded = load_parameters(folder, record.run, record.labels, mesh, step, merge=exporter.merges)
    cancel.check()
    files, tensors = exporter.files(record, jax.device_get(loaded.params), tokenizer)
    parameters = sum(x.size for x in jax.tree.leaves(loaded.params))
    model = record.run.model
    if pooling and isinstance(model, TransformerConfig):
        files |= {SETTINGS: with_padding(files[SETTINGS]), **sentence_files(model, pooling)}
    library = "sentence-transformers" if pooling else format
    files["README.md"] = model_card(folder, record, loaded.step, library, parameters).encode()
    with atomic_folder(to, overwrite) as part:
        for name, content in files.items():
            (part / name).parent.mkdir(exist_ok=True)
            (part / name).write_bytes(content)
        # Behind the other files, whose access rights the weights may take over.
        exporter.write_weights(part, tensors)
        cancel.check()
    return {"to": str(to), "step": loaded.step, "files": sorted(file.name for file in to.iterdir())}


def _write_run(to: Path, imported: ImportedModel, notes: list[str], cancel: CancelToken) -> ImportResult:
    """Writes a run's folder at step 0, whole or not at all, without optimizer.

    Parameters that the files lack are initialised randomly.
    """
    run, tensors = imported.run, imported.tensors
    try:
        check_repeats(imported.table, tensors.shapes, tensors.read)
    except ValueError as error:
        raise DataError(f"{tensors.where}: {error}") from None
    stored = {
        mapping.ours: _leaf(mapping, tensors, cancel) for mapping in param_mappings(imported.table, imported.sizes)
    }
    model = model_of(run, imported.labels)

    def init() -> dict[str, jax.Array]:
        return by_path(model.init(jax.random.key(run.seed), example(batch_fields(run), batch_sizes(run, 1)))["params"])

    # Shapes alone: nothing is drawn for parameters that the files have.
    expected = jax.eval_shape(init)
    missing = [path for path in expected if path not in stored]
    for path, leaf in stored.items():
        assert expected[path].shape == leaf.shape, (path, expected[path].shape, leaf.shape)
    # Compiled for the missing parameters alone: XLA drops the code that draws the others, which may not fit in memory.
    with meshes.numerics(run.model.dtype):
        drawn = jax.jit(lambda: {path: x for path, x in init().items() if path in missing})() if missing else {}
    leaves = {**stored, **{path: Leaf(x.shape, lambda x=x: np.asarray(x)) for path, x in drawn.items()}}
    count = sum(prod(leaf.shape) for leaf in stored.values())
    with atomic_folder(to) as part:
        imported.tokenizer.save(part / "tokenizer")
        write_first(part, leaves, run.seed)
        record = RunRecord(
            run=run,
            versions=versions(),
            tokenizer=imported.tokenizer.fingerprint,
            labels=imported.labels,
            imported=dataclasses.replace(imported.provenance, missing=tuple(missing)),
        )
        run_file.write(part, record)
        # Before the folder gets its name: a run that cannot be opened is never left there.
        _check_opens(part, to, sum(leaf.nbytes for leaf in leaves.values()))
    if missing:
        logger.warning(f"{imported.missing_note}: {', '.join(missing)}")
    for note in filter(None, (*notes, tensors.note())):
        logger.info(note)
    return {"run": str(to), "parameters": count, "vocab_size": imported.tokenizer.size, "missing": missing}


def _check_opens(folder: Path, to: Path, size: int) -> None:
    """Opens the written run, verifies all of its arrays, and lets the model read a text.

    A run is written one tensor at a time, perhaps for a larger machine: if its parameters do not fit into this one's
    memory, a warning says so and the check is skipped.

    Args:
        folder: the folder that was written, under its temporary name.
        to: its final name, for errors.
        size: of the parameters, in bytes.

    Raises:
        DataError: when the run cannot be opened or answers with NaN or infinity; the caller leaves no such run.
    """
    try:
        record = run_file.read(folder)
        tokenizer = read_tokenizer(folder, record)
        config = record.run.model
        batch = text_batch(tokenizer, ["Open, and read 1 text."], config.length)
        rows = config.vocab
        if "tokens" in batch and batch["tokens"].max() >= rows:
            raise DataError(f"{to}: the vocabulary has ids behind the model's {rows:,} rows; give its own")
        free = available_memory()
        if free is not None and free < OPENED_SIZE * size:
            raise MemoryError
        mesh = meshes.build(MeshConfig(), meshes.find_devices()[:1])
        with meshes.use(mesh, config.dtype):
            loaded = load_parameters(folder, record.run, record.labels, mesh)
            read = jax.jit(lambda params: loaded.model.apply({"params": params}, batch, only=()).encoding.hidden_BLD)
            hidden_BLD = read(loaded.params)
    except (DataError, ConfigError, CheckpointError) as error:
        raise DataError(str(error).replace(str(folder), str(to))) from None
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        logger.warning(f"{to}: {_NOT_OPENED}")
        return
    if not np.isfinite(np.asarray(hidden_BLD, np.float32)).all():
        raise DataError(f"{to}: the model answers with numbers that are not finite; its weights are no model's")


def _leaf(mapping: ParamMapping, tensors: Tensors, cancel: CancelToken) -> Leaf:
    def make() -> np.ndarray:
        cancel.check()
        return mapping.load(tensors.read)

    return Leaf(mapping.shape, make)
