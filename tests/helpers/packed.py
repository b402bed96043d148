"""Batches whose sequences share rows, looked at example by example, and batches without rows."""

from typing import cast

import numpy as np

from contexture.data.layouts import Batch
from contexture.data.packing import apart
from contexture.data.tasks.batch.batches import HeldOutTask
from contexture.data.tasks.store.stored_features import FeatureFiles


class _Stored:
    def add(self, batch: Batch, numbers: np.ndarray) -> Batch:
        return {**batch, "numbers": numbers}


STORED = cast(FeatureFiles, _Stored())
"""Files of a frozen backbone that add the examples' numbers alone."""


def every_example(held_out: HeldOutTask) -> Batch:
    """Returns all examples of packed batches by number, a row for each sequence; an ELMo's words by their characters,
    `words`. Each example comes once, and other slots of a batch count for nothing."""
    parts, numbers = [], []
    for step in range(held_out.steps):
        batch, own = apart(held_out.read(step)), held_out.numbers(step)
        if "types" in batch:
            batch["words"] = batch.pop("types")[batch.pop("index")]
        count = len(own)
        assert batch["valid"].tolist() == [1.0] * count + [0.0] * (held_out.batch - count)
        spare = [batch[name][count:] for name in ("mask", "weights", "tag_weights", "next_weights") if name in batch]
        assert not any(x.any() for x in spare)
        parts.append({name: x[:count] for name, x in batch.items()})
        numbers.append(own)
    order = np.concatenate(numbers)
    assert np.array_equal(np.sort(order), np.arange(held_out.split.examples))
    return {name: np.concatenate([part[name] for part in parts])[np.argsort(order)] for name in parts[0]}
