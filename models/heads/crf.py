"""Linear-chain conditional random field over tags (Lafferty et al. 2001).

score(tags) = start[t_1] + Σ_n logits[n, t_n] + Σ_n transitions[t_n, t_n+1] + end[t_L]
p(tags)     = exp(score(tags)) / Σ exp(score) over all sequences of tags
"""

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class CrfOutput:
    """What the CRF says about a batch.

    Args:
        loss_B: -log p(tags) of each sequence, in nats; 0 for one without words.
        best_BL: the most probable tags.
        marginals_BLC: the probability of each word's tag, summed over all tags of the other words.
    """

    loss_B: jax.Array
    best_BL: jax.Array
    marginals_BLC: jax.Array


class LinearChainCRF(nn.Module):
    """logits BLC, tags and mask i32 BL (padding on the right) → CrfOutput.

    The scores of transitions, start and end start at 0: an untrained CRF is a softmax over each word's logits.
    """

    classes: int

    @nn.compact
    def __call__(self, logits_BLC: jax.Array, tags_BL: jax.Array, mask_BL: jax.Array) -> CrfOutput:
        C, zeros = self.classes, nn.initializers.zeros
        # "steps", "first" and "last" are the names that checkpoints hold.
        transitions_CC = self.param("steps", zeros, (C, C))
        start_C, end_C = self.param("first", zeros, (C,)), self.param("last", zeros, (C,))
        # The tag of padding is -1. It becomes 0, to be a valid index; the mask keeps it out of the score.
        loss_B = _log_partition(logits_BLC, mask_BL, transitions_CC, start_C, end_C) - _path_score(
            logits_BLC, jnp.maximum(tags_BL, 0), mask_BL, transitions_CC, start_C, end_C
        )
        loss_B = jnp.where(mask_BL[:, 0] > 0, loss_B, 0.0)
        scores = mask_BL, transitions_CC, start_C, end_C
        # d log Z / d logits[n, t] = p(t_n = t): the gradient is the forward-backward algorithm, with autodiff as its
        # backward half.
        marginals_BLC = jax.grad(lambda logits_BLC: _log_partition(logits_BLC, *scores).sum())(logits_BLC)
        return CrfOutput(loss_B, _viterbi(logits_BLC, *scores), marginals_BLC)


def _path_score(
    logits_BLC: jax.Array,
    tags_BL: jax.Array,
    mask_BL: jax.Array,
    transitions_CC: jax.Array,
    start_C: jax.Array,
    end_C: jax.Array,
) -> jax.Array:
    """Returns the score of each sequence's given tags, B."""
    # A transition counts where its second word exists, hence the mask from column 1 on.
    own_BL = jnp.take_along_axis(logits_BLC, tags_BL[:, :, None], 2)[:, :, 0]
    between_BL = transitions_CC[tags_BL[:, :-1], tags_BL[:, 1:]]
    # The end score belongs to each sequence's own last word, not to the last column.
    last_B = jnp.maximum(mask_BL.sum(1) - 1, 0)
    ends_B = start_C[tags_BL[:, 0]] + end_C[jnp.take_along_axis(tags_BL, last_B[:, None], 1)[:, 0]]
    return (own_BL * mask_BL).sum(1) + (between_BL * mask_BL[:, 1:]).sum(1) + ends_B


def _log_partition(
    logits_BLC: jax.Array, mask_BL: jax.Array, transitions_CC: jax.Array, start_C: jax.Array, end_C: jax.Array
) -> jax.Array:
    """log Σ exp(score) over all C^L tag sequences, B (the forward algorithm).

    α_n[t] = logits[n, t] + log Σ_s exp(α_n-1[s] + transitions[s, t]) sums all paths that reach tag t at word n.
    """

    def step(alpha_BC: jax.Array, word: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        logits_BC, mask_B = word
        next_BC = jax.nn.logsumexp(alpha_BC[:, :, None] + transitions_CC[None], axis=1) + logits_BC
        # Past a sequence's last word α stays the same, so that after the loop it is α at the sequence's own last word.
        return jnp.where(mask_B[:, None] > 0, next_BC, alpha_BC), None

    words = jnp.moveaxis(logits_BLC[:, 1:], 1, 0), mask_BL[:, 1:].T
    alpha_BC, _ = jax.lax.scan(step, start_C[None] + logits_BLC[:, 0], words)
    return jax.nn.logsumexp(alpha_BC + end_C[None], axis=1)


def _viterbi(
    logits_BLC: jax.Array, mask_BL: jax.Array, transitions_CC: jax.Array, start_C: jax.Array, end_C: jax.Array
) -> jax.Array:
    """Returns the tags of the path with the highest score, i32 BL (Viterbi 1967).

    After a sequence's words its last tag is repeated.
    """

    def step(best_BC: jax.Array, word: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        # As in the forward algorithm, with max in place of log-sum-exp; argmax is the pointer back to the best tag s.
        logits_BC, mask_B = word
        scores_BCC = best_BC[:, :, None] + transitions_CC[None]
        next_BC, inside_B = scores_BCC.max(1) + logits_BC, mask_B[:, None] > 0
        # At padding each tag points back to itself, so that the way back arrives at the last word unchanged.
        stay_C = jnp.arange(logits_BC.shape[1])[None]
        return jnp.where(inside_B, next_BC, best_BC), jnp.where(inside_B, scores_BCC.argmax(1), stay_C)

    words = jnp.moveaxis(logits_BLC[:, 1:], 1, 0), mask_BL[:, 1:].T
    best_BC, pointers_LBC = jax.lax.scan(step, start_C[None] + logits_BLC[:, 0], words)
    last_B = (best_BC + end_C[None]).argmax(1)

    def follow(tag_B: jax.Array, pointers_BC: jax.Array) -> tuple[jax.Array, jax.Array]:
        previous_B = jnp.take_along_axis(pointers_BC, tag_B[:, None], 1)[:, 0]
        return previous_B, tag_B

    # From the last word back to the first, which remains as the scan's carry.
    first_B, rest_LB = jax.lax.scan(follow, last_B, pointers_LBC, reverse=True)
    return jnp.concatenate([first_B[:, None], rest_LB.T], 1).astype(jnp.int32)
