"""What a run holds out: its batches, what guessing reaches on them, and what is measured and odd about them."""

import dataclasses
import logging
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from contexture.data.batches import HeldOut
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.pretraining.bilm_lanes import SAMPLED
from contexture.data.pretraining.mixture import MixedHeldOut, MixedShards
from contexture.data.pretraining.record_batches import HeldOutRecords
from contexture.data.pretraining.record_store import RecordStore
from contexture.data.pretraining.shards import Shards
from contexture.data.stores import Store, TextStore
from contexture.data.tasks.batch.answer_rules import answer_rules
from contexture.data.tasks.batch.batches import HeldOutTask
from contexture.data.tasks.read.labels import class_weights
from contexture.data.tasks.store.example_store import ExampleStore
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.word_level import StaticWords, word_tokenizer
from contexture.models.families import example
from contexture.models.model import Model, Outputs
from contexture.models.shapes import Params
from contexture.train.evaluation.best import unigram_baseline
from contexture.train.evaluation.predictions import (
    majority_baseline,
    metric_names,
)
from contexture.train.evaluation.spans import answer_counts
from contexture.train.objectives import Objective, Sum, batch_fields, batch_sizes
from contexture.train.settings.run import Run

logger = logging.getLogger(__name__)


class HeldOutData(NamedTuple):
    """Held-out batches, the run's training data (None if deleted), and the fingerprint of the data of the batches."""

    held_out: HeldOut
    store: Store | None
    fingerprint: str


_LABELS = {"next": "next_weights", "next_backward": "next_weights_backward", "labels": "slot_weights"}
"""Batch field of the tokens to predict → field of their weights, over all pretraining objectives."""


def open_held_out(
    run: Run,
    store: Store,
    tokenizer: Tokenizer,
    batch: int,
    lanes: int = 0,
    cancel: CancelToken = NEVER,
    devices: int = 1,
) -> HeldOut | None:
    """Returns the batches that a run holds out, of the examples of its task, of text or of records; None where it has
    none.

    Args:
        run: the run.
        store: its text, records or examples.
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
    # A ramp and phases are for training; held-out text is read as in the last phase.
    config = dataclasses.replace(run.data, batch=batch, ramp_from=0, ramp_steps=0, phases=())
    if isinstance(store, RecordStore):
        return HeldOutRecords(store, config, devices=devices) if store.count("dev") else None
    if isinstance(store, MixedShards):
        # Of the sources that hold something out.
        held = [each for each in store.sources if each.shards.splits["dev"].documents]
        parts = {each.name: run.text.open_held_out(each.shards, config, lanes, cancel, devices) for each in held}
        return MixedHeldOut(parts) if parts else None
    if not store.splits["dev"].documents:
        return None
    return run.text.open_held_out(store, config, lanes, cancel, devices)


def baseline(held_out: HeldOut, store: Store, cancel: CancelToken = NEVER) -> dict[str, float]:
    """Returns the baseline: the metrics of guessing by the frequencies in the training data alone.

    `cancel` may raise to stop the counting.
    """
    if isinstance(store, ExampleStore):
        assert isinstance(held_out, HeldOutTask)
        return majority_baseline(store, held_out.split)
    return _text_baseline(held_out, store, cancel)


def _text_baseline(held_out: HeldOut, shards: TextStore, cancel: CancelToken) -> dict[str, float]:
    # How often each token is to be predicted, over all held-out batches of a source.
    counts: dict[str, np.ndarray] = {}
    for step in range(held_out.steps):
        cancel.check()
        batch = held_out.read(step)
        source = held_out.source_at(step) if isinstance(held_out, MixedHeldOut) else ""
        counts_V = counts.setdefault(source, np.zeros(shards.vocabulary, np.int64))
        # A BERT's labels are its masked tokens; a GPT's and an ELMo's are next tokens, in one or two directions.
        for labels in _LABELS.keys() & held_out.fields.keys():
            predicted = batch[labels][batch[_LABELS[labels]] > 0]
            counts_V += np.bincount(predicted, minlength=shards.vocabulary)
    if isinstance(shards, Shards) and shards.stream == "lanes":
        # Read backwards, a sentence ends with its <S>. Training text is counted forwards alone: as its </S>.
        words = word_tokenizer(shards.tokenizer)
        for counts_V in counts.values():
            counts_V[words.end] += counts_V[words.begin]
            counts_V[words.begin] = 0
    unigrams = shards.unigrams()
    return mean_of_sources({source: unigram_baseline(unigrams, counts_V) for source, counts_V in counts.items()})


def mean_of_sources(figures: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Returns the figures of a mixture: the mean over its sources of each, by its name, and those of each source as
    FIGURE/SOURCE. Without sources, those of "".

    A source counts as much as any other, however much of it is held out.
    """
    if "" in figures:
        return dict(figures[""])
    names = next(iter(figures.values()))
    means = {name: sum(each[name] for each in figures.values()) / len(figures) for name in names}
    return means | {f"{name}/{source}": each[name] for source, each in figures.items() for name in names}


def measured(model: Model, objective: Objective, run: Run, params: Params, store: Store) -> list[str]:
    """Returns the names of the metrics that `evaluate` will return, without computing them; params may be shapes."""
    # Held-out batches have no negatives: they are measured over the whole vocabulary.
    fields = {name: kind for name, kind in batch_fields(run).items() if name not in SAMPLED}
    batch = example(fields, batch_sizes(run, 1))

    def sums(params: Params) -> dict[str, Sum]:
        outputs = model.apply({"params": params}, batch)
        assert isinstance(outputs, Outputs)
        return objective.sums(outputs, batch)

    of_task: list[str] = []
    if isinstance(store, ExampleStore):
        # Scores of questions without an answer exist only if the measured split has some, whatever training has.
        spans = store.splits["dev"].spans if store.kind == "span" and "dev" in store.splits else None
        of_task = metric_names(store.kind, store.labels, answer_counts(spans) if spans else ())
    return ["loss", *jax.eval_shape(sums, params), *of_task]


def report_odd(held_out: HeldOut) -> dict[str, float]:
    """Returns the irregularities of a task's examples: how many are longer than a sequence (with a warning), how many
    rows could not be read, and the share of words without a static vector. {} for text."""
    if not isinstance(held_out, HeldOutTask):
        return {}
    # Counted once for the data, not for each checkpoint.
    truncated = held_out.split.longer_than(held_out.length)
    if truncated:
        limit = held_out.length
        logger.warning(f"truncated {truncated:,} of {held_out.count:,} held-out examples to data.length={limit} tokens")
    left_out = held_out.split.left_out
    odd: dict[str, float] = {"truncated": truncated, **({"left_out": left_out} if left_out else {})}
    if isinstance(held_out.tokenizer, StaticWords):
        odd["unknown"] = held_out.split.share_of(held_out.tokenizer.unk)
    return odd
