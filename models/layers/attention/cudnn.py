"""Attention by cuDNN's fused kernel, where there is no dropout: NVIDIA GPUs, 16-bit arrays."""

import jax
import jax.numpy as jnp

from contexture.models.layers.attention.mask import AttentionMask


def attend(q_BLHK: jax.Array, k_BMHK: jax.Array, v_BMHK: jax.Array, mask: AttentionMask) -> jax.Array:
    """softmax(q·k/sqrt(K) + mask)·v → BLHK. Padding stands on the right; all keys of a sequence of padding are seen."""
    lengths_B = None
    if mask.tokens_BM is not None:
        lengths_B = mask.tokens_BM.astype(jnp.int32).sum(1)
        lengths_B = jnp.where(lengths_B == 0, q_BLHK.shape[1], lengths_B)
    # Queries have no lengths: padded ones attend all the same, and nothing reads them.
    return jax.nn.dot_product_attention(
        q_BLHK, k_BMHK, v_BMHK, is_causal=mask.causal, key_value_seq_lengths=lengths_B, implementation="cudnn"
    )
