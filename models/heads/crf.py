"""A linear chain over tags (Lafferty et al. 2001): how well a sequence of tags fits, and the one that fits best."""

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class CrfOutput:
    """loss_B: -log p(tags) of each line, in nats, 0 of one without words; best_BL: the likeliest tags; shares_BLC: p of
    each word's tag, whatever the others are."""

    loss_B: jax.Array
    best_BL: jax.Array
    shares_BLC: jax.Array


class LinearChainCRF(nn.Module):
    """Scores of tags from one to the next, of the first and of the last: logits BLC, tags and mask i32 BL (words stand
    first in a line) → CrfOutput. All are 0 to begin with."""

    classes: int

    @nn.compact
    def __call__(self, logits_BLC: jax.Array, tags_BL: jax.Array, mask_BL: jax.Array) -> CrfOutput:
        C, zeros = self.classes, nn.initializers.zeros
        steps_CC = self.param("steps", zeros, (C, C))
        first_C, last_C = self.param("first", zeros, (C,)), self.param("last", zeros, (C,))
        loss_B = _all_paths(logits_BLC, mask_BL, steps_CC, first_C, last_C) - _path(
            logits_BLC, jnp.maximum(tags_BL, 0), mask_BL, steps_CC, first_C, last_C
        )
        loss_B = jnp.where(mask_BL[:, 0] > 0, loss_B, 0.0)
        scores = mask_BL, steps_CC, first_C, last_C
        shares_BLC = jax.grad(lambda logits_BLC: _all_paths(logits_BLC, *scores).sum())(logits_BLC)
        return CrfOutput(loss_B, _best(logits_BLC, *scores), shares_BLC)


def _path(
    logits_BLC: jax.Array,
    tags_BL: jax.Array,
    mask_BL: jax.Array,
    steps_CC: jax.Array,
    first_C: jax.Array,
    last_C: jax.Array,
) -> jax.Array:
    """The score of each line's tags."""
    own_BL = jnp.take_along_axis(logits_BLC, tags_BL[:, :, None], 2)[:, :, 0]
    between_BL = steps_CC[tags_BL[:, :-1], tags_BL[:, 1:]]
    end_B = jnp.maximum(mask_BL.sum(1) - 1, 0)
    ends_B = first_C[tags_BL[:, 0]] + last_C[jnp.take_along_axis(tags_BL, end_B[:, None], 1)[:, 0]]
    return (own_BL * mask_BL).sum(1) + (between_BL * mask_BL[:, 1:]).sum(1) + ends_B


def _all_paths(
    logits_BLC: jax.Array, mask_BL: jax.Array, steps_CC: jax.Array, first_C: jax.Array, last_C: jax.Array
) -> jax.Array:
    """The log of the sum of exp of every path's score."""

    def step(sum_BC: jax.Array, word: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        logits_BC, mask_B = word
        new_BC = jax.nn.logsumexp(sum_BC[:, :, None] + steps_CC[None], axis=1) + logits_BC
        return jnp.where(mask_B[:, None] > 0, new_BC, sum_BC), None

    words = jnp.moveaxis(logits_BLC[:, 1:], 1, 0), mask_BL[:, 1:].T
    sum_BC, _ = jax.lax.scan(step, first_C[None] + logits_BLC[:, 0], words)
    return jax.nn.logsumexp(sum_BC + last_C[None], axis=1)


def _best(
    logits_BLC: jax.Array, mask_BL: jax.Array, steps_CC: jax.Array, first_C: jax.Array, last_C: jax.Array
) -> jax.Array:
    """The tags of the path with the largest score (Viterbi 1967); behind a line's words its last tag again."""

    def step(best_BC: jax.Array, word: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        logits_BC, mask_B = word
        scores_BCC = best_BC[:, :, None] + steps_CC[None]
        new_BC, inside_B = scores_BCC.max(1) + logits_BC, mask_B[:, None] > 0
        stay_C = jnp.arange(logits_BC.shape[1])[None]
        return jnp.where(inside_B, new_BC, best_BC), jnp.where(inside_B, scores_BCC.argmax(1), stay_C)

    words = jnp.moveaxis(logits_BLC[:, 1:], 1, 0), mask_BL[:, 1:].T
    best_BC, came_LBC = jax.lax.scan(step, first_C[None] + logits_BLC[:, 0], words)
    last_B = (best_BC + last_C[None]).argmax(1)

    def back(tag_B: jax.Array, came_BC: jax.Array) -> tuple[jax.Array, jax.Array]:
        before_B = jnp.take_along_axis(came_BC, tag_B[:, None], 1)[:, 0]
        return before_B, tag_B

    first_B, rest_LB = jax.lax.scan(back, last_B, came_LBC, reverse=True)
    return jnp.concatenate([first_B[:, None], rest_LB.T], 1).astype(jnp.int32)
