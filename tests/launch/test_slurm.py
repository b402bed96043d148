"""launch/slurm.sbatch under SLURM itself, on this machine: the same run, though it is stopped and queued again."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from contexture.train.run.report import read_metrics
from tests.conftest import ROOT
from tests.helpers import slurm
from tests.helpers.jobs import recorded
from tests.helpers.parity_rule import assert_close

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing())]
MORE = "--steps 200 --save.every 100 --data.batch 16".split()
LIMIT = 240


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[dict[str, str]]:
    with slurm.running(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


@pytest.fixture
def around(cluster, environment) -> dict[str, str]:
    """What a job finds around it: the file's `contexture` is that of the tests."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{cluster['PATH']}"
    return {**environment(1), "SLURM_CONF": cluster["SLURM_CONF"], "PATH": path}


def _wait(around: dict[str, str], job: str, log: Path, done) -> dict[str, str]:
    deadline = time.monotonic() + LIMIT
    while not done(state := slurm.state_of(around, job)):
        assert time.monotonic() < deadline, (state, log.exists() and log.read_text()[-3000:])
        time.sleep(0.2)
    return state


def test_a_job_that_is_stopped_is_queued_again_and_is_the_same_run(around, door, tiny_words, tmp_path):
    """Two tasks, stopped by the signal that --signal=TERM@60 sends; in the end the losses of one process."""
    words = [*tiny_words[2:], *MORE]  # those after the recipe
    whole, folder, log = tmp_path / "whole", tmp_path / "run", tmp_path / "log.txt"
    done = door("pretrain", "bert.tiny", *words, "--dir", whole)
    assert done.returncode == 0, done.stderr
    text = tiny_words[tiny_words.index("--data.path") + 1]
    env = {**around, "RECIPE": "bert.tiny", "RUN": str(folder), "TEXT": text}
    asked = ["sbatch", "--parsable", "--ntasks-per-node=2", f"--output={log}", f"--chdir={tmp_path}"]
    job = slurm.command(env, *asked, ROOT / "launch" / "slurm.sbatch", *words).strip()
    _wait(env, job, log, lambda state: recorded(folder) >= 20 or state["JobState"] not in ("PENDING", "RUNNING"))
    slurm.command(env, "scancel", "--signal=TERM", job)  # to the tasks, as TERM@60
    # While its first start ends, a job that was put back is shown as failed.
    _wait(env, job, log, lambda state: state["Restarts"] == "1" and state["JobState"] in ("PENDING", "RUNNING"))
    text = log.read_text()
    assert "saved step" in text, text
    # SLURM holds a job that was put back for two minutes, in which its node puts its first start away.
    time.sleep(15)
    subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], env=env, check=False, timeout=60)
    state = _wait(env, job, log, lambda state: state["JobState"] in ("COMPLETED", "FAILED", "CANCELLED"))
    text = log.read_text()
    assert state["JobState"] == "COMPLETED" and state["ExitCode"] == "0:0", f"{text}\n{slurm.log_of(env)}"
    assert "resuming from step" in text and "process 1 of 2 read" in text, text
    records = [r for r in read_metrics(folder / "metrics.jsonl") if r["split"] == "train"]
    assert [r["step"] for r in records] == list(range(1, 201))
    expected = [r["loss"] for r in read_metrics(whole / "metrics.jsonl") if r["split"] == "train"]
    assert_close([r["loss"] for r in records], expected, rtol=1e-5)


def test_every_task_of_a_job_checks_its_host(around, tmp_path):
    """srun contexture check: process 0 can listen, the other reaches it."""
    words = ["srun", "--ntasks=2", f"--chdir={tmp_path}", "contexture", "check", "--dir", tmp_path / "run"]
    text = slurm.command(around, *words)
    assert "process 0 can listen at" in text and "process 1 reaches the host of" in text, text
    assert not list(tmp_path.iterdir()), "nothing is left behind"
