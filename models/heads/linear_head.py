"""The common parts of heads: one linear map at their end, and the table of a softmax over the vocabulary."""

from collections.abc import Callable
from typing import Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from contexture.models.encoding import Encoding
from contexture.models.layers.blocks import Init, logits_linear
from contexture.models.layers.matmul import custom_gradient
from contexture.models.sharding import constrain, platform, tensor_devices

_GPU_TILE = 128
"""Columns of a product's tile."""


def without_absent(logits_BA: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """Returns the logits of alternatives, with -inf where the batch's `choices` (f32 BA) is 0: an example with fewer
    alternatives than others has a softmax over its own only."""
    if "choices" not in batch:
        return logits_BA
    # -inf and not a large number: an absent alternative has probability 0, and its gradient is 0 too.
    return jnp.where(batch["choices"] > 0, logits_BA, -jnp.inf)


class _OverVocabulary(Protocol):
    sizes: dict[str, int]
    kernel_init: Init
    tied: bool
    param: Callable[..., jax.Array]


def softmax_table(head: _OverVocabulary, encoding: Encoding) -> jax.Array:
    """Returns the softmax's table VD: the token table, or the head's own."""
    if not head.tied:
        # Sharded by words and whole in D where it is used, as a tied table is (`gathered` in the embeddings).
        return constrain(head.param("table", head.kernel_init, (head.sizes["V"], head.sizes["D"])), "V_")
    assert encoding.table_VD is not None, "the softmax is tied to a token table, and this backbone gives none"
    return encoding.table_VD


def missing_words(words: int) -> int:
    """Returns how many rows a softmax's table lacks so that the tensor axis divides them, and on a GPU its tiles.

    cuBLAS is fast only where a factor's rows are aligned: with GPT-2's 50,257 words the three products of the softmax
    took an H200 32 of a step's 88 ms.
    """
    return -words % (tensor_devices() * (_GPU_TILE if platform() == "gpu" else 1))


@custom_gradient()
def logits_over_vocabulary(x_BPD: jax.Array, table_VD: jax.Array) -> jax.Array:
    """x · tableᵀ → BPV in float32, whatever the factors' dtype: the softmax over V would lose too many bits."""
    words = table_VD.shape[0]
    table_WD = jnp.pad(table_VD, ((0, missing_words(words)), (0, 0)))
    return jnp.einsum("BPD,WD->BPW", x_BPD, table_WD, preferred_element_type=jnp.float32)[..., :words]


def _logits_backward(saved: tuple[jax.Array, jax.Array], dlogits_BPV: jax.Array) -> tuple[jax.Array, jax.Array]:
    x_BPD, table_VD = saved
    pad = missing_words(table_VD.shape[0])
    # Products of the factors' dtype, as in `matmul`.
    dlogits_BPW = jnp.pad(dlogits_BPV.astype(x_BPD.dtype), ((0, 0), (0, 0), (0, pad)))
    table_WD = jnp.pad(table_VD, ((0, pad), (0, 0)))
    dtable_WD = jnp.einsum("BPW,BPD->WD", dlogits_BPW, x_BPD)
    return jnp.einsum("BPW,WD->BPD", dlogits_BPW, table_WD), dtable_WD[: table_VD.shape[0]]


logits_over_vocabulary.defvjp(lambda x, table: (logits_over_vocabulary(x, table), (x, table)), _logits_backward)


class LinearHead(nn.Module):
    """The fields of a head that ends in one linear map, and that map.

    Args:
        sizes: the size of each letter of the map's equation; C is the number of classes.
        kernel_init: the initialiser of its kernel.
        dtype: the dtype of its factors; logits are float32.
        rate: the rate of the dropout before it.
    """

    sizes: dict[str, int]
    kernel_init: Init
    dtype: DTypeLike
    rate: float = 0.0
    reads_pooled = False
    by_token = False
    """Whether it maps each token by itself, so that sequences may share rows."""

    def layers_read(self, layers: int) -> tuple[int, ...]:
        """Returns which states of a backbone of so many layers the head reads (0: the embeddings), ascending."""
        return (layers,)

    def logits(self, equation: str, x: jax.Array, **sizes: int) -> jax.Array:
        """Returns einsum(equation, x, kernel) + bias in float32; `sizes` are letters of this map alone."""
        linear = logits_linear(equation, {**self.sizes, **sizes}, self.kernel_init, self.dtype, name="linear")
        # The map's parameters become the head's own: heads_classify/kernel, not heads_classify/linear/kernel.
        nn.share_scope(self, linear)
        return linear(x)

    def pooled(self, encoding: Encoding) -> jax.Array:
        """Returns the encoding's pooled vectors, BD."""
        # A programming error, no user's: `models.families` gives such heads to backbones that pool.
        name = type(self).__name__
        assert encoding.pooled_BD is not None, f"{name} reads a pooled vector, and this backbone gives none"
        return encoding.pooled_BD
