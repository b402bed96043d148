"""The rules of comparison see what a plain comparison does not: NaN, zeros alone, another shape."""

import ast
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.parity_rule import assert_close, assert_differs, close, off, worst

GOOD = np.array([1.0, -2.0])
_TAKE_NAN = ("assert_allclose", "allclose", "isclose", "assert_almost_equal", "assert_array_equal", "assert_equal")


@pytest.mark.parametrize("rule", [off, close, assert_close, assert_differs])
@pytest.mark.parametrize("bad", [[np.nan, 1.0], [np.inf, 1.0], [1.0]], ids=["nan", "inf", "another shape"])
def test_nan_and_other_shapes_are_neither_near_nor_far(rule, bad):
    for pair in ((bad, GOOD), (GOOD, bad), (bad, [0.0, 0.0])):
        with pytest.raises(AssertionError):
            rule(*map(np.asarray, pair))
    if len(bad) == 2:
        with pytest.raises(AssertionError):
            rule(np.asarray(bad), np.asarray(bad))


@pytest.mark.parametrize("rule", [off, close, assert_close])
def test_zeros_alone_prove_nothing(rule):
    with pytest.raises(AssertionError, match="zeros alone"):
        rule(np.zeros(3), np.zeros(3))


def test_what_is_near_is_near_and_what_is_off_is_off():
    close(GOOD * (1 + 1e-6), GOOD)
    assert_close(GOOD + 1e-8, GOOD, atol=1e-6)
    assert_close(GOOD[:1], 1.0)
    assert_differs(GOOD, GOOD + 1e-3, 5e-4)
    assert off(GOOD + [0.0, 0.2], GOOD) == pytest.approx(0.1)
    for wrong in (lambda: close(GOOD * (1 + 2e-5), GOOD), lambda: assert_close(GOOD + 1e-5, GOOD, atol=1e-6)):
        with pytest.raises(AssertionError):
            wrong()
    with pytest.raises(AssertionError, match="do not differ"):
        assert_differs(GOOD, GOOD + 1e-6, 5e-4)


@pytest.mark.parametrize("values", [[1e-9, np.nan], [np.nan, 1e-9], [np.inf], []], ids=str)
def test_the_worst_of_numbers_among_which_is_none_is_refused(values):
    with pytest.raises(AssertionError):
        worst(values)
    assert worst([1e-9, 1e-7]) == 1e-7


def test_no_test_compares_numbers_by_a_rule_that_takes_nan():
    """Some say that NaN is NaN, `not allclose` that NaN differs from NaN; both have their rule in parity_rule."""
    offenders = []
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in _TAKE_NAN and "rule" not in file.stem:
                offenders.append(f"{file.name}:{node.lineno}: {node.attr}")
    assert not offenders, "use tests/helpers/parity_rule.py: " + ", ".join(offenders)
