"""A number of a file is written with the digits 0 to 9, wherever it is read."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contexture.data.tasks.read.labels import Labels
from contexture.data.text.written_numbers import whole_number, written_number

NO_NUMBERS = ["1_0", "2019_04", "\u0661\u0662", "\uff11", "0x10", "1 2", "1,5", "", "-", ".", "e3", "1e", "1.5.2",
              "--1", "\x1c1", "\u20031", "infinite", "true"]  # fmt: skip


@given(st.floats(allow_nan=False) | st.integers(-(10**15), 10**15))
def test_numbers_come_back_as_they_were_written(number: float):
    for text in (str(number), repr(number), f" {number}\t"):
        assert written_number(text) == number
    assert written_number(f"{number:+}") == number


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_what_only_python_takes_for_a_number_is_none(text: str):
    assert written_number(text) is None and whole_number(text) is None


def test_other_ways_of_writing_a_number():
    assert [written_number(text) for text in ("+3", ".5", "5.", "1E-3", "007")] == [3, 0.5, 5, 0.001, 7]
    assert [whole_number(text) for text in ("0", " 12 ", "+1", "-1", "1.0", "9" * 19)] == [0, 12, *[None] * 4]
    assert math.isnan(written_number("NaN") or 0) and written_number("-Infinity") == -math.inf


def test_labels_that_only_python_takes_for_numbers_are_sorted_as_text():
    labels = Labels()
    for label in ("b", "2019_04", "10", "9"):
        labels.number(label, "a.tsv:2")
    labels.close()
    assert list(labels.numbers) == ["9", "10", "2019_04", "b"]
