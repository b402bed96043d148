"""The report of a run before its first step and after its last."""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from contexture.data.batches import check_fields
from contexture.data.describe import describe as describe_row
from contexture.data.pretraining.mixture import MixedBatches
from contexture.data.pretraining.phased_batches import PhasedBatches
from contexture.models.config import TransformerConfig
from contexture.models.shapes import by_path, dims_of
from contexture.train import mesh as meshes
from contexture.train.evaluation.best import NO_CHECKPOINT
from contexture.train.evaluation.held_out import report_odd
from contexture.train.families import FAMILIES
from contexture.train.metric_directions import Best, rank
from contexture.train.objectives import batch_fields, batch_sizes
from contexture.train.optim.lora import ADAPTERS, describe_parameters
from contexture.train.run.folder import as_option
from contexture.train.run.goodput import Goodput, describe_goodput
from contexture.train.run.progress import duration, figures_of
from contexture.train.run.report import Report, read_metrics
from contexture.train.run.throughput import unknown_peak
from contexture.train.settings import run_file
from contexture.train.settings.run import Run
from contexture.train.settings.schedule import warmup_note
from contexture.train.settings.sections import BASE_WIDTH
from contexture.train.setup import TrainingSetup
from contexture.train.step import State

logger = logging.getLogger(__name__)
_FEW_LABELS = 4


def log_start(parts: TrainingSetup, given: Run, recipe: Run, report: Report, shapes: State) -> None:
    """Logs what a user may want to check before a long training: options, parameters, data, the first sequence.

    With `log.details`, each parameter and each label has a line of its own.
    """
    run = parts.run
    # Options: the difference from the recipe says what is special about this run, as one would type it.
    changed = [as_option(name, new) for name, (new, _) in run_file.difference(given, recipe).items() if name != "dir"]
    logger.info("differs from its recipe: " + (" ".join(changed) or "nothing"))
    if note := _rate_note(run, recipe):
        logger.info(note)
    logger.info(f"{meshes.describe(parts.mesh)}; {run.model.dtype}")
    # Devices: which attention kernel runs and what is recomputed decide the time and the memory of a step.
    if attention := meshes.describe_attention(run.model, run.shares_rows):
        remat = meshes.describe_remat(run.model, batch_sizes(run, run.data.batch // run.optim.accumulate))
        logger.info(f"attention: {attention}; remat: {remat}")
    if options := meshes.compiler_options(run.mesh, parts.mesh):
        logger.info("compiler options: " + " ".join(f"{name}={value}" for name, value in options.items()))
    if note := warmup_note(given, run):
        logger.warning(note)
    if unknown := unknown_peak(parts.mesh.devices.flat[0]):
        logger.warning(unknown)
    # Parameters: the sums by part always, the whole table with its shardings on request.
    logger.info(f"{describe_parameters(shapes.params, run.optim)}: {_sums(by_path(shapes.params))}")
    if run.log.details:
        shardings = jax.tree.leaves(meshes.parameter_shardings(parts.mesh, shapes.params))
        rows = []
        for (path, x), sharding in zip(by_path(shapes.params).items(), shardings, strict=True):
            rows.append((path, dims_of(path), "×".join(map(str, x.shape)), _axes(sharding.spec)))
        report.table("parameters", ("path", "dims", "shape", "cut over"), rows)
    # Data: steps in epochs show at once whether --steps fits the size of the data.
    epochs = run.data.examples_before(run.steps) / parts.batches.examples_per_epoch
    if isinstance(parts.batches, PhasedBatches):
        epochs = parts.batches.epochs(run.steps)
    held = f"{parts.held_out.count:,} {parts.held_out.unit}" if parts.held_out else "nothing"
    logger.info(f"{parts.batches.describe()}; {run.steps:,} steps are {epochs:.2f} epochs; {held} held out")
    passes = parts.batches.passes(run.steps).items() if isinstance(parts.batches, MixedBatches | PhasedBatches) else ()
    if passes:
        logger.info("passes over each: " + ", ".join(f"{name.partition('/')[2]} {n:.2f}" for name, n in passes))
    if parts.held_out:
        report_odd(parts.held_out)
    if parts.labels:
        logger.info(_label_sums(parts.labels, parts.store.counts))
        if run.log.details:
            named = [(name, f"{n:,}") for name, n in zip(parts.labels, parts.store.counts, strict=True)]
            report.table("labels", ("label", "in train"), named)
    if report.speaks:
        batch = parts.batches.read(0, np.array([0]))
        # The batch must have the fields that model and objective were built for. Once is enough: all batches are alike.
        check_fields(batch, batch_fields(run))
        shown = describe_row(batch, 0, parts.tokenizer, parts.labels, run.task.kind, run.data.context)
        logger.info("the first sequence:\n" + shown)
    parts.batches.rows_read = 0  # the sequence above was read for people; the count is of training alone


def _rate_note(run: Run, recipe: Run) -> str:
    """Returns a note on the learning rate of a small model, unless the user gave another; else ""."""
    width, rate = getattr(run.model, "hidden", BASE_WIDTH), run.optim.peak_lr
    # finetuning recipes scale the papers' rates, which are for 768 hidden units, to the width of smaller models.
    fine_tunes = run.task.kind != "off" and isinstance(run.model, TransformerConfig)
    if not fine_tunes or width >= BASE_WIDTH or rate != recipe.optim.peak_lr:
        return ""
    return (
        f"learning rate {rate:g}: the papers' for {BASE_WIDTH} hidden units, raised for {width}; "
        "--optim.peak-lr gives another"
    )


def log_end(parts: TrainingSetup, folder: Path, first: int, done: int, goodput: Goodput, best: Best) -> None:
    """Logs how the run ended: steps and time of this start, goodput, held-out figures against a guess, what next.

    Args:
        parts: what the run trained with.
        folder: the run's folder.
        first: the step that this start began at.
        done: the step that it ended with.
        goodput: the clock of this start, with the totals of all.
        best: the best evaluation so far.
    """
    run = parts.run
    early = f", stopped early: no better {run.evaluate.metric} since step {best.step}" if done < run.steps else ""
    before = f" ({first} were done before)" if first else ""
    logger.info(f"done: {done} steps in {duration(time.monotonic() - goodput.began)}{before}{early}")
    logger.info(describe_goodput(goodput.record(done)))
    # From the file and not from memory: it has the evaluations of all starts of this run.
    held = [record for record in read_metrics(folder / "metrics.jsonl") if record["split"] == "dev"]
    if held:
        figures = [figure for figure in figures_of(held[-1], run.evaluate.metric) if not figure.startswith("lr ")]
        logger.info(f"held out at step {held[-1]['step']}: {', '.join(figures)}")
        # Compared on equal terms: both are cross entropies of the same held-out tokens, in nats.
        guess, loss = held[-1].get("unigram_loss"), held[-1].get("mlm_loss", held[-1].get("loss"))
        if guess is not None and loss is not None:  # a BERT's guess is of its masked tokens, and not of next sentences
            logger.info(f"loss of the predicted tokens {loss:.4f}, of a guess by their frequencies {guess:.4f}")
        if best.step and best.step != held[-1]["step"]:
            # A step that is evaluated is saved only where save.every says so, or with patience.
            kept = (folder / "checkpoints" / str(best.step)).is_dir()
            hint = "" if kept else f"; {NO_CHECKPOINT}"
            figure = "" if best.rank is None else f" {rank(best.metric, best.rank):.4g}"
            logger.info(f"best {best.metric}{figure} of {len(held)} evaluations: at step {best.step}{hint}")
            if kept and run.evaluate.patience:
                logger.info(f"evaluate, predict, embed and export take step {best.step}; --step N takes another")
        if line := _no_better_than_a_guess(held, run):
            logger.warning(line)
    # Where everything is, and the command that most users want next.
    logger.info(f"{folder}: checkpoints/, metrics.jsonl, loss.png, loss.svg, loss.pdf")
    logger.info(f"next: {next_command(run, folder)}")


_GUESSES = {
    "majority_accuracy": ("accuracy", "always the commonest label"),
    "majority_exact_match": ("exact_match", "never an answer"),
    "mean_mse": ("mse", "always the mean"),
}
"""Baseline → (the metric that it is compared with, its constant answer in words)."""


def _no_better_than_a_guess(held: Sequence[Mapping[str, Any]], run: Run) -> str:
    """Returns a warning if no evaluation of a task beat the baseline of one answer to everything; else ""."""
    for name, (metric, answer) in _GUESSES.items():
        # Step 0 is no result of this training; a figure that was not finite is None in metrics.jsonl.
        pairs = [(r[metric], r[name]) for r in held if r["step"] and None not in (r.get(metric), r.get(name))]
        if pairs and not any(rank(metric, reached) < rank(metric, guess) for reached, guess in pairs):
            return (
                f"no evaluation was better than {answer} ({metric} {pairs[-1][1]:.4g}); a small model, or few "
                f"examples, may need a higher --optim.peak-lr than {run.optim.peak_lr:g}, or more --epochs"
            )
    return ""


def next_command(run: Run, folder: Path) -> str:
    """Returns the command that most people run after this training."""
    # A task's run predicts; a pretrained one does what its family is made for.
    if run.task.kind != "off":
        return f"contexture predict {folder} --input FILE --to answers.jsonl"
    return f"contexture {FAMILIES[run.family].next_command.format(run=folder)}"


def _sums(parameters: Mapping[str, jax.ShapeDtypeStruct]) -> str:
    """Returns how many parameters each part has, largest first: "embeddings 1,048,576; layers 793,088; head mlm …"."""
    sums: dict[str, int] = {}
    for path, x in parameters.items():
        # backbone/layers/… → layers; heads_mlm/… → head mlm; lora/… → adapters.
        top, _, rest = path.partition("/")
        part = rest.partition("/")[0] if top == "backbone" else top.replace("heads_", "head ")
        part = "adapters" if top == ADAPTERS else part
        sums[part] = sums.get(part, 0) + x.size
    return "; ".join(f"{part} {size:,}" for part, size in sorted(sums.items(), key=lambda item: -item[1]))


def _label_sums(labels: Sequence[str], counts: Sequence[int]) -> str:
    """Returns the labels with their counts in the training set; with many labels, the most and the least common."""
    named = sorted(zip(labels, counts, strict=True), key=lambda item: -item[1])
    # A tagger may have hundreds of labels; the extremes show how skewed they are.
    if len(named) <= _FEW_LABELS:
        return f"{len(named)} labels: " + ", ".join(f"{name} {n:,}" for name, n in named)
    (common, top), (rare, low) = named[0], named[-1]
    return f"{len(named)} labels, from {common} ({top:,} times) to {rare} ({low:,} times)"


def _axes(spec: PartitionSpec) -> str:
    """Returns the mesh axes of each dim: 'fsdp, tensor', '–, data·fsdp'."""
    return ", ".join("–" if axis is None else "·".join((axis,) if isinstance(axis, str) else axis) for axis in spec)
