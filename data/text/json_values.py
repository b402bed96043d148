"""A JSON value of a user's file, as Python's json reads it, with two rules of our own.

| in the file | here |
|---|---|
| `NaN`, which is how pandas and Python write a missing number | None, as `null` is |
| a key twice in one object, of which Python keeps the last in silence | a RepeatedKey |
"""

import json


class RepeatedKey(ValueError):
    """An object has a key twice: nobody can tell which value is meant."""


def json_value(text: str) -> object:
    """Returns the value that a text holds.

    Raises: RepeatedKey, or ValueError where it is not JSON, RecursionError where it is nested too deep.
    """
    return DECODER.decode(text)


def fault_of(error: Exception) -> str:
    """Returns what is wrong with a text for which `json_value` raised this, in a few words."""
    if isinstance(error, RepeatedKey):
        return str(error)
    # `msg` alone: str(error) adds line and column within the text, while the caller knows the line of the file.
    reason = "nested too deep" if isinstance(error, RecursionError) else str(getattr(error, "msg", error))
    return f"not JSON ({reason})"


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    # One comparison of lengths for a good object. Which key is repeated is looked for only where they differ.
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in made if keys.count(key) > 1)
        raise RepeatedKey(f"the key {twice[:40]!r} twice in one object, with a value each; keep one of them")
    return made


def _constant(name: str) -> float | None:
    # Infinity is a number, if no good one: what wants a finite one refuses it by its value.
    return None if name == "NaN" else float(name)


# Built once: json.loads builds a new decoder at each call with hooks, and a *.jsonl has a call for each line.
DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
