"""The softmax over a vocabulary and its loss, in parts, so that the logits of a whole batch are never there at once."""

import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from contexture.models.sharding import constrain, shares

MOST_LOGITS = 1 << 24
"""Float32 logits that a device works on at once (64 MiB), unless those of one position of every line are more."""


@flax.struct.dataclass
class TokenLosses:
    """total: Σ weight · loss, the only one with a gradient. loss_BL in nats; hit_BL: 1 where the next token's logit is
    greater than all others, else 0 (a tie is no hit: train.losses.cross_entropy)."""

    total: jax.Array
    loss_BL: jax.Array
    hit_BL: jax.Array


def next_token_loss(
    x_BLD: jax.Array, table_VD: jax.Array, next_BL: jax.Array, weights_BL: jax.Array, bias_V: jax.Array | None = None
) -> TokenLosses:
    """The cross entropy of next under softmax(x · table + bias), weighted; bias_V in float32.

    The gradient of the total is formed in the forward pass, part by part of the line (a part's logits are there
    anyway), and only scaled in the backward pass; nothing of the size of the logits is kept.
    """
    return TokenLosses(*_loss(x_BLD, table_VD, bias_V, next_BL, weights_BL))


@jax.custom_vjp
def _loss(
    x_BLD: jax.Array, table_VD: jax.Array, bias_V: jax.Array | None, next_BL: jax.Array, weights_BL: jax.Array
) -> tuple[jax.Array, ...]:
    return _in_parts(x_BLD, table_VD, bias_V, next_BL, weights_BL, gradient=False)[0]


def _forward(*arguments: Any) -> Any:
    return _in_parts(*arguments, gradient=True)


def _backward(saved: Any, cotangents: Any) -> Any:
    scaled = jax.tree.map(lambda x: (x.astype(jnp.float32) * cotangents[0]).astype(x.dtype), saved)
    return *scaled, None, None


_loss.defvjp(_forward, _backward)


def _in_parts(
    x_BLD: jax.Array,
    table_VD: jax.Array,
    bias_V: jax.Array | None,
    next_BL: jax.Array,
    weights_BL: jax.Array,
    *,
    gradient: bool,
) -> Any:
    """((total, loss_BL, hit_BL), (the gradient of total to x, to table, and to bias or None) or None)."""
    B, L, D = x_BLD.shape
    V, devices = table_VD.shape[0], shares(B)
    parts = -(-L // max(MOST_LOGITS * devices // (B * V), 1))
    columns = -(-L // parts)
    arguments = (x_BLD, next_BL, weights_BL)
    of_part = functools.partial(_part, table_VD=table_VD, bias_V=bias_V, gradient=gradient)
    to_tables: Any  # gradients
    found: Any
    if parts == 1:
        found, to_tables = of_part(*arguments)
    else:

        def part(to_tables: Any, arguments: Any) -> tuple[Any, Any]:
            found, more = of_part(*arguments)
            return jax.tree.map(lambda a, b: constrain(a + b, "BVD"[: a.ndim]), to_tables, more), found

        def cut(x: jax.Array) -> jax.Array:  # the last part is filled up with what has no weight
            x = jnp.pad(x, [(0, 0), (0, parts * columns - L)] + [(0, 0)] * (x.ndim - 2))
            return jnp.moveaxis(x.reshape(B, parts, columns, *x.shape[2:]), 1, 0)

        def zeros(x: jax.Array) -> jax.Array:
            return constrain(jnp.zeros((devices, *x.shape), jnp.float32), "BVD"[: x.ndim + 1])

        first = jax.tree.map(zeros, (table_VD, bias_V)) if gradient else None
        to_tables, found = jax.lax.scan(part, first, [cut(x) for x in arguments])
        found = [
            None if x is None else jnp.moveaxis(x, 0, 1).reshape(B, parts * columns, *x.shape[3:])[:, :L] for x in found
        ]
    loss_BL, hit_BL, dx_BLD = found
    answer = (loss_BL * weights_BL).sum(), loss_BL, hit_BL
    if not gradient:
        return answer, None
    to_tables = jax.tree.map(lambda x, dx: dx.sum(0).astype(x.dtype), (table_VD, bias_V), to_tables)
    return answer, (dx_BLD, *to_tables)


def _part(
    x_BLD: jax.Array,
    next_BL: jax.Array,
    weights_BL: jax.Array,
    *,
    table_VD: jax.Array,
    bias_V: jax.Array | None,
    gradient: bool,
) -> Any:
    """((loss_BL, hit_BL, gradient to x), (gradient to table, to bias), each by each device's lines), None where they
    are not wanted.

    The next token's logit is picked by comparison, not by a gather, so that a vocabulary cut over devices stays cut.
    """
    logits_BLV = jnp.einsum("BLD,VD->BLV", x_BLD, table_VD, preferred_element_type=jnp.float32)
    if bias_V is not None:
        logits_BLV += bias_V[None, None]
    chosen_BLV = jax.lax.broadcasted_iota(jnp.int32, logits_BLV.shape, 2) == next_BL[..., None]
    label_BL = jnp.where(chosen_BLV, logits_BLV, 0.0).sum(-1)
    others_BL = jnp.where(chosen_BLV, -jnp.inf, logits_BLV).max(-1)
    top_BL = jnp.maximum(others_BL, label_BL)
    shares_BLV = jnp.exp(logits_BLV - top_BL[..., None])
    sum_BL = shares_BLV.sum(-1)
    loss_BL, hit_BL = top_BL + jnp.log(sum_BL) - label_BL, (label_BL > others_BL).astype(jnp.float32)
    if not gradient:
        return (loss_BL, hit_BL, None), None
    scale_BL = weights_BL / sum_BL
    dlogits_BLV = shares_BLV * scale_BL[..., None] - jnp.where(chosen_BLV, weights_BL[..., None], 0.0)
    by_device = shares(x_BLD.shape[0])
    dbias_BV = None if bias_V is None else constrain(dlogits_BLV.reshape(by_device, -1, bias_V.size).sum(1), "BV")
    dlogits_BLV = dlogits_BLV.astype(x_BLD.dtype)
    dx_BLD = constrain(jnp.einsum("BLV,VD->BLD", dlogits_BLV, table_VD), "BLD")
    # Each device sums its own lines, so that no gradient of the table's size crosses the mesh in every part. Of a
    # product of matrices nothing is copied.
    rows = (x.reshape(by_device, -1, x.shape[-1]) for x in (dlogits_BLV, x_BLD))
    dtable_BVD = constrain(jnp.einsum("BTV,BTD->BVD", *rows, preferred_element_type=jnp.float32), "BVD")
    return (loss_BL, hit_BL, dx_BLD), (dtable_BVD, dbias_BV)
