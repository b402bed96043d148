"""Adafactor (Shazeer and Stern 2018, algorithm 4): of each kernel's squared gradients it keeps the means of rows and
columns, in place of one number for each entry."""

import math
from typing import Any, NamedTuple, cast

import jax
import optax

from contexture.models.shapes import by_path, nested

_FEWEST = 128
"""Rows and columns that a matrix must have to be factored; smaller ones keep every entry, as optax's default."""


class PerKernel(NamedTuple):
    """The state of each parameter, by its path; a stack of layers has one for each layer."""

    kernels: Any


def scale_by_adafactor() -> optax.GradientTransformation:
    """gradient / sqrt(v), cut to a root mean square of 1 and scaled to the parameter's, at least 1e-3; v from means of
    rows and columns that decay with 1 - t^-0.8.

    These are optax's own parts, applied to each kernel of each layer as a matrix: all layers are stacked in one array
    here, and attention's kernels have dims for heads, while the paper's root mean squares are of one matrix each.
    """
    one = optax.chain(
        optax.scale_by_factored_rms(min_dim_size_to_factor=_FEWEST),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(),
    )

    def init(params: optax.Params) -> optax.OptState:
        begin: dict[bool, Any] = {False: one.init, True: jax.vmap(one.init)}
        return PerKernel(nested({p: begin[_is_stack(p)](_matrix(p, x)) for p, x in by_path(params).items()}))

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        assert params is not None
        apply: dict[bool, Any] = {False: one.update, True: jax.vmap(one.update)}
        gradients, new, states = by_path(updates), dict[str, jax.Array](), dict[str, Any]()
        for path, x in by_path(params).items():
            own = _at(cast(PerKernel, state).kernels, path)
            made, states[path] = apply[_is_stack(path)](_matrix(path, gradients[path]), own, _matrix(path, x))
            new[path] = made.reshape(x.shape)
        return jax.tree.unflatten(jax.tree.structure(updates), new.values()), PerKernel(nested(states))

    return optax.GradientTransformation(init, update)


def _at(tree: Any, path: str) -> Any:
    for part in path.split("/"):
        tree = tree[part]
    return tree


def _is_stack(path: str) -> bool:
    return "layers/" in path


def _matrix(path: str, x: jax.Array) -> jax.Array:
    """Returns a parameter with its input dims as one and its output dims as one, behind the layers."""
    lead, rest = x.shape[: _is_stack(path)], x.shape[_is_stack(path) :]
    # Which dims are which: those of a kernel's two sides that are nearest to each other in size.
    cuts = [(math.prod(rest[:cut]), math.prod(rest[cut:])) for cut in range(1, len(rest))]
    return x.reshape(*lead, *min(cuts, key=max)) if cuts else x
