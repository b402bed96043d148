"""What MLflow's server is asked for, by a client that stands in for its own."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

from contexture.train.loggers import mlflow_tracker as module
from contexture.train.loggers.trackers import Place


class Client:
    """One experiment's runs: of each its name, status, metrics in their order and params."""

    def __init__(self, uri: str | None) -> None:
        self.tracking_uri, self.experiments, self.runs = uri or "sqlite:///mlflow.db", {}, {}
        self.calls: list[int] = []

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id=self.experiments[name]) if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        return self.experiments.setdefault(name, str(len(self.experiments)))

    def create_run(self, experiment: str, run_name: str) -> Any:
        info = SimpleNamespace(run_id=f"{experiment}-{len(self.runs)}", lifecycle_stage="active")
        data = SimpleNamespace(metrics={}, params={})
        self.runs[info.run_id] = SimpleNamespace(info=info, data=data, name=run_name, status="")
        return self.runs[info.run_id]

    def get_run(self, number: str) -> Any:
        if number == "broken":
            raise module.MlflowException("the server is down")
        if number not in self.runs:
            raise module.MlflowException("no such run", error_code=RESOURCE_DOES_NOT_EXIST)
        return self.runs[number]

    def update_run(self, number: str, status: str) -> None:
        self.runs[number].status = status

    set_terminated = update_run

    def log_batch(self, number: str, metrics: Any = (), params: Any = ()) -> None:
        self.calls.append(len(metrics) + len(params))
        self.runs[number].data.metrics |= {metric.key: metric.value for metric in metrics}
        self.runs[number].data.params |= {param.key: param.value for param in params}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    client = Client(None)

    def opened(uri: str | None) -> Client:
        client.tracking_uri = uri or client.tracking_uri
        return client

    monkeypatch.setattr(module, "MlflowClient", opened)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    return client


CONFIG = {"model": {"layers": 2}, "path": "a" * 7000, **{f"n{number}": number for number in range(148)}}


def test_a_first_start_makes_a_run_with_the_settings(client, monkeypatch):
    tracker = module.open_run(Place("name", Path("run"), CONFIG, {}))
    assert client.experiments == {"contexture": "0"} and tracker.ids == {"uri": "sqlite:///mlflow.db", "run": "0-0"}
    run = client.runs["0-0"]
    assert (run.name, run.status, tracker.where) == ("name", "RUNNING", "run 0-0 in sqlite:///mlflow.db")
    assert client.calls == [100, 50] and run.data.params["model.layers"] == "2" and run.data.params["n147"] == "147"
    assert len(run.data.params["path"]) == 6000
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "other")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://server")
    other = module.open_run(Place("name", Path("run"), {}, {"uri": "https://old"}))
    assert other.ids == {"uri": "https://server", "run": "1-1"} and client.experiments["other"] == "1"


def test_a_run_goes_on_unless_it_is_gone(client):
    first = module.open_run(Place("name", Path("run"), {}, {}))
    again = module.open_run(Place("name", Path("run"), {}, first.ids))
    assert again.ids == first.ids and len(client.runs) == 1
    client.runs["0-0"].info.lifecycle_stage = "deleted"
    assert module.open_run(Place("name", Path("run"), {}, first.ids)).ids["run"] == "0-1"
    assert module.open_run(Place("name", Path("run"), {}, {"run": "absent"})).ids["run"] == "0-2"
    with pytest.raises(module.MlflowException, match="the server is down"):
        module.open_run(Place("name", Path("run"), {}, {"run": "broken"}))


def test_figures_are_sent_together_and_no_step_is_cut_in_two(client):
    tracker = module.open_run(Place("name", Path("run"), {}, {}))
    assert tracker.last_step("train") == -1
    client.calls.clear()
    for step in (1, 2, 3):
        tracker.add(step, "train", {"step": step, **{f"m{number}": 0.5 for number in range(399)}})
    assert client.calls == [800]
    tracker.add(3, "dev", {"step": 3.0, "loss": 2.5} | {f"m{number}": 0.5 for number in range(598)})
    assert client.calls == [800]  # as many as one call may have
    tracker.flush()
    tracker.flush()
    assert client.calls == [800, 1000] and client.runs["0-0"].data.metrics["dev/loss"] == 2.5
    assert (tracker.last_step("train"), tracker.last_step("dev")) == (3, 3)
    for complete, status in ((True, "FINISHED"), (False, "KILLED")):
        tracker.close(complete)
        assert client.runs["0-0"].status == status
