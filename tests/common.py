"""What several test files say alike: a command done or refused, and the rule of parity."""

from typing import Any

import numpy as np
import pytest

import contexture


def done(*words: object) -> None:
    """One command in this process, which succeeds."""
    assert contexture.main([str(word) for word in words]) == 0, words


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """(exit code, all of stderr) of one command in this process."""
    code = contexture.main([str(word) for word in words])
    return code, capsys.readouterr().err.strip()


def close(got: Any, wanted: Any, name: str = "") -> None:
    """max|got - wanted| <= 1e-5 · max|wanted|, of one shape."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape, name
    off, most = np.abs(got - wanted).max(), np.abs(wanted).max()
    assert off <= 1e-5 * most, f"{name}: {off:.2e} of {most:.2e}"
