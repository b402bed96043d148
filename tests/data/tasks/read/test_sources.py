"""The same examples from a file and from a TFDS set give the same run, to the last bit."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import contexture
from contexture.cli import main as cli
from contexture.data.tasks.store.example_store import row_type
from contexture.train.settings.run_file import read
from tests.conftest import TINY
from tests.helpers.commands import done
from tests.helpers.tfds_sets import build
from tests.train.run.test_formats import GOLDEN

pytestmark = [pytest.mark.usefixtures("one_device"), pytest.mark.long]

BASE = GOLDEN / "bert_3_steps"
SPEED = ("tokens_per_second", "seconds_left", "mfu", "data_wait")
rng = random.Random(3)


def sentence() -> str:
    return " ".join(
        rng.choices(["the", "cat", "river", "likes", "old", "house", "Under", "“stars”"], k=rng.randint(2, 9))
    )


OPINIONS = {split: [{"sentence": sentence(), "label": rng.randint(0, 1)} for _ in range(count)]
            for split, count in (("train", 40), ("validation", 11))}  # fmt: skip
ALIKE = {split: [{"sentence1": sentence(), "sentence2": sentence(), "label": rng.randint(0, 50) / 10}
                 for _ in range(count)] for split, count in (("train", 40), ("validation", 11))}  # fmt: skip


@pytest.fixture(scope="module")
def documents(text_folder: Path) -> list[str]:
    """Of several lines each, which a set's example and a text file border alike."""
    return (text_folder / "text0.txt").read_text().strip().split("\n\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    """The sets as TFDS leaves them in `sets`, and beside it the same examples in files."""
    folder = tmp_path_factory.mktemp("sources")
    build(folder / "sets", "glue/sst2", OPINIONS)
    build(folder / "sets", "glue/stsb", ALIKE)
    build(folder / "sets", "lm1b", {"train": [{"text": text} for text in documents]})
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n", "utf-8")
    for split in ("train", "validation"):
        names = ["negative", "positive"]
        lines = ["sentence\tlabel", *(f"{row['sentence']}\t{names[row['label']]}" for row in OPINIONS[split])]
        (folder / f"sst2.{split}.tsv").write_text("\n".join(lines) + "\n", "utf-8")
        records = [json.dumps(row, ensure_ascii=False) + "\n" for row in ALIKE[split]]
        (folder / f"stsb.{split}.jsonl").write_text("".join(records), "utf-8")
    return folder


@pytest.fixture(autouse=True)
def sets(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFDS_DATA_DIR", str(place / "sets"))


def figures(run: Path) -> list[dict[str, Any]]:
    """Every record of metrics.jsonl, without how fast it went."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    of_steps = [record for record in records if record["split"] != "goodput"]
    return [{name: value for name, value in record.items() if name not in SPEED} for record in of_steps]


def assert_same(one: Path, other: Path) -> None:
    assert len(figures(one)) >= 5 and figures(one) == figures(other)
    first, second = (jax.tree_util.tree_leaves_with_path(contexture.load(run)[1]) for run in (one, other))
    assert [path for path, _ in first] == [path for path, _ in second]
    assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(first, second, strict=True))


def finetune(run: Path, *words: object) -> None:
    done("finetune", BASE, "--dir", run, "--steps", 4, "--data.batch", 8, "--log.no-tensorboard", *words)


def from_files(files: Sequence[Path]) -> list[object]:
    return ["--task.train", files[0], "--task.dev", files[1]]


def rate_of(run: Path) -> list[object]:
    """A task has a rate of its own."""
    return ["--optim.peak-lr", read(run).run.optim.peak_lr]


@pytest.fixture(scope="module")
def named(place: Path) -> Path:
    """A fine-tuning for a task by its name alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFDS_DATA_DIR", str(place / "sets"))
        finetune(place / "named", "--task", "sst2")
    return place / "named"


def test_a_file_and_a_set_of_the_same_sentences_are_the_same_examples(place, named):
    """Encoded to the same bytes; another test trains on both."""
    files = [place / f"sst2.{split}.tsv" for split in ("train", "validation")]
    words = ["finetune", BASE, "--dir", place / "encoded", "--task.kind", "classify", *from_files(files)]
    assert cli.main([*map(str, words), "--data.batch", "8", "--evaluate.metric", "bleu"]) == 2
    for split in ("train", "dev"):
        folders = (named / "data", place / "encoded" / "data")
        tokens, others = ((folder / f"{split}-tokens.bin").read_bytes() for folder in folders)
        assert tokens == others != b""
        rows, theirs = (np.fromfile(folder / f"{split}-rows.bin", row_type("classify")) for folder in folders)
        for name in ("a", "b", "end", "label"):  # all but the line, which a set counts from 0
            assert np.array_equal(rows[name], theirs[name]), name


@pytest.mark.long
def test_a_file_and_a_set_of_the_same_sentences_are_one_run(place, named):
    files = [place / f"sst2.{split}.tsv" for split in ("train", "validation")]
    finetune(place / "file", "--task.kind", "classify", *rate_of(named), *from_files(files))
    assert_same(named, place / "file")
    labels = [json.loads((run / "run.json").read_text())["labels"] for run in (named, place / "file")]
    assert labels == [["negative", "positive"]] * 2


@pytest.mark.long
def test_a_file_and_a_set_of_the_same_pairs_and_numbers_are_one_run(place):
    """TFDS keeps the numbers as float32; the file says them in decimals."""
    files = [place / f"stsb.{split}.jsonl" for split in ("train", "validation")]
    finetune(place / "pairs", "--task", "stsb")
    words = ["--task.kind", "regress", *rate_of(place / "pairs"), *from_files(files)]
    finetune(place / "pairs_file", *words)
    assert_same(place / "pairs", place / "pairs_file")


def test_a_task_by_its_name_goes_the_whole_road(capsys, place, named):
    capsys.readouterr()
    done("evaluate", named, "--json")
    result = json.loads(capsys.readouterr().out)
    assert result["examples"] == 11 and {"accuracy", "f1", "matthews"} <= set(result["metrics"])
    answers = [json.loads(line) for line in Path(result["predictions"]).read_text().splitlines()]
    assert [answer["id"] for answer in answers] == [f"tfds:glue/sst2:validation:{n}" for n in range(11)]
    done("predict", named, "--input", place / "sst2.validation.tsv", "--to", place / "answers.jsonl", "--json")
    assert json.loads(capsys.readouterr().out)["examples"] == 11
    again = [json.loads(line) for line in (place / "answers.jsonl").read_text().splitlines()]
    assert [answer["prediction"] for answer in again] == [answer["prediction"] for answer in answers]
    assert [answer["text"] for answer in again] == [row["sentence"] for row in OPINIONS["validation"]]
    for one, other in zip(answers, again, strict=True):
        assert one["scores"] == pytest.approx(other["scores"], abs=2e-6)


@pytest.mark.long
def test_a_text_file_and_a_set_of_the_same_documents_are_one_pretraining(place):
    words = ["pretrain", "bert.tiny", *TINY, "--steps", 6, "--log.no-tensorboard"]
    for run, path in (("text", place / "text.txt"), ("set", "tfds:lm1b")):
        done(*words, "--data.path", path, "--dir", place / run)
    assert_same(place / "text", place / "set")
    one, other = ((place / run / "tokenizer" / "vocab.txt").read_bytes() for run in ("text", "set"))
    assert one == other
