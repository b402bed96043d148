"""The terminal: where progress, tables and log messages go."""

import contextlib
import logging
from collections.abc import Iterator

from rich.console import Console

from contexture.data.visible import visible


def console() -> Console:
    """A console on stderr."""
    return Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)


class ConsoleHandler(logging.Handler):
    """Prints log messages on a console, control characters escaped; warnings are marked."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Prints one message."""
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        self.console.print(prefix + visible(record.getMessage()), markup=False)


@contextlib.contextmanager
def logged_to(console: Console) -> Iterator[None]:
    """While this lasts, messages of the logger `contexture` are printed on this console, from level INFO on."""
    package = logging.getLogger("contexture")
    handlers, level, propagate = package.handlers, package.level, package.propagate
    package.handlers, package.propagate = [ConsoleHandler(console)], False  # libraries give the root logger handlers
    package.setLevel(logging.INFO)
    try:
        yield
    finally:
        package.handlers, package.propagate = handlers, propagate
        package.setLevel(level)
