"""What a run is: its length in steps, what may change when it goes on, and how a process says that it was stopped."""

import contextlib
import dataclasses
import json
import os
import re
import signal
from pathlib import Path

import pytest

from contexture.cli import main as cli
from contexture.cli import training_commands
from contexture.configs import recipe, task
from contexture.data.errors import DataError
from contexture.train.checkpoints.meta import read_meta
from contexture.train.errors import CheckpointError, ConfigError, Diverged
from contexture.train.run.folder import steps
from contexture.train.run.signals import Interrupted, Signals
from contexture.train.settings.run import Run, fields
from contexture.train.settings.run_file import (
    fingerprint,
    from_json,
    may_change,
    read,
)
from contexture.train.settings.schedule import resolve_schedule
from contexture.train.settings.sections import EvaluateConfig, InitConfig, OptimConfig


def test_epochs_and_warm_up_are_counted_as_the_original_counts():
    """steps = int(examples / batch · epochs), warm-up = int(steps · fraction)."""
    run = resolve_schedule(task("mrpc"), 3668)
    assert (run.steps, run.epochs, run.optim.warmup, run.optim.warmup_fraction) == (573, 0.0, 57, 0.0)
    assert resolve_schedule(task("mrpc"), 3).steps == 1
    given = resolve_schedule(dataclasses.replace(task("mrpc"), steps=7, evaluate=EvaluateConfig(every=2)), 3668)
    assert (given.steps, given.optim.warmup, given.evaluate.every) == (7, 0, 2)


@pytest.mark.parametrize(
    ("epochs", "steps", "every"), [(5.0, 0, 57), (20.0, 0, 115), (0.0, 1009, 100), (0.0, 3, 1), (0.5, 0, 5)]
)
def test_a_run_is_evaluated_ten_times_or_after_each_of_more_epochs(epochs, steps, every):
    run = dataclasses.replace(task("mrpc"), epochs=epochs, steps=steps)
    resolved = resolve_schedule(run, 3668)  # 115 batches of 32
    assert resolved.evaluate.every == every and resolved.steps // every >= min(10, resolved.steps)


def test_gpt_1s_warm_up_stays_a_share_of_the_steps():
    optim = OptimConfig(name="gpt1", schedule="gpt1", warmup=0, warmup_fraction=0.002)
    run = resolve_schedule(dataclasses.replace(task("classify"), optim=optim), 1497)
    assert run.steps == 140 and run.optim.warmup_fraction == 0.002


def test_a_warm_up_is_shorter_than_its_run():
    short = dataclasses.replace(recipe("bert.base"), steps=0, epochs=1.0)
    assert resolve_schedule(short, 2560).optim.warmup == 1 == resolve_schedule(short, 2560).steps // 10


@pytest.mark.parametrize(
    ("init", "optim", "line"),
    [
        ({"redraw_layers": -1}, {}, "init.redraw-layers=-1 is not at least 0"),
        (
            {"redraw_layers": 1, "random": True},
            {},
            "init.redraw-layers has no meaning where init.random draws all layers",
        ),
        (
            {"redraw_layers": 1, "run": ""},
            {},
            "init.redraw-layers has no meaning without init.run, whose layers it draws",
        ),
        ({"redraw_layers": 13}, {}, "init.redraw-layers=13 is more than the model's 12 layers"),
        ({"redraw_layers": 2}, {"lora_rank": 4}, "draws layers that optim.lora-rank does not train; leave one out"),
        ({"redraw_layers": 2}, {"frozen": ("backbone",)}, "draws layers that optim.frozen=backbone does not train"),
        ({"redraw_layers": 2}, {"frozen_layers": 11}, "draws layers that optim.frozen-layers=11 does not train"),
        ({"redraw_layers": 2}, {"frozen_layers": 10}, ""),
        ({"redraw_layers": 12}, {"layer_decay": 0.9}, ""),
    ],
    ids=str,
)
def test_layers_are_redrawn_only_where_they_are_taken_over_and_trained(init, optim, line):
    with pytest.raises(ValueError, match=re.escape(line)) if line else contextlib.nullcontext():
        Run(init=InitConfig(**{"run": "runs/a", **init}), optim=OptimConfig(**optim))


GOLDEN = Path(__file__).parents[2] / "golden"
MAY_CHANGE = {
    "mesh.data", "mesh.fsdp", "mesh.context", "mesh.tensor", "mesh.distributed", "mesh.startup_minutes",
    "mesh.peer_minutes", "mesh.stall_minutes", "mesh.dcn_data", "log.profile",
    "save.every", "save.max_to_keep", "save.keep_every", "log.every", "log.to", "log.tensorboard", "evaluate.every",
    "evaluate.batch", "evaluate.metric", "evaluate.patience", "steps", "epochs", "dir", "data.path", "data.dev",
    "data.features", "data.cache_gb",
    "model.attention", "model.remat", "model.unroll", "mesh.compiler_options",
    "data.tokenizer", "init.run", "task.train", "task.dev", "task.test", "log.details",
}  # fmt: skip


def test_what_may_change_is_where_things_lie_how_long_and_what_is_told():
    every = fields(Run())
    assert {name for name in every if may_change(name)} == MAY_CHANGE


@pytest.mark.parametrize("name", ["seed", "data.batch", "data.length", "optim.peak_lr", "optim.clip", "model.dropout"])
def test_another_number_is_another_run(name):
    """What a field's default is does not count, so that a field added later changes no identity."""
    run = dataclasses.replace(Run(), dir="a")
    *section, field = name.split(".")
    inner = getattr(run, section[0]) if section else run
    changed = dataclasses.replace(inner, **{field: 0.2 if field == "dropout" else type(getattr(inner, field))(24)})
    other = dataclasses.replace(run, **{section[0]: changed}) if section else changed
    assert fingerprint(run, "t", "d") != fingerprint(other, "t", "d")
    assert fingerprint(run, "t", "d") == fingerprint(dataclasses.replace(run, dir="b", steps=20_000), "t", "d")


@pytest.mark.parametrize("name", ["bert", "bert_classify", "gpt", "elmo", "elmo_tag"])
def test_a_run_keeps_its_identity(name):
    """That which its checkpoint was written with: fields at their default do not count."""
    folder = GOLDEN / name
    record, asked = read(folder), from_json(json.loads((folder / "run.json").read_text())["config"], "run.json")
    (step,) = steps(folder / "checkpoints")
    saved = read_meta(folder / "checkpoints" / str(step))["identity"]
    assert fingerprint(asked, record.tokenizer, record.data) == saved


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (DataError("x"), 2),
        (CheckpointError("x"), 1),
        (Diverged("x"), 1),
        (OSError(28, "No space left"), 1),
        (RuntimeError("x"), 1),
        (Interrupted(signal.SIGTERM, "x"), 75),
        (Interrupted(signal.SIGINT, "x"), 130),
        (KeyboardInterrupt(), 130),
        (SystemExit(0), 0),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, BaseException) else str(x),
)
def test_an_exit_code_says_whose_fault_it_was(error, code, monkeypatch, capsys):
    """0 done, 1 failed, 2 the user's words or files, 75 saved on SIGTERM, 130 saved on Ctrl-C; one line each."""

    def fails(words):
        raise error

    monkeypatch.setattr(training_commands, "recipes_command", fails)
    assert cli.main(["recipes"]) == code
    captured = capsys.readouterr()
    assert not captured.out and len(captured.err.splitlines()) == (code != 0) and "Traceback" not in captured.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_noted_and_told_between_two_steps(number):
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    signals = Signals("all is saved")
    try:
        assert signals.stop() == 0
        signals.check()
        os.kill(os.getpid(), number)
        assert signals.received == number == signals.stop()
        with pytest.raises(Interrupted, match="all is saved") as stopped:
            signals.check()
        assert stopped.value.code == {signal.SIGTERM: 75, signal.SIGINT: 130}[number]
    finally:
        signals.close()
    assert {n: signal.getsignal(n) for n in before} == before
