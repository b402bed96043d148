"""Runs as a training leaves them, without the training: what their checkpoints hold is drawn at random.

All else of a run is the program's own: data, vocabulary, run.json, metrics.jsonl, checkpoints. It takes a fifth of a
run's time, whose half is the compilation of the first state and of the step.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from contexture.models.layers.stacked import unstack_layers
from contexture.models.model import Model
from contexture.models.shapes import path_of
from contexture.train import loop
from contexture.train.evaluation.evaluate import evaluate
from contexture.train.optim.lora import ADAPTERS
from contexture.train.session import Session
from contexture.train.settings.run import Run
from contexture.train.step import State
from tests.helpers.commands import devices, done
from tests.helpers.small_text import SUFFIX

Once: TypeAlias = Callable[[str, Callable[[Path], None]], Path]
DEVIATIONS = {
    "bias": 0.01, "heads_span": 0.02, "heads_": 0.06, "query": 0.15, "key": 0.15, "value": 0.5,
    "['out']['kernel']": 0.5, "tokens": 0.5,
}  # fmt: skip
"""Of the noise of parameters, by the first of these that their name holds."""


def drawn(shapes: State, seed: int = 0, moments: float = 0.0) -> State:
    """A first state of these shapes: numbers of deviation 0.1, norms about one, moments as given; adapters add zero."""
    state = dataclasses.replace(zeros(shapes, seed), params=_numbers(shapes.params, seed, 0.1))
    return _with_moments(state, moments)


def _with_moments(state: State, moments: float) -> State:
    opt = jax.tree.map(lambda x: x if np.issubdtype(x.dtype, np.integer) else x + x.dtype.type(moments), state.opt)
    return dataclasses.replace(state, opt=opt)


def random_parameters(model: Model, batch: Any, seed: int = 0, deviation: float = 0.5) -> Any:
    """Parameters of a model that reads such a batch, which nothing is compiled for."""
    shapes: Any = jax.eval_shape(lambda: model.init(jax.random.key(0), batch)["params"])
    return _numbers(shapes, seed, deviation)


def _numbers(shapes: Any, seed: int, deviation: float) -> Any:
    rng = np.random.default_rng(seed)

    def numbers(keys: Any, x: Any) -> np.ndarray:
        path = path_of(keys)
        own = 0.0 if path.startswith(ADAPTERS) and path.endswith("/b") else deviation
        return (own * rng.standard_normal(x.shape) + ("scale" in path)).astype(x.dtype)

    return jax.tree_util.tree_map_with_path(numbers, shapes)


def zeros(shapes: State, _: int) -> State:
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)


@contextmanager
def first_states(make: Callable[[State, int], State] = drawn) -> Iterator[None]:
    """Trainings in this process begin with states made of their shapes and seed, which nothing is compiled for."""
    created = loop.create

    def create(model: Model, run: Run, mesh: Mesh) -> tuple[Callable[[int], State], State, State]:
        _, shapes, shardings = created(model, run, mesh)
        moments = float(run.optim.name == "adagrad")  # its sums begin at 1
        return lambda seed: jax.device_put(_with_moments(make(shapes, seed), moments), shardings), shapes, shardings

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "create", create)
        yield


@contextmanager
def random_training(*saved: int, evaluates: bool = False) -> Iterator[None]:
    """A training in this process saves these steps at once; the last are the run's. evaluates: it measures them.

    Where nothing is measured, the first of the steps is recorded as the best.
    """

    def run_steps(session: Session) -> None:
        parts, state, report, checkpoints = session.parts, session.state, session.report, session.checkpoints
        run, first, recorded = parts.run, state.params, session.start
        rng = np.random.default_rng([recorded, run.seed, round(1e6 * run.optim.peak_lr)])
        for step in saved:
            params = jax.tree_util.tree_map_with_path(functools.partial(_moved, rng, run.task.kind == "off"), first)
            if run.optim.freezes_backbone:
                params = {**params, "backbone": first["backbone"]}
            number = jax.device_put(np.asarray(step, np.int32), state.step.sharding)
            opt = jax.tree.map(functools.partial(_grown, np.random.default_rng([run.seed, step])), state.opt)
            state = dataclasses.replace(state, params=params, opt=opt, step=number)
            held: dict[str, float] = {"loss": 1 - 1 / step}
            if evaluates:
                whole = unstack_layers(params, parts.run.model)
                assert parts.held_out is not None
                held, _ = evaluate(session.evaluation, parts.objective, whole, parts.held_out, parts.mesh)
            records: list[dict[str, Any]] = [
                {"step": each, "split": "train", "loss": 1 / each} for each in range(recorded + 1, step + 1)
            ]
            records += [{"step": step, "split": "dev", **held, **parts.baseline}] * (parts.held_out is not None)
            report.record(records, checkpoints.finished)
            session.best.update(step, held["loss"])
            meta = {"seed": run.seed, "lines_read": 0, "best": dataclasses.asdict(session.best), "rank": held["loss"]}
            checkpoints.save(step, state, {**meta, "metric": "loss"}, held["loss"], last=step == saved[-1])
            recorded = session.done = step

    with pytest.MonkeyPatch.context() as patch, first_states(zeros), devices(1):
        patch.setattr(loop, "_run_steps", run_steps)
        yield


def _moved(rng: np.random.Generator, evenly: bool, path: Any, x: jax.Array) -> jax.Array:
    """The numbers with noise beside them: of a task much where a text's tokens come in, so that they decide what comes
    out, and little in heads and where rounding errors grow; of a model of language evenly."""
    name = jax.tree_util.keystr(path)
    own = (of for part, of in DEVIATIONS.items() if part in name and (not evenly or part == "bias"))
    deviation = next(own, 0.15 if evenly else 0.1)
    added = np.ones(x.shape) if "scale" in name else rng.normal(0, deviation, x.shape)
    return jax.device_put(np.asarray(x) + added.astype(x.dtype), x.sharding)


def _grown(rng: np.random.Generator, x: jax.Array) -> jax.Array:
    """Moments of an optimizer that has seen gradients: positive numbers, which no compression makes small."""
    if not np.issubdtype(x.dtype, np.floating):
        return x
    return jax.device_put(np.asarray(x) + np.abs(rng.normal(0, 1e-2, x.shape)).astype(x.dtype), x.sharding)


def random_pretraining(folder: Path, words: list[str], evaluates: bool = True) -> None:
    """A run of text with checkpoints of steps 30 and 40, and the figures of its held-out text."""
    with random_training(30, 40, evaluates=evaluates):
        done(*words, "--dir", folder)


def random_bert(once: Once, words: list[str]) -> Path:
    """The run of text that the tests of all folders share; `once` is the fixture, `words` its command."""
    return once("random/whole", lambda folder: random_pretraining(folder, words))


def random_elmo(once: Once, words: list[str]) -> Path:
    return once("random/elmo", lambda folder: random_pretraining(folder, words, evaluates=False))


def random_task(folder: Path, source: Path, files: Path, kind: str) -> None:
    """A task's run with checkpoints of steps 50 and 60."""
    train, dev = (files / f"{kind}.{split}.{SUFFIX[kind]}" for split in ("train", "dev"))
    own = "classify" if kind == "pairs" else kind
    words = ["finetune", source, "--task.kind", own, "--task.train", train, "--task.dev", dev, "--steps", 60]
    with random_training(50, 60):
        done(*words, "--data.batch", 16, "--save.every", 10, "--log.every", 5, "--dir", folder)
