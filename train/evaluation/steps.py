"""The steps of the checkpoints that an evaluation looks at: as words name them, or as another process writes them."""

import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from contexture.data.cancel import CancelToken
from contexture.train.checkpoints.meta import find_steps
from contexture.train.errors import ConfigError
from contexture.train.evaluation.best import note_better
from contexture.train.run.folder import holder_of, steps
from contexture.train.run.report import read_metrics
from contexture.train.settings import run_file
from contexture.train.settings.run_file import RunRecord

logger = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two looks at the folder."""
_GLANCE = 0.1
"""Seconds after which a signal is answered."""


def steps_named(folder: Path, words: Sequence[str], metric: str) -> list[int | None]:
    """Returns the steps that the words name: numbers, `best`, `all`; [None], the one that answers, for no words.

    Raises ConfigError for steps that do not exist, and for other words.
    """
    if not words:
        return [None]
    existing = sorted(find_steps(folder, None))
    if tuple(words) == ("all",):
        return list(existing)
    steps: list[int | None] = []
    for word in words:
        if word == "best":
            (best,) = find_steps(folder, "best")
            if note := note_better(read_metrics(folder / "metrics.jsonl"), metric, best, existing):
                logger.warning(note)
            steps.append(best)
        elif word.isascii() and word.isdecimal():
            find_steps(folder, int(word))
            steps.append(int(word))
        else:
            raise ConfigError(f"--step {word}: give the numbers of steps, `best`, or `all`")
    return steps


def wait_for_first(folder: Path, cancel: CancelToken) -> RunRecord:
    """Waits for the first checkpoint of a training, and returns the record of its run, which names its data by then.

    Raises ConfigError if nobody trains the run, or its training ends without a checkpoint.
    """
    if not holder_of(folder):
        raise ConfigError(f"--watch follows a training, and none goes on in {folder}; leave --watch out")
    while not steps(folder / "checkpoints"):
        if not holder_of(folder) and not steps(folder / "checkpoints"):
            raise ConfigError(f"the training in {folder} has ended without a checkpoint; start it again, then evaluate")
        _wait(cancel)
    return run_file.read(folder)


def checkpoints_as_written(folder: Path, cancel: CancelToken) -> Iterator[int]:
    """Yields the step of each checkpoint once, as it appears, until the training has ended and all were yielded.

    A checkpoint that was seen may be gone when it is its turn: retention keeps only some. `cancel` may raise.
    """
    seen: set[int] = set()
    while True:
        # The lock before the list: what the training wrote last stands in the list once the lock is free.
        training = bool(holder_of(folder))
        new = [step for step in steps(folder / "checkpoints") if step not in seen]
        seen.update(new)
        yield from new
        if not new:
            if not training:
                return
            _wait(cancel)


def _wait(cancel: CancelToken) -> None:
    end = time.monotonic() + INTERVAL
    while time.monotonic() < end:
        cancel.check()
        time.sleep(_GLANCE)
    cancel.check()
