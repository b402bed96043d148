"""What a backbone returns and a head reads."""

import flax.struct
import jax


@flax.struct.dataclass
class Encoding:
    """What every backbone gives and every head reads: the waist between them.

    hidden_BLD   the last layer, what a head reads by default
    mask_BL      1 for a token, 0 for padding
    pooled_BD    one vector a line, or None
    states       N+1 arrays BLD (the embeddings, then each layer; the last is hidden_BLD), or () unless asked for
    table_VD     the token table, for tied softmaxes, or None
    choices      how many rows stand for one line of the batch, one behind the other (its alternatives)
    """

    hidden_BLD: jax.Array
    mask_BL: jax.Array
    pooled_BD: jax.Array | None = None
    states: tuple[jax.Array, ...] = ()
    table_VD: jax.Array | None = None
    choices: int = flax.struct.field(pytree_node=False, default=1)
