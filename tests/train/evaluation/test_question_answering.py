"""Question answering through the whole road: learned, evaluated alike whatever the devices, asked, resumed."""

import json
import random
import shutil
from pathlib import Path

import pytest

import contexture
from contexture.cli import main as cli
from contexture.data.config import TaskConfig
from contexture.models.config import BertConfig
from contexture.train.evaluation.evaluate import _Evaluation
from contexture.train.evaluation.request import EvaluationRequest
from contexture.train.evaluation.squad_metrics import normalised
from contexture.train.run.report import read_metrics
from contexture.train.settings.run import Run
from tests.helpers.commands import devices, done
from tests.helpers.jobs import evaluate_in_two_processes
from tests.helpers.long import long
from tests.helpers.random_runs import random_training

SIZES = {
    "bert": "--data.length 48 --optim.peak-lr 4e-3",
    "gpt": "--data.length 64 --optim.peak-lr 4e-3 --task.lm-weight 0",
    "elmo": "--data.length 40 --optim.peak-lr 1e-2 --head.cells 64",
}
PLAIN = "--optim.name adamw --optim.schedule linear --optim.eps 1e-8 --optim.frozen --data.batch 16 --save.every 1000"


@pytest.fixture(scope="session")
def question_files(once) -> Path:
    """Questions in the words of the small corpus, in SQuAD's form: 64 to learn from, 29 held out (a prime); a fifth has
    no answer."""
    return once("questions", _write_questions)


def _write_questions(folder: Path) -> None:
    rng = random.Random(3)
    folder.mkdir()
    subjects = ["the cat", "a small dog", "one old man", "the queen", "my brother", "that bird"]
    verbs = ["sees", "likes", "follows", "finds", "remembers", "paints"]
    places = ["in spring", "at night", "near the town", "with care"]
    for split, count in (("train", 64), ("dev", 29)):
        paragraphs = []
        for number in range(count):
            facts = [*zip(rng.sample(subjects, 4), rng.sample(verbs, 4), strict=True)]
            context = " ".join(f"{who} {does} the river {rng.choice(places)}." for who, does in facts)
            who, does = rng.choice(facts)
            answerable = number % 5 > 0
            does = does if answerable else next(verb for verb in verbs if verb not in [each for _, each in facts])
            answers = [{"text": who, "answer_start": context.index(f"{who} {does}")}] if answerable else []
            question = {"id": f"{split}{number}", "question": f"{does} the river", "answers": answers}
            paragraphs.append({"context": context, "qas": [{**question, "is_impossible": not answerable}]})
        (folder / f"{split}.json").write_text(json.dumps({"data": [{"title": split, "paragraphs": paragraphs}]}))


def words_of(source: Path, files: Path, family: str, folder: Path, steps: int) -> list[object]:
    words = ["finetune", source, "--task.kind", "span", "--task.train", files / "train.json", "--task.dev",
             files / "dev.json", "--task.stride", "16", *SIZES[family].split(), *PLAIN.split(),
             "--model.dropout", "0", "--steps", str(steps), "--log.every", "5", "--dir", folder]  # fmt: skip
    return words if family == "elmo" else [*words, "--model.attention-dropout", "0"]


def learned(door, source: Path, files: Path, family: str, folder: Path, steps: int) -> Path:
    ended = door(*words_of(source, files, family, folder, steps))
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture(scope="module")
def answering(tiny_run, question_files, once) -> Path:
    """A BERT whose numbers are drawn: its answers are poor, and its windows many."""

    def make(folder: Path) -> None:
        with random_training(6, evaluates=True):
            done(*words_of(tiny_run, question_files, "bert", folder, 6))

    return once("random/answering", make)


def answers_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "dev-6" / "predictions.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("sizes", [((1, 64), (1, 1)), *long((((1, 64), (8, 8)),))])
def test_figures_do_not_depend_on_devices_and_batches(answering, tmp_path, sizes):
    """29 questions with several windows each, which fall to different devices."""
    results, answers = [], []
    for count, batch in sizes:
        to = tmp_path / f"{count}-{batch}"
        with devices(count):
            results.append(contexture.evaluate(answering, batch=batch, to=str(to)))
        answers.append(answers_of(to))
    assert results[0]["examples"] == 29 == len(answers[0])
    assert {"exact_match", "f1", "best_f1", "no_answer_exact_match", "majority_exact_match"} <= results[0][
        "metrics"
    ].keys()
    for result, given in zip(results[1:], answers[1:], strict=True):
        assert result["metrics"] == pytest.approx(results[0]["metrics"], abs=1e-6)
        assert [r["prediction"] for r in given] == [r["prediction"] for r in answers[0]]
        assert [r["null_score"] for r in given] == pytest.approx([r["null_score"] for r in answers[0]], abs=1e-4)


def test_one_question_and_a_file_of_them_get_the_same_answers(answering, question_files, tmp_path, capsys):
    to = tmp_path / "answers.jsonl"
    with devices(1):
        assert cli.main(["predict", str(answering), "--input", str(question_files / "dev.json"), "--to", str(to)]) == 0
        records = [json.loads(line) for line in to.read_text("utf-8").splitlines()]
        content = json.loads((question_files / "dev.json").read_text())["data"][0]["paragraphs"]
        asked = [(each["qas"][0]["question"], each["context"]) for each in content]
        given = contexture.open(answering).predict(asked)
        assert [r["id"] for r in records] == [f"dev{n}" for n in range(29)]
        assert [r["prediction"] for r in records] == [r["prediction"] for r in given]
        capsys.readouterr()
        words = ["predict", str(answering), "--text", asked[1][0], "--second", asked[1][1]]
        assert cli.main([*words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["prediction"] == given[1]["prediction"]
        assert cli.main(words) == 0
        shown = capsys.readouterr().out
    assert "n_best\n" in shown and len(shown.split("n_best\n")[1].splitlines()) <= 6


def test_the_threshold_of_the_dev_set_is_that_of_predictions(answering):
    from contexture.train.evaluation.predict import Predictor

    (record,) = [r for r in read_metrics(answering / "metrics.jsonl") if r["split"] == "dev" and r["step"] == 6]
    with devices(1):
        rules = Predictor(answering).rules
    assert rules.unanswerable and rules.threshold == record["best_f1_threshold"]


def test_other_questions_are_evaluated_with_the_threshold_of_predictions(answering, question_files, tmp_path):
    run, to = shutil.copytree(answering, tmp_path / "run"), tmp_path / "answers.jsonl"
    file = run / "metrics.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for record in records:
        if "best_f1_threshold" in record:
            record["best_f1_threshold"] = 1e6  # never silent
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    questions = str(question_files / "dev.json")
    with devices(1):
        assert cli.main(["predict", str(run), "--input", questions, "--to", str(to)]) == 0
        result = contexture.evaluate(run, dev=questions, to=str(tmp_path / "e"))
    given = [json.loads(line)["prediction"] for line in to.read_text("utf-8").splitlines()]
    assert all(given) and [record["prediction"] for record in answers_of(tmp_path / "e")] == given
    # An answer of which nothing is left, an article alone, counts as none.
    none = [not normalised(answer) for number, answer in enumerate(given) if number % 5 == 0]
    assert result["metrics"]["no_answer_exact_match"] == sum(none) / len(none) < 1


def test_what_is_no_question_is_one_clear_line(answering, capsys):
    run = str(answering)
    mistakes = {
        ("--text", "who?"): "answers a question from its context; give the context as --second TEXT",
        ("--text", "who?", "--second", ""): "answers a question from its context; give the context as --second TEXT",
        ("--text", "who?", "--choices", "a", "b"): "--choices is for --task.kind choice, and",
        (): "give --input FILE and --to FILE, or one example: --text TEXT",
        ("--input", "x.json"): "predict needs --to FILE: contexture predict RUN --input FILE --to FILE",
        ("--to", "x", "--text", "who?"): "to= is for the predictions of a file; give it as --input FILE",
        ("--header", "no", "--text", "who?"): "header= is for a file; give it as --input FILE",
    }
    with devices(1):
        for words, message in mistakes.items():
            assert cli.main(["predict", run, *words]) == 2, words
            err = capsys.readouterr().err
            assert message in err and "Traceback" not in err, err


@pytest.mark.long
@pytest.mark.parametrize("family", SIZES)
def test_64_questions_are_learned(door, family, question_files, tmp_path, request, trained_run):
    """Through the whole road: 95 % of the training questions are answered, those without an answer too. The first run
    is a trained one: from random numbers an ELMo learns three quarters."""
    words = request.getfixturevalue(f"{'tiny' if family == 'bert' else family}_words")
    source = trained_run("whole" if family == "bert" else family, words)
    folder = learned(
        door, source, question_files, family, tmp_path / "run", {"bert": 400, "gpt": 1200, "elmo": 1000}[family]
    )
    result = contexture.evaluate(folder, split="train", to=str(tmp_path / "e"))
    assert result["examples"] == 64 and result["metrics"]["exact_match"] >= 0.95, result["metrics"]


@pytest.mark.long
@pytest.mark.parametrize("batch", [1, 6, 64])
def test_two_processes_change_no_answer(door, answering, tmp_path, batch):
    with devices(1):
        expected = contexture.evaluate(answering, to=str(tmp_path / "one"))
    result = evaluate_in_two_processes(door, answering, batch, tmp_path / "two")
    assert result["metrics"] == pytest.approx(expected["metrics"], rel=1e-6, abs=1e-6)
    one, two = answers_of(tmp_path / "one"), answers_of(tmp_path / "two")
    assert [r["prediction"] for r in two] == [r["prediction"] for r in one]


@pytest.mark.long
def test_a_run_that_is_stopped_is_the_same_run(door, tiny_run, question_files, tmp_path):
    once = learned(door, tiny_run, question_files, "bert", tmp_path / "once", 6)
    folder = learned(door, tiny_run, question_files, "bert", tmp_path / "run", 3)
    learned(door, tiny_run, question_files, "bert", folder, 6)
    whole, parts = ([r for r in read_metrics(run / "metrics.jsonl") if r["split"] == "train"] for run in (once, folder))
    assert len(parts) == 6 and [r["step"] for r in parts] == [r["step"] for r in whole]


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [
        ("span", {}, None),
        ("span", {"split": "test"}, -0.75),
        ("span", {"dev": ("other.json",)}, -0.75),
        ("tag", {"split": "test"}, None),
    ],
)
def test_other_questions_have_the_threshold_of_the_dev_set(tmp_path, kind, more, expected):
    """The dev set's own best threshold is searched anew; what is asked of test was never looked at."""
    figures = ((3, "dev", 0.5), (6, "train", 9.0), (6, "dev", -0.75), (9, "dev", 2.0))
    lines = [{"step": step, "split": split, "best_f1_threshold": value} for step, split, value in figures]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluation = object.__new__(_Evaluation)
    evaluation.folder, evaluation.run = tmp_path, Run(model=BertConfig(), task=TaskConfig(kind=kind))
    evaluation.request = EvaluationRequest(run=tmp_path, **more)
    assert evaluation._threshold(6) == expected
    assert evaluation._threshold(7) == (None if expected is None else 0.0)
