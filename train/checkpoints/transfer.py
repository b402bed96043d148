"""Parameters out of a run's folder: what one training gives to whatever comes after."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from contexture.models.model import Model, build
from contexture.models.shapes import by_path, dims_of, path_of
from contexture.train import mesh as meshes
from contexture.train import run_file
from contexture.train.checkpoints import manager
from contexture.train.config import Run
from contexture.train.errors import CheckpointError, ConfigError
from contexture.train.objectives import objective_of
from contexture.train.optim import lr_multipliers
from contexture.train.run.data import read_tokenizer
from contexture.train.step import State, create

logger = logging.getLogger(__name__)

_MAY_GROW = "VLT"
_TABLES = ("backbone/embeddings/tokens", "heads_lm/table")
"""Those with a row for each piece, which a task of a GPT grows."""


@dataclass(frozen=True)
class Loaded:
    """A model with trained parameters, and the step they are of."""

    model: Model
    params: Any
    step: int


def model_of(run: Run, labels: tuple[str, ...]) -> Model:
    """The model of a run, with the heads that its objective trains; labels: those of its task."""
    return build(run.model, objective_of(run).heads, max(len(labels), 1), run.head)


def find_step(folder: Path, step: int | None) -> list[int]:
    """The steps to try, best first. Raises ConfigError where the run has no checkpoint, or not that of `step`."""
    found = manager.steps(folder / "checkpoints")
    if not found:
        raise ConfigError(f"{folder} holds no checkpoint yet; train it first")
    if step is not None and step not in found:
        raise ConfigError(
            f"{folder} holds no checkpoint of step {step}; those there are of step {', '.join(map(str, found))}"
        )
    return [step] if step is not None else found[::-1]


def _first_good(folder: Path, step: int | None, read: Callable[[Path], Any]) -> Any:
    """What `read` gives for the first checkpoint that it can read. Raises CheckpointError where none is good."""
    bad = []
    for number in find_step(folder, step):
        try:
            return read(folder / "checkpoints" / str(number))
        except CheckpointError as error:
            bad.append(f"step {number}: {error}")
            logger.warning(f"checkpoint of {bad[-1]}")
    raise CheckpointError(f"no good checkpoint in {folder / 'checkpoints'} ({'; '.join(bad)})")


def load_parameters(folder: Path, run: Run, labels: tuple[str, ...], mesh: Mesh, step: int | None = None) -> Loaded:
    """The parameters alone (no optimizer) of a step, or of the newest good checkpoint, cut over the mesh.

    Raises ConfigError where there is no such step, CheckpointError where none is good.
    """
    model = model_of(run, labels)
    _, shapes, shardings = create(model, run, mesh)
    wanted = _wanted(shapes.params, shardings.params)

    def read(directory: Path) -> Loaded:
        params, meta = manager.restore(directory, wanted, mesh, "params")
        return Loaded(model, params, meta["step"])

    return _first_good(folder, step, read)


def _wanted(shapes: Any, shardings: Any) -> Any:
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)


@dataclass(frozen=True)
class Account:
    """What becomes of every parameter: path → its shape. grown: (its shape there, its shape here)."""

    kept: dict[str, list[int]]
    new: dict[str, list[int]]
    grown: dict[str, tuple[list[int], list[int]]]
    dropped: dict[str, list[int]]

    def rows(self) -> list[tuple[str, str, str]]:
        """For a table: what, parameters, which; the kept ones as one row for backbone and each head."""
        rows = []
        for top in dict.fromkeys(path.partition("/")[0] for path in self.kept):
            inside = [shape for path, shape in self.kept.items() if path.partition("/")[0] == top]
            rows.append(("kept", f"{top}/… ({len(inside)} tensors)", f"{sum(map(prod, inside)):,}"))
        rows += [("grown", path, f"{_times(old)} → {_times(new)}") for path, (old, new) in self.grown.items()]
        rows += [("new", path, _times(shape)) for path, shape in self.new.items()]
        return rows + [("dropped", path, _times(shape)) for path, shape in self.dropped.items()]


def _times(shape: list[int]) -> str:
    return "×".join(map(str, shape)) or "1"


def account(there: dict[str, list[int]], here: dict[str, list[int]], run: Run, same_task: bool) -> Account:
    """Which parameters of `there` (the run that is begun from) go into those `here`.

    Heads may come and go; everything else must be accounted for: raises ConfigError for a tensor that is not.
    """
    source = run.init.run
    kinds = ("classify", "regress", "tag", "choice") if same_task else ()
    heads = {"heads_mlm", "heads_nsp", "heads_bilm", "heads_lm", *(f"heads_{kind}" for kind in kinds)}
    found = Account({}, {}, {}, {})
    for path, shape in there.items():
        top = path.partition("/")[0]
        if top.startswith("heads_") and (path not in here or top not in heads or run.init.drop_heads):
            found.dropped[path] = shape
        elif path not in here:
            raise ConfigError(f"{source} holds {path} {shape}, for which this model has no place; give the same model")
        elif here[path] == shape:
            found.kept[path] = shape
        elif run.init.grow and _grows(path, shape, here[path]):
            found.grown[path] = shape, here[path]
        else:
            other = "give the same head, or --init.drop-heads" if top.startswith("heads_") else "give the same model"
            mend = "allow it with --init.grow" if _grows(path, shape, here[path]) else other
            raise ConfigError(f"{source} holds {path} {shape}, this model wants {here[path]}; {mend}")
    for path, shape in here.items():
        if path not in found.kept and path not in found.grown:
            if not path.startswith("heads_"):
                raise ConfigError(f"{source} lacks {path} {shape}, which this model wants; give the same model")
            found.new[path] = shape
    return found


def _grows(path: str, old: list[int], new: list[int]) -> bool:
    """Whether only rows are added: of the vocabulary, the positions, the segments."""
    if len(old) != len(new):
        return False
    pairs = zip(dims_of(path), old, new, strict=True)
    return all(a == b or (a < b and letter in _MAY_GROW) for letter, a, b in pairs)


def begin_from(
    run: Run, labels: tuple[str, ...], pieces: int, fresh: State, mesh: Mesh, table: Callable[..., None]
) -> State:
    """The state `fresh` with the parameters of `run.init.run` put in where they have a place; tells what became of
    each. Of the token table's rows, of which the vocabulary has `pieces` now, those are taken that stood for a token
    there.

    Raises ConfigError for a parameter that is not accounted for, CheckpointError where no checkpoint is good.
    """
    folder = Path(run.init.run)
    if run.init.random:
        logger.info(f"took the model and vocabulary of {folder}; its parameters are initialised randomly")
        return fresh
    source = run_file.read(folder)
    same_task = source.run.task.kind == run.task.kind and source.labels == labels
    grown = run.family == "gpt" and run.task.kind != "off"  # by the special tokens of a task's sequences
    known = read_tokenizer(folder, source).size if grown else pieces
    here = by_path(fresh.params)

    def read(directory: Path) -> State:
        shapes = manager.read_meta_together(directory)["shapes"]
        there = {name.removeprefix("params/"): shape for name, shape in shapes.items() if name.startswith("params/")}
        rows = dict(there)
        if pieces > known:  # what stands behind was never trained for a token
            rows |= {path: [known, *there[path][1:]] for path in _TABLES if path in there}
        found = account(rows, {path: list(x.shape) for path, x in here.items()}, run, same_task)
        taken = [path for path in here if path in found.kept or path in found.grown]
        wanted: dict[str, Any] = {}
        for path in taken:
            *above, name = path.split("/")
            place = wanted
            for part in above:
                place = place.setdefault(part, {})
            shape = tuple(there[path])
            where = meshes.sharding(mesh, dims_of(path), shape)
            place[name] = jax.ShapeDtypeStruct(shape, here[path].dtype, sharding=where)
        restored, meta = manager.restore(directory, wanted, mesh, "params", part=True)
        values = by_path(restored)
        if pieces > known:
            values |= {path: values[path][:known] for path in _TABLES if path in values}
        params = jax.tree_util.tree_map_with_path(lambda keys, x: _put(x, values.get(path_of(keys))), fresh.params)
        table(f"parameters from {folder}, step {meta['step']}", ("what", "parameter", "shape"), found.rows())
        shares = {} if pieces == known else by_path(lr_multipliers(run.optim, params))
        if not np.any(shares.get(_TABLES[0], 1.0)):
            logger.warning(f"{pieces - known} new token embeddings are frozen at their random initial values")
        return fresh.replace(params=params)  # pyright: ignore[reportAttributeAccessIssue]

    return _first_good(folder, run.init.step or None, read)


def _put(x: jax.Array, value: jax.Array | None) -> jax.Array:
    """value in the place of x, or in its first rows."""
    if value is None or value.shape == x.shape:
        return x if value is None else value
    put = jax.jit(lambda x, v: x.at[tuple(slice(n) for n in v.shape)].set(v), out_shardings=x.sharding)
    return put(x, value)
