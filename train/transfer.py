"""Parameters out of a run's folder: what pretraining gives to whatever comes after."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from models.model import Model, build
from train import checkpoint
from train.config import CheckpointError, ConfigError, Run
from train.objectives import OBJECTIVES
from train.step import create


@dataclass(frozen=True)
class Loaded:
    """A model with trained parameters, and the step they are of."""

    model: Model
    params: Any
    step: int


def load_parameters(folder: Path, run: Run, mesh: Mesh, say: Callable[[str], None], step: int | None = None) -> Loaded:
    """The parameters alone (no optimizer) of a step, or of the newest good checkpoint, cut over the mesh.

    Raises ConfigError where there is no such step, CheckpointError where none is good.
    """
    model = build(run.model, OBJECTIVES[run.objective].heads)
    _, shapes, shardings = create(model, run, mesh)
    wanted = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes.params, shardings.params
    )
    found = checkpoint.steps(folder / "checkpoints")
    if not found:
        raise ConfigError(f"{folder} holds no checkpoint yet; pretrain it first")
    if step is not None and step not in found:
        raise ConfigError(f"{folder} holds no checkpoint of step {step}; there are {', '.join(map(str, found))}")
    bad = []
    for number in [step] if step is not None else reversed(found):
        try:
            params, meta = checkpoint.restore(folder / "checkpoints" / str(number), wanted, mesh, "params")
            return Loaded(model, params, meta["step"])
        except CheckpointError as error:
            bad.append(f"step {number}: {error}")
            say(f"warning: checkpoint of {bad[-1]}")
    raise CheckpointError(f"no good checkpoint in {folder / 'checkpoints'} ({'; '.join(bad)})")
