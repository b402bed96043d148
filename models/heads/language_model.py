"""The heads that pretraining trains: masked tokens and next sentence (BERT, section 3.1), the next token (GPT)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from contexture.models.encoding import Encoding
from contexture.models.heads.chunked_softmax import TokenLosses, next_token_loss
from contexture.models.heads.linear_head import LinearHead
from contexture.models.layers.blocks import ACTIVATIONS, Init, Linear, Norm
from contexture.models.layers.dropout import DropoutKey
from contexture.models.sharding import constrain


class MaskedLmHead(nn.Module):
    """norm(activation(x·W + b))·tableᵀ + bias of the masked positions: Encoding, slots i32 BP → float32 BPV.

    The table is the token table (tied) or the head's own. The bias over the vocabulary is always the head's.
    """

    sizes: dict[str, int]
    activation: str
    eps: float
    kernel_init: Init
    dtype: DTypeLike
    tied: bool = True

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array:
        # Only the P masked positions pass through the head: with 15 % masked, logits over all L would be seven times
        # as many.
        x_BPD = jnp.take_along_axis(encoding.hidden_BLD, batch["slots"][:, :, None], axis=1)
        x_BPD = Linear("BPD,D_->BP_", self.sizes, self.kernel_init, self.dtype, name="transform")(x_BPD)
        x_BPD = Norm(self.eps, self.dtype, name="norm")(ACTIVATIONS[self.activation](x_BPD))
        # The original's output_bias: one number a word, also where the table is tied.
        bias_V = self.param("bias", nn.initializers.zeros, (self.sizes["V"],))
        table_VD = _softmax_table(self, encoding).astype(self.dtype)
        # Float32 logits, whatever the compute dtype: the softmax over V would lose too many bits.
        logits_BPV = jnp.einsum("BPD,VD->BPV", x_BPD, table_VD, preferred_element_type=jnp.float32)
        return logits_BPV + bias_V[None, None]


class NextSentenceHead(LinearHead):
    """Whether sentence b follows a: Encoding → float32 BC; class 0: it follows, 1: it is a random one."""

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array:
        # Straight on the pooled vector, without dropout, as in the original (run_pretraining.py).
        return self.logits("BD,DC->BC", self.pooled(encoding))


class NextTokenHead(nn.Module):
    """-log softmax(x · table)[next]: Encoding, next i32 BL, next_weights f32 BL → TokenLosses.

    The table is the token table (tied; the head then has no parameters) or the head's own. There is no bias.
    """

    sizes: dict[str, int]
    kernel_init: Init
    dtype: DTypeLike
    tied: bool = True

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> TokenLosses:
        table_VD = _softmax_table(self, encoding).astype(self.dtype)
        # The logits of all L positions never exist at once: losses and gradient are formed in chunks.
        return next_token_loss(encoding.hidden_BLD, table_VD, batch["next"], batch["next_weights"])


def _softmax_table(head: MaskedLmHead | NextTokenHead, encoding: Encoding) -> jax.Array:
    """Returns the softmax's table VD: the token table, or the head's own."""
    if not head.tied:
        # Sharded by words and whole in D where it is used, as a tied table is (`gathered` in the embeddings).
        return constrain(head.param("table", head.kernel_init, (head.sizes["V"], head.sizes["D"])), "V_")
    assert encoding.table_VD is not None, "the softmax is tied to a token table, and this backbone gives none"
    return encoding.table_VD
