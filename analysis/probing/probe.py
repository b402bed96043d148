"""Probes a trained model with tasks: features once, then a few small probes for each task.

    rows = probe("runs/mine", {"pos": read_sentences(Path("train.conllu"), "pos")},
                 {"pos": read_sentences(Path("dev.conllu"), "pos")}, folder=Path("probes"))

Each row is a dict of numbers and lists: `probe_rows.ProbeRow`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from contexture.analysis.options import ProbeOptions, layer_numbers
from contexture.analysis.probing.probe_examples import ProbeExamples, control_task, encode_targets, label_names
from contexture.analysis.probing.probe_rows import ProbeRow
from contexture.analysis.probing.probe_scores import (
    Counts,
    centre_of_gravity,
    differentials,
    divergence_from_uniform,
    expected_layer,
    majority_f1,
    micro_f1,
    precision_and_recall,
)
from contexture.analysis.probing.span_features import SpanFeatures, computed_features
from contexture.analysis.probing.target_types import Sentence
from contexture.analysis.probing.train_probes import (
    TrainedProbes,
    layers_of,
    measure_probes,
    train_probes,
)
from contexture.analysis.trained_model import TrainedModel
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.train.grid.results import spreads

logger = logging.getLogger(__name__)
Sets = Mapping[str, Sequence[Sentence]]
"""The sentences of each task."""


def probe(
    run: str | Path | TrainedModel,
    train: Sets,
    dev: Sets,
    test: Sets | None = None,
    *,
    folder: Path,
    step: int | None = None,
    how: ProbeOptions = ProbeOptions(),  # noqa: B008  # frozen
    cancel: CancelToken = NEVER,
) -> list[ProbeRow]:
    """Returns a row of figures for each task.

    Args:
        run: the run's folder, or an open one.
        train: sentences with their targets, by task.
        dev: likewise; decides when the training stops.
        test: likewise; probes are measured on it, or on dev if it is missing.
        folder: for features that are too large for memory; they are removed.
        step: the checkpoint; None: the run's default.
        how: how to probe. Of several seeds a row has the figures of the first and, as `over_seeds`, the mean and the
            deviation over all.

    Raises:
        DataError: when the model lacks a layer, or a set has no target that fits into the model.
    """
    model = run if isinstance(run, TrainedModel) else TrainedModel(run, step)
    numbers = sorted(set(layer_numbers(how.layers, model.model.config.layers, ("all", "each"))))
    # The sentences of all tasks and sets, each once, and which of their words are inside any span.
    origins: dict[tuple[str, ...], str] = {}
    in_spans: dict[tuple[str, ...], np.ndarray] = {}
    for sentence in (each for sets in (train, dev, test or {}) for own in sets.values() for each in own):
        origins.setdefault(sentence.words, sentence.origin)
        inside = in_spans.setdefault(sentence.words, np.zeros(len(sentence.words), bool))
        for first, behind in (span for t in sentence.targets for span in (t.span1, t.span2) if span is not None):
            inside[first:behind] = True
    place = {words: n for n, words in enumerate(origins)}
    with computed_features(model, origins, in_spans, folder, cancel=cancel) as features:
        left_out = sum(starts is None for starts in features.starts)
        if left_out:
            logger.warning(f"left out {left_out:,} of {len(place):,} sentences, which are longer than the model takes")
        model.watch_lengths().check(features.longest)
        rows = []
        for task, sentences in train.items():
            labels = label_names(sentences)
            given = {"train": sentences, "dev": dev[task], **({"test": test[task]} if test else {})}
            sets = {name: _encoded(each, place, features, labels, task, name) for name, each in given.items()}
            # The same features serve all seeds.
            row = _over_seeds(lambda each, sets=sets: _probe_task(sets, features, numbers, each, cancel), how)
            row |= {"labels": len(labels), "left_out": {n: s.left_out for n, s in sets.items()}}
            row |= {"unknown_labels": {n: dict(s.unknown) for n, s in sets.items() if n != "train"}}
            at = {"run": str(model.folder), "family": model.run.family, "step": model.step, "task": task}
            rows.append(at | row)
    return rows


def _encoded(
    sentences: Sequence[Sentence],
    place: Mapping[tuple[str, ...], int],
    features: SpanFeatures,
    labels: Sequence[str],
    task: str,
    name: str,
) -> ProbeExamples:
    examples = encode_targets(sentences, place, features, labels)
    if not len(examples.labels_TC):
        raise DataError(f"{task}: every sentence of the {name} set is longer than the model takes; give shorter ones")
    if not labels:
        raise DataError(f"{task}: no target of the training set has a label; give labelled ones")
    if examples.unknown:
        some = ", ".join(sorted(examples.unknown, key=lambda label: -examples.unknown[label])[:5])
        logger.warning(
            f"{task}: {len(examples.unknown)} labels of the {name} set are not in the training set, on "
            f"{sum(examples.unknown.values())} targets ({some}); they count as not predicted"
        )
    return examples


_AVERAGED = (
    *("f1", "precision", "recall", "lexical_f1", "centre_of_gravity", "divergence", "expected_layer"),
    *("control_f1", "selectivity"),
)
"""The figures whose mean over seeds has a meaning."""


def _over_seeds(probe_once: Callable[[ProbeOptions], ProbeRow], how: ProbeOptions) -> ProbeRow:
    """Returns the row of the first seed, with the mean and the deviation over all seeds if there are several."""
    seeds = how.seeds
    rows = [probe_once(replace(how, seed=how.seed + n, seeds=1)) for n in range(seeds)]
    if seeds == 1:
        return rows[0]
    figures = [{name: row[name] for name in _AVERAGED if name in row} for row in rows]
    return {**rows[0], "seeds": seeds, "over_seeds": spreads(figures)}


def _probe_task(
    sets: Mapping[str, ProbeExamples],
    features: SpanFeatures,
    numbers: Sequence[int],
    how: ProbeOptions,
    cancel: CancelToken,
) -> ProbeRow:
    train, layers = sets["train"], how.layers
    if len({each.spans_TS2.shape[1] for each in sets.values()}) > 1:
        raise DataError("the targets of one set are pairs of spans, those of another single spans; give one kind")
    measured = "test" if "test" in sets else "dev"
    # all: mixes of the layers up to each one; each: single layers; else one mix of the given layers.
    which = {
        "all": [numbers[: n + 1] for n in range(len(numbers))],
        "each": [[n] for n in numbers],
    }.get(layers, [numbers])
    layers_PN = layers_of(which, features.units_UND.shape[1])

    def train_and_measure(
        own: Mapping[str, ProbeExamples], layers_PN: np.ndarray, what: str
    ) -> tuple[TrainedProbes, list[Counts]]:
        trained = train_probes(own["train"], own["dev"], features.units_UND, layers_PN, how, cancel)
        logger.info(f"trained {len(layers_PN)} {what}{'s' * (len(layers_PN) > 1)} in {trained.trained} epochs")
        counts, _ = measure_probes(trained.params, layers_PN, own[measured], features.units_UND, how.batch, cancel)
        return trained, counts

    probes, counts = train_and_measure(sets, layers_PN, "probe")
    f1 = [micro_f1(each) for each in counts]
    # The task's main figures come from the mix of all layers, or, if each layer has a probe, from the best one on dev.
    main = len(f1) - 1
    if layers == "each":
        on_dev, _ = measure_probes(probes.params, layers_PN, sets["dev"], features.units_UND, how.batch, cancel)
        main = max(range(len(f1)), key=lambda n: micro_f1(on_dev[n]))
    of = sets[measured]
    row: ProbeRow = {
        "split": measured,
        "targets": {name: len(each.labels_TC) for name, each in sets.items()},
        "layers": list(numbers),
        "probes": "each" if layers == "each" else "cumulative" if layers == "all" else "mix",
        **_figures(counts[main]),
        "majority_f1": majority_f1(train.labels_TC, of.labels_TC, int(of.missed_T.sum())),
        "epochs": int(probes.epochs_P[main]),
        **_layer_figures(probes, f1, main, numbers, layers),
    }
    if how.control:
        tasks = {name: control_task(each, train.labels_TC, how.seed) for name, each in sets.items()}
        # The control task is probed like the main figures: each layer, or the mix of all.
        read_PN = layers_PN if layers == "each" else layers_PN[-1:]
        _, counts = train_and_measure(tasks, read_PN, "control probe")
        control_f1 = [micro_f1(each) for each in counts]
        own = control_f1[main if layers == "each" else 0]
        row |= {"control_f1": own, "selectivity": row["f1"] - own}
        if layers == "each":
            row |= {"layer_selectivity": [a - b for a, b in zip(f1, control_f1, strict=True)]}
    return row


def _layer_figures(probes: TrainedProbes, f1: list[float], main: int, numbers: Sequence[int], layers: str) -> ProbeRow:
    """Returns the figures by layer: of each one alone, or of the weights of their mix."""
    if layers == "each":
        return {"best_layer": numbers[main], "layer_f1": f1}
    weights = probes.weights_PN[main][list(numbers)].tolist()
    row: ProbeRow = {
        "weights": weights,
        "gamma": float(probes.gamma_P[main]),
        "centre_of_gravity": centre_of_gravity(weights, numbers),
        "divergence": divergence_from_uniform(weights),
    }
    if layers == "all":
        row |= {"lexical_f1": f1[0], "cumulative_f1": f1, "differentials": differentials(f1)}
        row |= {"expected_layer": expected_layer(f1)}
    return row


def _figures(counts: Counts) -> ProbeRow:
    precision, recall = precision_and_recall(counts)
    return {"f1": micro_f1(counts), "precision": precision, "recall": recall}
