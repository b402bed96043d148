"""Figures that no batch holds: the unigram baseline, and how much of a chip a step uses."""

from typing import Any

import numpy as np

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


def bert_step_flops(config: Any, lines: int, length: int, predictions: int) -> float:
    """FLOPs of one BERT training step, forward and backward (three times the forward's products), recomputation not
    counted: per token 8D² + 4DF a layer and 4LD for attention, per slot 2D² + 2DV, per line 2D²."""
    D, F, N, V = config.hidden, config.ffn, config.layers, config.vocab
    token = N * (8 * D * D + 4 * D * F + 4 * length * D)
    return 3.0 * lines * (length * token + predictions * (2 * D * D + 2 * D * V) + 2 * D * D)


def unigram_baseline(counts_V: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """What guessing by frequency alone gives on these labels: the loss in nats of the training text's distribution
    (one added to every count) and the accuracy of always naming its commonest token."""
    share_V = (counts_V + 1.0) / (counts_V.sum() + len(counts_V))
    return {
        "unigram_loss": float(-np.log(share_V[labels]).mean()),
        "unigram_accuracy": float((labels == int(counts_V.argmax())).mean()),
    }
