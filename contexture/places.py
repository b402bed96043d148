"""Addresses of buckets in the arguments of `contexture`'s functions, and in what these return and raise."""

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from contexture.data.bucket import parse_address
from contexture.data.mirror import address_of, finish, local, with_addresses
from contexture.data.mixed_paths import split_weight

F = TypeVar("F", bound=Callable[..., Any])
_PLACES = ("run", "source", "dir", "to", "path", "vocabulary", "train", "dev", "test", "submission", "figures")
"""The arguments that may name files and folders."""


def with_places(function: F) -> F:
    """Wraps a function so that it takes addresses of buckets where it takes paths.

    A path that it returns, and the text of an error, name the address again.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def placed(*args: Any, **given: Any) -> Any:
        try:
            bound = signature.bind(*args, **given)
        except TypeError:  # the function itself says what is wrong
            return function(*args, **given)
        for name in _PLACES:
            if name in bound.arguments:
                bound.arguments[name] = path_of(bound.arguments[name])
        try:
            result = function(*bound.args, **bound.kwargs)
            finish()
        except Exception as error:
            error.args = tuple(with_addresses(each) if isinstance(each, str) else each for each in error.args)
            if isinstance(error, OSError) and isinstance(error.filename, str):
                error.filename = with_addresses(error.filename)
            raise
        # Path, as for other folders: all functions here also read the one slash that it leaves of two.
        if isinstance(result, Path):
            return Path(str(address_of(result))) if address_of(result) else result
        return _with_addresses(result) if isinstance(result, dict | list) else result

    return placed  # pyright: ignore[reportReturnType]


def _with_addresses(result: Any) -> Any:
    if isinstance(result, dict):
        return {name: _with_addresses(each) for name, each in result.items()}
    if isinstance(result, list):
        return [_with_addresses(each) for each in result]
    return with_addresses(result) if isinstance(result, str) else result


def path_of(given: Any) -> Any:
    """Returns an argument, or each of a list, with a path in place of the address of a bucket."""
    if isinstance(given, str | Path):
        lead, path = split_weight(str(given))
        return lead + local(path) if parse_address(path) else given
    if isinstance(given, Sequence):
        return [path_of(each) if isinstance(each, str | Path) else each for each in given]
    return given
