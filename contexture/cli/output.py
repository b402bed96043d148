"""Prints results on stdout, for people or as a stream; nothing else goes there."""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Mapping

from contexture.data.visible import visible

Result = Mapping[str, object]
"""What a command returns: printed for people, or with --json as one object."""


@dataclasses.dataclass(frozen=True)
class StreamingResult:
    """A command whose text is printed while it is generated: work(write) → the result for --json."""

    work: Callable[[Callable[[str], None]], Result]


def write_out(text: str) -> None:
    """Prints text on stdout at once, control characters escaped."""
    print(visible(text), end="", flush=True)


def print_result(result: Result, indent: str = "") -> None:
    """Prints a result for people: nested names indented, lists of records as tables."""
    for name, value in result.items():
        if isinstance(value, dict):
            print(visible(f"{indent}{name}"))
            print_result(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], list):
            print_result({f"{name} {number}": rows for number, rows in enumerate(value, 1)}, indent)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            print(visible(f"{indent}{name}"))
            _print_table(value, indent + "  ")
        else:
            print(visible(f"{indent}{name:<{max(26 - len(indent), 1)}} {_shown(value)}"))


def _print_table(rows: list[Result], indent: str) -> None:
    flat = {name: value for name, value in rows[0].items() if not isinstance(value, dict | list)}
    if len(flat) < len(rows[0]):  # records that hold tables themselves
        for row in rows:
            print_result(row, indent)
        return
    lines = [[*map(visible, rows[0])], *([_shown(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print((indent + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))).rstrip())


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "–" if value is None else visible(f"{value}")


@contextlib.contextmanager
def results_alone() -> Iterator[None]:
    """Sends to stderr what libraries written in C print to stdout (which process reached which)."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
