"""Static word vectors as a backbone: a table with a row for each word, read without any context (Mikolov et al. 2013;
Pennington et al. 2014)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from contexture.models.config import VectorsConfig
from contexture.models.encoding import Encoding
from contexture.models.layers.blocks import Init, lookup
from contexture.models.layers.dropout import DropoutKey
from contexture.models.layers.packed_rows import means
from contexture.models.sharding import constrain, gathered


def kernel_init(config: VectorsConfig) -> Init:
    """Normal; for the table of a random baseline, and the heads of tasks."""
    return nn.initializers.normal(0.02)


def sizes(config: VectorsConfig, classes: int = 2) -> dict[str, int]:
    """Returns a configuration's sizes by letter: {"V": 400002, "D": 300, …}; C is a head's classes."""
    return {"V": config.vocab, "D": config.hidden, "N": config.layers, "C": classes}


def training_flops(config: VectorsConfig, size: dict[str, int]) -> float:
    """0: rows are looked up, and nothing is multiplied. What a task's head computes is not counted."""
    return 0.0


def activation_floats(config: VectorsConfig, size: dict[str, int]) -> float:
    """2·B·L·D: the words' vectors and their gradient."""
    # The alternatives of a choice (A) are sequences of their own.
    return 2.0 * size["B"] * size.get("A", 1) * size["L"] * config.hidden


class WordTable(nn.Module):
    """The rows of words: tokens_BL → (x_BLD, table_VD)."""

    sizes: dict[str, int]
    kernel_init: Init
    dtype: DTypeLike

    @nn.compact
    def __call__(self, tokens_BL: jax.Array) -> tuple[jax.Array, jax.Array]:
        shape = (self.sizes["V"], self.sizes["D"])
        # Whole in D on every device, as in BertEmbeddings.
        table_VD = gathered(self.param("tokens", self.kernel_init, shape), "VD", "V_")
        return constrain(lookup(table_VD, tokens_BL), "BLD").astype(self.dtype), table_VD


class Vectors(nn.Module):
    """tokens, mask (i32 BL) → Encoding, pooled as the mean over words. Its only state is the words' vectors."""

    config: VectorsConfig

    @nn.compact
    def __call__(
        self, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None, *, states: bool = False
    ) -> Encoding:
        dtype = jnp.dtype(self.config.dtype)
        table = WordTable(sizes(self.config), kernel_init(self.config), dtype, name="embeddings")
        x_BLD, table_VD = table(batch["tokens"])
        # The table itself is the only layer: no state comes after it.
        return Encoding(x_BLD, batch["mask"], means(x_BLD, batch), (x_BLD,) if states else (), table_VD)
