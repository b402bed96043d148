"""Figures that no batch holds: the unigram baseline, and how much of a chip a step uses."""

import dataclasses
import math
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from contexture.models.model import FAMILIES
from contexture.train.config import ConfigError, Run, did_you_mean
from contexture.train.evaluation import task_metrics as scores
from contexture.train.objectives import batch_sizes

# Dense bf16 peak of one jax device in FLOP/s, without sparsity, by its exact device_kind (the vendors' data sheets; of
# a V100, which has no bf16, float16). A device of TPU v2 and v3 is a core, half of a chip; one of v7x is one of two
# chiplets.
PEAK_FLOPS = {
    "NVIDIA B200": 2250e12,
    "NVIDIA H200": 989e12,
    "NVIDIA H200 NVL": 835e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100-PCIE-80GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA L40": 181e12,
    "NVIDIA L4": 121e12,
    "Tesla V100-SXM2-16GB": 125e12,
    "Tesla V100-SXM2-32GB": 125e12,
    "Tesla V100-PCIE-16GB": 112e12,
    "Tesla V100-PCIE-32GB": 112e12,
    "TPU7x": 2307e12 / 2,
    "TPU v7x": 2307e12 / 2,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "TPU v5p": 459e12,
    "TPU v5": 459e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v4": 275e12,
    "TPU v3": 123e12 / 2,
    "TPU v2": 45e12 / 2,
}


def peak_flops(device_kind: str) -> float | None:
    """The device's dense bf16 peak in FLOP/s; None for a kind that is not in the table (a CPU, or a chip of other
    speed under a similar name)."""
    return PEAK_FLOPS.get(device_kind)


def unknown_peak(device: Any) -> str:
    """A line for an accelerator whose peak is not known, so that nobody waits for its utilisation; else ""."""
    if device.platform == "cpu" or peak_flops(device.device_kind) is not None:
        return ""
    return f"the peak FLOP/s of {device.device_kind!r} is not known: there will be no flops_utilisation"


def unigram_baseline(counts_V: np.ndarray, labels_V: np.ndarray) -> dict[str, float]:
    """What guessing by frequency alone gives on labels, of which labels_V says how many are each token: the loss in
    nats of the training text's distribution (one added to every count), the accuracy of always naming its commonest
    token."""
    share_V = (counts_V + 1.0) / (counts_V.sum() + len(counts_V))
    return {
        "unigram_loss": float(-(np.log(share_V) * labels_V).sum() / labels_V.sum()),
        "unigram_accuracy": float(labels_V[counts_V.argmax()] / labels_V.sum()),
    }


def step_floats(run: Run) -> float:
    """About how many numbers a training step works on at once beside its parameters."""
    return FAMILIES[type(run.model)].step_floats(run.model, batch_sizes(run, run.data.batch // run.optim.accumulate))


class Meter:
    """Turns fetched figures into records, with speed and time left."""

    def __init__(self, run: Run, devices: int, device_kind: str, start: int) -> None:
        self._steps = run.steps
        self._then, self._step = time.perf_counter(), start
        self._compiled = False
        self._data = run.data
        peak = peak_flops(device_kind)
        flops = FAMILIES[type(run.model)].training_flops(run.model, batch_sizes(run, 1))
        self._share = flops / (peak * devices) if peak else None

    def pause(self) -> None:
        """What was done since the last records was no training."""
        self._then = time.perf_counter()

    def records(self, steps: list[int], fetched: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One record a step: `step`, `split`, its figures, tokens_per_second (padding counted), flops_utilisation."""
        if not steps:
            return []
        now, last = time.perf_counter(), steps[-1]
        seconds = (now - self._then) / max(last - self._step, 1)
        lines = (self._data.lines_before(last) - self._data.lines_before(self._step)) / max(last - self._step, 1)
        speed: dict[str, Any] = {}
        if self._compiled:  # the first stretch holds the compilation
            speed = {
                "tokens_per_second": lines * self._data.length / seconds,
                "seconds_left": seconds * (self._steps - last),
            }
            if self._share is not None:
                speed["flops_utilisation"] = lines * self._share / seconds
        self._then, self._step, self._compiled = now, last, True
        return [
            {"step": step, "split": "train", **figures, **speed} for step, figures in zip(steps, fetched, strict=True)
        ]


def rank(metric: str, figures: dict[str, float]) -> float:
    """What the best checkpoint is chosen by: the metric's value, turned so that the lower is the better.

    Raises ConfigError where the metric was not measured, or where it is not known which way it is better.
    """
    if metric not in figures:
        raise ConfigError(f"evaluate.metric={metric} is not measured{did_you_mean(metric, figures)}; there are "
                          + ", ".join(figures))  # fmt: skip
    if metric not in scores.BETTER:
        known = ", ".join(name for name in figures if name in scores.BETTER)
        raise ConfigError(f"evaluate.metric={metric} has no direction, lower or higher, in which it is better; "
                          f"choose one of {known}")  # fmt: skip
    return scores.rank(metric, figures[metric])


_LAST_STEPS = 10
FAR, FAR_IN_REGRESSION = 2.0, 100.0
"""How many times the first loss, and the loss of a guess, the last loss may be. Few labels that are far from the others
make the squared errors of small batches differ much: a regression may be ten times as far from its labels."""


def uniform_loss(run: Run, classes: int) -> float:
    """The loss in nats of a model that gives every answer the same probability, at least."""
    words = math.log(run.model.vocab)
    lm = {"mlm_nsp": words + math.log(2), "lm": words, "bilm": 2 * words}
    if run.objective in lm:
        return lm[run.objective]
    return math.log(max(classes, 2)) + run.task.lm_weight * words


def diverged_loss(records: Iterable[dict[str, Any]], guess: float, far: float = FAR) -> tuple[float, float] | None:
    """(loss of the first step, mean loss of the last ten) where training has made the model useless; else None.

    guess: the loss of a uniform guess, or of a regression the variance of its labels. The first step's loss comes
    before any update. The last mean has diverged where it is `far` times the first loss and `far` times the guess. A
    fine-tuned model may begin far below the guess, so that a rise alone is no alarm.
    """
    first: float | None = None
    last: deque[float] = deque(maxlen=_LAST_STEPS)
    for record in records:
        if record["split"] == "train" and isinstance(loss := record.get("loss"), int | float):
            if first is None:
                first = float(loss)
            else:
                last.append(float(loss))
    if first is None or not last:
        return None
    mean = sum(last) / len(last)
    return (first, mean) if mean > far * max(first, guess) else None


@dataclasses.dataclass
class Best:
    """The best evaluation so far, and how many have come after it without a better one."""

    metric: str = "loss"
    rank: float | None = None
    step: int = 0
    waited: int = 0

    def look(self, step: int, rank: float) -> None:
        """Takes the evaluation of a step."""
        if math.isfinite(rank) and (self.rank is None or rank < self.rank):
            self.rank, self.step, self.waited = rank, step, 0
        else:
            self.waited += 1
