"""The outputs of a frozen backbone that heads read, as fields of a batch, computed by a program of its own.

    states  BNLD   the layers that the heads read, 0 at padding; absent if they read none
    pooled  BD     the pooled vector, if a head reads it

`Model` reads these fields instead of running the backbone when a batch holds them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from contexture.data.packing import PLACES
from contexture.models.model import Model, Outputs
from contexture.models.shapes import Params
from contexture.models.sharding import constrain
from contexture.train.objectives import batch_fields
from contexture.train.programs import shared
from contexture.train.settings.run import Run

Batch = dict[str, jax.Array]


@dataclass(frozen=True)
class Encoder:
    """A frozen backbone as a program."""

    fields: dict[str, str]
    """Its outputs: {"states": "f32 BNLD"}."""
    layers: tuple[int, ...]
    """The layers of `states`, 0 for the embeddings."""
    reads: tuple[str, ...]
    """The batch fields that it reads."""
    jitted: Callable[[Any, Batch], Batch]
    """(the backbone's parameters, the fields of `reads`) → `fields`."""


@shared
def make_encoder(model: Model, run: Run) -> Encoder:
    """Returns the program of a run's frozen backbone."""
    layers, pooled = model.layers_read(), model.reads_pooled()
    # Stored as computed: a bfloat16 model's features take half the disk.
    dtype = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[run.model.dtype]
    # An example of several sequences has an axis for them (A), before the dims of a sequence.
    several = run.task.kind == "choice" or run.task.symmetric or run.head.pair
    row = "BA" if several else "B"
    fields = {"states": f"{dtype} {row}NLD"} if layers else {}
    # A head on the pooled vector alone needs no states, and stores D numbers an example.
    fields |= {"pooled": f"{dtype} {row}D"} if pooled else {}

    def encode(backbone: Params, batch: Batch) -> Batch:
        # The last layer is the encoding's hidden state anyway; all N+1 states are collected only if others are read.
        states = layers not in ((), (run.model.layers,))
        outputs = model.apply({"params": {"backbone": backbone}}, batch, states=states, only=(), frozen=True)
        assert isinstance(outputs, Outputs)
        encoding, sequences = outputs.encoding, batch["mask"]
        inside_BLD = encoding.mask_BL[:, :, None] > 0
        added: Batch = {}
        if layers:
            read = [encoding.states[layer] if states else encoding.hidden_BLD for layer in layers]
            # 0 at padding, so that stored features, which have no padding, and these are the same once padded again.
            added["states"] = jnp.stack([jnp.where(inside_BLD, x_BLD, 0) for x_BLD in read], 1)
        if pooled:
            assert encoding.pooled_BD is not None
            added["pooled"] = encoding.pooled_BD
        if several:
            # (B·A)… → BA…, as the batch's other fields.
            added = {name: x.reshape(*sequences.shape[:2], *x.shape[1:]) for name, x in added.items()}
        return {name: constrain(x, fields[name].partition(" ")[2]) for name, x in added.items()}

    # What the backbone reads: sequences, and the rows that they share.
    reads = tuple(name for name in batch_fields(run) if name in (*run.text.sequences, *PLACES))
    return Encoder(fields, layers, reads, jax.jit(encode))
