"""What the heads read of a frozen backbone, as fields of a batch: computed by a program of its own.

    states  BNLD   the layers that the heads read, 0 at padding; not where they read none
    pooled  BD     where they read it

A step reads these fields in the backbone's place (`Model`), whether they are computed for its batch or were stored. So
both ways are one step, and give the same bits where this program gives the same bits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from contexture.models.model import FAMILIES, Model, Outputs
from contexture.models.shapes import Params
from contexture.models.sharding import constrain
from contexture.train import mesh as meshes
from contexture.train.config import Run

Batch = dict[str, jax.Array]


@dataclass(frozen=True)
class Encoder:
    """A frozen backbone as a program: (its parameters, the fields that it reads) → `fields`."""

    fields: dict[str, str]
    """The fields that it adds to a batch: {"states": "f32 BNLD"}."""
    layers: tuple[int, ...]
    """The layers of `states`, 0 for the embeddings."""
    jitted: Callable[[Any, Batch], Batch]
    reads: tuple[str, ...]
    mesh: Mesh

    def add(self, params: Params, batch: Batch) -> Batch:
        """Returns the batch with these fields, computed unless it holds them. Of shapes it makes shapes."""
        if self.fields.keys() <= batch.keys():
            return batch
        read = {name: batch[name] for name in self.reads}
        backbone = params["backbone"]
        assert isinstance(backbone, Mapping)
        if isinstance(jax.tree.leaves(backbone)[0], jax.ShapeDtypeStruct):
            shapes: Any = jax.eval_shape(self.jitted, backbone, read)
            return {**batch, **{name: self._with_sharding(name, x) for name, x in shapes.items()}}
        return {**batch, **self.jitted(backbone, read)}

    def _with_sharding(self, name: str, x: Any) -> Any:
        sharding = meshes.sharding(self.mesh, self.fields[name].partition(" ")[2], x.shape)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def make_encoder(model: Model, run: Run, mesh: Mesh) -> Encoder:
    """Returns the program of a run's frozen backbone."""
    reads = FAMILIES[type(run.model)].fields
    layers, pooled = model.layers_read(), model.reads_pooled()
    dtype = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[run.model.dtype]
    several = run.task.kind == "choice" or run.task.symmetric or run.head.pair
    row = "BA" if several else "B"
    fields = {"states": f"{dtype} {row}NLD"} if layers else {}
    fields |= {"pooled": f"{dtype} {row}D"} if pooled else {}

    def encode(backbone: Params, batch: Batch) -> Batch:
        # More than the last layer, or another one, is built only when it is asked for.
        states = layers not in ((), (run.model.layers,))
        outputs = model.apply({"params": {"backbone": backbone}}, batch, states=states, only=(), frozen=True)
        assert isinstance(outputs, Outputs)
        encoding, tokens = outputs.encoding, batch["tokens" if "tokens" in batch else "index"]
        inside_BLD = encoding.mask_BL[:, :, None] > 0
        added: Batch = {}
        if layers:
            read = [encoding.states[layer] if states else encoding.hidden_BLD for layer in layers]
            added["states"] = jnp.stack([jnp.where(inside_BLD, x_BLD, 0) for x_BLD in read], 1)
        if pooled:
            assert encoding.pooled_BD is not None
            added["pooled"] = encoding.pooled_BD
        if several:
            added = {name: x.reshape(*tokens.shape[:2], *x.shape[1:]) for name, x in added.items()}
        return {name: constrain(x, fields[name].partition(" ")[2]) for name, x in added.items()}

    return Encoder(fields, layers, jax.jit(encode), tuple(reads), mesh)
