"""Devices: the mesh, where each array lives on it, and which sequences of a batch a process reads."""

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypeVar

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from contexture.models.config import ModelConfig, TransformerConfig
from contexture.models.layers.attention.choice import choose
from contexture.models.layers.remat import choose_remat, layers_per_iteration
from contexture.models.shapes import Params, by_path, dims_of, path_of
from contexture.models.sharding import MESH_AXES, partition_spec, platform
from contexture.train.errors import ConfigError
from contexture.train.run.plugin_errors import plugin_errors_in_one_line
from contexture.train.settings.sections import MeshConfig

T = TypeVar("T")
Device: TypeAlias = jax.Device  # pyright: ignore[reportInvalidTypeForm]
Shape: TypeAlias = tuple[int, int, int]
"""Sizes of a mesh: data, fsdp, tensor."""
_EXTRAS = {"cuda": "cuda", "gpu": "cuda", "tpu": "tpu"}
"""The extra to install, by the platform in JAX_PLATFORMS."""

_COMPILER_OPTIONS: dict[str, dict[str, str | bool | int]] = {
    # A product whose factor is sharded over fsdp: gathered whole and then multiplied. XLA's default for large ones, to
    # send its parts round the devices while it multiplies, reads and writes the result once for each part.
    "tpu": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": 1_000_000},
    # A layer's messages overlap with the products of the layer before or after it, in the next turn of the loop.
    "gpu": {
        "xla_gpu_enable_pipelined_all_gather": True,
        "xla_gpu_enable_pipelined_reduce_scatter": True,
        "xla_gpu_enable_pipelined_all_reduce": True,
    },
}
"""What pays, by platform; docs/accelerators.md has the figures for each."""


@contextlib.contextmanager
def use(mesh: Mesh, dtype: str) -> Iterator[None]:
    """Computes on this mesh within the block, for a model that computes in `dtype`, as `numerics` sets it."""
    with jax.set_mesh(mesh), numerics(dtype):
        yield


@contextlib.contextmanager
def numerics(dtype: str) -> Iterator[None]:
    """Sets what numbers depend on within the block, for a model that computes in `dtype`.

    Products of float32 are of float32: by default TPUs and recent GPUs multiply such matrices with fewer bits. All else
    is jax's default, whatever JAX_ENABLE_X64, JAX_THREEFRY_PARTITIONABLE, JAX_DEFAULT_PRNG_IMPL and
    JAX_NUMPY_DTYPE_PROMOTION say: one seed is one run, and a checkpoint's digests are those of its arrays.

    Raises ConfigError for JAX_RANDOM_SEED_OFFSET, which only its user can set back.
    """
    if offset := jax.config.jax_random_seed_offset:  # pyright: ignore[reportAttributeAccessIssue]
        raise ConfigError(f"JAX_RANDOM_SEED_OFFSET={offset} changes what each seed draws; unset it, and give --seed")
    with (
        jax.default_matmul_precision("float32" if dtype == "float32" else None),
        jax.enable_x64(False),
        jax.threefry_partitionable(True),
        jax.default_prng_impl("threefry2x32"),
        jax.numpy_dtype_promotion("standard"),
    ):
        yield


def compiler_options(config: MeshConfig, mesh: Mesh) -> dict[str, str | bool | int]:
    """Returns the options of XLA that a step is compiled with: those that pay on the mesh's devices, and the user's."""
    given = dict(option.split("=", 1) for option in config.compiler_options)
    usual = _COMPILER_OPTIONS.get(mesh.devices.flat[0].platform, {})
    return {**usual, **{name: _value(text) for name, text in given.items()}}


def check_compiler_options(config: MeshConfig, mesh: Mesh) -> None:
    """Raises ConfigError if XLA does not know an option that the user gives, or does not take its value."""
    if not config.compiler_options:
        return
    try:
        options = compiler_options(config, mesh)
        jax.jit(lambda: 0, out_shardings=replicated(mesh), compiler_options=options).lower().compile()
    except Exception as error:  # XlaRuntimeError, ValueError
        why = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        given = " ".join(config.compiler_options)
        raise ConfigError(f"mesh.compiler-options={given}: XLA refuses it for these devices: {why}") from None


def _value(text: str) -> str | bool | int:
    words = {"true": True, "false": False}
    return words[text] if text in words else int(text) if text.lstrip("-").isdigit() else text


def build(config: MeshConfig, devices: Sequence[Device] | None = None) -> Mesh:
    """Returns the mesh data × fsdp × tensor over all devices. Raises ConfigError if their number does not fit."""
    devices = find_devices() if devices is None else devices
    model = config.fsdp * config.tensor
    data = config.data or max(len(devices) // model, 1)
    if data * model != len(devices):
        raise ConfigError(
            f"mesh data × fsdp × tensor = {data} × {config.fsdp} × {config.tensor} = {data * model} "
            f"does not fit {len(devices)} device{'s' if len(devices) > 1 else ''}; their product must be the same"
        )
    # Auto: XLA derives the sharding of intermediate arrays from those of parameters, batches and `constrain`.
    return Mesh(arrange((data, config.fsdp, config.tensor), devices), MESH_AXES, axis_types=(AxisType.Auto,) * 3)


def arrange(shape: Shape, devices: Sequence[Device]) -> np.ndarray:
    """Returns the devices as an array data × fsdp × tensor, so that an axis's devices are neighbours on the network.

    Several slices of TPUs, joined by a slower network, share the batch: data and then fsdp are cut over them. Raises
    ConfigError for a shape that the network does not allow, with the nearest that it does.
    """
    try:
        return _arrange(shape, devices)
    except (AssertionError, NotImplementedError, ValueError):
        nearest = next((other for other in _others(shape) if _fits(other, devices)), None)
        mend = "give " + _options(nearest) if nearest else "leave --mesh.fsdp and --mesh.tensor out"
        raise ConfigError(f"the network of these devices holds no mesh of {_options(shape)}; {mend}") from None


def _arrange(shape: Shape, devices: Sequence[Device]) -> np.ndarray:
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    if slices > 1:
        # Copies of the model first: they exchange one sum of gradients a step. A tensor is never cut over slices.
        copies = math.gcd(shape[0], slices)
        outer = (copies, slices // copies, 1)
        inner = tuple(size // times for size, times in zip(shape, outer, strict=True))
        return mesh_utils.create_hybrid_device_mesh(inner, outer, devices, allow_split_physical_axes=True)
    try:
        return mesh_utils.create_device_mesh(shape, devices)
    except NotImplementedError:
        # An axis of the network is cut in two: its devices stay neighbours, with fewer links between them.
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)


def _fits(shape: Shape, devices: Sequence[Device]) -> bool:
    try:
        _arrange(shape, devices)
    except (AssertionError, NotImplementedError, ValueError):
        return False
    return True


def _others(shape: Shape) -> list[Shape]:
    """Returns all shapes of as many devices, the nearest first: those that differ least in their axes' sizes."""
    count = math.prod(shape)
    sizes = [size for size in range(1, count + 1) if count % size == 0]
    shapes = [(count // (f * t), f, t) for f in sizes for t in sizes if count % (f * t) == 0]
    return sorted(shapes, key=lambda other: sum(abs(math.log(a / b)) for a, b in zip(other, shape, strict=True)))


def _options(shape: Shape) -> str:
    return " ".join(f"--mesh.{axis} {size}" for axis, size in zip(MESH_AXES, shape, strict=True))


def find_devices() -> list[Device]:
    """Returns all devices. Raises ConfigError, whatever jax raises if it cannot start the platform asked for."""
    try:
        with plugin_errors_in_one_line():
            return jax.devices()
    except Exception as error:  # RuntimeError, AssertionError, and the exceptions of plug-ins
        platforms = os.environ.get("JAX_PLATFORMS", "")
        named = f" for JAX_PLATFORMS={platforms}" if platforms else ""
        why = next((line for line in str(error).splitlines() if line.strip()), "none can be started")
        extra = next((extra for name, extra in _EXTRAS.items() if name in platforms), "")
        mend = f"install the extra [{extra}], or unset JAX_PLATFORMS" if extra else "set JAX_PLATFORMS=cpu"
        raise ConfigError(f"jax finds no device{named}: {why}; {mend}") from None


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of an array that is whole on every device."""
    return NamedSharding(mesh, PartitionSpec())


def sharding(mesh: Mesh, dims: str, shape: tuple[int, ...]) -> NamedSharding:
    """Returns the sharding of an array with these dims, by the rules of models.sharding."""
    return NamedSharding(mesh, partition_spec(dims, shape, dict(mesh.shape)))


def parameter_shardings(mesh: Mesh, parameters: Params) -> Params:
    """Returns a tree with the sharding of each parameter, by its path alone."""
    return jax.tree_util.tree_map_with_path(lambda k, x: sharding(mesh, dims_of(path_of(k)), x.shape), parameters)


def state_shardings(mesh: Mesh, state: T, parameters: Params) -> T:
    """Returns a tree with the sharding of each array of a training state.

    An optimizer's moment lives where its parameter lives, so that an update needs no message; a carry by its own dims;
    all else (counts) is whole on every device.
    """
    shardings = jax.tree.leaves(parameter_shardings(mesh, parameters))
    known = {path: (x.shape, s) for (path, x), s in zip(by_path(parameters).items(), shardings, strict=True)}

    def find(keys: tuple[object, ...], leaf: jax.Array) -> NamedSharding:
        if (path := path_of(keys)).startswith("carry/"):
            return sharding(mesh, dims_of(path), leaf.shape)
        # The path of a moment ends with that of its parameter: opt/1/mu/backbone/… The shape tells it from other
        # arrays that an optimizer may keep for a parameter, as a factored moment.
        for start in range(len(keys)):
            shape, placed = known.get(path_of(keys[start:]), (None, None))
            if placed is not None and shape == leaf.shape:
                return placed
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(find, state)


def _batch_devices(mesh: Mesh) -> int:
    """Returns among how many devices a batch is divided; those along `tensor` compute the same sequences."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def round_up_to_devices(mesh: Mesh, sequences: int) -> int:
    """Returns the least batch of at least so many sequences that has as many for each device."""
    devices = _batch_devices(mesh)
    return -(-sequences // devices) * devices


def check_batch(mesh: Mesh, batch: int, parts: int, name: str) -> None:
    """Raises ConfigError unless each of the `parts` microbatches has as many sequences for every device."""
    devices = _batch_devices(mesh)
    if batch % (parts * devices):
        product = f"optim.accumulate × mesh.data × mesh.fsdp = {parts} × {mesh.shape['data']} × {mesh.shape['fsdp']}"
        raise ConfigError(f"{name}={batch} is not a multiple of {product} = {parts * devices}; change one of them")


def local_rows(mesh: Mesh, batch: int) -> np.ndarray:
    """Returns the numbers of the sequences of a batch that this process's devices hold, ascending."""
    # Devices along `tensor` hold the same sequences: each is read once.
    held = sharding(mesh, "B", (batch,)).addressable_devices_indices_map((batch,))
    return np.unique(np.concatenate([np.arange(batch)[index] for index in held.values() if index is not None]))


def shard_batch(
    mesh: Mesh, batch: dict[str, np.ndarray], fields: dict[str, str], sequences: int
) -> dict[str, jax.Array]:
    """Returns global arrays, sharded over the mesh, from this process's rows of a batch of so many sequences.

    {"tokens": (8, 128)} here may be half of (16, 128) in all. A field whose dims do not begin with B is of the whole
    batch, and the same in every process.
    """
    arrays = {}
    for name, local in batch.items():
        dims = fields[name].partition(" ")[2]
        if dims[0] == "B":
            shape = (sequences, *local.shape[1:])
            arrays[name] = jax.make_array_from_process_local_data(sharding(mesh, dims, shape), local, shape)
        else:
            arrays[name] = jax.make_array_from_callback(
                local.shape, sharding(mesh, dims, local.shape), lambda index, x=local: x[index]
            )
    return arrays


def describe(mesh: Mesh) -> str:
    """Returns a line for people: '8 cpu devices as data 2 × fsdp 2 × tensor 2, 2 processes'."""
    device = mesh.devices.flat[0]
    layout = " × ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    processes = jax.process_count()
    shared = f", {processes} processes" if processes > 1 else ""
    count = math.prod(mesh.shape.values())
    return f"{count} {device.device_kind} device{'s' if count > 1 else ''} as {layout}{shared}"


def describe_attention(model: ModelConfig, packed: bool = False) -> str:
    """Returns what computes a model's attention on the current mesh, and why: "reference: no kernel for cpu"; "" for an
    ELMo. Raises ConfigError if the devices cannot do what the configuration asks for."""
    if not isinstance(model, TransformerConfig):
        return ""
    try:
        return ": ".join(choose(model, platform(), packed))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def describe_remat(model: ModelConfig, sizes: dict[str, int]) -> str:
    """Returns what the backward pass recomputes on the current mesh, for a microbatch of these sizes; "": an ELMo."""
    if not isinstance(model, TransformerConfig):
        return ""
    if model.remat != "auto":
        return model.remat
    if layers_per_iteration(model.unroll, model.layers, model.remat) == model.layers > 1:
        return "none"
    shape = (sizes["B"] * sizes.get("A", 1), sizes["L"], model.hidden)
    return choose_remat(jax.ShapeDtypeStruct(shape, model.dtype), model.layers)
