"""The parameters of layers, stacked in one array for all layers as checkpoints hold them, or in an array for each.

A CPU's program without a layer loop copies every kernel out of its stack each time that it runs. Training writes all
parameters in each step anyway. Of a forward pass over a few short texts these copies are the larger part.
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
    """Returns parameters for any number of forward passes (`Model.apply`): each stack of the backbone's layers is a
    tuple of the layers' own arrays, where one CPU computes the layers without a loop; else they are returned as given.
    """
    if not isinstance(config, TransformerConfig) or "backbone" not in params or platform() != "cpu":
        return params
    backbone: Any = params["backbone"]
    if _is_apart(backbone):
        return params
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty and mesh.size > 1:
        return params
    if layers_per_iteration(config.unroll, config.layers, config.remat) < config.layers:
        return params
    return {**params, "backbone": {**backbone, "layers": _unstacked(backbone["layers"], config.layers)}}


@partial(jax.jit, static_argnums=1)
def _unstacked(stacked: Any, layers: int) -> Any:
    return jax.tree.map(lambda x: tuple(x[n] for n in range(layers)), stacked)


def stack_layers(params: Params) -> Params:
    """Undoes `unstack_layers`. Within a program it costs nothing: XLA reads each layer's arrays where they are."""
    backbone: Any = params.get("backbone", {})
    if not _is_apart(backbone):
        return params
    layers = jax.tree.map(jnp.stack, backbone["layers"], is_leaf=lambda x: isinstance(x, tuple))
    return {**params, "backbone": {**backbone, "layers": layers}}


def _is_apart(backbone: Any) -> bool:
    leaves = jax.tree.leaves(backbone.get("layers", {}), is_leaf=lambda x: isinstance(x, tuple))
    return any(isinstance(leaf, tuple) for leaf in leaves)
