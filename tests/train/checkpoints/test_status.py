"""`contexture status`: of a run at any moment, read from the ends of its files."""

import json
import subprocess
import sys
from typing import Any

import pytest

from contexture.cli import evaluation_commands
from contexture.cli import main as cli
from contexture.train.checkpoints import status as module
from contexture.train.checkpoints.status import describe_status, status
from contexture.train.errors import ConfigError
from contexture.train.run.folder import holder_of, lock_run_dir
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import RunRecord, write
from contexture.train.settings.sections import EvaluateConfig
from tests.train.checkpoints.json_checkpoints import write_meta


def _record(step: int, split: str = "train", **figures: float) -> str:
    return json.dumps({"step": step, "split": split, "loss": 9.0 - step / 100, **figures}) + "\n"


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, RunRecord(run=Run(steps=400), tokenizer="a", data="b", total_steps=400))
    return tmp_path


def test_a_run_that_was_stopped(folder):
    lines = [_record(1), _record(100, "dev"), *(_record(n, tokens_per_second=5e3) for n in range(100, 301))]
    (folder / "metrics.jsonl").write_text("".join(lines) + '{"step": 301, "spl')
    (folder / "checkpoints" / "300").mkdir(parents=True)
    now = status(folder)
    assert (now["state"], now["step"], now["steps"], now["process"]) == ("stopped", 300, 400, None)
    assert (now["loss"], now["held_out_loss"], now["held_out_step"], now["checkpoint"]) == (6.0, 8.0, 100, 300)
    assert now["seconds_left"] is None and now["what"] == "bert pretraining"
    assert "stopped, step 300 of 400 (75%)" in describe_status(now)


def test_a_run_whose_last_save_was_killed_is_not_done(folder):
    """metrics.jsonl has the last step, but its checkpoint was not saved: training resumes from step 390."""
    (folder / "metrics.jsonl").write_text(_record(400))
    for name in ("390", "400.orbax-checkpoint-tmp"):
        (folder / "checkpoints" / name).mkdir(parents=True)
    assert (status(folder)["state"], status(folder)["checkpoint"]) == ("stopped", 390)
    (folder / "checkpoints" / "400.orbax-checkpoint-tmp").rename(folder / "checkpoints" / "400")
    assert status(folder)["state"] == "done"


def test_a_run_that_trains_now_is_seen_and_not_disturbed(folder):
    (folder / "metrics.jsonl").write_text(_record(4, seconds_left=61.2, tokens_per_second=1234.5))
    with lock_run_dir(folder) as lock:
        now = status(folder)
        assert now["state"] == "training" and now["process"] == holder_of(folder) and "process " in holder_of(folder)
        assert not lock.closed and now["seconds_left"] == 61.2
        text = describe_status(now)
        assert "1,234 tokens/s, 0:01:01 left" in text and "no checkpoint yet" in text
    assert status(folder)["state"] == "stopped"


def test_looking_does_not_keep_a_run_from_starting(folder):
    """Another process looks all the time; the lock is had all the same."""
    code = (
        "from contexture.train.run.folder import holder_of\nprint(1, flush=True)\n"
        f"while True: holder_of({str(folder)!r})"
    )
    (folder / "lock").touch()
    looking = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert looking.stdout is not None and looking.stdout.readline()
        got = 0
        for _ in range(20):
            try:
                lock_run_dir(folder).close()
                got += 1
            except ConfigError:  # both tries fell on a look
                pass
        assert got > 10
    finally:
        looking.kill()
        looking.communicate()


def test_a_run_without_a_step_and_a_run_that_is_done(folder):
    assert status(folder)["loss"] is None and "step 0 of 400 (0%)" in describe_status(status(folder))
    (folder / "metrics.jsonl").write_text(_record(400))
    (folder / "checkpoints" / "400").mkdir(parents=True)
    assert status(folder)["state"] == "done"


@pytest.mark.parametrize("block", [1, 7, 50, 1 << 16])
def test_records_come_from_the_end_whatever_the_blocks(folder, monkeypatch, block):
    monkeypatch.setattr(module, "_BLOCK", block)
    lines = [_record(n) for n in range(1, 9)]
    (folder / "metrics.jsonl").write_text("".join(lines) + "\ntorn")
    assert [record["step"] for record in module._from_the_end(folder / "metrics.jsonl")] == [*range(8, 0, -1)]


def test_a_run_whose_patience_ended_is_done_and_says_what_was_best(tmp_path):
    """At step 300 three evaluations were no better than that of step 150; before, the run was merely stopped."""
    evaluate = EvaluateConfig(patience=3, metric="f1_macro")
    write(tmp_path, RunRecord(run=Run(steps=400, evaluate=evaluate), tokenizer="a", data="b", total_steps=400))
    (tmp_path / "metrics.jsonl").write_text(_record(300, "dev") + _record(300))
    for step, waited, state in ((250, 2, "stopped"), (300, 3, "done")):
        best = {"metric": "f1_macro", "rank": -0.88, "step": 150, "evals_without_improvement": waited}
        write_meta(tmp_path, step, best=best)
        now = status(tmp_path)
        assert (now["state"], now["stopped_early"]) == (state, state == "done")
        assert (now["metric"], now["best"], now["best_step"]) == ("f1_macro", 0.88, 150)
    assert "done (stopped early), step 300 of 400" in (text := describe_status(now))
    assert "best f1_macro 0.88 at step 150" in text


def test_the_command_tells_of_several_runs(folder, tiny_run, capsys):
    assert cli.main(["status", str(folder), str(tiny_run)]) == 0
    out = capsys.readouterr().out
    assert out.count("bert pretraining") == 2 and "done, step 40 of 40 (100%)" in out
    assert cli.main(["status", str(tiny_run), "--json"]) == 0
    (only,) = json.loads(capsys.readouterr().out)["runs"]
    assert only["step"] == only["checkpoint"] == 40 and only["state"] == "done"
    assert cli.main(["status", str(folder / "nowhere")]) == 2 and "is not a run" in capsys.readouterr().err
    assert cli.main(["status"]) == 2 and "status needs runs" in capsys.readouterr().err


def test_a_folder_of_runs_lists_all_and_no_shared_folder_of_a_grid(tmp_path, capsys, monkeypatch):
    for name in ("grid/lr1-seed0", "grid/lr1-seed1", "deeper/still/one"):
        (tmp_path / name).mkdir(parents=True)
        write(tmp_path / name, RunRecord(run=Run(steps=4), tokenizer="a", data="b", total_steps=4))
    (tmp_path / "grid" / "grid.json").write_text("{}")
    for shared in ("features", "inputs"):
        (tmp_path / "grid" / shared).mkdir()
    below = [str(path) for path in sorted((tmp_path / "grid").glob("*/"))]
    assert len(below) == 4
    assert cli.main(["status", *below, "--json"]) == 0
    out, err = capsys.readouterr()
    runs = [str(tmp_path / "grid" / f"lr1-seed{n}") for n in range(2)]
    assert [each["run"] for each in json.loads(out)["runs"]] == runs
    assert f"leaving out {tmp_path}/grid/features, which holds what the runs of a grid share" in err
    assert cli.main(["status", str(tmp_path), "--json"]) == 0
    assert [each["run"] for each in json.loads(capsys.readouterr().out)["runs"]] == [
        str(tmp_path / "deeper" / "still" / "one"),
        *runs,
    ]
    monkeypatch.setattr(evaluation_commands, "requests_of", lambda folders, options: [].index(folders))
    assert cli.main(["evaluate", *below]) and str(tuple(runs)) in capsys.readouterr().err
    assert cli.main(["compare", *below]) == 0
    (tmp_path / "features").mkdir()
    assert cli.main(["status", str(tmp_path / "features")]) == 2
    assert "is not a run: it holds no run.json" in capsys.readouterr().err


TRAINING: Any = {
    "run": "runs/a", "what": "bert pretraining", "state": "training", "process": "process 7", "step": 1500,
    "steps": 4000, "loss": 2.34567, "held_out_loss": 2.5, "held_out_step": 1000, "tokens_per_second": 12345.6,
    "padding_ratio": None, "seconds_left": 125.0, "seconds_since": 1.0, "stopped_early": False, "metric": "loss",
    "best": 2.25, "best_step": 500, "checkpoint": 1200, "checkpoint_seconds": 61.4,
    "goodput": None,
}  # fmt: skip
FIGURES = "  loss 2.3457, held out 2.5000 at step 1,000"


@pytest.mark.parametrize(
    ("more", "lines"),
    [
        ({}, ["  training, step 1,500 of 4,000 (38%); process 7",
              f"{FIGURES}, best loss 2.25 at step 500, 12,346 tokens/s, 0:02:05 left",
              "  last checkpoint: step 1,200, 0:01:01 ago"]),
        ({"state": "stopped", "process": None, "seconds_left": None, "best_step": 1000, "stopped_early": True},
         ["  stopped (stopped early), step 1,500 of 4,000 (38%)", FIGURES,
          "  last checkpoint: step 1,200, 0:01:01 ago"]),
        ({"process": None, "steps": None, "loss": None, "held_out_loss": None, "best": None, "seconds_left": None,
          "checkpoint": None, "checkpoint_seconds": None}, ["  training, step 1,500", "  no checkpoint yet"]),
        ({"padding_ratio": 1.0849, "seconds_left": None},
         ["  training, step 1,500 of 4,000 (38%); process 7",
          f"{FIGURES}, best loss 2.25 at step 500, 12,346 tokens/s, padding ratio 1.08",
          "  last checkpoint: step 1,200, 0:01:01 ago"]),
        ({"tokens_per_second": None, "loss": None, "held_out_loss": None, "best": None, "checkpoint_seconds": None},
         ["  training, step 1,500 of 4,000 (38%); process 7", "  0:02:05 left"]),
    ],
)  # fmt: skip
def test_people_see_what_is_known_of_a_run(more, lines):
    now: Any = {**TRAINING, **more}
    assert describe_status(now).splitlines() == ["runs/a: bert pretraining", *lines]
