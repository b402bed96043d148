"""Collects a model's predictions for the examples of a task, scores them, and turns them into records."""

from collections.abc import Iterator
from typing import Required, TypeAlias, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from contexture.data.binary_files import I64
from contexture.data.tasks.batch.batches import ExampleOrder, HeldOutTask
from contexture.data.tasks.store.example_store import ExampleSplit, ExampleStore, Rows, is_absent
from contexture.train.evaluation import task_metrics
from contexture.train.evaluation.figures import LabelledPredictions
from contexture.train.evaluation.spans import SpanAnswer, SpanCollector
from contexture.train.evaluation.task_metrics import FileRow, LabelRow, Tags, rows_by_file
from contexture.train.objectives import best_place, has_best

Numbers: TypeAlias = NDArray[np.int32] | NDArray[np.float64]
"""A number for each example or word: of its label (i32), or its target (f64)."""


class Prediction(TypedDict, total=False):
    """The record of one example, with its label if the file has one.

    Classes: label, prediction, {label: probability}. Numbers: label, prediction. Tags: one of each for each word; the
    prediction is "" for a truncated word. Questions: the fields of SpanPrediction, with "" for no answer.
    truncated: True for a new example that lost its end; else it is left out.
    """

    id: Required[str]
    label: str | float
    prediction: str | float
    labels: list[str]
    predictions: list[str]
    scores: dict[str, float] | list[float]
    null_score: float
    n_best: list[SpanAnswer]
    truncated: bool


class PredictionCollector:
    """Collects the predictions of every batch of a HeldOutTask; memory holds three numbers for each example or word.

    On a tie, records name the first of the best labels; the metrics count no hit (`objectives.has_best`).
    """

    def __init__(self, held_out: HeldOutTask, labelled: bool = True) -> None:
        self.held_out, self.split, self.labelled = held_out, held_out.split, labelled
        self._order = ExampleOrder(held_out)
        # Lists of arrays, one for each batch, joined when metrics are asked for.
        self._gold: list[Numbers] = []
        self._predicted: list[Numbers] = []
        self._confidence: list[NDArray[np.float64]] = []
        """The probability of the best label; 0 for a truncated word."""
        self._words: list[NDArray[np.int64]] = []
        """Words of each example, for tags."""
        self._counts: list[int] = []
        """How many labels each example of the batch has: its alternatives, or all classes."""
        self._files: list[NDArray[np.int64]] = []
        """The number of each example's source."""
        self._waiting: tuple[I64, NDArray[np.float32]] | None = None
        """(numbers, scores) of the windows of a text whose last window is still to come."""

    def add(self, step: int, predictions: dict[str, np.ndarray]) -> Iterator[Prediction]:
        """Takes the predictions of a batch, and yields {"id": "dev.tsv:7", …} for each complete example, in order.

        Batches are put together within a window: nothing comes until the last one of a window, and then all its
        examples.
        """
        # Examples are scored in their own order, whatever order batches came in.
        if (ready := self._order.add(step, predictions)) is None:
            return
        numbers, outputs = ready if self.split.windows == "off" else self._of_texts(*ready)
        # An example with alternatives has a row for each; all of them have its answer.
        every = self.split.take(numbers)
        rows, self._counts = every[:: self.split.choices], _alternatives(every, self.split)
        self._files.append(rows["file"])
        # The kind of task makes the record; the id is the place of the example in its file.
        for row, record in zip(rows, self.records(rows, outputs), strict=True):
            yield cast(Prediction, {"id": self.split.origin(row), **record})

    def _of_texts(self, numbers: I64, outputs: dict[str, np.ndarray]) -> tuple[I64, dict[str, np.ndarray]]:
        """Windows → (the first window of each text that is complete, the joined scores of the text)."""
        scores_BC = outputs["scores"]
        # Windows of a text that began in an earlier batch go first.
        if self._waiting is not None:
            earlier, scores = self._waiting
            numbers, scores_BC = np.concatenate([earlier, numbers]), np.concatenate([scores, scores_BC])
        # The last text may go on in the next batch: its windows wait, unless these were the last of all.
        firsts = np.flatnonzero(self.split.begins(numbers))
        self._waiting = None
        if numbers[-1] + 1 < self.split.examples:
            whole, firsts = firsts[-1], firsts[:-1]
            self._waiting = numbers[whole:], scores_BC[whole:]
            numbers, scores_BC = numbers[:whole], scores_BC[:whole]
        return numbers[firsts], {"scores": joined_windows(scores_BC, firsts, self.split.windows)}

    def _chosen(self, file: int | None) -> NDArray[np.bool_]:
        """Returns a mask of the examples from a source; None: all."""
        files = np.concatenate(self._files)
        return np.ones(len(files), bool) if file is None else files == file

    def _numbers(self, file: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns (gold, predicted) of all examples or words in order, or only of one source's."""
        chosen = self._chosen(file)
        # Tags are numbers of words: the mask of examples becomes one of words.
        chosen = np.repeat(chosen, np.concatenate(self._words)) if self._words else chosen
        return np.concatenate(self._gold)[chosen], np.concatenate(self._predicted)[chosen]

    def by_file(self) -> list[FileRow]:
        """Returns the number of examples and the metrics of each source, if there are several."""
        return rows_by_file(self.split.sources, np.concatenate(self._files), self.figures)

    def records(self, rows: Rows, outputs: dict[str, np.ndarray]) -> list[dict[str, object]]:
        """Stores the predictions of examples, and returns a record for each."""
        raise NotImplementedError

    def figures(self, file: int | None = None) -> dict[str, float]:
        """Returns the metrics over everything added, or over the examples of one source."""
        raise NotImplementedError

    def table(self) -> list[LabelRow]:
        """Returns a row for each label: precision, recall, F1, count."""
        return []

    @staticmethod
    def baseline(store: ExampleStore, split: ExampleSplit) -> dict[str, float]:
        """Returns the majority baseline's metric."""
        return task_metrics.majority(store.counts, split.answers())


class ClassCollector(PredictionCollector):
    """Classes, of texts or pairs, and the alternatives of a choice."""

    def records(self, rows: Rows, outputs: dict[str, np.ndarray]) -> list[dict[str, object]]:
        gold, scores_BC, labels = rows["label"].astype(np.int32), outputs["scores"], self.split.labels
        # Two log-probabilities have the difference of their logits, which decides a tie.
        with np.errstate(divide="ignore"):
            logs_BC = np.log(scores_BC)
        predicted = best_place(logs_BC).astype(np.int32)
        self._gold.append(gold)
        # -1 for a tie or NaN: wrong in every metric, while the record below names the first of the best.
        self._predicted.append(np.where(has_best(logs_BC), predicted, -1).astype(np.int32))
        self._confidence.append(scores_BC.max(-1).astype(np.float64))
        # Six digits are enough for people, and files stay small; an example with fewer alternatives names only its own.
        return [
            {
                **({"label": labels[g]} if g >= 0 else {}),
                "prediction": labels[p],
                "scores": dict(zip(labels[:count], (round(x, 6) for x in scores_C[:count].tolist()), strict=True)),
            }
            for g, p, scores_C, count in zip(gold.tolist(), predicted.tolist(), scores_BC, self._counts, strict=True)
        ]

    def figures(self, file: int | None = None) -> dict[str, float]:
        return task_metrics.classified(*self._numbers(file), self.split.labels)

    def gathered(self) -> LabelledPredictions:
        """Returns the label and the prediction of each example, or each word."""
        return LabelledPredictions(self.split.labels, *self._numbers(), np.concatenate(self._confidence))

    def table(self) -> list[LabelRow]:
        return task_metrics.class_table(*self._numbers(), self.split.labels)

    @staticmethod
    def metric_names(labels: tuple[str, ...], counts: tuple[int, ...]) -> list[str]:
        # The smallest example that has every metric: each label once.
        return list(task_metrics.classified(np.arange(len(labels)), np.arange(len(labels)), labels))


class ValueCollector(PredictionCollector):
    """Numbers."""

    def records(self, rows: Rows, outputs: dict[str, np.ndarray]) -> list[dict[str, object]]:
        # An unlabelled example has NaN as its value, which is not equal to itself.
        gold, predicted = rows["value"].copy(), outputs["values"].astype(np.float64)
        self._gold.append(gold)
        self._predicted.append(predicted)
        return [
            {**({"label": g} if g == g else {}), "prediction": p}
            for g, p in zip(gold.tolist(), predicted.tolist(), strict=True)
        ]

    def figures(self, file: int | None = None) -> dict[str, float]:
        return task_metrics.regressed(*self._numbers(file))

    @staticmethod
    def baseline(store: ExampleStore, split: ExampleSplit) -> dict[str, float]:
        # Answering the mean has the least squared error of all constants.
        return task_metrics.mean_guess(float(store.splits["train"].answers().mean()), split.answers())

    @staticmethod
    def metric_names(labels: tuple[str, ...], counts: tuple[int, ...]) -> list[str]:
        return list(task_metrics.regressed(np.arange(2.0), np.arange(2.0)))


class TagCollector(ClassCollector):
    """A tag for each word."""

    def records(self, rows: Rows, outputs: dict[str, np.ndarray]) -> list[dict[str, object]]:
        assert self.split.tags is not None
        # The split has a mark for each token: a tag at the token that represents its word, below 0 at all others.
        # All arrays below are flat, one entry for each token of the batch, then one for each word.
        lengths = rows["end"] - rows["a"]
        marks = self.split.tags.read(rows["a"], lengths)
        # The example of each token, and its position in the sequence: before its tokens are one special token and, with
        # document context, the tokens of the sentences before it.
        example = np.repeat(np.arange(len(rows)), lengths)
        first = np.cumsum(lengths) - lengths - self.held_out.tokens_before(rows)
        position = np.arange(len(marks)) - np.repeat(first, lengths) + 1
        tagged = marks >= 0
        marks, example, position = marks[tagged], example[tagged], position[tagged]
        # A truncated word has no prediction; reading at position 0 keeps the arrays rectangular.
        present = position < self.held_out.length - 1
        column = np.where(present, position - self.held_out.shift, 0)
        predicted = np.where(present, outputs["tags"][example, column], -1).astype(np.int32)
        scores = np.where(present, outputs["scores"][example, column], 0.0)
        # How many words each example has: later the flat arrays are split by it.
        words = np.bincount(example, minlength=len(rows))
        self._gold.append(marks)
        # As for classes: a tie is -1 to the metrics; the record names the first of the best.
        self._predicted.append(np.where(outputs["may_hit"][example, column], predicted, -1).astype(np.int32))
        self._confidence.append(scores.astype(np.float64))
        self._words.append(words)
        # Index -1 is the last name: "", for no prediction.
        names = np.array([*self.split.labels, ""], object)
        ends = np.cumsum(words)[:-1]
        columns = names[marks], names[predicted], scores.astype(np.float64).round(6)
        return [
            {
                **({"labels": gold.tolist()} if self.labelled else {}),
                "predictions": predictions.tolist(),
                "scores": scores.tolist(),
            }
            for gold, predictions, scores in zip(*(np.split(x, ends) for x in columns), strict=True)
        ]

    def _tag_names(self, file: int | None = None) -> tuple[Tags, Tags]:
        """Returns (gold, predicted) as a list of tags for each example."""
        names = np.array([*self.split.labels, ""], object)
        ends = np.cumsum(np.concatenate(self._words)[self._chosen(file)])[:-1]
        gold, predicted = ([x.tolist() for x in np.split(names[numbers], ends)] for numbers in self._numbers(file))
        return gold, predicted

    def figures(self, file: int | None = None) -> dict[str, float]:
        # Entities need names of tags, such as B-PER, and the borders of sentences.
        return task_metrics.tagged(*self._tag_names(file), self.split.labels)

    def table(self) -> list[LabelRow]:
        return task_metrics.tag_table(*self._tag_names(), self.split.labels)

    @staticmethod
    def metric_names(labels: tuple[str, ...], counts: tuple[int, ...]) -> list[str]:
        return list(task_metrics.tagged([list(labels)], [list(labels)], labels))


def joined_windows(scores_BC: np.ndarray, firsts: NDArray[np.intp], how: str) -> np.ndarray:
    """Returns the probabilities of each text from its windows'. firsts: the index of each text's first window.

    mean: softmax of the mean log-probability, which equals the softmax of the mean logits; with a linear head that is
    mean pooling of its inputs (Sun et al. 2019, section 5.3.1). max: the maximum of each label, normalised to sum 1.
    """
    if not len(firsts):
        return scores_BC[:0]
    # N texts from B windows: reduceat takes each text's windows together.
    if how == "max":
        best_NC = np.maximum.reduceat(scores_BC, firsts)
        return best_NC / best_NC.sum(-1, keepdims=True)
    counts_N = np.diff([*firsts, len(scores_BC)])
    # A probability that has underflowed to 0 in float32 would make the mean -inf whatever the other windows say.
    logs_BC = np.log(np.maximum(scores_BC.astype(np.float64), np.finfo(np.float32).tiny))
    mean_NC = np.add.reduceat(logs_BC, firsts) / counts_N[:, None]
    powers_NC = np.exp(mean_NC - mean_NC.max(-1, keepdims=True))
    return (powers_NC / powers_NC.sum(-1, keepdims=True)).astype(scores_BC.dtype)


def _alternatives(rows: Rows, split: ExampleSplit) -> list[int]:
    if split.kind != "choice":
        return [len(split.labels)] * (len(rows) // split.choices)
    # Only alternatives that exist: examples may have fewer than the most.
    return (~is_absent(rows)).reshape(-1, split.choices).sum(1).tolist()


Collector: TypeAlias = ClassCollector | ValueCollector | SpanCollector
COLLECTORS: dict[str, type[Collector]] = {
    "classify": ClassCollector,
    "regress": ValueCollector,
    "tag": TagCollector,
    "choice": ClassCollector,
    "span": SpanCollector,
}
"""Kind of task → the class that collects its predictions, scores them, names its metrics and has their baseline."""


def collector_of(held_out: HeldOutTask, labelled: bool = True) -> Collector:
    """Returns the collector of a kind of task."""
    return COLLECTORS[held_out.split.kind](held_out, labelled)


def majority_baseline(store: ExampleStore, split: ExampleSplit) -> dict[str, float]:
    """Returns the majority baseline's metric: majority_accuracy, mean_mse for numbers, or for questions
    majority_exact_match of always answering "none"."""
    # A figure that needs no model at all: what a model has to beat.
    return COLLECTORS[store.kind].baseline(store, split)


def metric_names(kind: str, labels: tuple[str, ...], counts: tuple[int, ...] = ()) -> list[str]:
    """Returns the names of `figures` for a kind of task, by scoring a minimal example of it. counts: how many questions
    have an answer, and how many have none."""
    return COLLECTORS[kind].metric_names(labels, counts)
