"""Attention by a kernel, and what surrounds it: lengths are padded to whole tiles, each device of a mesh has its own
sequences and heads, and the backward pass keeps no weights."""

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from contexture.models.layers.attention.mask import AttentionMask
from contexture.models.layers.attention.tiles import Inputs, Scalars, Sizes, visited
from contexture.models.layers.blocks import custom_gradient
from contexture.models.layers.dropout import DropoutKey, row_words
from contexture.models.sharding import partition_spec


class _Kernel(NamedTuple):
    module: ModuleType
    interpret: bool


def attend(
    q_BLHK: jax.Array,
    k_BLHK: jax.Array,
    v_BLHK: jax.Array,
    mask: AttentionMask,
    *,
    kernel: ModuleType,
    rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
    site: jax.Array | int = 0,
    interpret: bool = False,
) -> jax.Array:
    """dropout(softmax(q·k/sqrt(K) + mask))·v → BLHK by a kernel (`tpu_kernel`, `gpu_kernel`), with the dropout masks
    that the reference draws. `interpret` runs the kernel as plain operations, on any device and slowly."""
    assert not mask.causal or mask.tokens_BM is None, "no model hides padding from causal attention"
    B, L, H, K = q_BLHK.shape
    drops = dropout_key is not None and rate > 0.0
    sizes = sizes_of(mask, L, K, q_BLHK.dtype, kernel, rate if drops else 0.0)

    def on_device(
        q: jax.Array, k: jax.Array, v: jax.Array, tokens: jax.Array, packs: jax.Array, window: jax.Array,
        start: jax.Array, stride: jax.Array,
    ) -> jax.Array:  # fmt: skip
        heads = q.shape[kernel.ORDER.index("H")]
        # Counters go on over the heads of all devices.
        first = jax.lax.axis_index("tensor") * heads if heads < H else jnp.zeros((), jnp.int32)
        ranges = visited(sizes, window, tokens, packs)
        scalars = Scalars(first.astype(jnp.int32).reshape(1), window.reshape(1), start, stride, *ranges)
        return _flash(Inputs(q, k, v, tokens, packs), scalars, sizes, _Kernel(kernel, interpret))

    order = ["BLHK".index(letter) for letter in kernel.ORDER]
    room, wider = sizes.keys * sizes.key_blocks - L, kernel.padded_width(K) - K
    arrays = [jnp.pad(x, ((0, 0), (0, room), (0, 0), (0, wider))).transpose(order) for x in (q_BLHK, k_BLHK, v_BLHK)]
    nothing_BL = jnp.zeros((B, L), jnp.int32)
    masks = [nothing_BL if x is None else x.astype(jnp.int32) for x in (mask.tokens_BM, mask.packs_BL)]
    arrays += [jnp.pad(x, ((0, 0), (0, room))) for x in masks]
    window = jnp.asarray(L if mask.window is None else mask.window, jnp.int32)
    words = row_words(dropout_key, site) if drops and dropout_key is not None else (jnp.zeros(B, jnp.uint32),) * 2
    y = _on_each_device(on_device, kernel.ORDER, B, H)(*arrays, window, *words)
    return y.transpose([kernel.ORDER.index(letter) for letter in "BLHK"])[:, :L, :, :K]


def sizes_of(mask: AttentionMask, length: int, width: int, dtype: DTypeLike, kernel: ModuleType, rate: float) -> Sizes:
    """Returns what a kernel is compiled for, with sequences and heads of this length and width."""
    queries, keys = kernel.blocks(length, width, dtype)
    padded = -(-length // max(queries, keys)) * max(queries, keys)
    return Sizes(
        length=length, queries=queries, keys=keys, query_blocks=padded // queries, key_blocks=padded // keys,
        scale=width**-0.5, rate=rate, causal=mask.causal, windowed=mask.window is not None,
        padded=mask.tokens_BM is not None, packed=mask.packs_BL is not None,
    )  # fmt: skip


def _on_each_device(function: Callable[..., jax.Array], order: str, batch: int, heads: int) -> Callable[..., jax.Array]:
    """Returns the function on each device's own sequences and heads: the partitioner cannot look into a kernel."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return function
    axes = dict(zip("BH", partition_spec("BH", (batch, heads), dict(mesh.shape)), strict=True))
    array, rows = PartitionSpec(*map(axes.get, order)), PartitionSpec(axes["B"])
    specs = (array, array, array, rows, rows, PartitionSpec(), rows, rows)
    return jax.shard_map(function, in_specs=specs, out_specs=array, check_vma=False)


@custom_gradient(nondiff_argnums=(2, 3))
def _flash(inputs: Inputs, scalars: Scalars, sizes: Sizes, kernel: _Kernel) -> jax.Array:
    return _flash_forward(inputs, scalars, sizes, kernel)[0]


def _flash_forward(
    inputs: Inputs, scalars: Scalars, sizes: Sizes, kernel: _Kernel
) -> tuple[jax.Array, tuple[Scalars, Inputs, jax.Array, jax.Array]]:
    y, norm = kernel.module.forward(sizes, scalars, inputs, kernel.interpret)
    return y, (scalars, inputs, y, norm)


def _flash_backward(
    sizes: Sizes, kernel: _Kernel, saved: tuple[Scalars, Inputs, jax.Array, jax.Array], dy: jax.Array
) -> tuple[tuple[jax.Array | None, ...], None]:
    scalars, inputs, y, norm = saved
    dq, dk, dv = kernel.module.backward(sizes, scalars, inputs, y, norm, dy, kernel.interpret)
    return Inputs(dq, dk, dv, None, None), None  # pyright: ignore[reportArgumentType]


_flash.defvjp(_flash_forward, _flash_backward)
