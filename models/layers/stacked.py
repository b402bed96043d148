"""The parameters of layers, stacked in one array for all layers as checkpoints hold them, or in an array for each.

A CPU's program without a layer loop copies every kernel out of its stack each time that it runs. Training writes all
parameters in each step anyway. Of a BERT of 6 layers of 384 that reads one short text the copies take three quarters of
the time, and of batches of 32 short texts a fifth.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from contexture.models.config import ModelConfig, TransformerConfig
from contexture.models.layers.remat import layers_per_iteration
from contexture.models.shapes import Params
from contexture.models.sharding import platform


def unstack_layers(params: Params, config: ModelConfig) -> Params:
    """Returns the parameters with an array for each layer: each stack of the backbone's layers is a tuple, which
    `Model.apply` takes. Call it on the mesh that computes; they are as given unless one CPU computes the layers without
    a loop."""
    backbone: Any = params.get("backbone", {})
    # Only one CPU that computes the layers without a loop gains by arrays apart; everywhere else the stack stays.
    if not isinstance(config, TransformerConfig) or "layers" not in backbone or _is_apart(backbone):
        return params
    if platform() != "cpu":
        return params
    # On a mesh each device holds a part of every stack; separate arrays would have to be resharded.
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty and mesh.size > 1:
        return params
    # A loop indexes the stack by the layer's number.
    if layers_per_iteration(config.unroll, config.layers, config.remat) < config.layers:
        return params
    return {**params, "backbone": {**backbone, "layers": _unstacked(backbone["layers"], config.layers)}}


@partial(jax.jit, static_argnums=1)
def _unstacked(stacked: Any, layers: int) -> Any:
    # In one jitted program: layer by layer from Python, each of some 16 arrays a layer would be a call of its own.
    return jax.tree.map(lambda x: tuple(x[n] for n in range(layers)), stacked)


def stack_layers(params: Params) -> Params:
    """Undoes `unstack_layers`. In a program without a layer loop XLA reads each layer's arrays where they are;
    elsewhere this copies them."""
    backbone: Any = params.get("backbone", {})
    if not _is_apart(backbone):
        return params
    # A tuple is a stack apart, not a part of the tree.
    layers = jax.tree.map(jnp.stack, backbone["layers"], is_leaf=lambda x: isinstance(x, tuple))
    return {**params, "backbone": {**backbone, "layers": layers}}


def _is_apart(backbone: Any) -> bool:
    leaves = jax.tree.leaves(backbone.get("layers", {}), is_leaf=lambda x: isinstance(x, tuple))
    return any(isinstance(leaf, tuple) for leaf in leaves)
