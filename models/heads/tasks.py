"""The heads that fine-tuning trains: one linear map on the backbone's output (Devlin et al. 2018, section 4)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from contexture.models.encoding import Encoding
from contexture.models.heads.linear_head import LinearHead, without_absent
from contexture.models.layers.blocks import logits_linear
from contexture.models.layers.dropout import DropoutKey, dropout

SITE = 1 << 16
"""Dropout's site in a head, above the sites of any backbone."""


class PooledHead(LinearHead):
    """linear(dropout(pooled)): Encoding → float32 BC. With one class it is a regression's number.

    This is BERT's classifier (run_classifier.py, create_model). If an example has several rows (a pair in both orders),
    the sum of their pooled vectors is classified (Radford et al. 2018, section 3.3).
    """

    reads_pooled = True

    def layers_read(self, layers: int) -> tuple[int, ...]:
        # A frozen backbone's pooled vector is stored by itself (`reads_pooled`): no layer is needed with it.
        return ()

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array:
        pooled_BD = self.pooled(encoding)
        # The rows of one example are consecutive.
        if encoding.choices > 1:
            pooled_BD = pooled_BD.reshape(-1, encoding.choices, pooled_BD.shape[-1]).sum(1)
        return self.logits("BD,DC->BC", dropout(pooled_BD, self.rate, dropout_key, SITE))


class TokenHead(LinearHead):
    """linear(dropout(hidden)) for each token: Encoding → float32 BLC (section 5.3)."""

    by_token = True

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array:
        return self.logits("BLD,DC->BLC", dropout(encoding.hidden_BLD, self.rate, dropout_key, SITE))


class SpanHead(LinearHead):
    """The logits of each token being the answer's start and its end: Encoding → float32 BLC with C = 2.

    There is no dropout, as in the original (run_squad.py, create_model; section 4.2).
    """

    by_token = True

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array:
        return self.logits("BLD,DC->BLC", encoding.hidden_BLD)


class SpanPointerHead(LinearHead):
    """The same for a model that reads from left to right and knows the question only after the context: Encoding →
    float32 BLC.

        logits[l, c] = hidden[l] · query[c] / √D + linear(hidden[l])[c]      query = linear(pooled)

    Differs: GPT-1 was never tried on spans of answers; the query comes from the token that reads the whole sequence.
    """

    reads_pooled = True

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array:
        hidden_BLD, sizes = encoding.hidden_BLD, {**self.sizes, "_": self.sizes["D"]}
        query = logits_linear("BD,DC_->BC_", sizes, self.kernel_init, self.dtype, name="query")
        # Scaled like the logits of attention, whose form this has: a sum over D terms grows with √D.
        query_BCD = (query(self.pooled(encoding)) / self.sizes["D"] ** 0.5).astype(hidden_BLD.dtype)
        pointed_BLC = jnp.einsum("BLD,BCD->BLC", hidden_BLD, query_BCD, preferred_element_type=jnp.float32)
        # The linear part scores a token by itself, without the query.
        return pointed_BLC + self.logits("BLD,DC->BLC", hidden_BLD)


class ChoiceHead(LinearHead):
    """A logit for each alternative of an example, from its pooled vector: Encoding → float32 BA. Where the batch's
    `choices` is 0 it is -inf."""

    reads_pooled = True

    def layers_read(self, layers: int) -> tuple[int, ...]:
        # As in PooledHead.
        return ()

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array:
        pooled_BD = self.pooled(encoding)
        pooled_BAD = pooled_BD.reshape(-1, encoding.choices, pooled_BD.shape[-1])
        # All alternatives of an example share one dropout mask, as in GPT-1's code (finetune-transformer-lm, train.py):
        # they are compared on the same features.
        mask_BD = dropout(jnp.ones_like(pooled_BAD[:, 0]), self.rate, dropout_key, SITE)
        # "_" of size 1: one logit for each alternative.
        logits_BA = self.logits("BAD,D_->BA_", pooled_BAD * mask_BD[:, None], _=1)[..., 0]
        return without_absent(logits_BA, batch)
