"""Held-out figures: every line once, exact whatever the batch or the mesh."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from data.pipeline import HeldOut, iterate, open_held_out
from data.shards import Shards
from train import config as configs
from train import mesh as meshes
from train.config import ConfigError, MeshConfig
from train.directory import open_shards
from train.losses import Sum
from train.metrics import unigram_baseline
from train.objectives import OBJECTIVES, Batch, Objective
from train.report import plain
from train.step import evaluation_step
from train.transfer import load_parameters


def evaluate(
    step: Callable[[Any, Batch], dict[str, Sum]], objective: Objective, params: Any, held_out: HeldOut, mesh: Mesh
) -> dict[str, float]:
    """{"loss": …, and the mean of everything measured}; step is `train.step.evaluation_step`'s.

    Sums of a batch are added up in float64 on the host.
    """
    lines = held_out.batch
    rows = meshes.local_rows(mesh, lines)
    totals: dict[str, np.ndarray] = {}
    with iterate(held_out, 0, held_out.steps, rows) as stream:
        for _, local in stream:
            sums = jax.device_get(step(params, meshes.place(mesh, local, held_out.fields, lines)))
            for name, s in sums.items():
                totals[name] = totals.get(name, np.zeros(2)) + np.array([s.total, s.weight], np.float64)
    measured = {name: float(total / max(weight, 1e-9)) for name, (total, weight) in totals.items()}
    total = sum(coefficient * measured[name] for name, coefficient in objective.terms.items())
    return {"loss": float(total), **measured}


def unigram(held_out: HeldOut, shards: Shards) -> dict[str, float]:
    """What guessing by frequency alone gives on the held-out slots: unigram_loss, unigram_accuracy."""
    labels = []
    for step in range(held_out.steps):
        batch = held_out.read(step)
        labels.append(batch["labels"][batch["slot_weights"] > 0])
    return unigram_baseline(shards.unigrams(), np.concatenate(labels))


def evaluate_run(folder: Path, step: int | None, split: str, say: Callable[[str], None]) -> dict[str, Any]:
    """{"run", "step", "split", "examples", "metrics"} of a run's newest good checkpoint, or that of `step`, on the
    run's own mesh where it fits the devices here, else on all of them as copies.

    Raises ConfigError where the folder is no run or holds nothing out, CheckpointError where no checkpoint is good.
    """
    run, described = configs.read(folder)
    meshes.keep_cpu_memory()
    meshes.prepare_jax(run.model.dtype)
    shards = open_shards(folder, run)
    shards.verify()
    if shards.fingerprint != described.get("data"):
        raise ConfigError(f"{shards.folder} is not the text that {folder} was trained with; put it back")
    try:
        mesh = meshes.build(run.mesh)
    except ConfigError:
        mesh = meshes.build(MeshConfig())
    with jax.set_mesh(mesh):
        loaded = load_parameters(folder, run, mesh, say, step)
        held_out = open_held_out(shards, run.data, meshes.whole_batch(mesh, run.evaluate.batch or run.data.batch))
        if held_out is None:
            raise ConfigError(f"{folder} holds nothing out; pretrain with --data.dev F or --data.dev-fraction 0.1")
        objective = OBJECTIVES[run.objective]
        step_function = evaluation_step(loaded.model, objective)
        figures = evaluate(step_function, objective, loaded.params, held_out, mesh) | unigram(held_out, shards)
    metrics = {name: plain(value) for name, value in figures.items()}
    return {"run": str(folder), "step": loaded.step, "split": split, "examples": held_out.count, "metrics": metrics}
