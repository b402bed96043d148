"""Attention by a kernel, and what surrounds it: lengths are padded to whole tiles, each device of a mesh has its own
sequences, heads and queries, and the backward pass keeps no weights."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from contexture.models.layers.attention.mask import AttentionMask
from contexture.models.layers.attention.tiles import Inputs, Saved, Scalars, Sizes, visited
from contexture.models.layers.dropout import NO_DROPOUT, WeightDropout, row_words, token_words
from contexture.models.layers.matmul import custom_gradient
from contexture.models.sharding import constrain, context_shards, partition_spec


class _Kernel(NamedTuple):
    """A kernel's module (`forward`, `backward`), how it runs, and what it is compiled for."""

    module: ModuleType
    interpret: bool
    sizes: Sizes


class _Numbers(NamedTuple):
    """Numbers that every device has, or has for its own sequences (`Scalars`)."""

    window: jax.Array
    start_B: jax.Array
    stride_B: jax.Array


def attend(
    q_BLHK: jax.Array,
    k_BLHK: jax.Array,
    v_BLHK: jax.Array,
    mask: AttentionMask,
    dropped: WeightDropout = NO_DROPOUT,
    *,
    kernel: ModuleType,
    interpret: bool = False,
) -> jax.Array:
    """dropout(softmax(q·k/sqrt(K) + mask))·v → BLHK, with the dropout masks that the reference draws.

    Args:
        q_BLHK: queries.
        k_BLHK: keys.
        v_BLHK: values.
        mask: which keys a query sees.
        dropped: the dropout of the weights.
        kernel: `tpu_kernel` or `gpu_kernel`.
        interpret: runs the kernel as plain operations, on any device and slowly.
    """
    assert not mask.causal or mask.tokens_BM is None, "no model hides padding from causal attention"
    B, L, H, K = q_BLHK.shape
    # Without a key, in evaluation, the kernel is compiled without dropout.
    key = dropped.key if dropped.rate > 0.0 else None
    rate = 0.0 if key is None else dropped.rate
    by_token = key is not None and key.packs_XY is not None
    sizes = sizes_of(mask, L, K, q_BLHK.dtype, kernel, rate, dropped.longest, by_token)

    # Into the kernel's layout: its order of dims, whole tiles, the width that
    # its device wants. All of it is undone at the end.
    order = ["BLHK".index(letter) for letter in kernel.ORDER]
    room, wider = sizes.keys * sizes.key_blocks - L, kernel.padded_width(K) - K
    arrays = [jnp.pad(x, ((0, 0), (0, room), (0, 0), (0, wider))).transpose(order) for x in (q_BLHK, k_BLHK, v_BLHK)]
    # A kernel takes the same arrays in every case; `sizes` say which of them it reads.
    nothing_BL = jnp.zeros((B, L), jnp.int32)
    masks = [nothing_BL if x is None else x.astype(jnp.int32) for x in (mask.tokens_BM, mask.packs_BL, mask.packs_BL)]
    if key is not None and by_token:
        masks += token_words(key, dropped.site, sizes.longest + 1)
    if sizes.is_cut:
        # Kept for the backward pass as each device's own part; keys and values are gathered where a kernel reads them.
        arrays = [constrain(x, kernel.ORDER) for x in arrays]
    inputs = Inputs(*arrays, *(jnp.pad(x, ((0, 0), (0, room))) for x in masks))
    window = jnp.asarray(L if mask.window is None else mask.window, jnp.int32)
    # Two random words for each sequence, from which the kernel makes the reference's dropout mask tile by tile.
    words = (jnp.zeros(B, jnp.uint32),) * 2 if key is None or by_token else row_words(key, dropped.site)
    y = _flash(inputs, _Numbers(window, *words), _Kernel(kernel, interpret, sizes))
    return y.transpose([kernel.ORDER.index(letter) for letter in "BLHK"])[:, :L, :, :K]


def sizes_of(
    mask: AttentionMask,
    length: int,
    width: int,
    dtype: DTypeLike,
    kernel: ModuleType,
    rate: float,
    longest: int = 0,
    by_token: bool = False,
) -> Sizes:
    """Returns what a kernel is compiled for, with sequences and heads of this length and width."""
    queries, keys = kernel.blocks(length, width, dtype)
    # Whole tiles both of queries and of keys.
    padded = own = -(-length // max(queries, keys)) * max(queries, keys)
    # Of a sequence that is cut each device has its own queries, if these are whole tiles too; else it has all of them.
    part = length // context_shards(length)
    if padded == length and part % kernel.blocks(part, width, dtype)[0] == 0:
        own, (queries, _) = part, kernel.blocks(part, width, dtype)
    return Sizes(
        length=length,
        longest=longest or length,
        queries=queries,
        keys=keys,
        query_blocks=own // queries,
        key_blocks=padded // keys,
        scale=width**-0.5,
        rate=rate,
        causal=mask.causal,
        windowed=mask.window is not None,
        padded=mask.tokens_BM is not None,
        packed=mask.packs_BL is not None,
        by_token=by_token,
        # A 16-bit result loses what the backward pass needs for its mean (`Saved`).
        rounds=jnp.dtype(dtype).itemsize < 4,
        # _flash sets this to False where no backward pass follows.
        saves=True,
    )


@custom_gradient(nondiff_argnums=(2,))
def _flash(inputs: Inputs, numbers: _Numbers, kernel: _Kernel) -> jax.Array:
    # Without a backward pass, in evaluation.
    return _flash_forward(inputs, numbers, kernel._replace(sizes=kernel.sizes._replace(saves=False)))[0]


def _flash_forward(
    inputs: Inputs, numbers: _Numbers, kernel: _Kernel
) -> tuple[jax.Array, tuple[Inputs, _Numbers, Saved]]:
    def forward(first: tuple[jax.Array, jax.Array], inputs: Inputs, numbers: _Numbers) -> tuple[jax.Array, Saved]:
        scalars = _scalars(kernel.sizes, first, inputs, numbers)
        return kernel.module.forward(kernel.sizes, scalars, inputs, kernel.interpret)

    dims = _dims(kernel)
    y, saved = _on_each_device(kernel, forward, dims[:2], (dims.dy, dims.saved), inputs, numbers)
    # The inputs are kept as the kernel takes them, so the backward pass converts nothing.
    return y, (inputs, numbers, saved)


def _flash_backward(
    kernel: _Kernel, residuals: tuple[Inputs, _Numbers, Saved], dy: jax.Array
) -> tuple[tuple[jax.Array | None, ...], None]:
    def backward(first: tuple[jax.Array, jax.Array], inputs: Inputs, numbers: _Numbers, saved: Saved, dy: Any) -> Any:
        scalars = _scalars(kernel.sizes, first, inputs, numbers)
        dq, *of_keys = kernel.module.backward(kernel.sizes, scalars, inputs, saved, dy, kernel.interpret)
        if kernel.sizes.is_cut:
            # Each device has a share of all keys' gradients, by its own queries, and gets the sum of its own keys'.
            place = kernel.module.ORDER.index("L")
            of_keys = [jax.lax.psum_scatter(x, "context", scatter_dimension=place, tiled=True) for x in of_keys]
        return dq, *of_keys

    dims = _dims(kernel)
    dq, dk, dv = _on_each_device(kernel, backward, dims, (dims.dy,) * 3, *residuals, dy)
    # Masks, windows and random words are whole numbers: they have no gradient.
    return Inputs(dq, dk, dv, None, None, None), None  # pyright: ignore[reportArgumentType]


_flash.defvjp(_flash_forward, _flash_backward)


def _scalars(sizes: Sizes, first: tuple[jax.Array, jax.Array], inputs: Inputs, numbers: _Numbers) -> Scalars:
    """Returns what a kernel reads on a device. first: the numbers of its first head and of its first query."""
    ranges = visited(sizes, first[1], numbers.window, inputs)
    head, query = (x.reshape(1) for x in first)
    return Scalars(head, query, numbers.window.reshape(1), numbers.start_B, numbers.stride_B, *ranges)


class _Dims(NamedTuple):
    """The dims of what a kernel reads and writes: M where each device has the whole length, L where it has a part."""

    inputs: Inputs
    numbers: _Numbers
    saved: Saved
    dy: str


def _dims(kernel: _Kernel) -> _Dims:
    order, norm = kernel.module.ORDER, kernel.module.NORM
    # Keys, values and what masks them: entering the kernel gathers those of all parts.
    of_keys = order.replace("L", "M")
    inputs: Any = (order, of_keys, of_keys, "BM", "BM", "BL", "BL", "BL")
    numbers: Any = ("", "B", "B")
    saved: Any = (norm, order, order)
    return _Dims(Inputs(*inputs), _Numbers(*numbers), Saved(*saved), order)


def _on_each_device(
    kernel: _Kernel, function: Callable[..., Any], dims: Any, result_dims: Any, inputs: Inputs, *more: Any
) -> Any:
    """Returns function(its first head and query, inputs, …) of each device's own sequences, heads and queries: the
    partitioner cannot look into a kernel.

    Forward and backward pass are mapped apart, both from arrays to arrays. The transpose of a mapped forward pass would
    sum gradients over the devices that hold the same sequences and heads, where each has the whole of them already.

    Args:
        kernel: the kernel.
        function: what each device computes.
        dims: the dims of `inputs` and of each further argument.
        result_dims: the dims of the results.
        inputs: the arrays of all devices.
        more: further arguments.
    """
    order, zero = kernel.module.ORDER, jnp.zeros((), jnp.int32)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return function((zero, zero), inputs, *more)
    place = order.index("H")
    heads = inputs.q.shape[place]
    # By letter: the mesh axes that shard sequences, queries and heads; all else is whole.
    axes = dict(zip(order, partition_spec(order, inputs.q.shape, dict(mesh.shape)), strict=True))
    # Queries that are no whole tiles of each device are computed by all of them.
    if not kernel.sizes.is_cut:
        axes["L"] = None

    def mapped(inputs: Inputs, *more: Any) -> Any:
        # Dropout numbers the heads and queries of all devices together, so that a mask does not depend on the mesh.
        own = inputs.q.shape[place]
        head = jax.lax.axis_index("tensor") * own if own < heads else zero
        query = jax.lax.axis_index("context") * inputs.q.shape[order.index("L")] if kernel.sizes.is_cut else zero
        return function((head.astype(jnp.int32), query.astype(jnp.int32)), inputs, *more)

    in_specs, out_specs = jax.tree.map(lambda of: PartitionSpec(*(axes.get(x) for x in of)), (tuple(dims), result_dims))
    return jax.shard_map(mapped, in_specs=in_specs, out_specs=out_specs, check_vma=False)(inputs, *more)
