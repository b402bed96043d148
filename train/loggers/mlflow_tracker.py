"""MLflow: metrics `train/loss`, `dev/loss`, … of a run in the experiment MLFLOW_EXPERIMENT_NAME, else `contexture`."""

import logging
import os
import time

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from contexture.train.loggers.trackers import Place, flat

_BATCH = 1000
"""Metrics in one call, MLflow's limit."""


def check() -> None:
    """MLflow needs nothing beforehand: without MLFLOW_TRACKING_URI it writes mlflow.db in the working directory."""


def open_run(place: Place) -> "MlflowTracker":
    for name in ("urllib3.connectionpool", "mlflow.store.db.utils", "alembic"):  # lines of their own
        logging.getLogger(name).setLevel(logging.ERROR)
    return MlflowTracker(place)


class MlflowTracker:
    """A run of MLflow."""

    def __init__(self, place: Place) -> None:
        # A client of its own and no mlflow.start_run: a run that the caller has open is not touched.
        self._client = client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or place.ids.get("uri"))
        self._run = _existing(client, place.ids.get("run", "")) or _created(client, place)
        # Metrics that wait for a call with as many as MLflow takes.
        self._metrics: list[Metric] = []
        self.ids = {"uri": client.tracking_uri, "run": self._run}
        self.where = f"run {self._run} in {client.tracking_uri}"
        # An earlier start has set it to KILLED.
        client.update_run(self._run, status="RUNNING")

    def last_step(self, split: str) -> int:
        return int(self._client.get_run(self._run).data.metrics.get(f"{split}/step", -1))

    def add(self, step: int, split: str, figures: dict[str, float]) -> None:
        if len(self._metrics) + len(figures) > _BATCH:
            self.flush()  # a step is never split: its figure `step` must arrive with the others
        now = int(time.time() * 1000)
        self._metrics += [Metric(f"{split}/{name}", value, now, step) for name, value in figures.items()]

    def flush(self) -> None:
        if self._metrics:
            self._client.log_batch(self._run, metrics=self._metrics)
            self._metrics = []

    def close(self, complete: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if complete else "KILLED")


def _existing(client: MlflowClient, run: str) -> str:
    """Returns the id of the run if this server has it and it was not deleted, else ""."""
    try:
        info = client.get_run(run).info if run else None
        return info.run_id if info and info.lifecycle_stage == "active" else ""
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return ""
        raise


def _created(client: MlflowClient, place: Place) -> str:
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "contexture")
    # Made by whoever comes first.
    experiment = client.get_experiment_by_name(name)
    number = experiment.experiment_id if experiment else client.create_experiment(name)
    run = client.create_run(number, run_name=place.name).info.run_id
    # MLflow's limits: 6,000 characters a parameter, 100 parameters a call.
    params = [Param(key, str(value)[:6000]) for key, value in flat(place.config).items()]
    for start in range(0, len(params), 100):
        client.log_batch(run, params=params[start : start + 100])
    return run
