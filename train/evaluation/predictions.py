"""What a model answers to a task's examples: gathered by their numbers, scored, and told."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contexture.data.tasks.batches import HeldOutTask
from contexture.data.tasks.example_store import ExampleSplit, ExampleStore, Rows
from contexture.train.evaluation import task_metrics
from contexture.train.losses import has_best

Record = dict[str, Any]


class PredictionCollector:
    """Gathers the predictions of every batch of a HeldOutTask; memory holds two numbers for each example or word.

    Records name the first of several labels that score alike; the metrics count no hit there (`losses.has_best`).
    """

    def __init__(self, held_out: HeldOutTask, labelled: bool = True) -> None:
        self.held_out, self.split, self.labelled = held_out, held_out.split, labelled
        self._gold: list[NDArray[Any]] = []
        self._predicted: list[NDArray[Any]] = []
        self._words: list[NDArray[np.int64]] = []
        """Words of each example, for tags."""

    def add(self, step: int, predictions: dict[str, NDArray[Any]]) -> Iterator[Record]:
        """Takes the predictions of a batch (lines first) and gives a record for each of its examples:
        {"id": "dev.tsv:7", "prediction": …, and scores}, with its label where the file has one."""
        numbers = self.held_out.numbers(step)
        rows = self.split.take(numbers)[:: self.split.choices]
        here = {name: array[: len(numbers)] for name, array in predictions.items()}
        classes = {"classify": self._classes, "choice": self._classes}
        tell = {**classes, "regress": self._values, "tag": self._tags}[self.split.kind]
        for row, record in zip(rows, tell(rows, here), strict=True):
            yield {"id": self.split.origin(row), **record}

    def _classes(self, rows: Rows, here: dict[str, NDArray[Any]]) -> list[Record]:
        gold, scores_BC, labels = rows["answer"].astype(np.int32), here["scores"], self.split.labels
        predicted = scores_BC.argmax(-1).astype(np.int32)
        self._gold.append(gold)
        self._predicted.append(np.where(has_best(scores_BC), predicted, -1).astype(np.int32))
        return [
            {
                **({"label": labels[g]} if g >= 0 else {}),
                "prediction": labels[p],
                "scores": dict(zip(labels, (round(x, 6) for x in line.tolist()), strict=True)),
            }
            for g, p, line in zip(gold.tolist(), predicted.tolist(), scores_BC, strict=True)
        ]

    def _values(self, rows: Rows, here: dict[str, NDArray[Any]]) -> list[Record]:
        bits = rows["answer"]
        gold, predicted = np.where(bits == -1, np.nan, bits.copy().view(np.float64)), here["values"].astype(np.float64)
        self._gold.append(gold)
        self._predicted.append(predicted)
        return [
            {**({"label": g} if g == g else {}), "prediction": p}
            for g, p in zip(gold.tolist(), predicted.tolist(), strict=True)
        ]

    def _tags(self, rows: Rows, here: dict[str, NDArray[Any]]) -> list[Record]:
        assert self.split.tags is not None
        lengths = rows["end"] - rows["a"]
        marks = self.split.tags.read(rows["a"], lengths)
        line = np.repeat(np.arange(len(rows)), lengths)
        place = np.arange(len(marks)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + 1
        first = marks >= 0
        marks, line, place = marks[first], line[first], place[first]
        seen = place < self.held_out.length - 1  # what was cut has no answer
        at = np.where(seen, place - self.held_out.shift, 0)
        predicted = np.where(seen, here["tags"][line, at], -1).astype(np.int32)
        share = np.where(seen, here["scores"][line, at], 0.0)
        words = np.bincount(line, minlength=len(rows))
        self._gold.append(marks)
        self._predicted.append(np.where(here["may_hit"][line, at], predicted, -1).astype(np.int32))
        self._words.append(words)
        names = np.array([*self.split.labels, ""], object)
        cuts = np.cumsum(words)[:-1]
        told = names[marks], names[predicted], share.astype(np.float64).round(6)
        answers = zip(*(np.split(x, cuts) for x in told), strict=True)
        return [
            {
                **({"labels": gold.tolist()} if self.labelled else {}),
                "predictions": said.tolist(),
                "scores": sure.tolist(),
            }
            for gold, said, sure in answers
        ]

    def gathered(self) -> tuple[Any, Any]:
        """(gold, predicted) of all examples in order: numbers of labels i32 [n], numbers f64 [n], or lists of tags."""
        gold, predicted = np.concatenate(self._gold), np.concatenate(self._predicted)
        if self.split.kind != "tag":
            return gold, predicted
        names = np.array([*self.split.labels, ""], object)
        cuts = np.cumsum(np.concatenate(self._words))[:-1]
        return [x.tolist() for x in np.split(names[gold], cuts)], [x.tolist() for x in np.split(names[predicted], cuts)]

    def figures(self) -> dict[str, float]:
        """The metrics of the kind of task, over all that was added."""
        gold, predicted = self.gathered()
        if self.split.kind == "regress":
            return task_metrics.regressed(gold, predicted)
        of = task_metrics.tagged if self.split.kind == "tag" else task_metrics.classified
        return of(gold, predicted, self.split.labels)

    def table(self) -> list[dict[str, Any]]:
        """A row for each label: precision, recall, F1, count."""
        return task_metrics.label_table(self.split.kind, *self.gathered(), self.split.labels)


def guess(store: ExampleStore, split: ExampleSplit) -> dict[str, float]:
    """What answering the same to everything gives on a split: majority_accuracy, or mean_mse of a regression."""
    if store.kind == "regress":
        return task_metrics.mean_guess(float(store.splits["train"].answers().mean()), split.answers())
    return task_metrics.majority(store.counts, split.answers())


def names(kind: str, labels: tuple[str, ...]) -> list[str]:
    """What `PredictionCollector.figures` gives for a kind of task."""
    if kind == "regress":
        return list(task_metrics.regressed(np.arange(2.0), np.arange(2.0)))
    if kind == "tag":
        return list(task_metrics.tagged([list(labels)], [list(labels)], labels))
    return list(task_metrics.classified(np.arange(len(labels)), np.arange(len(labels)), labels))
