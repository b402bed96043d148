"""How a mesh is laid out and a batch dealt out, by numbers alone."""

import dataclasses
import itertools
from typing import Any

import jax
import numpy as np
import pytest

from contexture.models.shapes import LETTERS
from contexture.models.sharding import partition_spec
from contexture.train import mesh as meshes
from contexture.train.errors import ConfigError
from contexture.train.settings.sections import MeshConfig
from tests.helpers.parity_rule import close


@pytest.mark.parametrize(("lines", "expected"), [(1, 4), (4, 4), (5, 8), (97, 100)])
def test_a_held_out_batch_is_rounded_up_to_as_many_for_each_device(lines, expected):
    assert meshes.round_up_to_devices(meshes.build(MeshConfig(fsdp=2, tensor=2)), lines) == expected


@pytest.mark.parametrize(
    ("config", "shape"),
    [({}, (8, 1, 1)), ({"fsdp": 2}, (4, 2, 1)), ({"fsdp": 2, "tensor": 4}, (1, 2, 4)),
     ({"data": 4, "tensor": 2}, (4, 1, 2))],
    ids=str,
)  # fmt: skip
def test_what_is_left_of_the_devices_is_data(config, shape):
    assert tuple(meshes.build(MeshConfig(**config)).shape.values()) == shape


@pytest.mark.parametrize("config", [{"fsdp": 3}, {"data": 4}, {"data": 16}, {"fsdp": 16}], ids=str)
def test_a_mesh_that_is_not_all_devices_is_refused(config):
    with pytest.raises(ConfigError, match="does not fit 8 devices; their product must be the same"):
        meshes.build(MeshConfig(**config))


def test_every_part_of_a_batch_is_dealt_out_evenly():
    mesh = meshes.build(MeshConfig(fsdp=2, tensor=2))
    for batch, parts in ((4, 1), (8, 2), (24, 3)):
        meshes.check_batch(mesh, batch, parts, "data.batch")
    for batch, parts in ((6, 1), (4, 2), (12, 2), (8, 3)):
        with pytest.raises(ConfigError, match=f"data.batch={batch} is not a multiple of .* = {parts} × 2 × 2"):
            meshes.check_batch(mesh, batch, parts, "data.batch")


def test_this_process_reads_every_line_that_its_devices_hold():
    mesh = meshes.build(MeshConfig(fsdp=2, tensor=2))
    assert meshes.local_rows(mesh, 12).tolist() == list(range(12))
    lines = {"tokens": np.arange(24, dtype=np.int32).reshape(12, 2), "tries": np.ones(2, np.float32)}
    placed = meshes.shard_batch(mesh, lines, {"tokens": "i32 BL", "tries": "f32 _"}, 12)
    assert np.array_equal(placed["tokens"], lines["tokens"]) and np.array_equal(placed["tries"], lines["tries"])
    held = {shard.index[0].start or 0 for shard in placed["tokens"].addressable_shards}
    assert held == {0, 3, 6, 9} and len(jax.devices()) == 8


@dataclasses.dataclass(frozen=True)
class Chip:
    """A TPU, as far as a mesh asks for it: its place in the network."""

    coords: tuple[int, int, int]
    slice_index: int = 0
    device_kind: str = "TPU v5"
    platform: str = "tpu"
    core_on_chip: int = 0
    process_index: int = 0

    @property
    def id(self) -> int:
        return hash((self.coords, self.slice_index))


def chips(*sizes: int, slices: int = 1) -> list[Any]:
    places = itertools.product(range(slices), *map(range, sizes))
    return [Chip((x, y, z), number) for number, x, y, z in places]


@pytest.mark.parametrize(
    "shape",
    [(64, 1, 1), (1, 64, 1), (2, 32, 1), (8, 8, 1), (1, 8, 8), (4, 4, 4), (1, 2, 32), (4, 1, 4, 4), (2, 2, 8, 2)],
)
def test_a_torus_holds_every_factorisation(shape: tuple[int, ...]):
    devices = chips(4, 4, 4)
    mesh = meshes.arrange(shape, devices)
    assert mesh.shape == shape and set(mesh.flat) == set(devices)


def test_slices_share_the_batch_and_no_tensor():
    """The slower network between them carries one sum of gradients a step; no part of a sequence crosses it either."""
    devices = chips(2, 2, 4, slices=2)
    for shape, axis in (((2, 16, 1), 0), ((4, 4, 2), 0), ((1, 8, 4), 1), ((2, 1, 4, 4), 0), ((1, 4, 8, 1), 1)):
        mesh = np.moveaxis(meshes.arrange(shape, devices), axis, 0)
        halves = [{chip.slice_index for chip in half.flat} for half in np.split(mesh, 2)]
        assert halves == [{0}, {1}], shape
    for shape in ((2, 2, 4), (4, 4, 1), (1, 16, 1)):
        four = chips(2, 2, 1, slices=4)
        assert set(meshes.arrange(shape, four).flat) == set(four), shape
    with pytest.raises(ConfigError, match="holds no mesh of --mesh.data 1 --mesh.fsdp 1 --mesh.tensor 32; "
                       "give --mesh.data 2 --mesh.fsdp 1 --mesh.tensor 16"):  # fmt: skip
        meshes.arrange((1, 1, 32), devices)
    with pytest.raises(ConfigError, match="--mesh.context 32 --mesh.tensor 1; give a smaller --mesh.context"):
        meshes.arrange((1, 1, 32, 1), devices)


def test_groups_that_a_slower_network_joins_share_the_copies_alone():
    """Of devices that say nothing of slices: processes, in their order."""
    devices = jax.devices()
    for groups, fsdp, tensor in ((2, 2, 1), (4, 1, 2), (2, 2, 2)):
        mesh = meshes.build(MeshConfig(dcn_data=groups, fsdp=fsdp, tensor=tensor))
        for number, group in enumerate(np.split(mesh.devices, groups)):
            assert {device.id // (8 // groups) for device in group.flat} == {number}, groups
    mesh = meshes.arrange((4, 8, 1), chips(2, 2, 4, slices=2), 2)
    assert [{chip.slice_index for chip in part.flat} for part in mesh] == [{0}, {0}, {1}, {1}]
    with pytest.raises(ConfigError, match="mesh.dcn-data=3 does not divide the 8 copies of the model"):
        meshes.build(MeshConfig(dcn_data=3), devices)
    with pytest.raises(ConfigError, match="mesh.dcn-data=2 is not the 4 slices that"):
        meshes.build(MeshConfig(dcn_data=2), chips(2, 2, 1, slices=4))
    with pytest.raises(ConfigError, match="mesh.dcn-data=1 is not the 2 slices that"):
        meshes.build(MeshConfig(dcn_data=1), chips(2, 2, 1, slices=2))


SETTINGS = [
    ("jax_enable_x64", True),
    ("jax_threefry_partitionable", False),
    ("jax_default_prng_impl", "rbg"),
    ("jax_numpy_dtype_promotion", "strict"),
    ("jax_default_matmul_precision", "bfloat16"),
]


@pytest.mark.parametrize(("name", "value"), SETTINGS)
def test_no_setting_of_jax_changes_a_run_of_the_same_seed(name, value):
    """As the environment sets it: for the whole process."""

    def drawn() -> tuple[np.ndarray, str]:
        with meshes.use(meshes.build(MeshConfig(), jax.devices()[:1]), "float32"):
            x = jax.random.normal(jax.random.key(3), (4, 6))
            return np.asarray(x @ x.T * np.float32(2) + np.arange(4)[None]), str(jax.make_jaxpr(lambda: x @ x.T)())

    usual, before = drawn(), jax.config.values[name]
    jax.config.update(name, value)
    try:
        changed = drawn()
    finally:
        jax.config.update(name, before)
    close(changed[0], usual[0], tolerance=0.0)
    assert changed[1] == usual[1] and changed[0].dtype == np.float32


def test_an_offset_of_all_seeds_is_refused():
    jax.config.update("jax_random_seed_offset", 3)
    try:
        with pytest.raises(ConfigError, match="JAX_RANDOM_SEED_OFFSET=3 .* unset it"), meshes.numerics("float32"):
            pass
    finally:
        jax.config.update("jax_random_seed_offset", 0)


def test_each_letter_is_sharded_by_axes_of_the_mesh():
    """The batch and its rows by data and fsdp, the width of parameters by fsdp, heads and their like by tensor, the
    tokens of a batch's sequences by context; others by none."""
    by_axes = {letter: spec[0] for letter in sorted(LETTERS) if (spec := partition_spec(letter, (8,), SIZES))}
    wide, width, heads = ("data", "fsdp"), "fsdp", "tensor"
    expected = {"B": wide, "X": wide, "R": wide, "D": width, "J": width, "V": heads, "H": heads, "F": heads, "U": heads}
    expected |= {"Z": wide}
    assert {letter: axes for letter, axes in by_axes.items() if axes} == expected
    cut = {letter for letter in LETTERS if "context" in str(partition_spec(f"B{letter}", (1, 8), {"context": 2}))}
    assert cut == {"L", "Y", "P", "Z"}


SIZES = {"data": 2, "fsdp": 2, "tensor": 2}
