"""JSON objects of files: an object a line (*.jsonl), or an array (*.json), in memory bounded by an object."""

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from contexture.data.errors import DataError
from contexture.data.plain_files import WHOLE, Seen, Span, inner_suffix, open_stream
from contexture.data.text.json_values import DECODER, RepeatedKey, fault_of, json_value
from contexture.data.text.lines import LONGEST_ROW, decoded_lines

LONGEST_VALUE = LONGEST_ROW
"""Characters of an object in a *.json: a longer one is taken for an array that is never closed."""
_PIECE = 1 << 16
_SPACES = " \t\r\n"
JsonObject: TypeAlias = dict[str, object]


def json_objects(path: Path, expected: str, seen: Seen = len, span: Span = WHOLE) -> Iterator[tuple[int, JsonObject]]:
    """Yields the objects of a file with their numbers: in a *.jsonl the line, from 1, where blank lines are left out;
    in a *.json the place, from 0. span: the bytes of a *.jsonl to read, as `lines`.

    Raises: DataError with file:number for what is not UTF-8, no JSON, or no object; `expected` ends its message.
    """
    for number, record in json_records(path, expected, seen, span):
        if isinstance(record, DataError):
            raise record
        yield number, record


def json_records(
    path: Path, expected: str, seen: Seen = len, span: Span = WHOLE
) -> Iterator[tuple[int, JsonObject | DataError]]:
    """As `json_objects`, but a line that is not UTF-8 or no JSON, and a value that is no object, comes as the DataError
    that names it. A *.json is not read beyond what is no JSON."""
    if inner_suffix(path) == ".json":
        yield from _Values(path, expected).records(seen)
        return
    for number, line, wrong in decoded_lines(path, seen, span=span):
        if line.strip():
            yield number, wrong or _record(line, f"{path}:{number}", expected)


def _record(line: str, at: str, expected: str) -> JsonObject | DataError:
    try:
        record = json_value(line)
    # A line is an error of its own: the caller decides whether it ends the work.
    except (ValueError, RecursionError) as error:
        return DataError(f"{at}: {fault_of(error)}; {expected}")
    return _checked(record, line, at, expected)


def _checked(record: object, text: str, at: str, expected: str) -> JsonObject | DataError:
    """Returns a value, written as `text`, where it is an object of whole characters; else the error."""
    try:
        # Half a character can only be written as an escape; it would fail much later, where text is encoded.
        json.dumps(record, ensure_ascii=False).encode() if "\\u" in text else None
    except UnicodeEncodeError:
        return DataError(f"{at}: half a character (a lone \\ud800-\\udfff); {expected}")
    return record if isinstance(record, dict) else DataError(f"{at}: no object; {expected}")


class _Values:
    """The values of a *.json: the items of its array, or values one after the other."""

    def __init__(self, path: Path, expected: str) -> None:
        self.path, self.expected = path, expected
        self.held, self.place = "", 0
        self.line = 1  # of the first character that is held
        self.ended = False

    def records(self, seen: Seen) -> Iterator[tuple[int, JsonObject | DataError]]:
        self.utf8 = codecs.getincrementaldecoder("utf-8-sig")()
        with open_stream(self.path, seen) as self.file:
            # Without a bracket the file has values one after the other.
            array = self._next() == "["
            self.place += array
            number = 0
            # Only an empty array may end here; after a comma, ] is an error.
            while (sign := self._next()) and not (array and sign == "]" and not number):
                value, text = self._value()
                yield number, _checked(value, text, f"{self.path}:{number}", self.expected)
                number += 1
                # Values that follow each other have nothing between them.
                if not array:
                    continue
                if (sign := self._next()) == "]":
                    break
                if sign != ",":
                    raise self._wrong("a comma or ] is missing" if sign else "the array is never closed; cut off?")
                self.place += 1
                if self._next() == "]":
                    raise self._wrong("a comma before ]")
            if not array:
                return
            if self._next() != "]":
                raise self._wrong("the array is never closed; cut off?")
            self.place += 1
            if self._next():
                raise self._wrong("text after the array")

    def _next(self) -> str:
        """Returns the next character that is no white space, which stays; "" at the end of the file."""
        while True:
            while self.place < len(self.held) and self.held[self.place] in _SPACES:
                self.place += 1
            if self.place < len(self.held) or not self._more():
                return self.held[self.place : self.place + 1]

    def _more(self) -> bool:
        """Reads on. Returns whether there was more."""
        if self.ended:
            return False
        # What was read is dropped, and its lines are counted.
        self.line += self.held.count("\n", 0, self.place)
        self.held, self.place = self.held[self.place :], 0
        # As much again as is held, so that a long object is not decoded more than a few times.
        raw = self.file.read(max(_PIECE, len(self.held)))
        self.ended = not raw
        try:
            # A piece may end within a character, whose bytes the decoder keeps.
            self.held += self.utf8.decode(raw, final=self.ended)
        except UnicodeDecodeError as error:
            line = self.line + self.held.count("\n") + raw[: max(error.start, 0)].count(b"\n")
            raise DataError(
                f"{self.path}: not UTF-8 (byte 0x{error.object[error.start]:02x} near line {line}); save the file as "
                "UTF-8"
            ) from None
        return bool(raw)

    def _value(self) -> tuple[object, str]:
        """Returns the next value, and how it is written."""
        while True:
            # The reason where no value ends within LONGEST_VALUE characters; the end of the file has one of its own.
            reason, at = "an object is too long, or a quote never closed", self.place
            try:
                value, end = DECODER.raw_decode(self.held, self.place)
                # A number may continue in what was not read yet.
                if end < len(self.held) or isinstance(value, dict) or self.ended:
                    text, self.place = self.held[self.place : end], end
                    return value, text
            # Before the end of the file an error may only mean that the value is not there as a whole.
            except json.JSONDecodeError as error:
                if self.ended:
                    reason, at = error.msg, error.pos
            except RecursionError:
                raise self._wrong("nested too deep") from None
            except RepeatedKey as error:
                raise DataError(f"{self.path}: near line {self._line(self.place)}: {error}") from None
            except ValueError as error:
                raise self._wrong(str(error)) from None
            if self.ended or len(self.held) - self.place > LONGEST_VALUE:
                raise self._wrong(reason, at)
            # A value that is not whole yet is tried again with more text.
            self._more()

    def _wrong(self, reason: str, at: int | None = None) -> DataError:
        line = self._line(self.place if at is None else at)
        return DataError(f"{self.path}: not JSON at line {line} ({reason}); {self.expected}, or write it as *.jsonl")

    def _line(self, place: int) -> int:
        return self.line + self.held.count("\n", 0, place)
