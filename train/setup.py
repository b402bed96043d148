"""Opens or makes what a run trains with, in its folder: data, tokenizer, model and objective; from top to bottom."""

import dataclasses
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import jax
from jax.sharding import Mesh

from contexture.data import mirror, rng
from contexture.data.batches import Batches, HeldOut
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.config import DataConfig
from contexture.data.mixed_paths import mixture_of
from contexture.data.pretraining import tokenize_corpus
from contexture.data.pretraining.instance_records import record_files
from contexture.data.pretraining.languages import mixed
from contexture.data.pretraining.mixture import MixedBatches, MixedShards, Numbered, open_mixture
from contexture.data.pretraining.phased_batches import PhasedBatches
from contexture.data.pretraining.record_batches import RecordBatches
from contexture.data.pretraining.record_store import RecordStore, convert
from contexture.data.pretraining.shards import Shards, prepared_at
from contexture.data.pretraining.text_parts import sources_of
from contexture.data.stores import Store
from contexture.data.tasks.batch.training_batches import TaskBatches
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tasks.read.entity_schemes import why_no_entities
from contexture.data.tasks.store.example_store import ExampleStore
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.registry import load_tokenizer
from contexture.data.tokenizers.wordpiece import wordpiece
from contexture.models.families import example
from contexture.models.model import Model
from contexture.train import mesh as meshes
from contexture.train.checkpoints.transfer import model_of
from contexture.train.distributed import processes
from contexture.train.distributed.agreement import agree_on_content
from contexture.train.errors import ConfigError
from contexture.train.evaluation.evaluate import baseline
from contexture.train.evaluation.held_out import open_held_out
from contexture.train.objectives import Objective, batch_fields, batch_sizes, objective_of
from contexture.train.optim.lora import split
from contexture.train.optim.optimizers import lr_multipliers
from contexture.train.run import folder as directories
from contexture.train.run.signals import Signals
from contexture.train.run.vocabulary import (
    check_tokenizer,
    check_tokenizer_kind,
    choose_tokenizer,
    keep_tokenizer,
    read_tokenizer,
)
from contexture.train.settings import run_file
from contexture.train.settings.run import Run
from contexture.train.settings.schedule import resolve_schedule
from contexture.train.text_checks import check_agreement, check_records, check_stream, of_source, prepared_folder

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingSetup:
    """What a run trains with, once its folder, devices and data are known."""

    run: Run
    mesh: Mesh
    model: Model
    objective: Objective
    tokenizer: Tokenizer
    store: Store
    batches: Batches
    held_out: HeldOut | None
    baseline: dict[str, float]
    """Held-out metrics of a guess that needs no model, by name (`unigram_loss`, `majority_accuracy`, …)."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the task, or ()."""
        return self.store.labels


def with_languages(run: Run) -> Run:
    """Returns the run with a mixture of the languages in a folder (data.languages) as its text."""
    if not run.data.languages:
        return run
    # From here on it is a mixture as any: its weights are kept with the run.
    path = mixed(run.data.languages, run.data.language_exponent)
    exponent = DataConfig.language_exponent
    return dataclasses.replace(
        run, data=dataclasses.replace(run.data, languages="", language_exponent=exponent, path=path)
    )


def check_frozen(run: Run) -> None:
    """Checks optim.frozen against the model before any work. Raises ConfigError, as `lr_multipliers`."""
    # Every model has a backbone, so freezing it, or nothing, is always possible.
    if run.optim.frozen in ((), ("backbone",)) and not run.optim.frozen_layers:
        return
    # Labels, and whether examples are pairs, are known from the data alone; they decide sizes of heads, and for what
    # reads words which parameters a head has.
    paired = run.task.kind not in ("off", "choice") and run.text.reads_words
    for pair in (False, True)[: 1 + paired]:
        given = dataclasses.replace(run, head=dataclasses.replace(run.head, pair=pair))
        model, batch = model_of(given, ("0", "1")), example(batch_fields(given), batch_sizes(given, 1))
        # Paths and shapes are enough to match the patterns of optim.frozen; no array is made.
        params = jax.eval_shape(lambda model=model, batch=batch: model.init(jax.random.key(0), batch)["params"])
        try:
            lr_multipliers(run.optim, split(params, run.optim)[1])
            return
        # Refused only if the patterns fit neither form of the head.
        except ConfigError:
            if pair == paired:
                raise


def prepare(run: Run, folder: Path, mesh: Mesh, signals: Signals) -> tuple[TrainingSetup, str]:
    """Returns (what the run trains with; its fingerprint). Process 0 makes what is missing, and the others wait for it.

    The fingerprint covers settings, tokenizer and data: a checkpoint of another one is refused.
    """
    if jax.process_index() == 0:
        # run.json is written twice: first with the settings alone, to claim the folder; below with the facts of the
        # data.
        old = directories.open_or_create(run, folder)
        tokenizer, store = open_data(run, folder, signals)
        store.verify(signals)
        # epochs become steps by the number of examples, which is known only now.
        examples = open_batches(run, store, tokenizer, signals).examples_per_epoch
        directories.check_not_shortened(run, folder, old, examples)
        total_steps = resolve_schedule(run, examples).steps
        directories.write_run_json(folder, run, tokenizer, store, old, total_steps)
        mirror.sync(folder)
        processes.publish("prepared", "")
    else:
        processes.wait_for("prepared")
        mirror.refresh(folder)  # a bucket: what process 0 has made is fetched
        tokenizer, store = open_data(run, folder, signals)
        if not Path(os.path.realpath(store.folder)).is_relative_to(os.path.realpath(folder)):
            store.verify(signals)  # data outside the run's folder may be a copy of this machine's own
    # Digests are compared, not paths: each machine may have its copy of the data.
    agree_on_content(folder, run, tokenizer, store)
    # Lanes: how many streams an ELMo's held-out text is dealt to. A figure must not depend on the number of devices.
    lanes = run.evaluate.batch or run.data.batch
    fingerprint = run_file.fingerprint(run, tokenizer.fingerprint, store.fingerprint)
    devices = meshes.batch_devices(mesh)
    batches = open_batches(run, store, tokenizer, signals, devices)
    batch = meshes.round_up_to_devices(mesh, lanes)
    held_out = open_held_out(run, store, tokenizer, batch, lanes, signals, devices)
    if held_out is None and (run.evaluate.patience or run.evaluate.metric != "loss"):
        name = "patience" if run.evaluate.patience else "metric"
        raise ConfigError(f"evaluate.{name} wants held-out examples; give --task.dev or --data.dev, or a fraction")
    # What guessing by frequencies reaches: the figure that a model must beat.
    guess = baseline(held_out, store, signals) if held_out else {}
    # The run's final form: epochs become steps, and settings that follow from the data are filled in.
    run = resolve_schedule(run, batches.examples_per_epoch)
    run = run_file.with_data_facts(run, words=tokenizer.size, pair=isinstance(store, ExampleStore) and store.pair)
    run = dataclasses.replace(run, data=dataclasses.replace(run.data, length=batches.length))
    # Only now: the heads' sizes follow from the labels, and the softmax of an ELMo from the vocabulary.
    model = model_of(run, store.labels)
    parts = TrainingSetup(run, mesh, model, objective_of(run), tokenizer, store, batches, held_out, guess)
    return parts, fingerprint


def open_batches(
    run: Run,
    store: Store,
    tokenizer: Tokenizer,
    cancel: CancelToken = NEVER,
    devices: int = 1,
) -> Batches:
    """Returns the training batches: of the examples of a task, of text, or of records.

    Args:
        run: the run.
        store: its text, records or examples.
        tokenizer: its vocabulary.
        cancel: may raise to stop the planning.
        devices: how many devices share a batch.
    """
    parts = run.optim.accumulate
    if run.data.phases:
        # Fractions change over all steps, whichever phase they are in.
        steps = run.data.masked_steps or run.steps * (":" in run.data.masked_fraction)
        each = [run.in_phase(phase.first) for phase in run.data.stretches]
        alone = [dataclasses.replace(one, data=dataclasses.replace(one.data, masked_steps=steps)) for one in each]
        return PhasedBatches(run.data, [open_batches(one, store, tokenizer, cancel, devices) for one in alone])
    if ":" in run.data.masked_fraction and not run.data.masked_steps:
        run = dataclasses.replace(run, data=dataclasses.replace(run.data, masked_steps=run.steps))
    if isinstance(store, ExampleStore):
        return TaskBatches(
            store, tokenizer, run.data, run.task, family=run.family, seed=run.seed, parts=parts, devices=devices
        )
    if isinstance(store, RecordStore):
        return RecordBatches(store, run.data, seed=run.seed, parts=parts, devices=devices)
    if isinstance(store, MixedShards):
        # The mixture deals its batches to shared rows itself: pairs come with a row each.
        packed = run.data.packed and run.stream != "sentence_pairs"
        config = dataclasses.replace(run.data, packed=packed)
        # Seeds of their own: sources that have one length would else have the same masks.
        sources = [
            cast(Numbered, run.text.open_batches(each.shards, config, rng.key(rng.SOURCE, run.seed, n), cancel))
            for n, each in enumerate(store.sources)
        ]
        return MixedBatches(store, sources, run.data, seed=run.seed, parts=parts, devices=devices)
    return run.text.open_batches(store, run.data, run.seed, cancel, parts, devices)


def open_data(run: Run, directory: Path, cancel: CancelToken) -> tuple[Tokenizer, Store]:
    """Returns the run's tokenizer and its tokenised text, records or examples, making what does not exist yet.

    Args:
        run: the settings; `task.kind` says whether it reads text or examples.
        directory: the run's folder.
        cancel: may raise to stop the work.

    Raises:
        DataError: when text or vocabulary are damaged or missing.
        ConfigError: when they do not fit the run.
    """
    if run.task.kind != "off":
        return _open_examples(run, directory, cancel)
    if mixture_of(run.data.path):
        return _open_mixture(run, directory, cancel)
    # The records may be gone by now, or others be named; what the run was started with decides.
    own = directory / "data"
    if RecordStore.is_at(own) or record_files(run.data.path, "data.path"):
        return _open_records(run, directory, cancel)
    return _open_shards(run, directory, cancel)


def _open_examples(run: Run, directory: Path, cancel: CancelToken) -> tuple[Tokenizer, ExampleStore]:
    if run.data.path or run.data.dev or run.data.dev_fraction:
        raise ConfigError("data.path is text to pretrain on; give a task's examples as --task.train and --task.dev")
    if not run.task.train:
        raise ConfigError("task.train is empty; give the examples to learn from: --task.train FILE")
    # An earlier start encoded the examples: they count, if the files are still the same.
    folder = directory / "data"
    if folder.exists():
        store = ExampleStore.open(folder)
        if changed := store.sources_changed(run.task):
            raise ConfigError(f"{directory}: {changed}; put it back, or give another --dir")
        if store.context != run.data.context:
            raise ConfigError(
                f"{folder} was encoded with --data.context {store.context}; give the same, or another --dir"
            )
        tokenizer = load_tokenizer(directory / "tokenizer", run.data.lowercase)
    else:
        tokenizer = choose_tokenizer(run, directory, cancel)
        # Before the work: encoding may take minutes, and ids that the model has no row for would be found at its end.
        check_tokenizer(run, tokenizer)
        store = encode(run.task, tokenizer, folder, cancel, length=run.data.length, context=run.data.context)
    # Ids mean nothing without their vocabulary.
    if store.index["tokenizer"] != tokenizer.fingerprint:
        raise ConfigError(f"{folder} was encoded with another vocabulary than {directory / 'tokenizer'}; put it back")
    # Entity F1 needs tags like B-PER and I-PER; without them accuracy is all there is.
    if store.kind == "tag" and (line := why_no_entities(store.labels)):
        logger.warning(line)
    return tokenizer, store


def _open_shards(run: Run, directory: Path, cancel: CancelToken) -> tuple[Tokenizer, Shards]:
    shards, tokenizer = _resolve_shards(run, directory, cancel)
    # A run that has started keeps its vocabulary, even if its kind is no longer offered to new ones.
    started = (directory / "tokenizer").exists()
    # In this order each message names the first thing that is wrong: family, kind of vocabulary, then its content.
    check_stream(run, shards)
    if not started:
        check_tokenizer_kind(run, tokenizer.kind)
        _check_init(run, tokenizer)
    check_agreement(run, shards, tokenizer)
    # Text that was prepared elsewhere brings its tokenizer. The run keeps a copy, and can predict without that folder.
    if not started or prepared_folder(run) is not None:
        keep_tokenizer(tokenizer, directory)
    return tokenizer, shards


def _open_mixture(run: Run, directory: Path, cancel: CancelToken) -> tuple[Tokenizer, MixedShards]:
    """Opens the sources of a mixture. Those that were not prepared are tokenised into RUN/data/NAME."""
    own, sources = directory / "data", mixture_of(run.data.path)
    # Each source is a text by itself.
    runs = {each.name: of_source(run, each.path) for each in sources}
    prepared = {each.name: at for each in sources if (at := prepared_at([each.path]))}
    if run.data.dev_fraction and len(prepared) == len(sources):
        raise ConfigError("all sources were prepared with what they hold out; leave data.dev-fraction out")
    # One vocabulary for all: that of a text which is tokenised, before or by an earlier start, or a new run's.
    tokenised = [*prepared.values(), *(own / name for name in runs if (own / name).exists())]
    started = (directory / "tokenizer").exists()
    if tokenised:
        tokenizer = Shards.open(tokenised[0], run.data.cache_gb).tokenizer
    else:
        tokenizer = choose_tokenizer(run, directory, cancel)
    check_tokenizer(run, tokenizer)
    if not started:
        _check_init(run, tokenizer)
    for name, each in runs.items():
        if name not in prepared and not (own / name).exists():
            logger.info(f"tokenising {name} into {own / name}")
            tokenize_corpus.prepare(each.data, tokenizer, own / name, lambda *_: cancel.check(), stream=run.stream)
    store = open_mixture(sources, own, run.data.cache_gb)
    for source in store.sources:
        check_stream(run, source.shards)
        check_agreement(runs[source.name], source.shards, tokenizer)
        if source.name not in prepared and (changed := source.shards.sources_changed(runs[source.name].data)):
            raise ConfigError(f"{directory}: {changed}; put the text back, or give another --dir")
    keep_tokenizer(tokenizer, directory)
    return tokenizer, store


def _check_init(run: Run, tokenizer: Tokenizer) -> None:
    """Raises ConfigError where a new run begins from another whose vocabulary is not that of the text."""
    # Its embeddings would stand for other tokens.
    if not run.init.run or run.init.random:
        return
    source = Path(run.init.run)
    if read_tokenizer(source, run_file.read(source)).fingerprint != tokenizer.fingerprint:
        raise ConfigError(
            f"{source} has another vocabulary than the text was tokenised with; prepare the text with its own: "
            f"--tokenizer {source / 'tokenizer'}"
        )


def _open_records(run: Run, directory: Path, cancel: CancelToken) -> tuple[Tokenizer, RecordStore]:
    own = directory / "data"
    if RecordStore.is_at(own):
        store = RecordStore.open(own)
        if changed := store.sources_changed(run.data):
            raise ConfigError(f"{directory}: {changed}; put them back, or give another --dir")
    elif own.exists():
        raise ConfigError(f"{directory} was started with text, not with TFRecords; give the text, or another --dir")
    else:
        check_records(run)
        tokenizer = _records_tokenizer(run, directory, cancel)
        check_tokenizer(run, tokenizer)
        logger.info(f"reading TFRecords into {own}")
        store = convert(run.data, wordpiece(tokenizer), own, cancel)
    if run.data.tokenizer:
        given = load_tokenizer(run.data.tokenizer, run.data.lowercase, run.data.word_splitter)
        if given.fingerprint != store.tokenizer.fingerprint:
            raise ConfigError(f"the records were read with another vocabulary than {run.data.tokenizer}; leave it out")
    check_tokenizer(run, store.tokenizer)
    keep_tokenizer(store.tokenizer, directory)
    return store.tokenizer, store


def _records_tokenizer(run: Run, directory: Path, cancel: CancelToken) -> Tokenizer:
    """Returns the vocabulary of records: one that is given, or that lies with them, as `contexture prepare` has it."""
    beside = Path(run.data.path[0]) / "tokenizer"
    if run.init.run or run.data.tokenizer:
        return choose_tokenizer(run, directory, cancel)
    if not beside.is_dir():
        raise ConfigError(
            "TFRecords hold ids, not text; give the vocabulary that they were made with: --data.tokenizer VOCAB"
        )
    tokenizer = load_tokenizer(beside)
    check_tokenizer_kind(run, tokenizer.kind)
    return tokenizer


def _resolve_shards(run: Run, directory: Path, cancel: CancelToken) -> tuple[Shards, Tokenizer]:
    """Returns the tokenised text and its tokenizer: of `contexture prepare`, of an earlier start, or made now."""
    prepared, own = prepared_folder(run), directory / "data"
    if prepared is not None:
        # `contexture prepare` has held out already; an option now would have no effect.
        if run.data.dev or run.data.dev_fraction:
            raise ConfigError(
                f"{prepared} was prepared with what it holds out; leave data.dev and data.dev-fraction out"
            )
        shards = Shards.open(prepared, run.data.cache_gb)
        return shards, shards.tokenizer
    if own.exists():
        shards = Shards.open(own, run.data.cache_gb)
        if changed := shards.sources_changed(run.data):
            raise ConfigError(f"{directory}: {changed}; put the text back, or give another --dir")
        return shards, load_tokenizer(directory / "tokenizer", run.data.lowercase)
    # A new run: learn a vocabulary if none is given, then tokenise into RUN/data.
    # Held-out text too is refused before a vocabulary is learned.
    sources, _ = sources_of(run.data)
    tokenizer = choose_tokenizer(run, directory, cancel)
    check_tokenizer(run, tokenizer)
    logger.info(f"tokenising {len(sources)} source(s) into {own}")
    shards = tokenize_corpus.prepare(run.data, tokenizer, own, lambda done, total: cancel.check(), stream=run.stream)
    return shards, tokenizer
