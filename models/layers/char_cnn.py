"""Words from their characters: convolutions, highway layers and a projection (Kim et al. 2016; Jozefowicz et al. 2016),
as ELMo's biLM has them (bilm-tf)."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from contexture.models.layers.blocks import Linear
from contexture.models.sharding import constrain, devices_of_batch, shares

CHARACTERS = 261
"""256 bytes, begin and end of a sentence, begin and end of a word, padding."""
PADDING = 261
"""The id of padding, here one more than the original's."""
PLACES = (14, 18, 22, 28)
"""Where no word, its marks counted, is as long, the filters run over so many places of it instead of all."""
MOST_AT_PLACES = 1 << 21
"""Numbers that the filters give at all places which a CPU works on at once."""
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
    """Character ids i32 RW (0: nothing, else the original's id + 1) → words RJ, whole on every device.

    The devices that share a batch share the rows too; empty rows are added until all have as many.

    Of each filter's outputs along the word, padding included, the largest counts. Windows of nothing but padding are
    alike and count once as well as often, so that where no word is long the filters run over fewer places (PLACES).
    """

    sizes: dict[str, int]
    filters: Sequence[tuple[int, int]]
    activation: str
    highway: int
    dtype: Any

    @nn.compact
    def __call__(self, types_RW: jax.Array) -> jax.Array:
        E, F, J = (self.sizes[letter] for letter in "EFJ")
        R = types_RW.shape[0]
        types_RW = constrain(jnp.pad(types_RW, [(0, -R % devices_of_batch()), (0, 0)]), "RW")
        uniform = nn.initializers.uniform(2.0)
        table__E = self.param("characters", lambda *given: uniform(*given) - 1.0, (CHARACTERS, E)).astype(self.dtype)
        table__E = jnp.concatenate([jnp.zeros_like(table__E[:1]), table__E])
        filters = [
            Filters(width, count, E, self.activation, self.dtype, name=f"filters_{number}")()
            for number, (width, count) in enumerate(self.filters)
        ]
        W, widest = types_RW.shape[1], max(width for width, _ in self.filters)
        kernel, bias_F = _joined(filters, widest)
        reach_F = np.concatenate([np.full(count, width) for width, count in self.filters])
        beyond_WF = jnp.asarray(np.where(np.arange(W)[:, None] + reach_F > W, -np.inf, 0.0), jnp.float32)

        x_RWE = jnp.pad(table__E[types_RW], [(0, 0), (0, widest - 1), (0, 0)])

        def filters_over(places: int) -> jax.Array:
            """The filters over so many places, and as many more as they reach from there."""
            windows = [x_RWE[:, n : n + places] for n in range(widest)]
            return conv_max_over_time(jnp.concatenate(windows, -1), kernel, beyond_WF[:places])

        spelled_W = ((types_RW > 0) & (types_RW < PADDING)).any(0)
        longest = (jnp.arange(1, W + 1) * spelled_W).max()
        fewer = [places for places in PLACES if places + widest <= W]
        chosen = (longest >= jnp.array(fewer, jnp.int32)).sum() if fewer else 0
        x_RF = jax.lax.switch(chosen, [functools.partial(filters_over, places) for places in (*fewer, W)]).astype(
            self.dtype
        )
        x_RF = _ACTIVATIONS[self.activation](x_RF + bias_F[None])
        for number in range(self.highway):
            x_RF = Highway(self.sizes, self.dtype, name=f"highway_{number}")(x_RF)
        if F != J:
            init = nn.initializers.normal(1.0 / math.sqrt(F))
            x_RF = Linear("RF,FJ->RJ", self.sizes, init, self.dtype, name="projection")(x_RF)
        return constrain(x_RF, "__")[:R]


class Filters(nn.Module):
    """The filters of one width: → their kernel WE_ and bias."""

    width: int
    count: int
    inward: int
    activation: str
    dtype: Any

    @nn.compact
    def __call__(self) -> tuple[jax.Array, jax.Array]:
        uniform = nn.initializers.uniform(0.1)
        init = {
            "relu": lambda *given: uniform(*given) - 0.05,
            "tanh": nn.initializers.normal(1.0 / math.sqrt(self.width * self.inward)),
        }[self.activation]
        kernel = self.param("kernel", init, (self.width, self.inward, self.count))
        bias = self.param("bias", nn.initializers.zeros, (self.count,))
        return kernel.astype(self.dtype), bias.astype(self.dtype)


def _joined(filters: Sequence[tuple[jax.Array, jax.Array]], widest: int) -> tuple[jax.Array, jax.Array]:
    """Filters of all widths as one matrix, what they do not reach being 0: [widest·E, F], and their biases."""
    kernels = [jnp.pad(kernel, [(0, widest - kernel.shape[0]), (0, 0), (0, 0)]) for kernel, _ in filters]
    kernel = jnp.concatenate(kernels, -1)
    return kernel.reshape(-1, kernel.shape[-1]), jnp.concatenate([bias for _, bias in filters])


@jax.custom_vjp
def conv_max_over_time(x_RPX: jax.Array, kernel_XF: jax.Array, beyond_PF: jax.Array) -> jax.Array:
    """The largest of x · kernel + beyond over the places P: float32 RF, a few words at a time.

    What the products give at each place is many times what is kept of it; the backward pass makes it again. Places that
    share the largest share its gradient.
    """
    return _in_parts(lambda x_RPX: _at_places(x_RPX, kernel_XF, beyond_PF).max(1), x_RPX, kernel_XF.shape[1])


def _at_places(x_RPX: jax.Array, kernel_XF: jax.Array, beyond_PF: jax.Array) -> jax.Array:
    R, P, X = x_RPX.shape
    y = jnp.dot(x_RPX.reshape(-1, X), kernel_XF, preferred_element_type=jnp.float32)
    return y.reshape(R, P, -1) + beyond_PF[None]


def part_sizes(rows: int, most: int) -> tuple[int, int]:
    """A device's rows in parts of about equal size, of at most `most` rows: (parts, rows of each)."""
    parts = -(-rows // most)
    return parts, -(-rows // parts)


def _parted(x: jax.Array, places: int, width: int) -> jax.Array:
    """Rows R in parts that are worked on one after the other, each device with its share of each: [parts, R/parts].

    Each device fills up its own rows, so that none moves to another device.
    """
    devices = shares(x.shape[0])
    rows = x.shape[0] // devices
    most = MOST_AT_PLACES if jax.default_backend() == "cpu" else 16 * MOST_AT_PLACES
    parts, size = part_sizes(rows, max(most // (places * width), 1))
    x = x.reshape(devices, rows, *x.shape[1:])
    x = jnp.pad(x, [(0, 0), (0, parts * size - rows)] + [(0, 0)] * (x.ndim - 2))
    x = jnp.moveaxis(x.reshape(devices, parts, size, *x.shape[2:]), 1, 0)
    return x.reshape(parts, devices * size, *x.shape[3:])


def _joined_parts(x: jax.Array, rows: int) -> jax.Array:
    """The parts as rows again: [parts, R/parts, …] → R, …"""
    parts, devices = x.shape[0], shares(rows)
    x = jnp.moveaxis(x.reshape(parts, devices, -1, *x.shape[2:]), 0, 1)
    x = x.reshape(devices, -1, *x.shape[3:])[:, : rows // devices]
    return x.reshape(rows, *x.shape[2:])


def _in_parts(function: Callable[[jax.Array], jax.Array], x_RPX: jax.Array, width: int) -> jax.Array:
    return _joined_parts(jax.lax.map(function, _parted(x_RPX, x_RPX.shape[1], width)), x_RPX.shape[0])


def _largest_forward(x_RPX: jax.Array, kernel_XF: jax.Array, beyond_PF: jax.Array) -> tuple[jax.Array, Any]:
    return conv_max_over_time(x_RPX, kernel_XF, beyond_PF), (x_RPX, kernel_XF, beyond_PF)


def _largest_backward(saved: Any, dy_RF: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    x_RPX, kernel_XF, beyond_PF = saved
    (R, P, X), F = x_RPX.shape, kernel_XF.shape[1]

    def part(dkernel_XF: jax.Array, part: Any) -> tuple[jax.Array, jax.Array]:
        x_RPX, dy_RF = part
        y_RPF = _at_places(x_RPX, kernel_XF, beyond_PF)
        hit_RPF = y_RPF == y_RPF.max(1, keepdims=True)
        share_RF = dy_RF / hit_RPF.sum(1)
        dy = jnp.where(hit_RPF, share_RF[:, None], 0.0).astype(x_RPX.dtype).reshape(-1, F)
        dkernel_XF += jnp.dot(x_RPX.reshape(-1, X).T, dy, preferred_element_type=jnp.float32)
        return dkernel_XF, jnp.dot(dy, kernel_XF.T).reshape(x_RPX.shape)

    parts = tuple(_parted(x, P, F) for x in (x_RPX, dy_RF))
    dkernel_XF, dx = jax.lax.scan(part, jnp.zeros(kernel_XF.shape, jnp.float32), parts)
    return _joined_parts(dx, R), dkernel_XF.astype(kernel_XF.dtype), jnp.zeros_like(beyond_PF)


conv_max_over_time.defvjp(_largest_forward, _largest_backward)
