"""`evaluate --submission DIR`: files as the servers of GLUE and SQuAD take them, of examples without labels."""

import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import contexture
from contexture.data.config import TaskConfig
from contexture.train.evaluation import predict, submission
from contexture.train.settings import run_file
from tests.helpers.commands import done, json_of, run_command
from tests.helpers.long import long
from tests.helpers.random_runs import random_training

pytestmark = pytest.mark.usefixtures("one_device")
NLI = ["entailment", "neutral", "contradiction"]


@pytest.fixture
def named(task_run, tmp_path) -> Callable[..., Path]:
    """A fine-tuned run as if it were that of a task of GLUE: named(kind, task, labels) → its folder."""

    def make(kind: str, task: str, labels: list[str]) -> Path:
        run = shutil.copytree(task_run(kind), tmp_path / task)
        record = run_file.read(run)
        own = dataclasses.replace(record.run, task=dataclasses.replace(record.run.task, name=task))
        run_file.write(run, dataclasses.replace(record, run=own, labels=tuple(labels)))
        return run

    return make


def rows_of(file: Path) -> list[tuple[str, ...]]:
    header, *rows = (tuple(line.split("\t")) for line in file.read_text("utf-8").splitlines())
    assert header == ("index", "prediction")
    return rows


SENTENCES = ["the cat sees many stars", "my brother likes the sea", 'the river " finds two apples', "that bird"]


def write_table(file: Path, columns: str, texts: list[str], index: list[int] | None = None) -> Path:
    head = ("index\t" if index else "") + columns
    lines = [(f"{index[n]}\t" if index else "") + text for n, text in enumerate(texts)]
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join([head, *lines]) + "\n", "utf-8")
    return file


def test_mnli_is_named_by_its_files_and_writes_names(named, tmp_path, capsys):
    run, to = named("classify", "mnli", NLI), tmp_path / "glue"
    parts = [
        write_table(tmp_path / f"test_{part}.tsv", "text", SENTENCES, [7, 3, 5, 9])
        for part in ("matched", "mismatched")
    ]
    parts.append(write_table(tmp_path / "diagnostic-full.tsv", "text", SENTENCES[:3]))
    result = json_of("evaluate", run, "--submission", to, "--dev", *parts)
    assert sorted(file.name for file in to.iterdir()) == ["AX.tsv", "MNLI-m.tsv", "MNLI-mm.tsv"]
    assert (result["step"], [each["examples"] for each in result["submission"]]) == (60, [4, 4, 3])
    expected = [answer["prediction"] for answer in contexture.predict(run, SENTENCES)]
    assert set(expected) <= set(NLI) and len(set(expected)) > 1
    assert rows_of(to / "MNLI-mm.tsv") == [*zip("7359", expected, strict=True)] == rows_of(to / "MNLI-m.tsv")
    assert rows_of(to / "AX.tsv") == [*zip("012", expected[:3], strict=True)]
    code, err = run_command(capsys, "evaluate", run, "--submission", to, "--dev", parts[0])
    assert code == 2 and "MNLI-m.tsv is there already; give another --submission, or --overwrite" in err
    before = {file.name: file.read_text() for file in to.iterdir()}
    (to / "MNLI-m.tsv").write_text("old")
    done("evaluate", run, "--submission", to, "--dev", parts[0], "--overwrite")
    assert {file.name: file.read_text() for file in to.iterdir()} == before


@pytest.mark.parametrize("columns", ["sentence1\tsentence2", "#1 String\t#2 String"])
def test_a_pair_of_classes_is_written_as_numbers(named, tmp_path, columns):
    run, to = named("pairs", "mrpc", ["equivalent", "not_equivalent"]), tmp_path / "glue"
    pairs = [f"{a}\t{b}" for a, b in zip(SENTENCES, SENTENCES[1:] + SENTENCES[:1], strict=True)]
    file = write_table(tmp_path / "msr.tsv", columns, pairs)
    done("evaluate", run, "--submission", to, "--dev", file)
    answers = contexture.predict(run, [tuple(pair.split("\t")) for pair in pairs])
    numbers = {"equivalent": "1", "not_equivalent": "0"}
    assert rows_of(to / "MRPC.tsv") == [(str(n), numbers[each["prediction"]]) for n, each in enumerate(answers)]


def test_without_files_the_test_set_of_glue_is_handed_in(named, tmp_path, monkeypatch):
    from tests.helpers.tfds_sets import build

    run = named("pairs", "wnli", ["entailment", "not_entailment"])
    pairs = [{"sentence1": a, "sentence2": b, "label": -1, "idx": 20 - n}
             for n, (a, b) in enumerate(zip(SENTENCES, SENTENCES[1:] + SENTENCES[:1], strict=True))]  # fmt: skip
    build(tmp_path / "tfds", "glue/wnli", {"test": pairs})
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    result = contexture.evaluate(run, submission=tmp_path / "glue")
    assert [each["source"] for each in result["submission"]] == ["tfds:glue/wnli:test"]
    answers = contexture.predict(run, [(pair["sentence1"], pair["sentence2"]) for pair in pairs])
    numbers = {"entailment": "1", "not_entailment": "0"}
    # TFDS has shuffled the rows: here they stand in the order of GLUE's file again.
    expected = [(str(20 - n), numbers[each["prediction"]]) for n, each in enumerate(answers)][::-1]
    assert rows_of(tmp_path / "glue" / "WNLI.tsv") == expected


def test_likeness_is_a_number_from_0_to_5(named, tmp_path, monkeypatch):
    run, file = named("regress", "stsb", []), write_table(tmp_path / "test.tsv", "text", SENTENCES)
    values = iter([-0.25, 5.75, 1 / 3, 1e-7])
    answer = predict.Predictor.answer

    def given(self, chunk):
        for record in answer(self, chunk):
            yield {**record, "prediction": next(values)}

    monkeypatch.setattr(predict.Predictor, "answer", given)
    result = contexture.evaluate(run, dev=str(file), submission=tmp_path / "glue")
    assert rows_of(Path(result["submission"][0]["file"])) == [
        ("0", "0.000000"), ("1", "5.000000"), ("2", "0.333333"), ("3", "0.000000")]  # fmt: skip
    values = iter([math.nan])
    with pytest.raises(contexture.CheckpointError, match="the prediction of example 0 is nan, no number"):
        contexture.evaluate(run, dev=str(file), submission=tmp_path / "broken")
    assert not list((tmp_path / "broken").iterdir())


CONTEXT = "The cat sees the river in spring. My brother paints the river at night."
ASKED = ["sees the river", "paints the river", "likes the river"]


def write_questions(file: Path, questions: list[dict]) -> Path:
    data = [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": questions}]}]
    file.write_text(json.dumps({"data": data}))
    return file


@pytest.mark.parametrize("unanswerable", [True, *long(False)])
def test_questions_are_answered_by_their_ids(tiny_run, tmp_path, unanswerable):
    answer, run = {"text": "The cat", "answer_start": 0}, tmp_path / "run"
    asked = [{"id": f"t{n}", "question": text, "answers": [answer]} for n, text in enumerate(ASKED[:2] * 8)]
    asked += [{"id": "none", "question": ASKED[2], "answers": [], "is_impossible": True}] * unanswerable
    train = write_questions(tmp_path / "train.json", asked)
    dev = write_questions(tmp_path / "dev.json", [{"id": "d", "question": ASKED[0], "answers": [answer]}])
    test = write_questions(tmp_path / "test.json", [{"id": f"q{n}", "question": x} for n, x in enumerate(ASKED)])
    with random_training(2):
        done("finetune", tiny_run, "--task.kind", "span", "--task.train", train, "--task.dev", dev, "--data.length",
             32, "--task.stride", 8, "--steps", 2, "--data.batch", 8, "--dir", run)  # fmt: skip
    result = json_of("evaluate", run, "--submission", tmp_path / "to", "--dev", test)
    given = json.loads((tmp_path / "to" / "predictions.json").read_text())
    answers = contexture.predict(run, [(question, CONTEXT) for question in ASKED])
    assert list(given) == ["q0", "q1", "q2"] and result["submission"][0]["examples"] == 3
    assert [*given.values()] == [each["prediction"] for each in answers]
    assert (tmp_path / "to" / "na_probs.json").exists() == unanswerable
    if unanswerable:
        odds = [each["null_score"] for each in answers]
        none = json.loads((tmp_path / "to" / "na_probs.json").read_text())
        assert [*none.values()] == pytest.approx([1 / (1 + math.exp(-x)) for x in odds])


def test_no_form_no_file_and_other_labels_are_one_line(named, task_run, tiny_run, tmp_path, capsys):
    file = write_table(tmp_path / "test.tsv", "text", SENTENCES)
    cola = named("classify", "cola", NLI)
    for words, line in (
        ([task_run("classify")], "is classify, which has no form of submission; there are cola, sst2,"),
        ([tiny_run], "is a pretraining, which has no form of submission"),
        ([cola, "--dev", file], "has the label entailment, which is none of GLUE cola; it has unacceptable"),
        ([named("classify", "mnli", NLI), "--dev", file], "says neither matched, mismatched nor diagnostic"),
        ([named("regress", "stsb", [])], "glue/stsb"),
        ([tmp_path / "stsb", "--dev", file, file], "would both be STS-B.tsv; give one of them"),
        ([tmp_path / "stsb", "--dev", tmp_path / "none.tsv"], "none.tsv: submission names no such file"),
        ([tmp_path / "stsb", "--dev", file, "--step", "all"], "a submission is of one checkpoint"),
        ([tmp_path / "stsb", "--dev", file, "--step", "7"], "holds no checkpoint of step 7"),
        ([tmp_path / "stsb", "--dev", file, "--mesh.distributed"], "submission is for one process"),
    ):
        code, err = run_command(capsys, "evaluate", *words, "--submission", tmp_path / "to")
        assert code == 2 and line in err.splitlines()[-1] and "Traceback" not in err, (words, err)
        assert not (tmp_path / "to").exists(), words
    code, err = run_command(capsys, "evaluate", tmp_path / "stsb", "--dev", file, "--submission", file)
    assert code == 2 and f"--submission {file} is a file; give a folder" in err


def test_several_runs_fill_one_folder(named, tmp_path, capsys):
    runs = [named("regress", "stsb", []), named("classify", "mnli", NLI)]
    file = write_table(tmp_path / "test_matched.tsv", "text", SENTENCES)
    result = json_of("evaluate", *runs, "--dev", file, "--submission", tmp_path / "glue")
    assert sorted(each.name for each in (tmp_path / "glue").iterdir()) == ["MNLI-m.tsv", "STS-B.tsv"]
    assert [len(one["submission"]) for one in result["runs"]] == [1, 1]
    shutil.copytree(tmp_path / "stsb", tmp_path / "again")
    code, err = run_command(
        capsys, "evaluate", runs[0], tmp_path / "again", "--dev", file, "--submission", tmp_path / "to"
    )
    assert code == 2 and f"again would both write {tmp_path / 'to' / 'STS-B.tsv'}; evaluate one of them" in err
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("tfds:glue/mnli_matched:test", "MNLI-m.tsv"),
        ("tfds:glue/mnli_mismatched:test", "MNLI-mm.tsv"),
        ("tfds:glue/ax:test", "AX.tsv"),
        ("matched/Test_Mismatched.tsv", "MNLI-mm.tsv"),
        ("glue/AX.tsv", "AX.tsv"),
    ],
)
def test_a_file_has_the_name_of_its_part_of_mnli(source, name):
    assert submission._name_of(submission._GLUE["mnli"], source) == name


@pytest.mark.parametrize("names", [("sentence1", "sentence2"), ("#1 String", "#2 String")])
def test_glues_own_columns_are_read_where_a_task_names_those_of_tfds(names):
    of_tfds = TaskConfig(kind="classify", text="premise", second="hypothesis")
    read = submission._with_columns(of_tfds, ("index", *names))
    assert (read.text, read.second) == names
    assert submission._with_columns(of_tfds, ("Premise", "hypothesis", *names)) == of_tfds


@pytest.mark.parametrize(
    ("task", "file", "labels"),
    [
        ("cola", "CoLA.tsv", {"unacceptable": "0", "acceptable": "1", "0": "0", "1": "1"}),
        ("sst2", "SST-2.tsv", {"negative": "0", "positive": "1", "0": "0", "1": "1"}),
        ("mrpc", "MRPC.tsv", {"not_equivalent": "0", "equivalent": "1", "0": "0", "1": "1"}),
        ("stsb", "STS-B.tsv", {}),
        ("qqp", "QQP.tsv", {"not_duplicate": "0", "duplicate": "1", "0": "0", "1": "1"}),
        ("mnli", "", {name: name for name in ("entailment", "neutral", "contradiction")}),
        ("qnli", "QNLI.tsv", {name: name for name in ("entailment", "not_entailment")}),
        ("rte", "RTE.tsv", {name: name for name in ("entailment", "not_entailment")}),
        ("wnli", "WNLI.tsv", {"not_entailment": "0", "entailment": "1", "0": "0", "1": "1"}),
    ],
)
def test_each_task_of_glue_has_its_file_and_its_labels(task: str, file: str, labels: dict[str, str]):
    """As gluebenchmark.com takes them."""
    form = submission._GLUE[task]
    assert (form.file, dict(form.labels)) == (file, labels) and submission._GLUE.keys() == {
        *("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
    }
