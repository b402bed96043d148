"""Answers to questions from scored token places: joins the windows of a question, scores it, and makes its record."""

from collections.abc import Iterator
from pathlib import Path
from typing import NotRequired, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from contexture.data.tasks.batch.batches import ExampleOrder, HeldOutTask
from contexture.data.tasks.read.examples import QuestionExample
from contexture.data.tasks.store.example_store import ExampleSplit, ExampleStore, Rows
from contexture.data.tasks.store.span_store import SpanSplit, token_places
from contexture.models.heads.chunked_softmax import TIE
from contexture.train.evaluation import squad_metrics
from contexture.train.evaluation.squad_metrics import Scored
from contexture.train.evaluation.task_metrics import FileRow, LabelRow, rows_by_file
from contexture.train.run.report import read_metrics


class SpanAnswer(TypedDict):
    """One answer of the n best: its text, its first character in the context, its score (start + end), and its
    probability among the n best. No answer has an empty text."""

    text: str
    start: int
    score: float
    probability: float


class SpanPrediction(TypedDict):
    """The record of one question. answers: the right ones, if the file has them; null_score: the score of no answer
    minus the best answer's."""

    id: str
    answers: NotRequired[list[str]]
    prediction: str
    null_score: NotRequired[float]
    n_best: list[SpanAnswer]


class SpanCollector:
    """Collects the predictions of every batch of questions' windows, in order (run_squad.py, write_predictions).

    A span counts if both ends are in the context, no other window shows its start with more context, its end is not
    before its start, and it is not too long. Memory holds the windows of one question, and the scores of each.
    """

    def __init__(self, held_out: HeldOutTask, labelled: bool = True) -> None:
        assert held_out.split.spans is not None
        self.held_out, self.split, self.rules, self.labelled = held_out, held_out.split, held_out.rules, labelled
        self.spans: SpanSplit = held_out.split.spans
        self._order = ExampleOrder(held_out)
        self._scored: list[Scored] = []
        self._files: list[int] = []
        """The number of each question's source."""
        self._windows: list[NDArray[np.float64]] = []
        """Begin, end and score of the spans in each window of the current question [n, 3]."""
        self._null = np.inf

    def add(self, step: int, predictions: dict[str, np.ndarray]) -> Iterator[SpanPrediction]:
        """Takes the predictions of a batch, and yields {"id", "prediction", …} for each question that is complete."""
        if (ready := self._order.add(step, predictions)) is None:
            return
        numbers, predictions = ready
        rows = self.split.take(numbers)
        lengths = rows["end"] - rows["a"]
        places = np.split(self.spans.places.read(rows["a"], lengths), np.cumsum(lengths)[:-1])
        # Each window knows its question; the question knows how many windows it has.
        records = self.spans.take(rows["question"])
        for n, (row, record) in enumerate(zip(rows, records, strict=True)):
            self._windows.append(
                self._candidates(rows[n : n + 1], places[n], {k: x[n] for k, x in predictions.items()})
            )
            null = float(predictions["null_scores"][n])
            self._null = min(self._null, null) if null == null else np.nan  # NaN stays
            # Windows of a question follow each other; with its last one it is complete.
            if len(self._windows) == record["windows"]:
                self._files.append(int(row["file"]))
                yield self._answer(self.spans.read(record, self.split.origin(row)))
                self._windows, self._null = [], np.inf

    def _candidates(self, row: Rows, places: NDArray[np.void], outputs: dict[str, np.ndarray]) -> NDArray[np.float64]:
        """Returns begin, end and score of a window's spans, best start first: f64 [n, 3]; characters of the context."""
        # The token of each place in the sequence, -1 for special tokens and padding.
        tokens = np.arange(len(places), dtype=np.int64)
        token_at = np.full(self.held_out.length + 1, -1)
        token_at[token_places(np.repeat(row, len(places)), tokens, self.held_out.text.reads_words)] = tokens
        starts, ends = token_at[outputs["start_places"]], token_at[outputs["end_places"]]
        # at < 0 is a special token or padding; begin < 0 a token of the question; widest 0 a token that another window
        # shows better.
        good = {}
        for name, at in (("start", starts), ("end", ends)):
            inside = (at >= 0) & (places["begin"][at] >= 0) & np.isfinite(outputs[f"{name}_scores"])
            good[name] = inside & (places["widest"][at] > 0) if name == "start" else inside
        # All pairs of the n best starts and ends at once: [starts, ends].
        length = ends[None, :] - starts[:, None] + 1
        fits = good["start"][:, None] & good["end"][None, :] & (length >= 1) & (length <= self.rules.answer_length)
        # By place. Differs: the original's order is that of the best starts, which rounding changes.
        first, last = np.nonzero(fits)
        by_place = np.lexsort((ends[last], starts[first]))
        first, last = first[by_place], last[by_place]
        scores = outputs["start_scores"].astype(np.float64)[first] + outputs["end_scores"].astype(np.float64)[last]
        return np.stack([places["begin"][starts[first]], places["end"][ends[last]], scores], 1)

    def _answer(self, question: QuestionExample) -> SpanPrediction:
        # All windows compete by start + end logit, as in the original: logits of two windows are compared directly.
        spans = np.concatenate(self._windows)
        n_best: list[SpanAnswer] = []
        seen = set[str]()
        for begin, end, score in map(spans.__getitem__, ranked(spans[:, 2])):
            text = question.context[int(begin) : int(end)]
            start, text = int(begin) + len(text) - len(text.lstrip()), text.strip()
            # The same words at another place are no further answer.
            if text and text not in seen:
                seen.add(text)
                n_best.append({"text": text, "start": start, "score": float(score), "probability": 0.0})
                if len(n_best) == self.rules.n_best:
                    break
        # null: how much better no answer scores; infinite where there is no text to give.
        best, null = n_best[0] if n_best else None, self._null - n_best[0]["score"] if n_best else np.inf
        if self.rules.unanswerable and np.isfinite(self._null):
            # On a tie the span comes first: the original appends "no answer" after all spans, and sorts stably.
            at = sum(each["score"] >= self._null - TIE for each in n_best)
            n_best.insert(at, {"text": "", "start": 0, "score": float(self._null), "probability": 0.0})
        _normalise(n_best)
        # not <=: a NaN gives no answer.
        # A threshold that was searched lies between two questions. At the usual one, 0, both may be equal.
        silent = self.rules.unanswerable and not null <= (self.rules.threshold or TIE)
        text = best["text"] if best and not silent else ""
        broken = bool(np.isnan(self._null))
        self._score(question, text, best["text"] if best else "", float(null), broken)
        right = {"answers": [answer.text for answer in question.answers or ()]} if self.labelled else {}
        score = {"null_score": round(float(null), 6)} if np.isfinite(null) else {}
        return cast(SpanPrediction, {"id": question.id, **right, "prediction": text, **score, "n_best": n_best})

    def _score(self, question: QuestionExample, given: str, forced: str, null: float, broken: bool) -> None:
        # New questions have no right answers: nothing to score.
        if not self.labelled:
            return
        gold = [answer.text for answer in question.answers or ()]
        # A model whose scores are not numbers has no answer, which is no hit either.
        answered, right, silent = (
            (0.0, 0.0) if broken else squad_metrics.text_scores(text, gold) for text in (given, forced, "")
        )
        self._scored.append(Scored(bool(gold), answered, right, silent, null))

    def figures(self, file: int | None = None) -> dict[str, float]:
        """Returns the scores over all questions added, or over one source's."""
        pairs = zip(self._scored, self._files, strict=True)
        return squad_metrics.figures([each for each, number in pairs if file in (None, number)])

    def by_file(self) -> list[FileRow]:
        """Returns the questions and scores of each source, if there are several."""
        return rows_by_file(self.split.sources, np.array(self._files, np.int64), self.figures)

    def table(self) -> list[LabelRow]:
        """Returns no rows: answers have no labels."""
        return []

    @staticmethod
    def baseline(store: ExampleStore, split: ExampleSplit) -> dict[str, float]:
        """Returns the exact match of never answering: the fraction of questions without an answer."""
        assert split.spans is not None
        return {"majority_exact_match": answer_counts(split.spans)[1] / split.spans.count}

    @staticmethod
    def metric_names(labels: tuple[str, ...], counts: tuple[int, ...]) -> list[str]:
        """Returns the names of `figures`. counts: how many questions have an answer, and how many have none."""
        kinds = [has_answer for has_answer, count in zip((True, False), counts, strict=False) if count]
        zero = (0.0, 0.0)
        return list(squad_metrics.figures([Scored(each, zero, zero, zero, 0.0) for each in kinds or (True,)]))


def ranked(scores: NDArray[np.float64]) -> Iterator[int]:
    """Yields the places of scores, the greatest first; those that are within TIE of the greatest of them by place."""
    order, first = np.argsort(-scores, kind="stable"), 0
    while first < len(order):
        end = first + 1
        # No comparison with NaN is true: each is alone.
        while end < len(order) and scores[order[end]] >= scores[order[first]] - TIE:
            end += 1
        yield from sorted(order[first:end].tolist())
        first = end


def _normalise(n_best: list[SpanAnswer]) -> None:
    """Gives the n best their probabilities: exp(score) / Σ exp(score)."""
    scores = np.array([each["score"] for each in n_best])
    # Less the greatest score, so that no exponential overflows.
    weights = np.exp(scores - scores.max()) if len(scores) else scores
    for each, weight in zip(n_best, weights, strict=True):
        each["probability"] = round(float(weight / weights.sum()), 6)
        each["score"] = round(each["score"], 6)


def searched_threshold(folder: Path, step: int) -> float:
    """Returns the threshold of no answer that gave the best F1 when this checkpoint was evaluated on the dev set; 0 if
    it never was."""
    for record in read_metrics(folder / "metrics.jsonl"):
        if record["split"] == "dev" and record["step"] == step:
            return float(record.get("best_f1_threshold") or 0.0)
    return 0.0


def answer_counts(spans: SpanSplit) -> tuple[int, int]:
    """Returns how many questions have an answer, and how many have none."""
    without = sum(not spans.read(record, "").answers for record in spans.take(np.arange(spans.count)))
    return spans.count - without, without
