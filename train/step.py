"""One training step and one evaluation step, jitted over the mesh, the state that they hand on, and the evaluation of
held-out batches."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar, cast

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from contexture.data.batches import HeldOut, iterate
from contexture.data.cancel import NEVER, CancelToken
from contexture.models.families import example
from contexture.models.layers.dropout import DropoutKey, dropout_key
from contexture.models.layers.packed_rows import of_parts
from contexture.models.model import Model, Outputs
from contexture.models.shapes import Params, dims_of, path_of
from contexture.models.sharding import constrain
from contexture.train import mesh as meshes
from contexture.train.objectives import Batch, Objective, Sum, batch_fields, batch_sizes, loss, means
from contexture.train.optim.lora import add_adapters, merged, split
from contexture.train.optim.optimizers import learning_rate_of, lr_multipliers, optimizer
from contexture.train.optim.row_updates import WORDS, TableRows, select_rows
from contexture.train.programs import Shapes, StepSettings, shapes_of, shared
from contexture.train.settings.run import Run

T = TypeVar("T")
Carry: TypeAlias = Params
"""State that a sequence of a batch hands on to the same row of the next one (ELMo's LSTM states); {} for the others."""
Metrics: TypeAlias = dict[str, jax.Array]
Predictions: TypeAlias = dict[str, jax.Array]
GradFn: TypeAlias = Callable[[Params, Batch, jax.Array, Carry], tuple[Params, tuple[dict[str, Sum], Carry]]]
"""(params, batch, numbers of its sequences, carry) → (gradient, (sums, next carry))."""
EvaluationStep: TypeAlias = Callable[[Params, Batch, Carry | None], tuple[dict[str, Sum], Predictions, Carry]]
Computed: TypeAlias = tuple[int, dict[str, Sum], dict[str, np.ndarray]]
"""The number of a batch, its sums, its predictions."""


@flax.struct.dataclass
class State:
    """All that a training step changes.

    Args:
        step: i32, steps so far, the skipped ones included
        opt: the optimizer's moments; none for a backbone that is frozen
        skipped: i32, steps so far whose loss or gradient was not finite
        skipped_in_row: i32, how many of the latest steps were skipped in a row
    """

    step: jax.Array
    params: Params
    opt: optax.OptState
    skipped: jax.Array
    skipped_in_row: jax.Array
    carry: Carry = flax.struct.field(default_factory=dict)


@shared
def create(model: Model, run: Run, mesh: Mesh) -> tuple[Callable[[int], State], State, State]:
    """Returns (draw, shapes, shardings) of a fresh state: `draw(seed)` creates it sharded over the mesh."""
    tx = optimizer(run.optim)

    def state(key: jax.Array) -> State:
        variables = _variables(model, run, key)
        zero, params = jnp.zeros((), jnp.int32), variables["params"]
        # The model was initialised on one sequence, so the batch size replaces the first dim of each carry. Without
        # adapters or a frozen backbone `split` leaves all parameters in its second part.
        carry = jax.tree.map(lambda x: jnp.zeros((run.data.batch, *x.shape[1:]), x.dtype), variables.get("carry", {}))
        return State(zero, params, tx.init(split(params, run.optim)[1]), zero, zero, carry)

    # Only shapes are computed here; the compiled function creates each array where it lives, never whole on one device.
    # Of the key too only the shape: the devices of a plan are not there, and can make none.
    shapes = jax.eval_shape(state, jax.eval_shape(jax.random.key, 0))
    shardings = meshes.state_shardings(mesh, shapes, shapes.params)
    # It runs once: a CPU's code for it is compiled in half of the time if little optimised, and gives the same bits.
    options = {"xla_backend_optimization_level": 1} if mesh.devices.flat[0].platform == "cpu" else None
    jitted = jax.jit(state, out_shardings=shardings, compiler_options=options)
    return lambda seed: jitted(jax.random.key(seed)), shapes, shardings


@shared
def parameter_shapes(model: Model, run: Run, mesh: Mesh) -> Params:
    """Returns the shapes of a run's parameters alone, with the shardings that they have in its state."""
    shapes = jax.eval_shape(lambda key: _variables(model, run, key)["params"], jax.eval_shape(jax.random.key, 0))
    shardings = meshes.state_shardings(mesh, shapes, shapes)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)


def _variables(model: Model, run: Run, key: jax.Array) -> dict[str, Params]:
    """Returns fresh parameters with adapters, and the carry of a batch of one sequence."""
    variables = model.init(key, example(batch_fields(run), batch_sizes(run, 1)))
    return {**variables, "params": add_adapters(variables["params"], run, key)}


@dataclasses.dataclass(frozen=True)
class TrainStep:
    """The step (state, batch, settings) → (state, metrics), where settings are `step_settings` of the run.

    The state given is donated. A loss or a gradient that is not finite changes no parameter and no moment. Metrics are
    scalars, the same on every device.
    """

    jitted: Any
    _compiled: set[Shapes] = dataclasses.field(default_factory=set)

    def __call__(self, state: State, batch: Batch, settings: StepSettings) -> tuple[State, Metrics]:
        # jax.jit compiles for each shape; the set only says whether to announce a compilation.
        self._compiled.add(shapes_of(batch))
        return self.jitted(state, batch, settings)

    def is_compiled_for(self, batch: Batch) -> bool:
        """Returns whether it was called with a batch of these shapes, by this run or one that shares it."""
        return shapes_of(batch) in self._compiled


@shared
def train_step(
    model: Model, objective: Objective, run: Run, mesh: Mesh, fields: dict[str, str] | None = None
) -> TrainStep:
    """Returns the jitted step of a run. fields: of its batches, {"tokens": "i32 BL"}; None: `batch_fields(run)`."""
    tx, shardings = optimizer(run.optim), create(model, run, mesh)[2]
    dims = {**{name: kind.partition(" ")[2] for name, kind in (fields or batch_fields(run)).items()}, **WORDS}
    on_one_cpu = [device.platform for device in mesh.devices.flat] == ["cpu"]

    def step(state: State, batch: Batch, settings: StepSettings) -> tuple[State, Metrics]:
        # Taken over the whole batch, so that the losses of its parts add up to its own.
        weights = objective.weights(batch)
        # From here on a backbone that is frozen is a constant of the step, and all else the parameters.
        frozen, trained = split(state.params, run.optim)
        whole = state = dataclasses.replace(state, params=trained)
        batch, rows = select_rows(run, batch)
        if rows is not None:
            # From here on a large table is the rows that the batch reads, and all else is as with a small one.
            state = dataclasses.replace(state, params=rows.take(whole.params), opt=rows.take(whole.opt))
        multipliers = lr_multipliers(run.optim, state.params)

        def part_loss(
            params: Params, part: Batch, row_B: jax.Array, carry: Carry
        ) -> tuple[jax.Array, tuple[dict[str, Sum], Carry]]:
            if multipliers is not None:
                params = _stop_frozen(params, multipliers)
            params = merged({**frozen, **params}, run.optim)
            outputs, carry = _forward(
                model, params, part, carry, dropout_key(settings.seed, state.step, row_B), run.optim.freezes_backbone
            )
            sums = objective.sums(outputs, part)
            return loss(objective, sums, weights), (sums, carry)

        grad_fn = jax.grad(part_loss, has_aux=True)
        grads, sums, carry = _accumulate(grad_fn, state, batch, dims, run.optim.accumulate)
        grads = _shard_gradient(grads, whole.params, rows)
        if multipliers is not None:
            # Of an array that layers share, stop_gradient spares no part. What is frozen must not count in the norm.
            grads = jax.tree.map(lambda g, m: g * (m > 0), grads, multipliers)
        total, norm = loss(objective, sums, weights), optax.tree.norm(grads)
        lr = learning_rate_of(run, state.step, settings.peak_lr)
        finite = jnp.isfinite(total) & jnp.isfinite(norm)
        params, opt = _apply_update(tx, state, grads, lr, multipliers, finite, on_one_cpu)
        if rows is not None:
            params, opt = rows.put(whole.params, params), rows.put(whole.opt, opt)
        # NaN in a hidden state would never leave it again: such a carry starts over from zeros.
        carry_finite = _all_finite(carry)
        new = State(
            step=state.step + 1,
            params={**frozen, **params},
            opt=opt,
            skipped=state.skipped + jnp.where(finite, 0, 1),
            skipped_in_row=jnp.where(finite, 0, state.skipped_in_row + 1),
            carry=jax.tree.map(lambda x: jnp.where(carry_finite, x, jnp.zeros_like(x)), carry),
        )
        metrics = {"loss": total, **means(sums), "learning_rate": lr, "grad_norm": norm}
        return new, {**metrics, "skipped": new.skipped, "skipped_in_row": new.skipped_in_row}

    options = meshes.compiler_options(run.mesh, mesh)
    results = (shardings, meshes.replicated(mesh))
    return TrainStep(jax.jit(step, donate_argnums=0, out_shardings=results, compiler_options=options or None))


def _forward(
    model: Model, params: Params, batch: Batch, carry: Carry, key: DropoutKey | None, frozen: bool = False
) -> tuple[Outputs, Carry]:
    """Returns (the model's outputs, the next carry)."""
    # The carry is a mutable collection, so that the trainer need not know which family has one; key None is no dropout.
    outputs, mutated = model.apply({"params": params, "carry": carry}, batch, key, frozen=frozen, mutable=["carry"])
    return cast(Outputs, outputs), cast(dict[str, Carry], mutated).get("carry", {})


def _stop_frozen(params: Params, multipliers: Params) -> Params:
    """Stops the gradient at parameters that are frozen whole: the backward pass need not reach them."""
    return jax.tree.map(lambda p, m: p if m.any() else jax.lax.stop_gradient(p), params, multipliers)


def _accumulate(
    grad_fn: GradFn, state: State, batch: Batch, dims: dict[str, str], parts: int
) -> tuple[Params, dict[str, Sum], Carry]:
    """Σ over `parts` microbatches of (gradient, sums), and the carry of the whole batch.

    The microbatches run one after the other, so that only one of them has its activations in memory.

    Args:
        grad_fn: gradient and sums of one microbatch.
        state: gives the parameters and the carry.
        batch: the whole batch.
        dims: letters of the batch's fields, {"tokens": "BL"}.
        parts: number of microbatches.
    """
    # Fields with a row for each example are divided, and rows that sequences share; the carry is divided alike.
    by_row = {name: x for name, x in batch.items() if dims[name][0] in "BX"}
    # Dropout is drawn by a sequence's number in the whole batch: the masks do not depend on how it is divided.
    row_B = jnp.arange(next(len(x) for name, x in by_row.items() if dims[name][0] == "B"))
    if parts == 1:
        grads, (sums, carry) = grad_fn(state.params, batch, row_B, state.carry)
        return grads, sums, carry
    by_row = of_parts(by_row, parts)
    # Fields of the whole batch (ELMo's distinct words) are the same in every microbatch.
    shared = {name: x for name, x in batch.items() if name not in by_row}
    microbatches = (_split(by_row, parts), row_B.reshape(-1, parts).T, _split(state.carry, parts))

    # Constrained again for each microbatch, whose rows every device already holds a share of.
    def run_part(part: tuple[Batch, jax.Array, Carry]) -> tuple[tuple[Params, dict[str, Sum]], Carry]:
        fields, row_B, carry = part
        fields = {name: constrain(x, dims[name]) for name, x in fields.items()}
        grads, (sums, carry) = grad_fn(state.params, {**shared, **fields}, row_B, carry)
        return (grads, sums), carry

    def add(
        totals: tuple[Params, dict[str, Sum]], part: tuple[Batch, jax.Array, Carry]
    ) -> tuple[tuple[Params, dict[str, Sum]], Carry]:
        terms, carry = run_part(part)
        return jax.tree.map(jnp.add, totals, terms), carry

    # The totals start at zeros of the shapes that one microbatch gives; eval_shape computes nothing.
    shapes = jax.eval_shape(lambda: run_part(jax.tree.map(lambda x: x[0], microbatches))[0])
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    # No division here: each part's loss has the weight of the whole batch in its denominator, so gradients just add up.
    (grads, sums), carry = jax.lax.scan(add, zeros, microbatches)
    return grads, sums, _join(carry)


def _split(rows: T, parts: int) -> T:
    """Splits each array BX into [parts, B/parts, X]: part m holds the rows m, m + parts, m + 2·parts, …

    Strided, so that every device has rows of each part where it holds them already.
    """
    # Row r of the batch is row r // parts of microbatch r % parts, like the row numbers above.
    return jax.tree.map(lambda x: jnp.moveaxis(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 1, 0), rows)


def _join(rows: T) -> T:
    """Undoes _split: [parts, B/parts, X] → BX."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(-1, *x.shape[2:]), rows)


def _shard_gradient(grads: Params, params: Params, rows: TableRows | None) -> Params:
    """Shards each gradient as its parameter: the sum over devices may then be a reduce-scatter."""
    tables = rows.tables if rows is not None else ()

    # A table's gradient has only the rows of this batch, so the table's own dims do not fit; `rows.shard` follows.
    def of_leaf(keys: tuple[object, ...], gradient: jax.Array) -> jax.Array:
        path = path_of(keys)
        return gradient if path in tables else constrain(gradient, dims_of(path))

    grads = jax.tree_util.tree_map_with_path(of_leaf, grads)
    # The rows of a batch lie all over a table, so their first dim is whole where the table's is sharded.
    return grads if rows is None else rows.shard(grads, params)


def _apply_update(
    tx: optax.GradientTransformation,
    state: State,
    grads: Params,
    lr: jax.Array,
    multipliers: Params | None,
    finite: jax.Array,
    on_one_cpu: bool,
) -> tuple[Params, optax.OptState]:
    """Returns p - lr·multiplier·update and the optimizer's new moments; both unchanged where `finite` is False."""
    updates, opt = tx.update(grads, state.opt, state.params)
    if multipliers is not None:
        updates = jax.tree.map(lambda u, m: u * m, updates, multipliers)
    # Float32 for the sum even where parameters are stored in fewer bits: lr is float32, and the result is cast back.
    params = jax.tree.map(lambda p, u: (p - lr * u).astype(p.dtype), state.params, updates)
    # A selection and no branch: both sides are computed anyway, and the device never waits for the host's verdict.
    params = jax.tree.map(lambda new, old: jnp.where(finite, new, old), params, state.params)
    keeps = finite & _after(params) if on_one_cpu else finite
    opt = jax.tree.map(lambda new, old: jnp.where(keeps, new, old), opt, state.opt)
    return params, opt


def _after(params: Params) -> jax.Array:
    """Always True, but computed from `params`: forces XLA to compute the parameters before it overwrites the moments.

    New parameters and new moments are both made of the old moments, which are donated. XLA on a CPU knows of no order
    between the two, and would copy the old moments (twice the parameters) to be safe. With this dependency the
    parameters come first, and the moments are overwritten in place.
    """
    # Nothing is greater than inf, not even NaN, but XLA does not simplify the comparison. One number of each array is
    # enough. On several devices that number would be a message, so the trick is for one device alone.
    return jnp.stack([~(x[(0,) * x.ndim] > jnp.inf) for x in jax.tree.leaves(params) if x.size]).all()


def _all_finite(carry: Carry) -> jax.Array:
    # The leading True makes the stack non-empty for families without a carry.
    return jnp.stack([jnp.bool_(True), *(jnp.isfinite(x).all() for x in jax.tree.leaves(carry))]).all()


@shared
def evaluation_step(model: Model, objective: Objective, mesh: Mesh) -> EvaluationStep:
    """Returns the jitted (params, batch, carry) → (sums, predictions, next carry), without dropout.

    carry comes from the previous batch; None before the first. All results are whole on every process.
    """

    def step(params: Params, batch: Batch, carry: Carry) -> tuple[dict[str, Sum], Predictions, Carry]:
        outputs, carry = _forward(model, params, batch, carry, None)
        return objective.sums(outputs, batch), objective.predictions(outputs), carry

    jitted = jax.jit(step, out_shardings=meshes.replicated(mesh))

    def with_carry(params: Params, batch: Batch, carry: Carry | None) -> tuple[dict[str, Sum], Predictions, Carry]:
        # The first batch gets zeros of the shapes that the step hands on: one program, traced once, serves all batches.
        if carry is None:
            shapes = jitted.eval_shape(params, batch, {})[2]
            carry = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jitted(params, batch, carry)

    return with_carry


def computed(
    step: EvaluationStep,
    params: Params,
    held_out: HeldOut,
    mesh: Mesh,
    carry: Carry | None = None,
    cancel: CancelToken = NEVER,
) -> Iterator[Computed]:
    """Yields the outputs of the step for each batch, in order.

    A batch is fetched only once the next one has been started: the device works while the host writes.

    Args:
        step: the jitted evaluation step.
        params: of the model, on the mesh.
        held_out: the batches.
        mesh: the devices.
        carry: the state before the first batch; None lets the step make zeros.
        cancel: may raise to stop the work.
    """
    # Each process reads the rows of its own devices; sums and predictions come back whole to all of them.
    rows = meshes.local_rows(mesh, held_out.batch)
    before: tuple[int, dict[str, Sum], Predictions] | None = None
    with iterate(held_out, 0, held_out.steps, rows) as stream:
        for number, local in stream:
            cancel.check()
            # The call returns at once; `before` is fetched while the devices compute this batch.
            batch = meshes.shard_batch(mesh, local, held_out.fields, held_out.batch)
            sums, predictions, carry = step(params, batch, carry)
            if before is not None:
                yield jax.device_get(before)
            before = number, sums, predictions
    if before is not None:
        yield jax.device_get(before)
