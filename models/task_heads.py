"""The heads that fine-tuning trains: one linear map over what the backbone gives (Devlin et al. 2018, section 4)."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from models.blocks import Init, Linear
from models.dropout import Noise, dropout
from models.shapes import Encoding

SITE = 1 << 16
"""Dropout's site in a head, beyond those of any backbone."""


class Pooled(nn.Module):
    """Logits of a line from its pooled vector: dropout, then linear: Encoding → float32 BC.

    The original's classifier (run_classifier.py, create_model); with one class the number that a regression gives.
    """

    sizes: dict[str, int]
    dropout: float
    kernel_init: Init
    dtype: Any

    @nn.compact
    def __call__(self, encoding: Encoding, batch: dict[str, jax.Array], noise: Noise | None = None) -> jax.Array:
        assert encoding.pooled_BD is not None, "Pooled reads a pooled vector, and this backbone gives none"
        linear = Linear("BD,DC->BC", self.sizes, self.kernel_init, self.dtype, name="linear")
        nn.share_scope(self, linear)
        return linear(dropout(encoding.pooled_BD, self.dropout, noise, SITE)).astype(jnp.float32)


class PerToken(nn.Module):
    """Logits of each token from the last layer: dropout, then linear: Encoding → float32 BLC (section 5.3)."""

    sizes: dict[str, int]
    dropout: float
    kernel_init: Init
    dtype: Any

    @nn.compact
    def __call__(self, encoding: Encoding, batch: dict[str, jax.Array], noise: Noise | None = None) -> jax.Array:
        linear = Linear("BLD,DC->BLC", self.sizes, self.kernel_init, self.dtype, name="linear")
        nn.share_scope(self, linear)
        return linear(dropout(encoding.hidden_BLD, self.dropout, noise, SITE)).astype(jnp.float32)
