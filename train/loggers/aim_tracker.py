"""Aim: metrics `loss`, … with the context {"subset": "train" or "dev"} of a run in the experiment `contexture`, in the
repository AIM_REPO, a folder or aim://server:port, else in the working directory."""

import os

from aim import Run
from aim.sdk.errors import MissingRunError
from aim.storage.context import Context

from contexture.train.loggers.trackers import Place


def check() -> None:
    """Aim needs nothing beforehand: it makes a repository where there is none."""


def open_run(place: Place) -> "AimTracker":
    return AimTracker(place)


class AimTracker:
    """A run of Aim. A step that it holds would be overwritten, not doubled."""

    def __init__(self, place: Place) -> None:
        # The user's word, then the repository of the earlier start, then the working directory, as Aim itself.
        repository = os.environ.get("AIM_REPO") or place.ids.get("repository") or os.path.abspath(".")
        # No system metrics and no copy of the terminal: the figures of the run are all that is sent.
        quiet = {"system_tracking_interval": None, "log_system_params": False, "capture_terminal_logs": False}
        try:
            self._run = Run(place.ids.get("run"), repo=repository, experiment="contexture", **quiet)
        # The run was deleted, or the repository is another one: a new run, which gets everything.
        except MissingRunError:
            self._run = Run(repo=repository, experiment="contexture", **quiet)
        self._run.name = place.name
        self._run["config"] = place.config
        self.ids = {"repository": repository, "run": self._run.hash}
        self.where = f"run {self._run.hash} in {repository}; see it with `aim up`"

    def last_step(self, split: str) -> int:
        # The indices are the steps at which the figure `step` was tracked.
        metric = self._run.get_metric("step", Context({"subset": split}))
        return max(metric.data.indices_list(), default=-1) if metric is not None else -1

    def add(self, step: int, split: str, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            self._run.track(value, name=name, step=step, context={"subset": split})

    def flush(self) -> None:
        """Aim writes each figure at once."""

    def close(self, complete: bool) -> None:
        self._run.close()
