"""Rows that sequences share change no number: not in training, not in evaluation, not in a prediction."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import contexture
from contexture.data import packing
from contexture.data.tasks.batch.batches import HeldOutTask
from contexture.train import loop
from contexture.train.run.report import read_metrics
from contexture.train.step import TrainStep
from tests.helpers.commands import done

pytestmark = pytest.mark.usefixtures("one_device")
GOLDEN = Path(__file__).parents[2] / "golden"
WORDS = "the cat a small dog one old man the queen my brother that bird sees likes follows finds".split()


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """200 texts of 1 to 40 words in the small corpus's words, of a class that their first word gives; the same as
    sentences with a tag for each word."""
    folder, rng = tmp_path_factory.mktemp("texts"), random.Random(4)
    for split, count in (("train", 200), ("dev", 101)):
        texts = [rng.choices(WORDS, k=1 + int(rng.random() ** 3 * 40)) for _ in range(count)]
        lines = "".join(f"{' '.join(words)}\t{int(words[0] in ('the', 'a'))}\n" for words in texts)
        (folder / f"classify.{split}.tsv").write_text("text\tlabel\n" + lines, "utf-8")
        sentences = ["".join(f"{word} {word[0].upper()}\n" for word in words) for words in texts]
        (folder / f"tag.{split}.conll").write_text("\n".join(sentences), "utf-8")
    return folder


def tuned(source: Path, files: Path, kind: str, folder: Path, *more: str) -> Path:
    train, dev = sorted(files.glob(f"{kind}.*"), reverse=True)
    words = "--data.batch 8 --data.length 48 --optim.peak-lr 1e-3 --log.every 4 --save.every 8 --evaluate.batch 4"
    words += " --evaluate.every 12"
    done("finetune", source, "--task.kind", kind, "--task.train", train, "--task.dev", dev, "--dir", folder,
         *words.split(), "--steps", "24", "--optim.frozen", *more)  # fmt: skip
    return folder


def figures(folder: Path, names: tuple[str, ...] = ("loss", "grad_norm", "accuracy", "f1")) -> list[list[float]]:
    records = [record for record in read_metrics(folder / "metrics.jsonl") if record["split"] != "goodput"]
    return [[record[name] for name in names if name in record] for record in records]


def use_several(patch: pytest.MonkeyPatch) -> None:
    """Several numbers of narrow rows, which need not save much."""
    patch.setattr(packing, "ROW", 48)
    patch.setattr(packing, "MIN_SAVING", 0.05)


def use_one(patch: pytest.MonkeyPatch) -> None:
    """Each sequence has a row of its own."""
    patch.setattr(packing, "best_fit", lambda lengths, width, most=0: np.arange(len(lengths)))


@pytest.fixture(autouse=True)
def several(monkeypatch):
    use_several(monkeypatch)


@pytest.fixture(scope="module")
def source(tiny_run) -> Path:
    return tiny_run


@pytest.fixture(scope="module")
def short(one_device, source, files, tmp_path_factory) -> Path:
    """A run whose batches have several numbers of rows."""
    with pytest.MonkeyPatch.context() as patch:
        use_several(patch)
        return tuned(source, files, "classify", tmp_path_factory.mktemp("short") / "run")


def evaluated(folder: Path, **how) -> tuple[dict, list[dict]]:
    """(figures, records) of an evaluation."""
    result = contexture.evaluate(folder, **how)
    lines = Path(result["predictions"]).read_text("utf-8").splitlines()
    return result["metrics"], [json.loads(line) for line in lines]


def same(one: tuple[dict, list[dict]], other: tuple[dict, list[dict]]) -> None:
    """Two evaluations have the same figures, and the same records in the same order."""
    (metrics, records), (whole, expected) = one, other
    assert metrics == pytest.approx(whole, rel=1e-6)
    assert [record["id"] for record in records] == [record["id"] for record in expected]
    for record, alone in zip(records, expected, strict=True):
        of = "predictions" if "predictions" in record else "prediction"
        assert record[of] == alone[of]
        assert record["scores"] == pytest.approx(alone["scores"], abs=2e-6)


def watched(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, ...]]:
    """The shapes of what steps are trained on, from here on."""
    shapes, inner = set[tuple[int, ...]](), TrainStep.__call__

    def call(self, state, batch, settings):
        shapes.add(batch["tokens" if "tokens" in batch else "index"].shape)
        return inner(self, state, batch, settings)

    monkeypatch.setattr(TrainStep, "__call__", call)
    return shapes


@pytest.mark.long
@pytest.mark.parametrize(("family", "kind"), [("bert", "classify"), ("bert", "tag"), ("elmo", "tag")])
def test_numbers_are_those_of_full_padding(request, files, family, kind, tmp_path, monkeypatch):
    """With dropout, in training, evaluation and prediction; records stay in the order of the file."""
    source = request.getfixturevalue("source" if family == "bert" else "elmo_run")
    shapes = watched(monkeypatch)
    short = tuned(source, files, kind, tmp_path / "short")
    assert 1 < len(shapes) <= 3
    speeds = [r["tokens_per_second"] for r in read_metrics(short / "metrics.jsonl") if "tokens_per_second" in r]
    assert all(speed > 0 for speed in speeds)
    with monkeypatch.context() as patch:
        use_one(patch)
        shapes.clear()
        whole = tuned(source, files, kind, tmp_path / "whole")
        assert len(shapes) == 1 and next(iter(shapes))[0] == 8
        expected = evaluated(short, batch=4, to=tmp_path / "padded")
    for actual, other in zip(figures(short), figures(whole), strict=True):
        assert actual == pytest.approx(other, rel=2e-5, abs=1e-6)
    same(evaluated(short, batch=4), expected)


@pytest.mark.long
def test_a_run_of_several_shapes_that_is_stopped_is_the_same_run(source, short, files, tmp_path, monkeypatch):
    """The rows follow from the step, and each program gives what it gave."""
    stopped = tmp_path / "stopped"
    inner = loop.Report.record

    def record(self, records, *given):
        inner(self, records, *given)
        if records[-1]["step"] == 16:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop.Report, "record", record)
        with pytest.raises(AssertionError):
            tuned(source, files, "classify", stopped)
    tuned(source, files, "classify", stopped)
    assert figures(stopped) == figures(short)


def test_an_evaluation_has_the_figures_and_the_order_of_full_padding(files, tmp_path, monkeypatch):
    text = (files / "classify.dev.tsv").read_text("utf-8")
    text = text.replace("\t0\n", "\tanimal\n").replace("\t1\n", "\tperson\n")
    words = (files / "tag.dev.conll").read_text("utf-8").splitlines()
    tags = "".join(f"{line.split()[0]} {('DET', 'NOUN')[len(line) % 2]}\n" if line else "\n" for line in words)
    for name, dev, content in (("bert_classify", "dev.tsv", text), ("elmo_tag", "dev.conll", tags)):
        (tmp_path / dev).write_text(content, "utf-8")

        def read(name: str, dev: str, to: str) -> tuple[dict, list[dict]]:
            return evaluated(GOLDEN / name, dev=tmp_path / dev, batch=8, to=tmp_path / f"{name} {to}")

        with monkeypatch.context() as patch:
            use_one(patch)
            expected = read(name, dev, "alone")
        same(read(name, dev, "together"), expected)


@pytest.mark.parametrize("name", ["bert_classify", "elmo_tag"])
def test_predictions_of_a_long_file_keep_its_order(files, monkeypatch, name):
    numbers: list[list[int]] = []
    inner: Callable = HeldOutTask.read

    def read(self, step, *given):
        numbers.append(self.numbers(step).tolist())
        return inner(self, step, *given)

    monkeypatch.setattr(HeldOutTask, "read", read)
    texts = [line.split("\t")[0] for line in (files / "classify.dev.tsv").read_text("utf-8").splitlines()[1:]]
    model = contexture.open(GOLDEN / name)
    together = model.predict(texts)
    # Batches are not in the file's order, nor is each a part of it.
    read_order = [number for batch in numbers for number in batch]
    assert sorted(read_order) == list(range(101)) and read_order != sorted(read_order) and len(numbers) > 1
    alone = [model.predict([text])[0] for text in texts[:9]]
    assert [each["id"] for each in together] == [f"text:{n}" for n in range(len(texts))]
    for one, other in zip(together, alone, strict=False):
        assert one["scores"] == pytest.approx(other["scores"], abs=2e-6)
