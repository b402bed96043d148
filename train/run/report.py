"""The report of a run: metrics.jsonl, TensorBoard, experiment trackers, and the progress on stderr.

`metrics.jsonl` holds each step exactly once: a line is written when the checkpoint that it needs is on disk, and lines
beyond the restored step are removed when a run resumes.
"""

import contextlib
import importlib
import json
import logging
import math
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from rich.console import Console

from contexture.data.storage import atomic_file, move_aside
from contexture.train.loggers.trackers import Trackers
from contexture.train.run.console import console, print_table
from contexture.train.run.goodput import SPLIT, Earlier, Goodput
from contexture.train.run.progress import ProgressDisplay

logger = logging.getLogger(__name__)
Figure: TypeAlias = int | float | str | None
"""A number as JSON holds it; None for one that is not finite."""
Record: TypeAlias = dict[str, Any]
"""A line of metrics.jsonl: `step` (int), `split` (train, dev or goodput), and figures by name (float, int or None)."""
_TENSORBOARD = "contexture.train.loggers.tensorboard"


def read_metrics(path: Path) -> Iterator[Record]:
    """Yields the records of a metrics.jsonl in order; a line torn by a crash or damaged is left out."""
    for line in _lines(path):
        if (record := parse_record(line)) is not None:
            yield record


def add_record(path: Path, record: Record) -> None:
    """Adds a record to the metrics.jsonl of a complete run, after the last one of its step; atomically."""
    lines = [line for line in _lines(path) if line.endswith(b"\n")]
    # The file is sorted by step: the record goes before the first line of a later step.
    later = (n for n, line in enumerate(lines) if (other := parse_record(line)) and other["step"] > record["step"])
    lines.insert(next(later, len(lines)), json.dumps(record).encode() + b"\n")
    with atomic_file(path) as part:
        part.write_bytes(b"".join(lines))


def _lines(path: Path) -> Iterator[bytes]:
    if path.exists():
        with path.open("rb") as file:
            yield from file


def parse_record(line: bytes) -> Record | None:
    """Returns the record of a line, or None if it is torn or damaged."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    # A damaged line may still be JSON of another kind: a record has at least a step and a split.
    whole = isinstance(record, dict) and isinstance(record.get("step"), int) and "split" in record
    return record if whole else None


def plain(value: Figure | np.ndarray | np.generic) -> Figure:
    """Returns a figure as JSON holds it: integers as such, floats in full precision, None if it is not finite."""
    # NumPy scalars, as the device returns them, are no JSON; float32 → float64 is exact.
    number = value.item() if isinstance(value, np.ndarray | np.generic) else value
    return None if isinstance(number, float) and not math.isfinite(number) else number


class Report:
    """The report of one run. Only process 0 logs and writes; the others are silent."""

    def __init__(
        self,
        directory: Path,
        *,
        steps: int,
        speaks: bool,
        tensorboard: bool,
        trackers: Trackers | None = None,
        metric: str = "loss",
        goodput: Goodput | None = None,
    ) -> None:
        """Opens nothing yet: `start` does, once the step to resume from is known.

        Args:
            directory: the run's folder.
            steps: the last step of the run.
            speaks: whether this process logs and writes.
            tensorboard: whether to write TensorBoard events.
            trackers: the experiment trackers that the user named.
            metric: decides the best checkpoint, and is shown with each evaluation.
            goodput: the clock of this start; None: one that begins now.
        """
        self.goodput = goodput or Goodput()
        self.directory, self.steps, self.speaks, self.metric = directory, steps, speaks, metric
        self.path = directory / "metrics.jsonl"
        self.console = console() if speaks else Console(quiet=True)
        self._wants_tensorboard = tensorboard and speaks
        self._trackers = trackers if speaks else None
        self._complete = False
        # The step that this start began at; steps between two checkpoints.
        self._started = self._interval = 0
        # Records that wait for a checkpoint: those for metrics.jsonl, and those for the trackers.
        self._held: list[Record] = []
        self._unsent: list[Record] = []
        self._file: Any = None
        self._events: Any = None
        self._progress: ProgressDisplay | None = None

    def table(self, title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
        """Prints a table on stderr."""
        print_table(self.console, title, columns, rows)

    def start(self, step: int, interval: int, evaluated: bool = True) -> None:
        """Continues after `step` updates: removes later records, whose steps will be done again.

        A killed run leaves records of at most `interval` steps beyond its checkpoint. If there are later ones (the
        checkpoints were lost or damaged), or damaged lines, the old file is kept as well.

        Args:
            step: the step of the checkpoint that was restored; 0 for a new run.
            interval: steps between two checkpoints.
            evaluated: False removes the record of that step's evaluation too: it is done again.
        """
        self._started, self._interval = step, interval
        if not self.speaks:
            return
        seen, lost, earlier = 0, False, Earlier(step)
        # A kill between the record of an evaluation and the checkpoint's note of it would else put it there twice.
        again = None if evaluated else (step, "dev")
        # Rewritten as a whole under a temporary name: a kill leaves the old file or the new one.
        with atomic_file(self.path) as part:
            with open(part, "w", encoding="utf-8") as file:
                for line in _lines(self.path):
                    record = parse_record(line)
                    if record is None:
                        lost = lost or line.endswith(b"\n")  # a last line without its end was torn by a kill
                        continue
                    earlier.add(record)
                    # Kept: a record of steps that are not done again. With step 0 everything is.
                    if step and record["step"] <= step and (record["step"], record["split"]) != again:
                        file.write(json.dumps(record) + "\n")
                        seen += record["split"] == "train"
                    else:
                        lost = lost or record["step"] > step + interval
                # The time of the steps that are cut off, and of what was done around them, stays in the totals.
                self.goodput.take_over(earlier)
                if earlier.starts:
                    file.write(json.dumps(self.goodput.record(step)) + "\n")
            # Before the new file takes the name: nothing that cannot be explained by a kill is deleted.
            if lost and (aside := move_aside(self.directory, [self.path.name], "earlier")):
                logger.warning(f"{self.path} has damaged lines, or steps beyond step {step}; kept it in {aside}")
        # Each step has one train record. Fewer: the file was damaged or removed; training goes on without them.
        if seen != step:
            logger.warning(f"{self.path} holds {seen} of the {step} steps done; the others' figures are lost")
        self._file = open(self.path, "a", encoding="utf-8")
        if self._wants_tensorboard:
            # Its package imports torch where that is installed, which takes seconds: meanwhile the step is compiled.
            threading.Thread(target=importlib.import_module, args=(_TENSORBOARD,)).start()
        # Trackers are given the records that they may have missed, from the file that is now cut back.
        if self._trackers is not None:
            self._trackers.start(
                lambda: (r for r in read_metrics(self.path) if r["step"] <= step and r["split"] != SPLIT), step
            )
        # Last, so that warnings of the above are printed above the bar.
        self._progress = ProgressDisplay(self.console, self.steps, step, self.metric)

    def record(self, records: list[Record], saved: int) -> None:
        """Takes figures of steps: `step`, `split` and what was measured.

        Lines up to one interval beyond the checkpoint `saved`, the newest on disk, are written at once: `start` knows
        that a kill may leave so many. Trackers, which take nothing back, receive only those up to it.
        """
        # A value that is not finite becomes null: NaN is no JSON.
        records = [{name: plain(value) for name, value in record.items()} for record in records]
        self._held += records
        # Steps alone go to trackers, each once, and to the progress: totals of a clock are no figures of a step.
        of_steps = [record for record in records if record["split"] != SPLIT]
        if self._trackers is not None:
            self._unsent += of_steps
        self.release(saved)
        if not self.speaks or not records:
            return
        if self._wants_tensorboard:
            # Opened with the first records: by then the thread of `start` has imported the package.
            if self._events is None:
                events = importlib.import_module(_TENSORBOARD).Events
                self._events = events(self.directory / "tensorboard", self._started)
            # TensorBoard has no None and no text. It need not wait: on a resume it hides later steps of older files.
            for record in records:
                figures = {k: v for k, v in record.items() if isinstance(v, int | float) and k != "step"}
                self._events.add(record["step"], record["split"], figures)
            self._events.flush()
        if self._progress is not None and of_steps:
            self._progress.show(of_steps[-1])

    def release(self, saved: int) -> None:
        """Writes and sends what waited for the checkpoint of step `saved`."""
        # Order is kept: the file stays sorted by step.
        safe = saved + self._interval
        ready = [r for r in self._held if r["step"] <= safe]
        self._held = [r for r in self._held if r["step"] > safe]
        if self._file and ready:
            self._file.writelines(json.dumps(record) + "\n" for record in ready)
            self._file.flush()
        if self._trackers is not None:
            self._trackers.send(r for r in self._unsent if r["step"] <= saved)
            self._unsent = [r for r in self._unsent if r["step"] > saved]

    def complete(self) -> None:
        """Marks the run as complete, for the trackers, and ends the bar: what follows is printed below it."""
        self._complete = True
        self._stop_progress()

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Reports that the training step is compiled within this block, and how long that took."""
        if not self.speaks or self._progress is None:
            yield
            return
        start = time.monotonic()
        # Said before it begins: a large model compiles for minutes, in which nothing else is printed.
        logger.info("compiling the training step")
        with self._progress.busy("compiling"):
            yield
        logger.info(f"compiled in {time.monotonic() - start:.1f} s")

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Shows that held-out sequences are evaluated within this block."""
        with self._progress.busy("evaluating") if self._progress else contextlib.nullcontext():
            yield

    def close(self) -> None:
        """Releases the terminal and the files. Lines that still wait are dropped: their steps will be done again."""
        self._stop_progress()
        for open_file in (self._events, self._file):
            if open_file is not None:
                with contextlib.suppress(OSError):  # a full disk was reported when it was written to
                    open_file.close()
        self._events = self._file = None
        if self._trackers is not None:
            self._trackers.close(self._complete)
            self._trackers = None

    def _stop_progress(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
