"""A signal is answered within a batch of an evaluation too, and the run that is resumed is the same run."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from contexture.data.pretraining.sentence_pairs import HeldOutPairs, SentencePairs
from contexture.train import session
from contexture.train import step as stepping
from contexture.train.checkpoints.late_evaluation import with_evaluation, write
from contexture.train.checkpoints.meta import best_step, rank_of, read_meta
from contexture.train.run.folder import steps
from contexture.train.run.report import read_metrics
from tests.helpers.commands import done, run_command
from tests.helpers.long import long

pytestmark = pytest.mark.usefixtures("one_device")
SPEED = ("tokens_per_second", "seconds_left", "mfu", "data_wait", "padding_ratio")


def figures(folder: Path) -> list[dict[str, Any]]:
    records = [r for r in read_metrics(folder / "metrics.jsonl") if r["split"] != "goodput"]
    return [{k: v for k, v in r.items() if k not in SPEED} for r in records]


def ranks(folder: Path) -> dict[int, float | None]:
    directory = folder / "checkpoints"
    return {step: rank_of(read_meta(directory / str(step)), "loss") for step in steps(directory)}


@pytest.fixture(scope="module")
def words(tiny_words: list[str]) -> list[str]:
    """12 steps with an evaluation of several batches every 3, at which there is no checkpoint but at 6 and 12."""
    return [*tiny_words, "--steps", "12", "--evaluate.every", "3", "--evaluate.batch", "4", "--save.every", "6"]


@pytest.fixture(scope="module")
def whole(one_device, words: list[str], tmp_path_factory) -> Path:
    """That run without interruption, in this process: another has other programs, and other last digits."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    done(*words, "--dir", folder)
    return folder


def terminate_in(patch: pytest.MonkeyPatch, evaluation: int, batch: int) -> list[int]:
    """SIGTERM at a batch of the n-th evaluation → the batches that are evaluated from then on."""
    count, after = 0, []
    iterate = stepping.iterate

    class Steps:
        def __init__(self, *given: Any) -> None:
            nonlocal count
            self.number, self.opened = count, iterate(*given)
            count += 1

        def __enter__(self):
            for number, local in self.opened.__enter__():
                if (self.number, number) == (evaluation, batch):
                    os.kill(os.getpid(), signal.SIGTERM)
                yield number, local
                if (self.number, number) >= (evaluation, batch):
                    after.append(number)

        def __exit__(self, *error: Any) -> None:
            self.opened.__exit__(*error)

    patch.setattr(stepping, "iterate", Steps)
    return after


@pytest.mark.parametrize(
    ("evaluation", "step"),
    [*long((0, 3)), (1, 6), *long((3, 12))],
)
def test_a_run_stopped_in_an_evaluation_is_the_same_run(words, whole, tmp_path, capsys, evaluation, step):
    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        after = terminate_in(patch, evaluation, 1)
        code, err = run_command(capsys, *words, "--dir", folder)
    assert code == 75 and f"saved step {step} in" in err and after == [], (err, after)
    assert [r for r in figures(folder) if (r["step"], r["split"]) == (step, "dev")] == []
    code, err = run_command(capsys, *words, "--dir", folder)
    assert code == 0 and f"resuming from step {step}" in err, err
    assert figures(folder) == figures(whole)
    kept, expected = ranks(folder), ranks(whole)
    assert {step: kept[step] for step in expected} == expected and best_step(kept) == best_step(expected)
    assert "unevaluated" not in read_meta(folder / "checkpoints" / "12")
    measured = {r["step"]: r["loss"] for r in figures(folder) if r["split"] == "dev"}
    for each in steps(folder / "checkpoints"):
        meta = read_meta(folder / "checkpoints" / str(each))
        assert meta["held_out_loss"] == measured[each] and meta["lines_read"] == 16 * each


@pytest.mark.long
def test_a_run_killed_while_it_makes_up_for_an_evaluation_is_the_same_run(words, whole, tmp_path, capsys):
    """After the record was written, before the checkpoint knows: that checkpoint is whole, no record stands twice."""
    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        terminate_in(patch, 1, 1)
        assert run_command(capsys, *words, "--dir", folder)[0] == 75
    before = read_meta(folder / "checkpoints" / "6")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("contexture.train.checkpoints.manager.write", _no_disk)
        code, err = run_command(capsys, *words, "--dir", folder)
    assert code == 1 and read_meta(folder / "checkpoints" / "6") == before and before["unevaluated"], err
    assert [(r["step"], r["split"]) for r in figures(folder)].count((6, "dev")) == 1
    code, err = run_command(capsys, *words, "--dir", folder)
    assert code == 0 and "resuming from step 6" in err, err
    assert figures(folder) == figures(whole) and ranks(folder) == ranks(whole)


def _no_disk(*_: Any) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("harm", [b"", b"{", b"[1]", b'{"self": 1}', b"\xff"])
def test_a_late_evaluation_that_is_damaged_is_none(tmp_path, harm):
    checkpoint, meta, digest = tmp_path / "20", {"step": 20, "unevaluated": True}, {"meta": "x", "self": "y"}
    (checkpoint / "digest").mkdir(parents=True)
    (checkpoint / "digest" / "metadata").write_text(json.dumps(digest))
    assert with_evaluation(checkpoint, meta, digest) == meta
    write(checkpoint, {"rank": 0.5})
    assert with_evaluation(checkpoint, meta, digest) == {"step": 20, "rank": 0.5}
    assert with_evaluation(checkpoint, meta, {**digest, "self": "of another"}) == meta
    (checkpoint / "evaluated.json").write_bytes(harm)
    assert with_evaluation(checkpoint, meta, digest) == meta


@pytest.mark.parametrize("place", ["pass", "baseline"])
def test_a_signal_is_answered_while_text_is_counted(words, tmp_path, capsys, monkeypatch, place):
    kind, name = {"pass": (SentencePairs, "plan"), "baseline": (HeldOutPairs, "read")}[place]
    work, calls = getattr(kind, name), []

    def counted(self, *given: Any) -> Any:
        calls.append(None)
        if len(calls) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return work(self, *given)

    monkeypatch.setattr(kind, name, counted)
    code, err = run_command(capsys, *words, "--dir", tmp_path / "run")
    assert code == 75 and "stopped before training resumed" in err and len(calls) == 1, (err, len(calls))


@pytest.mark.long
def test_a_batch_that_grows_is_evaluated_as_one_that_does_not(words, tmp_path, capsys):
    """The ramp belongs to training: held-out text is read in batches of any size."""
    ramp = ["--data.ramp-from", "8", "--data.ramp-steps", "6", "--steps", "10", "--evaluate.batch", "12"]
    code, err = run_command(capsys, *words, *ramp, "--dir", tmp_path / "run")
    assert code == 0, err
    held_out = [r for r in figures(tmp_path / "run") if r["split"] == "dev"]
    code, err = run_command(capsys, "evaluate", tmp_path / "run", "--batch", "20")
    assert code == 0 and [r["step"] for r in held_out] == [3, 6, 9, 10], err


@pytest.mark.long
def test_a_run_that_is_moved_while_it_trains_is_not_split(words, tmp_path, capsys, monkeypatch):
    """The next checkpoint is refused, nothing appears at the old place, and the moved run resumes."""
    folder, moved = tmp_path / "run", tmp_path / "moved"
    inner, calls = session.evaluate, []

    def move(*given: Any, **more: Any) -> Any:
        calls.append(None)
        if len(calls) == 3:  # at step 9; the checkpoint of step 6 is written beside the training
            while not (folder / "checkpoints" / "6").exists():
                time.sleep(0.01)
            shutil.move(folder, moved)
        return inner(*given, **more)

    monkeypatch.setattr("contexture.train.session.evaluate", move)
    code, err = run_command(capsys, *words, "--dir", folder)
    assert code == 1 and "was moved or removed while it trains, and its newest step is not saved" in err, err
    assert not folder.exists()
    monkeypatch.undo()
    code, err = run_command(capsys, *words, "--dir", moved)
    assert code == 0 and "resuming from step 6" in err, err
