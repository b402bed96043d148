"""Loads the parameters of a run: for evaluation, for predictions, and as the start of another run."""

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

from contexture.data.task_kinds import KINDS
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
from contexture.train.run.vocabulary import read_tokenizer
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
"""Dims that may grow from one run to the next: tokens, positions, segments."""
_POOLER = "backbone/pooler/"
_TABLES = ("backbone/embeddings/tokens", "heads_lm/table")
"""Parameters with a row for each token, which grow when a GPT's task adds tokens."""


@dataclass(frozen=True)
class Loaded:
    """A model with trained parameters, and the step that they were saved at."""

    model: Model
    params: Params
    step: int

    @functools.cached_property
    def unstacked(self) -> Params:
        """The parameters as forward passes read them (`unstack_layers`), made when first asked for on the current mesh.
        This holds the layers in memory twice, no more than a forward pass that copies them would."""
        return unstack_layers(self.params, self.model.config)


def model_of(run: Run, labels: tuple[str, ...]) -> Model:
    """Returns the model of a run with the heads that its objective trains. labels: of its task."""
    # A regression has no labels and a head of one output.
    return build(run.model, objective_of(run).heads, max(len(labels), 1), run.head)


def with_attention_of_this_device(run: Run) -> Run:
    """Returns the run with its attention kernel left to the devices here, which may differ from those it trained on."""
    # LSTMs and static vectors have no attention.
    if not isinstance(run.model, TransformerConfig):
        return run
    return replace(run, model=replace(run.model, attention="auto"))


def first_good(folder: Path, step: Step, read: Callable[[Path], T]) -> T:
    """Returns the result of `read` for the first checkpoint that it can read, in the order of `find_steps`.

    Raises CheckpointError if none is good.
    """
    # As in training, a damaged checkpoint costs a warning and not the command.
    bad = []
    for number in find_steps(folder, step):
        try:
            return read(folder / "checkpoints" / str(number))
        except CheckpointError as error:
            # The run may be training meanwhile, and its retention removes older checkpoints: that is no damage.
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

    Logs the step where the best checkpoint is loaded and is not the newest.

    Args:
        folder: the run.
        run: its settings; the model gets the attention kernel of the devices here.
        labels: of its task.
        mesh: the devices.
        step: the checkpoint, as `find_steps` takes it.
        merge: whether adapters are merged into their kernels.

    Raises:
        ConfigError: when there is no such step.
        CheckpointError: when none is good.
    """
    run = with_attention_of_this_device(run)
    model = model_of(run, labels)
    # Parameters alone are read: the optimizer's moments would be twice as much.
    expected = parameter_shapes(model, run, mesh)

    def read(directory: Path) -> Loaded:
        params, meta = manager.restore(directory, expected, mesh, "params")
        return Loaded(model, merged(params, run.optim) if merge else params, meta["step"])

    loaded = first_good(folder, step, read)
    # Said only where it may surprise: results are of an earlier step than the newest.
    newest = manager.steps(folder / "checkpoints")[-1]
    if loaded.step < newest and (step == "best" or (step is None and run.evaluate.patience)):
        logger.info(f"step {loaded.step} of {folder}, the best {run.evaluate.metric}; the newest is step {newest}")
    return loaded


@dataclass(frozen=True)
class Account:
    """The fate of every parameter, by path.

    Args:
        kept: its shape, the same in both runs
        new: its shape; the source lacks it
        grown: (its shape in the source, its shape now)
        dropped: its shape in the source; the new run lacks it
    """

    kept: Shapes
    new: Shapes
    grown: dict[str, tuple[list[int], list[int]]]
    dropped: Shapes

    def rows(self) -> list[tuple[str, str, str]]:
        """Returns the rows of a table (what, parameter, shape); kept ones as one row for the backbone and each head."""
        rows = []
        # A row for every kept tensor would bury the few that matter: new, grown and dropped ones.
        for top in dict.fromkeys(path.partition("/")[0] for path in self.kept):
            inside = [shape for path, shape in self.kept.items() if path.partition("/")[0] == top]
            rows.append(("kept", f"{top}/… ({len(inside)} tensors)", f"{sum(map(prod, inside)):,}"))
        rows += [("grown", path, f"{_times(old)} → {_times(new)}") for path, (old, new) in self.grown.items()]
        rows += [("new", path, _times(shape)) for path, shape in self.new.items()]
        return rows + [("dropped", path, _times(shape)) for path, shape in self.dropped.items()]


def _times(shape: list[int]) -> str:
    return "×".join(map(str, shape)) or "1"


def account(stored: Shapes, expected: Shapes, run: Run, same_task: bool) -> Account:
    """Matches the `stored` parameters of `run.init.run` with those that `run` expects: each is accounted for.

    Heads may come and go. Raises ConfigError for any other parameter that has no counterpart of its shape.
    """
    source = run.init.run
    # A head may fit by its shape though its classes are others: a task's head is kept only for the same task.
    kinds = tuple(KINDS) if same_task else ()
    heads = {"heads_mlm", "heads_nsp", "heads_bilm", "heads_lm", *(f"heads_{kind}" for kind in kinds)}
    result = Account({}, {}, {}, {})
    # First what the source has: dropped, kept, grown, or an error.
    for path, shape in stored.items():
        top = path.partition("/")[0]
        # Dropped: heads that the new run has not, or another task's, or all of them at the user's word.
        if top.startswith("heads_") and (path not in expected or top not in heads or run.init.drop_heads):
            result.dropped[path] = shape
        # Any other part belongs to the model: silently dropping it would start from half a model.
        elif path not in expected:
            raise ConfigError(f"{source} holds {path} {shape}, for which this model has no place; give the same model")
        elif expected[path] == shape:
            result.kept[path] = shape
        elif run.init.grow and _grows(path, shape, expected[path]):
            result.grown[path] = shape, expected[path]
        else:
            # A size differs: three ways out, by what differs.
            other = "give the same head, or --init.drop-heads" if top.startswith("heads_") else "give the same model"
            mend = "allow it with --init.grow" if _grows(path, shape, expected[path]) else other
            raise ConfigError(f"{source} holds {path} {shape}, this model wants {expected[path]}; {mend}")
    # Then what is missing there: heads and adapters may be randomly initialised, the backbone never.
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
    # By letter: V, L and T count rows of a table. Any other size belongs to the model.
    pairs = zip(dims_of(path), old, new, strict=True)
    return all(a == b or (a < b and letter in _MAY_GROW) for letter, a, b in pairs)


def begin_from(
    run: Run, labels: tuple[str, ...], vocab_size: int, fresh: State, mesh: Mesh, show_table: ShowTable
) -> State:
    """Returns the state `fresh` with the parameters that `run.init.run` provides; shows the account of all of them.

    Args:
        run: the new run.
        labels: of its task.
        vocab_size: tokens of its vocabulary.
        fresh: its state, randomly initialised; step and moments stay.
        mesh: the devices.
        show_table: prints the account.

    Raises:
        ConfigError: when a parameter is not accounted for.
        CheckpointError: when no checkpoint of the source is good.
    """
    folder = Path(run.init.run)
    # A baseline: model and vocabulary of the run, without what it has learned.
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
        # Adapters are no part of the account: they are merged into the source's kernels below.
        own = {path: shape for path, shape in stored.items() if path not in adapters}
        plan = account(_without_spare_rows(own, vocab_size, source_vocab), _shapes(fresh.params), run, same_task)
        # Load what is taken, as it is stored; then merge it into the fresh parameters.
        source, step = _load(directory, [*plan.kept, *plan.grown, *adapters], stored, fresh.params, mesh)
        if adapters:
            source = by_path(merged(nested(source), record.run.optim))
            logger.info(f"merged the adapters of {folder} into its kernels")
        # Spare rows of the source are cut off: new tokens keep the random rows that `fresh` has for them.
        if vocab_size > source_vocab:
            source |= {path: source[path][:source_vocab] for path in _TABLES if path in source}
        params = _merge(fresh.params, source)
        rows = plan.rows()
        # Last of all, so that layers that were just taken over are redrawn.
        if run.init.redraw_layers:
            params = redraw_layers(params, fresh.params, run.init.redraw_layers)
            rows.append(_redrawn_row(params, run.init.redraw_layers))
        show_table(f"parameters from {folder}, step {step}", ("what", "parameter", "shape"), rows)
        _warn_of_frozen_tokens(run, params, vocab_size - source_vocab)
        return fresh.replace(params=params)  # pyright: ignore[reportAttributeAccessIssue]

    return first_good(folder, run.init.step or None, read)


def _source_vocab_size(run: Run, folder: Path, record: RunRecord, vocab_size: int) -> int:
    """Returns how many tokens of the new vocabulary the source was trained on.

    A task of a GPT adds start, delimiter and extract tokens (Radford et al. 2018, section 3.3).
    """
    # For others the sizes are equal by now: the run has taken the source's vocabulary over.
    adds_tokens = bool(run.text.task_tokens) and run.task.kind != "off"
    return read_tokenizer(folder, record).size if adds_tokens else vocab_size


def _stored_shapes(directory: Path) -> Shapes:
    # From the item `meta`, a small file: no array is read for the plan.
    shapes = manager.read_meta_together(directory)["shapes"]
    return {name.removeprefix("params/"): shape for name, shape in shapes.items() if name.startswith("params/")}


def _shapes(params: Params) -> Shapes:
    return {path: list(x.shape) for path, x in by_path(params).items()}


def _without_spare_rows(stored: Shapes, vocab_size: int, source_vocab: int) -> Shapes:
    """Returns the shapes with token tables cut to the source's vocabulary, if tokens are added.

    A table may have more rows than the vocabulary has tokens. Those rows were never trained, so new tokens must not
    inherit them.
    """
    if vocab_size <= source_vocab:
        return stored
    return stored | {path: [source_vocab, *stored[path][1:]] for path in _TABLES if path in stored}


def _load(
    directory: Path, paths: Iterable[str], stored: Shapes, params: Params, mesh: Mesh
) -> tuple[dict[str, jax.Array], int]:
    """Returns (the parameters of these paths in their stored shapes, the checkpoint's step)."""
    # A table that grows is read in its old shape, sharded by the same rule, and put into the larger one afterwards.
    dtypes = {path: x.dtype for path, x in by_path(params).items()}

    def expected(path: str) -> jax.ShapeDtypeStruct:
        shape = tuple(stored[path])
        sharding = meshes.sharding(mesh, dims_of(path), shape)
        return jax.ShapeDtypeStruct(shape, dtypes.get(path, jnp.float32), sharding=sharding)

    # Only these arrays are read and verified; the moments and dropped heads stay on the disk.
    tree = nested({path: expected(path) for path in paths})
    restored, meta = manager.restore(directory, tree, mesh, "params", part=True)
    return by_path(restored), meta["step"]


def _merge(params: Params, source: Mapping[str, jax.Array]) -> Params:
    """Returns the parameters with the source's in their place, or in the first rows where a table grew."""

    # None: the source has no such parameter, and x keeps its fresh values.
    def put(x: jax.Array, value: jax.Array | None) -> jax.Array:
        if value is None or value.shape == x.shape:
            return x if value is None else value
        # Jitted with the sharding of x, so a sharded table is never whole on one device.
        put_rows = jax.jit(lambda x, v: x.at[tuple(slice(n) for n in v.shape)].set(v), out_shardings=x.sharding)
        return put_rows(x, value)

    return jax.tree_util.tree_map_with_path(lambda keys, x: put(x, source.get(path_of(keys))), params)


def redraw_layers(params: Params, fresh: Params, count: int) -> Params:
    """Returns the parameters with the top `count` layers, and the pooler, replaced by those in `fresh`.

    The top layers are specialised in the pretraining task, which makes them a worse start for another task than random
    ones, above all with few examples (Zhang et al. 2021, Revisiting few-sample BERT fine-tuning, section 5).

    Raises:
        ConfigError: when the backbone has no layers.
    """

    if not any(path.startswith("backbone/layers/") for path in by_path(params)):
        raise ConfigError("init.redraw-layers re-initialises layers, and this backbone has none; leave it out")

    def redrawn(keys: tuple[object, ...], x: jax.Array, new: jax.Array) -> jax.Array:
        path = path_of(keys)
        # The pooler lies on top of the layers, and serves next sentence prediction in pretraining.
        if path.startswith(_POOLER):
            return new
        if not path.startswith("backbone/layers/"):
            return x
        # All layers are stacked in one array, the top one last.
        first = x.shape[0] - count
        return jax.jit(lambda x, new: x.at[first:].set(new[first:]), out_shardings=x.sharding)(x, new)

    return jax.tree_util.tree_map_with_path(redrawn, params, fresh)


def _redrawn_row(params: Params, count: int) -> tuple[str, str, str]:
    """Returns the table's row for the redrawn layers: how many, and how many numbers they hold."""
    by_name = by_path(params)
    # x is [N, …]: a layer's share of a stack is its size over N.
    layers = [x for path, x in by_name.items() if path.startswith("backbone/layers/")]
    pooler = [x.size for path, x in by_name.items() if path.startswith(_POOLER)]
    numbers = sum(x.size // x.shape[0] * count for x in layers) + sum(pooler)
    what = f"top {count} of {layers[0].shape[0]} layers{', pooler' if pooler else ''}"
    return "redrawn", what, f"{numbers:,}"


def _warn_of_frozen_tokens(run: Run, params: Params, new_tokens: int) -> None:
    # Task tokens are new, and a frozen table would leave them random for ever: legal, but rarely meant.
    multipliers = by_path(lr_multipliers(run.optim, params)) if new_tokens else {}
    if (new_tokens and run.optim.lora_rank) or not np.any(multipliers.get(_TABLES[0], 1.0)):
        logger.warning(f"{new_tokens} new token embeddings are frozen at their random initial values")
