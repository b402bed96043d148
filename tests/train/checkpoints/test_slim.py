"""What only training needs is taken from a run, and nothing else."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import contexture
from contexture.cli import main as cli
from contexture.train.checkpoints import slim as slimming
from contexture.train.checkpoints.meta import read_json
from contexture.train.checkpoints.slim import slim
from contexture.train.errors import CheckpointError, ConfigError
from contexture.train.grid.results import deciding_step
from contexture.train.run.folder import lock_folder
from tests.helpers.commands import json_of, run_command
from tests.helpers.long import long

WORDS = ["the cat sat", "a dog"]


@pytest.fixture
def run(tiny_run, tmp_path: Path) -> Path:
    shutil.copytree(tiny_run, tmp_path / "run")
    last = max((tmp_path / "run" / "checkpoints").iterdir(), key=lambda step: int(step.name))
    assert any(not name.startswith("params/") for name in read_json(last)[1])
    return tmp_path / "run"


def vectors(run: Path, step: int | None = None) -> list[np.ndarray]:
    return [np.asarray(each) for each in contexture.open(run, step).embed(WORDS)]


def test_the_parameters_are_as_before_and_the_optimizer_is_gone(run: Path, capsys):
    steps = sorted(int(each.name) for each in (run / "checkpoints").iterdir())
    before, meta, size = vectors(run), read_json(run / "checkpoints" / str(steps[-1])), _size(run / "checkpoints")
    result = json_of("slim", run)
    assert (result["step"], result["removed_steps"]) == (steps[-1], steps[:-1])
    assert (result["bytes_before"], result["bytes_after"]) == (size, _size(run / "checkpoints"))
    assert result["bytes_after"] < size / 2
    for one, other in zip(vectors(run), before, strict=True):
        assert one.tobytes() == other.tobytes()
    after = read_json(run / "checkpoints" / str(steps[-1]))
    assert after[1] == {name: word for name, word in meta[1].items() if name.startswith("params/")}
    assert {**after[0], "shapes": 0} == {**meta[0], "shapes": 0}
    assert json_of("status", run)["runs"][0]["state"] == "slimmed"
    assert json_of("slim", run)["bytes_after"] == result["bytes_after"] == json_of("slim", run)["bytes_before"]


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_a_relative_path_is_slimmed_and_folders_beside_stay(run: Path, monkeypatch):
    monkeypatch.chdir(run.parent)
    (run / "checkpoints.full").mkdir()
    (run / "checkpoints.full" / "copy").touch()
    assert json_of("slim", "run")["bytes_after"] == _size(run / "checkpoints")
    assert (run / "checkpoints.full" / "copy").exists()


def test_a_folder_that_cannot_be_replaced_leaves_the_run_as_it_was(run: Path, monkeypatch):
    def fails(*_: object) -> None:
        raise OSError(16, "Device or resource busy", str(run / "checkpoints"))

    before = (run / "run.json").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(slimming.os, "rename", fails)
        with pytest.raises(CheckpointError, match="Device or resource busy; nothing is lost"):
            slim(run)
    assert (run / "run.json").read_bytes() == before
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "checkpoints")
    with pytest.raises(ConfigError, match="is a disk of its own, whose folder cannot be replaced; slim a copy"):
        slim(run)


def test_a_slimmed_run_of_a_grid_is_complete(run: Path):
    slim(run, 30)  # not its last one: as the best one of a run with patience
    assert deciding_step(run) == 30


def test_a_slimmed_run_is_not_resumed(run: Path):
    slim(run)
    before = {
        file: file.read_bytes() for file in run.rglob("*") if file.is_file() and file.name not in ("lock", "log.txt")
    }
    with pytest.raises(ConfigError, match="was slimmed and has no optimizer state: begin from it, --init.run"):
        contexture.pretrain(contexture.train.settings.run_file.read(run).run, {"dir": str(run)})  # pyright: ignore[reportAttributeAccessIssue]
    assert before == {file: file.read_bytes() for file in before}


def test_a_run_of_parameters_alone_stays_as_it_is(run: Path):
    slim(run)
    before = {file: file.stat().st_mtime_ns for file in run.rglob("*") if file.is_file() and file.name != "lock"}
    result = slim(run)
    assert result["bytes_before"] == result["bytes_after"] and result["removed_steps"] == []
    assert before == {file: file.stat().st_mtime_ns for file in before}


@pytest.mark.parametrize("link", [True, *long(False)])
def test_a_kill_at_any_place_loses_nothing(run: Path, monkeypatch, link: bool):
    """Each rename and removal is the last thing that one process does; the next one ends the work."""
    if link:
        os.rename(run / "checkpoints", run.parent / "disk")
        (run / "checkpoints").symlink_to(run.parent / "disk")
    shutil.copytree(run, run.parent / "other")
    slim(run.parent / "other")
    before, calls, at = vectors(run), 0, 0

    class Killed(BaseException):
        pass

    def dies(work, at):
        def call(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == at:
                raise Killed
            return work(*arguments, **options)

        return call

    def copied(source: Path, folder: Path, check: object) -> int:
        shutil.copytree(run.parent / "other" / "checkpoints", folder)  # written once, not at each try
        return int(source.name)

    for at in range(1, 20):
        calls = 0
        with monkeypatch.context() as patched:
            patched.setattr(slimming.os, "rename", dies(os.rename, at))
            patched.setattr(slimming.shutil, "rmtree", dies(shutil.rmtree, at))
            patched.setattr(slimming, "_copy", dies(copied, at))
            try:
                slim(run)
                break
            except Killed:
                continue
    assert at > 4
    for one, other in zip(vectors(run), before, strict=True):
        assert one.tobytes() == other.tobytes()
    names = sorted(path.name for path in run.iterdir() if path.name.startswith("checkpoints"))
    assert names == ["checkpoints"] and (run / "checkpoints").is_symlink() == link
    assert json.loads((run / "run.json").read_text())["slimmed"] is True


@pytest.mark.parametrize(
    ("failing", "line"),
    [
        ("read_arrays", r"of step 40: array .*: cannot be read \(a passing fault\); nothing was removed; --step N"),
        ("host_digest", r"do not match their digest; nothing was removed; --step N keeps another one: 30"),
        ("write", r"run/checkpoints\S*/40: the disk is full; nothing is lost"),
    ],
)
def test_what_cannot_be_read_or_written_removes_nothing(run: Path, monkeypatch, failing: str, line: str):
    """Another checkpoint is never taken in its place: the reason may pass, and what is removed is gone."""

    def files() -> dict[Path, bytes]:
        return {file: file.read_bytes() for file in run.rglob("*") if file.is_file() and file.name != "lock"}

    def fail(*_: object, **__: object) -> int:
        if failing == "host_digest":
            return -1
        raise OSError("a passing fault") if failing == "read_arrays" else ValueError("No space left on device")

    before = files()
    if failing == "write":
        monkeypatch.setattr("orbax.checkpoint.type_handlers.NumpyHandler._open_and_write", fail)
    else:
        monkeypatch.setattr(slimming, failing, fail)
    with pytest.raises(CheckpointError, match=line):
        slim(run)
    assert files() == before


def test_a_kill_between_two_renames_is_told(run: Path, capsys):
    (run / "checkpoints").rename(run / "checkpoints.contexture-slim-old")
    code, err = run_command(capsys, "evaluate", run)
    assert code == 2 and "run was left in the middle of `contexture slim`; give that command again" in err, err
    assert json_of("slim", run)["step"] == 40 and (run / "checkpoints" / "40").is_dir()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nowhere"], "nowhere is not a run: it holds no run.json"),
        (["run", "--step", "99"], "run holds no checkpoint of step 99; those there are of step "),
        (["run", "--step", "x"], "--step x: give the number of a step, or `best`"),
        (["empty"], "empty holds no checkpoint yet; train it first"),
        (["busy"], "busy is in use by process"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_changes(run: Path, monkeypatch, capsys, words, line):
    monkeypatch.chdir(run.parent)
    for name in ("empty", "busy"):
        Path(name).mkdir()
        shutil.copy(run / "run.json", name)
    with lock_folder(Path("busy")):
        assert cli.main(["slim", *words]) == 2
    error = capsys.readouterr().err
    assert line in error and len(error.splitlines()) == 1
    assert not contexture.train.settings.run_file.read(run).slimmed  # pyright: ignore[reportAttributeAccessIssue]
