"""One training step and one evaluation step, jitted over the mesh; and the state they turn over."""

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from models.dropout import noise
from models.model import Model, example
from models.shapes import constrain, dims_of, path_of
from train import mesh as meshes
from train.config import Run
from train.losses import Sum
from train.objectives import Batch, Objective, batch_fields, batch_sizes, loss, means
from train.optim import learning_rate, optimizer, rates


@flax.struct.dataclass
class State:
    """All that a step changes. step counts every step, the skipped ones too."""

    step: jax.Array
    params: Any
    opt: Any
    skipped: jax.Array
    skipped_in_row: jax.Array


def create(model: Model, run: Run, mesh: Mesh) -> tuple[Callable[[], State], State, State]:
    """How a fresh state is born already cut over the mesh: (make, its shapes, its shardings)."""
    sizes = batch_sizes(run, 1)
    tx = optimizer(run.optim)

    def make() -> State:
        params = model.init(jax.random.key(run.seed), example(batch_fields(run), sizes))["params"]
        zero = jnp.zeros((), jnp.int32)
        return State(step=zero, params=params, opt=tx.init(params), skipped=zero, skipped_in_row=zero)

    shapes = jax.eval_shape(make)
    shardings = meshes.state_shardings(mesh, shapes, shapes.params)
    return jax.jit(make, out_shardings=shardings), shapes, shardings


def _part(batch: Batch, parts: int) -> Batch:
    """Each field BX as [parts, B/parts, X]: part m holds the rows m, m + parts, m + 2·parts, …"""
    return {name: jnp.moveaxis(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 1, 0) for name, x in batch.items()}


def train_step(
    model: Model, objective: Objective, run: Run, shardings: State
) -> Callable[[State, Batch], tuple[State, dict[str, jax.Array]]]:
    """(state, batch) → (state, metrics): loss, gradient, update; nothing is changed where they are not finite.

    The state given is donated. metrics are scalars that are the same on every device.
    """
    tx, parts, fields = optimizer(run.optim), run.optim.accumulate, batch_fields(run)

    def step(state: State, batch: Batch) -> tuple[State, dict[str, jax.Array]]:
        whole = objective.weights(batch)
        shares = rates(run.optim, state.params)

        def part_loss(params: Any, part: Batch, row_B: jax.Array) -> tuple[jax.Array, dict[str, Sum]]:
            if shares is not None:  # what is not trained needs no gradient
                params = jax.tree.map(lambda p, s: p if s.any() else jax.lax.stop_gradient(p), params, shares)
            outputs = model.apply({"params": params}, part, noise(run.seed, state.step, row_B))
            sums = objective.sums(outputs, part)  # pyright: ignore[reportArgumentType]
            return loss(objective, sums, whole), sums

        gradient = jax.grad(part_loss, has_aux=True)
        row_B = jnp.arange(next(iter(batch.values())).shape[0])
        if parts == 1:
            grads, sums = gradient(state.params, batch, row_B)
        else:

            def add(total: Any, part: tuple[Batch, jax.Array]) -> tuple[Any, None]:
                fields_of_part = {n: constrain(x, fields[n].partition(" ")[2]) for n, x in part[0].items()}
                return jax.tree.map(jnp.add, total, gradient(state.params, fields_of_part, part[1])), None

            every = (_part(batch, parts), row_B.reshape(-1, parts).T)
            first = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(
                lambda: gradient(state.params, *jax.tree.map(lambda x: x[0], every))))  # fmt: skip
            (grads, sums), _ = jax.lax.scan(add, first, every)
        grads = jax.tree_util.tree_map_with_path(lambda k, g: constrain(g, dims_of(path_of(k))), grads)

        if shares is not None:  # of the layers in one array, some may be frozen
            grads = jax.tree.map(lambda g, s: g * (s > 0), grads, shares)

        total, norm, lr = loss(objective, sums, whole), optax.tree.norm(grads), learning_rate(
            run.optim, run.steps, state.step)  # fmt: skip
        finite = jnp.isfinite(total) & jnp.isfinite(norm)
        updates, opt = tx.update(grads, state.opt, state.params)
        if shares is not None:
            updates = jax.tree.map(lambda u, s: u * s, updates, shares)
        params = jax.tree.map(lambda p, u: (p - lr * u).astype(p.dtype), state.params, updates)
        params, opt = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), (params, opt), (state.params, state.opt)
        )
        new = State(
            step=state.step + 1,
            params=params,
            opt=opt,
            skipped=state.skipped + jnp.where(finite, 0, 1),
            skipped_in_row=jnp.where(finite, 0, state.skipped_in_row + 1),
        )
        measured = {"loss": total, **means(sums), "learning_rate": lr, "grad_norm": norm}
        return new, {**measured, "skipped": new.skipped, "skipped_in_row": new.skipped_in_row}

    everywhere = meshes.replicated(shardings.step.mesh)  # pyright: ignore[reportAttributeAccessIssue]
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, everywhere))


def evaluation_step(
    model: Model, objective: Objective, mesh: Mesh
) -> Callable[[Any, Batch], tuple[dict[str, Sum], dict[str, jax.Array]]]:
    """(params, batch) → (sums, predictions for each line, whole on every process), without dropout."""

    def step(params: Any, batch: Batch) -> tuple[dict[str, Sum], dict[str, jax.Array]]:
        outputs: Any = model.apply({"params": params}, batch)
        return objective.sums(outputs, batch), objective.predictions(outputs)

    return jax.jit(step, out_shardings=meshes.replicated(mesh))
