"""Runs a frozen backbone once over all examples of a task, and lets batches read its outputs (features) from disk.

Where a step computes the backbone itself, an example may share a row with others, and its sums be taken in another
order: the last bits may differ.
"""

import dataclasses
import hashlib
import json
import logging
import math
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from contexture.data.batches import iterate
from contexture.data.binary_files import I64
from contexture.data.errors import DataError
from contexture.data.storage import left_partials
from contexture.data.tasks.batch.batches import HeldOutTask
from contexture.data.tasks.batch.training_batches import TaskBatches
from contexture.data.tasks.store.stored_features import FeatureFiles, Shape, writing
from contexture.models.shapes import Params
from contexture.train import mesh as meshes
from contexture.train.checkpoints.digests import digests
from contexture.train.errors import CheckpointError
from contexture.train.frozen.encoder import Batch, Encoder, make_encoder
from contexture.train.run.signals import Signals
from contexture.train.setup import TrainingSetup

logger = logging.getLogger(__name__)

FOLDER = "features"


def with_stored_features(
    parts: TrainingSetup, params: Params, folder: Path, shared: Path | None, signals: Signals
) -> TrainingSetup:
    """Makes the batches of a run with a frozen backbone read stored features, computing those that are missing.

    Runs without a frozen backbone, or with `--data.features off`, are returned unchanged.

    Args:
        parts: what the run trains with.
        params: its parameters, whose backbone is run.
        folder: the run's folder.
        shared: a folder of features that several runs use; None for one in the run's folder.
        signals: may stop the work between two batches.

    Raises:
        CheckpointError: when the disk is full.
    """
    run, batches, held_out = parts.run, parts.batches, parts.held_out
    if run.task.kind == "off" or not run.optim.freezes_backbone or run.data.features == "off":
        return parts
    if why := _why_not(parts):
        logger.info(f"what the frozen backbone computes is computed for each step: {why}")
        return parts
    assert isinstance(batches, TaskBatches)
    place = shared or folder / FOLDER
    extraction = _Extraction(parts, make_encoder(parts.model, run), params, place, signals)
    # Training and held-out examples are two splits, each with files of its own.
    fields = extraction.encoder.fields
    # Training's batches are random; for the one pass the same examples are read in order, each once.
    devices = meshes.batch_devices(parts.mesh)
    one_pass = HeldOutTask(batches.split, parts.tokenizer, run.data, run.data.batch, family=run.family, devices=devices)
    files = [extraction.files_of("train", one_pass)]
    # Batches keep their order and their fields; features come as further fields.
    parts = dataclasses.replace(parts, batches=batches.with_features(files[0], fields))
    if isinstance(held_out, HeldOutTask):
        files.append(extraction.files_of("dev", held_out))
        parts = dataclasses.replace(parts, held_out=held_out.with_features(files[1], fields))
    if shared is None:
        # Features of other parameters or settings, which nobody will read again. Others may use a shared folder's.
        for other in set(place.iterdir()) - {each.folder for each in files}:
            shutil.rmtree(other, ignore_errors=True)
    return parts


def _why_not(parts: TrainingSetup) -> str:
    # Three cases in which a step must run the backbone itself.
    if not parts.run.reads_features:
        return "the loss over the vocabulary (task.lm-weight) reads the backbone's own table"
    if jax.process_count() > 1:
        return "several processes train"
    if parts.run.data.ramp_from:
        return "batches grow (data.ramp-from)"
    return ""


class _Extraction:
    """Computes and stores the features of a split in one pass, for splits that have no files yet."""

    def __init__(self, parts: TrainingSetup, encoder: Encoder, params: Params, place: Path, signals: Signals) -> None:
        self.parts, self.encoder, self.params, self.place, self.signals = parts, encoder, params, place, signals
        # The backbone's content, not its path or step: two runs that begin from the same checkpoint share features.
        words, _ = digests(params["backbone"], parts.mesh)
        self._backbone = hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()

    def files_of(self, name: str, examples: HeldOutTask) -> FeatureFiles:
        """Returns the features of a split, computed if they are missing or damaged. examples: the split's, each once.

        Their folder is named by a digest of all that they depend on.
        """
        run, mesh = self.parts.run, self.parts.mesh
        # Lengths, batch, devices and the version of jax change the order of sums, and so the last bits.
        of = {
            "backbone": self._backbone,
            "model": dataclasses.asdict(run.model),
            "data": self.parts.store.fingerprint,
            "tokenizer": self.parts.tokenizer.fingerprint,
            "split": name,
            "shape": str(examples.shape),
            "batch": examples.batch,
            "word_types": run.data.word_types,
            "layers": self.encoder.layers,
            "fields": self.encoder.fields,
            "devices": [mesh.devices.flat[0].device_kind, dict(mesh.shape)],
            "jax": jax.__version__,
        }
        digest = hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()
        folder, shape = self.place / f"{name}-{digest[:16]}", self._shape(examples)
        # Computed by an earlier start, or by another run of the grid.
        if folder.is_dir():
            try:
                files = FeatureFiles.open(folder, shape, of, self.signals)
                logger.info(f"reading what the frozen backbone computes of the {name} examples from {folder}")
                return files
            except DataError as error:
                logger.warning(f"{str(error).rpartition(';')[0]}; computing it again")
                shutil.rmtree(folder)
        # What a killed start was writing here; the run's lock is held, so nobody is writing it now.
        for left in left_partials(folder):
            shutil.rmtree(left, ignore_errors=True)
        # Written under a temporary name and renamed when whole: a folder with this name is complete.
        start = time.monotonic()
        try:
            self._write(folder, examples, shape, of)
        # Features are large: a full disk is the usual cause.
        except OSError as error:
            raise CheckpointError(
                f"{error.filename or folder}: {error.strerror or error} while what the frozen backbone computes was "
                "written; make room, or give --data.features off"
            ) from None
        size = sum(file.stat().st_size for file in folder.iterdir())
        logger.info(
            f"computed what the frozen backbone gives for {examples.split.examples:,} {name} examples in "
            f"{time.monotonic() - start:.1f} s: {size / 1e6:,.1f} MB in {folder}"
        )
        return FeatureFiles.open(folder, shape, of, self.signals)

    def _shape(self, examples: HeldOutTask) -> Shape:
        # Shapes from one batch, without computing it: number of layers, width, dtype.
        sample = meshes.shard_batch(self.parts.mesh, examples.read(0), examples.fields, examples.batch)
        shapes = jax.eval_shape(self.encoder.jitted, self.params["backbone"], self._read(sample))
        one = next(iter(shapes.values()))
        layers = shapes["states"].shape[-3] if "states" in shapes else 0
        return Shape(layers, one.shape[-1], "pooled" in shapes, np.dtype(one.dtype))

    def _write(self, folder: Path, examples: HeldOutTask, shape: Shape, of: dict[str, object]) -> None:
        split = examples.split
        folder.parent.mkdir(parents=True, exist_ok=True)
        several = split.sequences
        # An estimate before the work: tokens with about two special ones a sequence, cut at the length.
        tokens = sum(int(np.minimum(split.tokens_of(part) + 2, examples.length).sum()) for part in split.parts())
        numbers = several * (tokens * shape.layers + split.examples * shape.pooled) * shape.width
        # Refused before hours of work rather than at their end.
        expected = numbers * shape.dtype.itemsize
        if expected > (free := shutil.disk_usage(folder.parent).free):
            raise CheckpointError(
                f"{folder.parent}: {expected / 1e9:,.1f} GB are to be stored of what the frozen backbone computes, and "
                f"{free / 1e9:,.1f} GB are free; make room, or give --data.features off"
            )
        # Sequence s of example x has the number x · several + s.
        with writing(folder, shape, split.examples * several, of) as writer:
            for numbers_X, mask_BL, features in self._computed(examples):
                writer.add((numbers_X[:, None] * several + np.arange(several)).ravel(), mask_BL, features)

    def _read(self, batch: Batch) -> Batch:
        return {name: batch[name] for name in self.encoder.reads}

    def _computed(self, examples: HeldOutTask) -> Iterator[tuple[I64, np.ndarray, dict[str, np.ndarray]]]:
        """Yields, batch by batch, (numbers of examples, the mask BL of their sequences, their features).

        A batch is fetched only when the next one has been started, so the device never waits for the disk.
        """
        before: tuple[I64, np.ndarray, Batch] | None = None
        with iterate(examples, 0, examples.steps) as stream:
            for step, local in stream:
                self.signals.check()
                # The call returns at once; `before` is fetched while the device computes this batch.
                batch = meshes.shard_batch(self.parts.mesh, local, examples.fields, examples.batch)
                features = self.encoder.jitted(self.params["backbone"], self._read(batch))
                if before is not None:
                    yield _fetched(*before)
                before = examples.numbers(step), local["mask"], features
        if before is not None:
            yield _fetched(*before)


def _fetched(numbers: I64, mask: np.ndarray, features: Batch) -> tuple[I64, np.ndarray, dict[str, np.ndarray]]:
    """Fetches features to the host: BA… → (B·A)…, without the rows that only fill up the batch."""
    # numbers has the real examples only, and each has A sequences (mask BAL) or one (mask BL).
    count = len(numbers) * math.prod(mask.shape[1:-1])
    several = mask.ndim == 3
    arrays: dict[str, np.ndarray] = {name: np.asarray(x) for name, x in jax.device_get(features).items()}
    arrays = {name: x.reshape(-1, *x.shape[2:]) if several else x for name, x in arrays.items()}
    return numbers, mask.reshape(-1, mask.shape[-1])[:count], {name: x[:count] for name, x in arrays.items()}
