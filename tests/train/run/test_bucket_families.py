"""Each family in each kind of bucket, by the commands as a user gives them, in processes of their own."""

import json
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from contexture.train.run.report import read_metrics
from tests.helpers.buckets import BUCKET, Server
from tests.helpers.jobs import wait_until
from tests.helpers.small_text import SUFFIX

pytestmark = [pytest.mark.long, pytest.mark.parametrize("bucket_store", ["gs", "s3"], indirect=True)]


@pytest.fixture
def start(door):
    """Starts a command; none outlives the test."""
    processes: list[subprocess.Popen] = []

    def started(*words: object) -> subprocess.Popen:
        processes.append(door(*words, wait=False))
        return processes[-1]

    yield started
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def printed(start):
    """What a command prints that does its work."""

    def finished(*words: object) -> dict[str, Any]:
        return json_of(start(*words, "--json"))

    return finished


def json_of(process: subprocess.Popen) -> dict[str, Any]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out)


def metrics(store: Server, run: str, split: str) -> list[tuple[int, float]]:
    key = run.partition(f"://{BUCKET}/")[2]
    records = [json.loads(line) for line in store.joined(f"{key}/metrics.jsonl").splitlines()]
    return [(record["step"], record["loss"]) for record in records if record["split"] == split]


@pytest.mark.parametrize("family", ["bert", "gpt", "elmo"])
def test_a_family_lives_in_a_bucket(bucket_store, start, printed, family, request, task_files, tmp_path, monkeypatch):
    """Trained, killed and resumed, watched, tuned in a grid, asked, exported, imported."""
    monkeypatch.setenv("CONTEXTURE_LEASE_SECONDS", "4")
    disk: Path = request.getfixturevalue("tiny_run" if family == "bert" else f"{family}_run")
    words = request.getfixturevalue("tiny_words" if family == "bert" else f"{family}_words")
    key = f"{family}-{random.randrange(1 << 30)}"
    place = f"{bucket_store.scheme}://{BUCKET}/{key}"
    run, model = f"{place}/run", f"{place}/model"

    # SIGKILL within a save.
    first = start(*words, "--dir", run)
    wait_until(lambda: len(metrics(bucket_store, run, "train")) > 10, [first])
    written = bucket_store.written
    wait_until(lambda: bucket_store.written > written + 20, [first])
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL

    # Resumed, and evaluated by another process as it goes on.
    second = start(*words, "--dir", run)
    wait_until(lambda: f"process {second.pid} on" in bucket_store.read(f"{key}/run/lock").decode(), [second])
    watched = json_of(start("evaluate", run, "--step", "all", "--watch", "--json"))["checkpoints"][-1]
    second.wait()
    assert second.returncode == 0
    losses = [(r["step"], r["loss"]) for r in read_metrics(disk / "metrics.jsonl") if r["split"] == "train"]
    assert metrics(bucket_store, run, "train") == losses
    assert (watched["step"], watched["metrics"]) == (40, printed("evaluate", disk)["metrics"])

    # A grid of two members, from a run in the bucket.
    files = [f"{task_files / 'classify'}.{split}.{SUFFIX['classify']}" for split in ("train", "dev")]
    tuning = ["finetune", run, "--task.kind", "classify", "--task.train", files[0], "--task.dev", files[1]]
    tuning += ["--data.batch", "16", "--optim.peak-lr", "5e-3", "--save.every", "4", "--steps", "8", "--seeds", "2"]
    printed(*tuning, "--dir", f"{place}/grid")
    members = printed("status", f"{place}/grid")["runs"]
    assert [(each["state"], each["step"]) for each in members] == [("done", 8)] * 2, members

    # What reads a run, and writes to the bucket.
    lines = "the cat sees the river in spring.\nmy brother paints the sea.\n"
    (tmp_path / "in.txt").write_text(lines, "utf-8")
    (tmp_path / "in.tsv").write_text("text\n" + lines, "utf-8")
    printed("predict", members[0]["run"], "--input", tmp_path / "in.tsv", "--to", f"{place}/answers.jsonl")
    printed("embed", run, "--input", tmp_path / "in.txt", "--to", f"{place}/vectors.npy")
    assert len(bucket_store.read(f"{key}/answers.jsonl").splitlines()) == 2
    assert bucket_store.read(f"{key}/vectors.npy").startswith(b"\x93NUMPY")
    form = "bilm" if family == "elmo" else "hf"
    printed("export", run, form, "--to", model)
    printed("import", form, model, "--to", f"{place}/again")
    time.sleep(1)  # its age is that of the import, not of this look
    again = printed("status", f"{place}/again")["runs"][0]
    assert (again["run"], again["checkpoint"]) == (f"{place}/again", 0) and again["checkpoint_seconds"] > 1
