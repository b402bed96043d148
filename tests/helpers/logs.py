"""What the package logs, as a list."""

import contextlib
import logging
from collections.abc import Iterator


class _ListHandler(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        self.lines.append(prefix + record.getMessage())


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """The messages logged while this lasts, in order; those of warnings begin with `warning: `."""
    package, lines = logging.getLogger("contexture"), list[str]()
    handler, level = _ListHandler(lines), package.level
    package.addHandler(handler)
    package.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        package.removeHandler(handler)
        package.setLevel(level)
