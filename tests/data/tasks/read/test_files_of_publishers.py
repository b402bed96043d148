"""Named tasks read small files in their publishers' own forms, and TFDS sets; what is missing is one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from contexture.configs import task, task_recipes
from contexture.data.config import TaskConfig
from contexture.data.errors import DataError
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tasks.read.examples import Answer, ChoiceExample, Example, Pair, QuestionExample, Tagged, Text
from contexture.data.tasks.read.file_report import FileReport
from contexture.data.tasks.read.published.publishers import SETS
from contexture.data.tasks.read.read_examples import check_examples, check_sources, examples, source_of
from contexture.data.tokenizers.char_level import Characters
from tests.conftest import ROOT
from tests.helpers.commands import done, json_of, run_command
from tests.helpers.tfds_sets import build
from tests.train.run.test_formats import GOLDEN

CHARACTERS = Characters([*(chr(x) for x in range(32, 127)), *"هوي\u00a0"])


def lines(*rows: object) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)) + "\n" for row in rows)


def tabs(*rows: str) -> str:
    return lines(*(row.replace("|", "\t") for row in rows))


SNLI_PAIR = {"annotator_labels": ["neutral"], "captionID": "1.jpg#4", "gold_label": "neutral", "pairID": "1.jpg#4r1n",
             "sentence1": "A man.", "sentence1_binary_parse": "( A man . )", "sentence2": "A boy."}  # fmt: skip
STORY = ("InputStoryid,InputSentence1,InputSentence2,InputSentence3,InputSentence4,RandomFifthSentenceQuiz1,"
         "RandomFifthSentenceQuiz2,AnswerRightEnding")  # fmt: skip
XNLI = "language|gold_label|sentence1_binary_parse|sentence1|sentence2|pairID|match"
PASSAGE = {"article": "Ann has a cat.", "questions": ["Who has a cat?", "Ann has _ ."], "answers": ["B", "D"],
           "options": [["Bo", "Ann", "Cy", "Di"], ["a dog", "a cow", "a rat", "a cat"]], "id": "high1.txt"}  # fmt: skip
STEM = {"answerKey": "E", "id": "x1", "question": {"question_concept": "door", "stem": "Where is a door?", "choices": [
    {"label": letter, "text": f"place {letter}"} for letter in "ABCDE"]}}  # fmt: skip
UD = "# sent_id = 1\n1-2|don't|_|_|_|_|_|_|_|_\n1|do|do|AUX|VBP|_|0|root|_|_\n2|n't|not|PART|RB|_|1|advmod|_|_\n"
FILES: dict[str, dict[str, str]] = {
    "snli": {f"snli_1.0_{split}.jsonl": lines({**SNLI_PAIR, "gold_label": "-"}, SNLI_PAIR)
             for split in ("train", "dev", "test")},
    "xnli": {
        "multinli.train.en.tsv": tabs("premise|hypo|label", 'He " left .|He stayed .|contradictory'),
        **{f"xnli.{split}.tsv": tabs(XNLI, "ar|neutral|x|هو|هي|1|True", "de|entailment|x|Er ging.|Er kam.|1|True")
           for split in ("dev", "test")},
    },
    "sst5": {f"{split}.txt": lines("(3 (2 (2 It) (2 -LRB-)) (4 (2 8\u00a01\\/2) (3 works)))", "(0 (1 Bad) (2 .))")
             for split in ("train", "dev", "test")},
    "swag": {f"{split}.csv": lines(
        ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label",
        '0,lsmdc1,18313,He sits. She,"He sits, tired.",She,gold,waves.,"sings, too.",runs.,"says ""no"".",2')
        for split in ("train", "val")},
    "race": {f"{split}/{level}/{number}.txt": json.dumps(PASSAGE) for split in ("train", "dev", "test")
             for level, number in (("high", 1), ("middle", 2))},
    "commonsense_qa": {f"{split}_rand_split.jsonl": lines(STEM) for split in ("train", "dev")},
    "copa": {f"{split}.jsonl": lines(
        {"premise": "It fell.", "choice1": "I hit it.", "choice2": "I saw it.", "question": "cause", "label": 0,
         "idx": 0}, {"premise": "It fell.", "choice1": "It broke.", "choice2": "It flew.", "question": "effect",
                     "label": 1, "idx": 1}) for split in ("train", "val")},
    "roc_stories": {f"cloze_test_{split}__spring2016 - cloze_test_ALL_{split}.csv": lines(
        STORY, *(f'{n},One {n}.,Two.,"Three, yes.",Four.,Good.,Bad.,{1 + n % 2}' for n in range(count)))
        for split, count in (("val", 20), ("test", 2))},
    "conll2003_documents": {f"eng.{split}": lines(
        "-DOCSTART- -X- O O", "", "EU NNP I-NP I-ORG", "rejects VBZ I-VP O", "", "-DOCSTART- -X- O O", "",
        "Ann NNP I-NP I-PER") for split in ("train", "testa", "testb")},
    "wnut17": {name: tabs("@bo|O", "in|O", "New|B-location", "York|I-location", "", "ok|O", "\t") for name in (
        "wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated")},
    "ud_pos": {f"en_ewt-ud-{split}.conllu": tabs(UD) + "\n" for split in ("train", "dev", "test")},
    "chnsenticorp": {f"{split}.tsv": tabs("label|text_a", "1|很好", "0|“差”") for split in ("train", "dev", "test")},
    "lcqmc": {f"{split}.tsv": tabs("text_a|text_b|label", "你好吗|好不好|1") for split in ("train", "dev", "test")},
    "msra_ner": {f"{split}.tsv": tabs("text_a|label", "王\2在\2京|B-PER\2O\2B-LOC", "好 的|O O")
                 for split in ("train", "dev", "test")},
}  # fmt: skip
"""task: its files as their publisher ships them."""
ASKED = [("Who has a cat? Ann has a cat.", ("Bo", "Ann", "Cy", "Di"), "B"),
         ("Ann has _ . Ann has a cat.", ("a dog", "a cow", "a rat", "a cat"), "D")]  # fmt: skip
EXAMPLES: dict[str, list[Example]] = {
    "snli": [Pair("A man.", "A boy.", "neutral", "snli_1.0_train.jsonl:2")],
    "xnli": [Pair('He " left .', "He stayed .", "contradiction", "multinli.train.en.tsv:2")],
    "sst5": [Text("It ( 8\u00a01/2 works", "3", "train.txt:1"), Text("Bad .", "0", "train.txt:2")],
    "swag": [ChoiceExample("He sits, tired.", ("She waves.", "She sings, too.", "She runs.", 'She says "no".'), "2",
                           "train.csv:2")],
    "race": [ChoiceExample(*ASKED[(n + 1) % 2], f"train:{n}") for n in range(1, 5)],
    "commonsense_qa": [ChoiceExample("Where is a door?", tuple(f"place {x}" for x in "ABCDE"), "E",
                                     "train_rand_split.jsonl:1")],
    "copa": [ChoiceExample("It fell. What was the cause of this?", ("I hit it.", "I saw it."), "0", "train.jsonl:1"),
             ChoiceExample("It fell. What happened as a result?", ("It broke.", "It flew."), "1", "train.jsonl:2")],
    "roc_stories": [ChoiceExample(f"One {n}. Two. Three, yes. Four.", ("Good.", "Bad."), str(1 + n % 2),
                    f"cloze_test_val__spring2016 - cloze_test_ALL_val.csv:{n + 2}") for n in range(20)],
    "conll2003_documents": [Tagged(("EU", "rejects"), ("I-ORG", "O"), "eng.train:3"),
                            Tagged(("Ann",), ("I-PER",), "eng.train:8")],
    "wnut17": [Tagged(("@bo", "in", "New", "York"), ("O", "O", "B-location", "I-location"), "wnut17train.conll:1"),
               Tagged(("ok",), ("O",), "wnut17train.conll:6")],
    "ud_pos": [Tagged(("do", "n't"), ("AUX", "PART"), "en_ewt-ud-train.conllu:3")],
    "chnsenticorp": [Text("很好", "1", "train.tsv:2"), Text("“差”", "0", "train.tsv:3")],
    "lcqmc": [Pair("你好吗", "好不好", "1", "train.tsv:2")],
    "msra_ner": [Tagged(("王", "在", "京"), ("B-PER", "O", "B-LOC"), "train.tsv:2"),
                 Tagged(("好", "的"), ("O", "O"), "train.tsv:3")],
}  # fmt: skip
"""task: the examples of its training set."""


def put(folder: Path, name: str) -> None:
    """Writes the files of a task."""
    for file, content in FILES[name].items():
        path = folder / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, "utf-8")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONTEXTURE_DATA", str(tmp_path))
    return tmp_path


def read(path: str, config: TaskConfig, *, labelled: bool = True) -> list[Example]:
    return list(examples(path, config, labelled=labelled))


def test_every_published_set_is_a_named_task():
    named = {name for name in task_recipes() if any("published:" in path for path in task(name).task.train)}
    assert named == SETS.keys() == FILES.keys() == EXAMPLES.keys()


def test_every_named_task_stands_in_the_guide():
    guide = (ROOT / "docs" / "finetuning.md").read_text("utf-8").partition("## Named tasks")[2].partition("\n## ")[0]
    kinds = {"classify", "regress", "tag", "choice", "span"}
    assert [name for name in task_recipes().keys() - kinds if f"`{name}`" not in guide] == []


@pytest.mark.parametrize("name", FILES)
def test_a_named_task_reads_the_files_of_its_publisher(place, name):
    put(place, name)
    config = task(name).task
    check_examples(config)
    assert config.name == name and read(config.train[0], config) == EXAMPLES[name]
    for path in (*config.dev, *config.test):
        assert read(path, config), path
    named = {Path(path.partition("/")[2]).parts[0] for path in (*config.train, *config.dev, *config.test)}
    assert named == {Path(file).parts[0] for file in FILES[name]}
    # Without their labels the same texts, as for predictions.
    unlabelled = read(config.train[0], config, labelled=False)
    assert [example.origin for example in unlabelled] == [example.origin for example in EXAMPLES[name]]


ORDERS = {"snli": "entailment neutral contradiction", "xnli": "entailment neutral contradiction", "race": "A B C D",
          "commonsense_qa": "A B C D E", "roc_stories": "1 2", "copa": "0 1", "swag": "0 1 2 3", "sst5": "0 3",
          "conll2003_documents": "I-ORG I-PER O", "wnut17": "B-location I-location O"}  # fmt: skip


@pytest.mark.parametrize("name", ORDERS)
def test_labels_are_in_the_order_of_the_publisher(place, name):
    put(place, name)
    store = encode(task(name).task, CHARACTERS, place / "data")
    assert store.labels == tuple(ORDERS[name].split())
    if name == "roc_stories":  # a part of the one file is held out
        parts = [store.splits[split].examples for split in ("train", "dev")]
        assert sum(parts) == 20 and 0 < parts[1] < parts[0]
    # Digests are of the files themselves, and the run may be opened without them.
    assert all(len(source["sha256"]) == 64 for source in store.index["sources"])
    assert store.sources_changed(task(name).task) == ""


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_one_line_that_says_who_publishes_it(tmp_path, monkeypatch, name):
    config, known = task(name).task, SETS[name]
    assert "(" in known.publisher and not {*known.title} & {*"(,."}
    monkeypatch.delenv("CONTEXTURE_DATA", raising=False)
    with pytest.raises(DataError) as error:
        check_examples(config)
    for words in (config.train[0], "CONTEXTURE_DATA is not set", known.publisher, known.files):
        assert words in str(error.value) and "\n" not in str(error.value)
    monkeypatch.setenv("CONTEXTURE_DATA", str(tmp_path))
    put(tmp_path, name)
    for path in (*config.train, *config.dev, *config.test):
        file = tmp_path / path.removeprefix("published:")
        hidden = file.rename(tmp_path / "hidden")
        with pytest.raises(DataError) as error:
            check_examples(config)
        assert str(error.value) == (
            f"{path}: {file} is missing; {known.title} is published by {known.publisher}; put {known.files} into "
            f"{tmp_path / name}, as they are"
        )
        hidden.rename(file)


def test_a_missing_file_ends_the_command_before_any_work(place, capsys):
    code, message = run_command(capsys, "finetune", GOLDEN / "bert_3_steps", "--task", "sst5", "--dir", place / "run")
    assert code == 2 and message.count("\n") == 0 and f"{place / 'sst5' / 'train.txt'} is missing" in message
    assert not (place / "run").exists()


MISTAKES: dict[str, tuple[str, str, str]] = {
    "tree": ("sst5/train.txt", "(3 (2 It) (4 works)\n", "train.txt:1: no tree like (3 (2 It) (4 works)); leave the"),
    "label": ("sst5/train.txt", "(7 (2 It) (4 works))\n", "train.txt:1: no tree like"),
    "bytes": ("sst5/train.txt", "(3 (2 It) (4 caf\udce9))\n", "train.txt:1: not UTF-8 (byte 0xe9 at column 17)"),
    "header": ("swag/train.csv", "a,b\n1,2\n", "train.csv:1: there is no column 'sent1'; the columns are 'a', 'b'; "
               "give the file as its publisher ships it"),
    "passage": ("race/train", "{}",
                '1.txt: no passage of RACE, {"article": "…", "questions": […], …}; leave the file out'),
    "answers": ("race/train", json.dumps({**PASSAGE, "answers": ["A"]}), "1.txt: no passage of RACE"),
    "half": ("race/train", json.dumps({**PASSAGE, "article": "\ud800"}), "1.txt: no passage of RACE"),
    "alternative": ("commonsense_qa/train_rand_split.jsonl", lines({**STEM, "question": {"stem": "?", "choices": []}}),
                    "train_rand_split.jsonl:1: not in the form of its publisher; leave the row out"),
    "asked": ("copa/train.jsonl", FILES["copa"]["train.jsonl"].replace("effect", "reason"),
              "train.jsonl:2: not in the form of its publisher"),
    "tags": ("msra_ner/train.tsv", "text_a\tlabel\n王\2在\tO\n", "train.tsv:2: 2 words and 1 tag"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_row_in_another_form_is_one_line(place, name):
    file, content, expected = MISTAKES[name]
    where = file.partition("/")[0]
    put(place, where)
    target = place / file / "high" / "1.txt" if where == "race" else place / file
    target.write_text(content, "utf-8", "surrogateescape")
    with pytest.raises(DataError) as error:
        read(f"published:{file}", task(where).task)
    assert expected in str(error.value) and "\n" not in str(error.value)
    if where == "race":  # the rest of the folder is read
        report = FileReport("train", CHARACTERS)
        rest = examples(f"published:{file}", task(where).task, labelled=True, report=report)
        assert len([*rest]) == 2 and report.left_out == 1


def test_one_language_of_xnli_is_a_part_of_its_file(place):
    put(place, "xnli")
    config = task("xnli").task
    german = Pair("Er ging.", "Er kam.", "entailment", "xnli.test.tsv:3")
    arabic = Pair("هو", "هي", "neutral", "xnli.test.tsv:2")
    assert read("published:xnli/xnli.test.tsv:de", config) == [german]
    assert read("published:xnli/xnli.test.tsv", config) == [arabic, german]
    with pytest.raises(DataError, match=r"xnli.test.tsv: no row in 'xx'; give one of its languages, as de$"):
        read("published:xnli/xnli.test.tsv:xx", config)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "published:sawg/train.csv",
            r"sawg/train.csv: names no published file \(did you mean swag\?\); give",
        ),
        ("published:swag", r"published:swag: names no published file"),
        ("published:swag/../secret.csv", r"secret.csv: names no published file"),
        ("published:swag/train.csv:de", r"train.csv:de: SWAG has no part 'de'; leave it out$"),
        ("published:race/empty", r"empty: holds no passage \(\*.txt\); give a folder of RACE"),
    ],
)
def test_a_name_that_is_none_is_one_line(place, name, message):
    put(place, "swag")
    (place / "race" / "empty").mkdir(parents=True)
    with pytest.raises(DataError, match=message):
        read(name, task("swag").task)


def test_a_folder_of_race_is_one_source(place):
    put(place, "race")
    sizes = len(json.dumps(PASSAGE)) * 2
    assert source_of("published:race/train") == {"name": "train", "size": sizes}
    check_sources(["published:race/train/high", "published:race/train/middle"], "task.train")
    with pytest.raises(DataError, match="task.train names this file twice"):
        check_sources(["published:race/train", "published:race/train/high"], "task.train")
    apart = task("race").task
    with pytest.raises(DataError, match="task.dev names examples of task.train too"):
        encode(TaskConfig(kind="choice", train=apart.train, dev=("published:race/train/high",)), CHARACTERS,
               place / "data")  # fmt: skip


def test_paths_of_published_files_stay_names(place):
    from contexture.train.settings.run_file import with_absolute_paths

    run = task("swag")
    assert with_absolute_paths(run).task == run.task


@pytest.mark.parametrize(
    ("file", "folder"),
    [
        ("published:xnli/xnli.test.tsv:de", "xnli.test-de-4"),
        ("published:xnli/xnli.test.tsv", "xnli.test-4"),
        ("published:race/test/high", "high-4"),
        ("tfds:xquad/zh:test", "zh-test-4"),
        ("tfds:glue/sst2:train[:10%]", "sst2-train-10--4"),
        ("data/mine.test.tsv", "mine.test-4"),
    ],
)
def test_each_part_of_a_set_has_predictions_of_its_own(file, folder):
    from contexture.train.evaluation.checkpoint_results import predictions_file
    from contexture.train.evaluation.evaluate import EvaluationRequest

    written = predictions_file(Path("run"), EvaluationRequest("run", dev=file), 4)
    assert written == Path("run/evaluations", folder, "predictions.jsonl")


@pytest.mark.long
@pytest.mark.usefixtures("one_device")
def test_a_published_task_goes_the_whole_road(place):
    put(place, "xnli")
    put(place, "swag")
    for name in ("xnli", "swag"):
        done("finetune", GOLDEN / "bert_3_steps", "--task", name, "--dir", place / f"run-{name}", "--steps", 2,
             "--data.batch", 1, "--log.no-tensorboard")  # fmt: skip
    for language in ("de", "ar"):
        files = ["--dev", f"published:xnli/xnli.test.tsv:{language}"]
        assert json_of("evaluate", place / "run-xnli", *files)["examples"] == 1
        assert (place / "run-xnli" / "evaluations" / f"xnli.test-{language}-2" / "predictions.jsonl").is_file()
    words = ["predict", place / "run-swag", "--input", "published:swag/val.csv", "--to", place / "answers.jsonl"]
    assert json_of(*words)["examples"] == 1
    (answer,) = map(json.loads, (place / "answers.jsonl").read_text("utf-8").splitlines())
    assert answer["choices"][0] == "She waves." and set(answer["scores"]) == set("0123")


ROWS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "glue/wnli": {split: [{"sentence1": "Bo saw it.", "sentence2": "Bo saw.", "label": 1}]
                  for split in ("train", "validation")},
    "glue/mnli": {split: [{"premise": f"In {split}.", "hypothesis": "No.", "label": 2}]
                  for split in ("train", "validation_matched", "validation_mismatched")},
    "squad/v1.1": {split: [{"id": split, "title": "x", "context": "Ann ran.", "question": "Who?",
                            "answers": {"text": ["Ann"], "answer_start": [0]}}] for split in ("train", "validation")},
    "xquad/de": {"test": [{"id": "t", "title": "x", "context": "Es war Ann.", "question": "Wer?",
                           "answers": {"text": ["Ann"], "answer_start": [7]}}]},
}  # fmt: skip
IN_TFDS: dict[str, list[Example]] = {
    "wnli": [Pair("Bo saw it.", "Bo saw.", "entailment", f"tfds:glue/wnli:{split}:0")
             for split in ("train", "validation")],
    "mnli": [Pair(f"In {split}.", "No.", "contradiction", f"tfds:glue/mnli:{split}:0")
             for split in ("train", "validation_matched", "validation_mismatched")],
    "xquad": [*(QuestionExample(split, "Who?", "Ann ran.", (Answer("Ann", 0),), f"tfds:squad/v1.1:{split}:0")
                for split in ("train", "validation")),
              QuestionExample("t", "Wer?", "Es war Ann.", (Answer("Ann", 7),), "tfds:xquad/de:test:0")],
}  # fmt: skip


@pytest.mark.parametrize("name", IN_TFDS)
def test_a_named_task_reads_its_sets_of_tfds(tmp_path, monkeypatch, name):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    config = task(name).task
    paths = (*config.train, *config.dev, *config.test)
    with pytest.raises(DataError, match=r"is not in .*; set TFDS_DATA_DIR"):
        check_examples(config)
    for each in {path.split(":")[1] for path in paths}:
        build(tmp_path, each, ROWS[each])
    check_examples(config)
    assert [example for path in paths for example in read(path, config)] == IN_TFDS[name]
