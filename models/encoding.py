"""What a backbone returns and a head reads."""

import flax.struct
import jax


@flax.struct.dataclass
class Encoding:
    """The interface between backbones and heads: every backbone returns it, and a head reads nothing else of the model.

    Args:
        hidden_BLD: the last layer's output.
        mask_BL: 1 for a token, 0 for padding.
        pooled_BD: one vector for each sequence, or None.
        states: N+1 arrays BLD (the embeddings, then each layer; the last is hidden_BLD), or () unless asked for.
        table_VD: the token table, for tied softmaxes, or None.
        choices: how many consecutive rows belong to one example of the batch (its alternatives).
    """

    hidden_BLD: jax.Array
    mask_BL: jax.Array
    pooled_BD: jax.Array | None = None
    states: tuple[jax.Array, ...] = ()
    table_VD: jax.Array | None = None
    # Static, not an array: heads reshape by it.
    choices: int = flax.struct.field(pytree_node=False, default=1)
