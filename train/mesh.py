"""The device mesh, the sharding of each array over it, and the sequences of a batch that a process reads."""

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from contexture.models.config import ModelConfig, TransformerConfig
from contexture.models.layers.attention.mask import choose
from contexture.models.layers.remat import choose_remat, layers_per_iteration
from contexture.models.shapes import Params, by_path, dims_of, path_of
from contexture.models.sharding import CONTEXT_AXES, MESH_AXES, partition_spec, platform
from contexture.train.errors import ConfigError
from contexture.train.run.plugin_errors import plugin_errors_in_one_line
from contexture.train.settings.sections import MeshConfig

T = TypeVar("T")
Device: TypeAlias = jax.Device  # pyright: ignore[reportInvalidTypeForm]
Shape: TypeAlias = tuple[int, ...]
"""Sizes of a mesh: data, fsdp, tensor; or data, fsdp, context, tensor."""
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
"""XLA options that pay on several devices, by platform; docs/accelerators.md has the figures for each."""


@contextlib.contextmanager
def use(mesh: Mesh, dtype: str) -> Iterator[None]:
    """Within the block, computes on this mesh, with the numerics of a model that computes in `dtype` (`numerics`)."""
    # set_mesh and not `with mesh`: only its abstract mesh reaches `constrain` and the choice of kernels.
    with jax.set_mesh(mesh), numerics(dtype):
        yield


@contextlib.contextmanager
def numerics(dtype: str) -> Iterator[None]:
    """Within the block, fixes the settings of jax that numbers depend on, for a model that computes in `dtype`.

    Products of float32 are of float32: by default TPUs and recent GPUs multiply such matrices with fewer bits. All else
    is jax's default, whatever JAX_ENABLE_X64, JAX_THREEFRY_PARTITIONABLE, JAX_DEFAULT_PRNG_IMPL and
    JAX_NUMPY_DTYPE_PROMOTION say: one seed is one run, and a checkpoint's digests match its arrays.

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
    """Returns the XLA options of a step: the usual ones of the platform, overridden by the user's."""
    given = dict(option.split("=", 1) for option in config.compiler_options)
    # All of the usual ones are about messages, which a single device has none of.
    usual = _COMPILER_OPTIONS.get(mesh.devices.flat[0].platform, {}) if mesh.size > 1 else {}
    return {**usual, **{name: _value(text) for name, text in given.items()}}


def check_compiler_options(config: MeshConfig, mesh: Mesh) -> None:
    """Raises ConfigError if XLA does not know an option of the user's, or refuses its value."""
    if not config.compiler_options:
        return
    try:
        options = compiler_options(config, mesh)
        # The smallest program: XLA checks its options whatever it compiles, and a mistake shows before the data are
        # read.
        jax.jit(lambda: 0, out_shardings=replicated(mesh), compiler_options=options).lower().compile()
    except Exception as error:  # XlaRuntimeError, ValueError
        why = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        given = " ".join(config.compiler_options)
        raise ConfigError(f"mesh.compiler-options={given}: XLA refuses it for these devices: {why}") from None


def _value(text: str) -> str | bool | int:
    # XLA's options are typed: true and false are bools, digits integers, all else text.
    words = {"true": True, "false": False}
    return words[text] if text in words else int(text) if text.lstrip("-").isdigit() else text


def build(config: MeshConfig, devices: Sequence[Device] | None = None) -> Mesh:
    """Returns the mesh data × fsdp × tensor over all devices, with context before tensor where sequences are cut.

    Raises ConfigError if the product is not their number.
    """
    devices = find_devices() if devices is None else devices
    model = config.fsdp * config.context * config.tensor
    # data = 0 takes the devices that are left, as copies of the model.
    data = config.data or max(len(devices) // model, 1)
    shape = (data, config.fsdp, *((config.context,) if config.context > 1 else ()), config.tensor)
    axes = _axes(shape)
    if data * model != len(devices):
        raise ConfigError(
            f"mesh {' × '.join(axes)} = {' × '.join(map(str, shape))} = {data * model} "
            f"does not fit {len(devices)} device{'s' if len(devices) > 1 else ''}; their product must be the same"
        )
    if config.dcn_data:
        _check_groups(config.dcn_data, data, devices)
    placed = arrange(shape, devices, config.dcn_data)
    # Auto: XLA derives shardings of intermediate arrays from parameters, batches and `constrain`.
    return Mesh(placed, axes, axis_types=(AxisType.Auto,) * len(axes))


def _axes(shape: Shape) -> tuple[str, ...]:
    return MESH_AXES if len(shape) == len(MESH_AXES) else CONTEXT_AXES


def check_context(config: MeshConfig, model: ModelConfig, length: int) -> None:
    """Raises ConfigError if the sequences of a model cannot be cut as the mesh says."""
    if config.context == 1:
        return
    if not model.attends:
        raise ConfigError(
            f"mesh.context={config.context} cuts sequences for attention, and {model.family} has none; leave it out"
        )
    if length % config.context:
        # The longer one may be more than the model has positions for.
        less = length // config.context * config.context
        raise ConfigError(
            f"data.length={length} is not a multiple of mesh.context={config.context}; give --data.length "
            f"{less or config.context} or {less + config.context}, or another --mesh.context"
        )


def _check_groups(groups: int, data: int, devices: Sequence[Device]) -> None:
    slices = len({_slice(device) for device in devices})
    if data % groups:
        raise ConfigError(f"mesh.dcn-data={groups} does not divide the {data} copies of the model (data)")
    if slices not in (1, groups):
        raise ConfigError(f"mesh.dcn-data={groups} is not the {slices} slices that these devices are in; leave it out")


def _slice(device: Device) -> int:
    return getattr(device, "slice_index", 0) or 0


def arrange(shape: Shape, devices: Sequence[Device], groups: int = 0) -> np.ndarray:
    """Returns the devices as an array of this shape, in which the devices of an axis are network neighbours.

    Several slices of TPUs, joined by a slower network, share the batch: data and then fsdp are cut over them. Raises
    ConfigError for a shape that the network does not allow, with the nearest one that it does.

    Args:
        shape: data, fsdp, tensor; or data, fsdp, context, tensor.
        devices: all of them.
        groups: so many groups of devices are joined by a slower network, and data alone is cut over them; 0: what the
            devices say of their slices.
    """
    try:
        return _arrange(shape, devices, groups)
    # mesh_utils raises all three, by the kind of device and of misfit.
    except (AssertionError, NotImplementedError, ValueError):
        nearest = next((other for other in _others(shape) if _fits(other, devices)), None)
        smaller = "give a smaller --mesh.context" if shape[2:-1] else "leave --mesh.fsdp and --mesh.tensor out"
        mend = f"give {_options(nearest)}" if nearest else smaller
        raise ConfigError(f"the network of these devices holds no mesh of {_options(shape)}; {mend}") from None


def _arrange(shape: Shape, devices: Sequence[Device], groups: int = 0) -> np.ndarray:
    if groups > 1:
        # Neighbours in this order are in one slice, and in one process.
        near = sorted(devices, key=lambda device: (_slice(device), device.process_index, device.id))
        size, inner = len(near) // groups, (shape[0] // groups, *shape[1:])
        return np.concatenate([_arrange(inner, near[n * size : (n + 1) * size]) for n in range(groups)])
    slices = len({_slice(device) for device in devices})
    if slices > 1:
        # Copies of the model (data) first: they exchange one sum of gradients a step. context and tensor are never cut
        # over slices.
        copies = math.gcd(shape[0], slices)
        outer = (copies, slices // copies, *(1,) * len(shape[2:]))
        # Sizes within one slice. A shape that the slices do not make up is refused by jax, and reported by `arrange`.
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
    """Returns all shapes of as many devices, nearest first: least Σ |log(a/b)| over the sizes of the axes."""
    # All ways to write the number of devices as a product of three, besides the parts of a sequence.
    context = shape[2:-1]
    count = math.prod(shape) // math.prod(context)
    sizes = [size for size in range(1, count + 1) if count % size == 0]
    shapes = [(count // (f * t), f, *context, t) for f in sizes for t in sizes if count % (f * t) == 0]
    return sorted(shapes, key=lambda other: sum(abs(math.log(a / b)) for a, b in zip(other, shape, strict=True)))


def _options(shape: Shape) -> str:
    return " ".join(f"--mesh.{axis} {size}" for axis, size in zip(_axes(shape), shape, strict=True))


def find_devices() -> list[Device]:
    """Returns all devices. Raises ConfigError if jax cannot start the platform, whatever its own exception is."""
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
    # path → (shape, sharding) of each parameter; a moment is found below by both.
    shardings = jax.tree.leaves(parameter_shardings(mesh, parameters))
    known = {path: (x.shape, s) for (path, x), s in zip(by_path(parameters).items(), shardings, strict=True)}

    def find(keys: tuple[object, ...], leaf: jax.Array) -> NamedSharding:
        if (path := path_of(keys)).startswith("carry/"):
            return sharding(mesh, dims_of(path), leaf.shape)
        # The path of a moment ends with its parameter's path: opt/1/mu/backbone/… The shape tells it from other arrays
        # that an optimizer may keep for a parameter, such as a factored moment.
        # Longest suffix first. A parameter itself is found too: params/backbone/…
        for start in range(len(keys)):
            shape, placed = known.get(path_of(keys[start:]), (None, None))
            if placed is not None and shape == leaf.shape:
                return placed
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(find, state)


def batch_devices(mesh: Mesh) -> int:
    """Returns how many devices share a batch; devices along `context` and `tensor` compute the same sequences."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def round_up_to_devices(mesh: Mesh, sequences: int) -> int:
    """Returns the smallest batch ≥ `sequences` that divides evenly among the devices."""
    devices = batch_devices(mesh)
    return -(-sequences // devices) * devices


def check_batch(mesh: Mesh, batch: int, parts: int, name: str) -> None:
    """Raises ConfigError unless each of the `parts` microbatches divides evenly among the devices. name: the option."""
    devices = batch_devices(mesh)
    if batch % (parts * devices):
        product = f"optim.accumulate × mesh.data × mesh.fsdp = {parts} × {mesh.shape['data']} × {mesh.shape['fsdp']}"
        raise ConfigError(f"{name}={batch} is not a multiple of {product} = {parts * devices}; change one of them")


def local_rows(mesh: Mesh, batch: int) -> np.ndarray:
    """Returns which rows of a batch of this size this process's devices hold, ascending: i64 (rows,)."""
    # Devices along `context` and `tensor` hold the same sequences: each is read once.
    held = sharding(mesh, "B", (batch,)).addressable_devices_indices_map((batch,))
    return np.unique(np.concatenate([np.arange(batch)[index] for index in held.values() if index is not None]))


def shard_batch(
    mesh: Mesh, batch: dict[str, np.ndarray], fields: dict[str, str], sequences: int
) -> dict[str, jax.Array]:
    """Returns global arrays, sharded over the mesh, from this process's rows of a batch.

    {"tokens": (8, 128)} here may be half of (16, 128) in all. A field whose dims do not begin with B belongs to the
    whole batch, and is the same in every process.

    Args:
        mesh: the devices.
        batch: this process's rows of each field (`local_rows`), on the host.
        fields: name → dtype and dims, {"tokens": "i32 BL"}.
        sequences: rows of the whole batch, over all processes.
    """
    arrays, rows = {}, local_rows(mesh, sequences)

    # Each device cuts its own part out of what its process has: the sequences of its devices, or (R over data and fsdp)
    # the whole. A sequence that is cut may have other parts in other processes: each reads it whole.
    def part(x: np.ndarray, index: Any, is_whole: bool) -> np.ndarray:
        if is_whole:
            return x[index]
        start, stop, _ = index[0].indices(sequences)
        first = int(np.searchsorted(rows, start))
        return x[(slice(first, first + stop - start), *index[1:])]

    for name, local in batch.items():
        dims = fields[name].partition(" ")[2]
        is_whole = dims[0] != "B"
        shape = local.shape if is_whole else (sequences, *local.shape[1:])
        arrays[name] = jax.make_array_from_callback(
            shape, sharding(mesh, dims, shape), lambda index, x=local, whole=is_whole: part(x, index, whole)
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
    """Returns the attention kernel of a model on the current mesh, and why: "reference: no kernel for cpu"; "" without
    attention. Raises ConfigError if the devices cannot do what the configuration asks for."""
    if not isinstance(model, TransformerConfig):
        return ""
    try:
        return ": ".join(choose(model, platform(), packed))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def describe_remat(model: ModelConfig, sizes: dict[str, int]) -> str:
    """Returns what the backward pass recomputes on this mesh, for a microbatch of these sizes; "" without attention."""
    if not isinstance(model, TransformerConfig):
        return ""
    if model.remat != "auto":
        return model.remat
    # Layers that are wholly unrolled recompute nothing: XLA on a CPU would undo it.
    if layers_per_iteration(model.unroll, model.layers, model.remat) == model.layers > 1:
        return "none"
    # Alternatives of an example are sequences of their own to the backbone: B·A of them.
    shape = (sizes["B"] * sizes.get("A", 1), sizes["L"], model.hidden)
    return choose_remat(jax.ShapeDtypeStruct(shape, model.dtype), model.layers)
