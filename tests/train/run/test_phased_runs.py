"""One run in phases of other lengths and batches: exact, resumed in either phase and at the border, planned, timed."""

import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture import configs
from contexture.cli.parse import parse
from contexture.data.config import DataConfig
from contexture.data.phases import with_phases
from contexture.data.pretraining.sentence_pairs import PairBatches
from contexture.overrides import with_options
from contexture.train.errors import ConfigError
from contexture.train.objectives import batch_sizes
from contexture.train.plan.plan import of_phases
from contexture.train.run.report import read_metrics
from contexture.train.run.throughput import ThroughputMeter
from contexture.train.settings.run import Run
from contexture.train.setup import open_batches
from tests.conftest import TINY
from tests.helpers.commands import devices, done, json_of, run_command
from tests.helpers.long import long
from tests.train.run.test_maskings import shards  # noqa: F401
from tests.train.run.test_resume import assert_same_run, losses, recorded, resumed_step

PHASES = ["--data.phases", "16x8:4 32x16:4"]
FEW = ["--save.every", 2, "--log.every", 1, "--optim.warmup", 1, "--evaluate.every", 4, "--data.dev-fraction", 0.2]


def command(text: Path, folder: Path, *more: object, family: str = "bert") -> list[str]:
    # Without what the phases say.
    pairs = zip(TINY[::2], TINY[1::2], strict=True)
    said = ("--data.length", "--data.batch", "--steps", "--data.max-predictions")
    tiny = [word for pair in pairs if pair[0] not in said for word in pair]
    # A byte-level vocabulary has at least all bytes.
    more = ("--model.vocab", 300, *more) if family == "gpt" else more
    return [
        *map(str, ["pretrain", f"{family}.tiny", *tiny, *FEW, *PHASES, "--data.path", text, "--dir", folder, *more])
    ]


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, 9), st.integers(1, 7)), min_size=2, max_size=4), st.data())
@settings(max_examples=100, deadline=None)
def test_sequences_of_phases_are_counted_step_by_step(phases: list[tuple[int, int, int]], data: st.DataObject):
    texts = " ".join(f"{length}x{batch}:{steps}" for length, batch, steps in phases)
    options = with_phases({"data.phases": texts})
    total = sum(steps for *_, steps in phases)
    assert options["steps"] == total and options["data.length"] == phases[-1][0]
    config = DataConfig(phases=options["data.phases"], length=options["data.length"], batch=options["data.batch"])
    by_step = [(length, batch) for length, batch, steps in phases for _ in range(steps)] + [phases[-1][:2]] * 5
    step = data.draw(st.integers(0, total + 4))
    assert (config.at(step).length, config.batch_size_at(step)) == by_step[step]
    assert config.examples_before(step) == sum(batch for _, batch in by_step[:step])
    size = config.size_at(step)
    assert (size.sequences, size.tokens) == (by_step[step][1], by_step[step][0] * by_step[step][1])


def test_phases_say_length_batch_and_steps_in_one_option():
    base = configs.recipe("bert.base")
    run = parse(Run, ["--data.phases", "128x256:900", "512x128:100", "--dir", "x"], "pretrain", base)
    assert (run.data.length, run.data.batch, run.steps, run.data.phases) == (512, 128, 1000, ("128x256:900", "512x128"))
    assert with_options(base, {"data.phases": "128x256:900 512x128:100"}).data == run.data
    # The slots follow the length of each phase.
    assert [batch_sizes(each, 4)["P"] for each in of_phases(run)] == [20, 77]
    assert [(each.steps, each.data.length, each.data.batch) for each in of_phases(run)] == [
        (900, 128, 256),
        (100, 512, 128),
    ]
    longer = parse(Run, ["--steps", "1500"], "pretrain", run)
    assert [each.steps for each in of_phases(longer)] == [900, 600]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "--data.phases 16x8:4",
            "data.phases names a single phase; give --data.length, --data.batch and --steps instead",
        ),
        (
            "--data.phases 16x8 32x8:4",
            "data.phases: '16x8' is not LENGTHxBATCH:STEPS; give each phase as 128x256:900000",
        ),
        ("--data.phases 16x8:4 32x0:4", "'32x0:4' is not LENGTHxBATCH:STEPS"),
        ("--data.phases 16x8:4 32*8:4", "'32*8:4' is not LENGTHxBATCH:STEPS"),
        ("--data.phases 16x8:4 32x8:0", "'32x8:0' is not LENGTHxBATCH:STEPS"),
        ("--data.phases 16x8:4 32x8:4 --data.length 64", "--data.length 64 contradicts --data.phases, which says 32"),
        ("--data.phases 16x8:4 32x8:4 --steps 9", "--steps 9 contradicts --data.phases, which says 8; leave it out"),
        ("--data.phases 16x8:4 32x8:4 --epochs 2", "--epochs contradicts --data.phases, which says how many steps"),
        ("--data.phases 16x8:4 32x8 --epochs 2", "data.phases wants --steps, since steps in an epoch vary"),
        (
            "--data.phases 16x8:4 32x8:4 --optim.phase-lr 1 1 --optim.peak-lr 5",
            "optim.peak-lr has no meaning where optim.phase-lr has the rate of each phase; leave it out",
        ),
        (
            "--data.phases 16x8:4 32x8:4 --optim.phase-lr 1 1 --optim.phase-warmup 1 1 --optim.warmup 5",
            "optim.warmup has no meaning where optim.phase-warmup has the steps of each phase; leave it out",
        ),
        ("--data.phases 16x8:4 32x8 --steps 4", "steps=4 ends before the last of data.phases begins, at step 4"),
        ("--data.phases 16x8:4 999x8:4", "data.length=999 exceeds model.length=512"),
        ("--data.phases 999x8:4 16x8:4", "data.length=999 exceeds model.length=512"),
        ("--data.phases 6x8:4 16x8:4", "data.length=6"),
        ("--data.phases 16x8:4 32x9:4 --optim.accumulate 2", "a batch=9 is not a multiple of optim.accumulate=2"),
        (
            "--data.phases 16x8:4 32x8:4 --data.ramp-from 4 --data.ramp-steps 2",
            "both change the batch; give one of them",
        ),
        ("--data.phase 16x8:4", "did you mean --data.phases"),
    ],
)
def test_a_mistake_in_phases_is_one_line(
    words: str, line: str, text_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    given = ["pretrain", "bert.tiny", "--data.path", text_folder, "--dir", tmp_path / "run", *words.split()]
    code, err = run_command(capsys, *given)
    assert code == 2 and line in err and len(err.splitlines()) == 1 and not (tmp_path / "run").exists()


def test_phases_in_a_file_are_text_and_an_empty_one_is_none():
    base = configs.recipe("bert.large_lamb")
    # As a file of settings or Python may hold them.
    for value in (3, True, [3, 4], {"128x256": 9}):
        with pytest.raises(ConfigError, match="is not LENGTHxBATCH:STEPS; give each phase as 128x256:900000"):
            with_options(base, {"data.phases": value})
    phased = with_options(configs.recipe("bert.tiny"), {"data.phases": "16x8:4 32x8:4"})
    assert [with_options(phased, {"data.phases": value}).data.phases for value in ("", [], ("",))] == [(), (), ()]
    # A recipe's batch cannot be set beside its phases: the message says which option to give.
    with pytest.raises(ConfigError, match="give --data.phases with the numbers that you want"):
        with_options(base, {"data.batch": 8})
    # A run.json holds the epochs of a recipe beside the steps of its phases.
    both = {"data.phases": ("16x8:4", "32x8"), "steps": 8, "epochs": 2.0}
    assert with_options(configs.recipe("bert.tiny"), both, whole=True).steps == 8


@pytest.mark.parametrize("recipe", ["elmo.tiny"])
def test_lanes_have_no_phases(recipe: str, text_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    given = ["pretrain", recipe, *PHASES, "--data.path", text_folder, "--dir", tmp_path / "run"]
    code, err = run_command(capsys, *given)
    assert code == 2 and "data.phases has no meaning for pretraining an ELMo; leave it out" in err


def test_a_phase_reads_what_a_run_of_its_length_reads(shards):  # noqa: F811
    """Its steps are those of such a run with the same numbers, whichever step is read first."""
    data = DataConfig(split_sentences=False, phases=("16x8:5", "32x4"), length=32, batch=4, masked_fraction="0.5:0.1")
    run = Run(data=data, steps=9, seed=4)
    batches = open_batches(run, shards, shards.tokenizer)
    assert batches.length == 32
    for step in (8, 2, 5, 4, 0):
        alone = PairBatches(shards, DataConfig(
            split_sentences=False, length=16 if step < 5 else 32, batch=8 if step < 5 else 4, masked_fraction="0.5:0.1",
            masked_steps=9,
        ), seed=4)  # fmt: skip
        batch, expected = batches.read(step), alone.read(step)
        assert all((batch[name] == expected[name]).all() for name in expected)
        assert batch["tokens"].shape == ((8, 16) if step < 5 else (4, 32))


@pytest.mark.parametrize(("family", "steps"), [("bert", (4,)), *long(("bert", (2, 6)), ("gpt", (2, 4)))])
def test_a_run_in_phases_is_resumed_in_each_and_at_the_border(
    family: str, steps: tuple[int, ...], text_folder: Path, tmp_path: Path
):
    whole = tmp_path / "whole"
    with devices(1):
        done(*command(text_folder, whole, family=family))
        resume(text_folder, whole, family, steps)
    records = [each for each in read_metrics(whole / "metrics.jsonl") if each["split"] == "train"]
    assert [each["length"] for each in records] == [16] * 4 + [32] * 4
    # Measured as the last phase reads: the same figure as later.
    held = [each for each in read_metrics(whole / "metrics.jsonl") if each["split"] == "dev"]
    assert json_of("evaluate", whole)["metrics"]["loss"] == pytest.approx(held[-1]["loss"], rel=1e-6)


def resume(text_folder: Path, whole: Path, family: str, steps: tuple[int, ...]) -> None:
    """Does the rest of the run anew from each of these steps on."""
    for kept in steps:
        tmp_path = whole.parent
        parts = tmp_path / f"from-{kept}"
        shutil.copytree(whole, parts)
        for folder in (parts / "checkpoints").iterdir():
            if int(folder.name) > kept:
                shutil.rmtree(folder)
        # A checkpoint that max-to-keep has dropped: trained anew up to there.
        done(*command(text_folder, parts, family=family))
        assert_same_run(parts, whole)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "adafactor"])
def test_eight_devices_train_the_phases_of_one(optimizer: str, text_folder: Path, tmp_path: Path):
    found, rates = [], ["--optim.phase-lr", "1e-3", "5e-4", "--optim.name", optimizer]
    for count, mesh in ((1, []), (8, ["--mesh.fsdp", 2, "--mesh.tensor", 2])):
        with devices(count):
            done(*command(text_folder, tmp_path / str(count), *rates, *mesh))
        found.append([loss for _, loss in losses(tmp_path / str(count))])
    np.testing.assert_array_less(np.abs(np.subtract(*found)), 2e-5 * np.abs(found[0]))


@pytest.mark.long
def test_a_run_in_phases_that_is_killed_is_the_same_run(door, text_folder: Path, tmp_path: Path):
    """Real processes, SIGKILL once in the first phase, once about the border, and once in the second."""
    whole = door(*command(text_folder, tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    folder = tmp_path / "killed"
    for goal in (1, 4, 6):
        process = door(*command(text_folder, folder), wait=False)
        while recorded(folder) < goal and process.poll() is None:
            pass
        process.send_signal(signal.SIGKILL)
        _, stderr = process.communicate(timeout=120)
        assert resumed_step(stderr) is not None
    assert door(*command(text_folder, folder)).returncode == 0
    assert_same_run(folder, tmp_path / "whole")


def test_a_longer_last_phase_resumes_and_another_first_is_refused(
    text_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    given = command(text_folder, tmp_path / "run")
    with devices(1):
        done(*given)
        done(*(word.replace("32x16:4", "32x16:5") for word in given))
        assert recorded(tmp_path / "run") == 9
        code, err = run_command(capsys, *(word.replace("16x8:4 32x16:4", "16x8:3 32x16:6") for word in given))
    assert code == 2 and "data.phases" in err


def test_time_left_counts_each_phases_steps_by_their_flops(monkeypatch: pytest.MonkeyPatch):
    base: Any = configs.recipe("bert.base")
    run = with_options(base, {"data.phases": "128x256:900 512x256:100"})
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr("contexture.train.run.throughput.time.perf_counter", lambda: float(next(clock)))
    meter = ThroughputMeter(run, 1, "NVIDIA H200", 0)
    meter.records([10], [{}])
    (record,) = meter.records([20], [{}])
    # 10 s for ten steps; a step of the second phase has four times the tokens, and more attention.
    left = float(str(record["seconds_left"]))
    assert 880 + 100 * 4 < left < 880 + 100 * 5
    assert record["tokens_per_second"] == 128 * 256
    second = ThroughputMeter(run, 1, "NVIDIA H200", 900)
    second.records([910], [{}])
    (later,) = second.records([920], [{}])
    assert later["seconds_left"] == pytest.approx(80) and later["tokens_per_second"] == 512 * 256
    ratio = float(str(later["mfu"])) / float(str(record["mfu"]))
    assert 4 < ratio < 5 and ratio == pytest.approx((left - 880) / 100, rel=1e-3)
