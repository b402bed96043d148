"""The softmax over a large vocabulary and its loss, in chunks, so that the logits of a whole batch never exist at once.

A batch of 64 sequences of 1024 tokens has 3.3 billion float32 logits over GPT-2's vocabulary: 13 GB, and as much again
for their gradient. A chunk is a range of positions of every sequence.
"""

import functools
from typing import TypeAlias

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from contexture.models.encoding import Encoding
from contexture.models.heads.linear_head import missing_words, softmax_table
from contexture.models.layers.blocks import Init
from contexture.models.layers.dropout import DropoutKey
from contexture.models.sharding import (
    as_rows,
    constrain,
    context_shards,
    device_memory,
    sum_over_copies,
    sum_within_copies,
    tensor_devices,
    token_shards,
)

MAX_LOGITS = 1 << 24
"""Float32 logits that a CPU, or a device of unknown memory, holds at once (64 MiB), unless one position of every
sequence has more."""
_LOGITS_PER_GIB = 1 << 21
"""On other devices, for each GiB of their memory: 8 MiB. A chunk reads and writes the table's gradient once."""
TIE = 1e-5
"""Logits and scores that differ by no more are equal. The rounding of float32 scores of a usual size, which depends on
what else is in a batch and in a row, is smaller: neither answers nor hits depend on it."""
Tables: TypeAlias = tuple[jax.Array, jax.Array | None]
"""(table, bias or None), or their gradients."""
Losses: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]
"""(total, loss_BL, hit_BL)."""
Gradients: TypeAlias = tuple[jax.Array, jax.Array, jax.Array | None]
"""Of the total, for (x, table, bias or None)."""
ChunkOutputs: TypeAlias = tuple[jax.Array, jax.Array, jax.Array | None]
"""(loss_BL, hit_BL, gradient to x or None) of a chunk."""


@flax.struct.dataclass
class TokenLosses:
    """The losses of a batch's next tokens.

    Args:
        total: Σ weight · loss, the only one with a gradient.
        loss_BL: -log p of each next token, in nats.
        hit_BL: 1 where the next token's logit is greater than all others by more than TIE, else 0 (as in
            train.objectives.cross_entropy).
    """

    total: jax.Array
    loss_BL: jax.Array
    hit_BL: jax.Array


def next_token_loss(
    x_BLD: jax.Array, table_VD: jax.Array, next_BL: jax.Array, weights_BL: jax.Array, bias_V: jax.Array | None = None
) -> TokenLosses:
    """-log softmax(x · table + bias)[next], and its weighted sum; bias_V in float32. Products are in x's dtype.

    The gradient of the total is formed in the forward pass, chunk by chunk, while a chunk's logits exist anyway. The
    backward pass only scales it. Nothing of the size of the logits is kept between the two.
    """
    # In float32 the table's gradient is a plain sum over copies, which XLA joins with that of a tied table's lookup.
    return TokenLosses(*_loss(x_BLD, table_VD.astype(jnp.float32), bias_V, next_BL, weights_BL))


@jax.custom_vjp
def _loss(
    x_BLD: jax.Array, table_VD: jax.Array, bias_V: jax.Array | None, next_BL: jax.Array, weights_BL: jax.Array
) -> Losses:
    return _chunked_loss(x_BLD, table_VD, bias_V, next_BL, weights_BL, gradient=False)[0]


def _loss_forward(
    x_BLD: jax.Array, table_VD: jax.Array, bias_V: jax.Array | None, next_BL: jax.Array, weights_BL: jax.Array
) -> tuple[Losses, Gradients | None]:
    return _chunked_loss(x_BLD, table_VD, bias_V, next_BL, weights_BL, gradient=True)


def _loss_backward(gradients: Gradients, cotangents: Losses) -> tuple[jax.Array | None, ...]:
    # The total is a scalar, so the chain rule is one factor. loss_BL and hit_BL are for reports and have no gradient.
    dx_BLD, *dtables = jax.tree.map(lambda x: (x.astype(jnp.float32) * cotangents[0]).astype(x.dtype), gradients)
    # The sum over the copies of the model comes last, where the gradient of a tied table's lookup is summed too: what
    # crosses the copies is then their sum.
    return dx_BLD, *jax.tree.map(lambda x: sum_over_copies(x, "VD"[: x.ndim - 1]), dtables), None, None


_loss.defvjp(_loss_forward, _loss_backward)


def _chunked_loss(
    x_BLD: jax.Array,
    table_VD: jax.Array,
    bias_V: jax.Array | None,
    next_BL: jax.Array,
    weights_BL: jax.Array,
    *,
    gradient: bool,
) -> tuple[Losses, Gradients | None]:
    """Returns the losses, and the gradients of their total or None."""
    B, L, D = x_BLD.shape
    V, devices = table_VD.shape[0], token_shards(B, L)
    # All chunks read the table: it is gathered once, before them.
    table_WD, bias_W = _padded_vocabulary(table_VD.astype(x_BLD.dtype), bias_V)
    # With W ≥ V rows: the padded vocabulary.
    W = table_WD.shape[0]
    # The fewest chunks whose logits fit, then positions spread evenly over them.
    limit = max(MAX_LOGITS, int(device_memory() * _LOGITS_PER_GIB)) * devices * tensor_devices()
    # One position of every sequence has B·W logits: the smallest chunk, even where it passes the limit.
    chunks = -(-L // max(limit // (B * W), 1))
    positions = -(-L // (chunks * context_shards(L)))
    arguments = (x_BLD, next_BL, weights_BL)
    chunk_loss = functools.partial(
        _chunk_loss, table_VD=table_WD, bias_V=bias_W, words=V, devices=devices, gradient=gradient
    )
    # Small batches take no loop: the result is the same, and XLA sees one product.
    if chunks == 1:
        (loss_BL, hit_BL, dx_BLD), dtables = chunk_loss(*arguments)
    else:

        def add_chunk(dtables: Tables | None, chunk: list[jax.Array]) -> tuple[Tables | None, ChunkOutputs]:
            outputs, chunk_dtables = chunk_loss(*chunk)
            return jax.tree.map(lambda a, b: constrain(a + b, "ZV_"[: a.ndim]), dtables, chunk_dtables), outputs

        def zeros(x: jax.Array) -> jax.Array:
            # The tables' gradients are summed in float32, each device's share apart.
            return constrain(jnp.zeros((devices, *x.shape), jnp.float32), "ZV_"[: x.ndim + 1])

        initial = jax.tree.map(zeros, (table_WD, bias_W)) if gradient else None
        dtables, outputs = jax.lax.scan(add_chunk, initial, [_split_chunks(x, chunks, positions) for x in arguments])
        loss_BL, hit_BL, dx_BLD = jax.tree.map(lambda x: _join_chunks(x, L), outputs)
    losses = (loss_BL * weights_BL).sum(), loss_BL, hit_BL
    if dx_BLD is None:  # no gradient is asked for
        return losses, None

    # Summed over the devices that share a copy of the model; the rest of the sum is left for the backward pass.
    dtable_VD, dbias_V = jax.tree.map(lambda dx: sum_within_copies(dx[:, :V], "VD"[: dx.ndim - 1]), dtables)
    return losses, (dx_BLD, dtable_VD, dbias_V)


def _split_chunks(x: jax.Array, chunks: int, positions: int) -> jax.Array:
    """Returns x, BL…, as chunks B L/chunks …; the last chunk is padded with positions of weight 0.

    Where sequences are cut, a chunk has so many positions of each part: every device works at each chunk, on its own
    tokens. A run of positions would belong to one of them.
    """
    B, L, *rest = x.shape
    parts = context_shards(L)
    x = x.reshape(B, parts, L // parts, *rest)
    x = jnp.pad(x, [(0, 0), (0, 0), (0, chunks * positions - L // parts)] + [(0, 0)] * len(rest))
    x = jnp.moveaxis(x.reshape(B, parts, chunks, positions, *rest), 2, 0)
    return x.reshape(chunks, B, parts * positions, *rest)


def _join_chunks(x: jax.Array, length: int) -> jax.Array:
    """Undoes `_split_chunks`."""
    chunks, B, _, *rest = x.shape
    parts = context_shards(length)
    x = jnp.moveaxis(x.reshape(chunks, B, parts, -1, *rest), 0, 2)
    # What padded the last chunk is at the end of each part.
    return x.reshape(B, parts, -1, *rest)[:, :, : length // parts].reshape(B, length, *rest)


def _padded_vocabulary(table_VD: jax.Array, bias_V: jax.Array | None) -> Tables:
    """Returns table and bias whole over fsdp, with rows of zeros so that the tensor axis divides them, and a GPU's
    tiles.

    GPT-2's 50,257 words divide by nothing: the table is stored sharded by its width. A product with that would sum
    every chunk's logits over the devices, or gather the table for every chunk.
    """
    missing = missing_words(table_VD.shape[0])

    def padded(x: jax.Array) -> jax.Array:
        rows = jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)) if missing else x
        return constrain(rows, "V_"[: x.ndim])

    return jax.tree.map(padded, (table_VD, bias_V))


def _chunk_loss(
    x_BLD: jax.Array,
    next_BL: jax.Array,
    weights_BL: jax.Array,
    *,
    table_VD: jax.Array,
    bias_V: jax.Array | None,
    words: int,
    devices: int,
    gradient: bool,
) -> tuple[ChunkOutputs, Tables | None]:
    """loss = top + log Σ exp(logits - top) - label; dlogits = weight · (softmax(logits) - one_hot(next)).

    words: rows of the table that are words; the rest pad it. devices: how many have tokens of their own.

    Returns ((loss_BL, hit_BL, gradient to x), (gradient to table, to bias)). The tables' gradients have a leading
    dim of devices, Z: each device's tokens are summed apart. Gradients that are not asked for are None.
    """
    logits_BLV = jnp.einsum("BLD,VD->BLV", x_BLD, table_VD, preferred_element_type=jnp.float32)
    if bias_V is not None:
        logits_BLV += bias_V[None, None]
    word_BLV = jax.lax.broadcasted_iota(jnp.int32, logits_BLV.shape, 2)
    if words < table_VD.shape[0]:  # rows that pad the vocabulary are no words
        logits_BLV = jnp.where(word_BLV < words, logits_BLV, -jnp.inf)
    # The next token's logit is picked by comparison: a gather along V would bring a sharded vocabulary together on
    # every device.
    chosen_BLV = word_BLV == next_BL[..., None]
    label_BL = jnp.where(chosen_BLV, logits_BLV, 0.0).sum(-1)
    others_BL = jnp.where(chosen_BLV, -jnp.inf, logits_BLV).max(-1)
    # The maximum is subtracted, so that no exp overflows. It comes in two parts because a hit needs to know whether the
    # label's logit is greater than all others.
    top_BL = jnp.maximum(others_BL, label_BL)
    exp_BLV = jnp.exp(logits_BLV - top_BL[..., None])
    sum_BL = exp_BLV.sum(-1)
    loss_BL, hit_BL = top_BL + jnp.log(sum_BL) - label_BL, (label_BL - others_BL > TIE).astype(jnp.float32)
    if not gradient:
        return (loss_BL, hit_BL, None), None
    # softmax = exp/sum, with the weight and 1/sum as one factor per position.
    scale_BL = weights_BL / sum_BL
    dlogits_BLV = exp_BLV * scale_BL[..., None] - jnp.where(chosen_BLV, weights_BL[..., None], 0.0)

    # Each device sums its own tokens, so that no gradient of the table's size crosses the mesh in every chunk.
    def shares(x: jax.Array) -> jax.Array:
        return as_rows(x).reshape(devices, -1, x.shape[-1])

    dbias_ZV = None if bias_V is None else constrain(shares(dlogits_BLV).sum(1), "ZV")
    dlogits_BLV = dlogits_BLV.astype(x_BLD.dtype)
    dx_BLD = constrain(jnp.einsum("BLV,VD->BLD", dlogits_BLV, table_VD), "BLD")
    # B·L as one dim T makes the table's gradient a plain matrix product, for which XLA copies nothing.
    rows = map(shares, (dlogits_BLV, x_BLD))
    dtable_ZVD = constrain(jnp.einsum("ZTV,ZTD->ZVD", *rows, preferred_element_type=jnp.float32), "ZV_")
    return (loss_BL, hit_BL, dx_BLD), (dtable_ZVD, dbias_ZV)


class NextTokenHead(nn.Module):
    """-log softmax(x · table)[next]: Encoding, next i32 BL, next_weights f32 BL → TokenLosses.

    The table is the token table (tied; the head then has no parameters) or the head's own. There is no bias.
    """

    sizes: dict[str, int]
    kernel_init: Init
    dtype: DTypeLike
    tied: bool = True

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> TokenLosses:
        table_VD = softmax_table(self, encoding)
        # The logits of all L positions never exist at once: losses and gradient are formed in chunks.
        return next_token_loss(encoding.hidden_BLD, table_VD, batch["next"], batch["next_weights"])
