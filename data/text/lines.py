"""Lines of text files, decompressed and decoded as they are read, in bounded memory; and the sentences of a line.

A line ends with \\n, \\r\\n or a lone \\r, in files and within texts alike. Python's `str.splitlines` has eight more
ends, U+2028, U+0085 and \\x1c among them, which are characters of a text here.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator
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
_BLOCK = 1 << 18
"""Bytes that are read at once, and split into lines."""
_MARK = b"\xef\xbb\xbf"
"""A byte order mark, which only a file's beginning has."""

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
    for first, block in line_blocks(path, seen, cut_long, most, span):
        yield from enumerate(block, first)


def line_blocks(
    path: Path, seen: Seen = len, cut_long: bool = False, most: int = LONGEST_ROW, span: Span = WHOLE
) -> Iterator[tuple[int, list[str]]]:
    """Yields (number of the first, lines): as `lines`, but many at once, about _BLOCK bytes of them."""
    for first, block in _raw_blocks(path, seen, cut_long, most, span):
        read, wrong = _decoded_block(path, first, block)
        # Those before the wrong one, as if each were read alone.
        yield first, read
        if wrong:
            raise wrong


def decoded_lines(
    path: Path, seen: Seen = len, cut_long: bool = False, most: int = LONGEST_ROW, span: Span = WHOLE
) -> Iterator[tuple[int, str, DataError | None]]:
    """Yields (number, line, error): as `lines`, but a line that is not UTF-8 comes with the DataError that names it,
    its other characters intact."""
    for first, block in _raw_blocks(path, seen, cut_long, most, span):
        for number, raw in enumerate(block, first):
            yield number, *_decoded(path, number, raw)


def _decoded_block(path: Path, first: int, block: list[bytes]) -> tuple[list[str], DataError | None]:
    """Returns the lines up to one that is not UTF-8, and the DataError that names it."""
    # Each by itself: one wide character in a block would make all of its characters wide, and splitting them slow.
    with contextlib.suppress(UnicodeDecodeError):
        return [raw.decode() for raw in block], None
    read: list[str] = []
    for number, raw in enumerate(block, first):
        line, wrong = _decoded(path, number, raw)
        if wrong:
            return read, wrong
        read.append(line)
    return read, None


def _decoded(path: Path, number: int, raw: bytes) -> tuple[str, DataError | None]:
    try:
        return raw.decode("utf-8"), None
    except UnicodeDecodeError as error:
        # In characters, from 1.
        column = len(raw[: error.start].decode("utf-8")) + 1
        where = f"byte 0x{raw[error.start]:02x} at column {column}"
        wrong = DataError(f"{path}:{number}: not UTF-8 ({where}); save the file as UTF-8")
        return raw.decode("utf-8", "replace"), wrong


def _raw_blocks(path: Path, seen: Seen, cut_long: bool, most: int, span: Span) -> Iterator[tuple[int, list[bytes]]]:
    """Yields lines as bytes, with the number of the first. cut_long: a line over LONGEST_LINE comes in pieces, cut at a
    space, or at a whole character; each piece comes alone."""
    # A line within both limits needs no care; others are looked at while they are collected.
    short = LONGEST_LINE if cut_long else min(LONGEST_LINE, most)
    with open_stream(path, seen, span) as file:
        number, mark = 1, _MARK if span[0] == 0 else b""
        # No more than a short line may have: of what is read at once, only the last line can be long.
        while block := file.read(min(_BLOCK, short)):
            start = block.rfind(b"\n") + 1
            if start < len(block):
                block += file.readline(short - len(block) + start)
            # A long one is taken out of the block, so that it is in memory once.
            long = None
            if len(block) - start >= short:
                long, block = _pieces(block[start:], file, b"" if start else mark), block[:start]
            # Of bytes, splitlines knows no other line ends than those of a text.
            if held := block.removeprefix(mark).splitlines(keepends=True):
                yield number, held
                number += len(held)
            if long:
                for place, piece in _long_line(path, number, long, cut_long, most):
                    yield place, [piece]
                    number = place + 1
            mark = b""


def _long_line(
    path: Path, number: int, pieces: Iterable[bytes], cut_long: bool, most: int
) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of pieces, which end where a line does or before; cut_long, most: as in `lines`."""
    limit, rest = LONGEST_LINE, bytearray()
    for piece in pieces:
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


def _pieces(held: bytes, file: BufferedReader, mark: bytes) -> Iterator[bytes]:
    """Yields what a file has up to a line feed, after bytes that were read of it, at most LONGEST_LINE bytes at a time,
    and never two lines in one. mark: is taken off its beginning."""
    limit = LONGEST_LINE
    while held:
        # One more: the limit may fall between \r and \n.
        if len(held) <= limit and not held.endswith(b"\n"):
            held += file.readline(limit + 1 - len(held))
        size = limit + (held[limit - 1 : limit + 1] == b"\r\n")
        piece, held = held[:size].removeprefix(mark), held[size:]
        mark = b""
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
