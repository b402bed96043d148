"""Questions in files: SQuAD's own form, tables, TFDS; stored and read back by number; mistakes in one line."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from contexture.data.config import DataConfig, TaskConfig
from contexture.data.errors import DataError
from contexture.data.packing import apart
from contexture.data.tasks.batch.batches import HeldOutTask
from contexture.data.tasks.batch.training_batches import TaskBatches
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tasks.read.answers import check_placed
from contexture.data.tasks.read.examples import Answer, QuestionExample
from contexture.data.tasks.read.file_report import FileReport
from contexture.data.tasks.read.read_examples import examples
from contexture.data.tasks.store.example_store import ExampleStore
from contexture.data.tasks.store.span_store import UNSPELLED
from contexture.data.tokenizers.wordpiece import WordPiece
from tests.helpers.slow_pairs import vocabulary

SPAN = TaskConfig(kind="span")
PIECES = WordPiece([*vocabulary(), *"abcdefgh", *(f"##{x}" for x in "abcdefgh")], lowercase=True)
CONTEXT = "ab cd ef gh"


def squad(*questions: dict[str, object], context: object = CONTEXT, **more: object) -> dict[str, object]:
    """A file in SQuAD's form with one paragraph."""
    return {
        "version": "v2.0",
        "data": [{"title": "x", "paragraphs": [{"context": context, "qas": [*questions]}]}],
        **more,
    }


def question(number: int, text: str = "cd", start: int = 3, **more: object) -> dict[str, object]:
    return {"id": f"q{number}", "question": "ab?", "answers": [{"text": text, "answer_start": start}], **more}


NONE = {"id": "none", "question": "gh?", "answers": [], "is_impossible": True,
        "plausible_answers": [{"text": "ef", "answer_start": 6}]}  # fmt: skip


def written(folder: Path, name: str, content: object) -> str:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    (folder / name).write_text(text, "utf-8")
    return str(folder / name)


def read(path: str, task: TaskConfig = SPAN, *, labelled: bool = True) -> list[QuestionExample]:
    return [each for each in examples(path, task, labelled=labelled) if isinstance(each, QuestionExample)]


def test_a_file_of_squad_is_read_as_its_publisher_ships_it(tmp_path):
    several = question(1)
    several["answers"] = [{"text": "cd", "answer_start": 3}, {"text": "cd ef", "answer_start": 3}]
    path = written(tmp_path, "dev.json", squad(several, NONE))
    assert read(path) == [
        QuestionExample("q1", "ab?", CONTEXT, (Answer("cd", 3), Answer("cd ef", 3)), "dev.json:1"),
        QuestionExample("none", "gh?", CONTEXT, (), "dev.json:2"),
    ]
    assert [each.answers for each in read(path, labelled=False)] == [None, None]


TABLES = {
    "a.jsonl": "\n".join(
        json.dumps(row)
        for row in (
            {"question": "ab?", "context": CONTEXT, "answers": {"text": ["cd"], "answer_start": [3]}},
            {"question": "ab?", "context": CONTEXT, "answers": [{"text": "cd", "answer_start": 3}]},
            {"question": "ab?", "context": CONTEXT, "answers": "cd"},
            {"question": "ab?", "context": CONTEXT, "answers": ["cd"]},
            {"question": "ab?", "context": CONTEXT, "answers": None},
            {"question": "ab?", "context": CONTEXT, "answers": {"text": [], "answer_start": []}},
        )
    ),
    "b.tsv": f"question\tcontext\tanswer\tanswer_start\nab?\t{CONTEXT}\tcd\t3\n"
    f"ab?\t{CONTEXT}\tcd\t\nab?\t{CONTEXT}\t\t\n",
    "c.json": json.dumps([{"id": 7, "query": "ab?", "passage": CONTEXT, "answer": "cd", "start": 3}]),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_read_by_the_usual_names_of_their_columns(tmp_path, name):
    given = read(written(tmp_path, name, TABLES[name]))
    answered = {"a.jsonl": 4, "b.tsv": 2, "c.json": 1}[name]
    assert [each.answers for each in given[:answered]] == [(Answer("cd", 3),)] * answered
    assert [each.answers for each in given[answered:]] == [()] * (len(given) - answered)
    assert {(each.question, each.context) for each in given} == {("ab?", CONTEXT)}
    assert [each.id for each in given] == (["7"] if name == "c.json" else [each.origin for each in given])


def test_places_that_a_table_holds_as_fractions_are_read_if_whole(tmp_path):
    rows = f"question,context,answer,answer_start\nab?,{CONTEXT},cd,3.0\ngh?,{CONTEXT},,\n"
    assert [each.answers for each in read(written(tmp_path, "a.csv", rows))] == [(Answer("cd", 3),), ()]
    for place in ("3.5", "nan", "inf", "1e400", "three", "1_0", "\u0663"):
        rows = f"question,context,answer,answer_start\nab?,{CONTEXT},cd,{place}\n"
        with pytest.raises(DataError, match=f"the answer begins at '{place}'; give the number of its first"):
            read(written(tmp_path, "b.csv", rows))
    huge = json.dumps({"question": "ab?", "context": CONTEXT, "answers": "cd", "answer_start": 10**400})
    (example,) = read(written(tmp_path, "c.jsonl", huge))
    with pytest.raises(DataError, match="the answer 'cd' is not at character 1000"):
        check_placed(example)


def test_a_csv_without_a_header_is_read_by_positions(tmp_path):
    out = io.StringIO()
    csv.writer(out).writerow([3, "a, b?", CONTEXT, "cd"])
    task = TaskConfig(kind="span", text="2", second="3", label="4", answer_start="1")
    (given,) = read(written(tmp_path, "a.csv", out.getvalue()), task)
    assert given.question == "a, b?" and given.answers == (Answer("cd", 3),)


def test_a_set_of_tfds_is_read(tmp_path, monkeypatch):
    from tests.helpers.tfds_sets import build

    rows = [
        {"id": "q1", "title": "x", "context": "é cd", "question": "ab?",
         "answers": {"text": ["cd", "é cd"], "answer_start": [2, 0]}},
        {"id": "q2", "title": "x", "context": "é cd", "question": "ab?", "answers": {"text": [], "answer_start": []}},
    ]  # fmt: skip
    build(tmp_path, "squad/v1.1", {"validation": rows})
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    first, second = read("tfds:squad/v1.1:validation")
    assert (first.id, first.answers) == ("q1", (Answer("cd", 2), Answer("é cd", 0)))
    assert (second.id, second.answers) == ("q2", ())


MISTAKES = {
    "cut.json": ('{"data": [', "cut.json:1: not JSON (Expecting value); a *.json in SQuAD's form is"),
    "deep.json": ('{"data": ' + "[" * 100_000, "deep.json: not JSON (nested too deep)"),
    "other.json": ({"rows": []}, "other.json: no list 'data' where SQuAD's form has one"),
    "article.json": ({"data": [{"title": "x"}]}, "article.json: no list 'paragraphs' where SQuAD's form has one"),
    "list.json": ({"data": ["x"]}, "list.json: no list 'paragraphs' where SQuAD's form has one"),
    "none.json": (squad(), "none.json: no question in the file"),
    "string.json": (squad("why?"), "string.json:1: a question is no object"),  # pyright: ignore[reportArgumentType]
    "half.json": (squad(question(1, "cd", 3.5)), "half.json:1: the answer begins at 3.5; give the"),  # pyright: ignore[reportArgumentType]
    "true.json": (squad(question(1, "cd", True)), "true.json:1: the answer begins at True; give the number"),
    "empty.json": (squad(question(1, "", 3)), "empty.json:1: an answer is ''; give a text, or no answer at all"),
    "number.json": (squad({"id": "q", "question": 7, "answers": []}), "is the number 7, no string; give a string"),
    "context.json": (squad(question(1), context=None), "the context (column 'context') is null, no string"),
    "answers.json": (squad({"id": "q", "question": "ab?", "answers": 7}), "answers.json:1: the answers are of type"),
    "no_answers.json": (squad({"id": "q", "question": "ab?"}), "no_answers.json:1: the answers (column 'answers') is"),
    "twice.json": (squad(question(1), question(1)), "twice.json:2: the id 'q1' is that of twice.json:1 too; give each"),
    "surrogate.json": ('{"data": [{"paragraphs": [{"context": "\\ud800", "qas": [{"question": "a"}]}]}]}',
                       "surrogate.json:1: half a character"),
    "lines.json": ('{"question": "ab?"}\n{"question": "cd?"}\n',
                   "lines.json:2: not JSON (Extra data); if every line is an object, name the file *.jsonl; a *.json"),
    "uneven.jsonl": (
        '{"question": "ab?", "context": "ab cd", "answers": {"text": ["ab"], "answer_start": []}}',
        "uneven.jsonl:1: 1 answers and 0 places; give each answer one",
    ),
    "columns.tsv": ("question\tanswers\nab\tcd\n", "columns.tsv:1: no column has a usual name of the context"),
    "unlabelled.tsv": ("question\tcontext\nab\tcd\n", "unlabelled.tsv:1: no column has a usual name of the answers"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_line(tmp_path, name):
    content, message = MISTAKES[name]
    with pytest.raises(DataError) as error:
        read(written(tmp_path, name, content))
    assert message in str(error.value) and "\n" not in str(error.value)


WRONG_PLACES = [
    ({"text": "cd", "answer_start": 4}, "1: the answer 'cd' is not at character 4 of its context (it is at 3); count"),
    ({"text": "xy", "answer_start": 99}, "1: the answer 'xy' is not at character 99 of its context; count from 0"),
    ({"text": "gh", "answer_start": -2}, "1: the answer 'gh' is not at character -2 of its context (it is at 9)"),
    ({"text": "xy", "answer_start": 0}, "1: the answer 'xy' is not at character 0 of its context; count from 0"),
    ("xy", "1: the answer 'xy' is not in its context; copy it letter for letter"),
]
GOOD = {"text": "cd", "answer_start": 3}


def encoded(folder: Path, **files: list[object]) -> ExampleStore:
    """Files of questions with these answers, encoded."""
    paths = {}
    for name, answers in files.items():
        lines = [json.dumps({"question": "ab?", "context": CONTEXT, "answers": each}) for each in answers]
        paths[name] = (written(folder, f"{name}.jsonl", "\n".join(lines)),)
    return encode(TaskConfig(kind="span", **paths), PIECES, folder / "data", length=16)


@pytest.mark.parametrize(("wrong", "message"), WRONG_PLACES)
def test_training_needs_an_answer_at_its_place(tmp_path, wrong: object, message: str):
    with pytest.raises(DataError) as error:
        encoded(tmp_path, train=[[wrong]])
    assert str(error.value).startswith(f"train.jsonl:{message}")


@pytest.mark.parametrize(("wrong", "message"), WRONG_PLACES)
def test_an_answer_at_a_wrong_place_leaves_the_others(tmp_path, wrong: object, message: str):
    """In training another teaches the place; evaluation compares texts, and wants no place at all."""
    store = encoded(tmp_path, train=[[wrong, GOOD]], dev=[[wrong], [GOOD, wrong], [wrong, GOOD]])
    text = wrong if isinstance(wrong, str) else wrong["text"]  # pyright: ignore[reportIndexIssue]
    train, dev = (store.splits[name].spans for name in ("train", "dev"))
    assert train is not None and dev is not None
    labels = [split.labels.read(np.array([0]), np.array([split.count]))["start"].tolist() for split in (train, dev)]
    assert labels == [[5], [UNSPELLED, 5, 5]]  # behind the three pieces of "ab?" and those of "ab"
    texts = [[answer.text for answer in dev.read(record, "").answers or ()] for record in dev.take(np.arange(3))]
    assert texts == [[text], ["cd", text], [text, "cd"]]


def test_a_few_odd_questions_are_left_out_and_counted(tmp_path):
    good = [question(number) for number in range(30)]
    path = written(tmp_path, "train.json", squad(*good, question(30, "cd", 3.5), question(3)))  # pyright: ignore[reportArgumentType]
    report = FileReport("train.json", PIECES)
    assert len([*examples(path, SPAN, labelled=True, report=report)]) == 30
    assert report.left_out == 2 and report.rows == 32
    report.check()


def store_of(folder: Path, **more: object) -> ExampleStore:
    """12 questions with an answer, of two contexts, and one without; sequences of 16 tokens."""
    long = " ".join(["ab", "cd", "ef", "gh"] * 6)
    first = squad(*[question(number, "cd", 3 + 12 * (number % 3)) for number in range(12)], context=long)
    content = {"data": first["data"] + squad(NONE)["data"]}  # pyright: ignore[reportOperatorIssue]
    task = TaskConfig(kind="span", train=(written(folder, "t.json", content),), stride=3, question_length=4, **more)  # pyright: ignore[reportArgumentType]
    return encode(task, PIECES, folder / "data", length=16)


def test_questions_are_stored_and_read_back_by_number(tmp_path):
    store = store_of(tmp_path)
    split = store.splits["train"]
    assert split.spans is not None and split.spans.count == 13 and store.counts == (12, 1)
    records = split.spans.take(np.arange(13))
    given = [split.spans.read(record, f"t.json:{n + 1}") for n, record in enumerate(records)]
    assert given == read(str(tmp_path / "t.json"))
    # Contexts that questions share are stored once.
    assert len(set(records["context_at"].tolist())) == 2
    assert records["windows"].sum() == split.examples and records["windows"][-1] == 1
    store.verify()
    # Windows stand in the order of their questions.
    assert (
        split.take(np.arange(split.examples))["question"].tolist()
        == np.repeat(np.arange(13), records["windows"]).tolist()
    )


def test_held_out_questions_are_whole(tmp_path):
    store = store_of(tmp_path, dev_fraction=0.4)
    train, dev = (store.splits[name].spans for name in ("train", "dev"))
    assert train is not None and dev is not None and train.count + dev.count == 13 and 1 <= dev.count <= 12
    ids = [{part.read(record, "").id for record in part.take(np.arange(part.count))} for part in (train, dev)]
    assert not ids[0] & ids[1] and len(ids[0] | ids[1]) == 13
    assert sum(store.counts) == train.count


def test_every_label_points_at_its_answer(tmp_path):
    """The places in a batch are those of the answer's tokens, and 0 in windows that do not hold it."""
    store = store_of(tmp_path)
    split = store.splits["train"]
    held_out = HeldOutTask(split, PIECES, DataConfig(batch=8, length=16, max_predictions=1), 8, family="bert")
    seen = 0
    for step in range(held_out.steps):
        batch = apart(held_out.read(step))
        for row in range(held_out.batch):
            start, end = batch["starts"][row], batch["ends"][row]
            assert (start == 0) == (end == 0)
            assert bool(batch["valid"][row]) == (row < len(held_out.numbers(step)))
            if start and batch["valid"][row]:
                assert PIECES.decode(batch["tokens"][row, start : end + 1].tolist()) == "cd"
                assert batch["segments"][row, start] == 1
                seen += 1
    assert seen >= 12


def test_training_batches_are_a_function_of_their_step(tmp_path):
    store = store_of(tmp_path)
    task, config = TaskConfig(kind="span"), DataConfig(batch=8, length=16, max_predictions=1)
    batches = TaskBatches(store, PIECES, config, task, family="bert", seed=3)
    whole = batches.read(5)
    parts = [batches.read(5, np.array(rows)) for rows in ([0, 1, 2], [3, 4, 5, 6, 7])]
    # Each process has the rows that all sequences share, and of other arrays its own.
    for part in parts:
        assert all((part[name] == whole[name]).all() for name in ("tokens", "segments", "packs", "positions"))
    for name, array in apart(whole).items():
        assert (np.concatenate([apart(part)[name] for part in parts]) == array).all()
    windows = f"13 questions in {store.splits['train'].examples} windows of 16 tokens"
    assert batches.describe() == f"{windows}; 1 row of 128 tokens a batch, padding ratio 1.01"


def test_damaged_files_are_refused(tmp_path):
    store_of(tmp_path)
    for part in ("places", "labels", "questions", "texts"):
        file = tmp_path / "data" / f"train-{part}.bin"
        content = file.read_bytes()
        file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        with pytest.raises(DataError, match=f"train-{part}.bin: damaged"):
            ExampleStore.open(tmp_path / "data").verify()
        file.write_bytes(content)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 0}, "task.stride=0 is not a positive number"),
        ({"answer_length": 0}, "task.answer-length=0 is not a positive number"),
        ({"null_threshold": "often"}, "task.null-threshold=often is no number, and neither dev nor never"),
        ({"null_threshold": "nan"}, "task.null-threshold=nan is no number"),
        ({"labels": ("a", "b")}, "task.labels and task.class-weights have no meaning for task.kind=span"),
        ({"symmetric": True}, "task.symmetric has no meaning for task.kind=span"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TaskConfig(kind="span", **options)
