"""Checkpoints: a changed number is detected, a damaged checkpoint is skipped, the best one is kept."""

import dataclasses
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint._src.futures.synchronization import MultihostSynchronizedValue

from contexture.data.errors import DataError
from contexture.data.storage import check_run_path
from contexture.train import mesh as meshes
from contexture.train.checkpoints.digests import digests
from contexture.train.checkpoints.manager import Checkpoints, restore
from contexture.train.checkpoints.meta import best_step, rank_of, read_meta
from contexture.train.checkpoints.orbax_logging import orbax_silenced
from contexture.train.checkpoints.read_back import _groups, read_back
from contexture.train.errors import CheckpointError, ConfigError, Diverged
from contexture.train.run.folder import steps
from contexture.train.settings.sections import MeshConfig, SaveConfig
from contexture.train.step import State
from tests.helpers.logs import logged
from tests.helpers.parity_rule import close


@pytest.fixture(scope="module")
def mesh():
    return meshes.build(MeshConfig(), jax.devices()[:1])


def _state(mesh: Any, step: int) -> State:
    rng, zero = np.random.default_rng(step), jnp.zeros((), jnp.int32)
    params: Any = {"backbone": {"norm": {"scale": rng.normal(size=5).astype(np.float32)}}}
    opt: Any = {"mu": {"backbone": {"norm": {"scale": rng.normal(size=5).astype(np.float32)}}}}
    return jax.device_put(State(zero + step, params, opt, zero, zero), meshes.replicated(mesh))


def _wanted(mesh: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), _state(mesh, 0))


def _saved(folder: Path, mesh: Any, count: int = 3, **more: Any) -> Checkpoints:
    checkpoints = Checkpoints(folder, mesh, SaveConfig(max_to_keep=9), "the run")
    for step in range(1, count + 1):
        checkpoints.save(step, _state(mesh, step), {"lines_read": 8 * step, **more}, None)
    checkpoints.wait()
    checkpoints.close()
    return Checkpoints(folder, mesh, SaveConfig(max_to_keep=9), "the run")


def test_what_is_read_is_what_was_saved(tmp_path, mesh):
    checkpoints = _saved(tmp_path, mesh)
    with logged() as messages:
        state, meta = checkpoints.restore_latest(_wanted(mesh))  # pyright: ignore[reportGeneralTypeIssues]
    assert (int(state.step), meta["step"], meta["lines_read"]) == (3, 3, 24) and not messages
    for got, expected in zip(jax.tree.leaves(state.params), jax.tree.leaves(_state(mesh, 3).params), strict=True):
        close(got, expected, tolerance=0.0)


def test_what_a_killed_process_was_writing_is_removed_and_nothing_else(tmp_path, mesh):
    for name in ("7.orbax-checkpoint-tmp-12", "8.orbax-checkpoint-tmp", "mine"):
        (tmp_path / "checkpoints" / name / "state").mkdir(parents=True)
    _saved(tmp_path, mesh)
    left = {path.name for path in (tmp_path / "checkpoints").iterdir() if not path.name.isdigit()}
    assert left == {"mine"}


@pytest.mark.parametrize("item", ["digest", "meta"])
def test_a_word_changed_in_a_description_falls_back_to_the_step_before(tmp_path, mesh, item):
    """Also where the JSON still parses, and where an earlier checkpoint was deleted from damaged/."""
    checkpoints = _saved(tmp_path, mesh)
    (tmp_path / "damaged" / "3-1" / "state").mkdir(parents=True)
    file = tmp_path / "checkpoints" / "3" / item / "metadata"
    tree = json.loads(file.read_text())
    if item == "meta":
        tree["lines_read"] += 1
    else:
        tree["arrays"]["params/backbone/norm/scale"] ^= 1
    file.write_text(json.dumps(tree))
    with logged() as messages:
        state, meta = checkpoints.restore_latest(_wanted(mesh))  # pyright: ignore[reportGeneralTypeIssues]
    assert int(state.step) == meta["step"] == 2
    assert f"warning: checkpoint of step 3: item {item}: does not match its" in messages[0]
    assert steps(tmp_path / "checkpoints") == [1, 2] and (tmp_path / "damaged" / "3-0").is_dir()


def test_arrays_that_are_others_do_not_match_their_digest(tmp_path, mesh):
    checkpoints = _saved(tmp_path, mesh)
    folder = tmp_path / "checkpoints"
    shutil.rmtree(folder / "3" / "state")
    shutil.copytree(folder / "2" / "state", folder / "3" / "state")
    with logged() as messages:
        state, _ = checkpoints.restore_latest(_wanted(mesh))  # pyright: ignore[reportGeneralTypeIssues]
    assert int(state.step) == 2 and "its values do not match their digest" in messages[0]


def test_where_no_checkpoint_is_good_nothing_is_begun_anew(tmp_path, mesh):
    checkpoints = _saved(tmp_path, mesh, count=2)
    for step in (1, 2):
        (tmp_path / "checkpoints" / str(step) / "digest" / "metadata").write_text("{}")
    with pytest.raises(CheckpointError, match="no good checkpoint is left in .*step 2: item digest.*step 1: item"):
        checkpoints.restore_latest(_wanted(mesh))
    empty = Checkpoints(tmp_path / "empty", mesh, SaveConfig(), "the run")
    assert empty.restore_latest(_wanted(mesh)) is None


def test_a_checkpoint_of_another_run_or_step_is_refused(tmp_path, mesh):
    _saved(tmp_path, mesh, count=1)
    with pytest.raises(ConfigError, match="is of a run with other settings"):
        Checkpoints(tmp_path, mesh, SaveConfig(), "another run").restore_latest(_wanted(mesh))
    (tmp_path / "checkpoints" / "1").rename(tmp_path / "checkpoints" / "7")
    with pytest.raises(CheckpointError, match="item meta: is of step 1"):
        restore(tmp_path / "checkpoints" / "7", _wanted(mesh), mesh)
    assert read_meta(tmp_path / "checkpoints" / "7")["step"] == 1


def test_a_digest_sees_every_value_and_every_place(mesh):
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    swapped, moved, signed = x.copy(), x.copy(), x.copy()
    swapped[0, 1], swapped[2, 3] = x[2, 3], x[0, 1]
    moved[3, 5] = np.nextafter(x[3, 5], np.float32(99))
    signed[0, 0] = -0.0
    arrays = {"x": x, "swapped": swapped, "moved": moved, "signed": signed, "turned": x.reshape(6, 4).T.copy()}
    words, broken = digests(jax.device_put(arrays, meshes.replicated(mesh)), mesh)
    assert len(set(words.values())) == len(arrays) and not broken
    again, broken = digests(
        jax.device_put({"x": x, "bad": np.full(3, np.nan, np.float32)}, meshes.replicated(mesh)), mesh
    )
    assert again["x"] == words["x"] and broken == ["bad"]


def test_devices_and_the_host_digest_alike(mesh, monkeypatch):
    rng = np.random.default_rng(0)
    arrays = {
        str(np.dtype(kind)): jnp.asarray(rng.integers(0, 2, (5, 7)) if kind is bool else rng.normal(size=(5, 7)), kind)
        for kind in (bool, np.uint8, np.int32, jnp.bfloat16, np.float16, np.float32)
    }
    arrays |= {"scalar": jnp.float32(3), "none": jnp.zeros((0, 2)), "nan": jnp.array([0, np.nan], jnp.bfloat16)}
    arrays = jax.device_put(arrays, meshes.replicated(mesh))
    host = digests(arrays, mesh)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert digests(arrays, mesh) == host and host[1] == ["nan"]


def test_numbers_that_are_not_finite_are_never_saved(tmp_path, mesh):
    _saved(tmp_path, mesh, count=1)
    checkpoints, state = Checkpoints(tmp_path, mesh, SaveConfig(), "the run"), _state(mesh, 2)
    for part in ("params", "opt"):
        broken = dataclasses.replace(state, **{part: jax.tree.map(lambda x: x.at[3].set(np.inf), getattr(state, part))})
        with pytest.raises(Diverged, match="not finite at step 2, not saved; the last checkpoint is of step 1"):
            checkpoints.save(2, broken, {}, None)
    assert steps(tmp_path / "checkpoints") == [1]


def test_a_write_that_fails_in_a_folder_that_was_moved_says_so(tmp_path, mesh, monkeypatch):
    """It was under way when the folder went: what the file system says of it is not what happened."""
    (tmp_path / "run").mkdir()
    checkpoints = _saved(tmp_path / "run", mesh, count=1)

    def fail() -> None:
        raise OSError("Failed to rename the temporary folder")

    monkeypatch.setattr(checkpoints._open(), "wait_until_finished", fail)
    with pytest.raises(CheckpointError, match="Failed to rename the temporary folder; the last good .* of step 1"):
        checkpoints.wait()
    shutil.move(tmp_path / "run", tmp_path / "moved")
    with pytest.raises(CheckpointError, match="was moved or removed while it trains"):
        checkpoints.wait()


def test_the_best_step_is_the_one_of_the_least_finite_rank():
    assert best_step({1: 3.0, 2: -1.0, 3: None, 4: float("nan"), 5: float("-inf")}) == 2
    assert best_step({1: None, 2: float("nan")}) is None
    meta = {"held_out_loss": 2.0, "rank": -0.5, "metric": "f1"}
    assert (rank_of(meta, "f1"), rank_of(meta, "loss"), rank_of(meta, "accuracy")) == (-0.5, 2.0, None)


def test_the_newest_and_the_best_are_kept(tmp_path, mesh):
    checkpoints = Checkpoints(tmp_path, mesh, SaveConfig(max_to_keep=2, every=1, keep_every=4))
    for step, loss in enumerate((3.0, 1.0, 2.0, 2.5, 2.2, 2.1), 1):
        checkpoints.save(step, _state(mesh, step), {}, loss)
    checkpoints.wait()
    checkpoints.close()
    assert steps(tmp_path / "checkpoints") == [2, 4, 5, 6]


def test_a_checkpoint_that_cannot_be_read_back_replaces_none(tmp_path, mesh):
    """Orbax merges by a glob over the path, which does not match itself here: no array can be read, and no save fails
    by itself. Nor does the step get its name."""
    run = tmp_path / "ex[v2]"
    checkpoints = Checkpoints(run, mesh, SaveConfig(max_to_keep=1, every=1))
    good = tmp_path / "good"
    _saved(good, mesh, count=1)
    shutil.copytree(good / "checkpoints", run / "checkpoints")
    with orbax_silenced():
        checkpoints.save(2, _state(mesh, 2), {}, None)
        with pytest.raises(CheckpointError, match="step 2 cannot be read back: .*last good .* is of step 1"):
            checkpoints.wait()
    checkpoints.abandon()
    assert steps(run / "checkpoints") == [1]


def test_a_failed_write_waits_for_no_other_process(tmp_path, mesh, monkeypatch):
    """Orbax waits at the end of a write for all processes, one of which may be waiting for what has failed here."""
    others, tracker = threading.Event(), MultihostSynchronizedValue
    set_value = tracker.set
    monkeypatch.setattr(tracker, "set", lambda self, value: (value or others.wait(60), set_value(self, value)))
    checkpoints = Checkpoints(tmp_path, mesh, SaveConfig(), "the run")
    monkeypatch.setattr(checkpoints, "_read_back", lambda: 1 / 0)
    with orbax_silenced():
        checkpoints.save(1, _state(mesh, 1), {}, None)
        with pytest.raises(CheckpointError, match="could not write a checkpoint to .*division by zero"):
            checkpoints.wait()
        assert not others.is_set() and checkpoints._open().is_saving_in_progress()
        others.set()
    checkpoints.abandon()


@pytest.mark.parametrize("whole", [False, True])
def test_reading_back_sees_arrays_that_differ_or_are_missing(tmp_path, mesh, whole):
    _saved(tmp_path, mesh, count=2)
    folder = tmp_path / "checkpoints" / "2"
    read_back(folder, whole)
    meta = json.loads((folder / "meta" / "metadata").read_text())
    for change, message in (({"params/x": [3]}, "params/x: its shape is None"), ({"step": [3]}, r"is \[\], not \[3")):
        (folder / "meta" / "metadata").write_text(json.dumps({**meta, "shapes": meta["shapes"] | change}))
        with pytest.raises(CheckpointError, match=message):
            read_back(folder, whole)
    (folder / "meta" / "metadata").write_text(json.dumps(meta))
    shutil.rmtree(folder / "state")
    shutil.copytree(tmp_path / "checkpoints" / "1" / "state", folder / "state")
    with pytest.raises(CheckpointError, match="its values do not match their digest"):
        read_back(folder, whole)


def test_a_sample_is_small_and_the_whole_is_every_array(tmp_path, mesh, monkeypatch):
    """Over many steps each array is in a sample."""
    sizes = {f"array{i}": 10 << 20 for i in range(30)} | {"large": 1 << 40}
    samples = [next(_groups(str(step), sizes, 8)) for step in range(100)]
    assert all(len(each) <= 6 and ("large" not in each or len(each) == 1) for each in samples)
    assert set().union(*samples) == set(sizes)
    groups = list(_groups("1", sizes, len(sizes)))
    assert sorted(name for each in groups for name in each) == sorted(sizes)
    assert [len(each) for each in _groups("1", dict.fromkeys("abcdefghij", 4), 8)] == [8, 2]


PLACES = [
    "a]b",
    "a%41b",
    "a#b",
    "a:b",
    "~",
    "a b",
    "a\nb",
    "gs:x",
    "e\u0301",
    "日" * 85,
    "x.zarr",
    "link/../run",
    "plain",
]


@pytest.mark.parametrize("name", PLACES)
def test_a_run_is_where_the_file_system_says(tmp_path, mesh, name):
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/deep")
    (tmp_path / "br[1]").mkdir()
    (tmp_path / "plain").symlink_to("br[1]")
    folder = tmp_path / name
    check_run_path(folder)
    _saved(folder, mesh, count=1)
    assert steps(folder / "checkpoints") == [1]
    restored = Checkpoints(folder, mesh, SaveConfig(), "the run").restore_latest(_wanted(mesh))
    assert restored and int(restored[0].step) == 1
    parents = {str(file.parent.resolve()) for file in tmp_path.rglob("manifest.ocdbt")}
    assert all(parent.startswith(str(folder.resolve())) for parent in parents)


@pytest.mark.parametrize("name", ["ex[v2]", "a*b", "a?", "x\\y", "\udcff", "link/../[x]"])
def test_a_path_that_is_read_as_a_pattern_is_refused(tmp_path, name):
    with pytest.raises(DataError, match="path.* holds .*give (a|another) path"):
        check_run_path(tmp_path / name / "run")


def test_a_run_in_such_a_path_can_be_read_but_for_a_separator(tmp_path):
    check_run_path(tmp_path / "ex[v2]", writes=False)
    with pytest.raises(DataError, match="run=.* holds"):
        check_run_path(tmp_path / "x\\y", "run", writes=False)
