"""The heads that fine-tuning trains: one linear map over what the backbone gives (Devlin et al. 2018, section 4)."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from contexture.models.encoding import Encoding
from contexture.models.layers.blocks import Init, logits_linear
from contexture.models.layers.dropout import DropoutKey, dropout

SITE = 1 << 16
"""Dropout's site in a head, beyond those of any backbone."""


class Pooled(nn.Module):
    """Logits of a line from its pooled vector: dropout, then linear: Encoding → float32 BC.

    BERT's classifier (run_classifier.py, create_model); with one class the number that a regression gives. Where a
    line has alternatives, a pair in both orders, their vectors are added first (Radford et al. 2018, section 3.3).
    """

    sizes: dict[str, int]
    dropout: float
    kernel_init: Init
    dtype: Any

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array:
        assert encoding.pooled_BD is not None, "Pooled reads a pooled vector, and this backbone gives none"
        pooled_BD = encoding.pooled_BD
        if encoding.choices > 1:
            pooled_BD = pooled_BD.reshape(-1, encoding.choices, pooled_BD.shape[-1]).sum(1)
        linear = logits_linear("BD,DC->BC", self.sizes, self.kernel_init, self.dtype, name="linear")
        nn.share_scope(self, linear)
        return linear(dropout(pooled_BD, self.dropout, dropout_key, SITE))


class PerToken(nn.Module):
    """Logits of each token from the last layer: dropout, then linear: Encoding → float32 BLC (section 5.3)."""

    sizes: dict[str, int]
    dropout: float
    kernel_init: Init
    dtype: Any

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array:
        linear = logits_linear("BLD,DC->BLC", self.sizes, self.kernel_init, self.dtype, name="linear")
        nn.share_scope(self, linear)
        return linear(dropout(encoding.hidden_BLD, self.dropout, dropout_key, SITE))


class SpanHead(nn.Module):
    """Where an answer begins and where it ends, a logit for each token: Encoding → float32 BLC of two. No dropout, as
    in the original (run_squad.py, create_model; section 4.2)."""

    sizes: dict[str, int]
    kernel_init: Init
    dtype: Any

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array:
        linear = logits_linear("BLD,DC->BLC", self.sizes, self.kernel_init, self.dtype, name="linear")
        nn.share_scope(self, linear)
        return linear(encoding.hidden_BLD)


class ChoiceHead(nn.Module):
    """A logit for each alternative of a line, from its pooled vector: Encoding → float32 BA.

    Dropout is the same for all alternatives of a line, as in GPT-1's code (finetune-transformer-lm, train.py).
    """

    sizes: dict[str, int]
    dropout: float
    kernel_init: Init
    dtype: Any

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array:
        assert encoding.pooled_BD is not None, "Choice reads pooled vectors, and this backbone gives none"
        D = encoding.pooled_BD.shape[-1]
        pooled_BAD = encoding.pooled_BD.reshape(-1, encoding.choices, D)
        kept_BD = dropout(jnp.ones_like(pooled_BAD[:, 0]), self.dropout, dropout_key, SITE)
        linear = logits_linear("BAD,D_->BA_", {"D": D, "_": 1}, self.kernel_init, self.dtype, name="linear")
        nn.share_scope(self, linear)
        return linear(pooled_BAD * kept_BD[:, None])[..., 0]
