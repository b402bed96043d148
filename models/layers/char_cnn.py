"""Word vectors from characters: convolutions, highway layers and a projection, as in ELMo's biLM (bilm-tf; Kim et al.
2016; Jozefowicz et al. 2016).

    y_f  = activation(max over windows p of Σ_w kernel_f[w]·char[p + w] + bias_f)      for each filter f
    word = projection(highway(…highway(y)))
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from contexture.models.layers.blocks import Init, Linear
from contexture.models.layers.matmul import custom_gradient
from contexture.models.sharding import batch_devices, batch_shards, constrain, platform

CHARACTERS = 261
"""256 bytes, begin and end of a sentence, begin and end of a word, padding."""
PADDING = 261
"""The id of padding: the original's 260, plus one because 0 means no word."""
SHORT_LENGTHS = (14, 18, 22, 28)
"""Numbers of positions that the filters may run over instead of all, where every word of the batch is shorter."""
MAX_CONV_FLOATS = 1 << 21
"""Convolution outputs that a CPU holds at once (8 MiB of float32)."""
_ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh}
Residuals: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]


class Highway(nn.Module):
    """y = g·relu(x·Wt + bt) + (1 - g)·x with g = sigmoid(x·Wc + bc) (Srivastava et al. 2015): x_RF → RF.

    The original calls the gate g `carry`, though it gates the transformed part. Its bias starts at -2, so that a new
    layer mostly passes x on.
    """

    sizes: dict[str, int]
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x_RF: jax.Array) -> jax.Array:
        init = nn.initializers.normal(1.0 / math.sqrt(self.sizes["F"]))
        size = {**self.sizes, "_": self.sizes["F"]}
        carry_init = nn.initializers.constant(-2.0)
        gate = Linear("RF,F_->R_", size, init, self.dtype, bias_init=carry_init, name="carry")(x_RF)
        # g + (1 - g) = 1: each feature is a blend of x and its transform.
        gate = jax.nn.sigmoid(gate)
        transformed = jax.nn.relu(Linear("RF,F_->R_", size, init, self.dtype, name="transform")(x_RF))
        return gate * transformed + (1.0 - gate) * x_RF


class CharCnn(nn.Module):
    """Character ids i32 RW (0: nothing, else the original's id + 1) → word vectors RJ, whole on every device.

    Each filter's maximum is taken over all its windows that fit into W characters, padding included, as in the
    original. The devices that share a batch share the R words too.
    """

    sizes: dict[str, int]
    filters: Sequence[tuple[int, int]]
    activation: str
    highway: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, types_RW: jax.Array) -> jax.Array:
        E, F, J = (self.sizes[letter] for letter in "EFJ")
        R, W = types_RW.shape
        # Empty rows make R a multiple of the number of devices; they are cut off at the end.
        types_RW = constrain(jnp.pad(types_RW, [(0, -R % batch_devices()), (0, 0)]), "RW")
        # Row 0 of the table, for id 0, is zero and no parameter: the published table begins at id 1.
        table__E = self.param("characters", _centred_uniform(1.0), (CHARACTERS, E)).astype(self.dtype)
        table__E = jnp.concatenate([jnp.zeros_like(table__E[:1]), table__E])
        # The filters of all widths run as one matrix product: each kernel is padded with zeros to the widest window.
        filters = [
            FilterBank(width, count, E, self.activation, self.dtype, name=f"filters_{number}")()
            for number, (width, count) in enumerate(self.filters)
        ]
        widest = max(width for width, _ in self.filters)
        kernel_XF, bias_F = _fuse_filters(filters, widest)
        # Zero-padding to one width lets narrow filters see windows past the end of the word, which the original's VALID
        # convolution has not: -inf there keeps them out of the maximum.
        width_F = np.concatenate([np.full(count, width) for width, count in self.filters])
        invalid_WF = jnp.asarray(np.where(np.arange(W)[:, None] + width_F > W, -np.inf, 0.0), jnp.float32)

        x_RWE = jnp.pad(_look_up(table__E, types_RW), [(0, 0), (0, widest - 1), (0, 0)])

        def conv_over(length: int) -> jax.Array:
            """The filters' maxima over windows that start at the first `length` positions: float32 RF."""
            # im2col: the characters of each window side by side, X = widest · E.
            windows = [x_RWE[:, n : n + length] for n in range(widest)]
            return conv_max_over_time(jnp.concatenate(windows, -1), kernel_XF, invalid_WF[:length])

        # Most batches have no word of 50 bytes. Which length suffices depends on the data, so each is compiled and a
        # switch chooses one at run time.
        lengths = _conv_lengths(W, widest)
        branches = [functools.partial(conv_over, length) for length in lengths]
        x_RF = jax.lax.switch(_first_sufficient(lengths, types_RW), branches).astype(self.dtype)
        # After the maximum instead of before it: bias and activation are monotonic, so the maximum is the same, and
        # they are computed once a word instead of once a window.
        x_RF = _ACTIVATIONS[self.activation](x_RF + bias_F[None])
        for number in range(self.highway):
            x_RF = Highway(self.sizes, self.dtype, name=f"highway_{number}")(x_RF)
        # As in the original, there is no projection where the filters are as many as the projection is wide.
        if F != J:
            init = nn.initializers.normal(1.0 / math.sqrt(F))
            x_RF = Linear("RF,FJ->RJ", self.sizes, init, self.dtype, name="projection")(x_RF)
        # Whole on every device: any sequence may look up any word.
        return constrain(x_RF, "__")[:R]


@custom_gradient()
def _look_up(table__E: jax.Array, types_RW: jax.Array) -> jax.Array:
    """Returns table[types], RWE. The gradient is a product with the characters one-hot, but for CPUs: accelerators add
    to a row of the table one by one, and all words share its few rows."""
    return table__E[types_RW]


def _look_up_backward(saved: tuple[jax.Array, jax.Array], dx_RWE: jax.Array) -> tuple[jax.Array, None]:
    table__E, types_RW = saved
    if platform() == "cpu":
        return jnp.zeros_like(table__E).at[types_RW].add(dx_RWE), None
    one_hot_RW_ = jax.nn.one_hot(types_RW, table__E.shape[0], dtype=dx_RWE.dtype)
    dtable__E = jnp.einsum("RWC,RWE->CE", one_hot_RW_, dx_RWE, preferred_element_type=jnp.float32)
    return dtable__E.astype(table__E.dtype), None


_look_up.defvjp(lambda table, types: (table[types], (table, types)), _look_up_backward)


def _centred_uniform(limit: float) -> Init:
    """Returns an initialiser that draws from [-limit, limit)."""
    uniform = nn.initializers.uniform(2.0 * limit)
    return lambda *arguments: uniform(*arguments) - limit


def _conv_lengths(W: int, widest: int) -> tuple[int, ...]:
    """Returns the numbers of window positions that the convolution is compiled for: short ones, then all W.

    A short length P must leave room for one whole window after it, P + widest ≤ W, so that all filters' windows at the
    first P positions fit into W.
    """
    return (*(length for length in SHORT_LENGTHS if length + widest <= W), W)


def _first_sufficient(lengths: Sequence[int], types_RW: jax.Array) -> jax.Array | int:
    """Returns the number of the first length that gives the same maxima as all W positions.

    Windows that start past the longest word see nothing but padding. They are all alike, so one of them is enough: a
    length suffices when it is greater than the longest word, its marks counted.
    """
    if len(lengths) == 1:
        return 0
    # One row of flags for all words: the positions where any word has a byte or a mark.
    occupied_W = ((types_RW > 0) & (types_RW < PADDING)).any(0)
    longest = (jnp.arange(1, types_RW.shape[1] + 1) * occupied_W).max()
    return (longest >= jnp.array(lengths[:-1], jnp.int32)).sum()


class FilterBank(nn.Module):
    """The filters of one width: → (kernel [width, E, count], bias [count])."""

    width: int
    count: int
    char_width: int
    activation: str
    dtype: DTypeLike

    @nn.compact
    def __call__(self) -> tuple[jax.Array, jax.Array]:
        # bilm-tf's: uniform for relu filters, normal with 1/sqrt(fan-in) for tanh.
        init = {
            "relu": _centred_uniform(0.05),
            "tanh": nn.initializers.normal(1.0 / math.sqrt(self.width * self.char_width)),
        }[self.activation]
        kernel = self.param("kernel", init, (self.width, self.char_width, self.count))
        bias = self.param("bias", nn.initializers.zeros, (self.count,))
        return kernel.astype(self.dtype), bias.astype(self.dtype)


def _fuse_filters(filters: Sequence[tuple[jax.Array, jax.Array]], widest: int) -> tuple[jax.Array, jax.Array]:
    """Returns the filters of all widths as one matrix [widest·E, F], zero where a filter does not reach, and their
    biases F."""
    kernels = [jnp.pad(kernel, [(0, widest - kernel.shape[0]), (0, 0), (0, 0)]) for kernel, _ in filters]
    # The zeros cost 16 % more multiplications with the published filters, for one large product instead of seven.
    kernel = jnp.concatenate(kernels, -1)
    return kernel.reshape(-1, kernel.shape[-1]), jnp.concatenate([bias for _, bias in filters])


@jax.custom_vjp
def conv_max_over_time(x_RPX: jax.Array, kernel_XF: jax.Array, invalid_PF: jax.Array) -> jax.Array:
    """max over positions P of (x · kernel + invalid): float32 RF, a chunk of words at a time.

    The outputs at all positions are P times what the maximum keeps. So neither pass holds them for all words: the
    forward pass goes chunk by chunk, and the backward pass computes each chunk again.
    """
    return _map_chunks(lambda x_RPX: _conv(x_RPX, kernel_XF, invalid_PF).max(1), x_RPX, kernel_XF.shape[1])


def _conv(x_RPX: jax.Array, kernel_XF: jax.Array, invalid_PF: jax.Array) -> jax.Array:
    R, P, X = x_RPX.shape
    # One product over all windows of all words, summed in float32.
    y = jnp.dot(x_RPX.reshape(-1, X), kernel_XF, preferred_element_type=jnp.float32)
    return y.reshape(R, P, -1) + invalid_PF[None]


def chunk_sizes(rows: int, max_rows: int) -> tuple[int, int]:
    """Returns (chunks, rows of each): `rows` in chunks of about equal size, of at most max_rows rows.

    Chunks of equal size waste at most one row each; filling chunks to the limit could waste almost a whole one.
    """
    chunks = -(-rows // max_rows)
    return chunks, -(-rows // chunks)


def _split_chunks(x: jax.Array, positions: int, width: int) -> jax.Array:
    """Splits rows into chunks that are computed one after the other: [R, …] → [chunks, rows, …].

    Every device has its share of each chunk, and pads its own rows, so that no row moves to another device.
    """
    devices = batch_shards(x.shape[0])
    rows = x.shape[0] // devices
    # An accelerator has the memory for larger chunks, and needs them to be busy.
    limit = MAX_CONV_FLOATS if platform() == "cpu" else 16 * MAX_CONV_FLOATS
    chunks, size = chunk_sizes(rows, max(limit // (positions * width), 1))
    # [R] → [devices, R/devices] → [devices, chunks, size] → [chunks, devices, size] → [chunks, devices · size].
    x = x.reshape(devices, rows, *x.shape[1:])
    x = jnp.pad(x, [(0, 0), (0, chunks * size - rows)] + [(0, 0)] * (x.ndim - 2))
    x = jnp.moveaxis(x.reshape(devices, chunks, size, *x.shape[2:]), 1, 0)
    return x.reshape(chunks, devices * size, *x.shape[3:])


def _join_chunks(x: jax.Array, rows: int) -> jax.Array:
    """Undoes _split_chunks: [chunks, rows, …] → [R, …]."""
    chunks, devices = x.shape[0], batch_shards(rows)
    x = jnp.moveaxis(x.reshape(chunks, devices, -1, *x.shape[2:]), 0, 1)
    x = x.reshape(devices, -1, *x.shape[3:])[:, : rows // devices]
    return x.reshape(rows, *x.shape[2:])


def _map_chunks(function: Callable[[jax.Array], jax.Array], x_RPX: jax.Array, width: int) -> jax.Array:
    return _join_chunks(jax.lax.map(function, _split_chunks(x_RPX, x_RPX.shape[1], width)), x_RPX.shape[0])


def _conv_max_forward(x_RPX: jax.Array, kernel_XF: jax.Array, invalid_PF: jax.Array) -> tuple[jax.Array, Residuals]:
    return conv_max_over_time(x_RPX, kernel_XF, invalid_PF), (x_RPX, kernel_XF, invalid_PF)


def _conv_max_backward(saved: Residuals, dy_RF: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    x_RPX, kernel_XF, invalid_PF = saved
    (R, P, X), F = x_RPX.shape, kernel_XF.shape[1]

    def backward_chunk(dkernel_XF: jax.Array, chunk: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x_RPX, dy_RF = chunk
        y_RPF = _conv(x_RPX, kernel_XF, invalid_PF)
        # Positions that tie for the maximum share its gradient equally.
        hit_RPF = y_RPF == y_RPF.max(1, keepdims=True)
        share_RF = dy_RF / hit_RPF.sum(1)
        dy = jnp.where(hit_RPF, share_RF[:, None], 0.0).astype(x_RPX.dtype).reshape(-1, F)
        # XLA for GPUs fuses this into the products below, and finds no tiles for rows that are words and positions.
        dy = jax.lax.optimization_barrier(dy) if platform() == "gpu" else dy
        # Summed over the chunks in float32, whatever the dtype of the factors.
        dkernel_XF += jnp.dot(x_RPX.reshape(-1, X).T, dy, preferred_element_type=jnp.float32)
        return dkernel_XF, jnp.dot(dy, kernel_XF.T).reshape(x_RPX.shape)

    chunks = _split_chunks(x_RPX, P, F), _split_chunks(dy_RF, P, F)
    dkernel_XF, dx = jax.lax.scan(backward_chunk, jnp.zeros(kernel_XF.shape, jnp.float32), chunks)
    return _join_chunks(dx, R), dkernel_XF.astype(kernel_XF.dtype), jnp.zeros_like(invalid_PF)


conv_max_over_time.defvjp(_conv_max_forward, _conv_max_backward)
