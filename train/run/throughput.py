"""The speed of training: tokens per second, and MFU, the fraction of the chip's peak that the model's FLOPs use."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Literal, Protocol, TypeVar

import numpy as np

from contexture.data.config import StepSize
from contexture.data.phases import phase_number
from contexture.models.families import family_of
from contexture.train.objectives import batch_sizes
from contexture.train.run.goodput import Goodput
from contexture.train.run.report import Record
from contexture.train.settings.run import Run

T = TypeVar("T")

# Dense bf16 peak of one jax device in FLOP/s, without sparsity, by its exact device_kind, from the vendors' data sheets
# (float16 for a V100, which has no bf16). A device of TPU v2 and v3 is a core, half of a chip; of v7x, one of the two
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
    """Returns the device's dense bf16 peak in FLOP/s; None for a kind that is not in the table.

    Kinds are compared whole: a chip of another speed may have a similar name.
    """
    return PEAK_FLOPS.get(device_kind)


class Device(Protocol):
    """The attributes of a jax device that are read here."""

    @property
    def platform(self) -> str: ...
    @property
    def device_kind(self) -> str: ...


def unknown_peak(device: Device) -> str:
    """Returns a warning for an accelerator whose peak is not known, so that there is no mfu; else ""."""
    # A CPU has no MFU and nobody expects one.
    if device.platform == "cpu" or peak_flops(device.device_kind) is not None:
        return ""
    return f"the peak FLOP/s of {device.device_kind!r} is not known: there will be no mfu"


def activation_floats(run: Run) -> float:
    """Returns about how many numbers of activations a training step holds at once, on top of its parameters."""
    floats = family_of(run.model).activation_floats
    # Of phases the one that takes most.
    each = [run.in_phase(phase.first) for phase in run.data.stretches]
    return max(floats(one.model, batch_sizes(one, one.data.batch // one.optim.accumulate)) for one in each)


class ThroughputMeter:
    """Turns the fetched metrics of steps into records, with speed and time left."""

    def __init__(
        self, run: Run, devices: int, device_kind: str, start: int, size_at: Callable[[int], StepSize] | None = None
    ) -> None:
        """Begins to count at step `start`.

        Args:
            run: the settings.
            devices: how many devices share a step.
            device_kind: their kind, which gives the peak.
            start: the step that training resumes from.
            size_at: step → the size of its batch; None: as the batches that are `counted` have it.
        """
        self._steps = run.steps
        self._last_time, self._last_step = time.perf_counter(), start
        self._compiled = False
        self._waited = 0.0
        # With patience every evaluation is followed by a save (session.after_step).
        self._every = {
            "evaluation": run.evaluate.every,
            "save": run.evaluate.every if run.evaluate.patience else run.save.every,
        }
        self._pauses: dict[str, float] = {}
        # The formula counts a backbone that is trained: with stored features it would promise too much.
        peak = None if run.reads_features else peak_flops(device_kind)
        self._size_at, self._data = size_at, run.data
        self._sizes: dict[int, StepSize] = {}
        # Stored features are read without padding.
        self._has_padding = size_at is not None and not run.reads_features
        training_flops = family_of(run.model).training_flops

        # The FLOPs of a step, by which those that are left are weighed.
        def step_flops(step: int) -> float:
            return training_flops(run.model, batch_sizes(run.in_phase(step), run.data.batch_size_at(step)))

        self._step_flops = step_flops

        # Seconds that all devices together need for one sequence of this length at their peak. Cached: there are few
        # lengths, and the formula of a family walks over its configuration.
        @lru_cache
        def peak_seconds(phase: int, length: int) -> float | None:
            sizes = batch_sizes(run.in_phase(run.data.stretches[phase].first), 1)
            return training_flops(run.model, {**sizes, "A": 1, "L": length}) / (peak * devices) if peak else None

        self._peak_seconds = peak_seconds

    @contextlib.contextmanager
    def pausing(self, kind: Literal["evaluation", "save"]) -> Iterator[None]:
        """Leaves the time of this block out of the speed, and counts it for each such pause that is still to come."""
        start = time.perf_counter()
        yield
        # The clock of the steps starts again after the pause.
        self._last_time, self._waited = time.perf_counter(), 0.0
        self._pauses[kind] = self._last_time - start

    def compiled(self) -> None:
        """Notes that the steps of the next records include a compilation, so that these have no speed."""
        self._compiled = False

    def _pauses_left(self, done: int) -> float:
        """Returns the seconds of the evaluations and saves after step `done`, each as long as the latest of its kind.

        The last step has both. A kind of pause that has not happened yet counts nothing.
        """
        left = 0.0
        for kind, seconds in self._pauses.items():
            every = self._every[kind] or self._steps
            # Multiples of `every` in (done, steps], and one more if the last step is no multiple.
            left += seconds * (self._steps // every - done // every + (self._steps % every > 0))
        return left

    def _steps_left(self, done: int) -> float:
        """Returns the steps after step `done`, counted in steps like that one: those of another phase by their
        FLOPs."""
        phases = self._data.stretches
        if len(phases) == 1:
            return self._steps - done
        # Seconds were measured on steps like the last one.
        now = self._step_flops(max(done - 1, 0))
        ends = [*(phase.first for phase in phases[1:]), self._steps]
        return sum(
            max(end - max(phase.first, done), 0) * self._step_flops(phase.first) / now
            for phase, end in zip(phases, ends, strict=True)
        )

    def timed(self, batches: Iterator[T], goodput: Goodput) -> Iterator[T]:
        """Yields batches, and counts the time that the loop waits for them."""
        while True:
            # Zero while the reader keeps ahead: a wait means that the data are the bottleneck.
            start = time.perf_counter()
            with goodput.part("waiting_for_data"):
                batch = next(batches, None)
            self._waited += time.perf_counter() - start
            if batch is None:
                return
            yield batch

    def counted(self, step: int, batch: Mapping[str, np.ndarray]) -> None:
        """Notes the size of a step's batch, of which these arrays hold this process's sequences: where it has only
        some, the others are taken to be as long. Nothing is noted where `size_at` knows it."""
        # An ELMo's lanes have no mask: they are full.
        if self._size_at is not None or "mask" not in batch:
            return
        sequences, mask = self._data.batch_size_at(step), batch["mask"]
        # Of rows that sequences share, each process has all.
        computed = batch["tokens"].size if "begins" in batch else sequences * mask.shape[1]
        self._sizes[step] = StepSize(sequences, round(int(mask.sum()) * sequences / len(mask)), computed)

    def _size(self, step: int) -> StepSize:
        if self._size_at is not None:
            return self._size_at(step)
        return self._sizes.pop(step, None) or self._data.size_at(step)

    def records(self, steps: list[int], fetched: list[Mapping[str, object]]) -> list[Record]:
        """Returns one record for each step: `step`, `split`, its metrics, tokens_per_second (of the texts), mfu,
        data_wait, the share of time that the loop waited for batches, and where batches have padding padding_ratio,
        the tokens that are computed for each of the texts.

        The host runs ahead of the device, so single steps cannot be timed: all get the mean speed since the last
        records.
        """
        if not steps:
            return []
        # Seconds per step since the last records, pauses left out.
        now, last = time.perf_counter(), steps[-1]
        count = max(last - self._last_step, 1)
        seconds = (now - self._last_time) / count
        # The batch may grow (data.ramp-from), and texts differ in length.
        sizes = [self._size(step) for step in range(self._last_step, last)]
        tokens, computed = sum(size.tokens for size in sizes), sum(size.computed for size in sizes)
        # Records whose time includes a compilation have no speed.
        speed: dict[str, float] = {}
        if self._compiled:
            speed = {
                "tokens_per_second": tokens / count / seconds,
                "seconds_left": seconds * self._steps_left(last) + self._pauses_left(last),
                "data_wait": min(self._waited / max(now - self._last_time, 1e-9), 1.0),
            }
            # MFU: the seconds that these sequences would take at the peak, over the seconds that they took. They count
            # as all of the step's mean length, rounded up; what pads them counts for nothing.
            phases = [phase_number(self._data.stretches, step) for step in range(self._last_step, last)]
            peak_seconds = [
                (self._peak_seconds(phase, -(-size.tokens // size.sequences)), size.sequences)
                for phase, size in zip(phases, sizes, strict=True)
            ]
            if all(each is not None for each, _ in peak_seconds):
                speed["mfu"] = sum((each or 0.0) * n for each, n in peak_seconds) / count / seconds
        # Windows and lanes of text are full, and have no such figure.
        if tokens and (self._has_padding or (self._size_at is None and computed > tokens)):
            speed["padding_ratio"] = computed / tokens
        self._last_time, self._last_step, self._compiled, self._waited = now, last, True, 0.0
        return [
            {"step": step, "split": "train", **figures, **speed} for step, figures in zip(steps, fetched, strict=True)
        ]
