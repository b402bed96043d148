"""What the start and the end of a run report."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contexture.cli.parse import parse
from contexture.data.config import TaskConfig
from contexture.models.config import BertConfig
from contexture.train.metric_directions import Best
from contexture.train.run.folder import as_option
from contexture.train.run.goodput import Goodput
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import difference
from contexture.train.settings.sections import OptimConfig
from contexture.train.summary import _rate_note, log_end
from tests.helpers.logs import logged


@pytest.mark.parametrize("kept", [True, False])
def test_a_best_step_whose_checkpoint_was_not_saved_is_reported_as_such(tmp_path: Path, kept: bool):
    lines = [{"step": step, "split": "dev", "loss": loss} for step, loss in ((2, 0.5), (4, 0.7))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if kept:
        (tmp_path / "checkpoints" / "2").mkdir(parents=True)
    parts: Any = SimpleNamespace(run=Run(steps=4))
    with logged() as messages:
        log_end(parts, tmp_path, 0, 4, Goodput(), Best(rank=0.5, step=2))
    (line,) = (message for message in messages if " of 2 evaluations: at step 2" in message)
    assert ("there is no checkpoint of it: --evaluate.patience saves at each" in line) != kept


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ([{"accuracy": 0.5, "majority_accuracy": 0.5}, {"accuracy": 0.3, "majority_accuracy": 0.5}], "commonest label"),
        ([{"accuracy": 0.6, "majority_accuracy": 0.5}, {"accuracy": 0.3, "majority_accuracy": 0.5}], ""),
        ([{"mse": 2.0, "mean_mse": 1.5}], "always the mean (mse 1.5)"),
        ([{"mse": 1.0, "mean_mse": 1.5}], ""),
        ([{"exact_match": 0.4, "majority_exact_match": 0.5}], "never an answer"),
        ([{"accuracy": None, "majority_accuracy": 0.5}, {"loss": 1.0}], ""),
    ],
)
def test_a_run_that_is_no_better_than_one_answer_to_all_says_so(tmp_path: Path, figures: list[dict], said: str):
    lines = [{"step": step, "split": "dev", "loss": 1.0, **each} for step, each in enumerate(figures, 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    parts: Any = SimpleNamespace(run=Run(steps=4))
    with logged() as messages:
        log_end(parts, tmp_path, 0, 4, Goodput(), Best())
    warned = [message for message in messages if "no evaluation was better than" in message]
    assert len(warned) == bool(said) and (not said or (said in warned[0] and "--optim.peak-lr than" in warned[0]))


@pytest.mark.parametrize(
    "words",
    [
        *(["--init.random"], ["--data.no-lowercase"], ["--data.dev", "a b", "c"], ["--optim.peak-lr", "0.0003"]),
        *(["--dir", "here"], ["--optim.frozen-layers", "2"], ["--data.vocabulary", "byte-bpe"]),
    ],
)
def test_a_setting_that_differs_is_reported_as_it_is_given(words: list[str]):
    given, recipe = parse(Run, words, "pretrain", Run()), Run()
    ((name, (value, _)),) = difference(given, recipe).items()
    assert as_option(name, value) == " ".join(words)


@pytest.mark.parametrize(
    ("kind", "hidden", "given", "said"),
    [
        ("classify", 64, None, True),
        ("classify", 768, None, False),
        ("classify", 64, 2e-4, False),
        ("off", 64, None, False),
    ],
)
def test_a_rate_that_was_raised_for_a_small_model_is_said(kind, hidden, given, said):
    recipe = Run(task=TaskConfig(kind=kind), model=BertConfig(hidden=hidden, heads=4))
    run = recipe if given is None else dataclasses.replace(recipe, optim=OptimConfig(peak_lr=given))
    assert recipe.optim.peak_lr != 2e-4
    assert _rate_note(run, recipe).startswith(f"learning rate {run.optim.peak_lr:g}: the papers' for 768") == said
