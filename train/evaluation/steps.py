"""The steps that an evaluation covers: those that the user names, or each one as another process writes it."""

import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from contexture.data import mirror
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
"""Seconds between two looks at the folder of a run in training."""
_GLANCE = 0.1
"""Seconds within which a signal is answered while waiting."""


def steps_named(folder: Path, words: Sequence[str], metric: str) -> list[int | None]:
    """Returns the steps that the words name: numbers, `best`, `all`; without words [None], the run's default.

    Raises ConfigError for steps that do not exist, and for other words.
    """
    if not words:
        return [None]
    # find_steps puts the best first; here the order of training is wanted.
    existing = sorted(find_steps(folder, None))
    if tuple(words) == ("all",):
        return list(existing)
    steps: list[int | None] = []
    for word in words:
        if word == "best":
            (best,) = find_steps(folder, "best")
            # A step that was better may have had no checkpoint: worth a warning, not an error.
            if note := note_better(read_metrics(folder / "metrics.jsonl"), metric, best, existing):
                logger.warning(note)
            steps.append(best)
        elif word.isascii() and word.isdecimal():
            # Raises if there is no such checkpoint; the order of the words is kept.
            find_steps(folder, int(word))
            steps.append(int(word))
        else:
            raise ConfigError(f"--step {word}: give the numbers of steps, `best`, or `all`")
    return steps


def wait_for_first(folder: Path, cancel: CancelToken) -> RunRecord:
    """Waits for a training's first checkpoint, and returns the record of the run, which describes its data by then.

    Raises ConfigError if nobody trains the run, or its training ends without a checkpoint.
    """
    if not holder_of(folder):
        raise ConfigError(f"--watch follows a training, and none goes on in {folder}; leave --watch out")
    while not _steps_now(folder):
        # The lock first, then the list again: the last checkpoint may have come between the two looks.
        if not holder_of(folder) and not _steps_now(folder):
            raise ConfigError(f"the training in {folder} has ended without a checkpoint; start it again, then evaluate")
        _wait(cancel)
    return run_file.read(folder)


def checkpoints_as_written(folder: Path, cancel: CancelToken) -> Iterator[int]:
    """Yields the step of each checkpoint once, as it appears, until the training has ended and all were yielded.

    A checkpoint that was seen may be gone when it is its turn: retention keeps only some. `cancel` may raise.
    """
    # Steps that were yielded, or are about to be: retention may remove a folder in between.
    seen: set[int] = set()
    while True:
        # The lock before the list: once the lock is free, the list has all that the training wrote.
        training = bool(holder_of(folder))
        # Oldest first, as `steps` sorts them.
        new = [step for step in _steps_now(folder) if step not in seen]
        seen.update(new)
        yield from new
        if not new:
            if not training:
                return
            _wait(cancel)


def _steps_now(folder: Path) -> list[int]:
    # The list of a bucket is kept for some seconds: one from before the lock's end would lack the last checkpoint.
    mirror.look_again(folder / "checkpoints")
    return steps(folder / "checkpoints")


def _wait(cancel: CancelToken) -> None:
    # In short naps, so that Ctrl-C is answered at once.
    end = time.monotonic() + INTERVAL
    while time.monotonic() < end:
        cancel.check()
        time.sleep(_GLANCE)
    cancel.check()
