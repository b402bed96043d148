"""What a process has compiled serves all that is traced alike in it."""

import pytest

from contexture.train.compilation import programs

pytestmark = pytest.mark.usefixtures("own_programs")


def test_what_is_made_for_a_key_is_made_once():
    made = []
    for _ in range(3):
        assert programs.shared("a", lambda: made.append("a") or object()) is programs.shared("a", object)
    assert made == ["a"] and programs.shared("b", object) is not programs.shared("a", object)
    assert programs.shared("none", lambda: None) is programs.shared("none", object) is None


def test_of_many_keys_the_one_longest_without_use_is_dropped():
    first = programs.shared(0, object)
    for key in range(1, programs.MOST):
        programs.shared(key, object)
    assert programs.shared(0, object) is first
    second = programs.shared(1, object)
    programs.shared("one more", object)
    programs.shared("another", object)
    assert programs.shared(0, object) is first and programs.shared(1, object) is second
    assert programs.shared(2, lambda: "again") == programs.shared(3, lambda: "again") == "again"


def test_an_error_is_not_kept():
    with pytest.raises(ValueError, match="no"):
        programs.shared("a", _fails)
    assert programs.shared("a", lambda: 1) == 1


def _fails() -> object:
    raise ValueError("no")
