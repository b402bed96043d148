"""The console for progress, tables and log messages."""

import contextlib
import logging
import re
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from contexture.data.visible import visible
from contexture.train.run.exit_codes import exit_of

NOTEBOOK_COLUMNS = 100
# Wide enough for any row; rich needs some number.
_UNLIMITED = 10_000
"""Columns of a table in a file."""
_UNBROKEN = re.compile(r"\s*(?:--\S+ (?!--))?\S+")
"""A word, or an option with its value, which users copy together; with the blanks before it."""


def in_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook."""
    return Console().is_jupyter


def console() -> Console:
    """Returns a console on stderr; in a notebook, which marks stderr as errors, on stdout and without colours."""
    if in_notebook():
        # Not rich's own HTML output: plain text is readable in the saved file and where no kernel runs.
        return Console(
            file=sys.stdout,
            force_terminal=True,
            force_jupyter=False,
            color_system=None,
            width=NOTEBOOK_COLUMNS,
            soft_wrap=True,
            highlight=False,
            emoji=False,
        )
    return Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)


def print_table(console: Console, title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Prints a table, control characters escaped.

    Nothing is cut off: cells wrap on a terminal, and in a file each row is one line.
    """
    if title:  # not the table's own title, which would be broken at the table's width
        console.print(Text(visible(title)), soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(visible(column), overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))  # not as markup: a label may be in brackets
    # print() takes no width beyond the console's own, which is 80 columns in a file: hence a second, wide console.
    wide = Console(file=console.file, quiet=console.quiet, width=_UNLIMITED, emoji=False)
    (console if console.is_terminal else wide).print(table)


class ConsoleHandler(logging.Handler):
    """Prints log messages on a console, control characters escaped; warnings are marked.

    dated: adds date and time, unless the console is a terminal: in a file, a line should say when it was written.
    """

    def __init__(self, console: Console, *, dated: bool) -> None:
        super().__init__()
        self.console = console
        self._dated = dated and not console.is_terminal

    def emit(self, record: logging.LogRecord) -> None:
        """Prints one message."""
        prefix = time.strftime("%Y-%m-%d %H:%M:%S ", time.localtime(record.created)) if self._dated else ""
        prefix += "warning: " if record.levelno >= logging.WARNING else ""
        text = prefix + visible(record.getMessage())
        # A terminal's lines are broken between words; in a file, a message is a line. No markup: messages quote users.
        if self.console.is_terminal:
            text = _filled(text, self.console.width)
        self.console.print(text, markup=False, soft_wrap=not self.console.is_terminal)


def _filled(text: str, width: int) -> str:
    """Returns the text with its lines broken between words, but never between an option and its value."""
    filled: list[str] = []
    # Line by line: breaks that a message brings are kept.
    for line in text.split("\n"):
        filled.append("")
        for words in _UNBROKEN.findall(line):
            # Columns and not characters: a Chinese letter takes two.
            if filled[-1] and cell_len(filled[-1] + words) > width:
                filled.append(words.lstrip())
            else:
                filled[-1] += words
    return "\n".join(filled)


class FileHandler(ConsoleHandler):
    """Adds dated log messages to a file; a full disk loses messages and stops nothing."""

    def emit(self, record: logging.LogRecord) -> None:
        """Adds one message."""
        with contextlib.suppress(OSError):
            super().emit(record)


@contextlib.contextmanager
def logged_to(console: Console, *, dated: bool = False, file: Path | None = None) -> Iterator[None]:
    """Within the block, prints messages of the logger `contexture` on this console, from level INFO on.

    Args:
        console: where they are printed.
        dated: with date and time where the console is no terminal.
        file: a file that they are added to as well, always dated, followed by the error that ends the block, if any.
    """
    # The logger's old state is put back at the end: blocks nest, and a notebook has handlers of its own.
    package = logging.getLogger("contexture")
    handlers, level, propagate = package.handlers, package.level, package.propagate
    with contextlib.ExitStack() as stack:
        shown: list[logging.Handler] = [ConsoleHandler(console, dated=dated)]
        kept: list[logging.Handler] = []
        # Appended: log.txt has all starts of a run.
        if file is not None:
            opened = stack.enter_context(open(file, "a", encoding="utf-8"))
            kept = [FileHandler(Console(file=opened, soft_wrap=True, highlight=False, emoji=False), dated=True)]
        # Libraries give the root logger handlers, which would print each message again.
        package.handlers, package.propagate = shown + kept, False
        package.setLevel(logging.INFO)
        try:
            yield
        except BaseException as error:
            # Whoever catches the error prints it: only the file gets its line here.
            package.handlers = kept
            if kept:
                package.info(exit_of(error)[1])
            raise
        finally:
            package.handlers, package.propagate = handlers, propagate
            package.setLevel(level)
