"""Prints results on stdout, for people or as a stream; nothing else goes there."""

import contextlib
import dataclasses
import itertools
import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping

from contexture.data.visible import visible, visible_json

Result = Mapping[str, object]
"""The result of a command: printed for people, or with --json as one object."""

_NARROWEST = 12
"""Letters that a column of text keeps where a table is too wide for its terminal."""


@dataclasses.dataclass(frozen=True)
class StreamingResult:
    """A command whose text is printed while it is generated: work(write) → the result for --json, with or without an
    exit code."""

    work: "Callable[[Callable[[str], None]], Result | TwofoldResult]"


@dataclasses.dataclass(frozen=True)
class TwofoldResult:
    """A result shown differently to people and to programs: `json` is what --json prints, `code` the exit code."""

    json: Result
    shown: Result
    code: int = 0


def json_line(result: object) -> str:
    """Returns a result as JSON; NaN and infinity, which JSON lacks, become null, as in metrics.jsonl."""
    return visible_json(json.dumps(_finite(result), ensure_ascii=False, allow_nan=False))


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def write_out(text: str) -> None:
    """Prints text on stdout at once, control characters escaped."""
    print(visible(text), end="", flush=True)


def print_result(result: Result, indent: str = "", width: int | None = None) -> None:
    """Prints a result for people: nested names indented, lists of records as tables.

    Args:
        result: what the command returned.
        width: the columns of a terminal, to which long values and tables are wrapped; None: a value or record per line.
    """
    for name, value in result.items():
        if isinstance(value, dict):
            print(visible(f"{indent}{name}"))
            print_result(value, indent + "  ", width)
        elif isinstance(value, list) and value and isinstance(value[0], list):
            print_result({f"{name} {number}": rows for number, rows in enumerate(value, 1)}, indent, width)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            print(visible(f"{indent}{name}"))
            _print_table(value, indent + "  ", width)
        else:
            head, text = visible(f"{indent}{name:<{max(26 - len(indent), 1)}} "), _shown(value)
            # A path or a fingerprint that is longer than its column is printed below its name, unbroken.
            if width is not None and " " not in text and len(head) + len(text) > width > len(indent) + 2 + len(text):
                print(f"{head.rstrip()}\n{indent}  {text}")
                continue
            first, *others = _broken(text, None if width is None else width - len(head))
            print("\n".join([head + first, *(" " * len(head) + line for line in others)]))


def terminal_width() -> int | None:
    """Returns the columns of the terminal that stdout is; None if it is a file or another program."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fit_column(text: str, column: int, width: int | None) -> str:
    """Returns lines that have a name and, from a column on, a text, with the texts broken to fit the width."""
    lines: list[str] = []
    for line in text.split("\n"):
        first, *others = _broken(line[column:], None if width is None else width - column)
        lines += [line[:column] + first, *(" " * column + other for other in others)]
    return "\n".join(lines)


def _print_table(rows: list[Result], indent: str, width: int | None) -> None:
    lines = [[*map(visible, rows[0])], *([_shown(value) for value in row.values()] for row in rows)]
    widths = _column_widths(rows, lines, None if width is None else width - len(indent))
    if widths is None:
        for number, row in enumerate(rows):
            print("\n" * (number > 0), end="")
            print_result(row, indent, width)
        return
    for line in lines:
        cells = [_broken(cell, room, words=True) for cell, room in zip(line, widths, strict=True)]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            print((indent + "  ".join(p.ljust(room) for p, room in zip(parts, widths, strict=True))).rstrip())


def _column_widths(rows: list[Result], lines: list[list[str]], width: int | None) -> list[int] | None:
    """Returns the widths of a table's columns; None if its records are to be printed one below the other.

    That is so if they hold tables themselves, or the columns of figures leave no room for columns of text.
    """
    if any(_is_table(value) for value in rows[0].values()) or any(row.keys() != rows[0].keys() for row in rows):
        return None
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    # The widest columns of text give way. Figures are never broken.
    narrowed = [n for n, value in enumerate(rows[0].values()) if isinstance(value, str)]
    while width is not None and sum(widths) + 2 * len(widths) - 2 > width:
        if not narrowed or max(widths[n] for n in narrowed) <= _NARROWEST:
            return None
        widths[max(narrowed, key=lambda n: widths[n])] -= 1
    return widths


def _is_table(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(x, dict | list) for x in value))


def _broken(text: str, room: int | None, words: bool = False) -> list[str]:
    """Returns a text's lines of at most `room` letters, broken between words; long words are broken only by `words`, so
    that a path stays one that can be copied."""
    if room is None or len(text) <= room or room < _NARROWEST or "\n" in text:
        return [text]
    return textwrap.wrap(text, room, replace_whitespace=False, break_long_words=words, break_on_hyphens=False)


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(f"{x:.3g}" if isinstance(x, float) else _shown(x) for x in value) or "–"
    return f"{value:.6g}" if isinstance(value, float) else "–" if value in (None, "") else visible(f"{value}")


@contextlib.contextmanager
def results_alone() -> Iterator[None]:
    """Sends to stderr what libraries written in C print to stdout (which process reached which)."""
    # By file descriptors: libraries written in C know nothing of sys.stdout.
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
