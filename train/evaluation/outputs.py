"""What a model computes of held-out batches, fetched one batch late, and put back into the order of the examples."""

from collections.abc import Iterator

import jax
import numpy as np
from jax.sharding import Mesh

from contexture.data.batches import HeldOut, iterate
from contexture.data.binary_files import I64
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.tasks.batch.batches import HeldOutTask
from contexture.models.shapes import Params
from contexture.train import mesh as meshes
from contexture.train.losses import Sum
from contexture.train.step import Carry, EvaluationStep, Predictions

Computed = tuple[int, dict[str, Sum], dict[str, np.ndarray]]
"""The number of a batch, its sums, its predictions."""


def computed(
    step: EvaluationStep,
    params: Params,
    held_out: HeldOut,
    mesh: Mesh,
    carry: Carry | None = None,
    cancel: CancelToken = NEVER,
) -> Iterator[Computed]:
    """Yields what the step computes of each batch, in order. A batch is fetched when the next one is on its way: the
    device works while the host writes. `cancel` may raise to stop it."""
    rows = meshes.local_rows(mesh, held_out.batch)
    before: tuple[int, dict[str, Sum], Predictions] | None = None
    with iterate(held_out, 0, held_out.steps, rows) as stream:
        for number, local in stream:
            cancel.check()
            batch = meshes.shard_batch(mesh, local, held_out.fields, held_out.batch)
            sums, predictions, carry = step(params, batch, carry)
            if before is not None:
                yield jax.device_get(before)
            before = number, sums, predictions
    if before is not None:
        yield jax.device_get(before)


class ExampleOrder:
    """Puts predictions back into the order of the examples, where batches are sorted by length."""

    def __init__(self, held_out: HeldOutTask) -> None:
        self._held_out = held_out
        self._numbers: list[I64] = []
        self._outputs: list[dict[str, np.ndarray]] = []

    def add(self, step: int, predictions: dict[str, np.ndarray]) -> tuple[I64, dict[str, np.ndarray]] | None:
        """Takes the predictions of a batch. Returns, at the end of a window of batches, (the numbers of its examples,
        ascending; their predictions); else None."""
        numbers = self._held_out.numbers(step)
        # The last batch is filled up with sequences that are no examples.
        self._numbers.append(numbers)
        self._outputs.append({name: array[: len(numbers)] for name, array in predictions.items()})
        if not self._held_out.ends_window(step):
            return None
        numbers, outputs = np.concatenate(self._numbers), self._outputs
        self._numbers, self._outputs = [], []
        order = np.argsort(numbers)
        return numbers[order], {name: _joined([each[name] for each in outputs])[order] for name in predictions}


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Joins arrays BX of several lengths X; what a shorter one lacks is -inf, or 0 where the numbers have none."""
    if len({part.shape[1:] for part in parts}) > 1:
        most = max(part.shape[1] for part in parts)
        nothing = -np.inf if parts[0].dtype.kind == "f" else 0
        parts = [np.pad(x, ((0, 0), (0, most - x.shape[1])), constant_values=nothing) for x in parts]
    return np.concatenate(parts) if len(parts) > 1 else parts[0]
