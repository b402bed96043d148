"""Errors of labelled files, with the options of the command that reads them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from contexture.data.errors import DataError

_TASK_OPTION = re.compile(r"(?:--)?\btask\.(?=(?:text|second|choices|labels?|header)\b)")


@contextmanager
def column_options(**renamed: str) -> Iterator[None]:
    """Replaces a task's options in errors of the reader of examples (--task.label) by the command's own: --label, or,
    with label="sense", --sense."""
    try:
        yield
    except DataError as error:
        message = _TASK_OPTION.sub("--", str(error))
        for own, name in renamed.items():
            message = message.replace(f"--{own}", f"--{name}").replace(f"the {own} (column", f"the {name} (column")
        raise DataError(message) from None


@contextmanager
def column_names(*names: str) -> Iterator[None]:
    """Replaces the option in such an error, for a command without options for columns, by names that the file's columns
    may have."""
    try:
        yield
    except DataError as error:
        what, option, _ = str(error).partition("--task.")
        if not option:
            raise
        *others, last = names
        raise DataError(f"{what.rpartition('; ')[0]}; call the columns {', '.join(others)} and {last}") from None
