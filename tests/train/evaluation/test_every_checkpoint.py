"""`evaluate --step all`: every checkpoint once, in order; with --watch as another process writes them."""

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

import contexture
from contexture.cli import main as cli
from contexture.data.bucketing import MAX_LENGTHS
from contexture.data.cancel import NEVER
from contexture.train.checkpoints import manager, transfer
from contexture.train.evaluation import evaluate as module
from contexture.train.evaluation import steps as watch
from contexture.train.loggers.tensorboard import Events
from contexture.train.run.folder import lock_folder
from tests.helpers.commands import json_of, run_command
from tests.helpers.logs import logged

pytestmark = pytest.mark.usefixtures("one_device")


def steps_of(result: dict) -> list[int]:
    return [row["step"] for row in result["checkpoints"]]


@contextlib.contextmanager
def evaluated_steps() -> Iterator[list[int]]:
    """The steps whose parameters are loaded while this lasts."""
    loaded: list[int] = []
    load = module.load_parameters

    def counted(folder, run, labels, mesh, step, **more):
        loaded.append(step)
        return load(folder, run, labels, mesh, step, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "load_parameters", counted)
        yield loaded


@pytest.fixture
def run(task_run, tmp_path) -> Path:
    """A fine-tuned run with checkpoints of step 50 and 60."""
    return shutil.copytree(task_run("classify"), tmp_path / "run", ignore=shutil.ignore_patterns("evaluations"))


def curve(folder: Path) -> dict[int, dict[str, float]]:
    """{step: {tag: value}} of the event files as TensorBoard shows them: a new file hides later steps of older ones."""
    points: dict[int, dict[str, float]] = {}
    for file in sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime_ns):
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event, data = Event.FromString(data[12 : 12 + length]), data[16 + length :]
            if event.HasField("session_log"):
                points = {step: tags for step, tags in points.items() if step < event.step}
            for value in event.summary.value:
                points.setdefault(event.step, {})[value.tag] = value.simple_value
    return points


def test_every_checkpoint_has_a_row_and_is_evaluated_once(run):
    with evaluated_steps() as loaded:
        first = contexture.evaluate(run, step="all")
        again = contexture.evaluate(run, step="all")
        assert loaded == [50, 60] == steps_of(first) and again == first
        assert Path(first["results"]) == run / "evaluations" / "checkpoints.jsonl"
        rows = [json.loads(line) for line in Path(first["results"]).read_text().splitlines()]
        assert all(row["of"].keys() == {"data", "batch", "threshold", "version"} for row in rows)
        # Other data, another batch, other predictions and another checkpoint have no result yet.
        Path(first["checkpoints"][1]["predictions"]).write_text("{}\n")
        assert contexture.evaluate(run, step="all") == first and loaded[2:] == [60]
        contexture.evaluate(run, step="all", batch=7)
        contexture.evaluate(run, step="all", split="train")
        assert loaded[3:] == [50, 60, 50, 60]
        # The last digits of a batch of 7 may be others, and its predictions now stand in the file: written once more.
        contexture.evaluate(run, step="all")
        shutil.rmtree(run / "checkpoints" / "50")
        shutil.copytree(run / "checkpoints" / "60", run / "checkpoints" / "50")
        with pytest.raises(contexture.CheckpointError, match="is of step 60"):
            contexture.evaluate(run, step=50)
        with logged() as messages:
            assert steps_of(contexture.evaluate(run, step="all")) == [60]
        assert [m for m in messages if m.startswith("warning: checkpoint of step 50: item meta")]
        assert messages[-1] == f"1 of 1 results were in {first['results']} already"


def test_the_table_stands_on_stderr_and_stdout_has_one_object(run, capsys):
    assert cli.main(["evaluate", str(run), "--step", "all", "--json"]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    table = [line.split() for line in err.splitlines() if re.match(r"step  |\d", line)]
    assert table[0][:3] == ["step", "loss", "accuracy"] and [row[0] for row in table[1:]] == ["50", "60"]
    for row, one in zip(table[1:], result["checkpoints"], strict=True):
        assert float(row[2]) == pytest.approx(one["metrics"]["accuracy"], abs=1e-3)
    assert cli.main(["evaluate", str(run), "--step", "all"]) == 0
    assert "checkpoints.jsonl" in capsys.readouterr().out


def test_a_torn_line_is_left_out_and_those_behind_it_count(run):
    first = contexture.evaluate(run, step="all")
    lines = Path(first["results"]).read_text().splitlines()
    Path(first["results"]).write_text(f"{lines[1]}\nnonsense\n[]\n{lines[0][:100]}")
    with evaluated_steps() as loaded:
        assert contexture.evaluate(run, step="all") == first and loaded == [50]
        assert contexture.evaluate(run, step="all") == first and loaded == [50]


def test_the_results_of_a_checkpoint_outlive_it(run):
    first = contexture.evaluate(run, step="all")
    shutil.rmtree(run / "checkpoints" / "50")
    with evaluated_steps() as loaded:
        assert contexture.evaluate(run, step="all") == first and not loaded
    # Also where the run has moved.
    moved = contexture.evaluate(shutil.move(run, run.with_name("moved")), step="all")
    assert [row["metrics"] for row in moved["checkpoints"]] == [row["metrics"] for row in first["checkpoints"]]


def test_the_curve_holds_each_step_once_beside_the_trainings(run):
    first = contexture.evaluate(run, step="all")
    expected = {row["step"]: row["metrics"]["loss"] for row in first["checkpoints"]}
    folder = run / "tensorboard" / "evaluated-dev"
    assert {step: tags["dev/loss"] for step, tags in curve(folder).items()} == pytest.approx(expected)
    # The step before the last is evaluated again: the new file shows it, and what comes behind it, which it hides.
    Path(first["checkpoints"][0]["predictions"]).unlink()
    contexture.evaluate(run, step="all")
    assert {step: tags["dev/loss"] for step, tags in curve(folder).items()} == pytest.approx(expected)
    files = {file: file.read_bytes() for file in folder.iterdir()}
    contexture.evaluate(run, step="all")
    assert {file: file.read_bytes() for file in folder.iterdir()} == files


def test_a_curve_that_cannot_be_written_is_one_line(run):
    shutil.rmtree(run / "tensorboard", ignore_errors=True)
    (run / "tensorboard").write_text("")
    with logged() as messages:
        assert steps_of(contexture.evaluate(run, step="all")) == [50, 60]
    assert len([m for m in messages if m.startswith("warning: no curve is written to")]) == 1


@pytest.mark.usefixtures("own_programs")
def test_nothing_is_compiled_or_encoded_twice(run, task_files, caplog, monkeypatch):
    from contexture.train.evaluation import evaluate

    encoded = []
    encode = evaluate.encode
    monkeypatch.setattr(evaluate, "encode", lambda *words: encoded.append(words) or encode(*words))
    monkeypatch.setattr(logging.getLogger("jax"), "propagate", True)
    with jax.log_compiles(), caplog.at_level(logging.WARNING, "jax"):
        result = contexture.evaluate(run, step="all", dev=str(task_files / "classify.dev.tsv"))
    compiled = Counter(m for m in caplog.messages if m.startswith("Compiling jit(step)"))
    assert steps_of(result) == [50, 60] and len(encoded) == 1
    # A program for each length of batches, which all checkpoints share.
    assert set(compiled.values()) == {1} and len(compiled) <= MAX_LENGTHS, caplog.messages


@pytest.fixture
def training(run, monkeypatch) -> Iterator[Callable[[Callable[[Callable[[int], None]], None]], threading.Thread]]:
    """Plays a training: `training(script)` runs script(appear) in a thread with the run's lock held, whose checkpoints
    appear at its word alone."""
    monkeypatch.setattr(watch, "INTERVAL", 0.05)
    monkeypatch.setattr(watch, "_GLANCE", 0.01)
    hidden = run / "hidden"
    (run / "checkpoints").rename(hidden)
    (run / "checkpoints").mkdir()
    threads: list[threading.Thread] = []

    def start(script: Callable[[Callable[[int], None]], None]) -> threading.Thread:
        lock = lock_folder(run)

        def play() -> None:
            with lock:
                script(lambda step: os.rename(hidden / str(step), run / "checkpoints" / str(step)))

        threads.append(threading.Thread(target=play))
        threads[0].start()
        return threads[0]

    yield start
    for thread in threads:
        thread.join()


def wait_for_rows(run: Path, count: int) -> None:
    file, deadline = run / "evaluations" / "checkpoints.jsonl", time.monotonic() + 120
    while time.monotonic() < deadline:
        if file.exists() and len(file.read_bytes().splitlines()) >= count:
            return
        time.sleep(0.02)
    raise AssertionError(f"{file} has no {count} lines")


def test_a_training_is_followed_to_its_end(run, training):
    def script(appear: Callable[[int], None]) -> None:
        time.sleep(0.3)
        (run / "checkpoints" / "55.orbax-checkpoint-tmp").mkdir()  # half written: it is no checkpoint yet
        appear(50)
        wait_for_rows(run, 1)
        (run / "checkpoints" / "57").mkdir()  # damaged
        appear(60)

    training(script)
    with logged() as messages:
        result = contexture.evaluate(run, watch=True)
    assert steps_of(result) == [50, 60]
    assert [m for m in messages if "step 57" in m] == [
        "warning: checkpoint of step 57: item digest: metadata is missing"
    ]
    assert [m.partition(":")[0] for m in messages if m.startswith("step ")] == ["step 50", "step 60"]


@pytest.mark.parametrize("when", ["before", "while"])
def test_a_checkpoint_that_retention_removes_is_one_line(run, monkeypatch, when):
    owner, name = (transfer, "find_steps") if when == "before" else (manager, "_read_arrays")
    work = getattr(owner, name)

    def removed(*words):
        shutil.rmtree(run / "checkpoints" / "50", ignore_errors=True)
        return work(*words)

    monkeypatch.setattr(owner, name, removed)
    monkeypatch.setattr(watch, "find_steps", lambda *_: [60, 50])
    with logged() as messages:
        assert steps_of(contexture.evaluate(run, step="all")) == [60]
    assert [m for m in messages if "step 50" in m] == [f"warning: checkpoint of step 50: removed {when} it was read"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_ends_a_watch_and_the_next_start_goes_on(run, training, capsys, monkeypatch, number, code):
    ended = threading.Event()
    wait_for_first = module.wait_for_first

    def script(appear: Callable[[int], None]) -> None:
        appear(50)
        wait_for_rows(run, 1)
        os.kill(os.getpid(), number)
        ended.wait()
        appear(60)

    training(script)
    got, err = run_command(capsys, "evaluate", run, "--step", "all", "--watch")
    assert got == code and "stopped; the same command evaluates the checkpoints that are missing" in err
    assert "Traceback" not in err
    monkeypatch.setattr(module, "wait_for_first", lambda *words: (wait_for_first(*words), ended.set())[0])
    with evaluated_steps() as loaded:
        assert steps_of(json_of("evaluate", run, "--step", "all", "--watch")) == [50, 60]
    assert loaded == [60]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--step", "7"], "holds no checkpoint of step 7; those there are of step 50, 60"),
        (["--step", "al"], "--step al: give the numbers of steps, `best`, or `all`"),
        (["--watch"], "--watch follows a training, and none goes on in RUN; leave --watch out"),
        (["--watch", "--step", "50"], "watch evaluates every checkpoint; give --step all, not 50"),
        (["--watch", "--mesh.distributed"], "watch is for one process; leave --mesh.distributed out"),
        (["--step", "all", "--to", "RUN/run.json"], "run.json cannot be a folder, a file is in the way"),
    ],
)
def test_a_mistake_is_one_line(run, capsys, words, line):
    code, err = run_command(capsys, "evaluate", run, *(word.replace("RUN", str(run)) for word in words))
    assert code == 2 and line.replace("RUN", str(run)) in err.splitlines()[-1] and "Traceback" not in err


def test_a_training_that_ends_without_a_checkpoint_is_one_line(run, training):
    training(lambda appear: time.sleep(0.2))
    with pytest.raises(contexture.ConfigError, match="has ended without a checkpoint; start it again"):
        contexture.evaluate(run, watch=True)


def test_held_out_text_is_evaluated_at_every_checkpoint(tiny_run, tmp_path):
    result = contexture.evaluate(tiny_run, step="all", to=str(tmp_path))
    recorded = [json.loads(line) for line in (tiny_run / "metrics.jsonl").read_text().splitlines()]
    held = {record["step"]: record["loss"] for record in recorded if record["split"] == "dev"}
    assert steps_of(result) == [30, 40] and (tmp_path / "checkpoints.jsonl").is_file()
    both = {row["step"]: row["metrics"]["loss"] for row in result["checkpoints"] if row["step"] in held}
    assert both == pytest.approx({step: held[step] for step in both}, abs=1e-5) and 40 in both


def test_results_of_removed_checkpoints_stand_in_the_order_of_their_steps():
    class Stored:
        def removed_steps(self) -> set[int]:
            return {50, 10, 30}

    given: Any = Stored()
    assert [*module._Evaluation._with_removed([20, 40], given)] == [10, 20, 30, 40, 50]
    assert [*module._Evaluation._with_removed([None], given)] == [None, 10, 30, 50]
    assert [*module._Evaluation._with_removed([20, 40], None)] == [20, 40]


def test_the_event_file_of_a_resumed_run_hides_later_steps_before_it(tmp_path: Path):
    for begins, ends in ((0, 60), (20, 50)):
        events = Events(tmp_path, begins)
        for step in range(begins + 1, ends + 1):
            events.add(step, "train", {"loss": float(begins)})
        events.close()
        newest = max(tmp_path.iterdir(), key=lambda file: int(file.suffix[1:]))
        os.utime(newest, (begins, begins))
    shown = curve(tmp_path)
    assert {step: tags["train/loss"] for step, tags in shown.items()} == {
        step: 0.0 if step <= 20 else 20.0 for step in range(1, 51)
    }


def test_an_evaluation_that_waits_looks_again_after_a_second(monkeypatch):
    naps: list[float] = []
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: sum(naps), sleep=naps.append))
    watch._wait(NEVER)
    assert sum(naps) == pytest.approx(1.0, abs=0.11) and max(naps) <= 0.1
