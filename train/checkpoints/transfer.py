"""Parameters taken from the folder of a run: for evaluation, for predictions, and as the start of another run."""

import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from contexture.models.config import TransformerConfig
from contexture.models.families import build
from contexture.models.layers.stacked import unstack_layers
from contexture.models.model import Model
from contexture.models.shapes import Params, by_path, dims_of, nested, path_of
from contexture.train import mesh as meshes
from contexture.train.checkpoints import manager
from contexture.train.checkpoints.meta import Step, find_steps
from contexture.train.errors import CheckpointError, ConfigError
from contexture.train.objectives import objective_of
from contexture.train.optim.lora import ADAPTERS, merged
from contexture.train.optim.optimizers import lr_multipliers
from contexture.train.run.data import read_tokenizer
from contexture.train.settings import run_file
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import RunRecord
from contexture.train.step import State, parameter_shapes

logger = logging.getLogger(__name__)

T = TypeVar("T")
Shapes: TypeAlias = dict[str, list[int]]
"""The shapes of parameters by their paths."""
ShowTable: TypeAlias = Callable[[str, Iterable[str], Iterable[Iterable[str]]], None]
"""Shows a table: (title, columns, rows)."""
_MAY_GROW = "VLT"
"""Dims of which another run may have more: tokens, positions, segments."""
_POOLER = "backbone/pooler/"
_TABLES = ("backbone/embeddings/tokens", "heads_lm/table")
"""Parameters with a row for each token, which a GPT's task adds tokens to."""


@dataclass(frozen=True)
class Loaded:
    """A model with trained parameters, and the step they are of."""

    model: Model
    params: Params
    step: int

    @functools.cached_property
    def unstacked(self) -> Params:
        """The parameters as forward passes read them (`unstack_layers`), made when first asked for on the current mesh.
        The layers are then in memory twice, as they were in each run of a program that copied them."""
        return unstack_layers(self.params, self.model.config)


def model_of(run: Run, labels: tuple[str, ...]) -> Model:
    """Returns the model of a run with the heads that its objective trains. labels: those of its task."""
    return build(run.model, objective_of(run).heads, max(len(labels), 1), run.head)


def with_attention_of_this_device(run: Run) -> Run:
    """Returns the run with the implementation of attention left to the devices here: it may come from others."""
    if not isinstance(run.model, TransformerConfig):
        return run
    return replace(run, model=replace(run.model, attention="auto"))


def first_good(folder: Path, step: Step, read: Callable[[Path], T]) -> T:
    """Returns the result of `read` for the first checkpoint that it can read.

    Raises CheckpointError if none is good.
    """
    bad = []
    for number in find_steps(folder, step):
        try:
            return read(folder / "checkpoints" / str(number))
        except CheckpointError as error:
            # Whoever trains the run removes checkpoints that are older than those that it keeps.
            there = (folder / "checkpoints" / str(number)).is_dir()
            bad.append(f"step {number}: {error if there else 'removed while it was read'}")
            logger.warning(f"checkpoint of {bad[-1]}")
    raise CheckpointError(f"no good checkpoint in {folder / 'checkpoints'} ({'; '.join(bad)})")


def load_parameters(
    folder: Path,
    run: Run,
    labels: tuple[str, ...],
    mesh: Mesh,
    step: Step = None,
    *,
    merge: bool = True,
) -> Loaded:
    """Returns the parameters alone (no optimizer) of a checkpoint, sharded over the mesh.

    Logs it where the best checkpoint answers and is not the newest. The model gets the attention of the devices here,
    which need not be those that it was trained on.
    Adapters are merged into their kernels, unless `merge` is False.

    Raises ConfigError if there is no such step, CheckpointError if none is good.
    """
    run = with_attention_of_this_device(run)
    model = model_of(run, labels)
    expected = parameter_shapes(model, run, mesh)

    def read(directory: Path) -> Loaded:
        params, meta = manager.restore(directory, expected, mesh, "params")
        return Loaded(model, merged(params, run.optim) if merge else params, meta["step"])

    loaded = first_good(folder, step, read)
    newest = manager.steps(folder / "checkpoints")[-1]
    if loaded.step < newest and (step == "best" or (step is None and run.evaluate.patience)):
        logger.info(f"step {loaded.step} of {folder}, the best {run.evaluate.metric}; the newest is step {newest}")
    return loaded


@dataclass(frozen=True)
class Account:
    """What becomes of every parameter, by path.

    kept     its shape, in both runs
    new      its shape; the source lacks it
    grown    (its shape in the source, its shape now)
    dropped  its shape in the source; the new run lacks it
    """

    kept: Shapes
    new: Shapes
    grown: dict[str, tuple[list[int], list[int]]]
    dropped: Shapes

    def rows(self) -> list[tuple[str, str, str]]:
        """Returns the rows of a table (what, parameter, shape); the kept ones as one row for each head and backbone."""
        rows = []
        for top in dict.fromkeys(path.partition("/")[0] for path in self.kept):
            inside = [shape for path, shape in self.kept.items() if path.partition("/")[0] == top]
            rows.append(("kept", f"{top}/… ({len(inside)} tensors)", f"{sum(map(prod, inside)):,}"))
        rows += [("grown", path, f"{_times(old)} → {_times(new)}") for path, (old, new) in self.grown.items()]
        rows += [("new", path, _times(shape)) for path, shape in self.new.items()]
        return rows + [("dropped", path, _times(shape)) for path, shape in self.dropped.items()]


def _times(shape: list[int]) -> str:
    return "×".join(map(str, shape)) or "1"


def account(stored: Shapes, expected: Shapes, run: Run, same_task: bool) -> Account:
    """Returns which of the `stored` parameters of `run.init.run` go into those that `run` expects.

    Heads may come and go. Raises ConfigError for any other parameter that has no counterpart of its shape.
    """
    source = run.init.run
    # A head fits by its shape also where its classes are others: a task's is kept only for the same task.
    kinds = ("classify", "regress", "tag", "choice", "span") if same_task else ()
    heads = {"heads_mlm", "heads_nsp", "heads_bilm", "heads_lm", *(f"heads_{kind}" for kind in kinds)}
    result = Account({}, {}, {}, {})
    for path, shape in stored.items():
        top = path.partition("/")[0]
        if top.startswith("heads_") and (path not in expected or top not in heads or run.init.drop_heads):
            result.dropped[path] = shape
        elif path not in expected:
            raise ConfigError(f"{source} holds {path} {shape}, for which this model has no place; give the same model")
        elif expected[path] == shape:
            result.kept[path] = shape
        elif run.init.grow and _grows(path, shape, expected[path]):
            result.grown[path] = shape, expected[path]
        else:
            other = "give the same head, or --init.drop-heads" if top.startswith("heads_") else "give the same model"
            mend = "allow it with --init.grow" if _grows(path, shape, expected[path]) else other
            raise ConfigError(f"{source} holds {path} {shape}, this model wants {expected[path]}; {mend}")
    for path, shape in expected.items():
        if path not in result.kept and path not in result.grown:
            if not path.startswith(("heads_", f"{ADAPTERS}/")):
                raise ConfigError(f"{source} lacks {path} {shape}, which this model wants; give the same model")
            result.new[path] = shape
    return result


def _grows(path: str, old: list[int], new: list[int]) -> bool:
    """Returns whether only rows are added: of the vocabulary, the positions, the segments."""
    if len(old) != len(new):
        return False
    pairs = zip(dims_of(path), old, new, strict=True)
    return all(a == b or (a < b and letter in _MAY_GROW) for letter, a, b in pairs)


def begin_from(
    run: Run, labels: tuple[str, ...], vocab_size: int, fresh: State, mesh: Mesh, show_table: ShowTable
) -> State:
    """Returns the state `fresh` with the parameters of `run.init.run` where it has them; shows what becomes of each.

    vocab_size: tokens of the new run's vocabulary. Raises ConfigError for a parameter that is not accounted for,
    CheckpointError if no checkpoint is good.
    """
    folder = Path(run.init.run)
    if run.init.random:
        logger.info(f"took the model and vocabulary of {folder}; its parameters are initialised randomly")
        return fresh
    record = run_file.read(folder)
    same_task = record.run.task.kind == run.task.kind and record.labels == labels
    source_vocab = _source_vocab_size(run, folder, record, vocab_size)

    def read(directory: Path) -> State:
        # Plan: what goes where, from shapes alone. Nothing large is read before all is accounted for.
        stored = _stored_shapes(directory)
        adapters = [path for path in stored if path.startswith(f"{ADAPTERS}/")]
        own = {path: shape for path, shape in stored.items() if path not in adapters}
        plan = account(_without_spare_rows(own, vocab_size, source_vocab), _shapes(fresh.params), run, same_task)
        # Load what is taken, as it is stored; then merge it into the fresh parameters.
        source, step = _load(directory, [*plan.kept, *plan.grown, *adapters], stored, fresh.params, mesh)
        if adapters:
            source = by_path(merged(nested(source), record.run.optim))
            logger.info(f"merged the adapters of {folder} into its kernels")
        if vocab_size > source_vocab:
            source |= {path: source[path][:source_vocab] for path in _TABLES if path in source}
        params = _merge(fresh.params, source)
        rows = plan.rows()
        if run.init.redraw_layers:
            params = redraw_layers(params, fresh.params, run.init.redraw_layers)
            rows.append(_redrawn_row(params, run.init.redraw_layers))
        show_table(f"parameters from {folder}, step {step}", ("what", "parameter", "shape"), rows)
        _warn_of_frozen_tokens(run, params, vocab_size - source_vocab)
        return fresh.replace(params=params)  # pyright: ignore[reportAttributeAccessIssue]

    return first_good(folder, run.init.step or None, read)


def _source_vocab_size(run: Run, folder: Path, record: RunRecord, vocab_size: int) -> int:
    """Returns how many tokens of the new vocabulary the source was trained on.

    A task may add tokens, those that mark a GPT's sequences (Radford et al. 2018, section 3.3).
    """
    adds_tokens = bool(run.text.task_tokens) and run.task.kind != "off"
    return read_tokenizer(folder, record).size if adds_tokens else vocab_size


def _stored_shapes(directory: Path) -> Shapes:
    shapes = manager.read_meta_together(directory)["shapes"]
    return {name.removeprefix("params/"): shape for name, shape in shapes.items() if name.startswith("params/")}


def _shapes(params: Params) -> Shapes:
    return {path: list(x.shape) for path, x in by_path(params).items()}


def _without_spare_rows(stored: Shapes, vocab_size: int, source_vocab: int) -> Shapes:
    """Returns the shapes as if the token tables ended with the source's vocabulary, where tokens are added.

    A table may have more rows than the vocabulary has tokens. Those rows were never trained: new tokens do not get
    them.
    """
    if vocab_size <= source_vocab:
        return stored
    return stored | {path: [source_vocab, *stored[path][1:]] for path in _TABLES if path in stored}


def _load(
    directory: Path, paths: Iterable[str], stored: Shapes, params: Params, mesh: Mesh
) -> tuple[dict[str, jax.Array], int]:
    """Returns (the parameters of these paths with the shapes that are stored, the checkpoint's step)."""
    dtypes = {path: x.dtype for path, x in by_path(params).items()}

    def expected(path: str) -> jax.ShapeDtypeStruct:
        shape = tuple(stored[path])
        sharding = meshes.sharding(mesh, dims_of(path), shape)
        return jax.ShapeDtypeStruct(shape, dtypes.get(path, jnp.float32), sharding=sharding)

    tree = nested({path: expected(path) for path in paths})
    restored, meta = manager.restore(directory, tree, mesh, "params", part=True)
    return by_path(restored), meta["step"]


def _merge(params: Params, source: Mapping[str, jax.Array]) -> Params:
    """Returns the parameters with those of the source in their place, or in their first rows where they grew."""

    def put(x: jax.Array, value: jax.Array | None) -> jax.Array:
        if value is None or value.shape == x.shape:
            return x if value is None else value
        put_rows = jax.jit(lambda x, v: x.at[tuple(slice(n) for n in v.shape)].set(v), out_shardings=x.sharding)
        return put_rows(x, value)

    return jax.tree_util.tree_map_with_path(lambda keys, x: put(x, source.get(path_of(keys))), params)


def redraw_layers(params: Params, fresh: Params, count: int) -> Params:
    """Returns the parameters with the top `count` layers, and the pooler, as they are in `fresh`.

    The top layers are specialised in the pretraining's own task, which makes them a worse start for another than random
    ones, above all with few examples (Zhang et al. 2021, Revisiting few-sample BERT fine-tuning, section 5).
    """

    def redrawn(keys: tuple[object, ...], x: jax.Array, new: jax.Array) -> jax.Array:
        path = path_of(keys)
        if path.startswith(_POOLER):
            return new
        if not path.startswith("backbone/layers/"):
            return x
        # All layers are stacked in one array, the top one last.
        first = x.shape[0] - count
        return jax.jit(lambda x, new: x.at[first:].set(new[first:]), out_shardings=x.sharding)(x, new)

    return jax.tree_util.tree_map_with_path(redrawn, params, fresh)


def _redrawn_row(params: Params, count: int) -> tuple[str, str, str]:
    """Returns the row of the table for the layers that were drawn: how many, and how many numbers they are."""
    by_name = by_path(params)
    layers = [x for path, x in by_name.items() if path.startswith("backbone/layers/")]
    pooler = [x.size for path, x in by_name.items() if path.startswith(_POOLER)]
    numbers = sum(x.size // x.shape[0] * count for x in layers) + sum(pooler)
    what = f"top {count} of {layers[0].shape[0]} layers{', pooler' if pooler else ''}"
    return "redrawn", what, f"{numbers:,}"


def _warn_of_frozen_tokens(run: Run, params: Params, new_tokens: int) -> None:
    multipliers = by_path(lr_multipliers(run.optim, params)) if new_tokens else {}
    if (new_tokens and run.optim.lora_rank) or not np.any(multipliers.get(_TABLES[0], 1.0)):
        logger.warning(f"{new_tokens} new token embeddings are frozen at their random initial values")
