"""Evaluation is over the whole set, each example once, whatever the batch, the mesh and the processes."""

import functools
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import contexture
from contexture.cli import main as cli
from contexture.train.distributed import processes
from contexture.train.evaluation import evaluate
from contexture.train.evaluation.predictions import _alternatives
from contexture.train.evaluation.request import EvaluationRequest
from tests.helpers.commands import devices, run_command
from tests.helpers.jobs import evaluate_in_two_processes
from tests.helpers.logs import logged
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close

Evaluated = tuple[dict, list[dict]]
"""(what evaluate says, its predictions)."""


def predictions(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "predictions.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def evaluated(task_run, tmp_path_factory) -> Callable[[str, int, int], Evaluated]:
    """(kind, devices, batch) → what they evaluate to. Each is done once."""

    @functools.cache
    def evaluate(kind: str, count: int, batch: int) -> Evaluated:
        to = tmp_path_factory.mktemp("evaluated")
        with devices(count):
            result = contexture.evaluate(task_run(kind), batch=batch, to=str(to))
        return result, predictions(to / "dev-60")

    return evaluate


def lines_of(file: Path) -> list[str]:
    return file.read_text("utf-8").splitlines()


def test_metrics_equal_an_independent_count(evaluated, task_files):
    result, answered = evaluated("classify", 1, 64)
    gold = [line.split("\t")[1] for line in lines_of(task_files / "classify.dev.tsv")[1:]]
    assert len(gold) == 97 == result["examples"] and [r["label"] for r in answered] == gold
    assert [r["id"] for r in answered] == [f"classify.dev.tsv:{n}" for n in range(2, 99)]
    answers = [r["prediction"] for r in answered]
    assert all(r["scores"][r["prediction"]] == max(r["scores"].values()) for r in answered)
    hits = Counter((g, a) for g, a in zip(gold, answers, strict=True))
    f1 = {}
    for label in sorted(set(gold) | set(answers)):
        true = hits[label, label]
        named, existing = answers.count(label), gold.count(label)
        f1[label] = 2 * true / (named + existing)
    metrics = result["metrics"]
    assert metrics["accuracy"] == pytest.approx(sum(g == a for g, a in zip(gold, answers, strict=True)) / 97, abs=1e-6)
    assert metrics["f1_macro"] == pytest.approx(sum(f1.values()) / len(f1), abs=1e-6)
    for row in result["labels"]:
        assert row["f1"] == pytest.approx(f1.get(row["label"], 0.0), abs=1e-9)
        assert row["count"] == gold.count(row["label"])
    loss = -sum(math.log(r["scores"][g]) for r, g in zip(answered, gold, strict=True)) / 97
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
    train = Counter(line.split("\t")[1] for line in lines_of(task_files / "classify.train.tsv")[1:])
    commonest = max(sorted(train), key=lambda label: train[label])
    assert metrics["majority_accuracy"] == pytest.approx(gold.count(commonest) / 97)


def test_numbers_and_tags_equal_an_independent_count(evaluated, task_files):
    result, answered = evaluated("regress", 1, 64)
    gold = [json.loads(line)["score"] for line in lines_of(task_files / "regress.dev.jsonl")]
    answers = [r["prediction"] for r in answered]
    errors = [(g - a) ** 2 for g, a in zip(gold, answers, strict=True)]
    assert result["metrics"]["mse"] == pytest.approx(sum(errors) / 97, abs=1e-6)
    assert result["metrics"]["loss"] == pytest.approx(sum(errors) / 97, abs=1e-6)
    mean_g, mean_a = sum(gold) / 97, sum(answers) / 97
    top = sum((g - mean_g) * (a - mean_a) for g, a in zip(gold, answers, strict=True))
    below = math.sqrt(sum((g - mean_g) ** 2 for g in gold) * sum((a - mean_a) ** 2 for a in answers))
    assert result["metrics"]["pearson"] == pytest.approx(top / below, abs=1e-6)

    result, answered = evaluated("tag", 1, 64)
    words = [line.split("\t")[3] for line in lines_of(task_files / "tag.dev.conllu") if line]
    assert [tag for r in answered for tag in r["labels"]] == words
    hits = [g == a for r in answered for g, a in zip(r["labels"], r["predictions"], strict=True)]
    assert result["metrics"]["accuracy"] == pytest.approx(sum(hits) / len(words), abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "count", "batch"),
    [
        *long(
            ("classify", 1, 7),
            ("classify", 8, 1),
            ("regress", 8, 64),
        ),
        ("tag", 8, 7),
    ],
)
def test_batch_and_devices_change_no_prediction(evaluated, kind, count, batch):
    same(evaluated(kind, count, batch), evaluated(kind, 1, 64), f"{count} devices, batch {batch}")


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "batch"), [("classify", 7), *((kind, batch) for kind in ("regress", "tag") for batch in (1, 64))]
)
def test_two_processes_change_no_prediction(evaluated, door, task_run, tmp_path, kind, batch):
    result = evaluate_in_two_processes(door, task_run(kind), batch, tmp_path)
    same((result, predictions(tmp_path / "dev-60")), evaluated(kind, 1, 64), "two processes")


NEARLY = {"spearman": 1e-4}
"""Texts that are equal get nearly equal numbers at other places of a row, of which either may be the greater."""


def same(actual: Evaluated, expected: Evaluated, where: str) -> None:
    (result, records), (whole, expected_records) = actual, expected
    assert result["examples"] == 97 and [r["id"] for r in records] == [r["id"] for r in expected_records], where
    for name, value in whole["metrics"].items():
        assert result["metrics"][name] == pytest.approx(value, abs=NEARLY.get(name, 1e-6)), (where, name)
    for a, b in zip(records, expected_records, strict=True):
        for name in ("prediction", "predictions"):
            if isinstance(b.get(name), float):
                assert a[name] == pytest.approx(b[name], abs=1e-5), where
            else:
                assert a.get(name) == b.get(name), where
        if "scores" in b:
            both = (r["scores"] for r in (a, b))
            ours, theirs = (list(scores.values()) if isinstance(scores, dict) else scores for scores in both)
            assert_close(ours, theirs, atol=1e-5, err_msg=where)


@pytest.mark.usefixtures("one_device")
def test_more_lanes_than_held_out_words_are_refused(elmo_run, capsys):
    code, err = run_command(capsys, "evaluate", elmo_run, "--batch", 10_000)
    assert code == 2 and err.splitlines()[-1].startswith("DataError: ")
    assert "too few for 10000 lanes; lower data.batch (held out: evaluate.batch)" in err


@pytest.mark.usefixtures("one_device")
def test_the_best_checkpoint_is_taken_and_a_better_step_is_told(task_run, tmp_path):
    run = shutil.copytree(task_run("classify"), tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "split": "dev", "loss": 1e-4}\n')
    with logged() as messages:
        contexture.evaluate(run, step="best", to=str(tmp_path / "best"))
    assert [m for m in messages if m.startswith("warning: step 40 was better than step ")]


@pytest.mark.parametrize("kind", ["tag", *long("regress", "classify")])
def test_several_files_have_a_row_each(task_run, task_files, tmp_path, kind, monkeypatch):
    """A row holds the figures of its file evaluated alone: languages side by side."""
    # Padded alike: the last digits of predictions depend on it, and so does the order of two that are nearly equal, by
    # which Spearman's correlation goes.
    monkeypatch.setattr("contexture.data.bucketing.MAX_LENGTHS", 1)
    suffix = {"classify": "tsv", "regress": "jsonl", "tag": "conllu"}[kind]
    whole = (task_files / f"{kind}.dev.{suffix}").read_text("utf-8")
    parts = whole.split("\n\n") if kind == "tag" else lines_of(task_files / f"{kind}.dev.{suffix}")
    head, join = ([], "\n\n") if kind == "tag" else (parts[:1] * (kind == "classify"), "\n")
    rows = [part for part in parts[len(head) :] if part.strip()]
    files = []
    for name, some in (("de", rows[:30]), ("fr", rows[30:])):
        files.append(tmp_path / f"{name}.{suffix}")
        files[-1].write_text(join.join([*head, *some]) + join, "utf-8")
    with devices(1):
        both = contexture.evaluate(task_run(kind), dev=[*map(str, files)], to=str(tmp_path / "both"))
        alone = [contexture.evaluate(task_run(kind), dev=str(file), to=str(tmp_path / file.stem)) for file in files]
    assert [(row["file"], row["examples"]) for row in both["by_file"]] == [(files[0].name, 30), (files[1].name, 67)]
    assert both["examples"] == 97 and "by_file" not in alone[0]
    for row, one in zip(both["by_file"], alone, strict=True):
        figures = {name: x for name, x in row.items() if name not in ("file", "examples")}
        expected = {name: one["metrics"][name] for name in figures}
        # A correlation of predictions that hardly differ has their rounding many times over.
        assert figures and figures.keys() == expected.keys()
        for name, value in expected.items():
            assert figures[name] == pytest.approx(value, rel=1e-6, abs=NEARLY.get(name, 1e-6)), name


@pytest.mark.usefixtures("one_device")
def test_other_files_several_steps_and_splits(capsys, task_run, task_files, tmp_path):
    run = task_run("classify")
    every = contexture.evaluate(run, step="all", to=str(tmp_path / "all"))
    assert [one["step"] for one in every["checkpoints"]] == [50, 60]
    best = contexture.evaluate(run, step="best", to=str(tmp_path / "best"))
    records = map(json.loads, lines_of(run / "metrics.jsonl"))
    losses = {record["step"]: record["loss"] for record in records if record["split"] == "dev"}
    assert best["step"] == min(losses, key=lambda step: losses[step]) == 50
    dev = str(task_files / "classify.dev.tsv")
    again = contexture.evaluate(run, dev=dev, step=50, to=str(tmp_path / "file"))
    assert again["step"] == 50 and again["metrics"] == every["checkpoints"][0]["metrics"]
    assert sorted(p.name for p in (tmp_path / "file").iterdir()) == ["classify.dev-50"]
    argv = ["evaluate", str(run), "--task.dev", dev, "--to", str(tmp_path / "file")]
    assert cli.main(argv) == 0
    shown = capsys.readouterr().out.splitlines()
    assert not any(line.startswith("split") for line in shown)
    assert [line.split()[1] for line in shown if line.startswith("files")] == [dev]
    assert cli.main([*argv, "--json"]) == 0
    given = json.loads(capsys.readouterr().out)
    assert given["split"] == "dev" and given["files"] == [dev]
    trained = contexture.evaluate(run, split="train", to=str(tmp_path / "train"))
    assert trained["examples"] == 160 and trained["predictions"].endswith("train-60/predictions.jsonl")
    assert cli.main(["evaluate", str(run), "--to", str(tmp_path / "told")]) == 0
    shown = capsys.readouterr().out
    assert "split  " in shown and "files  " not in shown
    assert "accuracy" in shown and "animal" in shown and "precision" in shown


@pytest.mark.parametrize("to", ["results", ""])
def test_several_processes_read_what_the_first_has_encoded(tmp_path, monkeypatch, to):
    """In a folder beside the results, which all of them see; the first makes it, and removes it when it is done."""
    told: dict[str, str] = {}
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(processes, "publish", told.__setitem__)
    monkeypatch.setattr(processes, "wait_for", told.__getitem__)
    request, beside = EvaluationRequest(run="run", to=to and str(tmp_path / to)), tmp_path / (to or "run/evaluations")
    with evaluate._temporary_folder(request, tmp_path / "run") as first:
        assert first.parent == beside and beside.is_dir() and first.name.startswith(".encoded")
        first.mkdir()
        monkeypatch.setattr(jax, "process_index", lambda: 1)
        with evaluate._temporary_folder(request, tmp_path / "run") as second:
            assert second == first
        assert first.is_dir()
        monkeypatch.setattr(jax, "process_index", lambda: 0)
    assert not first.exists() and beside.is_dir()


@pytest.mark.parametrize(("rows", "choices"), [(6, 2), (3, 1)])
def test_an_example_of_several_rows_has_all_labels_to_choose_from(rows, choices):
    """A pair that is read in both orders has two rows, and one answer."""
    split: Any = SimpleNamespace(kind="classify", choices=choices, labels=("a", "b", "c"))
    assert _alternatives(np.zeros(rows), split) == [3, 3, 3]


def test_a_word_that_was_cut_off_has_no_tag_and_no_score(task_run):
    run = contexture.open(task_run("tag"))
    (answer,) = run.predict([["cat"] * 200])
    read = [tag != "" for tag in answer["predictions"]]
    kept = sum(read)
    assert 0 < kept < 200 and read == [True] * kept + [False] * (200 - kept) and answer["truncated"]
    assert all(score > 0 for score in answer["scores"][:kept]) and not any(answer["scores"][kept:])
