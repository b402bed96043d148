"""Runs that live in a bucket: the same as on a disk, through kills, faults of the store, and several processes."""

import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

import contexture
from contexture.data import bucket, mirror
from contexture.data.bucket import Address, parse_address
from contexture.data.cancel import NEVER
from contexture.train.checkpoints.manager import Checkpoints
from contexture.train.evaluation.steps import checkpoints_as_written
from contexture.train.run import lease
from contexture.train.run.folder import steps
from contexture.train.run.report import read_metrics
from tests.helpers.buckets import BUCKET, Faults, Server
from tests.helpers.commands import done, json_of, run_command
from tests.helpers.jobs import finish, free_port, start_process
from tests.helpers.long import long

SOON = ["--mesh.peer-minutes", "0.25", "--mesh.startup-minutes", "1"]
"""A process that is gone is missed soon."""


@pytest.fixture
def run(bucket_store: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a run of its own."""
    yield f"{bucket_store.scheme}://{BUCKET}/{request.node.originalname}-{random.randrange(1 << 30)}/run"
    bucket_store.faults = Faults()


def key_of(run: str) -> str:
    return run.partition(f"://{BUCKET}/")[2]


def losses(store: Server, run: str) -> list[tuple[int, float]]:
    """Each step and its loss, from the bucket itself."""
    records = [json.loads(line) for line in store.joined(f"{key_of(run)}/metrics.jsonl").splitlines()]
    return [(record["step"], record["loss"]) for record in records if record["split"] == "train"]


def on_disk(folder: Path) -> list[tuple[int, float]]:
    return [(r["step"], r["loss"]) for r in read_metrics(folder / "metrics.jsonl") if r["split"] == "train"]


def objects(store: Server, run: str, below: str) -> list[str]:
    key = f"{key_of(run)}/{below}"
    return [name[len(key) :] for name in store.names(key)]


def test_a_run_in_a_bucket_is_that_on_a_disk(run, bucket_store, tiny_words, tmp_path, capsys):
    words = [*tiny_words, "--save.every", 3, "--save.max-to-keep", 2]
    done(*words, "--steps", 6, "--dir", tmp_path / "disk")
    done(*words, "--steps", 6, "--dir", run)
    assert losses(bucket_store, run) == on_disk(tmp_path / "disk") != []
    assert {name.partition("/")[0] for name in objects(bucket_store, run, "checkpoints/")} == {"3", "6"}
    # Its settings name the bucket, and no folder of this machine.
    record = bucket_store.read(f"{key_of(run)}/run.json").decode()
    assert json.loads(record)["config"]["dir"] == run and "/contexture-" not in record
    (state,) = json_of("status", run)["runs"]
    assert (state["run"], state["state"], state["checkpoint"]) == (run, "done", 6)
    # What reads a run reads it there, and writes there.
    printed = json_of("evaluate", run)
    assert printed["metrics"] == json_of("evaluate", tmp_path / "disk")["metrics"]
    # In Python too, and what is returned names the bucket.
    assert len(jax.tree.leaves(contexture.load(run)[1])) == len(jax.tree.leaves(contexture.load(tmp_path / "disk")[1]))
    assert contexture.evaluate(run)["run"] == run
    model, again = run.replace("/run", "/model"), run.replace("/run", "/again")
    done("export", run, "hf", "--to", model)
    done("import", "hf", model, "--to", again)
    assert objects(bucket_store, again, "checkpoints/0/commit_success.txt") == [""]
    capsys.readouterr()
    assert run_command(capsys, *words, "--steps", 6, "--dir", again)[0] == 2  # imported: no training of its own


def test_a_committed_step_has_its_metrics_in_the_bucket(run, bucket_store, tiny_words, monkeypatch):
    """Whenever a kill comes: though nothing is written to the bucket by the clock."""
    monkeypatch.setattr(lease, "RENEW", 1000.0)
    lines: dict[int, int] = {}
    committing = Checkpoints._read_back_from

    def seen(self: Checkpoints, address: Address, last: bool) -> None:
        committing(self, address, last)
        lines[int(Path(address.key).name)] = len(losses(bucket_store, run))

    monkeypatch.setattr(Checkpoints, "_read_back_from", seen)
    done(*tiny_words, "--save.every", 2, "--steps", 6, "--dir", run)
    assert lines.keys() == {2, 4, 6} and all(lines[step] >= step for step in lines), lines


def test_a_watch_sees_the_last_checkpoint(run, bucket_store):
    """Though it has listed the bucket a moment before the training ended."""
    folder, place = Path(mirror.local(run)), parse_address(run)
    assert place is not None and steps(folder / "checkpoints") == []
    for name in ("meta/metadata", "commit_success.txt"):
        bucket.write(place / f"checkpoints/5/{name}", b"{}")
    assert steps(folder / "checkpoints") == [] and list(checkpoints_as_written(folder, NEVER)) == [5]


def test_what_is_not_in_the_bucket_is_one_line(run, tiny_words, capsys):
    code, line = run_command(capsys, "status", run)
    assert code == 2 and f"{run} is not a run: it holds no run.json" in line
    words = [*tiny_words, "--dir", run]
    words[words.index("--data.path") + 1] = run.replace("/run", "/text")
    code, line = run_command(capsys, *words)
    assert code == 2 and f"{run.replace('/run', '/text')}: data.path names no such file or folder" in line


def test_a_store_that_goes_silent_ends_a_command_in_one_line(run, bucket_store, capsys, monkeypatch):
    monkeypatch.setenv("CONTEXTURE_BUCKET_SECONDS", "1")
    bucket_store.faults = Faults(silent=True)
    code, line = run_command(capsys, "status", run)
    assert code == 1 and line.startswith(f"BucketError: {run}: the bucket's server does not answer within 1 s")
    assert len(line.splitlines()) == 1


@pytest.mark.long
def test_faults_change_no_step(run, bucket_store, door, tiny_words, tiny_run):
    bucket_store.faults = Faults(refused=0.05, lost=0.02, cut=0.02, slow=0.05, seconds=1)
    finished = door(*tiny_words, "--dir", run)
    assert finished.returncode == 0, finished.stderr
    bucket_store.faults = Faults()
    assert losses(bucket_store, run) == on_disk(tiny_run)


KILLS = 10
"""Of each case below: twenty of a run's one process, and twenty of one of two."""


@pytest.mark.parametrize(("count", "seed"), long((1, 1), (1, 2), (2, 3), (2, 4)))
def test_kills_at_any_moment_change_no_step(run, bucket_store, door, tiny_words, tmp_path, monkeypatch, count, seed):
    """One process, or one of two, is killed again and again at random moments, most of them in saves."""
    monkeypatch.setenv("CONTEXTURE_LEASE_SECONDS", "4")
    rng, words = random.Random(seed), [*tiny_words, "--save.every", "4", "--steps", "120"]

    def started(folder: Path | str) -> list[subprocess.Popen]:
        if count == 1:
            return [door(*words, "--dir", folder, wait=False)]
        port = free_port()
        return [start_process(door, [*words, *SOON], folder, port, number, count) for number in range(count)]

    assert [code for code, _ in finish(started(tmp_path / "disk"))] == [0] * count
    in_saves = 0
    for _ in range(KILLS):
        processes, seen = started(run), bucket_store.written
        # After so many uploads: the start has some, each save tens.
        upto = seen + rng.randrange(10, 120)
        while bucket_store.written < upto and all(each.poll() is None for each in processes):
            time.sleep(0.01)
        rng.choice(processes).send_signal(signal.SIGKILL)
        codes = [code for code, _ in finish(processes)]
        assert -signal.SIGKILL in codes and set(codes) <= {1, -signal.SIGKILL}, codes
        in_saves += len(unfinished(objects(bucket_store, run, "checkpoints/")))
    assert in_saves >= KILLS // 2, in_saves
    finished = finish(started(run))
    assert [code for code, _ in finished] == [0] * count, finished
    assert losses(bucket_store, run) == on_disk(tmp_path / "disk") != []
    stored = objects(bucket_store, run, "checkpoints/")
    assert any(name.startswith("120/") for name in stored) and not unfinished(stored)


def unfinished(names: list[str]) -> set[str]:
    """The steps of which something is stored, and no mark that they are whole."""
    steps = {name.partition("/")[0] for name in names}
    return {step for step in steps if f"{step}/commit_success.txt" not in names}
