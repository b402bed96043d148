"""Embedding tables: tokens, positions, segments."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from contexture.models.layers.blocks import Init, Norm
from contexture.models.layers.dropout import DropoutKey, dropout
from contexture.models.layers.matmul import custom_gradient
from contexture.models.sharding import batch_shards, constrain, gathered, sum_over_devices


def lookup(table_VD: jax.Array, index_BL: jax.Array) -> jax.Array:
    """Returns table[index]. On a mesh each device adds up its own sequences' gradient before the sum over devices."""
    if batch_shards(index_BL.shape[0]) == 1:
        return table_VD[index_BL]
    return _lookup(table_VD.shape[0], table_VD, index_BL)


@custom_gradient(nondiff_argnums=(0,))
def _lookup(words: int, table_VD: jax.Array, index_BL: jax.Array) -> jax.Array:
    return table_VD[index_BL]


def _lookup_backward(words: int, index_BL: jax.Array, dx_BLD: jax.Array) -> tuple[jax.Array, None]:
    devices, D = batch_shards(index_BL.shape[0]), dx_BLD.shape[-1]

    def add(index_T: jax.Array, dx_TD: jax.Array) -> jax.Array:
        return jnp.zeros((words, D), dx_TD.dtype).at[index_T].add(dx_TD)

    # Each device adds its own sequences' rows into a table of its own; only these sums cross the mesh.
    dtable_BVD = jax.vmap(add)(index_BL.reshape(devices, -1), dx_BLD.reshape(devices, -1, D))
    return sum_over_devices(constrain(dtable_BVD, "BV_"), "VD"), None


_lookup.defvjp(lambda words, table_VD, index_BL: (table_VD[index_BL], index_BL), _lookup_backward)


class BertEmbeddings(nn.Module):
    """dropout(norm(token + position + segment)) (BERT, section 3.2): tokens_BL, segments_BL → (x_BLD, table_VD).

    table_VD is the token table, for a tied softmax. positions_BL is 0, 1, … unless given.
    """

    sizes: dict[str, int]
    rate: float
    eps: float
    kernel_init: Init
    dtype: DTypeLike

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
        # Whole in D on every device: D is sharded over devices that share
        # the batch too, and a lookup's result by batch.
        table_VD, position_LD = gathered(self.tokens, "VD", "V_"), gathered(self.positions, "LD", "L_")
        # Without given positions the rows are a slice, whose gradient is a sum; a gather's would be a scatter-add.
        positions_BLD = position_LD[None, :L] if positions_BL is None else position_LD[positions_BL]
        # One-hot times table instead of a gather, as in the original (modeling.py, embedding_postprocessor): with so
        # few rows the product is faster, and so is its gradient.
        segments_BL = jnp.minimum(segments_BL, self.sizes["T"] - 1)
        one_hot_BLT = jax.nn.one_hot(segments_BL, self.sizes["T"], dtype=self.segments.dtype)
        segments_BLD = jnp.einsum("BLT,TD->BLD", one_hot_BLT, gathered(self.segments, "TD", "T_"))
        x_BLD = constrain(lookup(table_VD, tokens_BL) + positions_BLD + segments_BLD, "BLD")
        return dropout(self.norm(x_BLD), self.rate, dropout_key, site), table_VD


class GptEmbeddings(nn.Module):
    """dropout(token + position) (GPT; Radford et al. 2018, section 3.1): tokens_BL → (x_BLD, table_VD).

    table_VD is the table of a tied softmax. positions_BL is 0, 1, … unless given.

    `one_table` (finetune-transformer-lm) joins both tables. Dropout then falls on the rows of the joint table instead
    of on the sum, with one mask for all uses in a step, and the softmax's table has the positions after the tokens.
    """

    sizes: dict[str, int]
    rate: float
    token_init: Init
    position_init: Init
    dtype: DTypeLike
    one_table: bool = False

    @nn.compact
    def __call__(
        self, tokens_BL: jax.Array, positions_BL: jax.Array | None, dropout_key: DropoutKey | None, site: int
    ) -> tuple[jax.Array, jax.Array]:
        V, P, D = self.sizes["V"], self.sizes["L"], self.sizes["D"]
        table_VD = gathered(self.param("tokens", self.token_init, (V, D)), "VD", "V_")
        position_LD = gathered(self.param("positions", self.position_init, (P, D)), "LD", "L_")
        softmax_VD = table_VD
        if self.one_table:
            # The mask belongs to the table: its rows are numbered by table row, not by sequence, so that all
            # microbatches and devices of a step draw the same one.
            key = None if dropout_key is None else DropoutKey(dropout_key.key, jnp.arange(V + P, dtype=jnp.uint32))
            softmax_VD = dropout(jnp.concatenate([table_VD, position_LD]), self.rate, key, site)
            table_VD, position_LD = softmax_VD[:V], softmax_VD[V:]
        # Without given positions the rows are a slice, as in BertEmbeddings.
        positions_BLD = position_LD[None, : tokens_BL.shape[1]] if positions_BL is None else position_LD[positions_BL]
        # Rows are added in the tables' float32 and rounded to dtype after that.
        x_BLD = constrain(lookup(table_VD, tokens_BL) + positions_BLD, "BLD").astype(self.dtype)
        return x_BLD if self.one_table else dropout(x_BLD, self.rate, dropout_key, site), softmax_VD
