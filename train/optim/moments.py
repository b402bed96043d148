"""Optimizer moments in bfloat16: half of the memory, rounded so that no bias adds up."""

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from contexture.models.layers.dropout import mix


class RoundedState(NamedTuple):
    """The state of an optimizer with its arrays in bfloat16, and how many updates it has seen."""

    inner: optax.OptState
    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]


def in_bfloat16(tx: optax.GradientTransformation, *, stochastic: bool) -> optax.GradientTransformation:
    """Returns an optimizer that computes as `tx` does, in float32, and stores its moments in bfloat16.

    stochastic: numbers are rounded up or down at random, so that the expectation is kept. Rounded to the nearest,
    Adam's mean of squares stalls when an update changes it by less than 1/512 of itself, which b2 = 0.999 does.
    """

    def init(params: optax.Params) -> optax.OptState:
        # Moments begin at zero, which has no rounding.
        return RoundedState(jax.tree.map(_nearest, tx.init(params)), jnp.zeros((), jnp.int32))

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        state = cast(RoundedState, state)
        # bfloat16 → float32 is exact: only the way back rounds.
        exact = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x, state.inner)
        updates, inner = tx.update(updates, exact, params)
        # Each array has its number, so that equal places in two arrays round independently.
        leaves, tree = jax.tree.flatten(inner)
        rounded = [_stochastic(x, state.count, n) if stochastic else _nearest(x) for n, x in enumerate(leaves)]
        return updates, RoundedState(tree.unflatten(rounded), state.count + 1)

    return optax.GradientTransformation(init, update)


def _nearest(x: jax.Array) -> jax.Array:
    return x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x


def _stochastic(x: jax.Array, count: jax.Array, leaf: int) -> jax.Array:
    """Returns x in bfloat16, rounded to one of its two neighbours with the chances that keep its expectation.

    The random bits are a function of (update, array, place in the array): no mesh and no interruption changes them.
    """
    if x.dtype != jnp.float32:
        return x
    # A hash of the element's coordinates, computed where the element lives: no mesh changes it.
    place = jnp.zeros(x.shape, jnp.uint32)
    for dim in range(x.ndim):
        place = mix(place * jnp.uint32(x.shape[dim]) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, dim))
    chance = mix(place ^ mix(count.astype(jnp.uint32) * jnp.uint32(65_537) + jnp.uint32(leaf)))
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    # bfloat16 is the upper half of float32: a carry out of the lower half, to which random bits are added, rounds up.
    raised = (bits + (chance & jnp.uint32(0xFFFF))) & jnp.uint32(0xFFFF0000)
    # inf and NaN must not carry over into other patterns.
    kept = jnp.where(jnp.isfinite(x), raised, bits)
    return jax.lax.bitcast_convert_type(kept, jnp.float32).astype(jnp.bfloat16)
