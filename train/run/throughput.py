"""How fast a run trains: tokens per second, and how much of the chip's peak (MFU) that is."""

import time
from typing import Any

from contexture.models.model import FAMILIES
from contexture.train.config import Run
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
    return f"the peak FLOP/s of {device.device_kind!r} is not known: there will be no mfu"


def activation_floats(run: Run) -> float:
    """About how many numbers a training step works on at once beside its parameters."""
    return FAMILIES[type(run.model)].activation_floats(
        run.model, batch_sizes(run, run.data.batch // run.optim.accumulate)
    )


class ThroughputMeter:
    """Turns fetched figures into records, with speed and time left."""

    def __init__(self, run: Run, devices: int, device_kind: str, start: int) -> None:
        self._steps = run.steps
        self._then, self._step = time.perf_counter(), start
        self._compiled = False
        self._data = run.data
        peak = peak_flops(device_kind)
        flops = FAMILIES[type(run.model)].training_flops(run.model, batch_sizes(run, 1))
        self._share = flops / (peak * devices) if peak else None

    def reset(self) -> None:
        """What was done since the last records was no training."""
        self._then = time.perf_counter()

    def records(self, steps: list[int], fetched: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One record a step: `step`, `split`, its figures, tokens_per_second (padding counted), mfu."""
        if not steps:
            return []
        now, last = time.perf_counter(), steps[-1]
        seconds = (now - self._then) / max(last - self._step, 1)
        lines = (self._data.examples_before(last) - self._data.examples_before(self._step)) / max(last - self._step, 1)
        speed: dict[str, Any] = {}
        if self._compiled:  # the first stretch holds the compilation
            speed = {
                "tokens_per_second": lines * self._data.length / seconds,
                "seconds_left": seconds * (self._steps - last),
            }
            if self._share is not None:
                speed["mfu"] = lines * self._share / seconds
        self._then, self._step, self._compiled = now, last, True
        return [
            {"step": step, "split": "train", **figures, **speed} for step, figures in zip(steps, fetched, strict=True)
        ]
