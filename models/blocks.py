"""The parts that transformers are made of: linear maps, norms, feed-forward, and the stack of layers."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from models.shapes import constrain

Init = jax.nn.initializers.Initializer


class Linear(nn.Module):
    """y = einsum(equation, x, kernel) + bias; the kernel's shape is read off the equation's letters.

    `Linear("BLD,DHK->BLHK", {"D": 64, "H": 4, "K": 16})`: kernel [64, 4, 16], bias [4, 16].
    """

    equation: str
    sizes: dict[str, int]
    kernel_init: Init
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        operands, result = self.equation.split("->")
        letters = operands.split(",")[1]
        biased = "".join(c for c in result if c in letters)
        kernel = self.param("kernel", self.kernel_init, tuple(self.sizes[c] for c in letters))
        bias = self.param("bias", nn.initializers.zeros, tuple(self.sizes[c] for c in biased))
        y = jnp.einsum(self.equation, x.astype(self.dtype), kernel.astype(self.dtype))
        return y + jnp.expand_dims(bias.astype(self.dtype), tuple(range(y.ndim - bias.ndim)))


class Norm(nn.Module):
    """Layer norm over the last dim (Ba et al. 2016): (x - mean)/sqrt(var + eps)·scale + bias, all in float32."""

    eps: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (x.shape[-1],)
        scale = self.param("scale", nn.initializers.ones, shape)
        bias = self.param("bias", nn.initializers.zeros, shape)
        x = x.astype(jnp.float32)
        x = x - x.mean(-1, keepdims=True)
        y = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + self.eps)
        lead = tuple(range(x.ndim - 1))
        return (y * jnp.expand_dims(scale, lead) + jnp.expand_dims(bias, lead)).astype(self.dtype)


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "erf": lambda x: jax.nn.gelu(x, approximate=False),
    "tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
}


class FeedForward(nn.Module):
    """Two linear maps with an activation between: x_BLD → BLD."""

    sizes: dict[str, int]
    activation: str
    kernel_init: Init
    dtype: Any

    @nn.compact
    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        x_BLF = Linear("BLD,DF->BLF", self.sizes, self.kernel_init, self.dtype, name="in")(x_BLD)
        x_BLF = ACTIVATIONS[self.activation](x_BLF)
        return Linear("BLF,FD->BLD", self.sizes, self.kernel_init, self.dtype, name="out")(x_BLF)


_POLICIES = {"dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable, "full": None}


def stack(
    block: type[nn.Module],
    arguments: tuple[Any, ...],
    x_BLD: jax.Array,
    *shared: Any,
    layers: int,
    unroll: int = 0,
    remat: str = "none",
    states: bool = False,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """x_BLD through N layers of block, named `layers`; call it inside a compact method.

    A block is called as block(*arguments)(x_BLD, layer, *shared) → x_BLD, layer being its number (i32). Parameters
    are stacked on a leading N axis, whether the loop is scanned (unroll=1), partly or wholly unrolled (0).
    Returns the last layer's output and, when asked for states, every layer's.
    """

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, layer: jax.Array, *shared: Any) -> tuple[jax.Array, jax.Array | None]:
            inner = block(*arguments, name="layer")
            nn.share_scope(self, inner)
            x = constrain(inner(x, layer, *shared), "BLD")
            return x, (x if states else None)

    layer = Layer if remat == "none" else nn.remat(Layer, prevent_cse=False, policy=_POLICIES[remat])
    scanned = nn.scan(
        layer,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        in_axes=(0,) + (nn.broadcast,) * len(shared),  # pyright: ignore[reportArgumentType]
        length=layers,
        unroll=unroll or layers,
    )
    x_BLD, every = scanned(name="layers")(x_BLD, jnp.arange(layers, dtype=jnp.int32), *shared)
    return x_BLD, () if every is None else tuple(every)
