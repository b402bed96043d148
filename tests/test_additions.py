"""What CONTRIBUTING says to add is enough: a tiny pooling, optimizer, task and tracker of our own, each by its row."""

import dataclasses
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any, get_args, get_type_hints

import jax
import numpy as np
import optax
import pytest

import contexture
from contexture.analysis import pooling
from contexture.analysis.probing import targets
from contexture.analysis.probing.target_types import Sentence, Target
from contexture.analysis.zeroshot import tasks as zero_shot
from contexture.cli.inspection import zeroshot as command
from contexture.configs.finetuning import finetune_run
from contexture.data import task_kinds
from contexture.models import families
from contexture.requests import ZeroshotRequest
from contexture.train import metric_directions, objectives
from contexture.train.evaluation import predictions
from contexture.train.loggers import trackers
from contexture.train.loop import train
from contexture.train.optim import optimizers
from contexture.train.run.signals import Signals
from contexture.train.settings.run_file import read
from contexture.train.settings.sections import LogConfig, OptimConfig
from tests.conftest import ROOT
from tests.helpers.parity_rule import assert_close


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        (get_args(pooling.SentencePool), pooling.POOLINGS),
        (get_args(get_type_hints(OptimConfig)["name"]), optimizers.OPTIMIZERS),
        (get_args(zero_shot.Task), zero_shot.ZERO_SHOT),
        (get_args(task_kinds.Kind), task_kinds.KINDS),
        (get_args(task_kinds.Kind), families.HEADS),
        (get_args(task_kinds.Kind), predictions.COLLECTORS),
        (
            get_args(get_args(get_type_hints(LogConfig)["to"])[0]),
            {file.stem.removesuffix("_tracker") for file in (ROOT / "train" / "loggers").glob("*_tracker.py")},
        ),
    ],
)
def test_the_names_of_an_option_are_the_rows_there_are(names, rows):
    assert len(names) == len(rows) >= 3 and set(names) == set(rows)


def test_a_pooling_is_a_row(monkeypatch, tiny_run):
    def largest(states_NBLD: jax.Array, units_BL: jax.Array, words_BL: jax.Array) -> jax.Array:
        return jax.numpy.where(words_BL[None, :, :, None], states_NBLD, -np.inf).max(2)

    monkeypatch.setitem(pooling.POOLINGS, "max", pooling.Pooling(largest))
    model = contexture.open(tiny_run)
    texts: Any = ["Anna met the cat.", "dog"]
    name: Any = "max"
    tokens = model.embed(texts, of="tokens")
    expected = np.stack([vectors[1:-1].max(0) for vectors in tokens])  # without [CLS] and [SEP]
    assert_close(model.embed(texts, pool=name), expected, 1e-6)


def test_an_optimizer_is_a_row(monkeypatch):
    """The sign of the gradient, with the weight decay that is added behind any optimizer."""
    rule = optimizers.UpdateRule(lambda config: optax.stateless(lambda g, _: jax.tree.map(jax.numpy.sign, g)))
    monkeypatch.setitem(optimizers.OPTIMIZERS, "sign", rule)
    name: Any = "sign"
    tx = optimizers.optimizer(OptimConfig(name=name, weight_decay=0.5, clip=0.0))
    params = {"kernel": np.array([2.0, -4.0], np.float32)}
    updates, _ = tx.update({"kernel": np.array([-0.3, 7.0], np.float32)}, tx.init(params), params)
    assert jax.tree.map(np.asarray, updates)["kernel"].tolist() == [-1.0 + 0.5 * 2.0, 1.0 - 0.5 * 4.0]


def test_a_zero_shot_task_is_a_row(monkeypatch, gpt_run, tmp_path):
    def score(model: Any, asked: list[str], options: zero_shot.ZeroShotOptions, cancel: Any) -> dict[str, Any]:
        lengths = [len(model.tokenizer.encode([line])[0]) for line in asked]
        rows = ({"text": line, "tokens": count} for line, count in zip(asked, lengths, strict=True))
        return {"examples": len(asked), "tokens": sum(lengths), "answers": rows}

    row = zero_shot.ZeroShotTask(lambda options: Path(str(options.input)).read_text().split("\n"), score, ("to",))
    monkeypatch.setitem(zero_shot.ZERO_SHOT, "count", row)
    (tmp_path / "text").write_text("Anna met\nthe cat")
    name: Any = "count"
    request = ZeroshotRequest(gpt_run, task=name, input=str(tmp_path / "text"), to=str(tmp_path / "rows.jsonl"))
    result = command._measure(request)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == ["Anna met", "the cat"] and all(row["tokens"] > 0 for row in rows)
    assert result["examples"] == 2 and result["tokens"] == sum(row["tokens"] for row in rows)
    with pytest.raises(ValueError, match="seed= has no meaning for --task count; it is for"):
        dataclasses.replace(request, seed=3)


def test_a_probing_task_is_a_row(monkeypatch, tmp_path):
    def capitals(path: Path) -> Any:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            words = tuple(line.split())
            named = [Target((n, n + 1), None, (str(word.istitle()),)) for n, word in enumerate(words)]
            yield Sentence(words, tuple(named), f"{path}:{number}")

    monkeypatch.setitem(targets.TASKS, "capitals", targets.ProbingTask(capitals, (".txt",)))
    (tmp_path / "a.txt").write_text("Anna met a Cat\n")
    (sentence,) = targets.read_sentences(tmp_path / "a.txt", "capitals")
    assert [target.labels for target in sentence.targets] == [("True",), ("False",), ("False",), ("True",)]


def test_a_tracker_is_a_file(monkeypatch, tiny_run, tmp_path):
    """Its package, and `train/loggers/NAME_tracker.py` with `check` and `open_run`."""
    sent: list[tuple[str, int]] = []

    class Kept:
        ids: dict[str, str] = {}
        where = "in memory"

        def last_step(self, split: str) -> int:
            return -1

        def add(self, step: int, split: str, figures: dict[str, float]) -> None:
            sent.append((split, step))

        def flush(self) -> None: ...

        def close(self, complete: bool) -> None: ...

    module = types.ModuleType("contexture.train.loggers.kept_tracker")
    vars(module).update(check=lambda: None, open_run=lambda place: Kept())
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(trackers, "find_spec", lambda name: importlib.util.find_spec("json"))
    trackers.check_trackers(["kept"])
    to: Any = ("kept",)
    run = read(tiny_run).run
    opened = trackers.Trackers(dataclasses.replace(run, log=dataclasses.replace(run.log, to=to)), tmp_path)
    opened.start(lambda: [], 0)
    opened.send([{"step": 1, "split": "train", "loss": 2.0}])
    opened.close(True)
    assert sent == [("train", 1)]


class Rating(objectives.Classify):
    """The loss of classes, on a head of another name."""

    def sums(self, outputs: Any, batch: Any) -> dict[str, Any]:
        return super().sums(self._renamed(outputs), batch)

    def predictions(self, outputs: Any) -> dict[str, jax.Array]:
        return super().predictions(self._renamed(outputs))

    def _renamed(self, outputs: Any) -> Any:
        return dataclasses.replace(outputs, heads={"classify": outputs.heads["rate"]})


class RatingCollector(predictions.ClassCollector):
    """Classes in an order: how far a prediction is from its label."""

    def figures(self, file: int | None = None) -> dict[str, float]:
        gold, predicted = self._numbers(file)
        return {"distance": float(np.abs(gold - predicted).mean())}

    @staticmethod
    def metric_names(labels: tuple[str, ...], counts: tuple[int, ...]) -> list[str]:
        return ["distance"]


def test_a_kind_of_task_is_a_row_in_each_part(monkeypatch, task_words, tiny_run, tmp_path):
    for rows, row in (
        (task_kinds.KINDS, task_kinds.KINDS["classify"]),
        (families.HEADS, families.HEADS["classify"]),
        (objectives.OBJECTIVES, Rating(heads=("rate",))),
        (predictions.COLLECTORS, RatingCollector),
    ):
        monkeypatch.setitem(rows, "rate", row)
    monkeypatch.setitem(metric_directions.BETTER, "distance", "lower")
    words = task_words("classify")
    files = {name: words[words.index(f"--task.{name}") + 1] for name in ("train", "dev")}
    base = finetune_run(read(tiny_run).run, str(tiny_run), "classify")
    kind: Any = "rate"
    run = dataclasses.replace(
        base,
        dir=str(tmp_path / "run"),
        steps=4,
        task=dataclasses.replace(base.task, kind=kind, train=(files["train"],), dev=(files["dev"],)),
    )
    signals = Signals()
    try:
        train(run, run, signals)
    finally:
        signals.close()
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if record["split"] == "dev"][-1]
    # Each miss is at least one away, and some of three labels two.
    assert last["step"] == 4 and last["distance"] >= 1 - last["accuracy"] - 1e-6 > 0
