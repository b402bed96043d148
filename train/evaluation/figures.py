"""Figures of a task with labels: confusion matrix, rates of each label, and calibration of the probabilities.

    confusion.csv, .png, .svg, .pdf  how often each label (a row) was predicted as each (a column)
    labels.csv, .png, .svg, .pdf     precision, recall and F1 of each label, or type of entities, and how often it
                                     occurs
    calibration.png, .svg, .pdf      the accuracy of the predictions with about the same probability (Guo et al. 2017,
                                     On calibration of modern neural networks, section 2)

    expected calibration error = Σ over bins  n_bin / n · |accuracy_bin - mean probability_bin|

over bins of equal width between 0 and 1. Counts and rates are computed by scikit-learn.
"""

import csv
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from contexture.data.storage import atomic_file
from contexture.data.visible import visible
from contexture.train.evaluation.task_metrics import LabelRow
from contexture.train.run.plots import (
    COLOURS,
    Theme,
    add_legend_below,
    add_title,
    new_figure,
    save_pictures,
    unknown_letters_as_boxes,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("classify", "choice", "tag")
"""The kinds of tasks that have labels."""
BINS = 10
MOST_LABELS = 40
"""Labels that a picture can show; the rest are in the CSV, and one row and column of a matrix."""
_WITH_COUNTS = 12
"""Maximum number of labels for which a matrix's cells have room for numbers."""
_LONGEST = 24
"""Maximum number of characters of a label in a picture."""
_FULL = "#00609a"
"""The colour of share 1, in both themes; dark enough for white numbers."""
NO_PREDICTION = "(none)"
"""Column for examples without a single best label, and for truncated words."""


class Calibration(TypedDict):
    """How far probabilities are from accuracies. error: the expected calibration error; examples: the number of
    examples (for tags, words) with a prediction."""

    error: float
    bins: int
    examples: int


@dataclass(frozen=True)
class LabelledPredictions:
    """The gold and the predicted label of each example, or of each word for tags.

    Args:
        gold: numbers of labels i32 [n]
        predicted: likewise, -1 for none
        confidence: the probability of the best label f64 [n]; 0 where there is no prediction
    """

    labels: tuple[str, ...]
    gold: NDArray[np.int32]
    predicted: NDArray[np.int32]
    confidence: NDArray[np.float64]


def write_figures(
    folder: Path, predictions: LabelledPredictions, rows: Sequence[LabelRow], title: str, theme: Theme
) -> Calibration | None:
    """Writes all figures into an existing folder, and returns the calibration; None if no probability is a number.

    Args:
        folder: where they go.
        predictions: of all examples or words.
        rows: the rates of each label.
        title: the heading of the pictures.
        theme: the colours of PNG and PDF; an SVG follows its reader's.
    """
    # The tables first: they have all labels, however many, and need no matplotlib.
    matrix, names = confusion(predictions)
    counts = [[name, *row] for name, row in zip(predictions.labels, matrix.tolist(), strict=True)]
    _write_csv(folder / "confusion.csv", [["label", *names], *counts])
    cells = [[row["label"], row["precision"], row["recall"], row["f1"], row["count"]] for row in rows]
    _write_csv(folder / "labels.csv", [["label", "precision", "recall", "f1", "support"], *cells])
    bins = calibration_bins(predictions)
    with unknown_letters_as_boxes():  # the CSV has them as they are
        save_pictures(lambda colours: _confusion_figure(matrix, names, title, colours), folder, "confusion", theme)
        save_pictures(lambda colours: _label_figure(rows, title, colours), folder, "labels", theme)
        if bins is not None:
            save_pictures(lambda colours: _calibration_figure(bins, title, colours), folder, "calibration", theme)
    return None if bins is None else {"error": bins.error, "bins": BINS, "examples": int(bins.counts.sum())}


def _write_csv(file: Path, rows: Sequence[Sequence[object]]) -> None:
    with atomic_file(file) as part, open(part, "w", encoding="utf-8", newline="") as opened:
        csv.writer(opened).writerows(rows)


def confusion(predictions: LabelledPredictions) -> tuple[NDArray[np.int64], list[str]]:
    """Returns (the confusion matrix i64 [labels, columns]; the names of its columns). An extra last column counts
    examples without a prediction, if there are any."""
    # Counts by scikit-learn, whose rows are gold and columns predicted.
    from sklearn.metrics import confusion_matrix

    count, none = len(predictions.labels), bool((predictions.predicted < 0).any())
    numbers = [*range(count), *([-1] if none else [])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns if only one label occurs
        matrix = confusion_matrix(predictions.gold, predictions.predicted, labels=numbers)[:count]
    return matrix.astype(np.int64), [*predictions.labels, *([NO_PREDICTION] if none else [])]


@dataclass(frozen=True)
class CalibrationBins:
    """The bins that hold predictions. low: their lower edges; accuracy, confidence: their means [bins]; counts."""

    low: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    confidence: NDArray[np.float64]
    counts: NDArray[np.int64]

    @property
    def error(self) -> float:
        """The expected calibration error."""
        return float(np.average(np.abs(self.accuracy - self.confidence), weights=self.counts))


def calibration_bins(predictions: LabelledPredictions, bins: int = BINS) -> CalibrationBins | None:
    """Returns the bins of the predictions by their probability; None if no probability is a number above 0."""
    from sklearn.calibration import calibration_curve

    # 0 marks a truncated word, which has no probability.
    given = np.isfinite(predictions.confidence) & (predictions.confidence > 0.0)
    if not given.any():
        return None
    # A tie has a confidence and is no hit: it counts as a wrong prediction of that confidence.
    hits = (predictions.gold == predictions.predicted)[given].astype(np.int32)
    # Sums of probabilities in float32 may exceed 1 by their rounding.
    confidence = np.minimum(predictions.confidence[given], 1.0)
    accuracy, mean = calibration_curve(hits, confidence, n_bins=bins, pos_label=1)
    # calibration_curve counts by these edges too, and leaves out bins without predictions.
    edges = np.linspace(0.0, 1.0, bins + 1)
    counts = np.bincount(np.searchsorted(edges[1:-1], confidence), minlength=bins)
    held = counts > 0
    return CalibrationBins(edges[:-1][held], accuracy, mean, counts[held])


def _shown(label: str) -> str:
    """Returns a label shortened for a picture, with its middle left out."""
    text = visible(label)
    half = _LONGEST // 2 - 1
    return text if len(text) <= _LONGEST else f"{text[:half].rstrip()} … {text[-half:].lstrip()}"


def _most_frequent(matrix: NDArray[np.int64], names: list[str]) -> tuple[NDArray[np.int64], list[str]]:
    """Returns a matrix and its names with the rarest labels merged into one, if a picture has no room for all."""
    count = len(matrix)
    if count <= MOST_LABELS:
        return matrix, [*names]
    # Frequent in gold or in predictions: a label that is wrongly predicted often belongs in the picture.
    seen = matrix.sum(1) + matrix[:, :count].sum(0)
    kept = np.sort(np.argsort(-seen, kind="stable")[: MOST_LABELS - 1])
    others = np.setdiff1d(np.arange(count), kept)
    # Rows first, then columns; the column of no prediction stays the last.
    rows = np.concatenate([matrix[kept], matrix[others].sum(0, keepdims=True)])
    columns = [rows[:, kept], rows[:, others].sum(1, keepdims=True), rows[:, count:]]
    return np.concatenate(columns, 1), [*(names[i] for i in kept), f"{len(others)} others", *names[count:]]


def _confusion_figure(matrix: NDArray[np.int64], names: list[str], title: str, theme: Theme) -> "Figure":
    from matplotlib.colors import LinearSegmentedColormap

    matrix, names = _most_frequent(matrix, names)
    rows, columns = matrix.shape
    with_counts = rows <= _WITH_COUNTS
    # Inches, from here on: cells large enough for their numbers, and margins for the longest label.
    cell = max(0.62, min(3.0 / columns, 1.0)) if with_counts else 0.24
    shown = list(map(_shown, names))
    margin = 1.1 + 0.085 * max(map(len, shown))
    width, height = max(cell * columns + margin + 1.0, 4.6), max(cell * rows + margin + 0.5, 3.4)
    figure, (axes,) = new_figure(width, height, theme=theme)
    # Colour by the share of a row, so that rare labels are seen as well as frequent ones. Empty cells stay paper.
    share = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    colours = LinearSegmentedColormap.from_list("share", ["#cfe3f3", _FULL])
    drawn = axes.pcolormesh(np.ma.masked_equal(share, 0.0), cmap=colours, vmin=0.0, vmax=1.0)
    # Font sizes; a number of five digits is one smaller.
    size = 9 if with_counts else 7
    for row, column in zip(*np.nonzero(matrix), strict=True) if with_counts else ():
        # White on dark cells, black on light ones, in both themes.
        ink = "#ffffff" if share[row, column] > 0.6 else "#000000"
        number = matrix[row, column]
        text = f"{number:,}" if number < 100_000 else f"{number:.0e}".replace("e+0", "e")
        axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=size - (number > 9999), color=ink)
    # Upright names where they fit above their column, about 0.085 inches a letter.
    turn = 0 if with_counts and max(map(len, shown)) * 0.085 < cell else 90
    axes.set_xticks(np.arange(columns) + 0.5, shown, rotation=turn, fontsize=size, parse_math=False)
    axes.set_yticks(np.arange(rows) + 0.5, shown[:rows], fontsize=size, parse_math=False)
    # As a matrix is written: the first label on top, square cells.
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.grid(False)
    axes.tick_params(length=0)
    axes.set_xlabel("predicted")
    axes.set_ylabel("label")
    bar = figure.colorbar(drawn, ax=axes, shrink=0.5, aspect=16, pad=0.02)
    bar.set_label("share of the label", color=axes.xaxis.label.get_color(), fontsize=8)
    bar.ax.tick_params(colors=axes.xaxis.label.get_color(), labelsize=8)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    add_title(axes, title, theme)
    return figure


def _label_figure(rows: Sequence[LabelRow], title: str, theme: Theme) -> "Figure":
    # The most frequent labels, in the order of the table.
    by_support = sorted(rows, key=lambda row: -row["count"])[:MOST_LABELS]
    # By identity: two types of entities may have equal rates.
    kept = [row for row in rows if any(row is each for each in by_support)]
    figure, (axes,) = new_figure(7.2, max(0.27 * len(kept) + 1.9, 2.6), theme=theme)
    # One row for each label, counted downwards; the three rates lie on one scale from 0 to 1.
    y = np.arange(len(kept))
    ink = axes.xaxis.label.get_color()
    # A line from the lowest to the highest rate joins the three marks of a label.
    axes.hlines(
        y,
        [min(row["precision"], row["recall"], row["f1"]) for row in kept],
        [max(row["precision"], row["recall"], row["f1"]) for row in kept],
        color=COLOURS[theme][6],
        linewidth=1.0,
    )
    for name, marker, colour in (
        ("precision", ">", COLOURS[theme][0]),
        ("recall", "<", COLOURS[theme][1]),
        ("f1", "o", COLOURS[theme][2]),
    ):
        label = "F1" if name == "f1" else name
        axes.plot([row[name] for row in kept], y, marker, color=colour, markersize=5.5, label=label, clip_on=False)
    axes.set_yticks(y, [_shown(row["label"]) for row in kept], fontsize=9, parse_math=False)
    for at, row in zip(y, kept, strict=True):
        axes.annotate(
            f"{row['count']:,}", (1.0, at), (10, 0), textcoords="offset points", va="center", fontsize=8, color=ink
        )
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(len(kept) - 0.4, -0.6)
    part = f"the {len(kept)} most frequent of {len(rows)} labels (all: labels.csv); " if len(kept) < len(rows) else ""
    axes.set_xlabel(f"{part}at the right: how often each occurs", fontsize=9)
    add_title(axes, title, theme)
    add_legend_below(figure, theme)
    return figure


def _calibration_figure(bins: CalibrationBins, title: str, theme: Theme) -> "Figure":
    # Accuracy above, and below it how many predictions each bin holds.
    figure, (axes, below) = new_figure(5.4, 5.6, 2, theme)
    width = 1.0 / BINS
    axes.bar(bins.low, bins.accuracy, width, align="edge", color=COLOURS[theme][0], label="accuracy", linewidth=0)
    axes.hlines(bins.confidence, bins.low, bins.low + width, COLOURS[theme][1], linewidth=2.5, label="mean probability")
    # On the diagonal a probability of 0.8 is right in 80 % of cases.
    axes.plot([0, 1], [0, 1], color=COLOURS[theme][6], linestyle="--", linewidth=1, label="calibrated")
    axes.set_ylabel("accuracy")
    axes.set_ylim(0, 1.02)
    total = int(bins.counts.sum())
    add_title(axes, f"{title}\nexpected calibration error {bins.error:.4f} ({BINS} bins, n = {total:,})", theme)
    add_legend_below(figure, theme)
    # How many predictions each bin rests on: a bar of few says little.
    below.bar(bins.low, bins.counts / total, width, align="edge", color=COLOURS[theme][5], linewidth=0)
    below.set_ylabel("share of predictions")
    below.set_xlabel("probability of the predicted label")
    for each in (axes, below):
        each.set_xlim(0, 1)
        each.set_xticks(np.linspace(0, 1, 6))
    return figure
