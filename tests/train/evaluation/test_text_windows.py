"""A text that is longer than a sequence is read in windows, which are answered as one."""

import json
import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import contexture
from contexture.cli import main as cli
from contexture.data.config import TaskConfig
from contexture.data.errors import DataError
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tokenizers.registry import load_tokenizer
from contexture.train.evaluation.predict import Predictor
from contexture.train.evaluation.predictions import joined_windows
from tests.helpers.commands import json_of
from tests.helpers.long import long
from tests.train.run.test_formats import GOLDEN

pytestmark = pytest.mark.usefixtures("one_device")
RUN = GOLDEN / "bert_classify"
TOKENS = 22
"""Of a window: those of a sequence, 24, without the two special ones."""
WORDS = ("the", "remembers", "likes", "remember", ".", "a", "b", "c")
"""Each is one token of the run's vocabulary."""


@pytest.fixture(params=["mean", *long("max")])
def run(request, tmp_path: Path) -> Path:
    """The run, as if it had learned with --task.windows."""
    shutil.copytree(RUN, tmp_path / "run")
    tree = json.loads((tmp_path / "run" / "run.json").read_text())
    tree["config"]["task"]["windows"] = request.param
    (tmp_path / "run" / "run.json").write_text(json.dumps(tree))
    return tmp_path / "run"


def words(count: int, seed: int) -> list[str]:
    return np.random.default_rng(seed).choice(WORDS, count).tolist()


def test_a_long_text_has_the_joined_answers_of_its_windows(run: Path):
    """Against the windows as texts of their own, in the run that reads no windows; 1 to 4 of them, in one batch."""
    texts = [words(count, seed) for seed, count in enumerate((5, TOKENS, TOKENS + 1, 3 * TOKENS, 3 * TOKENS + 7))]
    whole = Predictor(RUN)
    answers = Predictor(run, batch=4)([" ".join(text) for text in texts])
    how = run.joinpath("run.json").read_text().partition('"windows": "')[2].partition('"')[0]
    windows = [[" ".join(text[first : first + TOKENS]) for first in range(0, len(text), TOKENS)] for text in texts]
    alone = iter(whole([window for own in windows for window in own]))
    for own, answer in zip(windows, answers, strict=True):
        parts = [next(alone) for _ in own]
        scores = np.array([_scores(part) for part in parts])
        joined = np.exp(np.log(scores).mean(0)) if how == "mean" else scores.max(0)
        assert _scores(answer) == pytest.approx(joined / joined.sum(), abs=3e-6)
        assert "truncated" not in answer


def _scores(answer: Any) -> list[float]:
    return list(answer["scores"].values())


def test_evaluation_counts_texts_and_not_windows(run: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("contexture.data.tasks.batch.batches.WINDOW", 2)  # texts that lie in two windows of batches
    labels = contexture.train.settings.run_file.read(run).labels  # pyright: ignore[reportAttributeAccessIssue]
    rows = [(" ".join(words(count, count)), labels[count % len(labels)]) for count in (70, 3, 23, 50, 90, 1, 22, 45)]
    file = tmp_path / "dev.tsv"
    file.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    result = json_of("evaluate", run, "--dev", file, "--batch", 2)
    predicted = [cast(Any, answer)["prediction"] for answer in Predictor(run)([text for text, _ in rows])]
    hits = [label == answer for (_, label), answer in zip(rows, predicted, strict=True)]
    assert (result["examples"], result["truncated"]) == (8, 0)
    assert result["metrics"]["accuracy"] == pytest.approx(np.mean(hits))
    assert sum(row["count"] for row in result["labels"]) == 8
    records = [json.loads(line) for line in Path(result["predictions"]).read_text().splitlines()]
    assert [(each["id"], each["prediction"]) for each in records] == [
        (f"dev.tsv:{number}", answer) for number, answer in enumerate(predicted, 2)
    ]


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 100), min_size=4, max_size=30), fraction=st.sampled_from([0.0, 0.3]), data=st.data()
)
def test_windows_hold_every_token_once_and_lie_in_one_split(tmp_path_factory, lengths, fraction, data):
    folder = tmp_path_factory.mktemp("windows")
    tokenizer = load_tokenizer(RUN / "tokenizer")
    labels = [data.draw(st.sampled_from(["x", "y"])) for _ in lengths[2:]] + ["x", "y"]
    rows = list(zip((words(n, n) for n in lengths), labels, strict=True))
    (folder / "train.tsv").write_text("text\tlabel\n" + "".join(f"{' '.join(text)}\t{label}\n" for text, label in rows))
    task = TaskConfig(kind="classify", train=(str(folder / "train.tsv"),), dev_fraction=fraction, windows="mean")
    try:
        store = encode(task, tokenizer, folder / "data", length=TOKENS + 2)
    except DataError as error:
        assert "holds out none" in str(error) or "nothing is left" in str(error) or "every example" in str(error)
        return
    seen = dict[int, list[int]]()
    counts = [0, 0]
    for name, split in store.splits.items():
        numbers = np.arange(split.examples)
        begins = split.begins(numbers)
        assert split.count == begins.sum() and len(split.answers()) == split.count
        for row, begin in zip(split.take(numbers), begins, strict=True):
            ids = split.tokens.read(np.array([row["a"]]), np.array([row["end"] - row["a"]])).tolist()
            assert (int(row["line"]) not in seen) == begin and len(ids) <= TOKENS
            seen.setdefault(int(row["line"]), []).extend(ids)
            counts[int(row["label"])] += begin and name == "train"
    assert seen == {n: tokenizer.encode([" ".join(text)])[0] for n, (text, _) in enumerate(rows, 2)}
    assert list(store.counts) == counts


@settings(max_examples=50, deadline=None)
@given(counts=st.lists(st.integers(1, 5), max_size=6), how=st.sampled_from(["mean", "max"]), seed=st.integers(0, 9))
def test_windows_are_joined_as_their_own_arithmetic_says(counts, how, seed):
    logits = np.random.default_rng(seed).normal(size=(sum(counts), 3)).astype(np.float32) * 8
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    scores = powers / powers.sum(-1, keepdims=True)
    firsts = np.cumsum([0, *counts])[:-1].astype(np.intp)
    result = joined_windows(scores, firsts, how)
    for first, count, row in zip(firsts, counts, result, strict=True):
        own = slice(first, first + count)
        mean = np.exp(logits[own].astype(np.float64).mean(0))
        expected = mean / mean.sum() if how == "mean" else scores[own].max(0) / scores[own].max(0).sum()
        assert row == pytest.approx(expected, abs=1e-5)
    assert len(result) == len(counts)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--task.kind regress --task.windows mean", "task.windows has no meaning for task.kind=regress; leave it out"),
        ("--task.kind classify --task.windows sum", "--task.windows is 'sum', not one of off, mean, max"),
        ("--task.kind classify --task.windows mean", "task.windows reads single texts, and these examples are pairs"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, monkeypatch, capsys, words, line):
    monkeypatch.chdir(tmp_path)
    Path("train.tsv").write_text("sentence1\tsentence2\tlabel\na\tb\t1\nc\td\t0\n")
    source = GOLDEN / "bert"
    assert cli.main(["finetune", str(source), "--task.train", "train.tsv", "--dir", "new", *words.split()]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert line in error, error
