"""The outputs of a model for held-out batches, fetched one batch late, and put back into the order of the examples."""

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
from contexture.train.objectives import Sum
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
    """Yields the outputs of the step for each batch, in order.

    A batch is fetched only once the next one has been started: the device works while the host writes.

    Args:
        step: the jitted evaluation step.
        params: of the model, on the mesh.
        held_out: the batches.
        mesh: the devices.
        carry: the state before the first batch; None lets the step make zeros.
        cancel: may raise to stop the work.
    """
    # Each process reads the rows of its own devices; sums and predictions come back whole to all of them.
    rows = meshes.local_rows(mesh, held_out.batch)
    before: tuple[int, dict[str, Sum], Predictions] | None = None
    with iterate(held_out, 0, held_out.steps, rows) as stream:
        for number, local in stream:
            cancel.check()
            # The call returns at once; `before` is fetched while the devices compute this batch.
            batch = meshes.shard_batch(mesh, local, held_out.fields, held_out.batch)
            sums, predictions, carry = step(params, batch, carry)
            if before is not None:
                yield jax.device_get(before)
            before = number, sums, predictions
    if before is not None:
        yield jax.device_get(before)


class ExampleOrder:
    """Puts predictions back into the order of the examples: batches are sorted by length within a window."""

    def __init__(self, held_out: HeldOutTask) -> None:
        # What has come of the current window so far.
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
        # Only a complete window has all examples between its first and its last one.
        if not self._held_out.ends_window(step):
            return None
        # A window is complete: it holds a run of consecutive examples, which argsort puts in order.
        numbers, outputs = np.concatenate(self._numbers), self._outputs
        self._numbers, self._outputs = [], []
        # Every number comes once, so the order is unique.
        order = np.argsort(numbers)
        return numbers[order], {name: _joined([each[name] for each in outputs])[order] for name in predictions}


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Joins arrays BX of several lengths X; shorter ones are padded with -inf, or with 0 if they are integers."""
    if len({part.shape[1:] for part in parts}) > 1:
        # Batches of one window may have different lengths, and so may what is predicted for each token.
        most = max(part.shape[1] for part in parts)
        nothing = -np.inf if parts[0].dtype.kind == "f" else 0
        parts = [np.pad(x, ((0, 0), (0, most - x.shape[1])), constant_values=nothing) for x in parts]
    return np.concatenate(parts) if len(parts) > 1 else parts[0]
