"""ERNIE's dialogues: windows of three turns with their roles, half of them with a turn of another dialogue."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.batches import check_fields
from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.pretraining.dialogues import TURNS, DialogueBatches, HeldOutDialogues, fitting
from contexture.data.pretraining.sequence_batches import FIELDS
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.tokenizers.wordpiece import WordPiece
from contexture.train.run.report import read_metrics
from tests.conftest import TINY
from tests.helpers.commands import devices, done, json_of, run_command
from tests.helpers.slow_pairs import vocabulary

WORDS = 90
TOKENIZER = WordPiece(vocabulary(WORDS), True)


def dialogues(seed: int, count: int, topics: int = 6) -> list[list[dict[str, str]]]:
    """Each of a topic, whose words its turns have; Q and R by chance, three to six turns."""
    rng = np.random.default_rng(seed)
    each = WORDS // topics
    found = []
    for _ in range(count):
        topic = int(rng.integers(topics))
        turns = []
        for _ in range(int(rng.integers(3, 7))):
            words = topic * each + rng.integers(0, each, int(rng.integers(4, 9)))
            turns.append({"role": str(rng.choice(["Q", "R"])), "text": " ".join(f"w{word}" for word in words)})
        found.append(turns)
    return found


def written(folder: Path, rows: list[list[dict[str, str]]]) -> Path:
    file = folder / "dialogues.jsonl"
    file.write_text("".join(json.dumps({"turns": turns}) + "\n" for turns in rows), "utf-8")
    return file


def config_of(file: Path, **options: Any) -> DataConfig:
    usual: dict[str, Any] = {"sequences": "dialogues", "text_column": "turns", "batch": 8, "length": 40}
    return DataConfig(path=(str(file),), **{**usual, "max_predictions": 6, **options})


ROWS = dialogues(3, 80)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    folder = tmp_path_factory.mktemp("dialogues")
    return prepare(config_of(written(folder, ROWS), dev_fraction=0.3), TOKENIZER, folder / "shards")


def turns_in(batch: dict[str, np.ndarray], row: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """(role, tokens) of the turns of a sequence, with the masked tokens put back."""
    tokens, used = batch["tokens"][row].copy(), batch["slot_weights"][row] > 0
    tokens[batch["slots"][row, used]] = batch["labels"][row, used]
    tokens = tokens[: batch["mask"][row].sum()]
    assert tokens[0] == TOKENIZER.cls and tokens[-1] == TOKENIZER.sep
    ends = np.flatnonzero(tokens == TOKENIZER.sep)
    assert len(ends) == TURNS
    found = []
    for first, last in zip([1, *(ends[:-1] + 1)], ends, strict=True):
        (role,) = set(batch["segments"][row, first : last + 1].tolist())
        found.append((role, tuple(tokens[first:last].tolist())))
    assert not batch["segments"][row, len(tokens) :].any()
    return tuple(found)


def test_an_epoch_has_every_three_turns_once_and_half_of_them_fake(shards: Shards):
    batches = DialogueBatches(shards, config_of(Path(shards.folder), length=64), seed=5)
    check_fields(batch := batches.sequences(np.arange(batches.examples_per_epoch)), FIELDS)
    turns = [
        [(int(turn["role"] == "R"), tuple(5 + int(word[1:]) for word in turn["text"].split())) for turn in row]
        for row in ROWS[: shards.splits["train"].documents]
    ]
    left = [tuple(row[at : at + 3]) for row in turns for at in range(len(row) - 2)]
    count = len(left)
    assert count == batches.examples_per_epoch
    every, fakes = {turn[1] for row in turns for turn in row}, []
    for row in range(count):
        found = turns_in(batch, row)
        if batch["is_random"][row]:
            fakes.append(found)
        else:
            left.remove(found)
    # One turn is another's, in the role of the one in whose place it stands.
    for found in fakes:
        near = [
            window
            for window in left
            if [role for role, _ in window] == [role for role, _ in found]
            and sum(a != b for a, b in zip(window, found, strict=True)) <= 1
        ]
        assert near and all(tokens in every for _, tokens in found)
    assert len(left) == len(fakes) and abs(len(fakes) / count - 0.5) < 0.1
    again = batches.sequences(np.arange(count) + count)
    assert (again["tokens"] != batch["tokens"]).any()


def test_a_step_is_the_same_whoever_reads_it(shards: Shards):
    config = config_of(Path(shards.folder), masking="whole_words", packed=True)
    one, other = (DialogueBatches(shards, config, seed=5) for _ in range(2))
    one.read(9)
    assert all((one.read(3)[name] == batch).all() for name, batch in other.read(3).items())
    assert (DialogueBatches(shards, config, seed=6).read(3)["labels"] != one.read(3)["labels"]).any()
    held_out = HeldOutDialogues(shards, config_of(Path(shards.folder)))
    assert held_out.count == sum(max(len(row) - 2, 0) for row in ROWS[shards.splits["train"].documents :])


@given(st.lists(st.tuples(*[st.integers(0, 40)] * 3), min_size=1, max_size=5), st.integers(3, 60))
@settings(max_examples=200, deadline=None)
def test_the_longest_turns_give_first(lengths: list[tuple[int, int, int]], room: int):
    kept = fitting(np.array(lengths), room)
    for before, after in zip(lengths, kept.tolist(), strict=True):
        assert sum(after) == min(sum(before), room)
        limit = max(after)
        # What was cut is as long as the longest that is left, to a token.
        assert all(a == b or (a < b and limit - a <= 1) for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"turns": "w1"}, "'w1' is no turn of a dialogue"),
        ({"turns": [{"role": "X", "text": "w1"}]}, "is no turn of a dialogue; give [{"),
        ({"turns": [{"role": "Q", "text": " "}]}, "is no turn of a dialogue"),
        ({"turns": [["Q", "w1"]]}, "is no turn of a dialogue"),
        ({"text": "w1"}, 'no "turns" that is a string'),
    ],
)
def test_a_row_that_is_no_dialogue_is_one_line(row: dict[str, object], line: str, tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError) as caught:
        prepare(config_of(tmp_path / "a.jsonl"), TOKENIZER, tmp_path / "shards")
    assert line in str(caught.value) and "a.jsonl:1: " in str(caught.value) and "\n" not in str(caught.value)


def test_too_few_turns_are_one_line(tmp_path: Path):
    for name, rows in (("one", [ROWS[0]]), ("short", [ROWS[0][:2], ROWS[1][:2]])):
        folder = tmp_path / name
        folder.mkdir()
        shards = prepare(config_of(written(folder, rows)), TOKENIZER, folder / "shards")
        with pytest.raises(DataError, match="give two dialogues at least, of three turns or more"):
            DialogueBatches(shards, config_of(folder), seed=1)


def test_text_that_is_no_dialogue_is_refused(text_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    given = ["pretrain", "bert.tiny", *TINY, "--data.sequences", "dialogues", "--data.path", text_folder]
    code, err = run_command(capsys, *given, "--dir", tmp_path / "run")
    assert code and "no *.jsonl, in which data.sequences=dialogues reads turns; give such rows" in err
    done("tokenizer", "wordpiece", "--input", text_folder, "--vocab-size", 120, "--to", tmp_path / "words")
    prepared = ["prepare", "bert.tiny", "--input", text_folder, "--tokenizer", tmp_path / "words"]
    done(*prepared, "--to", tmp_path / "shards")
    code, err = run_command(capsys, *given[:-1], tmp_path / "shards", "--dir", tmp_path / "other")
    assert code and "was prepared without dialogues; prepare it with --sequences dialogues" in err


@pytest.mark.long
def test_fake_dialogues_are_known_by_their_topic(tmp_path: Path):
    """Held-out dialogues of fifteen topics, so that one fake turn in fifteen is none: more than nine of ten are known,
    fake and real."""
    file = written(tmp_path, dialogues(8, 3000, topics=15))
    words = ["--model.layers", 1, "--model.hidden", 32, "--model.heads", 2, "--model.ffn", 64, "--model.vocab", 120]
    words += ["--data.length", 32, "--data.batch", 64, "--optim.peak-lr", 5e-3, "--optim.warmup", 30, "--steps", 1000]
    words += ["--model.dropout", 0, "--model.attention-dropout", 0, "--evaluate.every", 500]
    given = ["--data.sequences", "dialogues", "--data.text-column", "turns", "--data.dev-fraction", 0.1]
    with devices(1):
        done("pretrain", "bert.tiny", *words, *given, "--data.path", file, "--dir", tmp_path / "run")
        held = [each for each in read_metrics(tmp_path / "run/metrics.jsonl") if each["split"] == "dev"]
        print(f"held-out accuracy of fake against real, by step: {[(e['step'], e['nsp_accuracy']) for e in held]}")
        assert held[-1]["nsp_accuracy"] > 0.9
        assert json_of("evaluate", tmp_path / "run")["metrics"]["nsp_accuracy"] > 0.9
