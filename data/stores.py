"""What a run learns from, once it is opened; all of them have a folder, a fingerprint and a tokenizer."""

from pathlib import Path
from typing import TypeAlias

from contexture.data.config import DataConfig
from contexture.data.mixed_paths import mixture_of
from contexture.data.pretraining.mixture import MixedShards, open_mixture
from contexture.data.pretraining.record_store import RecordStore
from contexture.data.pretraining.shards import Shards, prepared_at
from contexture.data.tasks.store.example_store import ExampleStore

TextStore: TypeAlias = Shards | MixedShards | RecordStore
"""Text to pretrain on: of one preparation, of several in shares, or TFRecords."""
Store: TypeAlias = TextStore | ExampleStore
"""Or the examples of a task."""


def open_text(config: DataConfig, own: Path) -> TextStore:
    """Opens the text of a run that was started.

    Args:
        config: names text that was prepared elsewhere.
        own: the folder of what the run has made itself.

    Raises: as `Shards.open` and `RecordStore.open`.
    """
    # Some of a mixture may lie elsewhere, some in the folder.
    if mixed := mixture_of(config.path):
        return open_mixture(mixed, own, config.cache_gb)
    # What is in the folder decides: the records themselves may be gone.
    if RecordStore.is_at(own):
        return RecordStore.open(own)
    return Shards.open(prepared_at(config.path) or own, config.cache_gb)
