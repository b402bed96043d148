"""Tables of vectors: tokens, positions, segments."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from contexture.models.layers.blocks import Init, Norm
from contexture.models.layers.dropout import DropoutKey, dropout
from contexture.models.sharding import constrain


class BertEmbeddings(nn.Module):
    """Token + position + segment vectors, normed, with dropout (BERT, section 3.2).

    tokens_BL, segments_BL → x_BLD, and the token table for a tied softmax. positions_BL counts 0, 1, … unless given.
    """

    sizes: dict[str, int]
    rate: float
    eps: float
    kernel_init: Init
    dtype: Any

    def setup(self) -> None:
        size = self.sizes
        self.tokens = self.param("tokens", self.kernel_init, (size["V"], size["D"]))
        self.positions = self.param("positions", self.kernel_init, (size["L"], size["D"]))
        self.segments = self.param("segments", self.kernel_init, (size["T"], size["D"]))
        self.norm = Norm(self.eps, self.dtype)

    def __call__(
        self,
        tokens_BL: jax.Array,
        segments_BL: jax.Array,
        positions_BL: jax.Array | None,
        dropout_key: DropoutKey | None,
        site: int,
    ) -> tuple[jax.Array, jax.Array]:
        L = tokens_BL.shape[1]
        table_VD, place_LD = constrain(self.tokens, "V_"), constrain(self.positions, "L_")
        positions_BLD = place_LD[None, :L] if positions_BL is None else place_LD[positions_BL]
        kinds_BL = jnp.minimum(segments_BL, self.sizes["T"] - 1)
        types_BLT = jax.nn.one_hot(kinds_BL, self.sizes["T"], dtype=self.segments.dtype)
        types_BLD = jnp.einsum("BLT,TD->BLD", types_BLT, constrain(self.segments, "T_"))
        x_BLD = constrain(table_VD[tokens_BL] + positions_BLD + types_BLD, "BLD")
        return dropout(self.norm(x_BLD), self.rate, dropout_key, site), table_VD


class GptEmbeddings(nn.Module):
    """Token + position vectors, with dropout (GPT; Radford et al. 2018, section 3.1).

    tokens_BL → x_BLD, and the table for a tied softmax. positions_BL counts 0, 1, … unless given. With `one_table`
    (finetune-transformer-lm) dropout falls on the rows of both tables instead of on the sum, the same for all uses in a
    step, and the table for the softmax has the positions behind the tokens.
    """

    sizes: dict[str, int]
    rate: float
    token_init: Init
    position_init: Init
    dtype: Any
    one_table: bool = False

    @nn.compact
    def __call__(
        self, tokens_BL: jax.Array, positions_BL: jax.Array | None, dropout_key: DropoutKey | None, site: int
    ) -> tuple[jax.Array, jax.Array]:
        V, P, D = self.sizes["V"], self.sizes["L"], self.sizes["D"]
        table_VD = constrain(self.param("tokens", self.token_init, (V, D)), "V_")
        place_LD = constrain(self.param("positions", self.position_init, (P, D)), "L_")
        softmax_VD = table_VD
        if self.one_table:
            rows = None if dropout_key is None else DropoutKey(dropout_key.key, jnp.arange(V + P, dtype=jnp.uint32))
            softmax_VD = dropout(jnp.concatenate([table_VD, place_LD]), self.rate, rows, site)
            table_VD, place_LD = softmax_VD[:V], softmax_VD[V:]
        positions_BLD = place_LD[None, : tokens_BL.shape[1]] if positions_BL is None else place_LD[positions_BL]
        x_BLD = constrain(table_VD[tokens_BL] + positions_BLD, "BLD").astype(self.dtype)
        return x_BLD if self.one_table else dropout(x_BLD, self.rate, dropout_key, site), softmax_VD
