"""Opens or makes what a run trains with, in its folder: data, tokenizer, model and objective."""

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

import jax
from jax.sharding import Mesh

from contexture.data.batches import Batches, HeldOut
from contexture.data.open_batches import open_batches, open_held_out
from contexture.data.pretraining.shards import Shards
from contexture.data.tasks.store.example_store import ExampleStore
from contexture.data.tokenizers.base import Tokenizer
from contexture.models.families import example
from contexture.models.model import Model
from contexture.train import mesh as meshes
from contexture.train.checkpoints.transfer import model_of
from contexture.train.distributed import processes
from contexture.train.distributed.agreement import agree_on_content
from contexture.train.errors import ConfigError
from contexture.train.evaluation.evaluate import baseline
from contexture.train.objectives import Objective, batch_fields, batch_sizes, objective_of
from contexture.train.optim.lora import split
from contexture.train.optim.optimizers import lr_multipliers
from contexture.train.run import data
from contexture.train.run import folder as directories
from contexture.train.run.signals import Signals
from contexture.train.settings import run_file
from contexture.train.settings.run import Run
from contexture.train.settings.schedule import resolve_schedule


@dataclass(frozen=True)
class TrainingSetup:
    """What a run trains with, once its folder, devices and data are known."""

    run: Run
    mesh: Mesh
    model: Model
    objective: Objective
    tokenizer: Tokenizer
    store: Shards | ExampleStore
    batches: Batches
    held_out: HeldOut | None
    baseline: dict[str, float]
    """Held-out metrics of a guess that needs no model, by name (`unigram_loss`, `majority_accuracy`, …)."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the task, or ()."""
        return self.store.labels


def check_frozen(run: Run) -> None:
    """Checks optim.frozen against the model before any work. Raises ConfigError, as `lr_multipliers`."""
    # Every model has a backbone, so freezing it, or nothing, is always possible.
    if run.optim.frozen in ((), ("backbone",)) and not run.optim.frozen_layers:
        return
    # Labels, and whether examples are pairs, are known from the data alone; they decide sizes of heads, and for what
    # reads words which parameters a head has.
    paired = run.task.kind not in ("off", "choice") and run.text.reads_words
    for pair in (False, True)[: 1 + paired]:
        given = dataclasses.replace(run, head=dataclasses.replace(run.head, pair=pair))
        model, batch = model_of(given, ("0", "1")), example(batch_fields(given), batch_sizes(given, 1))
        # Paths and shapes are enough to match the patterns of optim.frozen; no array is made.
        params = jax.eval_shape(lambda model=model, batch=batch: model.init(jax.random.key(0), batch)["params"])
        try:
            lr_multipliers(run.optim, split(params, run.optim)[1])
            return
        # Refused only if the patterns fit neither form of the head.
        except ConfigError:
            if pair == paired:
                raise


def prepare(run: Run, folder: Path, mesh: Mesh, signals: Signals) -> tuple[TrainingSetup, str]:
    """Returns (what the run trains with; its fingerprint). Process 0 makes what is missing, and the others wait for it.

    The fingerprint covers settings, tokenizer and data: a checkpoint of another one is refused.
    """
    if jax.process_index() == 0:
        # run.json is written twice: first with the settings alone, to claim the folder; below with the facts of the
        # data.
        old = directories.open_or_create(run, folder)
        tokenizer, store = data.open_data(run, folder, signals)
        store.verify(signals)
        # epochs become steps by the number of examples, which is known only now.
        examples = open_batches(store, tokenizer, run.data, run.task, run.family, run.seed, signals).examples_per_epoch
        directories.check_not_shortened(run, folder, old, examples)
        total_steps = resolve_schedule(run, examples).steps
        directories.write_run_json(folder, run, tokenizer, store, old, total_steps)
        processes.publish("prepared", "")
    else:
        processes.wait_for("prepared")
        tokenizer, store = data.open_data(run, folder, signals)
        if not Path(os.path.realpath(store.folder)).is_relative_to(os.path.realpath(folder)):
            store.verify(signals)  # data outside the run's folder may be a copy of this machine's own
    # Digests are compared, not paths: each machine may have its copy of the data.
    agree_on_content(folder, run, tokenizer, store)
    # Lanes: how many streams an ELMo's held-out text is dealt to. A figure must not depend on the number of devices.
    lanes = run.evaluate.batch or run.data.batch
    fingerprint = run_file.fingerprint(run, tokenizer.fingerprint, store.fingerprint)
    batches = open_batches(store, tokenizer, run.data, run.task, run.family, run.seed, signals)
    batch = meshes.round_up_to_devices(mesh, lanes)
    held_out = open_held_out(store, tokenizer, run.data, run.task, run.family, batch, lanes, signals)
    if held_out is None and (run.evaluate.patience or run.evaluate.metric != "loss"):
        name = "patience" if run.evaluate.patience else "metric"
        raise ConfigError(f"evaluate.{name} wants held-out examples; give --task.dev or --data.dev, or a fraction")
    # What guessing by frequencies reaches: the figure that a model must beat.
    guess = baseline(held_out, store, signals) if held_out else {}
    # The run's final form: epochs become steps, and settings that follow from the data are filled in.
    run = resolve_schedule(run, batches.examples_per_epoch)
    run = run_file.with_data_facts(run, words=tokenizer.size, pair=isinstance(store, ExampleStore) and store.pair)
    run = dataclasses.replace(run, data=dataclasses.replace(run.data, length=batches.length))
    # Only now: the heads' sizes follow from the labels, and the softmax of an ELMo from the vocabulary.
    model = model_of(run, store.labels)
    parts = TrainingSetup(run, mesh, model, objective_of(run), tokenizer, store, batches, held_out, guess)
    return parts, fingerprint
