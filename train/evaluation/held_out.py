"""Opens the examples of an evaluation: held-out text of a pretraining, a task's own splits, or labelled files."""

import dataclasses
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from contexture.data.batches import HeldOut
from contexture.data.bucketing import check_batch
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.config import TaskConfig
from contexture.data.pretraining.shards import Shards, prepared_at
from contexture.data.storage import partial_beside
from contexture.data.tasks.batch.answer_rules import answer_rules
from contexture.data.tasks.batch.batches import HeldOutTask
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tasks.read.entity_schemes import why_no_entities
from contexture.data.tasks.read.labels import class_weights
from contexture.data.tasks.store.example_store import ExampleSplit, ExampleStore
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.word_level import word_tokenizer
from contexture.train import mesh as meshes
from contexture.train.distributed import processes
from contexture.train.errors import ConfigError
from contexture.train.evaluation.best import unigram_baseline
from contexture.train.evaluation.figures import KINDS
from contexture.train.evaluation.predictions import majority_baseline
from contexture.train.evaluation.request import EvaluationRequest
from contexture.train.evaluation.spans import answer_counts
from contexture.train.run.folder import make_folder
from contexture.train.run.vocabulary import read_tokenizer
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import RunRecord

logger = logging.getLogger(__name__)


class HeldOutData(NamedTuple):
    """Held-out batches, the run's training data (None if deleted), and the fingerprint of the data of the batches."""

    held_out: HeldOut
    store: Shards | ExampleStore | None
    fingerprint: str


_LABELS = {"next": "next_weights", "next_backward": "next_weights_backward", "labels": "slot_weights"}
"""Batch field of the tokens to predict → field of their weights, over all pretraining objectives."""


def open_request(
    folder: Path, record: RunRecord, request: EvaluationRequest, mesh: Mesh, cancel: CancelToken
) -> AbstractContextManager[HeldOutData]:
    """Returns the held-out examples that a request asks for, to be used in a `with`.

    Raises:
        ConfigError: when the request does not fit the run.
        DataError: for the user's files.
    """
    check_request(folder, record, request)
    # An ELMo's lanes carry state from batch to batch, so the perplexity depends on how many there are: they must not
    # depend on the number of devices. Only the batch around them is rounded up.
    lanes = request.batch or record.run.evaluate.batch or record.run.data.batch
    batch = meshes.round_up_to_devices(mesh, lanes)
    if record.run.task.kind == "off":
        return nullcontext(_held_out_text(folder, record, batch, lanes, cancel))
    return _held_out_task(folder, record, request, batch, meshes.batch_devices(mesh), cancel)


def check_request(folder: Path, record: RunRecord, request: EvaluationRequest) -> None:
    """Raises ConfigError or DataError for a request that does not fit the run, before anything is opened."""
    run = record.run
    if request.figures:
        if run.task.kind not in KINDS:
            kind = "a pretraining" if run.task.kind == "off" else run.task.kind
            raise ConfigError(f"{folder} is {kind}; --figures is for tasks with labels: {', '.join(KINDS)}")
        # The folder is made only when there is something to draw.
        if Path(request.figures).exists() and not Path(request.figures).is_dir():
            raise ConfigError(f"--figures {request.figures} is a file; give a folder")
    if request.batch:
        check_batch(request.batch, "examples")
    # Pretraining has one held-out text, fixed when the run began: nothing to choose.
    if run.task.kind == "off":
        if request.files or request.split != "dev":
            raise ConfigError(f"{folder} is a pretraining: it has its own held-out text (--split dev) and no task")
        if run.objective == "static":
            raise ConfigError(f"{folder} has static vectors and no task; train them for one: contexture finetune")
        if not run.data.path:
            raise ConfigError(f"{folder} was imported and holds no text; tune it to some: pretrain --init {folder} …")
        return
    if request.files and request.split == "train":
        raise ConfigError("--split train and --task.dev both choose the examples; give one of them")
    if request.split == "test" and not request.files and not run.task.test:
        raise ConfigError(f"{folder} was trained without --task.test; give the file as --task.dev F")


def _held_out_text(folder: Path, record: RunRecord, batch: int, lanes: int, cancel: CancelToken) -> HeldOutData:
    run = record.run
    shards = Shards.open(prepared_at(run.data.path) or folder / "data")
    # Digests of the files are checked: a figure on changed text would look like one on the run's own.
    shards.verify(cancel)
    if shards.fingerprint != record.data:
        raise ConfigError(f"{shards.folder} is not the text that {folder} was trained with; put it back")
    # The run's own vocabulary: losses over another one cannot be compared.
    tokenizer = read_tokenizer(folder, record)
    held_out = open_held_out(run, shards, tokenizer, batch, lanes, cancel)
    if held_out is None:
        raise ConfigError(f"{folder} holds nothing out; pretrain with --data.dev F or --data.dev-fraction 0.1")
    return HeldOutData(held_out, shards, shards.fingerprint)


def open_held_out(
    run: Run,
    store: Shards | ExampleStore,
    tokenizer: Tokenizer,
    batch: int,
    lanes: int = 0,
    cancel: CancelToken = NEVER,
    devices: int = 1,
) -> HeldOut | None:
    """Returns the batches that a run holds out, of the examples of its task or of text; None where it holds none out.

    Args:
        run: the run.
        store: its text or examples.
        tokenizer: its vocabulary.
        batch: sequences of a batch.
        lanes: for ELMo, how many of the sequences carry text, 0 for all. Where lanes begin depends on their number,
            which must not depend on the number of devices.
        cancel: may raise to stop the planning.
        devices: how many devices share a batch.
    """
    if isinstance(store, ExampleStore):
        # The same weights as in training: `balanced` goes by the counts of train.
        weights_C = class_weights(run.task, store.labels, store.counts)
        dev, rules = store.splits["dev"], answer_rules(run.task, store.counts)
        if not dev.examples:
            return None
        return HeldOutTask(dev, tokenizer, run.data, batch, weights_C, family=run.family, devices=devices).with_rules(
            rules
        )
    if not store.splits["dev"].documents:
        return None
    config = dataclasses.replace(run.data, batch=batch, ramp_from=0, ramp_steps=0)  # a ramp is for training
    return run.text.open_held_out(store, config, lanes, cancel)


@contextmanager
def _held_out_task(
    folder: Path, record: RunRecord, request: EvaluationRequest, batch: int, devices: int, cancel: CancelToken
) -> Iterator[HeldOutData]:
    run, tokenizer = record.run, read_tokenizer(folder, record)
    store = _open_store(folder, record, cancel)
    if run.task.kind == "tag" and (line := why_no_entities(record.labels)):
        logger.warning(line)

    def held_out(split: ExampleSplit, labels: tuple[str, ...]) -> HeldOut:
        # The training data of an imported model are unknown, so the file decides whether questions may lack an answer.
        counts = answer_counts(split.spans) if split.spans is not None and not record.counts else record.counts
        # The loss weighs each label as in training, by the counts of the training set.
        weights = class_weights(run.task, labels, record.counts)
        # Other questions may have more alternatives than those that were learned from.
        weights = np.pad(weights, (0, max(len(split.labels) - len(weights), 0)), constant_values=1.0)
        # counts decide whether "no answer" is among the answers of a question.
        rules = answer_rules(run.task, counts)
        return HeldOutTask(split, tokenizer, run.data, batch, weights, family=run.family, devices=devices).with_rules(
            rules
        )

    # Other files are encoded now, with the run's labels and layout; its own splits were encoded for training.
    if files := request.files or (run.task.test if request.split == "test" else ()):
        task = dataclasses.replace(run.task, train=(), dev=files, test=(), dev_fraction=0.0)
        with _encoded(task, tokenizer, record, request, folder, cancel) as other:
            batches = held_out(other.splits["dev"], record.labels or other.labels)
            yield HeldOutData(batches, store, other.fingerprint)
        return
    # The run's own examples, encoded when it was trained.
    split = store.splits[request.split] if store is not None else None
    if store is None or split is None or not split.examples:
        raise ConfigError(f"{folder} holds no {request.split} examples; give a file: --task.dev F")
    yield HeldOutData(held_out(split, record.labels), store, f"{store.fingerprint}/{request.split}")


def _open_store(folder: Path, record: RunRecord, cancel: CancelToken) -> ExampleStore | None:
    """Returns the examples that the run was trained on; None if it has none, like an imported run."""
    if not (folder / "data").is_dir():
        return None
    # An imported run has no examples; everything else is checked against its digests.
    store = ExampleStore.open(folder / "data")
    store.verify(cancel)
    if store.fingerprint != record.data:
        raise ConfigError(f"{store.folder} is not the data that {folder} was trained with; put it back")
    return store


@contextmanager
def _encoded(
    task: TaskConfig,
    tokenizer: Tokenizer,
    record: RunRecord,
    request: EvaluationRequest,
    folder: Path,
    cancel: CancelToken,
) -> Iterator[ExampleStore]:
    """Encodes other files with the run's labels, for as long as they are evaluated."""
    # Encoded to disk as for training, so memory does not grow with the file; removed afterwards.
    with _temporary_folder(request, folder) as encoded:
        # One process encodes, the others wait for it.
        if jax.process_index() == 0:
            data = record.run.data
            encode(task, tokenizer, encoded, cancel, record.labels, record.pair, data.length, data.context)
            processes.publish("encoded", "")
        else:
            processes.wait_for("encoded")
        yield ExampleStore.open(encoded)


@contextmanager
def _temporary_folder(request: EvaluationRequest, folder: Path) -> Iterator[Path]:
    """Yields the path of a folder to make, which is removed afterwards; for several processes, one that all see."""
    if jax.process_count() == 1:
        with tempfile.TemporaryDirectory(prefix="contexture-") as temporary:
            yield Path(temporary) / "encoded"
        return
    # /tmp is each machine's own. The results' folder is shared, as it must be for the results.
    if jax.process_index() == 0:
        shared = partial_beside(Path(os.path.realpath(request.to or folder / "evaluations")) / "encoded")
        make_folder(shared.parent, "--to")
        processes.publish("folder of encoded examples", str(shared))
    else:
        shared = Path(processes.wait_for("folder of encoded examples"))
    try:
        yield shared
    finally:
        if jax.process_index() == 0:
            shutil.rmtree(shared, ignore_errors=True)


def baseline(held_out: HeldOut, store: Shards | ExampleStore, cancel: CancelToken = NEVER) -> dict[str, float]:
    """Returns the baseline: the metrics of guessing by the frequencies in the training data alone.

    `cancel` may raise to stop the counting.
    """
    if isinstance(store, ExampleStore):
        assert isinstance(held_out, HeldOutTask)
        return majority_baseline(store, held_out.split)
    return _text_baseline(held_out, store, cancel)


def _text_baseline(held_out: HeldOut, shards: Shards, cancel: CancelToken) -> dict[str, float]:
    # How often each token is to be predicted, over all held-out batches.
    counts_V = np.zeros(shards.vocabulary, np.int64)
    for step in range(held_out.steps):
        cancel.check()
        batch = held_out.read(step)
        # A BERT's labels are its masked tokens; a GPT's and an ELMo's are next tokens, in one or two directions.
        for labels in _LABELS.keys() & held_out.fields.keys():
            predicted = batch[labels][batch[_LABELS[labels]] > 0]
            counts_V += np.bincount(predicted, minlength=shards.vocabulary)
    if shards.stream == "lanes":
        # Read backwards, a sentence ends with its <S>. Training text is counted forwards alone: as its </S>.
        words = word_tokenizer(shards.tokenizer)
        counts_V[words.end] += counts_V[words.begin]
        counts_V[words.begin] = 0
    return unigram_baseline(shards.unigrams(), counts_V)
