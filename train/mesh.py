"""Devices: the mesh, where each array lives on it, and which lines of a batch a process reads."""

import math
import os
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from contexture.models.shapes import by_path, dims_of, path_of
from contexture.models.sharding import MESH_AXES, partition_spec
from contexture.train.errors import ConfigError
from contexture.train.options import MeshConfig
from contexture.train.run.limits import check_limits

_EXTRAS = {"cuda": "cuda", "gpu": "cuda", "tpu": "tpu"}
"""What to install, by the platform that was asked for."""


def prepare_jax(dtype: str) -> None:
    """What is set once a process: compiled programs are kept between starts, unless the user has said otherwise; and
    float32 means float32 on every chip. Raises ConfigError where the system's limits are too low, or where there is no
    device."""
    check_limits()
    if not jax.config.jax_compilation_cache_dir:  # pyright: ignore[reportAttributeAccessIssue]
        home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        jax.config.update("jax_compilation_cache_dir", os.path.join(home, "contexture", "jax"))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    if dtype == "float32":
        jax.config.update("jax_default_matmul_precision", "float32")
    find_devices()  # before anything else asks jax for them


def build(config: MeshConfig, devices: list[Any] | None = None) -> Mesh:
    """The mesh data × fsdp × tensor over all devices. Raises ConfigError where they do not fit."""
    devices = find_devices() if devices is None else devices
    model = config.fsdp * config.tensor
    data = config.data or max(len(devices) // model, 1)
    if data * model != len(devices):
        raise ConfigError(
            f"mesh data × fsdp × tensor = {data} × {config.fsdp} × {config.tensor} = {data * model} "
            f"does not fit {len(devices)} device{'s' if len(devices) > 1 else ''}; their product must be the same"
        )
    shape = (data, config.fsdp, config.tensor)
    return jax.make_mesh(shape, MESH_AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


def find_devices() -> list[Any]:
    """All devices. Raises ConfigError, whatever jax raises where it cannot start what JAX_PLATFORMS names."""
    try:
        return jax.devices()
    except Exception as error:  # jax raises RuntimeError, AssertionError, and what plug-ins raise
        wanted = os.environ.get("JAX_PLATFORMS", "")
        named = f" for JAX_PLATFORMS={wanted}" if wanted else ""
        why = next((line for line in str(error).splitlines() if line.strip()), "none can be started")
        extra = next((extra for name, extra in _EXTRAS.items() if name in wanted), "")
        mend = f"install the extra [{extra}], or unset JAX_PLATFORMS" if extra else "set JAX_PLATFORMS=cpu"
        raise ConfigError(f"jax finds no device{named}: {why}; {mend}") from None


def replicated(mesh: Mesh) -> NamedSharding:
    """Whole on every device."""
    return NamedSharding(mesh, PartitionSpec())


def sharding(mesh: Mesh, dims: str, shape: tuple[int, ...]) -> NamedSharding:
    """Where an array with these dims lives."""
    return NamedSharding(mesh, partition_spec(dims, shape, dict(mesh.shape)))


def parameter_shardings(mesh: Mesh, parameters: Any) -> Any:
    """A sharding for each parameter, by its path alone."""
    return jax.tree_util.tree_map_with_path(lambda k, x: sharding(mesh, dims_of(path_of(k)), x.shape), parameters)


def state_shardings(mesh: Mesh, state: Any, parameters: Any) -> Any:
    """A sharding for each array of a training state: one whose path ends with a parameter's path, and that has its
    shape (an Adam moment), lives where the parameter lives; a carry by its own dims; the rest is on every device."""
    places = jax.tree.leaves(parameter_shardings(mesh, parameters))
    where = {path: (x.shape, s) for (path, x), s in zip(by_path(parameters).items(), places, strict=True)}

    def find(keys: tuple[Any, ...], leaf: Any) -> NamedSharding:
        if (path := path_of(keys)).startswith("carry/"):
            return sharding(mesh, dims_of(path), leaf.shape)
        for start in range(len(keys)):
            shape, place = where.get(path_of(keys[start:]), (None, None))
            if place is not None and shape == leaf.shape:
                return place
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(find, state)


def round_up_to_devices(mesh: Mesh, lines: int) -> int:
    """At least so many lines, and as many for each device."""
    shares = mesh.shape["data"] * mesh.shape["fsdp"]
    return -(-lines // shares) * shares


def check_batch(mesh: Mesh, batch: int, parts: int, name: str) -> None:
    """Raises ConfigError unless every part of a batch can be dealt out evenly to the devices."""
    shares = mesh.shape["data"] * mesh.shape["fsdp"]
    if batch % (parts * shares):
        cut = f"optim.accumulate × mesh.data × mesh.fsdp = {parts} × {mesh.shape['data']} × {mesh.shape['fsdp']}"
        raise ConfigError(f"{name}={batch} is not a multiple of {cut} = {parts * shares}; change one of them")


def local_rows(mesh: Mesh, batch: int) -> np.ndarray:
    """The numbers of the lines of a batch that this process's devices hold, ascending."""
    held = sharding(mesh, "B", (batch,)).addressable_devices_indices_map((batch,))
    return np.unique(np.concatenate([np.arange(batch)[index] for index in held.values() if index is not None]))


def shard_batch(mesh: Mesh, batch: dict[str, np.ndarray], fields: dict[str, str], lines: int) -> dict[str, jax.Array]:
    """This process's lines of a batch, as global arrays cut over the mesh: {"tokens": (8, 128)} of (16, 128) in all.
    A field whose dims do not begin with B is the whole batch's, and the same in every process."""
    placed = {}
    for name, local in batch.items():
        dims = fields[name].partition(" ")[2]
        if dims[0] == "B":
            shape = (lines, *local.shape[1:])
            where = sharding(mesh, dims, shape)
            placed[name] = jax.make_array_from_process_local_data(where, local, shape)
        else:
            where = sharding(mesh, dims, local.shape)
            placed[name] = jax.make_array_from_callback(local.shape, where, lambda index, x=local: x[index])
    return placed


def describe(mesh: Mesh) -> str:
    """'8 cpu devices as data 2 × fsdp 2 × tensor 2 (2 processes)'."""
    device = mesh.devices.flat[0]
    layout = " × ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    processes = jax.process_count()
    shared = f", {processes} processes" if processes > 1 else ""
    many = math.prod(mesh.shape.values())
    return f"{many} {device.device_kind} device{'s' if many > 1 else ''} as {layout}{shared}"
