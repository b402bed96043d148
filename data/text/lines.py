"""Lines of text files, decompressed and decoded as they are read, in bounded memory; and the sentences of a line.

A line ends with \\n, \\r\\n or a lone \\r, in files and within texts alike. Python's `str.splitlines` has eight more
ends, U+2028, U+0085 and \\x1c among them, which are characters of a text here.
"""

import re
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from contexture.data.errors import DataError
from contexture.data.plain_files import WHOLE, Seen, Span, open_stream

# No line is collected before its length is looked at: a compressed file of 0.4 MB may hold one of 400 MB.
LONGEST_LINE = 1 << 19
"""Bytes after which a line of text to pretrain on is cut (at a space where it has one)."""
LONGEST_TEXT = 1 << 20
"""Most bytes of a line that is a text, or a word with its columns: tokens take many times its memory."""
LONGEST_ROW = 1 << 26
"""Most bytes of a line that is a row of a table, or a JSON object."""
LONGEST_DOCUMENT = 1 << 25
"""Most characters of a document of several lines that is read whole."""


_END = re.compile("\\r\\n|\\r|\\n")


def split_lines(text: str) -> list[str]:
    """Returns the lines of a text, without their ends."""
    return _END.split(text)


def lines(
    path: Path, seen: Seen = len, cut_long: bool = False, most: int = LONGEST_ROW, span: Span = WHOLE
) -> Iterator[tuple[int, str]]:
    """Yields the lines of a file in UTF-8, with their ends, each with its number.

    Args:
        path: the file.
        seen: gets all bytes as they are read.
        cut_long: whether a line over LONGEST_LINE bytes comes in pieces of one number.
        most: otherwise, the most bytes of a line.
        span: the bytes to read, whole lines; numbers are counted from there.

    Raises:
        DataError: with file:line for a line that is not UTF-8, or too long.
    """
    for number, line, wrong in decoded_lines(path, seen, cut_long, most, span):
        if wrong:
            raise wrong
        yield number, line


def decoded_lines(
    path: Path, seen: Seen = len, cut_long: bool = False, most: int = LONGEST_ROW, span: Span = WHOLE
) -> Iterator[tuple[int, str, DataError | None]]:
    """Yields (number, line, error): as `lines`, but a line that is not UTF-8 comes with the DataError that names it,
    its other characters intact."""
    for number, raw in _raw_lines(path, seen, cut_long, most, span):
        try:
            yield number, raw.decode("utf-8"), None
        except UnicodeDecodeError as error:
            # In characters, from 1.
            column = len(raw[: error.start].decode("utf-8")) + 1
            where = f"byte 0x{raw[error.start]:02x} at column {column}"
            wrong = DataError(f"{path}:{number}: not UTF-8 ({where}); save the file as UTF-8")
            yield number, raw.decode("utf-8", "replace"), wrong


def _raw_lines(path: Path, seen: Seen, cut_long: bool, most: int, span: Span) -> Iterator[tuple[int, bytes]]:
    """Yields lines as bytes, each with its number. cut_long: a line over LONGEST_LINE comes in pieces, cut at a space,
    or at a whole character."""
    limit = LONGEST_LINE
    with open_stream(path, seen, span) as file:
        number, rest, first = 1, bytearray(), span[0] == 0
        for piece in _pieces(file, limit):
            if first:  # a byte order mark, which only a file's beginning has
                piece, first = piece.removeprefix(b"\xef\xbb\xbf"), False
            rest += piece
            if not cut_long and len(rest) > most and len(rest.rstrip(b"\r\n")) > most:
                raise DataError(
                    f"{path}:{number}: a line of more than {most:,} bytes; break it into lines, or check that the file "
                    "is what its name says"
                )
            if rest.endswith((b"\n", b"\r")):
                yield number, bytes(rest)
                rest = bytearray()
                number += 1
            elif cut_long and len(rest) >= limit:
                raw = bytes(rest)
                # After the last space (not one at the very beginning, which would leave an empty piece); where there is
                # none, before a character that is not whole: back over the 10xxxxxx bytes to its first one.
                cut = raw.rfind(b" ", 1) + 1
                if not cut:
                    cut = len(raw)
                    while cut > len(raw) - 4 and raw[cut - 1] & 0xC0 == 0x80:
                        cut -= 1
                    cut = cut - 1 if raw[cut - 1] >= 0xC0 else cut
                # What follows the cut begins the next piece.
                rest = bytearray(raw[cut:])
                yield number, raw[:cut]
        if rest:
            yield number, bytes(rest)


def _pieces(file: BufferedReader, limit: int) -> Iterator[bytes]:
    """Yields the lines of a file with their ends; of longer ones at most `limit` bytes at a time."""
    while piece := file.readline(limit):
        # The limit may fall between \r and \n.
        if piece.endswith(b"\r") and file.peek(1)[:1] == b"\n":
            piece += file.read(1)
        # Of bytes, splitlines knows no other line ends.
        yield from piece.splitlines(keepends=True) if b"\r" in piece else (piece,)


# A sentence ends at these, with what closes quotes and brackets after them; CJK stops need no space to follow.
_CLOSING = "\"'”’»)\\]}›"
# A run of stops is tried once, from its first (the lookbehind), and without backtracking (++, *+): if it ends no
# sentence as a whole, no part of it does. So the time is linear in the length of the line.
_STOPS, _CJK_STOPS = ".!?…؟।۔", "。！？"
_SENTENCE_END = re.compile(
    rf"(?<![{_STOPS}])[{_STOPS}]++[{_CLOSING}]*+(?P<gap>\s++)(?=(?P<next>\S))"
    rf"|(?<![{_CJK_STOPS}])[{_CJK_STOPS}]++[”’」』）》〉】\"')]*+(?P<cjk>\s*+)(?=\S)"
)
_ANY_STOP = re.compile(f"[{_STOPS}{_CJK_STOPS}]")
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st sr jr rev hon gen col capt lt sgt maj cmdr adm gov sen rep pres messrs mme mlle mt ft "
    "vs etc al cf ca approx fig figs eq eqs sec ch chap vol vols pp ed eds est dept univ inc ltd co corp bros "
    "jan feb mar apr jun jul aug sep sept oct nov dec op viz".split()
)
_BEFORE_A_NUMBER = frozenset("no nos nr p art".split())
_LAST_WORD = re.compile(r"[^\s(\[{\"'“‘«—–-]*\Z")


def sentences(line: str) -> list[str]:
    """Splits a paragraph: `"Dr. Who left. He ran!" → ["Dr. Who left.", "He ran!"]`.

    A stop ends a sentence when a space follows and then something that may begin one (no lower-case letter, no closing
    mark); abbreviations, initials, `e.g.` and the like end none. 。！？ end one without a space. Text without such
    marks stays whole.
    """
    pieces: list[str] = []
    start = at = 0
    # Stops are looked for first: the pattern of a sentence's end, tried at every character, takes twice the time.
    while stop := _ANY_STOP.search(line, at):
        at = stop.end()
        match = _SENTENCE_END.match(line, stop.start())
        if match is None:
            continue
        at = match.end()
        # None for CJK stops, which end a sentence whatever follows.
        follows = match["next"]
        if follows is not None:
            if follows.islower() or follows in ",;:)]}%&":
                continue
            # The word before the stop alone: without a bound, every stop of a long line would look back over all of it.
            before = line[max(start, match.start() - 24) : match.start()]
            if line[match.start()] == "." and _abbreviated(before, follows):
                continue
        end = match.start("gap" if follows is not None else "cjk")
        pieces.append(line[start:end])
        start = match.end()
    if start < len(line):
        pieces.append(line[start:])
    return pieces


def _abbreviated(before: str, follows: str) -> bool:
    """Returns whether the stop between these texts belongs to an abbreviation."""
    match = _LAST_WORD.search(before)
    word = match[0] if match else ""
    # An initial (J.), or letters with stops between them (e.g., U.S.).
    if len(word) == 1 or (len(word) > 2 and word[-2] == "."):
        return word[-1].isalpha()
    word = word.lower()
    return word in _ABBREVIATIONS or (word in _BEFORE_A_NUMBER and follows.isdigit())
