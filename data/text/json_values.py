"""A JSON value of a user's file, as Python's json reads it; but `NaN`, which is how pandas and Python write a missing
value, is None, as `null` is."""

import json


def json_value(text: str) -> object:
    """Returns the value that a text holds.

    Raises: ValueError where it is not JSON, RecursionError where it is nested too deep.
    """
    return DECODER.decode(text)


def reason_of(error: Exception) -> str:
    """Returns why `json_value` failed, in a few words."""
    return "nested too deep" if isinstance(error, RecursionError) else str(getattr(error, "msg", error))


def _constant(name: str) -> float | None:
    # Infinity is a number, if no good one: what wants a finite one refuses it by its value.
    return None if name == "NaN" else float(name)


DECODER = json.JSONDecoder(parse_constant=_constant)
