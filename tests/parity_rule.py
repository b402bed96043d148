"""The rule of parity: how near a tensor is to the original's."""

from typing import Any

import numpy as np


def close(got: Any, wanted: Any, name: str) -> None:
    """max|got - wanted| <= 1e-5 · max|wanted|, of one shape; zeros alone prove nothing, and fail."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape, f"{name}: {got.shape}, not {wanted.shape}"
    off, most = np.abs(got - wanted).max(), np.abs(wanted).max()
    assert 0 < most and off <= 1e-5 * most, f"{name}: {off:.2e} of {most:.2e}"
