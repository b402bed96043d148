"""Experiment trackers: each step once, whatever kills the run; the real packages, without a network."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

from contexture.train.errors import ConfigError, install_hint
from contexture.train.loggers import trackers as module
from contexture.train.loggers.trackers import Place, Trackers, check_trackers, figures_of
from contexture.train.loggers.wandb_tracker import WandbTracker, history
from contexture.train.run.report import Report
from contexture.train.settings.run import Run
from contexture.train.settings.sections import LogConfig
from tests.helpers.logs import logged

QUIET = {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
RUN = replace(Run(), log=LogConfig(to=("wandb", "mlflow", "aim")))


def records(first: int, last: int, split: str = "train") -> list[dict]:
    return [{"step": step, "split": split, "loss": step / 3, "tag": None} for step in range(first, last + 1)]


def evaluated(first: int, last: int) -> list[dict]:
    """Records of a run that is evaluated every 20 steps."""
    steps = range(first, last + 1)
    return [one for step in steps for of in ("train", "dev")[: 1 + (step % 20 == 0)] for one in records(step, step, of)]


class Memory:
    """A tracker that keeps what it receives, and fails at a step where it shall."""

    def __init__(self, fails_at: int = 0) -> None:
        self.rows: list[tuple[str, int]] = []
        self.fails_at, self.ids, self.where, self.complete = fails_at, {"run": "7"}, "in memory", None

    def check(self) -> None: ...

    def open_run(self, place: module.Place) -> "Memory":
        self.place = place
        return self

    def last_step(self, split: str) -> int:
        return max((step for of, step in self.rows if of == split), default=-1)

    def add(self, step: int, split: str, figures: dict[str, float]) -> None:
        if self.fails_at and step >= self.fails_at:
            raise OSError("the server is gone\nfor good")
        self.rows.append((split, step))

    def flush(self) -> None: ...

    def close(self, complete: bool) -> None:
        self.complete = complete


@pytest.fixture
def memory(monkeypatch):
    memories = {name: Memory() for name in ("wandb", "mlflow", "aim")}
    monkeypatch.setattr(module, "_module", memories.get)
    return memories


def report_of(folder: Path) -> Report:
    return Report(folder, steps=9, speaks=True, tensorboard=False, trackers=Trackers(RUN, folder))


def test_a_record_is_sent_when_its_checkpoint_is_on_disk(tmp_path, memory):
    report = report_of(tmp_path)
    report.start(0, 5)
    report.record([*records(0, 0, "dev"), *records(1, 7)], saved=0)
    report.record(records(5, 5, "dev"), saved=5)
    report.close()
    assert memory["aim"].rows == [("dev", 0), *(("train", step) for step in range(1, 6)), ("dev", 5)]
    assert memory["aim"].complete is False and memory["mlflow"].rows == memory["aim"].rows


def test_a_start_sends_what_a_tracker_lacks(tmp_path, memory):
    lines = [*records(1, 4), *records(4, 4, "dev"), *records(5, 7)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in lines))
    memory["wandb"].rows = [("train", step) for step in range(1, 4)]
    report = report_of(tmp_path)
    report.start(6, 2)
    report.complete()
    report.close()
    assert memory["wandb"].rows == [*(("train", n) for n in range(1, 5)), ("dev", 4), ("train", 5), ("train", 6)]
    assert memory["aim"].rows == memory["wandb"].rows and memory["aim"].complete is True
    assert json.loads((tmp_path / "trackers.json").read_text())["mlflow"] == {"run": "7"}
    assert memory["aim"].place.ids == {}
    again = report_of(tmp_path)
    again.start(6, 2)
    again.close()
    assert memory["aim"].place.ids == {"run": "7"} and len(memory["aim"].rows) == 7


def test_a_tracker_that_fails_is_left_out(tmp_path, memory):
    memory["mlflow"].fails_at = 3
    report = report_of(tmp_path)
    report.start(0, 1)
    with logged() as lines:
        report.record(records(1, 5), saved=5)
        report.record(records(6, 7), saved=7)
        report.close()
    assert len(memory["mlflow"].rows) == 2 and len(memory["aim"].rows) == 7
    (line,) = (line for line in lines if line.startswith("warning"))
    assert line.startswith("warning: log.to=mlflow: the server is gone for good; training goes on without it")


@pytest.mark.parametrize("error", [OSError("no route\nto host"), ConfigError("")])
def test_a_tracker_that_cannot_be_opened_stops_a_new_run_and_no_old_one(tmp_path, memory, monkeypatch, error):
    def fail(place: module.Place):
        raise error

    monkeypatch.setattr(memory["mlflow"], "open_run", fail)
    what = "no route to host" if str(error) else "ConfigError"
    new = Trackers(RUN, tmp_path)
    with pytest.raises(ConfigError, match=f"^log.to=mlflow: {what}; mend that, or leave out --log.to mlflow$"):
        new.start(list, 0)
    new.close(False)
    old = Trackers(RUN, tmp_path)
    with logged() as lines:
        old.start(lambda: records(1, 3), 3)
        old.close(True)
    (warning,) = (line for line in lines if line.startswith("warning"))
    assert warning.startswith(f"warning: log.to=mlflow: {what}; training goes on") and len(memory["wandb"].rows) == 3


def test_a_tracker_that_never_answers_holds_nobody_up(tmp_path, memory, monkeypatch):
    monkeypatch.setattr(module, "_OPEN_SECONDS", 0.2)
    answer = threading.Event()
    monkeypatch.setattr(memory["mlflow"], "open_run", lambda place: answer.wait() and memory["mlflow"])
    trackers = Trackers(RUN, tmp_path)
    with logged() as lines:
        trackers.start(lambda: records(1, 3), 3)
        trackers.close(True)
    (warning,) = (line for line in lines if line.startswith("warning"))
    assert warning.startswith("warning: log.to=mlflow: no answer in 0 s; training goes on without it")
    assert len(memory["wandb"].rows) == len(memory["aim"].rows) == 3 and memory["aim"].complete is True
    answer.set()  # too late: its run is closed, and nothing is sent
    _wait_for_threads()
    assert memory["mlflow"].complete is False and not memory["mlflow"].rows


def test_a_tracker_that_hangs_at_the_end_is_not_waited_for(tmp_path, memory, monkeypatch):
    monkeypatch.setattr(module, "_STOPPED_SECONDS", 0.2)
    answer = threading.Event()
    monkeypatch.setattr(memory["wandb"], "flush", answer.wait)
    trackers = Trackers(RUN, tmp_path)
    trackers.start(list, 0)
    trackers.send(records(1, 2))
    with logged() as lines:
        trackers.close(False)
    answer.set()
    assert lines == ["warning: log.to=wandb: no answer in 0 s; the next start sends the rest"]
    assert len(memory["aim"].rows) == 2


def test_a_signal_ends_the_opening_of_trackers(tmp_path, memory, monkeypatch):
    answer = threading.Event()
    monkeypatch.setattr(memory["aim"], "open_run", lambda place: answer.wait() and memory["aim"])

    def stop() -> None:
        raise KeyboardInterrupt

    trackers = Trackers(RUN, tmp_path, stop)
    with pytest.raises(KeyboardInterrupt):
        trackers.start(list, 0)
    trackers.close(False)
    answer.set()
    _wait_for_threads()


def _wait_for_threads() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("tracker "):
            thread.join(10)
            assert not thread.is_alive()


def test_damaged_ids_are_as_none(tmp_path, memory):
    for text in ("{", "[1]", '{"aim": 3}'):
        (tmp_path / "trackers.json").write_text(text)
        trackers = Trackers(RUN, tmp_path)
        trackers.start(list, 0)
        trackers.close(True)
        assert memory["aim"].place.ids == {}


def test_figures_are_numbers_and_the_step_is_the_last():
    figures = figures_of({"step": 4, "split": "dev", "loss": 1.5, "text": "a", "grad_norm": None})
    assert list(figures.items()) == [("loss", 1.5), ("step", 4)]


def test_mistakes_are_refused_before_any_work(monkeypatch):
    with pytest.raises(ValueError, match="log.to=aim aim names a tracker twice"):
        LogConfig(to=("aim", "aim"))
    monkeypatch.setattr("wandb.setup", lambda: SimpleNamespace(settings=SimpleNamespace(mode="online")))
    monkeypatch.setattr("wandb.login", lambda **_: False)
    with pytest.raises(ConfigError, match="nobody is logged in; run `wandb login`, or set WANDB_MODE=offline"):
        check_trackers(["wandb"])
    monkeypatch.setattr("wandb.setup", lambda: SimpleNamespace(settings=1))
    with pytest.raises(ConfigError, match="^log.to=wandb: 'int' object has no attribute 'mode'$"):
        check_trackers(["wandb"])
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=re.escape(f"mlflow is not installed; {install_hint('mlflow')}")):
        check_trackers(["mlflow"])


SENDS = """
import os, psutil, signal, sys, threading
from pathlib import Path
from contexture.train.loggers.trackers import Trackers
from tests.train.loggers.test_trackers import RUN, evaluated
first, last, killed = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "killed"
trackers = Trackers(RUN, Path(sys.argv[1]))
trackers.start(lambda: evaluated(1, first), first)
trackers.send(evaluated(first + 1, last))
if killed:
    for worker in trackers._workers:
        sent = threading.Event()
        worker._tasks.put(lambda _: sent.set())
        sent.wait()
    print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
trackers.close(True)
"""


@pytest.mark.long
def test_the_real_packages_hold_each_step_once_after_a_kill(tmp_path):
    """A run that is killed, and resumed from an earlier step than was sent."""
    folder = tmp_path / "run"
    folder.mkdir()
    around = {**os.environ, **QUIET, "PYTHONPATH": str(Path(__file__).parents[3]), "JAX_PLATFORMS": "cpu"}
    for first, last, how in ((0, 300, "killed"), (240, 340, "whole")):
        words = [sys.executable, "-c", SENDS, str(folder), str(first), str(last), how]
        process = subprocess.run(words, cwd=tmp_path, env=around, capture_output=True, text=True, timeout=120)
        assert process.returncode == (-signal.SIGKILL if how == "killed" else 0), process.stderr
        # W&B's own process writes what it has when its parent is gone.
        for pid in map(int, process.stdout.split()):
            while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.05)
    ids = json.loads((folder / "trackers.json").read_text())
    held = _held(ids)
    assert (held["status"], held["family"]) == ("FINISHED", "bert")
    assert held["aim"] == {"train": list(range(1, 341)), "dev": list(range(20, 341, 20))}
    assert held["mlflow"] == held["aim"] == _steps_of_wandb(folder, ids["wandb"])


def _steps_of_wandb(folder: Path, ids: dict[str, str]) -> dict[str, list[int]]:
    files = sorted(folder.glob(f"wandb/offline-run-*-{ids['run']}/*.wandb"))
    assert len(files) > 1
    rows = [row for file in files for row in history(file)]
    return {of: [int(row[f"{of}/step"]) for row in rows if f"{of}/step" in row] for of in ("train", "dev")}


READS = """
import json, sys
from aim import Run
from aim.storage.context import Context
from mlflow import MlflowClient
SPLITS = ("train", "dev")
mlflow, aim = (json.loads(word) for word in sys.argv[1:])
client, run = MlflowClient(mlflow["uri"]), Run(aim["run"], repo=aim["repository"])
state = client.get_run(mlflow["run"])
print(json.dumps({
    "status": state.info.status,
    "family": state.data.params["model.family"],
    "mlflow": {of: [one.step for one in client.get_metric_history(mlflow["run"], f"{of}/loss")] for of in SPLITS},
    "aim": {of: run.get_metric("loss", Context({"subset": of})).data.indices_list() for of in SPLITS},
}))
run.close()
"""


def _held(ids: dict[str, dict[str, str]]) -> dict[str, Any]:
    """What MLflow and Aim hold, read by a process of its own: their libraries warn of their own."""
    words = [sys.executable, "-c", READS, json.dumps(ids["mlflow"]), json.dumps(ids["aim"])]
    process = subprocess.run(words, env={**os.environ, **QUIET}, capture_output=True, text=True, timeout=60)
    assert not process.returncode, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


def test_damage_in_a_wandb_file_ends_its_rows(tmp_path):
    assert list(history(_file(tmp_path, b""))) == []
    assert list(history(_file(tmp_path, b":W&B\xe1\xbe\x00" + b"\x00" * 4 + b"\xff\xff\x01abc"))) == []


def _file(folder: Path, data: bytes) -> Path:
    (folder / "run.wandb").write_bytes(data)
    return folder / "run.wandb"


@pytest.mark.long
def test_a_training_that_is_killed_and_resumed_sends_each_step_once(door, tiny_words, tmp_path):
    words = [*tiny_words, "--dir", tmp_path / "run", "--log.to", "wandb", "mlflow", "aim"]
    words += ["--steps", "2000", "--evaluate.every", "10"]
    env = {**QUIET, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db", "AIM_REPO": str(tmp_path)}
    metrics = tmp_path / "run" / "metrics.jsonl"
    for stop in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM):
        before = metrics.stat().st_size if metrics.exists() else 0
        process = door(*words, wait=False, env=env)
        while not metrics.exists() or metrics.stat().st_size < before + 5000:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(stop)
        process.communicate()
        psutil.wait_procs(children, timeout=30)
    ids = json.loads((tmp_path / "run" / "trackers.json").read_text())
    whole = list(range(1, json.loads(metrics.read_bytes().splitlines()[-1])["step"] + 1))
    held = _held(ids)
    for steps_of in (_steps_of_wandb(tmp_path / "run", ids["wandb"]), held["mlflow"], held["aim"]):
        assert steps_of["train"] == whole and steps_of["dev"] == sorted(set(steps_of["dev"]))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("api_key not configured (no-tty). Call\nwandb.login(key=[your_api_key])\nmore",
         "api_key not configured (no-tty). Call wandb.login(key=[your_api_key])"),
        ("one line", "one line"),
        ("a sentence.\nanother", "a sentence."),
        ("a line\n\nanother", "a line"),
        ("", "RuntimeError"),
    ],
)  # fmt: skip
def test_the_reason_of_an_error_is_its_whole_first_sentence(error: str, reason: str):
    assert module._reason(RuntimeError(error)) == reason


def test_a_run_on_the_server_goes_on_behind_what_it_has(tmp_path, monkeypatch):
    """A split that it has nothing of begins with its first record, also where that is of step 0."""
    given: dict[str, Any] = {}

    class Served:
        settings, offline = SimpleNamespace(wandb_dir=str(tmp_path)), False
        summary, url = {"train/step": 7}, "https://server/runs/7"

        def define_metric(self, name: str, step_metric: str) -> None:
            given[name] = step_metric

    monkeypatch.setattr("wandb.init", lambda **settings: given.update(settings) or Served())
    tracker = WandbTracker(Place("name", tmp_path, {"seed": 1}, {"run": "abc"}))
    assert (tracker.last_step("train"), tracker.last_step("dev")) == (7, -1)
    assert tracker.where == "https://server/runs/7" and tracker.ids == {"run": "abc"}
    assert given["train/*"] == "train/step" and given["dev/*"] == "dev/step"
    assert (given["id"], given["name"], given["config"], given["resume"]) == ("abc", "name", {"seed": 1}, "allow")


def test_the_rows_of_a_wandb_file_are_read_and_its_other_records_are_not(tmp_path):
    row, other = Record(), Record()
    for key, value in (("train/step", "3"), ("train/loss", "0.25")):
        row.history.item.add(key=key, value_json=value)
    row.history.item.add(nested_key=["dev", "step"], value_json="2")
    other.summary.update.add(key="train/step", value_json="9")
    file = b":W&B\xe1\xbe\x00"
    for record in (other, row):
        data = record.SerializeToString()
        file += b"\x00" * 4 + len(data).to_bytes(2, "little") + b"\x01" + data
    assert list(history(_file(tmp_path, file))) == [{"train/step": 3, "train/loss": 0.25, "dev.step": 2}]
