"""The rules of comparison: how near numbers are to the original's, or to ours by another way.

NaN and infinity are near nothing, and zeros alone prove nothing: each rule fails on them, where `max(a, nan) <= b`,
numpy's `assert_allclose` (NaN equals NaN) and `a != b` do not.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np


def _pair(got: Any, expected: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape, f"{name}: {got.shape}, not {expected.shape}"
    assert np.isfinite(got).all() and np.isfinite(expected).all(), f"{name}: numbers that are not finite"
    return got, expected


def off(got: Any, expected: Any, name: str = "") -> float:
    """max|got - wanted| / max|wanted|, of one shape. Fails on zeros alone."""
    got, expected = _pair(got, expected, name)
    tolerance = np.abs(expected).max()
    assert 0 < tolerance, f"{name}: zeros alone"
    return float(np.abs(got - expected).max() / tolerance)


def close(got: Any, expected: Any, name: str = "", tolerance: float = 1e-5) -> None:
    """max|got - wanted| <= most · max|wanted|, of one shape; zeros alone prove nothing, and fail."""
    actual = off(got, expected, name)
    assert actual <= tolerance, f"{name}: off by {actual:.2e} of the largest"


def assert_close(got: Any, expected: Any, rtol: float = 1e-7, atol: float = 0.0, err_msg: str = "") -> None:
    """|got - wanted| <= atol + rtol·|wanted|, number by number; `wanted` may be one number for all."""
    got, expected = np.asarray(got), np.asarray(expected)
    got, expected = _pair(got, np.broadcast_to(expected, got.shape) if expected.ndim == 0 else expected, err_msg)
    assert expected.any(), f"{err_msg}: zeros alone"
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=atol, err_msg=err_msg, equal_nan=False)


def assert_differs(got: Any, other: Any, least: float = 0.0, name: str = "") -> None:
    """max|got - other| > least, of one shape, all of them numbers."""
    got, other = _pair(got, other, name)
    assert np.abs(got - other).max() > least, f"{name}: they do not differ by more than {least}"


def worst(values: Iterable[Any]) -> float:
    """The largest of some numbers; NaN, infinity and none at all fail."""
    differences = np.asarray([float(x) for x in values])
    assert differences.size and np.isfinite(differences).all(), f"not numbers alone: {differences}"
    return float(differences.max())
