"""A step that updates the rows it reads is the step that updates the whole table."""

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from contexture.data.config import DataConfig
from contexture.models.config import ElmoConfig
from contexture.models.families import build, example
from contexture.models.shapes import by_path
from contexture.train import mesh as meshes
from contexture.train import programs
from contexture.train import step as steps
from contexture.train.objectives import OBJECTIVES, batch_fields, batch_sizes
from contexture.train.optim.row_updates import _shard_rows, select_rows
from contexture.train.plan.plan import CompiledPlan, plan
from contexture.train.plan.topology import topology
from contexture.train.programs import step_settings
from contexture.train.settings.run import Run
from contexture.train.settings.sections import MeshConfig, OptimConfig
from tests.helpers.long import long
from tests.helpers.parity_rule import close
from tests.helpers.random_runs import drawn

V, B, STEPS = 401, 8, 3
RUN = Run(
    model=ElmoConfig(
        vocab=V, char_width=4, filters=((1, 4), (2, 4)), highway=0, layers=1, cells=16, projection=8, dropout=0.1
    ),
    data=DataConfig(batch=B, length=4, vocabulary="words", word_types=16, negatives=12),
    optim=OptimConfig(
        name="adagrad", schedule="linear", peak_lr=0.2, warmup=0, final_lr=1.0, weight_decay=0.0, clip=1.0,
        gradient_scale=20.0,
    ),
    steps=10,
)  # fmt: skip
TABLES = ("heads_bilm/kernel", "heads_bilm/bias")
Batch = dict[str, np.ndarray]


def batch_of(number: int) -> Batch:
    """A batch whose words stand in it once, twice or more often, also as negatives."""
    rng = np.random.default_rng(number)
    batch = {name: np.asarray(x).copy() for name, x in example(batch_fields(RUN), batch_sizes(RUN, B)).items()}
    batch["types"] = rng.integers(1, 262, batch["types"].shape).astype(np.int32)
    for name in ("index", "index_backward"):
        batch[name] = rng.integers(3, 16, batch[name].shape).astype(np.int32)
    for name in ("next", "next_backward"):
        batch[name] = rng.integers(0, 60, batch[name].shape).astype(np.int32)
        batch[name][0] = (V - 1, 0, 7, 7)
    batch["negatives"] = np.stack([rng.choice(90, 12, False) for _ in range(2)]).astype(np.int32)
    batch["tries"] = np.full(2, 20.0, np.float32)
    return batch


def read(batch: Batch) -> np.ndarray:
    return np.unique(np.concatenate([batch[name].ravel() for name in ("next", "next_backward", "negatives")]))


@cache
def stepper(shape: tuple[int, int, int], accumulate: int, whole: bool) -> tuple[Any, Any, Any, Any]:
    """(the mesh, the first state, its shardings, the step), each compiled once."""
    run = dataclasses.replace(RUN, optim=dataclasses.replace(RUN.optim, accumulate=accumulate))
    mesh = meshes.build(MeshConfig(data=shape[0], fsdp=shape[1], tensor=shape[2]), jax.devices()[: int(np.prod(shape))])
    objective = OBJECTIVES["bilm"]
    with jax.set_mesh(mesh), pytest.MonkeyPatch.context() as patch:
        # A step of the whole table has the settings of one by rows, whose program it would get.
        patch.setattr(programs, "_kept", OrderedDict())
        _, shapes, shardings = steps.create(build(run.model, objective.heads), run, mesh)
        step = steps.train_step(build(run.model, objective.heads), objective, run, mesh)
    return mesh, drawn(shapes, moments=1.0), shardings, step


def train(
    shape: tuple[int, int, int] = (1, 1, 1),
    poison: int = -1,
    given: list[Any] | None = None,
    accumulate: int = 1,
    whole: bool = False,
) -> tuple[list[Any], list[Any]]:
    """(metrics of each step, the states before the first step and after each).

    poison: the step where a weight is NaN. given: the states to start from, if not where the step before has ended.
    whole: the step updates the whole table.
    """
    mesh, fresh, shardings, step = stepper(shape, accumulate, whole)
    with jax.set_mesh(mesh), pytest.MonkeyPatch.context() as patch:
        if whole:
            patch.setattr(steps, "select_rows", lambda run, batch: (batch, None))
        metrics, states = [], [fresh]
        for number in range(STEPS):
            batch = batch_of(number)
            if number == poison:
                batch["next_weights"][1, 2] = np.nan
            start = jax.device_put(given[number] if given else states[-1], shardings)
            result = step(start, meshes.shard_batch(mesh, batch, batch_fields(RUN), B), step_settings(RUN))
            state, measured = jax.device_get(result)
            states.append(state)
            metrics.append(measured)
    return metrics, states


def near(got: Any, expected: Any) -> None:
    """Each array to a millionth of its largest number; counts and zeros are the same."""
    for (path, a), b in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        if np.issubdtype(np.asarray(b).dtype, np.integer) or not np.any(b):
            assert np.array_equal(a, b), path
        else:
            close(a, b, str(path), 1e-6)


@pytest.fixture(scope="module")
def by_rows() -> tuple[list[Any], list[Any]]:
    return train()


@pytest.fixture(scope="module")
def dense(by_rows) -> tuple[list[Any], list[Any]]:
    """Each step from the state that the step by rows starts from."""
    return train(given=by_rows[1], whole=True)


def test_a_step_by_rows_is_the_step_on_the_whole_table(by_rows, dense):
    """Parameters, accumulators, the norm that the gradient is clipped at, the loss."""
    assert stepper((1, 1, 1), 1, False)[3].jitted is not stepper((1, 1, 1), 1, True)[3].jitted
    assert all(metrics["grad_norm"] * RUN.optim.gradient_scale > RUN.optim.clip for metrics in by_rows[0])
    near(by_rows[0], dense[0])
    for got, expected in zip(by_rows[1], dense[1], strict=True):
        near(got, expected)
        assert jax.tree.structure(got) == jax.tree.structure(expected)


def test_rows_of_other_words_keep_their_bits_and_read_ones_move(by_rows):
    states = [by_path({"params": state.params, "opt": state.opt}) for state in by_rows[1]]
    tables = [path for path in states[0] if path.endswith(TABLES)]
    assert len(tables) == 4
    for number, (before, after) in enumerate(zip(states, states[1:], strict=False)):
        others = np.setdiff1d(np.arange(V), read(batch_of(number)))
        assert 0 < others.size < V
        for path in tables:
            moved = (before[path] != after[path]).reshape(V, -1).any(1)
            assert not moved[others].any() and moved[[V - 1, 0, 7]].all(), path


@pytest.mark.long
def test_a_step_by_rows_in_parts_is_the_whole_step(by_rows):
    metrics, states = train(accumulate=4, given=by_rows[1])
    near(metrics, by_rows[0])
    for got, expected in zip(states, by_rows[1], strict=True):
        near((got.params, got.opt), (expected.params, expected.opt))


def test_a_skipped_step_changes_no_row(by_rows):
    metrics, states = train(poison=1)
    assert [int(m["skipped"]) for m in metrics] == [0, 1, 1]
    for before, after in ((states[1].params, states[2].params), (states[1].opt, states[2].opt)):
        assert all(jax.tree.leaves(jax.tree.map(np.array_equal, before, after)))


@pytest.mark.parametrize(
    ("shape", "parts"),
    long(((1, 4, 2), 2), ((2, 2, 2), 1), ((8, 1, 1), 1)),
)
def test_a_step_by_rows_is_the_same_on_eight_devices(by_rows, shape, parts):
    metrics, states = train(shape, given=by_rows[1], accumulate=parts)
    near(metrics, by_rows[0])
    for got, expected in zip(states, by_rows[1], strict=True):
        near((got.params, got.opt), (expected.params, expected.opt))


@pytest.mark.parametrize(
    ("shape", "vocab"),
    long(((2, 2, 2), V), ((1, 2, 4), V - 1), ((2, 2, 2), V - 1)),
)
def test_no_device_is_sent_rows_that_the_partitioner_cannot_move(shape, vocab):
    """Where tensor divides the vocabulary, and where it divides the width alone. Nor are rows cut by another dim."""
    data, fsdp, tensor = shape
    model, mesh = dataclasses.replace(RUN.model, vocab=vocab), MeshConfig(data=data, fsdp=fsdp, tensor=tensor)
    made = plan(dataclasses.replace(RUN, model=model, mesh=mesh), topology("cpu:8"))
    assert made["warnings"] == [] and "all-to-all" not in cast(CompiledPlan, made)["collectives"]


@pytest.mark.parametrize(
    "changed",
    [
        {"optim": dataclasses.replace(RUN.optim, weight_decay=0.01)},
        {"optim": OptimConfig(name="adamw")},
        {"data": dataclasses.replace(RUN.data, negatives=0)},
        {"model": dataclasses.replace(RUN.model, vocab=80)},
    ],
)
def test_where_other_rows_move_or_all_are_read_the_table_is_whole(changed):
    """Under weight decay, with Adam's moments, in the full softmax, and for a batch of more words than rows."""
    batch = {name: jnp.asarray(x) for name, x in batch_of(0).items()}
    assert select_rows(RUN, batch)[1] is not None
    run = dataclasses.replace(RUN, **changed)
    if not run.data.negatives:
        batch = {name: x for name, x in batch.items() if name not in ("negatives", "tries")}
    same, rows = select_rows(run, batch)
    assert rows is None and same is batch


def table_reads(function: Callable[..., Any], *args: Any) -> dict[str, int]:
    """How many operations of a traced program, those of its loops and functions included, have a table of V rows as
    operand or result; {"gather": 2, "scatter": 2}."""
    counts: dict[str, int] = {}

    def visit(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            inner = [x for value in equation.params.values() for x in (value if isinstance(value, tuple) else (value,))]
            inner = [getattr(x, "jaxpr", x) for x in inner]
            inner = [x for x in inner if hasattr(x, "eqns")]
            if inner:
                for each in inner:
                    visit(each)
            elif any(getattr(x.aval, "shape", ())[:1] == (V,) for x in [*equation.invars, *equation.outvars]):
                counts[equation.primitive.name] = counts.get(equation.primitive.name, 0) + 1

    visit(jax.make_jaxpr(function)(*args).jaxpr)
    return counts


def test_a_step_reads_and_writes_the_rows_of_each_table_once(by_rows):
    """Kernel and bias, and their accumulators: a gather and a scatter each, and nothing else as large as they are."""
    mesh, _, _, step = stepper((1, 1, 1), 1, False)
    with jax.set_mesh(mesh):
        counts = table_reads(step.jitted, by_rows[1][0], batch_of(0), step_settings(RUN))
    assert counts == {"gather": 4, "scatter": 4}


@pytest.mark.parametrize(("axes", "placed"), [({"fsdp": 2, "tensor": 2}, (None, "fsdp")), ({"data": 2}, ())])
def test_rows_are_sharded_as_their_table_but_for_the_first_dim(axes, placed):
    mesh = meshes.build(MeshConfig(**axes), jax.devices()[: int(np.prod([*axes.values()]))])
    rows, table = np.arange(64, dtype=np.float32).reshape(4, 16), np.zeros((8, 16), np.float32)
    with jax.set_mesh(mesh):
        result = jax.jit(functools.partial(_shard_rows, dims="VD"))(rows, table=table)
    assert np.array_equal(result, rows)
    assert result.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec(*placed)), 2)
