"""Words from their characters: convolutions, highway layers and a projection (Kim et al. 2016; Jozefowicz et al. 2016),
as ELMo's biLM has them (bilm-tf)."""

import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from models.blocks import Linear

CHARACTERS = 261
"""256 bytes, begin and end of a sentence, begin and end of a word, padding."""
_ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh}


class Highway(nn.Module):
    """y = g·relu(x·Wt + bt) + (1 - g)·x with g = sigmoid(x·Wc + bc) (Srivastava et al. 2015): x_RF → RF.

    `carry` is the original's name for g, though it gates what is new.
    """

    sizes: dict[str, int]
    dtype: Any

    @nn.compact
    def __call__(self, x_RF: jax.Array) -> jax.Array:
        init = nn.initializers.normal(1.0 / math.sqrt(self.sizes["F"]))
        size = {**self.sizes, "_": self.sizes["F"]}
        carry_init = nn.initializers.constant(-2.0)
        gate = Linear("RF,F_->R_", size, init, self.dtype, bias_init=carry_init, name="carry")(x_RF)
        gate = jax.nn.sigmoid(gate)
        new = jax.nn.relu(Linear("RF,F_->R_", size, init, self.dtype, name="transform")(x_RF))
        return gate * new + (1.0 - gate) * x_RF


class CharCnn(nn.Module):
    """Character ids i32 RW (0: nothing, else the original's id + 1) → words RJ.

    Of each filter's outputs along the word, padding included, the largest counts. Equal windows of padding count once
    as well as often: rows may be cut where only padding follows, if a filter's whole width of it is left.
    """

    sizes: dict[str, int]
    filters: Sequence[tuple[int, int]]
    activation: str
    highway: int
    dtype: Any

    @nn.compact
    def __call__(self, types_RW: jax.Array) -> jax.Array:
        E, F, J = (self.sizes[letter] for letter in "EFJ")
        uniform = nn.initializers.uniform(2.0)
        table__E = self.param("characters", lambda *given: uniform(*given) - 1.0, (CHARACTERS, E)).astype(self.dtype)
        x_RWE = jnp.concatenate([jnp.zeros_like(table__E[:1]), table__E])[types_RW]
        pooled = []
        for number, (width, count) in enumerate(self.filters):
            filters = Filters(width, count, E, self.activation, self.dtype, name=f"filters_{number}")
            pooled.append(filters(x_RWE))
        x_RF = jnp.concatenate(pooled, -1)
        for number in range(self.highway):
            x_RF = Highway(self.sizes, self.dtype, name=f"highway_{number}")(x_RF)
        if F == J:
            return x_RF
        init = nn.initializers.normal(1.0 / math.sqrt(F))
        return Linear("RF,FJ->RJ", self.sizes, init, self.dtype, name="projection")(x_RF)


class Filters(nn.Module):
    """The filters of one width: x_RWE → R_, the largest output of each along the word, activated."""

    width: int
    count: int
    inward: int
    activation: str
    dtype: Any

    @nn.compact
    def __call__(self, x_RWE: jax.Array) -> jax.Array:
        uniform = nn.initializers.uniform(0.1)
        init = {
            "relu": lambda *given: uniform(*given) - 0.05,
            "tanh": nn.initializers.normal(1.0 / math.sqrt(self.width * self.inward)),
        }[self.activation]
        kernel = self.param("kernel", init, (self.width, self.inward, self.count)).astype(self.dtype)
        bias = self.param("bias", nn.initializers.zeros, (self.count,)).astype(self.dtype)
        y = jax.lax.conv_general_dilated(x_RWE, kernel, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))
        return _ACTIVATIONS[self.activation](y.max(1) + bias[None])
