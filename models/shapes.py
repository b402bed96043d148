"""The alphabet of the house: one legend for array names, einsums, batch fields, parameter dims and mesh rules.

    B batch            L length (queries)   M memory length (keys)   D hidden width     V vocabulary
    H heads            K width of one head  F feed-forward width     N layers           T segment types
    P predicted slots  C classes            A choices                R distinct words   W characters per word
    E character width  U LSTM cell units    G gates (four)      J LSTM direction   S sampled negatives
    _ a dim without a letter

Arrays are named `x_BLD`; equal letters in one function mean equal sizes.
"""

import math
import re
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

LETTERS = frozenset("BLMDVHKFNTPCARWEUGJS_")

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

# Every parameter of every family, and what is carried from step to step: path → dims. Exactly one row matches a path.
PARAMETER_DIMS: tuple[tuple[str, str], ...] = (
    (r"backbone/embeddings/tokens", "VD"),
    (r"backbone/embeddings/positions", "LD"),
    (r"backbone/embeddings/segments", "TD"),
    (r"backbone/(embeddings/)?norm/(scale|bias)", "D"),
    (r"backbone/layers/attention/(query|key|value)/kernel", "NDHK"),
    (r"backbone/layers/attention/(query|key|value)/bias", "NHK"),
    (r"backbone/layers/attention/out/kernel", "NHKD"),
    (r"backbone/layers/ffn/in/kernel", "NDF"),
    (r"backbone/layers/ffn/in/bias", "NF"),
    (r"backbone/layers/ffn/out/kernel", "NFD"),
    (r"backbone/layers/(attention/out|ffn/out)/bias", "ND"),
    (r"backbone/layers/(attention|ffn)_norm/(scale|bias)", "ND"),
    (r"backbone/embeddings/characters", "_E"),
    (r"backbone/embeddings/filters_\d+/kernel", "_E_"),
    (r"backbone/embeddings/filters_\d+/bias", "_"),
    (r"backbone/embeddings/highway_\d+/(carry|transform)/kernel", "F_"),
    (r"backbone/embeddings/highway_\d+/(carry|transform)/bias", "_"),
    (r"backbone/embeddings/projection/kernel", "FJ"),
    (r"backbone/embeddings/projection/bias", "J"),
    (r"backbone/layers/(forward|backward)/kernel", "N_JGU"),
    (r"backbone/layers/(forward|backward)/bias", "NGU"),
    (r"backbone/layers/(forward|backward)/projection", "NUJ"),
    (r"carry/backbone/layers/(forward|backward)/cell", "BNU"),
    (r"carry/backbone/layers/(forward|backward)/hidden", "BNJ"),
    (r"backbone/pooler/kernel", "D_"),
    (r"backbone/pooler/bias", "D"),
    (r"heads_mlm/transform/kernel", "D_"),
    (r"heads_mlm/transform/bias", "D"),
    (r"heads_mlm/norm/(scale|bias)", "D"),
    (r"heads_mlm/bias", "V"),
    (r"heads_bilm/kernel", "VJ"),
    (r"heads_bilm/bias", "V"),
    (r"heads_(mlm|lm)/table", "VD"),
    (r"heads_(nsp|classify|regress|tag|span)/kernel", "DC"),
    (r"heads_(nsp|classify|regress|tag|span)/bias", "C"),
    (r"heads_\w+/features/(output_)?mix/weights", "_"),
    (r"heads_\w+/features/(output_)?mix/gamma", ""),
    (r"heads_\w+/features/lstm/(forward|backward)/cell/[ih][ifgo]/kernel", "__"),
    (r"heads_\w+/features/lstm/(forward|backward)/cell/[ih][ifgo]/bias", "_"),
    (r"heads_\w+/out/kernel", "_C"),
    (r"heads_\w+/out/bias", "C"),
    (r"heads_tag/chain/steps", "C_"),
    (r"heads_tag/chain/(first|last)", "C"),
    (r"heads_choice/kernel", "D_"),
    (r"heads_choice/bias", "_"),
)


@flax.struct.dataclass
class Encoding:
    """What every backbone gives and every head reads: the waist between them.

    hidden_BLD   the last layer, what a head reads by default
    mask_BL      1 for a token, 0 for padding
    pooled_BD    one vector a line, or None
    states       N+1 arrays BLD (the embeddings, then each layer; the last is hidden_BLD), or () unless asked for
    table_VD     the token table, for tied softmaxes, or None
    choices      how many rows stand for one line of the batch, one behind the other (its alternatives)
    """

    hidden_BLD: jax.Array
    mask_BL: jax.Array
    pooled_BD: jax.Array | None = None
    states: tuple[jax.Array, ...] = ()
    table_VD: jax.Array | None = None
    choices: int = flax.struct.field(pytree_node=False, default=1)


def check(x: Any, dims: str, **sizes: int) -> dict[str, int]:
    """The sizes of x by letter: `check(x, "BLD", D=64)` → {"B": 2, "L": 8, "D": 64}.

    Raises ValueError where the rank is another, or where a letter has two sizes.
    """
    if x.ndim != len(dims):
        raise ValueError(f"an array of shape {tuple(x.shape)} is not {dims}: {len(dims)} dims are wanted")
    found = dict(sizes)
    for letter, size in zip(dims, x.shape, strict=True):
        if letter != "_" and found.setdefault(letter, size) != size:
            raise ValueError(f"an array of shape {tuple(x.shape)} is not {dims}: {letter}={found[letter]} is wanted")
    return found


def path_of(keys: tuple[Any, ...]) -> str:
    """A jax key path as one string: 'backbone/layers/ffn/in/kernel'."""
    return "/".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in keys)


def by_path(tree: Any) -> dict[str, Any]:
    """A tree's arrays by their paths."""
    return {path_of(keys): x for keys, x in jax.tree_util.tree_flatten_with_path(tree)[0]}


def dims_of(path: str) -> str:
    """The dims of a parameter by its path. Raises ValueError unless exactly one row of PARAMETER_DIMS matches."""
    rows = [dims for pattern, dims in PARAMETER_DIMS if re.fullmatch(pattern, path)]
    if len(rows) != 1:
        raise ValueError(f"parameter {path} matches {len(rows)} rows of PARAMETER_DIMS, not exactly one")
    return rows[0]


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


def count(parameters: Any) -> int:
    """How many numbers a tree of arrays (or of shapes) holds."""
    return sum(int(jnp.size(x)) if not hasattr(x, "size") else int(x.size) for x in jax.tree.leaves(parameters))
