"""What several test files say alike: a command done or refused, and the rule of parity."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import pytest

import contexture


@contextmanager
def devices(count: int) -> Iterator[None]:
    """The commands called in this process see so many devices."""
    seen = jax.devices()[:count]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda: seen)
        yield


def done(*words: object) -> None:
    """One command in this process, which succeeds."""
    assert contexture.main([str(word) for word in words]) == 0, words


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """(exit code, all of stderr) of one command in this process."""
    code = contexture.main([str(word) for word in words])
    return code, capsys.readouterr().err.strip()


def close(got: Any, wanted: Any, name: str = "") -> None:
    """max|got - wanted| <= 1e-5 · max|wanted|, of one shape; zeros alone prove nothing, and fail."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape, f"{name}: {got.shape}, not {wanted.shape}"
    off, most = np.abs(got - wanted).max(), np.abs(wanted).max()
    assert 0 < most and off <= 1e-5 * most, f"{name}: {off:.2e} of {most:.2e}"
