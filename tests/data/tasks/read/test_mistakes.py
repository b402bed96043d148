"""What a user of tasks may do wrong: one clear line each, with the file and its line; and what is odd but not wrong."""

import contextlib
import io
import json
import os
import shutil
from pathlib import Path

import pytest

import contexture
from contexture.cli import main as cli
from tests.cli.test_command_line import last_line_of
from tests.helpers.logs import logged
from tests.helpers.random_runs import random_training
from tests.train.run.test_formats import GOLDEN

pytestmark = pytest.mark.usefixtures("one_device")

LONG = " ".join(["the cat likes old river"] * 6)
"""30 words, where the model has 16 positions."""
ROWS = "text\tlabel\nthe cat\tlikes\nthe dog\thates\nthe cat sat\tlikes\n"
NO_LETTER = "\u200b"
"""A space without width: nothing that a vocabulary could spell."""


def word(number: int, form: str, tag: str) -> str:
    return f"{number}\t{form}\t_\t{tag}" + "\t_" * 6 + "\n"


FILES = {
    "rows.tsv": ROWS,
    "short.tsv": "text\tlabel\nthe cat\tlikes\nthe dog\n",
    "wrong.tsv": "text\tlabel\nthe cat\tlikse\n",
    "blank.tsv": "text\tlabel\nthe cat\tlikes\n\thates\n",
    "unspelled.tsv": f"text\tlabel\nthe cat\tlikes\n{NO_LETTER}\thates\n",
    "headless.tsv": "the cat\tlikes\nthe dog\thates\n",
    "alike.tsv": "text\tlabel\nthe cat\tlikes\nthe dog\tlikes\n",
    "other.tsv": "words\tlabel\nthe cat\tlikes\n",
    "head.tsv": "text\tlabel\n",
    "empty.tsv": "",
    "words.conllu": word(1, "the", "DET") + "\n" + word(1, "cat", "NOUN") + word(2, NO_LETTER, "NOUN") + "\n",
    "unequal.jsonl": '{"tokens": ["a", "b"], "tags": ["X", "Y"]}\n{"tokens": ["a", "b"], "tags": ["X"]}\n',
    "long.tsv": f"text\tlabel\nthe cat\tlikes\n{LONG}\thates\nthe cat sat\tlikes\n",
    "long.jsonl": json.dumps({"tokens": ["the", "cat"], "tags": ["X", "Y"]})
    + "\n"
    + json.dumps({"tokens": LONG.split(), "tags": ["X"] * 30})
    + "\n",
    "held.jsonl": json.dumps({"tokens": LONG.split(), "tags": ["X"] * 30}) + "\n",
    "text.txt": "The cat likes old river.\nThe old cat.\n\nThe river.\nThe cat.\n",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file, `base` (pretrained, 16 positions), `other` (of a family not known), `foreign`."""
    folder = tmp_path_factory.mktemp("mistakes")
    for name, content in FILES.items():
        (folder / name).write_text(content, "utf-8")
    for name in ("base", "other"):
        shutil.copytree(GOLDEN / "bert_3_steps", folder / name)
    described = json.loads((folder / "other" / "run.json").read_text())
    described["config"]["model"] = {"family": "xlnet"}
    (folder / "other" / "run.json").write_text(json.dumps(described))
    (folder / "foreign").mkdir()
    (folder / "foreign" / "notes.txt").write_text("mine")
    return folder


@pytest.fixture(autouse=True)
def inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("TFDS_DATA_DIR", str(place / "sets"))


def run_captured(*words: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of one command in this process."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = cli.main([str(each) for each in words])
    return code, out.getvalue(), err.getvalue()


def finetune(base: object, *words: object, steps: int = 2) -> list[object]:
    return ["finetune", base, "--data.batch", 8, "--steps", steps, "--log.no-tensorboard", *words]


def refused(capsys: pytest.CaptureFixture[str], words: list[object], line: str) -> None:
    """One line that says it, exit code 2, and nothing of how the program is built inside."""
    capsys.readouterr()
    code = cli.main([str(each) for each in words])
    err = capsys.readouterr().err
    last = err.strip().splitlines()[-1]
    assert code == 2 and line in last and last.startswith(("ConfigError: ", "DataError: ")), err
    assert "Traceback" not in err


@pytest.fixture(scope="module")
def classified(place: Path) -> tuple[Path, str]:
    """A classifier of three rows, one of them too long, and the log: first of a broken file, then of the corrected one.
    Its weights are drawn at random."""
    with pytest.MonkeyPatch.context() as patch, random_training(2):
        patch.chdir(place)
        train = place / "three.tsv"
        train.write_text(FILES["short.tsv"])
        words = finetune("base", "--task.kind", "classify", "--task.train", train, "--task.dev", "rows.tsv",
                         "--dir", "classified")  # fmt: skip
        assert run_captured(*words)[0] == 2
        train.write_text(FILES["long.tsv"])
        code, _, err = run_captured(*words)
    assert code == 0, err
    return place / "classified", err


@pytest.fixture(scope="module")
def tagged(place: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch, random_training(2):
        patch.chdir(place)
        words = ["--task.kind", "tag", "--task.train", "long.jsonl", "--task.dev", "held.jsonl", "--dir", "tagged"]
        code, _, err = run_captured(*finetune("base", *words))
    assert code == 0 and "1 of them longer, and cut" in err, err
    return place / "tagged"


@pytest.mark.parametrize(
    ("kind", "words", "line"),
    [
        ("classify", ["short.tsv"], "short.tsv:3: 1 column where the header has 2 ('text', 'label'); put a tab"),
        ("classify", ["rows.tsv", "--task.dev", "wrong.tsv"],
         "wrong.tsv:2: label 'likse' is not one of hates, likes (did you mean likes?)"),
        ("classify", ["blank.tsv"], "blank.tsv:3: the text (column 'text') is empty; fill it, or leave the row out"),
        ("tag", ["unequal.jsonl"], "unequal.jsonl:2: 2 words and 1 tag; give every word one tag"),
        ("classify", ["headless.tsv"], "headless.tsv:1: no column has a usual name of the text"),
        ("classify", ["headless.tsv"], "if this line is no header, give positions: --task.text 1 --task.label 2"),
        ("classify", ["rows.tsv", "--task.dev", "foreign/../rows.tsv"], "rows.tsv: task.dev names examples of task."),
        ("classify", ["rows.tsv", "--task.label", "labl"], "rows.tsv:1: there is no column 'labl' (did you mean"),
        ("classify", ["rows.tsv", "--task.labels", "likes", "other"], "rows.tsv:3: label 'hates' is not one of likes,"),
        ("classify", ["rows.tsv", "--task.class-weights", "liks=2"], "'liks' is not one of hates, likes (did you mean"),
        ("classify", ["alike.tsv"], "alike.tsv: every example has the label 'likes', so there is nothing to learn"),
        ("classify", ["words.conllu"], "words.conllu: holds words with tags; give it to --task.kind tag"),
        ("classify", ["empty.tsv"], "empty.tsv: the file is empty; task.train wants a row for each example"),
        ("classify", ["head.tsv"], "head.tsv: no row in the file but its header"),
        ("classify", ["rows.tsv", "--task.test", "nowhere.tsv"], "nowhere.tsv: task.test names no such file"),
        ("classify", ["rows.tsv", "--task.test", "other.tsv"], "other.tsv:1: no column has a usual name of the text"),
        ("classify", ["nowhere.tsv"], "nowhere.tsv: task.train names no such file; check the path"),
        ("classify", ["foreign"], "foreign: task.train names a folder; name the files in it"),
        ("classify", ["text.txt"], "text.txt: task.train wants *.tsv, *.csv, *.jsonl, *.json, *.conll"),
        ("classify", [], "task.train is empty; give the examples to learn from: --task.train FILE"),
        ("regress", ["rows.tsv"], "rows.tsv:2: 'likes' is not a number, which task.kind=regress wants"),
        ("classify", ["rows.tsv", "--data.path", "text.txt"], "--data.path is for pretraining on text (a task has"),
        ("classify", ["rows.tsv", "--evaluate.patience", "2"], "evaluate.patience wants held-out examples; give --"),
        ("classify", ["rows.tsv", "--data.length", "64"], "data.length=64 exceeds model.length=16; lower data.length"),
        ("classify", ["rows.tsv", "--optim.frozen", "backbone", "heads"], "backbone heads leaves nothing to train"),
        ("classify", ["rows.tsv", "--optim.frozen", "bckbone"], "is in the path of no parameter (did you mean"),
        ("classify", ["rows.tsv", "--init.step", "7"], "base holds no checkpoint of step 7"),
    ],
)  # fmt: skip
def test_examples_and_words_that_are_wrong_give_one_clear_line(capsys, tmp_path, kind, words, line):
    words = ["--task.kind", kind, *(["--task.train"] if words else []), *words, "--dir", tmp_path / "run"]
    refused(capsys, finetune("base", *words), line)


@pytest.mark.parametrize(
    ("base", "line"),
    [
        ("foreign", "foreign is not a run: it holds no run.json; give the --dir of a training"),
        ("nowhere", "nowhere is not a run: it holds no run.json"),
        ("other", "other/run.json: model.family is 'xlnet', not one of bert, gpt"),
        ("rows.tsv", "rows.tsv is not a run but a file"),
    ],
)
def test_what_is_no_run_is_named_before_anything_is_done(capsys, tmp_path, base, line):
    for command in (
        finetune(base, "--task.kind", "classify", "--task.train", "rows.tsv", "--dir", tmp_path / "run"),
        ["evaluate", base],
        ["predict", base, "--input", "rows.tsv", "--to", tmp_path / "answers.jsonl"],
        ["fill", base, "--text", "the [MASK]"],
    ):
        refused(capsys, command, line)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (finetune("base"), "finetune wants a task: contexture finetune RUN --task NAME, or --task.kind"),
        (finetune("base", "--task", "ssst2"), "there is no task 'ssst2' (did you mean sst2?); `contexture recipes`"),
        (finetune("base", "--task.kind", "classify", "--task.name", "mine"), "there is no task 'mine'"),
        (finetune("base", "--task.kind", "tag", "--task.name", "sst2"), "does not fit task.kind=tag"),
        (finetune("base", "--task", "sst2", "--dir", "run"), "tfds:glue/sst2:train: glue/sst2 is not in "),
        (finetune("base", "--task", "sst2", "--dir", "run"), "set TFDS_DATA_DIR to the folder that it is in, or"),
        (finetune("base", "--task", "sst2", "--data.path", "text.txt", "--dir", "run"), "--data.path is for"),
        (["finetune"], "finetune wants the run to begin from first: contexture finetune RUN --task NAME"),
        (["finetune", "--task", "sst2"], "finetune wants the run to begin from first"),
        (["pretrain", "bert.tiny", "--task.kind", "classify", "--dir", "run"], "task.kind"),
        (["pretrain", "base", "--dir", "run"], "base is a folder; pretrain wants a recipe first"),
    ],
)  # fmt: skip
def test_tasks_and_commands_that_do_not_fit_give_one_clear_line(capsys, words, line):
    refused(capsys, words, line)


def test_a_figure_that_is_not_measured_is_said_before_the_first_step(capsys, tmp_path):
    words = ["--task.kind", "classify", "--task.train", "rows.tsv", "--task.dev", "long.tsv", "--dir", tmp_path / "run"]
    refused(capsys, finetune("base", *words, "--evaluate.metric", "acuracy"),
            "evaluate.metric=acuracy is not measured (did you mean accuracy?); there are loss, ")  # fmt: skip
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_three_rows_are_enough(classified, tmp_path):
    run, _ = classified
    code, out, err = run_captured("evaluate", run, "--json")
    assert code == 0 and json.loads(out)["examples"] == 3, err
    code, out, err = run_captured("predict", run, "--input", "rows.tsv", "--to", tmp_path / "answers.jsonl", "--json")
    assert code == 0 and json.loads(out)["examples"] == 3 and json.loads(out)["truncated"] == 0, err
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [answer["id"] for answer in answers] == ["rows.tsv:2", "rows.tsv:3", "rows.tsv:4"]
    assert {answer["prediction"] for answer in answers} <= {"likes", "hates"}


def test_texts_longer_than_the_model_are_cut_and_counted(classified, tmp_path):
    run, err = classified
    assert "3 examples in sequences of 16 tokens; 1 of them longer, and cut" in err
    code, out, err = run_captured("predict", run, "--input", "long.tsv", "--to", tmp_path / "answers.jsonl", "--json")
    assert code == 0 and (json.loads(out)["examples"], json.loads(out)["truncated"]) == (3, 1)
    assert "truncated 1 of 3 examples to 16 tokens" in err
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert answers[1]["text"] == LONG and answers[1]["prediction"]


def test_a_text_that_is_cut_is_said_where_it_is_predicted_alone(classified):
    run, _ = classified
    for text, cut in (("the cat", False), (LONG, True)):
        code, out, err = run_captured("predict", run, "--text", text, "--json")
        assert code == 0 and json.loads(out)["truncated"] is cut
        assert ("truncated 1 of 1 examples to 16 tokens" in err) is cut
    with logged() as lines:
        records = contexture.open(run).predict([LONG, "the cat", LONG])
    assert [record.get("truncated") for record in records] == [True, None, True]
    assert lines == ["warning: truncated 2 of 3 examples to 16 tokens"]


def test_lines_that_are_cut_are_said_where_they_are_embedded(tmp_path):
    opened = contexture.open("base")
    Path(tmp_path / "lines.txt").write_text(f"the cat\n{LONG}\n")
    code, out, err = run_captured(
        "embed", "base", "--input", tmp_path / "lines.txt", "--to", tmp_path / "v.npy", "--json"
    )
    assert code == 0 and json.loads(out)["truncated"] == len(opened.tokenizer.encode([LONG])[0]) - 14
    assert "truncated 1 of 2 lines, longer than the model takes (16 tokens)" in err
    with logged() as lines:
        opened.similarity([LONG, "the cat"], LONG)
    assert lines == ["warning: truncated 2 of 3 texts, longer than the model takes (16 tokens)"]


def test_words_that_were_cut_have_no_answer_and_count_as_wrong(tagged, tmp_path):
    code, out, err = run_captured("evaluate", tagged, "--json")
    assert code == 0, err
    result = json.loads(out)
    record = json.loads(Path(result["predictions"]).read_text())
    answered = [answer for answer in record["predictions"] if answer]
    assert len(record["predictions"]) == 30 and 0 < len(answered) < 15
    assert record["predictions"][len(answered) :] == [""] * (30 - len(answered))
    assert result["metrics"]["accuracy"] == pytest.approx(answered.count("X") / 30)
    code, out, err = run_captured(
        "predict", tagged, "--input", "held.jsonl", "--to", tmp_path / "answers.jsonl", "--json"
    )
    assert code == 0 and json.loads(out)["truncated"] == 1 and "truncated 1 of 1 examples" in err
    answer = json.loads((tmp_path / "answers.jsonl").read_text())
    assert answer["predictions"] == record["predictions"] and answer["words"] == LONG.split()


def test_predict_refuses_in_one_clear_line_and_leaves_no_file(capsys, classified, tmp_path):
    run, to = classified[0], tmp_path / "answers.jsonl"
    for words, line in (
        ([run, "--input", "nowhere.tsv"], "nowhere.tsv: input names no such file; check the path"),
        ([run, "--input", "empty.tsv"], "empty.tsv: the file is empty; input wants a row for each example"),
        ([run, "--input", "head.tsv"], "head.tsv: no row in the file but its header"),
        ([run, "--input", "short.tsv"], "short.tsv:3: 1 column where the header has 2"),
        ([run, "--input", "other.tsv"], "other.tsv:1: no column has a usual name of the text"),
        ([run, "--input", "other.tsv", "--text", "wrds"], "no column 'wrds' (did you mean 'words'?)"),
        ([run, "--input", "rows.tsv", "--step", "9"], "classified holds no checkpoint of step 9"),
        (["base", "--input", "rows.tsv"], "base was pretrained and not fine-tuned for a task"),
    ):
        refused(capsys, ["predict", *words, "--to", to], line)
    assert not any(tmp_path.iterdir())
    refused(capsys, ["predict", run, "--input", "rows.tsv", "--to", "rows.tsv"], "--to rows.tsv is the input itself")
    refused(capsys, ["predict", run, "--input", "rows.tsv", "--to", tmp_path], "is a folder; give a file as --to")
    refused(capsys, ["predict", run, "--input", "rows.tsv", "--to", "rows.tsv/x"], "rows.tsv cannot be a folder")
    os.mkfifo(tmp_path / "fifo")
    refused(capsys, ["predict", run, "--input", "rows.tsv", "--to", tmp_path / "fifo"], "fifo is no plain file")
    refused(capsys, ["predict", run, "--input", "rows.tsv", "--to", to, "--batch", "0"], "batch=0 is not a positive")
    Path("pair.tsv").write_text("sentence1\tsentence2\nthe cat\tthe dog\n")
    refused(capsys, ["predict", run, "--input", "pair.tsv", "--to", to], "pair.tsv:2: a pair of texts, and a single")
    os.mkdir("begun")
    shutil.copy(Path(run) / "run.json", "begun")
    refused(capsys, ["predict", "begun", "--input", "rows.tsv", "--to", to], "begun holds no checkpoint yet; train it")
    assert Path("rows.tsv").read_text() == ROWS
    assert last_line_of(capsys, "predict", run, "--input", "other.tsv", "--to", to, "--text", "words") == (0, "")


def test_fill_refuses_in_one_clear_line(capsys, classified):
    refused(capsys, ["fill", "base", "--text", "the cat"], "the text has no [MASK]; put one where a word is wanted")
    refused(capsys, ["fill", "base", "--text", f"the [MASK] {LONG}"], "tokens, the model takes 16; give a shorter one")
    refused(capsys, ["fill", "base", "--text", "the [MASK]", "--top", "0"], "top=0 is not a positive number of tokens")
    refused(capsys, ["fill", classified[0], "--text", "the [MASK]"], "has no head for masked tokens; give a pretrained")


def test_evaluate_refuses_in_one_clear_line(capsys, classified):
    run = classified[0]
    for words, line in (
        ([run, "--split", "test"], "classified was trained without --task.test; give the file as --task.dev F"),
        ([run, "--step", "9"], "classified holds no checkpoint of step 9"),
        ([run, "--step", "1_0"], "--step 1_0: give the numbers of steps, `best`, or `all`"),
        ([run, "--step", "bst"], "--step bst: give the numbers of steps, `best`, or `all`"),
        ([run, "--task.dev", "wrong.tsv"], "wrong.tsv:2: label 'likse' is not one of hates, likes (did you mean"),
        ([run, "--task.dev", "nowhere.tsv"], "nowhere.tsv: task.dev names no such file"),
        ([run, "--task.dev", "rows.tsv", "--split", "train"], "--split train and --task.dev both choose the examples"),
        ([run, "--split", "train", "--to", "rows.tsv"], "cannot be a folder, a file is in the way; give another --to"),
        (["base", "--task.dev", "rows.tsv"], "base is a pretraining: it has its own held-out text"),
        (["base", "--split", "test"], "base is a pretraining: it has its own held-out text"),
    ):  # fmt: skip
        refused(capsys, ["evaluate", *words], line)
