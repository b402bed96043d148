"""The heads that pretraining trains: masked tokens and next sentence (BERT, section 3.1), the next token (GPT)."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from contexture.models.encoding import Encoding
from contexture.models.heads.chunked_softmax import TokenLosses, next_token_loss
from contexture.models.layers.blocks import ACTIVATIONS, Init, Linear, Norm, logits_linear
from contexture.models.layers.dropout import DropoutKey
from contexture.models.sharding import constrain


class MaskedLM(nn.Module):
    """Logits of the predicted slots: Encoding, slots i32 BP → float32 BPV.

    Only the P slots pass through the head. The softmax is tied to the token table, or has its own; its bias is the
    head's own.
    """

    sizes: dict[str, int]
    activation: str
    eps: float
    kernel_init: Init
    dtype: Any
    tied: bool = True

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array:
        x_BPD = jnp.take_along_axis(encoding.hidden_BLD, batch["slots"][:, :, None], axis=1)
        x_BPD = Linear("BPD,D_->BP_", self.sizes, self.kernel_init, self.dtype, name="transform")(x_BPD)
        x_BPD = Norm(self.eps, self.dtype, name="norm")(ACTIVATIONS[self.activation](x_BPD))
        bias_V = self.param("bias", nn.initializers.zeros, (self.sizes["V"],))
        table_VD = _table(self, encoding).astype(self.dtype)
        logits_BPV = jnp.einsum("BPD,VD->BPV", x_BPD, table_VD, preferred_element_type=jnp.float32)
        return logits_BPV + bias_V[None, None]


class NextSentence(nn.Module):
    """Is b what follows a? Encoding → float32 BC; class 0 = it is, 1 = it was drawn at random."""

    sizes: dict[str, int]
    kernel_init: Init
    dtype: Any

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array:
        assert encoding.pooled_BD is not None, "NextSentence reads a pooled vector, and this backbone gives none"
        linear = logits_linear("BD,DC->BC", self.sizes, self.kernel_init, self.dtype, name="linear")
        nn.share_scope(self, linear)
        return linear(encoding.pooled_BD)


class NextTokenHead(nn.Module):
    """How well each next token is predicted: Encoding, next i32 BL, next_weights f32 BL → TokenLosses.

    The softmax is tied to the token table, and there are no parameters; or it has its own. It has no bias.
    """

    sizes: dict[str, int]
    kernel_init: Init
    dtype: Any
    tied: bool = True

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> TokenLosses:
        table_VD = _table(self, encoding).astype(self.dtype)
        return next_token_loss(encoding.hidden_BLD, table_VD, batch["next"], batch["next_weights"])


def _table(head: MaskedLM | NextTokenHead, encoding: Encoding) -> jax.Array:
    """What the softmax is over: the token table, or the head's own."""
    if not head.tied:
        return constrain(head.param("table", head.kernel_init, (head.sizes["V"], head.sizes["D"])), "V_")
    assert encoding.table_VD is not None, "the softmax is tied to a token table, and this backbone gives none"
    return encoding.table_VD
