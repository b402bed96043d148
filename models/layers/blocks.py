"""The parts that transformers are made of: linear maps, norms, feed-forward, and the stack of layers."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from contexture.models.config import Transformer
from contexture.models.sharding import constrain, whole

Init = jax.nn.initializers.Initializer


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x_TD: jax.Array, kernel_DF: jax.Array, out_dtype: Any = None) -> jax.Array:
    """x · kernel, accumulated and given in out_dtype (None: theirs); the gradients are in theirs. On a CPU the gradient
    of the kernel has the narrower of its two factors on the left: that is the one which XLA copies into another
    order."""
    return jnp.matmul(x_TD, kernel_DF, preferred_element_type=out_dtype)


def _product_forward(
    x_TD: jax.Array, kernel_DF: jax.Array, out_dtype: Any
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return jnp.matmul(x_TD, kernel_DF, preferred_element_type=out_dtype), (x_TD, kernel_DF)


def _product_backward(
    out_dtype: Any, saved: tuple[jax.Array, jax.Array], dy_TF: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x_TD, kernel_DF = saved
    dy_TF = dy_TF.astype(x_TD.dtype)

    def turned(x_TD: jax.Array, dy_TF: jax.Array) -> jax.Array:
        return jax.lax.optimization_barrier(dy_TF.T @ x_TD).T  # the barrier keeps XLA from turning it back

    def straight(x_TD: jax.Array, dy_TF: jax.Array) -> jax.Array:
        return x_TD.T @ dy_TF

    on_cpu = turned if x_TD.shape[1] > dy_TF.shape[1] else straight
    return dy_TF @ kernel_DF.T, jax.lax.platform_dependent(x_TD, dy_TF, cpu=on_cpu, default=straight)


matmul.defvjp(_product_forward, _product_backward)


class Linear(nn.Module):
    """y = einsum(equation, x, kernel) + bias; the kernel's shape is read off the equation's letters.

    `Linear("BLD,DHK->BLHK", {"D": 64, "H": 4, "K": 16})`: kernel [64, 4, 16], bias [4, 16]. The letters that both have
    stand last in x and first in the kernel. It is computed as a product of two matrices: over more dims XLA would
    transpose and copy what the kernel's gradient is made of, which costs a CPU more than the product.

    x and the kernel are multiplied in dtype; out_dtype is that of the result and of the bias. Heads give float32 logits
    out of bfloat16 factors.
    """

    equation: str
    sizes: dict[str, int]
    kernel_init: Init
    dtype: Any = jnp.float32
    biases: bool = True
    bias_init: Init = nn.initializers.zeros
    out_dtype: Any = None
    """None: dtype."""

    def setup(self) -> None:
        (given, letters), result = self.equation.split("->")[0].split(","), self.equation.split("->")[1]
        shape = tuple(self.sizes[c] for c in letters)
        self.inward = sum(c in given for c in letters)
        self.outward = tuple(self.sizes[c] for c in letters if c in result)
        self.kernel = self.param("kernel", self.kernel_init, shape)
        self.bias = self.param("bias", self.bias_init, self.outward) if self.biases else None

    def matrix(self) -> jax.Array:
        """The kernel as it is multiplied with: what goes in by what comes out."""
        return self.kernel.astype(self.dtype).reshape(-1, math.prod(self.outward))

    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.matrix()
        y: Any = matmul(x.astype(self.dtype).reshape(-1, kernel.shape[0]), kernel, self.out_dtype)
        return self.shaped(y, x.shape[: x.ndim - self.inward])

    def shaped(self, y: jax.Array, lead: tuple[int, ...]) -> jax.Array:
        """What the product gave, with its dims and the bias."""
        y = y.reshape(*lead, *self.outward)
        if self.bias is None:
            return y
        return y + jnp.expand_dims(self.bias.astype(y.dtype), tuple(range(y.ndim - self.bias.ndim)))


def fused_projections(linears: Sequence[Linear], x: jax.Array) -> tuple[jax.Array, ...]:
    """What several maps of the same dims make of x. One product over their kernels side by side is faster than one for
    each; where their heads are cut over devices, that would move parameters."""
    if not whole("H"):
        return tuple(linear(x) for linear in linears)
    first = linears[0]
    kernels = [linear.matrix() for linear in linears]
    lead = x.shape[: x.ndim - first.inward]
    y = matmul(x.astype(first.dtype).reshape(-1, kernels[0].shape[0]), jnp.concatenate(kernels, 1))
    return tuple(linear.shaped(part, lead) for linear, part in zip(linears, split(y, len(linears)), strict=True))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def split(y_TF: jax.Array, parts: int) -> tuple[jax.Array, ...]:
    """Columns in equal parts. The gradient puts them side by side; XLA's own adds up what it fills with zeros."""
    return tuple(jnp.split(y_TF, parts, 1))


split.defvjp(lambda y, parts: (split(y, parts), None), lambda parts, saved, dy: (jnp.concatenate(dy, 1),))


@jax.custom_vjp
def normed(x: jax.Array, eps: float) -> jax.Array:
    """(x - mean)/sqrt(var + eps) over the last dim. Its gradient is made of the result alone."""
    return _normed(x, eps)[0]


def _normed(x: jax.Array, eps: float) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    x = x - x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + eps)
    return x * scale, (x * scale, scale)


def _normed_backward(saved: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, None]:
    y, scale = saved
    return scale * (dy - dy.mean(-1, keepdims=True) - y * (dy * y).mean(-1, keepdims=True)), None


normed.defvjp(_normed, _normed_backward)


def logits_linear(equation: str, sizes: dict[str, int], kernel_init: Init, dtype: Any, name: str) -> Linear:
    """The linear map of a head: float32 logits, whatever dtype its factors are multiplied in."""
    return Linear(equation, sizes, kernel_init, dtype, out_dtype=jnp.float32, name=name)


class Norm(nn.Module):
    """Layer norm over the last dim (Ba et al. 2016): (x - mean)/sqrt(var + eps)·scale + bias, all in float32."""

    eps: float
    dtype: Any = jnp.float32
    biases: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (x.shape[-1],)
        scale = self.param("scale", nn.initializers.ones, shape)
        bias = self.param("bias", nn.initializers.zeros, shape) if self.biases else None
        y = normed(x.astype(jnp.float32), self.eps)
        lead = tuple(range(x.ndim - 1))
        y = y * jnp.expand_dims(scale, lead)
        return (y if bias is None else y + jnp.expand_dims(bias, lead)).astype(self.dtype)


def _slope_erf(x: jax.Array) -> jax.Array:
    return 0.5 * jax.lax.erfc(x * -math.sqrt(0.5)) + x * jnp.exp(-0.5 * jnp.square(x)) / math.sqrt(2.0 * math.pi)


def _slope_tanh(x: jax.Array) -> jax.Array:
    a, b = math.sqrt(2.0 / math.pi), 0.044715 * math.sqrt(2.0 / math.pi)
    t = jnp.tanh(x * (a + b * jnp.square(x)))
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 + t) * (1.0 - t) * (a + 3.0 * b * jnp.square(x))


def _with_slope(
    value: Callable[[jax.Array], jax.Array], slope: Callable[[jax.Array], jax.Array]
) -> Callable[[jax.Array], jax.Array]:
    """value, of which the backward pass keeps the input alone: to make the slope anew costs less than to write and read
    what both have in common."""

    def backward(x: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
        return ((dy * slope(x.astype(jnp.float32))).astype(x.dtype),)

    found = jax.custom_vjp(value)
    found.defvjp(lambda x: (value(x), x), backward)
    return found


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "erf": _with_slope(lambda x: jax.nn.gelu(x, approximate=False), _slope_erf),
    "tanh": _with_slope(lambda x: jax.nn.gelu(x, approximate=True), _slope_tanh),
    "relu": jax.nn.relu,
}
"""Gelu (Hendrycks and Gimpel 2016), exactly and by tanh, and relu."""


def activation_floats(config: Transformer, size: dict[str, int]) -> float:
    """About how many numbers a training step on B lines of L tokens works on at once: of each token what the layers
    keep for the backward pass (25 times their width was measured at GPT's 4 layers of 128, attention's 2 among them),
    the logits and their gradient."""
    tokens, c = size["B"] * size.get("A", 1) * size["L"], config
    return tokens * (c.layers * (30.0 * c.hidden + 3.0 * c.heads * size["L"]) + 2.0 * c.vocab)


class FeedForward(nn.Module):
    """Two linear maps with an activation between: x_BLD → BLD. out_init: of the second, if not like the first."""

    sizes: dict[str, int]
    activation: str
    kernel_init: Init
    dtype: Any
    out_init: Init | None = None
    biases: bool = True

    @nn.compact
    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        out_init = self.out_init or self.kernel_init
        x_BLF = Linear("BLD,DF->BLF", self.sizes, self.kernel_init, self.dtype, self.biases, name="in")(x_BLD)
        x_BLF = ACTIVATIONS[self.activation](x_BLF)
        return Linear("BLF,FD->BLD", self.sizes, out_init, self.dtype, self.biases, name="out")(x_BLF)


_POLICIES = {"dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable, "full": None}


def scan_layers(
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
