"""Batches of several lengths change no number: not in training, not in evaluation, not in a prediction."""

import json
import random
from pathlib import Path

import pytest

import contexture
from contexture.data import bucketing as lengths
from contexture.data.tasks.batch.batches import HeldOutTask
from contexture.train import loop
from contexture.train.evaluation import predict
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
    return [[record[name] for name in names if name in record] for record in read_metrics(folder / "metrics.jsonl")]


@pytest.fixture(autouse=True)
def several_lengths(monkeypatch):
    """Three lengths, which need not save much."""
    monkeypatch.setattr(lengths, "MIN_SAVING", 0.05)
    monkeypatch.setattr(lengths, "MAX_LENGTHS", 3)


@pytest.fixture(scope="module")
def source(tiny_run) -> Path:
    return tiny_run


@pytest.fixture(scope="module")
def short(one_device, source, files, tmp_path_factory) -> Path:
    """A run whose batches have several lengths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lengths, "MIN_SAVING", 0.05)
        patch.setattr(lengths, "MAX_LENGTHS", 3)
        return tuned(source, files, "classify", tmp_path_factory.mktemp("short") / "run")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["classify", "tag"])
def test_numbers_are_those_of_full_padding(source, files, kind, tmp_path, monkeypatch):
    """With dropout, in training, evaluation and prediction; records stay in the order of the file."""
    shapes = set()
    inner = TrainStep.__call__

    def call(self, state, batch, settings):
        shapes.add(batch["tokens"].shape)
        return inner(self, state, batch, settings)

    monkeypatch.setattr(TrainStep, "__call__", call)
    short = tuned(source, files, kind, tmp_path / "short")
    assert 1 < len(shapes) <= lengths.MAX_LENGTHS
    speeds = [r["tokens_per_second"] for r in read_metrics(short / "metrics.jsonl") if "tokens_per_second" in r]
    assert all(speed > 0 for speed in speeds)

    monkeypatch.setattr(lengths, "MAX_LENGTHS", 1)
    shapes.clear()
    whole = tuned(source, files, kind, tmp_path / "whole")
    assert len(shapes) == 1
    for actual, expected in zip(figures(short), figures(whole), strict=True):
        assert actual == pytest.approx(expected, rel=2e-5, abs=1e-6)

    def evaluated(folder: Path) -> tuple[dict, list[dict]]:
        result = contexture.evaluate(folder, batch=4)
        lines = (folder / "evaluations" / "dev-24" / "predictions.jsonl").read_text("utf-8").splitlines()
        return result["metrics"], [json.loads(line) for line in lines]

    padded, padded_records = evaluated(short)
    monkeypatch.setattr(lengths, "MAX_LENGTHS", 3)
    (short / "evaluations").rename(short / "padded")
    metrics, records = evaluated(short)
    assert metrics == pytest.approx(padded, rel=1e-6)
    assert [record["id"] for record in records] == [record["id"] for record in padded_records]
    for record, other in zip(records, padded_records, strict=True):
        of = "predictions" if kind == "tag" else "prediction"
        assert record[of] == other[of]
        assert record["scores"] == pytest.approx(other["scores"], abs=2e-6)


@pytest.mark.long
def test_a_run_of_several_lengths_that_is_stopped_is_the_same_run(source, short, files, tmp_path, monkeypatch):
    """The lengths follow from the step, and each program gives what it gave."""
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
    dev, text = tmp_path / "dev.tsv", (files / "classify.dev.tsv").read_text("utf-8")
    dev.write_text(text.replace("\t0\n", "\tanimal\n").replace("\t1\n", "\tperson\n"), "utf-8")

    def evaluated(most: int) -> tuple[dict, list[dict]]:
        monkeypatch.setattr(lengths, "MAX_LENGTHS", most)
        result = contexture.evaluate(GOLDEN / "bert_classify", dev=dev, batch=8, to=tmp_path / str(most))
        lines = Path(result["predictions"]).read_text("utf-8").splitlines()
        return result["metrics"], [json.loads(line) for line in lines]

    (whole, expected), (metrics, records) = evaluated(1), evaluated(3)
    assert metrics == pytest.approx(whole, rel=1e-6)
    assert [record["id"] for record in records] == [record["id"] for record in expected]
    for record, other in zip(records, expected, strict=True):
        assert record["prediction"] == other["prediction"]
        assert record["scores"] == pytest.approx(other["scores"], abs=2e-6)


def test_predictions_of_a_long_file_keep_its_order(files, monkeypatch):
    monkeypatch.setattr(predict, "MIN_SAVING", 0.05)
    shapes = set()
    inner = HeldOutTask.read

    def read(self, *given):
        batch = inner(self, *given)
        shapes.add(batch["tokens"].shape[1])
        return batch

    monkeypatch.setattr(HeldOutTask, "read", read)
    texts = [line.split("\t")[0] for line in (files / "classify.dev.tsv").read_text("utf-8").splitlines()[1:]]
    model = contexture.open(GOLDEN / "bert_classify")
    together = model.predict(texts)
    # Otherwise all are in the file's order anyway.
    assert len(shapes) > 1
    alone = [model.predict([text])[0] for text in texts[:9]]
    assert [each["id"] for each in together] == [f"text:{n}" for n in range(len(texts))]
    for one, other in zip(together, alone, strict=False):
        assert one["scores"] == pytest.approx(other["scores"], abs=2e-6)
