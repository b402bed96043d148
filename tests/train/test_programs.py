"""What a process has compiled serves all that is traced alike in it."""

import dataclasses
from typing import Any

import pytest

from contexture.train import programs
from contexture.train.settings.run import Run

pytestmark = pytest.mark.usefixtures("own_programs")


@programs.shared
def made(*arguments: Any) -> list[Any]:
    if arguments == ("fails",):
        raise ValueError("no")
    return [*arguments]


def test_what_is_made_for_equal_arguments_is_made_once():
    """Arguments that cannot be hashed are compared by their `repr`. Two functions share no entry."""
    assert made("a", {"b": 1}) is made("a", {"b": 1})
    assert made("a", {"b": 1}) is not made("a", {"b": 2})

    @programs.shared
    def other(*arguments: object) -> list[object]:
        return [*arguments]

    assert other("a") == made("a") and other("a") is not made("a")


def test_a_run_is_given_without_what_its_step_takes_as_arguments():
    run = Run(dir="runs/a", seed=3)
    (given,) = made(run)
    assert made(dataclasses.replace(run, seed=5, dir="runs/b"))[0] is given
    assert (given.seed, given.dir) == (0, "") and given.model == run.model


def test_of_many_keys_the_one_longest_without_use_is_dropped():
    first, second = made(0), made(1)
    for key in range(2, programs.MOST):
        made(key)
    assert made(0) is first
    made("one more")
    assert made(0) is first and made(1) is not second


def test_an_error_is_not_kept():
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            made("fails")
    assert not programs._kept
