"""The building blocks of transformers: linear maps, norms, feed-forward, the loop over layers, and a table's lookup."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from contexture.models.config import Quantization, TransformerConfig
from contexture.models.layers.matmul import custom_gradient, matmul, quantized_matmul
from contexture.models.layers.remat import POLICIES, choose_remat, layers_per_iteration
from contexture.models.sharding import (
    as_rows,
    constrain,
    from_rows,
    is_unsharded,
    platform,
    sum_over_devices,
    token_shards,
)

Init: TypeAlias = nn.initializers.Initializer
Activation: TypeAlias = Callable[[jax.Array], jax.Array]


class Linear(nn.Module):
    """y = einsum(equation, x, kernel) + bias; the kernel's shape is read off the equation's letters.

    `Linear("BLD,DHK->BLHK", {"D": 64, "H": 4, "K": 16})`: kernel [64, 4, 16], bias [4, 16]. The contracted letters
    come last in x and first in the kernel.

    x and the kernel are multiplied in dtype. out_dtype is the dtype of the result and of the bias: heads give float32
    logits out of bfloat16 factors.
    """

    equation: str
    sizes: dict[str, int]
    kernel_init: Init
    dtype: DTypeLike = jnp.float32
    biases: bool = True
    bias_init: Init = nn.initializers.zeros
    out_dtype: DTypeLike | None = None
    """None: dtype."""
    quantization: Quantization = "none"
    """Whether the factors are rounded to 8 bits; the result is in dtype then."""

    def setup(self) -> None:
        (x_letters, kernel_letters), y_letters = (
            self.equation.split("->")[0].split(","),
            self.equation.split("->")[1],
        )
        # Letters that x and the kernel share are summed over; the others are the output's. Kernels keep their separate
        # dims (heads, width of a head), so that each can be sharded by its letter.
        shape = tuple(self.sizes[letter] for letter in kernel_letters)
        self.contracted = sum(letter in x_letters for letter in kernel_letters)
        self.out_shape = tuple(self.sizes[letter] for letter in kernel_letters if letter in y_letters)
        self.kernel = self.param("kernel", self.kernel_init, shape)
        self.bias = self.param("bias", self.bias_init, self.out_shape) if self.biases else None

    def matrix(self) -> jax.Array:
        """Returns the kernel in dtype as one matrix, [contracted dims, output dims]."""
        return self.kernel.astype(self.dtype).reshape(-1, math.prod(self.out_shape))

    def __call__(self, x: jax.Array) -> jax.Array:
        # A product of two matrices instead of an einsum: over more dims XLA transposes and copies the factors of the
        # kernel's gradient, which costs a CPU more than the product itself.
        kernel = self.matrix()
        return self.unflatten(self.product(self.rows(x), kernel), x.shape[: x.ndim - self.contracted])

    def rows(self, x: jax.Array) -> jax.Array:
        """Returns x in dtype as a matrix, [rows, contracted dims]."""
        x = x.astype(self.dtype)
        lead = x.ndim - self.contracted
        return (as_rows(x) if lead == 2 else x).reshape(-1, math.prod(x.shape[lead:]))

    def product(self, x_TD: jax.Array, kernel_DF: jax.Array) -> jax.Array:
        """Returns x · kernel, as `quantization` says."""
        if self.quantization == "none":
            return matmul(x_TD, kernel_DF, self.out_dtype)
        return quantized_matmul(x_TD, kernel_DF, self.quantization)

    def unflatten(self, y: jax.Array, lead: tuple[int, ...]) -> jax.Array:
        """Returns the product [rows, columns] as [*lead, *out_shape], with the bias added."""
        # While it is a matrix: its gradient is a sum over rows. Over B and L apart XLA for GPUs sums in two passes, and
        # copies the whole gradient into another order before it.
        if self.bias is not None:
            y = y + self.bias.astype(y.dtype).reshape(1, -1)
        if len(lead) == 2:
            y = from_rows(y, *lead)
        return y.reshape(*lead, *self.out_shape)


def fused_projections(linears: Sequence[Linear], x: jax.Array) -> tuple[jax.Array, ...]:
    """Returns linear(x) for each of several maps of equal shapes, computed as one product.

    x is then read once, and one wide product is faster than three narrow ones. The parameters stay apart, as in the
    published checkpoints, and their kernels are joined on the fly.
    """
    # With the heads sharded, joining kernels along the columns would move parameters between devices. A GPU's product
    # adds the bias as it writes, and its attention reads whole arrays: columns of a joined one would be copied first.
    if not is_unsharded("H") or platform() == "gpu":
        return tuple(linear(x) for linear in linears)
    first = linears[0]
    kernels = [linear.matrix() for linear in linears]
    lead = x.shape[: x.ndim - first.contracted]
    y = first.product(first.rows(x), jnp.concatenate(kernels, 1))
    columns = split_columns(y, len(linears))
    return tuple(linear.unflatten(part, lead) for linear, part in zip(linears, columns, strict=True))


@custom_gradient(nondiff_argnums=(1,))
def split_columns(y_TF: jax.Array, parts: int) -> tuple[jax.Array, ...]:
    """Returns the columns in equal parts. The gradient concatenates; JAX's own pads each part with zeros and adds."""
    return tuple(jnp.split(y_TF, parts, 1))


split_columns.defvjp(
    lambda y, parts: (split_columns(y, parts), None), lambda parts, saved, dy: (jnp.concatenate(dy, 1),)
)


@jax.custom_vjp
def normalise(x: jax.Array, eps: float) -> jax.Array:
    """(x - mean)/sqrt(var + eps) over the last dim. The backward pass keeps the result and the scale, not x."""
    return _normalise_forward(x, eps)[0]


def _normalise_forward(x: jax.Array, eps: float) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    mean = x.mean(-1, keepdims=True)
    # Two passes, mean((x - mean)²). The one-pass mean(x²) - mean² cancels where the mean is large.
    scale = jax.lax.rsqrt(jnp.square(x - mean).mean(-1, keepdims=True) + eps)
    # XLA for GPUs would form both again wherever the backward pass reads them, and write what it can then not sum over
    # rows in the same kernel.
    if platform() == "gpu":
        mean, scale = jax.lax.optimization_barrier((mean, scale))
    y = (x - mean) * scale
    return y, (y, scale)


def _normalise_backward(saved: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, None]:
    # dx = scale · (dy - mean(dy) - y · mean(dy · y)): the parts of dy along 1 and along y are those that norm removes.
    y, scale = saved
    return scale * (dy - dy.mean(-1, keepdims=True) - y * (dy * y).mean(-1, keepdims=True)), None


normalise.defvjp(_normalise_forward, _normalise_backward)


def logits_linear(equation: str, sizes: dict[str, int], kernel_init: Init, dtype: DTypeLike, name: str) -> Linear:
    """Returns the linear map of a head: float32 logits, whatever dtype its factors are multiplied in."""
    return Linear(equation, sizes, kernel_init, dtype, out_dtype=jnp.float32, name=name)


class Norm(nn.Module):
    """Layer norm over the last dim (Ba et al. 2016): (x - mean)/sqrt(var + eps)·scale + bias, all in float32."""

    eps: float
    dtype: DTypeLike = jnp.float32
    biases: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (x.shape[-1],)
        # Always in float32: mean and variance over D terms would lose too many bits in bfloat16.
        scale = self.param("scale", nn.initializers.ones, shape)
        bias = self.param("bias", nn.initializers.zeros, shape) if self.biases else None
        # As a matrix, so that the gradients of scale and bias are sums over rows (`Linear.unflatten`).
        rows = as_rows(x) if x.ndim == 3 else x
        y_TD = normalise(rows.astype(jnp.float32).reshape(-1, x.shape[-1]), self.eps)
        # Scale and bias are float32 too; the result is rounded to dtype once, at the end.
        y_TD = y_TD * scale[None]
        y_TD = (y_TD if bias is None else y_TD + bias[None]).astype(self.dtype)
        return from_rows(y_TD, *x.shape[:2]) if x.ndim == 3 else y_TD.reshape(x.shape)


def _normal_cdf(x: jax.Array) -> jax.Array:
    """Φ(x) = ½(1 + erf(x/√2)), the normal distribution's, as the originals have it: erfc costs a GPU five times as
    much."""
    return 0.5 * (1.0 + jax.lax.erf(x * math.sqrt(0.5)))


def _gelu_erf_derivative(x: jax.Array) -> jax.Array:
    """Φ(x) + x·φ(x), with the normal distribution's Φ and φ."""
    return _normal_cdf(x) + x * jnp.exp(-0.5 * jnp.square(x)) / math.sqrt(2.0 * math.pi)


def _gelu_tanh_derivative(x: jax.Array) -> jax.Array:
    """½(1 + t) + ½x(1 - t²)(a + 3bx²), with t = tanh(ax + bx³)."""
    a, b = math.sqrt(2.0 / math.pi), 0.044715 * math.sqrt(2.0 / math.pi)
    t = jnp.tanh(x * (a + b * jnp.square(x)))
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 + t) * (1.0 - t) * (a + 3.0 * b * jnp.square(x))


def _with_derivative(function: Activation, derivative: Activation) -> Activation:
    """Returns function, computed in float32 at least, with a backward pass that keeps the input alone.

    Computing the derivative anew costs less than writing and reading the intermediate values that JAX would keep.
    """

    def forward(x: jax.Array) -> jax.Array:
        return function(x.astype(jnp.promote_types(x.dtype, jnp.float32))).astype(x.dtype)

    def backward(x: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
        return ((dy * derivative(x.astype(jnp.float32))).astype(x.dtype),)

    # The forward pass keeps x, in its own dtype.
    activation = jax.custom_vjp(forward)
    activation.defvjp(lambda x: (forward(x), x), backward)
    return activation


ACTIVATIONS: dict[str, Activation] = {
    # jax.nn.gelu's default is the approximation: both forms are named.
    "erf": _with_derivative(lambda x: x * _normal_cdf(x), _gelu_erf_derivative),
    "tanh": _with_derivative(lambda x: jax.nn.gelu(x, approximate=True), _gelu_tanh_derivative),
    "relu": jax.nn.relu,
}
"""Gelu (Hendrycks and Gimpel 2016), exact (erf) or by its tanh approximation, and relu."""


def activation_floats(config: TransformerConfig, size: dict[str, int]) -> float:
    """B·L·(N·(30D + 3HL) + 2V): about how many activations a training step on B sequences of L tokens holds at once.

    These are each layer's activations for the backward pass, the logits and the logits' gradient. 25 D-wide arrays a
    layer were measured at GPT's 4 layers of 128, two of them attention's; 30 leaves room.
    """
    # The alternatives of a choice (A) are sequences of their own.
    tokens, c = size["B"] * size.get("A", 1) * size["L"], config
    return tokens * (c.layers * (30.0 * c.hidden + 3.0 * c.heads * size["L"]) + 2.0 * c.vocab)


class FeedForward(nn.Module):
    """activation(x·W_in + b_in)·W_out + b_out: x_BLD → BLD.

    out_init initialises the second map; None: kernel_init, like the first.
    """

    sizes: dict[str, int]
    activation: str
    kernel_init: Init
    dtype: DTypeLike
    out_init: Init | None = None
    biases: bool = True
    quantization: Quantization = "none"

    @nn.compact
    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        linear = functools.partial(Linear, dtype=self.dtype, biases=self.biases, quantization=self.quantization)
        x_BLF = linear("BLD,DF->BLF", self.sizes, self.kernel_init, name="in")(x_BLD)
        x_BLF = ACTIVATIONS[self.activation](x_BLF)
        return linear("BLF,FD->BLD", self.sizes, self.out_init or self.kernel_init, name="out")(x_BLF)


def scan_layers(
    block: Callable[..., nn.Module],
    config: TransformerConfig,
    x_BLD: jax.Array,
    *shared: object,
    states: bool,
    initializing: bool,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Runs x_BLD through N layers of block, named `layers`. Call it inside a compact method.

    Layer n computes x = block(config)(x, n, *shared), with n an i32 array. Parameters are stacked on a leading N axis,
    whether the loop is scanned or unrolled, so that checkpoints do not depend on it.

    Args:
        block: makes a layer's module from the configuration.
        config: the model's configuration.
        x_BLD: the first layer's input.
        shared: further arguments of every layer.
        states: whether every layer's output is returned.
        initializing: whether parameters are made.

    Returns:
        The last layer's output and, when asked for states, every layer's.
    """

    # nn.scan wants a module whose call returns (carry, output): this wraps a block, which returns x alone.
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, layer: jax.Array, *shared: object) -> tuple[jax.Array, jax.Array | None]:
            inner = block(config, name="layer")
            # The block's parameters become this wrapper's own: their path is layers/attention, not
            # layers/layer/attention.
            nn.share_scope(self, inner)
            # The carry of a scan has one sharding: without a constraint the partitioner may choose a replicated one.
            x = constrain(inner(x, layer, *shared), "BLD")
            return x, (x if states else None)

    layers, remat = config.layers, config.remat
    turns = layers_per_iteration(config.unroll, layers, remat)
    # Without a loop nothing is recomputed: XLA would merge the second computation with the first.
    if remat == "auto":
        remat = "none" if turns == layers > 1 else choose_remat(x_BLD, layers)
    # Inside a scan XLA cannot merge the recomputation with the forward pass, so no barriers against CSE are needed.
    layer = nn.remat(Layer, prevent_cse=False, policy=POLICIES[remat]) if remat in POLICIES else Layer
    scanned = nn.scan(
        layer,
        variable_axes={"params": 0},
        split_rngs={"params": True},  # each layer its own random initial values
        in_axes=(0,) + (nn.broadcast,) * len(shared),  # pyright: ignore[reportArgumentType]
        length=layers,
        unroll=turns,
        # Flax would trace the layer once more, to learn what is the same in all layers: nothing here is. Initial values
        # are drawn by the keys of that second time, so that a seed gives the values that it always gave.
        check_constancy_invariants=initializing,
    )
    # The layers' numbers are scanned over along with their parameters.
    x_BLD, every_layer = scanned(name="layers")(x_BLD, jnp.arange(layers, dtype=jnp.int32), *shared)
    return x_BLD, () if every_layer is None else tuple(every_layer)


def lookup(table_VD: jax.Array, index_BL: jax.Array) -> jax.Array:
    """Returns table[index]. On a mesh each device adds up its own tokens' gradient before the sum over devices."""
    if token_shards(*index_BL.shape) == 1:
        return table_VD[index_BL]
    return _lookup(table_VD.shape[0], table_VD, index_BL)


@custom_gradient(nondiff_argnums=(0,))
def _lookup(words: int, table_VD: jax.Array, index_BL: jax.Array) -> jax.Array:
    return table_VD[index_BL]


def _lookup_backward(words: int, index_BL: jax.Array, dx_BLD: jax.Array) -> tuple[jax.Array, None]:
    devices, D = token_shards(*index_BL.shape), dx_BLD.shape[-1]

    def add(index_T: jax.Array, dx_TD: jax.Array) -> jax.Array:
        return jnp.zeros((words, D), dx_TD.dtype).at[index_T].add(dx_TD)

    # Each device adds its own tokens' rows into a table of its own; only these sums cross the mesh.
    dtable_ZVD = jax.vmap(add)(as_rows(index_BL).reshape(devices, -1), as_rows(dx_BLD).reshape(devices, -1, D))
    return sum_over_devices(constrain(dtable_ZVD, "ZV_"), "VD"), None


_lookup.defvjp(lambda words, table_VD, index_BL: (table_VD[index_BL], index_BL), _lookup_backward)
