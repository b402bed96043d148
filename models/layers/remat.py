"""What the backward pass computes again, and what the forward pass keeps for it (rematerialisation)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from contexture.models.sharding import GIB, batch_shards, device_memory, platform

# A policy of jax.checkpoint for each name: the results of matrix products with a kernel ("dots": what is cheap is
# computed again), the same, moved to the host's memory until they are read ("offload"), or each layer's input alone
# ("full").
POLICIES: dict[str, Callable[..., Any] | None] = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "offload": jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host"),
    "full": None,
}
KEPT = {"none": 20, "dots": 9, "full": 1}
"""The numbers that a layer keeps for every token, in widths of the model (of compiled steps of BERT and GPT)."""
# The share of a device's memory that they may take: what keeps more has larger temporaries too.
_SHARE = {"none": 0.35, "dots": 0.7}


def choose_remat(x_BLD: jax.Array | jax.ShapeDtypeStruct, layers: int) -> str:
    """Returns the policy that recomputes least and leaves room for parameters and optimizer: none, dots or full.

    A CPU, and a device whose memory is not known, computes nothing again.
    """
    B, L, D = x_BLD.shape
    memory = device_memory() * GIB
    width = layers * (B // batch_shards(B)) * L * D * jnp.dtype(x_BLD.dtype).itemsize
    fits = (name for name, share in _SHARE.items() if KEPT[name] * width <= share * memory)
    return next(fits, "full") if memory else "none"


def layers_per_iteration(unroll: int, layers: int, remat: str) -> int:
    """Returns how many layers an iteration of the layer loop computes. unroll=0: all on a CPU, which is about 1.3 times
    faster without a loop; one elsewhere, and where something is computed again, which XLA would merge with the first
    time without a loop."""
    return unroll or (layers if platform() == "cpu" and remat in ("none", "auto", "attention") else 1)
