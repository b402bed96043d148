"""Which keys a query sees, as a rule that a kernel applies tile by tile."""

import flax.struct
import jax

PADDED = -10000.0
"""Added to the logit of a padded key, as in BERT's code. Its weight is 0 in float32 unless all keys are padded: then
the softmax is the same as without it."""
HIDDEN = -1e10
"""Takes the place of the logit of a key that a causal model must not see: its weight is exactly 0."""


@flax.struct.dataclass
class AttentionMask:
    """Which of M keys each of L queries sees: all, but for these rules.

    Args:
        tokens_BM: i32, 1 for tokens, 0 for padding, which PADDED is added to.
        packs_BL: i32, the document of each token; queries see keys of their own document only.
        window: i32 without dims: with `causal`, how many keys up to its own a query sees; None: all. An array, so that
            one program serves the dense and the banded layers of a scan.
        causal: queries see no later key.
        implementation: pallas or cudnn (`choice.choose`).
    """

    tokens_BM: jax.Array | None = None
    packs_BL: jax.Array | None = None
    window: jax.Array | None = None
    causal: bool = flax.struct.field(pytree_node=False, default=False)
    implementation: str = flax.struct.field(pytree_node=False, default="pallas")
