"""The rules of comparison: how near numbers are to the original's, or to ours by another way.

NaN and infinity are near nothing, and zeros alone prove nothing: each rule fails on them, where `max(a, nan) <= b`,
numpy's `assert_allclose` (NaN equals NaN) and `a != b` do not.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np


def _pair(got: Any, wanted: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape, f"{name}: {got.shape}, not {wanted.shape}"
    assert np.isfinite(got).all() and np.isfinite(wanted).all(), f"{name}: numbers that are not finite"
    return got, wanted


def off(got: Any, wanted: Any, name: str = "") -> float:
    """max|got - wanted| / max|wanted|, of one shape. Fails on zeros alone."""
    got, wanted = _pair(got, wanted, name)
    most = np.abs(wanted).max()
    assert 0 < most, f"{name}: zeros alone"
    return float(np.abs(got - wanted).max() / most)


def close(got: Any, wanted: Any, name: str = "", most: float = 1e-5) -> None:
    """max|got - wanted| <= most · max|wanted|, of one shape; zeros alone prove nothing, and fail."""
    found = off(got, wanted, name)
    assert found <= most, f"{name}: off by {found:.2e} of the largest"


def assert_close(got: Any, wanted: Any, rtol: float = 1e-7, atol: float = 0.0, err_msg: str = "") -> None:
    """|got - wanted| <= atol + rtol·|wanted|, number by number; `wanted` may be one number for all."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    got, wanted = _pair(got, np.broadcast_to(wanted, got.shape) if wanted.ndim == 0 else wanted, err_msg)
    assert wanted.any(), f"{err_msg}: zeros alone"
    np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol, err_msg=err_msg, equal_nan=False)


def assert_differs(got: Any, other: Any, least: float = 0.0, name: str = "") -> None:
    """max|got - other| > least, of one shape, all of them numbers."""
    got, other = _pair(got, other, name)
    assert np.abs(got - other).max() > least, f"{name}: they do not differ by more than {least}"


def worst(values: Iterable[Any]) -> float:
    """The largest of some numbers; NaN, infinity and none at all fail."""
    found = np.asarray([float(x) for x in values])
    assert found.size and np.isfinite(found).all(), f"not numbers alone: {found}"
    return float(found.max())
