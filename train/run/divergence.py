"""Divergence: tells by the first and the last losses whether training has made a model worse than a guess."""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

from contexture.data.tasks.store.example_store import ExampleStore
from contexture.train.errors import Diverged
from contexture.train.run.report import read_metrics
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import read

_LAST_STEPS = 10
FAR, FAR_IN_REGRESSION = 2.0, 100.0
"""The last loss may be this many times the first one, and the loss of a guess. A few outliers among the labels make the
squared errors of small batches differ much: a regression may be ten times as far from its labels, 100 in squares."""


def uniform_loss(run: Run, classes: int) -> float:
    """Returns the loss in nats of a model that gives every class the same probability; for a task, a lower bound."""
    words = math.log(run.model.vocab)
    # BERT adds log 2, a guess at the next sentence. A biLM's loss is the mean of its two directions, each log V.
    lm = {"mlm_nsp": words + math.log(2), "lm": words, "bilm": words}
    if run.objective in lm:
        return lm[run.objective]
    # A task with its words' loss on top (task.lm-weight); a regression does not come here.
    return math.log(max(classes, 2)) + run.task.lm_weight * words


def diverged_loss(
    records: Iterable[Mapping[str, object]], guess: float, far: float = FAR
) -> tuple[float, float] | None:
    """Returns (loss of the first step, mean loss of the last ten) if training has made the model useless; else None.

    guess: the loss of a uniform guess, or of a regression the variance of its labels. The first step's loss comes
    before any update. The last mean has diverged where it is `far` times the first loss and `far` times the guess. A
    fine-tuned model may begin far below the guess, so that a rise alone is no alarm.
    """
    # The first and the last ten losses, in one pass and a few numbers of memory.
    first: float | None = None
    last: deque[float] = deque(maxlen=_LAST_STEPS)
    for record in records:
        if record["split"] == "train" and isinstance(loss := record.get("loss"), int | float):
            if first is None:
                first = float(loss)
            else:
                last.append(float(loss))
    if first is None or not last:
        return None
    # Both must be exceeded: a fine-tuned model starts far below a guess, and a bad start may be far above it.
    mean = sum(last) / len(last)
    return (first, mean) if mean > far * max(first, guess) else None


def check_not_diverged(folder: Path) -> None:
    """Raises Diverged if training has made the run in `folder` worse than a guess."""
    # What the loss of a guess is depends on the objective.
    record = read(folder)
    if record.run.objective == "regress":
        # The variance of the labels is the squared error of always answering their mean.
        guess, far = ExampleStore.open(folder / "data").splits["train"].answers().var(), FAR_IN_REGRESSION
    else:
        guess, far = uniform_loss(record.run, len(record.labels)), FAR
    if rise := diverged_loss(read_metrics(folder / "metrics.jsonl"), guess, far):
        raise Diverged(
            f"the training loss rose from {rise[0]:.4g} in the first step to {rise[1]:.4g} in the last: the run "
            f"diverged, and is saved in {folder}; try a lower --optim.peak-lr or a longer --optim.warmup in another "
            "--dir"
        )
