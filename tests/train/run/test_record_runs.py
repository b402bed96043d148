"""A BERT pretrained on TFRecords of the original script: from the text to a figure, and every mistake in one line."""

import json
import re
import shutil
from pathlib import Path

import pytest

from contexture.cli import main as cli
from contexture.data.pretraining.record_store import RecordStore
from tests.conftest import TINY
from tests.helpers.commands import done, json_of, run_command
from tests.helpers.long import long
from tests.train.run.test_resume import assert_same_run

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory, text_folder: Path) -> Path:
    """Two files of short sequences, with their vocabulary."""
    to = tmp_path_factory.mktemp("records")
    (to / "settings.yaml").write_text("data: {length: 32, max_predictions: 5}\n")
    done("tokenizer", "wordpiece", "--input", text_folder, "--vocab-size", 120, "--to", to / "words")
    words = ["--as", "google-tfrecord", "--dupe-factor", 2, "--files", 2, "--tokenizer", to / "words"]
    made = json_of(
        "prepare", "bert.tiny", "--input", text_folder, "--to", to / "in", *words, "--config", to / "settings.yaml"
    )
    assert made["instances"] > 100 and made["documents"] > 50 and made["records"] == str(to / "in")
    return to / "in"


def pretrain(*words: object) -> list[str]:
    return ["pretrain", "bert.tiny", *TINY, "--data.dev-fraction", "0.2", *map(str, words)]


def test_a_bert_is_trained_and_measured_on_records(records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Stopped and resumed it is the same run, also without the files."""
    own = tmp_path / "own"
    shutil.copytree(records, own)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    few = ["--data.path", own, "--steps", 4, "--save.every", 2, "--log.every", 1, "--optim.warmup", 1]
    code, printed = run_command(capsys, *pretrain(*few, "--dir", whole))
    assert code == 0 and "held-out records may be those to train on with other masks" in printed
    done(*pretrain(*few, "--dir", parts))
    shutil.rmtree(parts / "checkpoints" / "4")
    shutil.rmtree(own)
    done(*pretrain(*few, "--dir", parts))
    assert_same_run(parts, whole)
    measured = json_of("evaluate", whole)
    store = RecordStore.open(whole / "data")
    assert measured["examples"] == store.count("dev") > 20 and measured["metrics"]["mlm_loss"] > 0
    assert json.loads((whole / "run.json").read_text())["data"] == store.fingerprint


def test_a_start_keeps_to_what_the_run_was_started_with(
    records: Path, tmp_path: Path, text_folder: Path, capsys: pytest.CaptureFixture[str], start_only: None
):
    """The first start reads the records; a later one with others, or with text, is refused."""
    run, copy = tmp_path / "run", tmp_path / "copy"
    assert cli.main(pretrain("--data.path", records, "--dir", run)) == 130
    assert RecordStore.is_at(run / "data") and (run / "tokenizer" / "vocab.txt").is_file()
    shutil.copytree(records, copy)
    (copy / "instances-00001-of-00002.tfrecord").rename(copy / "more.tfrecord")
    for words, line in (
        (
            ["--data.path", copy],
            f"{run}: {copy}/more.tfrecord is not among the TFRecords that .* was made of; put them",
        ),
        (
            ["--data.path", records, "--data.tokenizer", _other(tmp_path)],
            "the records were read with another vocabulary",
        ),
    ):
        code, printed = run_command(capsys, *pretrain(*words, "--dir", run))
        assert code == 2 and re.search(line, printed.splitlines()[-1]), printed
    assert cli.main(pretrain("--data.path", text_folder, "--dir", tmp_path / "text")) == 130
    code, printed = run_command(capsys, *pretrain("--data.path", records, "--dir", tmp_path / "text"))
    assert code == 2 and "was started with text, not with TFRecords; give the text, or another --dir" in printed


def _other(folder: Path) -> Path:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"x{number}" for number in range(100))]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    return folder / "vocab.txt"


def test_mistakes_of_a_training_on_records_are_one_line(
    records: Path, tmp_path: Path, text_folder: Path, capsys: pytest.CaptureFixture[str]
):
    (file, _), alone = sorted(records.glob("*.tfrecord")), tmp_path / "alone"
    alone.mkdir()
    shutil.copy(file, alone / "a.tfrecord")
    damaged = tmp_path / "damaged.tfrecord"
    damaged.write_bytes(file.read_bytes()[:-1])
    small = tmp_path / "small.txt"
    small.write_text("".join(f"{piece}\n" for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a")))
    own = ("--data.tokenizer", records / "tokenizer")
    for words, line in (
        (("--data.path", alone), "TFRecords hold ids, not text; give the vocabulary that they were made with: "),
        (("--data.path", file, text_folder), "data.path names TFRecords .* together with text"),
        (
            ("--data.path", damaged, *own),
            f"{damaged}: record [0-9]+ is cut off; copy the file again, or write it again",
        ),
        (("--data.path", file, "--data.tokenizer", small), f"{file}: record 1: input_ids has the id .* 6 pieces; give"),
        (("--data.path", records, "--data.length", 31), "record 1 has 32 tokens, more than 31; give --data.length 32"),
        (("--data.path", records, "--data.max-predictions", 4), "5 predictions, more than 4; give --data.max-predict"),
    ):
        code, printed = run_command(capsys, *pretrain(*words, "--dir", tmp_path / "run"))
        assert code == 2 and re.search(line, printed.splitlines()[-1]), printed
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
    for recipe, words, line in (
        ("gpt.tiny", ("--data.path", file), "TFRecords of create_pretraining_data.py are for a BERT, not for a GPT"),
        ("bert.tiny", ("--data.path", file, "--data.dev", text_folder), "data.path names TFRecords, and data.dev text"),
    ):
        code, printed = run_command(capsys, "pretrain", recipe, *words, "--dir", tmp_path / "run")
        assert code == 2 and line in printed and not (tmp_path / "run").exists(), printed


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--seed", 3], "seed= is for TFRecords; give --as google-tfrecord too, or leave --seed out"),
        (["--dupe-factor", 3], "dupe-factor= is for TFRecords; give --as google-tfrecord too, or leave"),
        (["--files", 3], "files= is for TFRecords; give --as google-tfrecord too, or leave --files out"),
        (["--whole-word-mask"], "whole-word-mask= is for TFRecords; give --as google-tfrecord too"),
        (["--as", "google-tfrecord", "--dupe-factor", 0], "dupe-factor=0 is not a positive number"),
        (["--as", "google-tfrecord", "--files", 0], "files=0 is not a positive number"),
        (["--as", "google-tfrecord", "--workers", 2], "workers= is for shards; give --as shards too, or leave --w"),
        (["--as", "google-tfrecord", "--dev-fraction", 0.1], "dev-fraction= is for shards; give --as shards too"),
        (["--as", "google-tfrecord", "--part", "0/2"], "part= is for shards; give --as shards too, or leave --part"),
        (["--as", "tfrecord"], "--format is 'tfrecord', not one of shards, google-tfrecord (did you"),
    ],
)
def test_options_of_records_and_of_shards_are_told_apart(
    words: list, line: str, text_folder: Path, tmp_path: Path, capsys
):
    code, printed = run_command(capsys, "prepare", "bert.tiny", "--input", text_folder, "--to", tmp_path / "to", *words)
    assert code == 2 and line in printed, printed


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("data.masking: spans", "without data.masking; leave it out; for whole words give --whole-word-mask"),
        (
            "data.masked_fraction: 0.3:0.15",
            "masks as the original's script, without data.masked-fraction; leave it out",
        ),
        ("data.masking_copies: 3", "without data.masking-copies; leave it out"),
        ("data.random_token_fraction: 0.2", "without data.random-token-fraction; leave it out"),
    ],
)
def test_records_are_masked_as_the_script_does(setting: str, line: str, text_folder: Path, tmp_path: Path, capsys):
    (tmp_path / "s.yaml").write_text(setting)
    words = [
        "--input",
        text_folder,
        "--to",
        tmp_path / "to",
        "--as",
        "google-tfrecord",
        "--config",
        tmp_path / "s.yaml",
    ]
    code, printed = run_command(capsys, "prepare", "bert.tiny", *words)
    assert code == 2 and line in printed and not (tmp_path / "to").exists()


def test_a_recipe_of_whole_words_has_them_in_records(text_folder: Path, tmp_path: Path, capsys):
    (tmp_path / "s.yaml").write_text("data.masking: whole_words\nmodel.vocab: 300")
    words = [
        "--input",
        text_folder,
        "--to",
        tmp_path / "to",
        "--as",
        "google-tfrecord",
        "--config",
        tmp_path / "s.yaml",
    ]
    code, printed = run_command(capsys, "prepare", "bert.tiny", *words)
    assert code == 2 and "for whole words give --whole-word-mask" in printed
    assert run_command(capsys, "prepare", "bert.tiny", *words, "--whole-word-mask")[0] == 0


@pytest.mark.parametrize("recipe", ["gpt.tiny", *long("elmo.tiny")])
def test_records_are_written_for_a_bert_alone(recipe: str, text_folder: Path, tmp_path: Path, capsys):
    code, printed = run_command(
        capsys, "prepare", recipe, "--input", text_folder, "--to", tmp_path / "to", "--as", "google-tfrecord"
    )
    assert (
        code == 2 and "--as google-tfrecord is for a BERT's pairs, not for " in printed and "; leave it out" in printed
    )
