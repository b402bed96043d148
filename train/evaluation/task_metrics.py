"""Metrics of labelled tasks that are no sums over examples, by scikit-learn, scipy and seqeval.

Those libraries are imported where they are used, since they take a second. What divides by zero is 0. Nothing to score,
or predictions that do not fit the gold, is a ValueError.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

Tags = Sequence[Sequence[str]]  # a tag for each word of each row; "" where the model gave none
Row = dict[str, Any]


def classified(gold: np.ndarray, predicted: np.ndarray, labels: Sequence[str]) -> dict[str, float]:
    """Numbers of labels i32 [n], a predicted -1 (none given) always wrong → accuracy, f1_macro, f1_weighted, matthews.

    f1_macro is the mean over the labels that occur in gold or predicted; f1_weighted counts each as often as gold has
    it. Where there are two labels, also f1, precision and recall of the second.
    """
    from sklearn.metrics import matthews_corrcoef

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
    if len(labels) == 2:
        figures |= {"f1": float(f1[1]), "precision": float(precision[1]), "recall": float(recall[1])}
    return figures


def regressed(gold: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Numbers f64 [n] → pearson and spearman, mse, mae. A correlation is nan where it is not defined: one example, all
    gold or all predicted alike, or a prediction that is not finite."""
    from scipy import stats

    correlations: tuple[Any, Any] = stats.pearsonr, stats.spearmanr
    gold, predicted = _paired(np.asarray(gold, np.float64), np.asarray(predicted, np.float64))
    varied = all(np.isfinite(values).all() and values.min() < values.max() for values in (gold, predicted))
    with _silent(), np.errstate(all="ignore"):
        pearson, spearman = (float(of(gold, predicted).statistic) if varied else float("nan") for of in correlations)
        return {
            "pearson": pearson,
            "spearman": spearman,
            "mse": float(np.square(gold - predicted).mean()),
            "mae": float(np.abs(gold - predicted).mean()),
        }


def tagged(gold: Tags, predicted: Tags, labels: Sequence[str] = ()) -> dict[str, float]:
    """Rows of tags → accuracy per word and f1_macro over the tags that occur; for an entity scheme, to be seen from
    labels and the tags themselves, also entity_precision, entity_recall and entity_f1 over whole entities.

    A word without a prediction, "", is always wrong, and outside any entity. Entities are found as conlleval finds
    them: an I- after nothing or after another type begins one.
    """
    names = _names(gold, predicted, labels)
    flat_gold, flat_predicted = _fitting(numbers(gold, names), numbers(predicted, names), names)
    f1 = _rates(flat_gold, flat_predicted, len(names))[2]
    figures = {
        "accuracy": float((flat_gold == flat_predicted).mean()),
        "f1_macro": _macro(flat_gold, flat_predicted, f1),
    }
    if is_entity_scheme(names):
        precision, recall, f1, _ = _entity_rates(_chunks(gold), _chunks(predicted), average="micro")
        figures |= {"entity_precision": float(precision), "entity_recall": float(recall), "entity_f1": float(f1)}
    return figures


def is_entity_scheme(labels: Sequence[str]) -> bool:
    """Whether tags mark where entities begin and go on (IOB, BIOES, BILOU): each is O or B-, I-, E-, S-, L- or U- and a
    type, and some is B- or I-."""
    marked = [label for label in labels if label != "O"]
    fits = all(len(label) > 2 and label[0] in "BIESLU" and label[1] == "-" for label in marked)
    return fits and any(label[0] in "BI" for label in marked)


def label_table(kind: str, gold: Any, predicted: Any, labels: Sequence[str]) -> list[Row]:
    """What `classified` ("classify", "choice") or `tagged` ("tag") was given → {label, precision, recall, f1, count in
    gold}, in the order of labels, then what occurs besides. An entity scheme has a row for each type. Numbers have no
    rows."""
    if kind == "regress":
        return []
    if kind != "tag":
        return _rows(labels, *_rates(*_fitting(gold, predicted, labels), len(labels)))
    names = _names(gold, predicted, labels)
    if not is_entity_scheme(names):
        flat_gold, flat_predicted = _fitting(numbers(gold, names), numbers(predicted, names), names)
        return _rows(names, *_rates(flat_gold, flat_predicted, len(names)))
    from seqeval.metrics.sequence_labeling import get_entities

    chunks = _chunks(gold), _chunks(predicted)
    found = sorted({entity[0] for rows in chunks for entity in get_entities(rows)})  # in the order of seqeval's rates
    rows = {row["label"]: row for row in _rows(found, *_entity_rates(*chunks, average=None))}
    nothing = {"precision": 0.0, "recall": 0.0, "f1": 0.0, "count": 0}
    types = dict.fromkeys(name[2:] for name in names if name != "O")
    return [rows.get(name) or {"label": name, **nothing} for name in types]


def majority(train_counts: Sequence[int], gold: np.ndarray) -> dict[str, float]:
    """How often training has each label, and gold numbers i32 [n] → majority_accuracy, of always naming training's
    commonest label (the first of several). Tags become numbers by `numbers`."""
    if not len(train_counts) or not np.size(gold):
        raise ValueError("nothing to score: no labels or no examples")
    return {"majority_accuracy": float((np.asarray(gold) == int(np.argmax(train_counts))).mean())}


def mean_guess(train_mean: float, gold: np.ndarray) -> dict[str, float]:
    """Training's mean and gold f64 [n] → mean_mse, the mean squared error of always answering that mean."""
    if not np.size(gold):
        raise ValueError("nothing to score: no examples")
    return {"mean_mse": float(np.square(np.asarray(gold, np.float64) - train_mean).mean())}


def numbers(rows: Tags, labels: Sequence[str]) -> np.ndarray:
    """The tags of all rows, one after the other, as numbers of labels i32 [words]; -1 for what is none of them."""
    number = {label: i for i, label in enumerate(labels)}
    return np.array([number.get(tag, -1) for row in rows for tag in row], np.int32)


def _paired(gold: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    gold, predicted = np.asarray(gold), np.asarray(predicted)
    if gold.shape != predicted.shape or gold.ndim != 1:
        raise ValueError(f"gold {list(gold.shape)} and predicted {list(predicted.shape)} do not fit each other")
    if not len(gold):
        raise ValueError("nothing to score: no examples")
    return gold, predicted


def _fitting(gold: np.ndarray, predicted: np.ndarray, labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    gold, predicted = _paired(gold, predicted)
    if gold.min() < 0 or max(gold.max(), predicted.max()) >= len(labels) or predicted.min() < -1:
        raise ValueError(f"a number is none of the {len(labels)} labels'; gold wants 0 and up, predicted -1 and up")
    return gold, predicted


def _names(gold: Tags, predicted: Tags, labels: Sequence[str]) -> list[str]:
    """The labels in their order, then the other tags that occur, sorted; checks that the rows fit word by word."""
    if [len(row) for row in gold] != [len(row) for row in predicted]:
        raise ValueError("gold and predicted have not the same words: their rows differ in number or length")
    if any("" in row for row in gold):
        raise ValueError("a word of gold has no tag")
    occurring = {tag for rows in (gold, predicted) for row in rows for tag in row} - {"", *labels}
    return [*labels, *sorted(occurring)]


def _rates(gold: np.ndarray, predicted: np.ndarray, labels: int) -> tuple[np.ndarray, ...]:
    """Precision, recall, F1 and count in gold of each label."""
    from sklearn.metrics import precision_recall_fscore_support

    with _silent():
        return precision_recall_fscore_support(gold, predicted, labels=range(labels), zero_division=0)  # type: ignore


def _macro(gold: np.ndarray, predicted: np.ndarray, f1: np.ndarray) -> float:
    present = np.union1d(gold, predicted)
    return float(f1[present[present >= 0]].mean())


def _entity_rates(gold: list[list[str]], predicted: list[list[str]], average: str | None) -> Any:
    from seqeval.metrics.sequence_labeling import precision_recall_fscore_support

    return precision_recall_fscore_support(gold, predicted, average=average, zero_division=0)  # type: ignore


def _chunks(rows: Tags) -> list[list[str]]:
    """Tags as seqeval knows them: BILOU's last and unit are its end and single."""
    as_known = {"L": "E", "U": "S"}
    return [[as_known.get(tag[0], tag[0]) + tag[1:] if tag else "O" for tag in row] for row in rows]


def _rows(labels: Sequence[str], *rates: np.ndarray) -> list[Row]:
    return [
        {"label": label, "precision": float(precision), "recall": float(recall), "f1": float(f1), "count": int(count)}
        for label, precision, recall, f1, count in zip(labels, *rates, strict=True)
    ]


@contextmanager
def _silent() -> Iterator[None]:
    """Without what the libraries say of few examples, many labels or values nearly alike."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
