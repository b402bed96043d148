"""Checkpoints in s3://: Orbax has the names that they rest on; they are saved, committed, kept and restored."""

import inspect
import json
import random
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath
from etils.epath import gpath
from jax.sharding import PartitionSpec as P
from orbax.checkpoint._src.path import atomicity, atomicity_defaults, gcs_utils
from orbax.checkpoint._src.serialization import tensorstore_utils
from packaging.requirements import Requirement

from contexture.data import bucket, mirror
from contexture.data.bucket import Address
from contexture.train import mesh as meshes
from contexture.train.checkpoints import orbax_s3
from contexture.train.checkpoints.manager import Checkpoints
from contexture.train.errors import CheckpointError
from contexture.train.run.folder import steps
from contexture.train.settings.sections import MeshConfig, SaveConfig
from contexture.train.step import State
from tests.helpers.buckets import BUCKET, Server

CHANGED = "Orbax or etils has changed what train/checkpoints/orbax_s3.py rests on; mend it there"
ROOT = Path(__file__).parents[3]


def state(mesh: jax.sharding.Mesh, step: int) -> State:
    """A state whose large array lies in parts on the devices."""
    rng, zero = np.random.default_rng(step), np.zeros((), np.int32)
    params = {"backbone": {"norm": {"scale": rng.normal(size=(64, 32)).astype(np.float32)}}}
    whole = meshes.replicated(mesh)
    split = jax.sharding.NamedSharding(mesh, P(mesh.axis_names[0]))
    placed = jax.tree.map(lambda x: jax.device_put(x, split), params)
    return State(jax.device_put(zero + step, whole), placed, {}, *(jax.device_put(zero, whole) for _ in range(2)))


def expected(mesh: jax.sharding.Mesh) -> State:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state(mesh, 0))


def mesh_of(count: int) -> jax.sharding.Mesh:
    return meshes.build(MeshConfig(), jax.devices()[:count])


def test_orbax_has_the_private_names_that_s3_needs() -> None:
    parameters = {
        gcs_utils.get_kvstore_for_gcs: ["ckpt_path"],
        gcs_utils.is_gcs_path: ["path"],
        tensorstore_utils._use_gcs_driver: ["directory"],
        tensorstore_utils._normalize_path: ["path"],
    }
    for function, names in parameters.items():
        function = inspect.unwrap(function)
        # Taught already, it is a function of ours.
        if function.__module__.startswith("orbax"):
            assert list(inspect.signature(function).parameters) == names, CHANGED
    assert isinstance(gcs_utils._GCS_PATH_PREFIX, tuple) and "gs://" in gcs_utils._GCS_PATH_PREFIX, CHANGED
    assert isinstance(inspect.getattr_static(gpath._GPath, "_backend"), property), CHANGED
    # Each new minor version is looked at by a person.
    packages = map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    (orbax,) = [each for each in packages if each.name == "orbax-checkpoint"]
    assert not orbax.specifier.contains("0.13.0"), CHANGED


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_orbax_takes_s3_as_it_takes_gs(scheme: str) -> None:
    orbax_s3.place("s3://a-bucket/run")
    path = epath.Path(f"{scheme}://a-bucket/run/3")
    assert str(path / "state") == f"{scheme}://a-bucket/run/3/state"
    assert gcs_utils.is_gcs_path(path) and not gcs_utils.is_gcs_path(epath.Path("/run/3")), CHANGED
    kind = atomicity_defaults.get_default_temporary_path_class(path)
    assert kind is atomicity.CommitFileTemporaryPath, CHANGED
    spec = tensorstore_utils.build_kvstore_tspec(f"{path}/state/", use_ocdbt=True)["base"]
    driver = {"gs": "gcs", "s3": "s3"}[scheme]
    assert (spec["driver"], spec["bucket"], spec["path"].rstrip("/")) == (driver, "a-bucket", "run/3/state"), CHANGED
    assert tensorstore_utils.build_kvstore_tspec("/run/3/state", use_ocdbt=True)["base"]["driver"] == "file", CHANGED


def test_an_orbax_without_these_names_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orbax_s3, "_teach", inspect.unwrap(orbax_s3._teach))
    monkeypatch.delattr(tensorstore_utils, "_use_gcs_driver")
    with pytest.raises(CheckpointError, match=r"orbax-checkpoint \S+ keeps no checkpoints in s3://.*; install "):
        orbax_s3.place("s3://a-bucket/run")


def test_a_checkpoint_in_s3_is_saved_kept_and_restored(s3_store: Server) -> None:
    """On other devices than it was saved on; a save that was killed is ignored, and removed by the next process."""
    place = Address("s3", BUCKET, f"kept-{random.randrange(1 << 30)}/run")
    folder = Path(mirror.local(str(place)))
    folder.mkdir(parents=True)
    config, four = SaveConfig(every=1, max_to_keep=1, keep_every=2), mesh_of(4)
    bucket.write(place / "checkpoints/9/meta/metadata", b"{}")
    checkpoints = Checkpoints(folder, four, config, "the run")
    for step in (1, 2, 3):
        checkpoints.save(step, state(four, step), {"lines_read": step}, None)
        checkpoints.wait()
    checkpoints.close()
    mirror.look_again(folder / "checkpoints")
    assert steps(folder / "checkpoints") == [2, 3]
    names = bucket.keys(place / "checkpoints")
    assert {name.partition("/")[0] for name in names} == {"2", "3"}
    restored = Checkpoints(folder, mesh_of(2), config, "the run").restore_latest(expected(mesh_of(2)))
    assert restored is not None and restored[1]["step"] == 3
    for got, saved in zip(jax.tree.leaves(restored[0]), jax.tree.leaves(state(four, 3)), strict=True):
        assert np.array_equal(got, saved)
    # A number that changes in the bucket is found: the step before it is restored.
    (data, *_) = [name for name in names if name.startswith("3/state/") and "/d/" in name]
    content = bytearray(bucket.read(place / "checkpoints" / data).value or b"")
    for at in range(0, len(content), 64):
        content[at] ^= 1
    bucket.write(place / "checkpoints" / data, bytes(content))
    restored = Checkpoints(folder, four, config, "the run").restore_latest(expected(four))
    assert restored is not None and restored[1]["step"] == 2
    assert {name.partition("/")[0] for name in bucket.keys(place / "damaged")} == {"3-0"}


def test_a_save_that_cannot_be_read_back_is_not_committed(s3_store: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Address("s3", BUCKET, f"bad-{random.randrange(1 << 30)}/run")
    folder = Path(mirror.local(str(place)))
    folder.mkdir(parents=True)
    one = mesh_of(1)
    checkpoints = Checkpoints(folder, one, SaveConfig(max_to_keep=1), "the run")
    checkpoints.save(1, state(one, 1), {}, None)
    checkpoints.wait()
    monkeypatch.setattr("contexture.train.checkpoints.manager.read_back", lambda *_, **__: json.loads("{"))
    with pytest.raises(CheckpointError, match="step 2 cannot be read back"):
        checkpoints.save(2, state(one, 2), {}, None)
        checkpoints.wait()
    checkpoints.abandon()
    assert [name for name in bucket.keys(place / "checkpoints") if name.endswith("/commit_success.txt")][0][0] == "1"
    assert "2/commit_success.txt" not in bucket.keys(place / "checkpoints")


def test_small_files_of_orbax_are_objects(s3_store: Server) -> None:
    folder = orbax_s3.place(f"s3://{BUCKET}/small-{random.randrange(1 << 30)}")
    assert not folder.exists() and list(folder.iterdir()) == []
    folder.mkdir()
    (folder / "a" / "b.txt").write_text("ä\n")
    with (folder / "c").open("wb") as opened:
        opened.write(b"12")
    (folder / "empty").touch()
    assert (folder / "a/b.txt").read_text() == "ä\n" and (folder / "c").read_bytes() == b"12"
    assert sorted(each.name for each in folder.iterdir()) == ["a", "c", "empty"] and (folder / "empty").exists()
    assert folder.is_dir() and (folder / "a").is_dir() and not (folder / "c").is_dir()
    assert [each.name for each in folder.glob("*p*")] == ["empty"] and (folder / "c").stat().length == 2
    with pytest.raises(FileExistsError):
        folder.mkdir()
    with pytest.raises(FileNotFoundError):
        (folder / "nothing").read_text()
    (folder / "c").unlink()
    folder.rmtree()
    assert not folder.exists()
    with pytest.raises(FileNotFoundError):
        folder.rmtree()
    folder.rmtree(missing_ok=True)
