"""Experiment trackers, `--log.to wandb mlflow aim`: each step reaches each of them once, whatever stops the run.

A record is sent when the checkpoint of its step is on disk, so a step that was sent is never done again. At the start a
tracker is asked for the last step that it holds, and receives what metrics.jsonl has after it: what a killed process
did not send, or all of a run whose tracker is named only now. One thread talks to the trackers, so training never waits
for a network. A tracker that fails is left out from then on; the next start sends the rest.
"""

import contextlib
import dataclasses
import importlib
import json
import logging
import queue
import threading
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from contexture.train import run_file
from contexture.train.config import Run
from contexture.train.errors import ConfigError

logger = logging.getLogger(__name__)
IDS = "trackers.json"
"""The file of a run that says which runs of the trackers belong to it."""
_PACKAGES = {"wandb": "wandb", "mlflow": "mlflow", "aim": "aim"}
_OPEN_SECONDS = 60.0
_CLOSE_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Place:
    """What a tracker is told of a run when it opens it."""

    name: str
    """The name of the run's folder."""
    folder: Path
    config: dict[str, Any]
    """The run's settings, as run.json has them."""
    ids: dict[str, str]
    """What the tracker returned when it opened this run before; empty at the first time."""


class Tracker(Protocol):
    """A run in an experiment tracker."""

    ids: dict[str, str]
    """What it needs to open the same run again."""
    where: str
    """Where a user finds it."""

    def last_step(self, split: str) -> int:
        """Returns the last step that the tracker holds of a split, by its figure `step`; -1 if it holds none."""
        ...

    def add(self, step: int, split: str, figures: dict[str, float]) -> None: ...

    def flush(self) -> None: ...

    def close(self, complete: bool) -> None: ...


def check_trackers(names: Iterable[str]) -> None:
    """Refuses trackers that are not installed or not set up. Raises ConfigError."""
    for name in names:
        if find_spec(_PACKAGES[name]) is None:
            raise ConfigError(f'log.to={name}: {name} is not installed; install it: pip install "contexture[{name}]"')
        _module(name).check()


def _module(name: str) -> Any:
    return importlib.import_module(f"contexture.train.loggers.{name}_tracker")


class Trackers:
    """The trackers of one run. Its methods return at once, but for `start` and `close`."""

    def __init__(self, run: Run, folder: Path) -> None:
        self._names, self._run, self._folder = run.log.to, run, folder
        self._open: dict[str, tuple[Tracker, dict[str, int]]] = {}
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="trackers", daemon=True)
        if self._names:
            self._thread.start()

    def start(self, records: Iterable[dict[str, Any]], step: int) -> None:
        """Opens the run in each tracker and sends it the records that it lacks.

        step: where training starts. Raises ConfigError if a tracker cannot be opened and the run is at its start; later
        that is a warning, since a job that comes back from a stop should train.
        """
        if not self._names:
            return
        opened, errors = threading.Event(), dict[str, Exception]()
        self._tasks.put(lambda: self._open_all(errors))
        self._tasks.put(opened.set)
        if not opened.wait(_OPEN_SECONDS):
            errors |= {name: TimeoutError(f"no answer in {_OPEN_SECONDS:.0f} s") for name in self._names}
        for name, error in errors.items():
            text = f"log.to={name}: {_first_line(error)}"
            if not step:
                raise ConfigError(f"{text}; mend that, or leave out --log.to {name}") from None
            logger.warning(f"{text}; training goes on without it, and the next start sends it what it lacks")
        self._names = tuple(name for name in self._names if name not in errors)
        for name in self._names:
            logger.info(f"{name}: {self._open[name][0].where}")
        self.send(records)

    def send(self, records: Iterable[dict[str, Any]]) -> None:
        """Sends records to each tracker, but for those that it holds."""
        if self._names and (batch := list(records)):
            self._tasks.put(lambda: self._add(batch))

    def close(self, complete: bool) -> None:
        """Waits until everything is sent, a minute at most. complete: the run has done all its steps."""
        if not self._names:
            return
        self._tasks.put(lambda: self._close_all(complete))
        self._tasks.put(None)
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            logger.warning(
                f"{' and '.join(self._names)}: no answer in {_CLOSE_SECONDS:.0f} s; what was not sent is sent when "
                "the run is started again"
            )
        self._names = ()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()

    def _open_all(self, errors: dict[str, Exception]) -> None:
        path = self._folder / IDS
        ids = _read_ids(path)
        for name in self._names:
            place = Place(self._folder.name, self._folder, run_file.to_json(self._run), ids.get(name, {}))
            try:
                tracker = _module(name).open_run(place)
                self._open[name] = tracker, {split: tracker.last_step(split) for split in ("train", "dev")}
            except Exception as error:  # whatever a tracker's client or its server raises
                errors[name] = error
            else:
                ids[name] = tracker.ids
        run_file.write_json(path, ids)

    def _add(self, records: list[dict[str, Any]]) -> None:
        for name, (tracker, last) in list(self._open.items()):
            with self._left_out_if_it_fails(name):
                for record in records:
                    step, split = record["step"], record["split"]
                    if step > last[split]:
                        tracker.add(step, split, figures_of(record))
                        last[split] = step
                tracker.flush()

    def _close_all(self, complete: bool) -> None:
        for name, (tracker, _) in list(self._open.items()):
            with self._left_out_if_it_fails(name):
                tracker.close(complete)

    @contextlib.contextmanager
    def _left_out_if_it_fails(self, name: str):
        try:
            yield
        except Exception as error:
            del self._open[name]
            logger.warning(
                f"log.to={name}: {_first_line(error)}; training goes on without it, and the next start sends it what "
                "it lacks"
            )


def figures_of(record: dict[str, Any]) -> dict[str, float]:
    """Returns the numbers of a record; what is not finite is left out. The step is always there, and the last of them:
    a tracker that has it has them all."""
    figures = {name: float(value) for name, value in record.items() if isinstance(value, int | float)}
    return figures | {"step": figures.pop("step")}


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested settings by dotted names: {"optim": {"b1": 0.9}} → {"optim.b1": 0.9}."""
    named: dict[str, Any] = {}
    for name, value in config.items():
        named |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return named


def _read_ids(path: Path) -> dict[str, dict[str, str]]:
    """Returns what each tracker needs to open its run again; a damaged file is as none."""
    try:
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) and all(isinstance(ids, dict) for ids in tree.values()) else {}


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__
