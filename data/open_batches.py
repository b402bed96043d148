"""The batches of a run: of a task's examples, or of the text of a pretraining."""

from dataclasses import replace

from contexture.data.batches import Batches, HeldOut
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.config import DataConfig, Family, TaskConfig
from contexture.data.families.registry import TEXT_FAMILIES
from contexture.data.pretraining.shards import Shards
from contexture.data.tasks.batch.answer_rules import answer_rules
from contexture.data.tasks.batch.batches import HeldOutTask, TaskBatches, task_fields
from contexture.data.tasks.read.labels import class_weights
from contexture.data.tasks.store.example_store import ExampleStore
from contexture.data.tokenizers.base import Tokenizer


def batch_fields(config: DataConfig, task: TaskConfig, family: Family, pair: bool = False) -> dict[str, str]:
    """Returns the fields of a training batch: {"tokens": "i32 BL", …}. pair: whether a task's examples are pairs of
    texts."""
    if task.kind != "off":
        return task_fields(task.kind, family, task.symmetric, pair)
    return TEXT_FAMILIES[family].pretraining_fields(config)


def open_batches(
    store: Shards | ExampleStore,
    tokenizer: Tokenizer,
    config: DataConfig,
    task: TaskConfig,
    family: Family,
    seed: int,
    cancel: CancelToken = NEVER,
) -> Batches:
    """Returns the training batches of a task or of text. `cancel` may raise to stop the planning of an epoch."""
    if isinstance(store, ExampleStore):
        return TaskBatches(store, tokenizer, config, task, family=family, seed=seed)
    return TEXT_FAMILIES[family].open_batches(store, config, seed, cancel)


def open_held_out(
    store: Shards | ExampleStore,
    tokenizer: Tokenizer,
    config: DataConfig,
    task: TaskConfig,
    family: Family,
    batch: int,
    lanes: int = 0,
    cancel: CancelToken = NEVER,
) -> HeldOut | None:
    """Returns the held-out batches of a task or of text, `batch` sequences at a time; None where nothing is held out.

    Args:
        store: the text or the examples.
        tokenizer: the run's vocabulary.
        config: the run's data.
        task: the run's task.
        family: the model's family.
        batch: sequences of a batch.
        lanes: for ELMo, how many of the sequences carry text, 0 for all. Where lanes begin depends on their number,
            which must not depend on the number of devices.
        cancel: may raise to stop the planning.
    """
    if isinstance(store, ExampleStore):
        # The same weights as in training: `balanced` goes by the counts of train.
        weights_C = class_weights(task, store.labels, store.counts)
        dev, rules = store.splits["dev"], answer_rules(task, store.counts)
        return (
            HeldOutTask(dev, tokenizer, config, batch, weights_C, family=family, rules=rules) if dev.examples else None
        )
    if not store.splits["dev"].documents:
        return None
    config = replace(config, batch=batch, ramp_from=0, ramp_steps=0)  # a ramp is for training
    return TEXT_FAMILIES[family].open_held_out(store, config, lanes, cancel)
