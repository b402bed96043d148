"""Sharding by dimension letter: which mesh axes shard a letter, and arrays constrained to that.

This is the only file of models/ that knows about devices.
"""

import functools
import math
import os
from typing import cast

import jax
from jax.sharding import PartitionSpec

from contexture.models.shapes import LETTERS

GIB = 2**30
MESH_AXES = ("data", "fsdp", "tensor")
CONTEXT_AXES = ("data", "fsdp", "context", "tensor")
"""The axes of a mesh that cuts sequences; others lack `context`."""
# The mesh axes that may shard each letter, in order of preference. B, X and R: data parallelism. V, H, F and U: tensor
# parallelism over vocabulary, heads, feed-forward and cells. D and J: parameters sharded over the same devices that
# share the batch (FSDP, ZeRO-3). L, Y and P: tokens of a sequence or of a row, and their masked slots; no rule for M,
# so that each device has all keys. Z: the shares of a batch's tokens, one for each device that has tokens of its own.
RULES: dict[str, tuple[str, ...]] = {
    "B": ("data", "fsdp"),
    "X": ("data", "fsdp"),
    "V": ("tensor",),
    "H": ("tensor",),
    "F": ("tensor",),
    "D": ("fsdp",),
    "J": ("fsdp",),
    "U": ("tensor",),
    "R": ("data", "fsdp"),
    "L": ("context",),
    "Y": ("context",),
    "P": ("context",),
    "Z": ("context", "data", "fsdp"),
}
_OF_TOKENS = "BXLYPZ"
"""Dims that neither take what other dims leave, nor pass an axis on."""

DEVICE_MEMORY = {
    "TPU v4": 31.0,
    "TPU v5 lite": 15.75,
    "TPU v5": 95.74,
    "TPU v5p": 95.74,
    "TPU v6 lite": 31.25,
    "NVIDIA A100-SXM4-40GB": 40.0,
    "NVIDIA A100-SXM4-80GB": 80.0,
    "NVIDIA H100 80GB HBM3": 79.6,
    "NVIDIA H200": 140.4,
}
"""GiB of a device, by its device_kind."""
_GPU_FRACTION = 0.75


def partition_spec(dims: str, shape: tuple[int, ...], axis_sizes: dict[str, int]) -> PartitionSpec:
    """Returns how a mesh shards an array with these dims: `partition_spec("NDF", shape, sizes)` →
    P(None, "fsdp", "tensor").

    An axis shards one dim of an array at most: the first whose letter has it in RULES and whose size it divides. Axes
    of size one are left out. An axis that does not divide its dim passes on to the next dim that has a rule. So a table
    VD whose vocabulary no axis divides, with V = 119,547, stays sharded, by its width: (None, ("fsdp", "tensor")).
    """
    # Each axis is given away once; what a dim cannot take goes on to the next.
    unused = {axis for axis, size in axis_sizes.items() if size > 1}
    passed_on: tuple[str, ...] = ()
    entries: list[tuple[str, ...] | str | None] = []
    for letter, size in zip(dims, shape, strict=True):
        # A length without a batch is a parameter's: the table of positions is whole along it.
        candidates = RULES.get(letter, ()) if letter != "L" or "B" in dims else ()
        # The batch neither takes nor passes on: an activation whose batch does not divide is left to the partitioner,
        # rather than its width sharded by an axis of the batch. Nor do the tokens of a sequence.
        if candidates and letter not in _OF_TOKENS:
            candidates, passed_on = candidates + passed_on, ()
        chosen: list[str] = []
        for axis in candidates:
            if axis not in unused:
                continue
            # Several axes may share one dim: together they must divide it.
            shards = axis_sizes[axis] * math.prod(axis_sizes[other] for other in chosen)
            if size % shards == 0:
                chosen.append(axis)
                unused.discard(axis)
            elif letter not in _OF_TOKENS:
                passed_on += (axis,)
        entries.append(tuple(chosen) if len(chosen) > 1 else chosen[0] if chosen else None)
    return PartitionSpec(*entries)


def platform() -> str:
    """Returns the platform of the current mesh's devices, or of the default device without a mesh: cpu, tpu, gpu
    (NVIDIA's), or the name of a device that no kernel is made for, such as "TPU v3". The mesh may belong to a machine
    that programs are only compiled for."""
    # The mesh's own device, not jax.devices(): `plan` compiles for machines that are not here.
    device = jax.sharding.get_abstract_mesh().abstract_device
    kind = (jax.devices()[0] if device is None else device).device_kind
    # These keep their own names, so that nothing takes them for a TPU that the kernels run on.
    if kind in ("TPU v2", "TPU v3") or not kind.startswith(("TPU", "NVIDIA")):
        return kind
    return "tpu" if kind.startswith("TPU") else "gpu"


def device_memory() -> float:
    """Returns about how many GiB of memory a device of the current mesh has, by its kind; 0 for one that is not known,
    and for a CPU."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return DEVICE_MEMORY.get((jax.devices()[0] if device is None else device).device_kind, 0.0)


def gpu_memory_fraction() -> float:
    """Returns what share of a GPU's memory jax sets aside for programs: three quarters, unless the user's environment
    says otherwise."""
    # What is no share of the memory counts as absent: this is an estimate, and not the place to complain.
    try:
        fraction = float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", _GPU_FRACTION))
    except ValueError:
        return _GPU_FRACTION
    return fraction if 0 < fraction <= 1 else _GPU_FRACTION


def batch_devices() -> int:
    """Returns how many devices of the current mesh share a batch; 1 without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else math.prod(mesh.shape.get(axis, 1) for axis in RULES["B"])


def batch_shards(rows: int) -> int:
    """Returns how many devices of the current mesh share a batch of so many rows; 1 if they do not divide it."""
    devices = batch_devices()
    return devices if rows % devices == 0 else 1


def context_shards(length: int) -> int:
    """Returns how many devices of the current mesh share a sequence of so many tokens; 1 if they do not divide it."""
    mesh = jax.sharding.get_abstract_mesh()
    devices = 1 if mesh.empty else mesh.shape.get("context", 1)
    # A short batch of a fine-tuning, whose length is no multiple, stays whole.
    return devices if length % devices == 0 else 1


def token_shards(rows: int, length: int) -> int:
    """Returns how many devices have tokens of their own, of so many rows of so many tokens: the size of Z. 1 if either
    does not divide."""
    cut = rows % batch_devices() == 0 and (is_unsharded("L") or context_shards(length) > 1)
    return batch_devices() * context_shards(length) if cut else 1


def as_rows(x_BLD: jax.Array) -> jax.Array:
    """Returns the tokens of x, (B, L, …), as the rows of a matrix, (B·L, …): each device keeps its own.

    Where sequences are cut the parts come first, then B, then the tokens of a part. In the plain order a device's
    tokens would lie in several places, which no sharding describes: the partitioner would gather L for every product.
    """
    B, L, *rest = x_BLD.shape
    parts = context_shards(L)
    # On each device this moves a dim of size one: nothing is copied or sent.
    if parts > 1:
        x_BLD = x_BLD.reshape(B, parts, L // parts, *rest).swapaxes(0, 1)
    return x_BLD.reshape(B * L, *rest)


def from_rows(x_TD: jax.Array, B: int, L: int) -> jax.Array:
    """Undoes `as_rows`."""
    parts, rest = context_shards(L), x_TD.shape[1:]
    if parts > 1:
        x_TD = x_TD.reshape(parts, B, L // parts, *rest).swapaxes(0, 1)
    return x_TD.reshape(B, L, *rest)


def whole_sequences(x_BLD: jax.Array) -> jax.Array:
    """Returns x, (B, L, …), with all tokens of a sequence on each device that shares it: for what goes over them one by
    one."""
    return x_BLD if is_unsharded("L") else constrain(x_BLD, "B" + "_" * (x_BLD.ndim - 1))


def is_unsharded(letter: str) -> bool:
    """Returns whether each device of the current mesh holds the whole of a letter's dim."""
    # An axis of size one shards nothing.
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.empty or all(mesh.shape.get(axis, 1) == 1 for axis in RULES.get(letter, ()))


def model_shards() -> int:
    """Returns how many devices of the current mesh share one copy of the model; 1 without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else math.prod(mesh.shape.get(axis, 1) for axis in ("fsdp", "tensor"))


def tensor_devices() -> int:
    """Returns how many devices of the current mesh share a vocabulary; 1 without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else math.prod(mesh.shape.get(axis, 1) for axis in RULES["V"])


def constrain(x: jax.Array, dims: str) -> jax.Array:
    """Asks the partitioner to shard x by its dims on the current mesh (`jax.set_mesh`). Returns x itself without one.
    A dim "_" is whole on every device.

    The partitioner propagates shardings from parameters and batch by itself. Constraints are for where its guess is
    bad: after gathers from tables, at a loop's carry, and where a loss is computed in chunks.
    """
    # On one device too, where dims say nothing: wrong ones would show on a mesh alone.
    assert len(dims) == x.ndim and LETTERS.issuperset(dims), f"an array of shape {x.shape} has no dims {dims}"
    mesh = jax.sharding.get_abstract_mesh()
    # Without a mesh there is no axis to name, and on one device there is nothing to divide.
    if mesh.empty or mesh.size == 1:
        return x
    return jax.lax.with_sharding_constraint(x, partition_spec(dims, x.shape, dict(mesh.shape)))


def gathered(x: jax.Array, dims: str, whole: str) -> jax.Array:
    """Returns x, which is sharded by `dims`, sharded by `whole`: its "_" are whole on every device.

    The gradient is sharded by `dims` again. With `constrain` the gradient would be whole too: each of its terms would
    be summed over the devices whole, and cut after that.
    """
    return cast(jax.Array, _gathered(x, dims, whole))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gathered(x: jax.Array, dims: str, whole: str) -> jax.Array:
    return constrain(x, whole)


# Gather going forward, cut going back.
_gathered.defvjp(
    lambda x, dims, whole: (constrain(x, whole), None), lambda dims, whole, saved, dx: (constrain(dx, dims),)
)


def sum_over_devices(x: jax.Array, dims: str) -> jax.Array:
    """Returns the sum over the leading dim Z, the shares of the devices that have tokens of their own, sharded by dims.

    The first sum is over fsdp, where each device keeps only its part (a reduce-scatter); the second adds these parts
    over the copies of the model and the parts of a sequence. In one sum all devices would exchange the whole array.
    """
    return sum_over_copies(sum_within_copies(x, dims), dims)


def sum_within_copies(x: jax.Array, dims: str) -> jax.Array:
    """Returns the first sum of `sum_over_devices`: a leading dim of copies, behind it each device's shard by dims."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or x.shape[0] == 1:
        return constrain(x.sum(0), dims)[None]
    # Z is sharded by (context, data, fsdp) in this order: the leading dim splits into parts of a sequence and copies of
    # the model, and shards of each.
    copies = math.prod(mesh.shape[axis] for axis in _copy_axes())
    return _constrain_copies(x.reshape(copies, x.shape[0] // copies, *x.shape[1:]).sum(1), dims)


def sum_over_copies(x: jax.Array, dims: str) -> jax.Array:
    """Returns the second sum of `sum_over_devices`, over the leading dim."""
    # What crosses the copies is each device's shard of the sum alone.
    return constrain((x if x.shape[0] == 1 else _constrain_copies(x, dims)).sum(0), dims)


def _copy_axes() -> tuple[str, ...]:
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(axis for axis in ("context", "data") if axis in mesh.shape)


def _constrain_copies(x: jax.Array, dims: str) -> jax.Array:
    spec = partition_spec(dims, x.shape[1:], dict(jax.sharding.get_abstract_mesh().shape))
    return jax.lax.with_sharding_constraint(x, PartitionSpec(_copy_axes(), *spec))
