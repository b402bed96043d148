"""Nothing makes a run lose or change a step: real processes, real signals, damaged files."""

import json
import random
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import flax.struct
import jax
import numpy as np
import pytest

import contexture
from contexture.cli import main as cli
from contexture.data.pretraining.shards import Shards
from contexture.models.families import build
from contexture.train import mesh as meshes
from contexture.train.checkpoints.manager import Checkpoints, restore
from contexture.train.checkpoints.meta import read_meta
from contexture.train.checkpoints.transfer import model_of
from contexture.train.errors import CheckpointError
from contexture.train.objectives import OBJECTIVES
from contexture.train.run.report import read_metrics
from contexture.train.settings import run_file
from contexture.train.settings.sections import MeshConfig, SaveConfig
from contexture.train.step import State, create
from tests.helpers.commands import run_command
from tests.helpers.logs import logged
from tests.helpers.long import long


def losses(folder: Path) -> list[tuple[int, float]]:
    return [(r["step"], r["loss"]) for r in read_metrics(folder / "metrics.jsonl") if r["split"] == "train"]


def parameters(folder: Path) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(contexture.load(folder)[1])]


def assert_same_run(folder: Path, whole: Path) -> None:
    """Every step's loss and the final parameters, bit for bit; each step once."""
    assert losses(folder) == losses(whole)
    assert [step for step, _ in losses(folder)] == list(range(1, recorded(whole) + 1))
    assert all(np.array_equal(a, b) for a, b in zip(parameters(folder), parameters(whole), strict=True))


def recorded(folder: Path) -> int:
    return max((r["step"] for r in read_metrics(folder / "metrics.jsonl")), default=0)


def resumed_step(stderr: str) -> int | None:
    """Returns the step that a run resumed from, by its log; None if it was stopped before it logged one."""
    lines = re.findall(r"(?:resuming from step|starting at step) (\d+)$", stderr, re.MULTILINE)
    return int(lines[0]) if lines else None


def stop_at_random(process, folder: Path, number: int, rng: random.Random, last: int) -> None:
    """Send the signal at start-up, or after a random number of recorded steps of `last`."""
    if rng.random() < 0.3:
        time.sleep(rng.uniform(0.0, 3.0))
    else:
        goal, deadline = recorded(folder) + rng.randint(1, 15), time.monotonic() + 120
        while recorded(folder) < min(goal, last - 4) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(rng.uniform(0.0, 0.05))
    process.send_signal(number)


@pytest.mark.parametrize("delay", [0.15, *long(0.4, 0.8, 1.5)])
def test_a_sigterm_at_start_up_is_answered_and_loses_nothing(door, tiny_words, tiny_run, tmp_path, delay):
    """Also while libraries are being imported and checkpoints read, where an exception would do harm."""
    folder = tmp_path / "run"
    shutil.copytree(tiny_run, folder)
    process = door(*tiny_words, "--dir", folder, "--steps", "41", wait=False)
    time.sleep(delay)
    process.terminate()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode in (75, 0, -signal.SIGTERM) and "Traceback" not in stderr, stderr
    assert not (folder / "damaged").exists() and recorded(folder) >= 40


@pytest.mark.parametrize(
    ("training", "number"),
    [
        *long(
            ("pretraining", signal.SIGKILL),
            ("pretraining, often", signal.SIGKILL),
            ("pretraining", signal.SIGTERM),
            ("pretraining", signal.SIGINT),
            ("fine-tuning", signal.SIGKILL),
            ("fine-tuning", signal.SIGTERM),
            ("GPT", signal.SIGKILL),
            ("GPT", signal.SIGTERM),
            ("ELMo", signal.SIGKILL),
            ("ELMo", signal.SIGTERM),
        ),
    ],
)
def test_a_stopped_run_is_the_same_run(door, tmp_path, training, number, request):
    expected = request.getfixturevalue
    if training == "fine-tuning":
        tiny_words, tiny_run = expected("task_words")(), expected("task_run")()
    else:
        family = {"GPT": "gpt", "ELMo": "elmo"}.get(training, "tiny")
        tiny_words, tiny_run = expected(f"{family}_words"), expected(f"{family}_run")
    rng, folder, reached = random.Random(int(number)), tmp_path / "stopped", 0
    for _ in range(6 if training == "pretraining, often" else 1):
        process = door(*tiny_words, "--dir", folder, wait=False)
        stop_at_random(process, folder, number, rng, recorded(tiny_run))
        _, stderr = process.communicate(timeout=120)
        start = resumed_step(stderr)
        assert start is None or start >= reached - 10
        reached = recorded(folder)
        if number != signal.SIGKILL:
            assert process.returncode in (75 if number == signal.SIGTERM else 130, 0), stderr
            assert "the same command resumes" in stderr or process.returncode == 0
    done = door(*tiny_words, "--dir", folder)
    assert done.returncode == 0, done.stderr
    start = resumed_step(done.stderr)
    assert start is not None and start >= reached - 10
    if number == signal.SIGTERM and reached:
        assert start == reached
    assert_same_run(folder, tiny_run)
    if training == "ELMo":
        assert any(x.any() for x in carried(folder))
        assert all(np.array_equal(a, b) for a, b in zip(carried(folder), carried(tiny_run), strict=True))


def carried(folder: Path) -> list[np.ndarray]:
    """What the lines of a finished run's last batch would hand on to the next."""
    run = run_file.read(folder).run
    mesh = meshes.build(MeshConfig(), jax.devices()[:1])
    with jax.set_mesh(mesh):
        _, shapes, shardings = create(model_of(run, ()), run, mesh)
        expected = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
        state, _ = restore(folder / "checkpoints" / str(recorded(folder)), expected, mesh)
    return [np.asarray(x) for x in jax.tree.leaves(state.carry)]


@pytest.mark.long
def test_another_batch_does_not_go_on_with_what_was_carried(elmo_words, elmo_run, tmp_path, capsys):
    folder = tmp_path / "wider"
    shutil.copytree(elmo_run, folder)
    assert cli.main([*elmo_words, "--dir", str(folder), "--steps", "41", "--data.batch", "32"]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert (
        last.startswith("ConfigError: ") and "--data.batch 16, not 32; give --data.batch 16, or another --dir" in last
    )


def test_a_checkpoint_from_before_there_was_a_carry_is_read(tmp_path):
    """A state is written without the parts that hold nothing, and so is one that has no such part at all."""

    @flax.struct.dataclass
    class Before:
        step: Any
        params: Any
        opt: Any
        skipped: Any
        skipped_in_row: Any

    mesh = meshes.build(MeshConfig(), jax.devices()[:1])
    zero, params = np.zeros((), np.int32), {"backbone": {"norm": {"scale": np.arange(3, dtype=np.float32)}}}
    arrays = jax.device_put((zero + 7, params, {"count": zero}, zero, zero), meshes.replicated(mesh))
    checkpoints = Checkpoints(tmp_path, mesh, SaveConfig())
    checkpoints.save(7, Before(*arrays), {}, None)
    checkpoints.wait()
    checkpoints.close()
    expected = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), State(*arrays))
    actual, _ = restore(tmp_path / "checkpoints" / "7", expected, mesh)
    assert int(actual.step) == 7 and actual.carry == {}
    assert np.array_equal(actual.params["backbone"]["norm"]["scale"], np.arange(3))


def test_a_finished_run_stays_as_it_is(one_device, tiny_words, tiny_run, tmp_path, capsys):
    folder = tmp_path / "again"
    shutil.copytree(tiny_run, folder)
    code, err = run_command(capsys, *tiny_words, "--dir", folder)
    assert code == 0 and "resuming from step 40" in err
    assert_same_run(folder, tiny_run)


def test_a_run_without_its_description_is_refused(door, tiny_words, tiny_run, tmp_path, capsys):
    folder = tmp_path / "bare"
    shutil.copytree(tiny_run, folder)
    (folder / "run.json").unlink()
    assert cli.main([*tiny_words, "--dir", str(folder), "--seed", "3"]) == 2
    assert "and no run.json: it is no run's folder" in capsys.readouterr().err


def test_a_checkpoint_of_another_run_is_refused(tiny_words, tiny_run, tmp_path, capsys):
    folder = tmp_path / "mixed"
    shutil.copytree(tiny_run, folder)
    described = json.loads((folder / "run.json").read_text())
    described["config"]["seed"] = 3
    (folder / "run.json").write_text(json.dumps(described))
    assert cli.main([*tiny_words, "--dir", str(folder), "--seed", "3"]) == 2
    assert "is of a run with other settings, text or vocabulary" in capsys.readouterr().err


def test_data_that_changed_on_disk_is_not_trained_on(tiny_words, tiny_run, tmp_path, capsys):
    for file in ("tokens-00000.bin", "train.bin", "sentences.bin", "unigrams.bin", "index.json"):
        folder = tmp_path / file
        shutil.copytree(tiny_run, folder)
        harm_flip(folder / "data" / file)
        assert cli.main([*tiny_words, "--dir", str(folder), "--steps", "41"]) == 2, file
        assert "DataError" in capsys.readouterr().err, file


@pytest.mark.long
def test_a_longer_run_goes_on_and_stays_as_it_is(door, tiny_words, tiny_run, tmp_path):
    folder = tmp_path / "longer"
    shutil.copytree(tiny_run, folder)
    for said in ("--steps is now 45, was 40", "resuming from step 45"):
        done = door(*tiny_words, "--dir", folder, "--steps", "45", "--json")
        assert done.returncode == 0 and said in done.stderr, done.stderr
        assert json.loads(done.stdout)["step"] == 45 == recorded(folder)


def harm_truncate(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


def harm_flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    if data:
        data[len(data) // 2] ^= 0x10
    file.write_bytes(bytes(data))


HARMS = {"truncated": harm_truncate, "removed": Path.unlink, "flipped": harm_flip}


@pytest.mark.long
def test_every_harm_to_every_file_is_seen_or_provably_harmless(tiny_run, tmp_path):
    """Each file of the newest checkpoint, three harms: either the step before is gone on from and the bad item or array
    is named, or the very numbers that were saved come back."""
    run = run_file.read(tiny_run).run
    mesh = meshes.build(MeshConfig(), jax.devices()[:1])
    with jax.set_mesh(mesh):
        _, shapes, shardings = create(build(run.model, OBJECTIVES[run.objective].heads), run, mesh)
        expected = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
        good = {
            step: jax.device_get(restore(tiny_run / "checkpoints" / str(step), expected, mesh)[0]) for step in (30, 40)
        }
        identity = read_meta(tiny_run / "checkpoints" / "40")["identity"]
        files = [f.relative_to(tiny_run) for f in sorted((tiny_run / "checkpoints" / "40").rglob("*")) if f.is_file()]
        assert len(files) > 10
        fell_back = set()
        for file in files:
            for name, harm in HARMS.items():
                folder = tmp_path / "harmed"
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(tiny_run / "checkpoints", folder / "checkpoints")
                harm(folder / file)
                checkpoints = Checkpoints(folder, mesh, run.save, identity)
                with logged() as messages:
                    actual = checkpoints.restore_latest(expected)
                assert actual is not None
                step = int(actual[0].step)
                same = jax.tree.map(lambda a, b: np.array_equal(np.asarray(a), b), actual[0], good[step])
                assert all(jax.tree.leaves(same)), f"{file} {name}: wrong values"
                if step == 30:
                    fell_back.add((str(file), name))
                    assert any("checkpoint of step 40: " in s and ("item " in s or "array " in s) for s in messages), (
                        messages
                    )
                    assert not (folder / "checkpoints" / "40").exists()
                checkpoints.save(50, actual[0], {}, None)
                checkpoints.wait()
                checkpoints.close()
                assert int(restore(folder / "checkpoints" / "50", expected, mesh)[0].step) == step
        assert {name for _, name in fell_back} == set(HARMS)
        for item in ("digest/metadata", "meta/metadata"):
            assert {n for f, n in fell_back if f.endswith(item)} == set(HARMS), item
        folder = tmp_path / "both"
        shutil.copytree(tiny_run / "checkpoints", folder / "checkpoints")
        for step in (30, 40):
            harm_truncate(folder / "checkpoints" / str(step) / "digest" / "metadata")
        for step in folder.glob("checkpoints/[0-9]*"):
            if step.name not in ("30", "40"):
                shutil.rmtree(step)
        with pytest.raises(CheckpointError, match="no good checkpoint is left.*step 40: item digest.*step 30"):
            Checkpoints(folder, mesh, run.save, identity).restore_latest(expected)
        assert Shards.open(tiny_run / "data").fingerprint


@pytest.mark.long
def test_a_damaged_checkpoint_is_said_and_the_run_is_the_same(door, tiny_words, tiny_run, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(tiny_run, folder)
    largest = max((folder / "checkpoints" / "40" / "state").rglob("*"), key=lambda f: f.stat().st_size * f.is_file())
    harm_flip(largest)
    done = door(*tiny_words, "--dir", folder)
    assert done.returncode == 0, done.stderr
    assert "warning: checkpoint of step 40: " in done.stderr and "resuming from step 30" in done.stderr
    assert_same_run(folder, tiny_run)
