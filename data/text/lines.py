"""Lines of text files, decompressed and decoded as they are read, in bounded memory."""

from collections.abc import Iterator
from pathlib import Path

from contexture.data.errors import DataError
from contexture.data.plain_files import Seen, open_stream

LONGEST_LINE = 1 << 19
"""Bytes after which a line of a *.txt file is cut (at a space where it has one), so that no file need fit in memory."""


def lines(path: Path, seen: Seen = len, cut_long: bool = False) -> Iterator[tuple[int, str]]:
    """Yields the lines of a file in UTF-8, with their ends, each with its number. Raises: DataError for a line that is
    not UTF-8."""
    for number, line, wrong in decoded_lines(path, seen, cut_long):
        if wrong:
            raise wrong
        yield number, line


def decoded_lines(path: Path, seen: Seen = len, cut_long: bool = False) -> Iterator[tuple[int, str, DataError | None]]:
    """Yields (number, line, error): as `lines`, but a line that is not UTF-8 comes with the DataError that names it,
    its other characters intact."""
    for number, raw in _raw_lines(path, seen, cut_long):
        try:
            yield number, raw.decode("utf-8"), None
        except UnicodeDecodeError as error:
            column = len(raw[: error.start].decode("utf-8")) + 1
            where = f"byte 0x{raw[error.start]:02x} at column {column}"
            wrong = DataError(f"{path}:{number}: not UTF-8 ({where}); save the file as UTF-8")
            yield number, raw.decode("utf-8", "replace"), wrong


def _raw_lines(path: Path, seen: Seen, cut_long: bool) -> Iterator[tuple[int, bytes]]:
    """Yields lines as bytes, each with its number. cut_long: a line over LONGEST_LINE comes in pieces, cut at a space,
    or at a whole character."""
    limit = LONGEST_LINE
    with open_stream(path, seen) as file:
        number, rest, first = 1, bytearray(), True
        while piece := file.readline(limit):
            if first:  # a byte order mark
                piece, first = piece.removeprefix(b"\xef\xbb\xbf"), False
            rest += piece
            if rest.endswith(b"\n"):
                yield number, bytes(rest)
                rest = bytearray()
                number += 1
            elif cut_long and len(rest) >= limit:
                raw = bytes(rest)
                # Behind the last space (not one at the very beginning, which would leave an empty piece); where there
                # is none, in front of a character that is not whole: back over the 10xxxxxx bytes to its first one.
                cut = raw.rfind(b" ", 1) + 1
                if not cut:
                    cut = len(raw)
                    while cut > len(raw) - 4 and raw[cut - 1] & 0xC0 == 0x80:
                        cut -= 1
                    cut = cut - 1 if raw[cut - 1] >= 0xC0 else cut
                rest = bytearray(raw[cut:])
                yield number, raw[:cut]
        if rest:
            yield number, bytes(rest)
