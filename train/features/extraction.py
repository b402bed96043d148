"""Computes what a frozen backbone gives for all examples of a task once, and has the batches read it from disk.

A batch is padded to one of several lengths, and two lengths are two compiled programs, whose results may differ in
their last bits: sums are taken in another order. So that training reads the bits that it would compute, lengths are
grouped by trying them (`group_lengths`), and an example is computed once for each group, at the shortest length of the
group that holds it. Which examples share a batch makes no difference.

Two lengths may round differently in a few examples alone: in one of eight, by a CPU with vectors of 512 bits. So
lengths are tried on `TRIED` examples of the whole set.
"""

import hashlib
import json
import logging
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import numpy as np

from contexture.data.batches import iterate
from contexture.data.binary_files import I64
from contexture.data.config import WORD_FAMILIES
from contexture.data.errors import DataError
from contexture.data.storage import left_partials
from contexture.data.tasks.batches import HeldOutTask, TaskBatches
from contexture.data.tasks.example_store import ExampleSplit, ExampleStore
from contexture.data.tasks.features.stored_features import FeatureFiles, Shape, StoredFeatures, writing
from contexture.models.shapes import Params
from contexture.train import mesh as meshes
from contexture.train.checkpoints.digests import digests
from contexture.train.compilation.encoder import Batch, Encoder
from contexture.train.errors import CheckpointError
from contexture.train.run.signals import Signals
from contexture.train.setup import TrainingSetup

logger = logging.getLogger(__name__)

FOLDER = "features"
TRIED = 128


def store_features(
    parts: TrainingSetup,
    params: Params,
    encoder: Encoder | None,
    folder: Path,
    shared: Path | None,
    signals: Signals,
) -> None:
    """Has the batches of a run with a frozen backbone read what it computes, which is computed where it is not there.

    folder: the run's. shared: a folder that other runs read and write too, in place of one in the run's. Raises
    CheckpointError where the disk is full.
    """
    run, batches = parts.run, parts.batches
    if run.task.kind == "off" or not run.optim.freezes_backbone or run.data.features == "off":
        return
    if why := _why_not(parts, encoder):
        logger.info(f"what the frozen backbone computes is computed for each step: {why}")
        return
    assert encoder is not None and isinstance(batches, TaskBatches) and isinstance(parts.store, ExampleStore)
    place, used = shared or folder / FOLDER, set[Path]()
    extraction = _Extraction(parts, encoder, params, place, signals)
    of_length: dict[int, FeatureFiles] = {}
    for lengths in extraction.group_lengths():
        path, files = extraction.files_of("train", batches.split, lengths, run.data.batch, batches.length)
        used.add(path)
        of_length |= {_places(length, run.family): files for length in lengths}
    batches.features = StoredFeatures(of_length)
    if isinstance(held_out := parts.held_out, HeldOutTask):
        # Its batches are those that an evaluation computes.
        path, files = extraction.files_of("dev", held_out.split, held_out.lengths, held_out.batch, held_out.length)
        used.add(path)
        held_out.features = StoredFeatures({_places(length, run.family): files for length in held_out.lengths})
        held_out.fields = held_out.fields | encoder.fields
    if shared is None:
        # Of other parameters, or left by a stopped start.
        for other in place.iterdir():
            if other not in used:
                shutil.rmtree(other, ignore_errors=True)


def _why_not(parts: TrainingSetup, encoder: Encoder | None) -> str:
    if encoder is None:
        return "the loss over the vocabulary (task.lm-weight) reads the backbone's own table"
    if jax.process_count() > 1:
        return "several processes train"
    if parts.run.data.ramp_from:
        return "batches grow (data.ramp-from)"
    return ""


def _places(length: int, family: str) -> int:
    """Returns the places in the arrays of sequences of a length, which have no special tokens where words are read."""
    return length - 2 if family in WORD_FAMILIES else length


@dataclass
class _Extraction:
    parts: TrainingSetup
    encoder: Encoder
    params: Params
    place: Path
    signals: Signals

    def __post_init__(self) -> None:
        words, _ = digests(self.params["backbone"], self.parts.mesh)
        self._backbone = hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()

    def group_lengths(self) -> list[tuple[int, ...]]:
        """Returns the lengths of training batches in groups that give the same bits, by the results of `TRIED`
        examples."""
        batches = self.parts.batches
        assert isinstance(batches, TaskBatches)
        if len(batches.lengths) == 1:
            return [batches.lengths]
        tried: dict[int, list[tuple[int, bytes]]] = {}
        for length in batches.lengths:
            held_out = self._held_out(batches.split, (length,), batches.batch)
            steps = range(0, held_out.steps, max(1, held_out.steps * batches.batch // TRIED))
            computed = (_fetched(*self._compute(held_out, step, held_out.read(step))) for step in steps)
            tried[length] = [sequence for batch in computed for sequence in _digests(batch)]
        groups: list[list[int]] = []
        for length in reversed(batches.lengths):
            places = _places(length, self.parts.run.family)
            group = next((g for g in groups if _same_bits(tried[g[0]], tried[length], places)), None)
            groups.append([length]) if group is None else group.append(length)
        return [tuple(sorted(group)) for group in groups]

    def files_of(
        self, name: str, split: ExampleSplit, lengths: tuple[int, ...], batch: int, longest: int
    ) -> tuple[Path, FeatureFiles]:
        """Returns the folder and the features of a split at these lengths, which are computed if they are not there, or
        damaged. longest: the greatest length of its batches, which cuts what is longer."""
        run, mesh, store = self.parts.run, self.parts.mesh, self.parts.store
        of = {
            "backbone": self._backbone,
            "model": asdict(run.model),
            "data": store.fingerprint,
            "tokenizer": self.parts.tokenizer.fingerprint,
            "split": name,
            "lengths": lengths,
            "longest": longest,
            "batch": batch,
            "word_types": run.data.word_types,
            "layers": self.encoder.layers,
            "fields": self.encoder.fields,
            "devices": [mesh.devices.flat[0].device_kind, dict(mesh.shape)],
            "jax": jax.__version__,
        }
        digest = hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()
        folder, shape = self.place / f"{name}-{digest[:16]}", self._shape(split, lengths, batch)
        if folder.is_dir():
            try:
                files = FeatureFiles.open(folder, shape, of, self.signals)
                logger.info(f"reading what the frozen backbone computes of the {name} examples from {folder}")
                return folder, files
            except DataError as error:
                logger.warning(f"{str(error).rpartition(';')[0]}; computing it again")
                shutil.rmtree(folder)
        for left in left_partials(folder):
            shutil.rmtree(left, ignore_errors=True)
        start = time.monotonic()
        try:
            self._write(folder, split, lengths, batch, longest, shape, of)
        except OSError as error:
            raise CheckpointError(
                f"{error.filename or folder}: {error.strerror or error} while what the frozen backbone computes was "
                "written; make room, or give --data.features off"
            ) from None
        size = sum(file.stat().st_size for file in folder.iterdir())
        logger.info(
            f"computed what the frozen backbone gives for {split.examples:,} {name} examples in "
            f"{time.monotonic() - start:.1f} s: {size / 1e6:,.1f} MB in {folder}"
        )
        return folder, FeatureFiles.open(folder, shape, of, self.signals)

    def _shape(self, split: ExampleSplit, lengths: Sequence[int], batch: int) -> Shape:
        held_out = self._held_out(split, lengths[-1:], batch)
        sample = meshes.shard_batch(self.parts.mesh, held_out.read(0), held_out.fields, batch)
        shapes = jax.eval_shape(self.encoder.jitted, self.params["backbone"], self._read(sample))
        one = next(iter(shapes.values()))
        layers = shapes["states"].shape[-3] if "states" in shapes else 0
        return Shape(layers, one.shape[-1], "pooled" in shapes, np.dtype(one.dtype))

    def _write(
        self,
        folder: Path,
        split: ExampleSplit,
        lengths: tuple[int, ...],
        batch: int,
        longest: int,
        shape: Shape,
        of: dict[str, object],
    ) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        several = self._sequences(split)
        tokens = sum(int(np.minimum(split.tokens_of(part) + 2, longest).sum()) for part in split.parts()) * several
        expected = (
            (tokens * shape.layers + split.examples * several * shape.pooled) * shape.width * shape.dtype.itemsize
        )
        if expected > (free := shutil.disk_usage(folder.parent).free):
            raise CheckpointError(
                f"{folder.parent}: {expected / 1e9:,.1f} GB are to be stored of what the frozen backbone computes, and "
                f"{free / 1e9:,.1f} GB are free; make room, or give --data.features off"
            )
        with writing(folder, shape, split.examples * several, of) as writer:
            for numbers, mask_BL, features in self._computed(split, lengths, batch):
                # What a batch of these lengths cannot hold is in none of them.
                fits = (
                    split.tokens_of(numbers) + 2 <= lengths[-1]
                    if lengths[-1] < longest
                    else np.ones(len(numbers), bool)
                )
                rows = (np.flatnonzero(fits)[:, None] * several + np.arange(several)).ravel()
                sequences = (numbers[fits][:, None] * several + np.arange(several)).ravel()
                writer.add(sequences, mask_BL[rows], {name: x[rows] for name, x in features.items()})

    def _sequences(self, split: ExampleSplit) -> int:
        """Returns how many sequences an example has."""
        apart = split.pair and split.layout == "apart"
        return 2 if split.symmetric or apart else split.choices

    def _held_out(self, split: ExampleSplit, lengths: Sequence[int], batch: int) -> HeldOutTask:
        run = self.parts.run
        return HeldOutTask(split, self.parts.tokenizer, run.data, batch, lengths=tuple(lengths), family=run.family)

    def _read(self, batch: Batch) -> Batch:
        return {name: batch[name] for name in self.encoder.reads}

    def _computed(
        self, split: ExampleSplit, lengths: tuple[int, ...], batch: int
    ) -> Iterator[tuple[I64, np.ndarray, dict[str, np.ndarray]]]:
        """Yields, batch by batch, (numbers of examples, the mask BL of their sequences, their features), sorted by
        length. A batch is fetched when the next one is on its way."""
        held_out = self._held_out(split, lengths, batch)
        before: tuple[I64, np.ndarray, Batch] | None = None
        with iterate(held_out, 0, held_out.steps) as stream:
            for step, local in stream:
                computed = self._compute(held_out, step, local)
                if before is not None:
                    yield _fetched(*before)
                before = computed
        if before is not None:
            yield _fetched(*before)

    def _compute(self, held_out: HeldOutTask, step: int, local: dict[str, np.ndarray]) -> tuple[I64, np.ndarray, Batch]:
        """Returns what _fetched takes of one batch, which the device still computes."""
        self.signals.check()
        fields = meshes.shard_batch(self.parts.mesh, local, held_out.fields, held_out.batch)
        features = self.encoder.jitted(self.params["backbone"], self._read(fields))
        return held_out.numbers(step), local["mask"], features


def _fetched(numbers: I64, mask: np.ndarray, features: Batch) -> tuple[I64, np.ndarray, dict[str, np.ndarray]]:
    """Puts the sequences of an example below each other, and leaves out the rows that only fill up the batch."""
    count = len(numbers) * math.prod(mask.shape[1:-1])
    several = mask.ndim == 3
    arrays: dict[str, np.ndarray] = {name: np.asarray(x) for name, x in jax.device_get(features).items()}
    arrays = {name: x.reshape(-1, *x.shape[2:]) if several else x for name, x in arrays.items()}
    return numbers, mask.reshape(-1, mask.shape[-1])[:count], {name: x[:count] for name, x in arrays.items()}


_Computed = tuple[I64, np.ndarray, dict[str, np.ndarray]]


def _digests(computed: _Computed) -> Iterator[tuple[int, bytes]]:
    """Yields of each sequence its tokens and a digest of its features."""
    _, mask, features = computed
    for row, here in enumerate(mask > 0):
        digest = hashlib.sha256()
        for name, x in sorted(features.items()):
            digest.update((x[row][:, here] if name == "states" else x[row]).tobytes())
        yield int(here.sum()), digest.digest()


def _same_bits(one: list[tuple[int, bytes]], other: list[tuple[int, bytes]], places: int) -> bool:
    """Returns whether two lengths give the same bits for the sequences that neither cuts; there must be one. places:
    of the shorter length."""
    whole = [a == b for a, b in zip(one, other, strict=True) if a[0] == b[0] < places]
    return bool(whole) and all(whole)
