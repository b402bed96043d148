"""Which mesh axis shards which letter, and arrays constrained to it: the one file of models that knows of devices."""

import math
from typing import Any

import jax
from jax.sharding import PartitionSpec

# Which mesh axes a letter is cut over. In one array an axis serves once: the first letter that asks has it.
MESH_AXES = ("data", "fsdp", "tensor")
RULES: dict[str, tuple[str, ...]] = {
    "B": ("data", "fsdp"),
    "V": ("tensor",),
    "H": ("tensor",),
    "F": ("tensor",),
    "D": ("fsdp",),
    "J": ("fsdp",),
    "U": ("tensor",),
    "R": ("data", "fsdp"),
}


def spec(dims: str, shape: tuple[int, ...], axis_sizes: dict[str, int]) -> PartitionSpec:
    """How an array with these dims is cut over a mesh: `spec("NDF", shape, sizes)` → P(None, "fsdp", "tensor").

    A mesh axis of size one is left out. A dim that an axis does not divide (a vocabulary of 119,547 over two)
    leaves the axis to the letter behind it where there is one, so that a table stays cut: VD → (None, (fsdp, tensor)).
    """
    free = {axis for axis, size in axis_sizes.items() if size > 1}
    left_over: tuple[str, ...] = ()
    entries: list[Any] = []
    for letter, size in zip(dims, shape, strict=True):
        wanted = RULES.get(letter, ())
        if wanted and letter != "B":
            wanted, left_over = wanted + left_over, ()
        taken: list[str] = []
        for axis in wanted:
            if axis not in free:
                continue
            cut = axis_sizes[axis]
            for other in taken:
                cut *= axis_sizes[other]
            if size % cut == 0:
                taken.append(axis)
                free.discard(axis)
            elif letter != "B":
                left_over += (axis,)
        entries.append(tuple(taken) if len(taken) > 1 else taken[0] if taken else None)
    return PartitionSpec(*entries)


def devices_of_batch() -> int:
    """How many devices of the mesh in use share a batch; 1 without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else math.prod(mesh.shape.get(axis, 1) for axis in RULES["B"])


def shares(size: int) -> int:
    """How many devices of the mesh in use share a batch of so many lines; 1 where they cannot share it evenly."""
    count = devices_of_batch()
    return count if size % count == 0 else 1


def whole(letter: str) -> bool:
    """Whether a letter's dim is whole on each device of the mesh in use."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.empty or all(mesh.shape.get(axis, 1) == 1 for axis in RULES.get(letter, ()))


def constrain(x: jax.Array, dims: str) -> jax.Array:
    """Ask the partitioner for x cut by its dims on the mesh in use (`jax.set_mesh`); without a mesh, x itself."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    return jax.lax.with_sharding_constraint(x, spec(dims, x.shape, dict(mesh.shape)))
