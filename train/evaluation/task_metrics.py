"""Metrics of labelled tasks that are not sums over examples, by scikit-learn, scipy and seqeval.

    precision = hits / predicted      recall = hits / gold      F1 = 2·precision·recall / (precision + recall)

for one label, or for the entities of one type. A division by zero gives 0. No examples, or predictions that do not fit
the gold, are a ValueError. The libraries are imported where they are used, since importing them takes a second.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from contexture.data.tasks.read.entity_schemes import OUTSIDE, entity_tags
from contexture.train.run.report import Figure, plain

Tags: TypeAlias = Sequence[Sequence[str]]
"""A tag for each word of each example; "" where the model predicted none."""
Rates: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Precision, recall, F1 and count in gold of each label, one array for each."""


class LabelRow(TypedDict):
    """The rates of one label, or of one type of entities."""

    label: str
    precision: float
    recall: float
    f1: float
    count: int


def classified(gold: np.ndarray, predicted: np.ndarray, labels: Sequence[str]) -> dict[str, float]:
    """Numbers of labels i32 [n] → accuracy, f1_macro, f1_weighted, matthews; a predicted -1, for none, is always wrong.

        f1_macro     mean of F1 over the labels that occur in gold or predicted
        f1_weighted  Σ count in gold · F1 / n
        matthews     (TP·TN - FP·FN) / sqrt((TP+FP)(TP+FN)(TN+FP)(TN+FN)) of two labels (CoLA's metric); of more,
                     (c·n - Σ pₖ·gₖ) / sqrt((n² - Σ pₖ²)(n² - Σ gₖ²)): c hits, pₖ predictions and gₖ golds of label k

    For two labels also f1, precision and recall of the second, the positive one.
    """
    from sklearn.metrics import matthews_corrcoef

    # -1 (no prediction) is one more class to scikit-learn: it lowers recall and Matthews, and no precision.
    gold, predicted = _fitting(gold, predicted, labels)
    with _silent():
        matthews = float(matthews_corrcoef(gold, predicted))
    precision, recall, f1, count = _rates(gold, predicted, len(labels))
    figures = {
        "accuracy": float((gold == predicted).mean()),
        "f1_macro": _macro(gold, predicted, f1),
        "f1_weighted": float(np.average(f1, weights=count)),
        "matthews": matthews,
    }
    # The second label is the positive one, as in MRPC and QQP.
    if len(labels) == 2:
        figures |= {"f1": float(f1[1]), "precision": float(precision[1]), "recall": float(recall[1])}
    return figures


def regressed(gold: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Numbers f64 [n] → pearson, spearman, mse, mae.

        pearson   Σ (g - mean g)(p - mean p) / sqrt(Σ (g - mean g)² · Σ (p - mean p)²)
        spearman  pearson of the ranks, equal numbers sharing the mean of theirs

    A correlation is nan if it is not defined: one example, all gold or all predicted alike, or a prediction that is not
    finite.
    """
    from scipy import stats

    # In float64: sums of squares of float32 lose digits.
    gold, predicted = _paired(np.asarray(gold, np.float64), np.asarray(predicted, np.float64))
    varied = all(np.isfinite(values).all() and values.min() < values.max() for values in (gold, predicted))
    # A correlation of constants is 0/0: told here, not by scipy's warnings.
    with _silent(), np.errstate(all="ignore"):
        correlations = [
            float(np.asarray(correlation(gold, predicted))[0]) if varied else float("nan")  # [1] is the p-value
            for correlation in (stats.pearsonr, stats.spearmanr)
        ]
        return {
            "pearson": correlations[0],
            "spearman": correlations[1],
            "mse": float(np.square(gold - predicted).mean()),
            "mae": float(np.abs(gold - predicted).mean()),
        }


def tagged(gold: Tags, predicted: Tags, labels: Sequence[str] = ()) -> dict[str, float]:
    """Tags of examples → accuracy per word, and f1_macro over the tags that occur.

    If labels and tags mark entities (`entity_tags`), also CoNLL's entity_precision, entity_recall and entity_f1:
    a predicted entity is a hit if its type, first word and last word equal a gold one's, and hits are counted over all
    types together (micro average). As in conlleval, an I- after nothing or after another type begins an
    entity.

    A word without a prediction, "", is always wrong, and outside any entity.
    """
    # Per word: all examples in one row of numbers.
    names = _names(gold, predicted, labels)
    flat_gold, flat_predicted = _fitting(numbers(gold, names), numbers(predicted, names), names)
    f1 = _rates(flat_gold, flat_predicted, len(names))[2]
    figures = {
        "accuracy": float((flat_gold == flat_predicted).mean()),
        "f1_macro": _macro(flat_gold, flat_predicted, f1),
    }
    # Per entity: only if the labels follow a scheme such as BIO.
    if tags := entity_tags(names):
        precision, recall, f1, _ = _entity_rates(_as_seqeval(gold, tags), _as_seqeval(predicted, tags), average="micro")
        figures |= {"entity_precision": float(precision), "entity_recall": float(recall), "entity_f1": float(f1)}
    return figures


def class_table(gold: np.ndarray, predicted: np.ndarray, labels: Sequence[str]) -> list[LabelRow]:
    """Returns a row for each label, in order; arguments as for `classified`."""
    return _rows(labels, _rates(*_fitting(gold, predicted, labels), len(labels)))


def tag_table(gold: Tags, predicted: Tags, labels: Sequence[str]) -> list[LabelRow]:
    """Returns a row for each tag, or for each type if tags mark entities: first in the order of `labels`, then others
    that occur."""
    # A row for each tag, unless tags mark entities: then a row for each type.
    names = _names(gold, predicted, labels)
    if not (tags := entity_tags(names)):
        return class_table(numbers(gold, names), numbers(predicted, names), names)
    from seqeval.metrics.sequence_labeling import get_entities

    gold_tags, predicted_tags = _as_seqeval(gold, tags), _as_seqeval(predicted, tags)
    # seqeval gives its rates in the sorted order of the types that occur.
    occurring = sorted({entity[0] for rows in (gold_tags, predicted_tags) for entity in get_entities(rows)})
    rates = _entity_rates(gold_tags, predicted_tags, average=None)
    rows = {row["label"]: row for row in _rows(occurring, rates)}
    # B-PER and I-PER → PER; a type that occurs nowhere has rates of 0 and a count of 0.
    types = dict.fromkeys(tags[name][2:] for name in names if name != OUTSIDE)
    # By the order of labels, which is the same for every checkpoint of a run.
    return [rows.get(name) or {"label": name, "precision": 0.0, "recall": 0.0, "f1": 0.0, "count": 0} for name in types]


def majority(train_counts: Sequence[int], gold: np.ndarray) -> dict[str, float]:
    """Training's count of each label, and gold numbers i32 [n] → majority_accuracy, the baseline of always predicting
    training's most frequent label; ties go to the first. Tags become numbers by `numbers`."""
    if not len(train_counts) or not np.size(gold):
        raise ValueError("nothing to score: no labels or no examples")
    # argmax takes the first of equals, so the baseline is the same on every machine.
    return {"majority_accuracy": float((np.asarray(gold) == int(np.argmax(train_counts))).mean())}


def mean_guess(train_mean: float, gold: np.ndarray) -> dict[str, float]:
    """Training's mean and gold f64 [n] → mean_mse, the mean squared error of always answering that mean."""
    if not np.size(gold):
        raise ValueError("nothing to score: no examples")
    return {"mean_mse": float(np.square(np.asarray(gold, np.float64) - train_mean).mean())}


def numbers(rows: Tags, labels: Sequence[str]) -> np.ndarray:
    """Returns the tags of all examples, concatenated, as numbers of labels i32 [words]; -1 for a tag that is none."""
    # "", for a truncated word, is in no list of labels: -1.
    number = {label: i for i, label in enumerate(labels)}
    return np.array([number.get(tag, -1) for row in rows for tag in row], np.int32)


def _paired(gold: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    gold, predicted = np.asarray(gold), np.asarray(predicted)
    # A silent broadcast of [n] with [n, 1] would score every pair.
    if gold.shape != predicted.shape or gold.ndim != 1:
        raise ValueError(f"gold {list(gold.shape)} and predicted {list(predicted.shape)} do not fit each other")
    if not len(gold):
        raise ValueError("nothing to score: no examples")
    return gold, predicted


def _fitting(gold: np.ndarray, predicted: np.ndarray, labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    gold, predicted = _paired(gold, predicted)
    # Checked here, since scikit-learn would silently score unknown numbers as further classes.
    if gold.min() < 0 or max(gold.max(), predicted.max()) >= len(labels) or predicted.min() < -1:
        raise ValueError(f"a number is none of the {len(labels)} labels'; gold wants 0 and up, predicted -1 and up")
    return gold, predicted


def _names(gold: Tags, predicted: Tags, labels: Sequence[str]) -> list[str]:
    """Returns the labels in their order, then the other tags that occur, sorted.

    Raises ValueError unless gold and predicted have the same words.
    """
    # Flat arrays would hide a word that moved from one sentence to the next.
    if [len(row) for row in gold] != [len(row) for row in predicted]:
        raise ValueError("gold and predicted have not the same words: their rows differ in number or length")
    if any("" in row for row in gold):
        raise ValueError("a word of gold has no tag")
    # Tags that training did not have may occur in another file: they count as labels that are never predicted.
    occurring = {tag for rows in (gold, predicted) for row in rows for tag in row} - {"", *labels}
    return [*labels, *sorted(occurring)]


def _rates(gold: np.ndarray, predicted: np.ndarray, labels: int) -> Rates:
    from sklearn.metrics import precision_recall_fscore_support

    with _silent():
        return precision_recall_fscore_support(gold, predicted, labels=range(labels), zero_division=0)  # type: ignore


def _macro(gold: np.ndarray, predicted: np.ndarray, f1: np.ndarray) -> float:
    # A label that does not occur has F1 0 by definition, which says nothing about the model. -1 is no label.
    present = np.union1d(gold, predicted)
    return float(f1[present[present >= 0]].mean())


def _entity_rates(gold: list[list[str]], predicted: list[list[str]], average: str | None) -> Rates:
    from seqeval.metrics.sequence_labeling import precision_recall_fscore_support

    return precision_recall_fscore_support(gold, predicted, average=average, zero_division=0)  # type: ignore


def _as_seqeval(examples: Tags, tags: Mapping[str, str]) -> list[list[str]]:
    """Returns tags in seqeval's spelling. A word without a tag is outside any entity."""
    # Schemes such as BIO, IOB1 or BILOU are spelled in one way for seqeval (`entity_tags`).
    return [[tags.get(tag, OUTSIDE) for tag in row] for row in examples]


def _rows(labels: Sequence[str], rates: Rates) -> list[LabelRow]:
    return [
        {"label": label, "precision": float(precision), "recall": float(recall), "f1": float(f1), "count": int(count)}
        for label, precision, recall, f1, count in zip(labels, *rates, strict=True)
    ]


@contextmanager
def _silent() -> Iterator[None]:
    """Suppresses the libraries' warnings about few examples, many labels or nearly constant values."""
    # Our own rules (0 for a division by zero, nan for an undefined correlation) are in the docstrings above.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


FileRow: TypeAlias = dict[str, Figure]
"""{"file": its name, "examples": 97, "accuracy": …}."""


def rows_by_file(
    sources: Sequence[str], files: NDArray[np.int64], figures: Callable[[int], dict[str, float]]
) -> list[FileRow]:
    """Returns a row for each source, in their order; [] for a single source.

    Args:
        sources: names by number.
        files: the number of each example's source.
        figures: number of a source → the metrics of its examples.
    """
    # Recomputed over each source's examples: F1 and the like are no means of parts.
    numbers, counts = np.unique(files, return_counts=True)
    if len(numbers) < 2:
        return []
    rows: list[FileRow] = []
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        row: FileRow = {"file": str(sources[number]), "examples": int(count)}
        row.update({name: plain(value) for name, value in figures(number).items()})
        rows.append(row)
    return rows
