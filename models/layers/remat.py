"""What the backward pass computes again, and what the forward pass keeps for it (rematerialisation)."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from contexture.models.layers.matmul import PRODUCT
from contexture.models.sharding import (
    GIB,
    batch_shards,
    context_shards,
    device_memory,
    gpu_memory_fraction,
    model_shards,
    platform,
)

Policy: TypeAlias = Callable[..., Any]
"""(primitive, *its arguments' shapes, **its parameters) → whether, and where, jax.checkpoint keeps the result."""


def _with_quantized(dots: Policy, named: Policy) -> Policy:
    """Returns one policy: `dots` for matrix products and `named` for quantized ones, whose result in the activations'
    dtype has a name. Where that is kept, nothing needs the wider sum."""
    return lambda primitive, *arguments, **parameters: (named if primitive.name == "name" else dots)(
        primitive, *arguments, **parameters
    )


# A policy of jax.checkpoint for each name: the results of matrix products with a kernel ("dots": what is cheap is
# computed again), the same, moved to the host's memory until they are read ("offload"), or each layer's input alone
# ("full").
_RULES, _HOST = jax.checkpoint_policies, {"offload_src": "device", "offload_dst": "pinned_host"}
POLICIES: dict[str, Policy | None] = {
    "dots": _with_quantized(_RULES.dots_with_no_batch_dims_saveable, _RULES.save_only_these_names(PRODUCT)),
    "offload": _with_quantized(
        _RULES.offload_dot_with_no_batch_dims(**_HOST),
        _RULES.save_and_offload_only_these_names(
            names_which_can_be_saved=(), names_which_can_be_offloaded=(PRODUCT,), **_HOST
        ),
    ),
    "full": None,
}
KEPT = {"none": 20, "dots": 9, "full": 1}
"""The numbers that a layer keeps for every token, in widths of the model (of compiled steps of BERT and GPT)."""
# The share that they may take of the memory that parameters and optimizer leave; what keeps more has larger temporaries
# too. gpt2_1558m on v5e:8x8 keeps 0.77 by `dots`, and its step fills the memory; gpt3_6_7b on v5p:4x4x4 keeps 0.71.
_SHARE = {"none": 0.35, "dots": 0.78}
_STATE = 12 * 12
"""About the bytes of a layer's parameters and their two moments in float32, in squares of the model's width, with a
feed-forward of four widths. Tables are left out."""


def choose_remat(x_BLD: jax.Array | jax.ShapeDtypeStruct, layers: int) -> str:
    """Returns the policy that recomputes least and leaves room for parameters and optimizer: none, dots or full.

    A CPU, and a device whose memory is not known, computes nothing again.
    """
    B, L, D = x_BLD.shape
    # On a GPU, programs have only the share that XLA sets aside for them.
    memory = device_memory() * GIB * (gpu_memory_fraction() if platform() == "gpu" else 1.0)
    # Bytes of one array of the model's width in every layer, on one device.
    width = layers * (B // batch_shards(B)) * (L // context_shards(L)) * D * jnp.dtype(x_BLD.dtype).itemsize
    left = memory - _STATE * layers * D * D / model_shards()
    # In this order: the first that fits recomputes least.
    fits = (name for name, share in _SHARE.items() if KEPT[name] * width <= share * left)
    return next(fits, "full") if memory else "none"


def layers_per_iteration(unroll: int, layers: int, remat: str) -> int:
    """Returns how many layers an iteration of the layer loop computes. unroll=0: all on a CPU, which is about 1.3 times
    faster without a loop; one elsewhere, and where something is computed again, which XLA would merge with the first
    time without a loop."""
    return unroll or (layers if platform() == "cpu" and remat in ("none", "auto", "attention") else 1)
