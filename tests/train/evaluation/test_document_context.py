"""A tagger that reads the document around each sentence: it learns from it, and answers alike however it is asked."""

import dataclasses
import json
import random
from pathlib import Path

import pytest

import contexture
from contexture.cli import main as cli
from contexture.data.cancel import NEVER
from contexture.data.tasks.store.example_store import ExampleStore
from contexture.train.errors import ConfigError
from contexture.train.evaluation import predict
from contexture.train.settings.run_file import fingerprint, read
from contexture.train.setup import open_data
from tests.helpers.commands import done
from tests.helpers.long import long
from tests.helpers.random_runs import random_training
from tests.train.evaluation.test_evaluate import lines_of

pytestmark = pytest.mark.usefixtures("optimized_steps", "one_device")


def _documents(count: int, seed: int) -> str:
    """What `that` is, a person or a thing, another sentence of the document tells."""
    rng, parts = random.Random(seed), []
    for _ in range(count):
        subject = rng.choice(["queen", "river"])
        sentences = [["the", subject], *[["that", rng.choice(["sees", "likes", "follows"])] for _ in range(2)]]
        rng.shuffle(sentences)
        parts.append("-DOCSTART- O\n")
        for sentence in sentences:
            tag = "PERSON" if subject == "queen" else "THING"
            parts.append("".join(f"{word} {tag if word == 'that' else 'O'}\n" for word in sentence))
    return "\n".join(parts)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("documents")
    (folder / "train.conll").write_text(_documents(120, 1), "utf-8")
    (folder / "dev.conll").write_text(_documents(31, 2), "utf-8")
    return folder


def _words(tiny_run: Path, files: Path) -> list[str]:
    return [
        *("finetune", str(tiny_run), "--task.kind", "tag", "--task.train", str(files / "train.conll")),
        *("--task.dev", str(files / "dev.conll"), "--data.batch", "16", "--data.length", "16", "--steps", "60"),
        *("--optim.peak-lr", "3e-3", "--model.dropout", "0", "--model.attention-dropout", "0"),
    ]


@pytest.fixture(scope="module")
def tagger(once, tiny_run: Path, files: Path) -> Path:
    """A tagger that has learned nothing: its numbers are drawn."""

    def make(folder: Path) -> None:
        with random_training(50, 60):
            done(*_words(tiny_run, files), "--data.context", "document", "--dir", folder)

    return once("random/document_tagger", make)


@pytest.fixture(scope="module")
def answered(tagger: Path, files: Path, tmp_path_factory) -> list[dict]:
    """The predictions of the held-out file, all at once."""
    to = tmp_path_factory.mktemp("answers") / "all.jsonl"
    assert cli.main(["predict", str(tagger), "--input", str(files / "dev.conll"), "--to", str(to)]) == 0
    return [json.loads(line) for line in lines_of(to)]


@pytest.mark.long
def test_a_tagger_learns_what_the_sentence_alone_does_not_say(trained_run, request, files: Path):
    whole = trained_run("whole", request.getfixturevalue("tiny_words"))
    run = trained_run("document_tagger", [*_words(whole, files), "--data.context", "document"])
    assert contexture.evaluate(run)["metrics"]["accuracy"] > 0.95
    alone = contexture.predict(run, [["the", "queen"], ["that", "sees"]])
    assert alone[0]["predictions"] == ["O", "O"]


def test_each_word_counts_once_in_a_file_given_by_name_too(tagger: Path, files: Path):
    result = contexture.evaluate(tagger)
    assert result["examples"] == 93 and 0.0 < result["metrics"]["accuracy"] < 1.0
    assert read(tagger).run.data.context == "document" and ExampleStore.open(tagger / "data").context == "document"
    records = [json.loads(line) for line in lines_of(tagger / "evaluations" / "dev-60" / "predictions.jsonl")]
    gold = [line.split()[1] for line in lines_of(files / "dev.conll") if line and "DOCSTART" not in line]
    assert [tag for record in records for tag in record["labels"]] == gold
    hits = [a == b for r in records for a, b in zip(r["labels"], r["predictions"], strict=True)]
    assert result["metrics"]["accuracy"] == pytest.approx(sum(hits) / len(gold), abs=1e-6)
    given = contexture.evaluate(tagger, dev=files / "dev.conll", to=str(files / "given"))
    assert given["metrics"] == pytest.approx(result["metrics"], rel=1e-6)


def test_the_sentences_beside_it_change_what_is_said_of_a_sentence(tagger: Path, answered):
    alone = contexture.predict(tagger, [record["words"] for record in answered])
    for record, other in zip(answered, alone, strict=True):
        assert record["scores"] != pytest.approx(other["scores"], abs=1e-4)


@pytest.mark.parametrize(("batch", "chunk"), [*long((1, 4096)), (7, 4096), (64, 16)])
def test_batches_and_chunks_change_no_prediction(tagger, files, answered, batch, chunk, tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "CHUNK", chunk)
    argv = ["predict", str(tagger), "--input", str(files / "dev.conll"), "--to", str(tmp_path / "some.jsonl")]
    assert cli.main([*argv, "--batch", str(batch)]) == 0
    records = [json.loads(line) for line in lines_of(tmp_path / "some.jsonl")]
    assert [(r["id"], r["words"], r["predictions"]) for r in records] == [
        (r["id"], r["words"], r["predictions"]) for r in answered
    ]
    for record, other in zip(records, answered, strict=True):
        assert record["scores"] == pytest.approx(other["scores"], abs=2e-6)


def test_answers_are_those_of_the_evaluation(tagger, answered):
    contexture.evaluate(tagger)
    records = [json.loads(line) for line in lines_of(tagger / "evaluations" / "dev-60" / "predictions.jsonl")]
    assert [r["predictions"] for r in records] == [r["predictions"] for r in answered]


def test_a_sentence_by_itself_is_a_document(tagger, capsys):
    """So are the texts that Python gives; what is not said elsewhere is not known."""
    alone = contexture.predict(tagger, [["the", "queen"], ["that", "sees"], ["that", "sees"]])
    assert alone[1]["scores"] == alone[2]["scores"] != alone[0]["scores"]
    assert cli.main(["predict", str(tagger), "--text", "that sees", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predictions"] == alone[1]["predictions"]


def test_mistakes_are_one_clear_line(tagger, tiny_run, files, tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"words": ["that"], "tags": ["O"]}\n', "utf-8")
    for argv in (
        ["predict", str(tagger), "--input", str(tmp_path / "a.jsonl"), "--to", str(tmp_path / "out.jsonl")],
        ["evaluate", str(tagger), "--task.dev", str(tmp_path / "a.jsonl")],
        [*_words(tiny_run, files), "--task.dev", str(tmp_path / "a.jsonl"), "--data.context", "document",
         "--dir", str(tmp_path / "new")],
    ):  # fmt: skip
        capsys.readouterr()
        assert cli.main(argv) == 2
        message = capsys.readouterr().err.strip().splitlines()
        assert "a.jsonl: holds no borders of documents, and data.context=document" in " ".join(message[-3:]), message
    assert not (tmp_path / "out.jsonl").exists() and not (tmp_path / "new").exists()
    assert cli.main(["predict", str(tagger), "--text", "that sees", "--second", "the queen"]) == 2
    message = f"--second is for a pair of texts or a question, and {tagger} is tag; leave it out"
    assert message in " ".join(capsys.readouterr().err.split())
    argv = ["finetune", str(tiny_run), "--task.kind", "classify", "--task.train", "x.tsv", "--data.context", "document"]
    assert cli.main([*argv, "--dir", str(tmp_path / "other")]) == 2
    message = "data.context has no meaning for task.kind=classify; leave it out"
    assert message in " ".join(capsys.readouterr().err.split())


def test_examples_without_context_are_not_taken_for_a_run_with_it(tagger, tmp_path):
    record = read(tagger)
    alone = dataclasses.replace(record.run, data=dataclasses.replace(record.run.data, context="sentence"))
    assert fingerprint(alone, "t", "d") != fingerprint(record.run, "t", "d")
    with pytest.raises(ConfigError, match="was encoded with --data.context document; give the same, or another --dir"):
        open_data(alone, tagger, NEVER)
