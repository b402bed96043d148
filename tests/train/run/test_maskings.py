"""Pretraining with other maskings: resumed exactly, copies that come again, a changing fraction, and every mistake."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from contexture.cli.settings_file import read_settings, with_settings
from contexture.configs import recipe
from contexture.data.config import DataConfig
from contexture.data.pretraining.sentence_pairs import HeldOutPairs, PairBatches
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.tokenizers.wordpiece import WordPiece
from contexture.train.run.report import read_metrics
from contexture.train.settings import run_file
from contexture.train.settings.run import Run
from contexture.train.setup import open_batches
from tests.conftest import TINY
from tests.helpers.commands import done, json_of, run_command
from tests.helpers.slow_pairs import as_text, random_documents, vocabulary
from tests.train.run.test_resume import assert_same_run

FEW = ["--steps", 4, "--save.every", 2, "--log.every", 1, "--optim.warmup", 1]
SPANS = ["--data.masking", "spans", "--data.span-boundary", "--data.masked-fraction", "0.3:0.1"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text(as_text(random_documents(9, 60)), "utf-8")
    config = DataConfig(path=(str(folder / "text.txt"),), dev_fraction=0.3, split_sentences=False)
    return prepare(config, WordPiece(vocabulary(), True), folder / "shards")


def config_of(**options) -> DataConfig:
    return DataConfig(split_sentences=False, batch=8, length=32, **options)


@pytest.mark.usefixtures("one_device")
def test_spans_are_trained_on_resumed_and_measured(text_folder: Path, tmp_path: Path):
    given = ["pretrain", "bert.tiny", *TINY, *FEW, *SPANS, "--data.path", text_folder, "--data.dev-fraction", 0.2]
    done(*given, "--dir", tmp_path / "whole")
    done(*given, "--dir", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts/checkpoints/4")
    done(*given, "--dir", tmp_path / "parts")
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    trained = [each for each in read_metrics(tmp_path / "whole/metrics.jsonl") if each["split"] == "train"]
    assert trained[-1]["loss"] == pytest.approx(
        sum(trained[-1][f"{name}_loss"] for name in ("mlm", "nsp", "boundary")), rel=1e-5
    )
    measured = json_of("evaluate", tmp_path / "whole")["metrics"]
    assert {"boundary_loss", "boundary_accuracy"} <= measured.keys()
    # What needs no such head works as ever.
    assert json_of("fill", tmp_path / "whole", "--text", "the [MASK] of")
    done("export", tmp_path / "whole", "hf", "--to", tmp_path / "hf")


@pytest.mark.parametrize("masking", ["pieces", "whole_words", "spans"])
def test_copies_come_again_after_so_many_epochs(shards: Shards, masking: str):
    batches = PairBatches(shards, config_of(masking=masking, masking_copies=2), seed=3)
    fresh = PairBatches(shards, config_of(masking=masking), seed=3)
    N = batches.examples_per_epoch
    first, second, third = (batches.sequences(np.arange(N) + N * epoch) for epoch in range(3))
    assert all((first[name] == third[name]).all() for name in first)
    assert (first["tokens"] != second["tokens"]).any()
    # The first copies are what a run without them reads.
    for epoch, copy in enumerate((first, second)):
        again = fresh.sequences(np.arange(N) + N * epoch)
        assert all((copy[name] == again[name]).all() for name in copy)
    assert (fresh.sequences(np.arange(N) + 2 * N)["tokens"] != first["tokens"]).any()


def test_the_masked_fraction_changes_evenly_to_the_last_step(shards: Shards):
    run = Run(data=config_of(masked_fraction="0.4:0.1", packed=True), steps=8)
    batches = open_batches(run, shards, shards.tokenizer)
    assert run.data.slots == 13
    for step in range(10):
        batch, share = batches.read(step), 0.4 - 0.3 * step / 7 if step < 7 else 0.1
        expected = np.maximum(1, np.rint(batch["mask"].sum(1) * share))
        assert (batch["slot_weights"].sum(1) == np.minimum(expected, 13)).all()
    # Held-out sequences have the share of the last step, at every step.
    held_out = HeldOutPairs(shards, run.data)
    batch = held_out.read(0)
    used = batch["valid"] > 0
    assert (batch["slot_weights"].sum(1)[used] == np.maximum(1, np.rint(batch["mask"].sum(1)[used] * 0.1))).all()
    given = dataclasses.replace(run, data=dataclasses.replace(run.data, masked_steps=3))
    batch = open_batches(given, shards, shards.tokenizer).read(2)
    assert (batch["slot_weights"].sum(1) == np.maximum(1, np.rint(batch["mask"].sum(1) * 0.1))).all()


def test_a_share_that_was_written_as_a_number_is_the_same_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for share in ("0.15", "0.3"):
        run = Run(data=DataConfig(masked_fraction=share))
        tree = run_file.to_json(run)
        tree["data"]["masked_fraction"] = float(share)  # pyright: ignore[reportIndexIssue]
        old = run_file.from_json(json.loads(json.dumps(tree)), "run.json")
        assert run_file.fingerprint(old, "t", "d") == run_file.fingerprint(run, "t", "d")
    assert run_file.fingerprint(Run(data=DataConfig(masked_fraction="0.3:0.15")), "t", "d") != run_file.fingerprint(
        Run(), "t", "d"
    )
    # However it was written, the run on the disk has the same.
    assert {DataConfig(masked_fraction=each).masked_fraction for each in (".2", "0.20", "2e-1", "0.2")} == {"0.2"}
    assert DataConfig(masked_fraction="0.30:.15") == DataConfig(masked_fraction="0.3:0.15")
    (tmp_path / "s.yaml").write_text("data.masked-fraction: 0\n")
    assert with_settings(recipe("bert.tiny"), read_settings(str(tmp_path / "s.yaml")), "s.yaml").data.slots == 1
    (tmp_path / "s.yaml").write_text("data.masked-fraction: 0.25\n")
    line = run_command(capsys, "pretrain", "bert.tiny", "--config", tmp_path / "s.yaml", "--data.masked-fractions", 3)[
        1
    ]
    assert "did you mean --data.masked-fraction" in line


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--data.masked-fraction 0.3:", "data.masked-fraction=0.3: is neither a share in [0, 1) nor two of them"),
        ("--data.masked-fraction 1.0", "data.masked-fraction=1.0 is neither a share in [0, 1) nor two of them"),
        ("--data.masked-fraction 0.1:0.2:0.3", "is neither a share in [0, 1) nor two of them, as 0.3:0.15"),
        ("--data.masked-fraction nan:0.2", "is neither a share in [0, 1) nor two of them"),
        ("--data.masked-steps 5", "data.masked-steps has no meaning for one share"),
        ("--data.masked-fraction 0.3:0.1 --epochs 2", "wants --steps; leave epochs out"),
        ("--data.masking-copies -1", "data.masking-copies=-1 is not a number of epochs; give 0 or more"),
        ("--data.mask-token-fraction 0.95", "are no shares of a whole; give two that are at most 1 together"),
        ("--data.random-token-fraction -0.1", "are no shares of a whole"),
        ("--data.span-boundary", "data.span-boundary has no meaning without spans; give --data.masking spans too"),
        ("--data.masking span", "--data.masking is 'span', not one of pieces, whole_words, spans"),
    ],
)
def test_mistakes_are_one_line(
    words: str, line: str, text_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    given = ["pretrain", "bert.tiny", *words.split(), "--data.path", text_folder, "--dir", tmp_path / "run"]
    code, err = run_command(capsys, *given)
    assert code == 2 and line in err and len(err.splitlines()) == 1 and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "option", ["--data.masking spans", "--data.masking-copies 3", "--data.mask-token-fraction 0.7"]
)
def test_maskings_have_no_meaning_for_a_gpt(
    option: str, text_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    code, err = run_command(
        capsys, "pretrain", "gpt.tiny", *option.split(), "--data.path", text_folder, "--dir", tmp_path / "run"
    )
    assert code == 2 and "is for pretraining a BERT" in err
