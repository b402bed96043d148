"""The packages of the trackers themselves: a user's own run of theirs, one that was deleted, one that is missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from contexture.train.loggers.wandb_tracker import history
from tests.helpers.jobs import finish, free_port, start_process
from tests.train.loggers.test_trackers import QUIET

BEGIN = """
import dataclasses, json, sys
from pathlib import Path
from contexture.train.settings.run import Run
from contexture.train.loggers.trackers import Trackers
from contexture.train.settings.sections import LogConfig
from tests.train.loggers.test_trackers import records

def train(folder, tracker, first, last):
    folder.mkdir(exist_ok=True)
    trackers = Trackers(dataclasses.replace(Run(), log=LogConfig(to=(tracker,))), folder)
    trackers.start(lambda: records(1, first), first)
    trackers.send(records(first + 1, last))
    trackers.close(True)
    return json.loads((folder / "trackers.json").read_text())[tracker]
"""


def result_of(program: str, folder: Path, **more: str) -> dict:
    """What a program prints last: a process of its own, since these packages leave processes, hooks and loggers."""
    around = {**os.environ, **QUIET, **more, "PYTHONPATH": str(Path(__file__).parents[3]), "JAX_PLATFORMS": "cpu"}
    words = [sys.executable, "-c", BEGIN + program]
    done = subprocess.run(words, cwd=folder, env=around, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_an_open_run_of_wandb_stays_open_and_gets_nothing(tmp_path):
    program = """
import wandb
own = wandb.init(project="own", dir=".", settings=wandb.Settings(silent=True))
own.log({"mine": 1})
ids = train(Path("run"), "wandb", 0, 3)
assert wandb.run is own
wandb.log({"mine": 2})
files = own.settings.sync_file
own.finish()
print(json.dumps({"own": files, **ids}))
"""
    result = result_of(program, tmp_path)
    rows = [{k: v for k, v in row.items() if k[0] != "_"} for row in history(tmp_path / result["own"])]
    assert rows == [{"mine": 1}, {"mine": 2}]
    (file,) = (tmp_path / "run" / "wandb").glob(f"offline-run-*-{result['run']}/*.wandb")
    assert [row["train/step"] for row in history(file)] == [1, 2, 3]


@pytest.mark.long
def test_a_run_of_mlflow_that_was_deleted_is_sent_whole_to_a_new_one(tmp_path):
    program = """
from mlflow import MlflowClient
before = train(Path("run"), "mlflow", 0, 3)
client = MlflowClient(before["uri"])
client.delete_run(before["run"])
after = train(Path("run"), "mlflow", 3, 5)
steps = [[one.step for one in client.get_metric_history(ids["run"], "train/loss")] for ids in (before, after)]
status = client.get_run(after["run"]).info.status
print(json.dumps({"before": before, "after": after, "steps": steps, "status": status}))
"""
    result = result_of(program, tmp_path, MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/mlflow.db")
    before, after = result["before"], result["after"]
    assert after["run"] != before["run"] and after["uri"] == before["uri"] and result["status"] == "FINISHED"
    assert result["steps"] == [[1, 2, 3], [1, 2, 3, 4, 5]]


@pytest.mark.long
def test_only_the_first_process_of_a_job_needs_the_trackers_package(door, tiny_words, tmp_path):
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "sitecustomize.py").write_text(
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "class WithoutWandb(PathFinder):\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, path=None, target=None):\n"
        "        return None if name == 'wandb' else super().find_spec(name, path, target)\n"
        "sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutWandb\n"
    )

    def without_wandb(*words: object, env: dict[str, str], **more: object) -> subprocess.Popen:
        return door(*words, env={**env, "PYTHONPATH": str(tmp_path / "without")}, **more)

    def with_wandb(*words: object, env: dict[str, str], **more: object) -> subprocess.Popen:
        return door(*words, env={**env, **QUIET}, **more)

    folder, port = tmp_path / "run", free_port()
    words = [*tiny_words, "--steps", "2", "--log.to", "wandb", "--mesh.startup-minutes", "1"]
    doors = (with_wandb, without_wandb)
    job = [start_process(each, words, folder, port, number, 2) for number, each in enumerate(doors)]
    ended = finish(job)
    assert [code for code, _ in ended] == [0, 0], ended
    ids = json.loads((folder / "trackers.json").read_text())["wandb"]
    (file,) = (folder / "wandb").glob(f"offline-run-*-{ids['run']}/*.wandb")
    assert [row["train/step"] for row in history(file) if "train/step" in row] == [1, 2]
    # Alone, that process is refused: the package is missing there indeed.
    alone = without_wandb(*words[:-2], "--dir", tmp_path / "alone", env={})
    assert alone.returncode == 2 and "wandb is not installed" in str(alone.stderr)
