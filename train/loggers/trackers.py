"""Experiment trackers, `--log.to wandb mlflow aim`: each step reaches each of them once, whatever stops the run.

A record is sent when the checkpoint of its step is on disk, so a step that was sent is never done again. At the start a
tracker is asked for its last step, and receives what metrics.jsonl has after it: the records that a killed process did
not send, or all records if the tracker is new to the run. Each tracker has a thread of its own, so neither training nor
another tracker waits for it. A tracker that fails is left out from then on; the next start sends the rest.
"""

import dataclasses
import importlib
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from contexture.train.errors import ConfigError, install_hint
from contexture.train.settings import run_file
from contexture.train.settings.run import Run

logger = logging.getLogger(__name__)
IDS = "trackers.json"
"""The file in a run's folder with the ids of its runs in the trackers."""
Record: TypeAlias = dict[str, Any]
_OPEN_SECONDS, _CLOSE_SECONDS, _STOPPED_SECONDS = 60.0, 60.0, 10.0
_LEFT_OUT = "training goes on without it, and the next start sends it what it lacks"


@dataclasses.dataclass(frozen=True)
class Place:
    """The name, folder and settings of a run, from which a tracker opens its own run."""

    name: str
    """The name of the run's folder."""
    folder: Path
    config: dict[str, Any]
    """The run's settings, as in run.json."""
    ids: dict[str, str]
    """The tracker's `ids` from an earlier start; empty the first time."""


class Tracker(Protocol):
    """A run in an experiment tracker."""

    ids: dict[str, str]
    """Whatever the tracker needs to open the same run again."""
    where: str
    """Where users find the run, for a log message."""

    def last_step(self, split: str) -> int:
        """Returns the last step of a split that the tracker has, by its figure `step`; -1 if it has none."""
        ...

    def add(self, step: int, split: str, figures: dict[str, float]) -> None: ...

    def flush(self) -> None: ...

    def close(self, complete: bool) -> None: ...


_LONGEST_REASON = 500
"""Maximum number of characters of a client's error that are shown."""


def check_trackers(names: Iterable[str]) -> None:
    """Raises ConfigError for trackers that are not installed or not set up."""
    for name in names:
        if (spec := find_spec(name)) is None or spec.origin is None:  # a folder of that name is no package
            raise ConfigError(f"log.to={name}: {name} is not installed; {install_hint(name)}")
        # Whether somebody is logged in is asked now, and not in the middle of the training.
        try:
            _module(name).check()
        except Exception as error:  # whatever a tracker's client raises for settings of its own
            raise ConfigError(f"log.to={name}: {_reason(error)}") from None


def _module(name: str) -> Any:
    # Imported only where it is named: each client takes a second or more.
    return importlib.import_module(f"contexture.train.loggers.{name}_tracker")


class _Worker:
    """A tracker, and the thread that talks to it."""

    def __init__(self, name: str, place: Place) -> None:
        self.name, self.error = name, None
        self.tracker: Tracker | None = None
        self.opened = threading.Event()
        self._place, self._last = place, dict[str, int]()
        # Tasks in order; None ends the thread. Unbounded: a slow server costs memory for records, and no step.
        self._tasks: queue.SimpleQueue[Callable[[Tracker], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def fail(self, error: Exception) -> None:
        """Leaves the tracker out from now on."""
        self.error = self.error or error

    def send(self, records: Callable[[], Iterable[Record]]) -> None:
        self._tasks.put(lambda tracker: self._add(tracker, records()))

    def close(self, complete: bool) -> None:
        self._tasks.put(lambda tracker: tracker.close(complete))
        self._tasks.put(None)

    def done_within(self, seconds: float) -> bool:
        self._thread.join(max(seconds, 0.0))
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            tracker = _module(self.name).open_run(self._place)
            # The tracker's own answer, not a note of ours: it may have received what we think was lost.
            self._last = {split: tracker.last_step(split) for split in ("train", "dev")}
            # `start` has waited long enough, and has gone on without this one.
            if self.error is not None:  # too late
                tracker.close(False)
                return
            self.tracker = tracker
        except Exception as error:  # whatever a tracker's client or its server raises
            self.fail(error)
            return
        finally:
            self.opened.set()
        # After an error the rest of the queue is dropped: it comes again at the next start.
        while (task := self._tasks.get()) is not None and self.error is None:
            try:
                task(tracker)
            except Exception as error:
                self.fail(error)
                logger.warning(f"log.to={self.name}: {_reason(error)}; {_LEFT_OUT}")

    def _add(self, tracker: Tracker, records: Iterable[Record]) -> None:
        for record in records:
            step, split = record["step"], record["split"]
            # At the start whole metrics.jsonl is sent: what the tracker has already is passed over here.
            if step > self._last[split]:
                tracker.add(step, split, figures_of(record))
                self._last[split] = step
        tracker.flush()


class Trackers:
    """The trackers of one run. `send` returns at once; `start` and `close` wait for answers, up to a limit."""

    def __init__(self, run: Run, folder: Path, check: Callable[[], None] = lambda: None) -> None:
        """check: called while trackers are being opened; it may raise to stop that."""
        self._run, self._folder, self._check = run, folder, check
        self._workers: list[_Worker] = []

    def start(self, records: Callable[[], Iterable[Record]], step: int) -> None:
        """Opens the run in each tracker and sends it the records that it lacks.

        Args:
            records: reads the run's records so far.
            step: where training starts.

        Raises:
            ConfigError: when a tracker cannot be opened at step 0. Later that is a warning: a job that comes back after
                a stop should train.
        """
        # The ids of earlier starts, and the settings that a new run in the tracker shows.
        path, config = self._folder / IDS, run_file.to_json(self._run)
        ids = _read_ids(path)
        # The ids of the earlier start open the same runs again.
        for name in self._run.log.to:
            place = Place(self._folder.name, self._folder, config, ids.get(name, {}))
            self._workers.append(_Worker(name, place))
        # All open at the same time, and share one limit; signals are answered meanwhile.
        limit = time.monotonic() + _OPEN_SECONDS
        while waiting := [worker for worker in self._workers if not worker.opened.wait(0.1)]:
            self._check()
            if time.monotonic() > limit:
                for worker in waiting:
                    worker.fail(TimeoutError(f"no answer in {_OPEN_SECONDS:.0f} s"))
                break
        # Ids of trackers that failed now stay in the file for the next start.
        opened = [worker for worker in self._workers if worker.error is None]
        run_file.write_json(path, ids | {worker.name: worker.tracker.ids for worker in opened if worker.tracker})
        for worker in self._workers:
            if worker.error is not None:
                text = f"log.to={worker.name}: {_reason(worker.error)}"
                if not step:
                    raise ConfigError(f"{text}; mend that, or leave out --log.to {worker.name}") from None
                logger.warning(f"{text}; {_LEFT_OUT}")
            elif worker.tracker:
                logger.info(f"{worker.name}: {worker.tracker.where}")
                worker.send(records)

    def send(self, records: Iterable[Record]) -> None:
        """Sends records to each tracker, except those that it has."""
        if batch := list(records):
            for worker in self._workers:
                worker.send(lambda: batch)

    def close(self, complete: bool) -> None:
        """Waits until everything is sent: a minute at most, ten seconds if the run was stopped.

        complete: the run has done all its steps.
        """
        opened = [worker for worker in self._workers if worker.tracker is not None and worker.error is None]
        # A scheduler kills a stopped job after some seconds; a complete one has time.
        seconds = _CLOSE_SECONDS if complete else _STOPPED_SECONDS
        limit = time.monotonic() + seconds
        # One that is still opening is told to give up; its thread is a daemon and holds nobody up.
        for worker in self._workers:
            if worker not in opened:
                worker.fail(TimeoutError("opened too late"))
            worker.close(complete)
        # One limit for all of them together, not for each.
        for worker in opened:
            if not worker.done_within(limit - time.monotonic()):
                logger.warning(f"log.to={worker.name}: no answer in {seconds:.0f} s; the next start sends the rest")
        self._workers = []


def figures_of(record: Record) -> dict[str, float]:
    """Returns a record's finite numbers. `step` always comes last: a tracker that has it has the whole record."""
    # Without None, which means a figure that was not finite.
    figures = {name: float(value) for name, value in record.items() if isinstance(value, int | float)}
    return figures | {"step": figures.pop("step")}


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested settings by dotted names: {"optim": {"b1": 0.9}} → {"optim.b1": 0.9}."""
    named: dict[str, Any] = {}
    for name, value in config.items():
        named |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return named


def _read_ids(path: Path) -> dict[str, dict[str, str]]:
    """Returns the ids of each tracker; a damaged file counts as missing."""
    try:
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    # Without ids a tracker makes a new run and gets everything: nothing is lost.
    return tree if isinstance(tree, dict) and all(isinstance(ids, dict) for ids in tree.values()) else {}


def _reason(error: Exception) -> str:
    """Returns the first sentence of an error, over several lines if need be: clients break their sentences."""
    kept: list[str] = []
    for line in str(error).strip().splitlines():
        # A blank line, or the end of a sentence, ends the reason; advice and tracebacks follow.
        if not line.strip():
            break
        kept.append(line.strip())
        if line.rstrip().endswith((".", "!", "?", ")", "]")):
            break
    return " ".join(kept)[:_LONGEST_REASON] or type(error).__name__
