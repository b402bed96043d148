"""How alike a model finds two texts: the cosine of their vectors, and its correlation with people's scores (STS)."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from contexture.analysis.column_options import column_options
from contexture.analysis.neighbours.sentence_vectors import sentence_vectors
from contexture.analysis.neighbours.whitening import fit_whitening
from contexture.analysis.options import VectorOptions
from contexture.analysis.trained_model import TrainedModel
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.config import TaskConfig
from contexture.data.errors import DataError
from contexture.data.task_kinds import USUAL_NUMBERS
from contexture.data.tasks.read.columns import find_columns
from contexture.data.tasks.read.examples import Example, Pair
from contexture.data.tasks.read.read_examples import check_sources, examples, open_table
from contexture.data.text.written_numbers import written_number
from contexture.train.evaluation.task_metrics import regressed


def read_pairs(
    file: str, text: str = "", second: str = "", label: str = "", header: Literal["auto", "yes", "no"] = "auto"
) -> tuple[list[tuple[str, str]], list[float] | None]:
    """Returns (the pairs of a file, their scores, or None where it has no column of scores).

    Args:
        file: a file of labelled pairs.
        text: the column of first texts, by name or by position from 1; empty: the one with a usual name.
        second: the column of second texts, likewise.
        label: the column of scores, likewise.
        header: whether the file begins with the names of its columns.

    Raises:
        DataError: with file:line, when a row cannot be read, a score is no number, or the file has no pairs.
    """
    task = TaskConfig(kind="regress", text=text, second=second, label=label, header=header)
    check_sources([file], "--input")
    with column_options():
        labelled = bool(label) or _has_scores(file, task)
        rows = list(examples(file, task, labelled=labelled))
    pairs = [(row.first, row.second) for row in rows if isinstance(row, Pair)]
    if len(pairs) < len(rows):
        raise DataError(f"{file}: no column of second texts; name it: --second COLUMN")
    return pairs, [_score(row) for row in rows] if labelled else None


def _has_scores(file: str, task: TaskConfig) -> bool:
    """Returns whether a file has a column of scores with a usual name; one that few rows have is a DataError."""
    table = open_table(file, task)
    try:
        find_columns(table, task, labelled=True, speaks=False)
    except DataError:
        if few := [name for name in table.rare if name.lower() in USUAL_NUMBERS]:
            raise DataError(f"{table.head}: few of the pairs have a {few[0]!r}; give each a score, or none") from None
        return False  # what else is wrong is found again where the pairs are read
    return True


def _score(row: Example) -> float:
    label = getattr(row, "label", None)
    score = written_number(label or "")
    if score is None or not np.isfinite(score):
        raise DataError(f"{row.origin}: {label!r} is not a number; give a score")
    return score


def pair_similarities(
    model: TrainedModel,
    pairs: Sequence[tuple[str, str]],
    *,
    how: VectorOptions = VectorOptions(),  # noqa: B008  # frozen
    cancel: CancelToken = NEVER,
) -> NDArray[np.float64]:
    """Returns the cosine of the vectors of each pair, f64 [pairs]; of a vector of zeros it is 0.

    A whitening is fitted to the vectors of all texts of the pairs.
    """
    texts = [text for pair in pairs for text in pair]
    if not texts:
        return np.zeros(0)
    vectors_ND = np.concatenate(list(sentence_vectors(model, texts, how, cancel)))
    if how.whiten:
        vectors_ND = fit_whitening([vectors_ND], how.dimensions)(vectors_ND)
    vectors_ND = np.asarray(vectors_ND, np.float64)
    norm_N = np.linalg.norm(vectors_ND, axis=1)
    unit_ND = vectors_ND / np.where(norm_N == 0, 1, norm_N)[:, None]
    # Texts alternate: first and second of a pair.
    return (unit_ND[0::2] * unit_ND[1::2]).sum(1)


def correlations(gold: Sequence[float], cosines: NDArray[np.float64]) -> dict[str, Any]:
    """Returns Pearson's and Spearman's correlation of scores with cosines, as the STS tasks report them."""
    figures = regressed(np.asarray(gold), cosines)
    return {name: figures[name] for name in ("spearman", "pearson")}
