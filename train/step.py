"""One training step and one evaluation step, jitted over the mesh; and the state they turn over."""

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from contexture.models.layers.dropout import dropout_key
from contexture.models.model import Model, example
from contexture.models.shapes import dims_of, path_of
from contexture.models.sharding import constrain
from contexture.train import mesh as meshes
from contexture.train.config import Run
from contexture.train.losses import Sum
from contexture.train.objectives import Batch, Objective, batch_fields, batch_sizes, loss, means
from contexture.train.optim import learning_rate, lr_multipliers, optimizer


@flax.struct.dataclass
class State:
    """All that a step changes. step counts every step, the skipped ones too; carry is what each line of the batch hands
    on to the same line of the next one, where a model has such a thing."""

    step: jax.Array
    params: Any
    opt: Any
    skipped: jax.Array
    skipped_in_row: jax.Array
    carry: Any = flax.struct.field(default_factory=dict)


def create(model: Model, run: Run, mesh: Mesh) -> tuple[Callable[[], State], State, State]:
    """How a fresh state is born already cut over the mesh: (make, its shapes, its shardings)."""
    sizes = batch_sizes(run, 1)
    tx = optimizer(run.optim)

    def make() -> State:
        made = model.init(jax.random.key(run.seed), example(batch_fields(run), sizes))
        zero, params = jnp.zeros((), jnp.int32), made["params"]
        carry = jax.tree.map(lambda x: jnp.zeros((run.data.batch, *x.shape[1:]), x.dtype), made.get("carry", {}))
        return State(zero, params, tx.init(params), zero, zero, carry)

    shapes = jax.eval_shape(make)
    shardings = meshes.state_shardings(mesh, shapes, shapes.params)
    return jax.jit(make, out_shardings=shardings), shapes, shardings


def _parts(rows: Any, parts: int) -> Any:
    """Each array BX as [parts, B/parts, X]: part m holds the rows m, m + parts, m + 2·parts, …"""
    return jax.tree.map(lambda x: jnp.moveaxis(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 1, 0), rows)


def _joined(rows: Any) -> Any:
    """The way back: [parts, B/parts, X] as BX."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(-1, *x.shape[2:]), rows)


def _after(params: Any) -> jax.Array:
    """True, once these are there. What waits for it is written over in place: moments and parameters are both made of
    the old moments, and a CPU's XLA, which knows of no order between the two, would copy those first. Nothing is more
    than inf, NaN neither, but XLA does not reckon with that. On one device alone: of an array that is cut over several
    a single number is a message."""
    return jnp.stack([~(x[(0,) * x.ndim] > jnp.inf) for x in jax.tree.leaves(params) if x.size]).all()


def train_step(
    model: Model, objective: Objective, run: Run, shardings: State
) -> Callable[[State, Batch], tuple[State, dict[str, jax.Array]]]:
    """(state, batch) → (state, metrics): loss, gradient, update; nothing is changed where they are not finite.

    The state given is donated. metrics are scalars that are the same on every device.
    """
    tx, parts = optimizer(run.optim), run.optim.accumulate
    mesh: Any = shardings.step.mesh  # pyright: ignore[reportAttributeAccessIssue]
    on_one_cpu = [device.platform for device in mesh.devices.flat] == ["cpu"]
    dims = {name: kind.partition(" ")[2] for name, kind in batch_fields(run).items()}

    def step(state: State, batch: Batch) -> tuple[State, dict[str, jax.Array]]:
        whole = objective.weights(batch)
        shares = lr_multipliers(run.optim, state.params)

        def part_loss(params: Any, part: Batch, row_B: jax.Array, carry: Any) -> tuple[jax.Array, Any]:
            if shares is not None:  # what is not trained needs no gradient
                params = jax.tree.map(lambda p, s: p if s.any() else jax.lax.stop_gradient(p), params, shares)
            variables = {"params": params, "carry": carry}
            outputs, left = model.apply(variables, part, dropout_key(run.seed, state.step, row_B), mutable=["carry"])
            sums = objective.sums(outputs, part)
            return loss(objective, sums, whole), (sums, left.get("carry", {}))

        gradient = jax.grad(part_loss, has_aux=True)
        rows = {name: x for name, x in batch.items() if dims[name][0] == "B"}
        row_B = jnp.arange(next(iter(rows.values())).shape[0])
        if parts == 1:
            grads, (sums, carry) = gradient(state.params, batch, row_B, state.carry)
        else:
            alike = {name: x for name, x in batch.items() if name not in rows}

            def of_part(part: tuple[Batch, jax.Array, Any]) -> tuple[Any, Any]:
                lines = {name: constrain(x, dims[name]) for name, x in part[0].items()}
                grads, (sums, carry) = gradient(state.params, {**alike, **lines}, *part[1:])
                return (grads, sums), carry

            def add(total: Any, part: tuple[Batch, jax.Array, Any]) -> tuple[Any, Any]:
                found, carry = of_part(part)
                return jax.tree.map(jnp.add, total, found), carry

            every = (_parts(rows, parts), row_B.reshape(-1, parts).T, _parts(state.carry, parts))
            first = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(
                lambda: of_part(jax.tree.map(lambda x: x[0], every))[0]))  # fmt: skip
            (grads, sums), carry = jax.lax.scan(add, first, every)
            carry = _joined(carry)
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
        params = jax.tree.map(lambda new, old: jnp.where(finite, new, old), params, state.params)
        then = finite & _after(params) if on_one_cpu else finite
        opt = jax.tree.map(lambda new, old: jnp.where(then, new, old), opt, state.opt)
        whole_carry = jnp.stack([jnp.bool_(True), *(jnp.isfinite(x).all() for x in jax.tree.leaves(carry))]).all()
        new = State(
            step=state.step + 1,
            params=params,
            opt=opt,
            skipped=state.skipped + jnp.where(finite, 0, 1),
            skipped_in_row=jnp.where(finite, 0, state.skipped_in_row + 1),
            carry=jax.tree.map(lambda x: jnp.where(whole_carry, x, jnp.zeros_like(x)), carry),
        )
        measured = {"loss": total, **means(sums), "learning_rate": lr, "grad_norm": norm}
        return new, {**measured, "skipped": new.skipped, "skipped_in_row": new.skipped_in_row}

    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, meshes.replicated(mesh)))


def evaluation_step(
    model: Model, objective: Objective, mesh: Mesh
) -> Callable[[Any, Batch, Any], tuple[dict[str, Sum], dict[str, jax.Array], Any]]:
    """(params, batch, what the batch before has carried on, None before the first) → (sums, predictions for each line,
    whole on every process, what is carried on), without dropout."""

    def step(params: Any, batch: Batch, carry: Any) -> tuple[dict[str, Sum], dict[str, jax.Array], Any]:
        outputs, left = model.apply({"params": params, "carry": carry}, batch, mutable=["carry"])
        predictions: Any = objective.predictions(outputs)
        return objective.sums(outputs, batch), predictions, left.get("carry", {})

    jitted = jax.jit(step, out_shardings=meshes.replicated(mesh))

    def begun(params: Any, batch: Batch, carry: Any) -> tuple[dict[str, Sum], dict[str, jax.Array], Any]:
        if carry is None:
            shapes = jax.eval_shape(lambda: step(params, batch, {}))[2]
            carry = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jitted(params, batch, carry)

    return begun
