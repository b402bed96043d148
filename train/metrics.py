"""Figures that no batch holds: the unigram baseline, and how much of a chip a step uses."""

import dataclasses
import math
import time
from typing import Any

import numpy as np

from models.model import FAMILIES
from train.config import ConfigError, Run, did_you_mean
from train.objectives import batch_sizes

# Dense bf16 peak of one chip, FLOP/s, by a word of jax's device_kind (vendors' data sheets).
PEAK_FLOPS = {
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "V100": 125e12,
    "L4": 121e12,
    "TPU v6": 918e12,
    "TPU v5p": 459e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v4": 275e12,
    "TPU v3": 123e12,
    "TPU v2": 45e12,
}


def peak_flops(device_kind: str) -> float | None:
    """The chip's dense bf16 peak in FLOP/s, or None where it is not known (a CPU)."""
    return next((peak for word, peak in PEAK_FLOPS.items() if word.lower() in device_kind.lower()), None)


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
    """What the best is chosen by, the less the better: a loss or an error itself, anything else with its sign turned.

    Raises ConfigError where the figure was not measured.
    """
    if metric not in figures:
        raise ConfigError(f"evaluate.metric={metric} is not measured{did_you_mean(metric, figures)}; there are "
                          + ", ".join(figures))  # fmt: skip
    value = figures[metric]
    return value if metric.endswith(("loss", "mse", "mae")) else -value


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
